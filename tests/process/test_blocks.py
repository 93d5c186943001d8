"""The event loop is never away for long, however much there is at once: signals and other sources wait that long."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.poller import Box

pytestmark = pytest.mark.slow

LIMIT_S = 0.1  # of processor time, which hardly depends on what else the machine does
FOLDERS, ROWS, STRANGERS = 4000, 3000, 8000


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    with Box(tmp_path) as box:
        box.configure(session={"command": ["true"]}, polling={"intervalSeconds": 1})
        yield box


def folders(box: Box) -> None:
    for number in range(FOLDERS):
        folder = box.inbox / f"item{number}"
        folder.mkdir()
        (folder / "item.md").write_text("please")


def rows(box: Box, count: int = ROWS, mode: int = 0o644) -> None:
    box.item("a")
    assert box.once().code == 0
    for number in range(count):
        path = box.inbox / "a" / f"{number}.md"
        path.write_text("and this")
        path.chmod(mode)


def strangers(box: Box) -> None:
    rows(box, STRANGERS, 0o666)


@pytest.mark.parametrize("fill", [folders, rows, strangers])
def test_loop_when_there_is_much_at_once_then_it_is_never_away_for_long(box: Box, fill: Callable[[Box], None]) -> None:
    """2,000 comments blocked it for 1.6 s, 10,000 rows of strangers for 1.8 s, 20,000 folders for 5 s."""
    fill(box)

    poller = box.start()
    heartbeats = [next_cycle(box, poller.pid) for _ in range(3)]

    heartbeat = heartbeats[-1]
    assert heartbeat["longestBlock"]["processorSeconds"] < LIMIT_S, heartbeat["longestBlock"]
    assert poller.stop() == 0


def next_cycle(box: Box, pid: int) -> dict[str, Any]:
    """The heartbeat that shows a cycle of this life which the present one does not show."""

    def read() -> tuple[dict[str, Any], str]:
        try:
            beat = json.loads((box.root / "poll-status.json").read_bytes())
        except FileNotFoundError:
            return {}, ""
        return beat, (beat["sources"][0]["lastCycle"] or {}).get("startedAt", "") if beat["pid"] == pid else ""

    _, before = read()
    box.wait(lambda: read()[1] not in ("", before), "a cycle")
    return read()[0]
