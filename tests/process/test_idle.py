"""What a poller costs while nothing happens: no ledger is opened, nothing is flushed."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

import pytest

from support.poller import Box

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

ITEMS = 60
CYCLES = 3


def calls_below(trace: Path, folder: str, since: int) -> list[str]:
    lines = trace.read_text("utf-8", "replace").splitlines()[since:]
    return [line for line in lines if re.search(rf"{folder}/[^\"]*\.json", line)]


def test_cycles_when_nothing_happens_then_no_ledger_is_read_or_written(box: Box) -> None:
    for number in range(ITEMS):
        box.item(f"item-{number}")
    while len(box.ledgers()) < ITEMS or box.pending():
        assert box.once().code == 0
    trace = box.folder / "trace"
    argv = ["strace", "-D", "-f", "-qq", "-o", str(trace), "-e", "trace=openat,rename,fsync,unlink"]
    told = len(box.events("poll.cycle"))
    poller = box.start(before=argv)
    box.wait_for_cycles()
    since = len(trace.read_text("utf-8", "replace").splitlines())

    box.wait_for_cycles(CYCLES, since=time.time())

    assert calls_below(trace, "root/portable", since) == []
    assert calls_below(trace, "root/local/deliveries", since) == []
    assert not [line for line in trace.read_text().splitlines()[since:] if "fsync" in line]
    assert len(box.events("poll.cycle")) == told, "a quiet cycle is not an event"
    assert poller.stop() == 0
    box.assert_once({ref: ["spawn:1"] for ref in box.ledgers()})
