"""SIGKILL at every step of telling a session something: each text arrives once, whole, unmarked, in order.

A traced run counts the poller's system calls of each kind; then, for a new comment each time, the poller is killed as
it enters one of them, and started again until nothing is pending. The session lives through all of it.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from support.terminals import Terminals

IS_FULL: Final = bool(os.environ.get("THE_LOOP_FULL_SWEEP"))
SEED: Final = int(os.environ.get("THE_LOOP_SEED") or random.randrange(10**6))
CALLS: Final = ("fsync", "rename", "unlink", "write", "memfd_create", "flock", "ioctl", "vfork", "clone3", "clone")
SAMPLE: Final = 40
RUNS_TO_SETTLE: Final = 6

pytestmark = [pytest.mark.crash, pytest.mark.timeout(3600 if IS_FULL else 600)]


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Terminals]:
    with Terminals(tmp_path, spawnPrompt="$id $redelivery\n$body", commentPrompt="$id $redelivery\n$body") as box:
        yield box


def traced(box: Terminals, *options: str) -> int:
    """A single run under strace; its exit code."""
    argv = ["strace", "-qq", "-o", str(box.folder / "trace"), *options, *box.argv("poll", "start", "--once")]
    return subprocess.run(argv, env=box.environ, capture_output=True, check=False, timeout=60).returncode


def points(box: Terminals) -> list[tuple[str, int]]:
    """Each call of these kinds that a run with one comment makes."""
    box.comment("a", "traced", "to be counted")
    assert traced(box, "-e", f"trace={','.join(f'?{call}' for call in CALLS)}") == 0
    counts = Counter(re.findall(r"^(\w+)\(", (box.folder / "trace").read_text(), re.MULTILINE))
    assert {"fsync", "rename", "memfd_create", "flock"} <= counts.keys()
    return [(call, number) for call, count in counts.items() for number in range(1, count + 1)]


def test_text_when_the_poller_is_killed_at_any_call_arrives_once(box: Terminals) -> None:
    print(f"seed {SEED}")
    ref = box.item("a", "please")
    assert box.once().code == 0
    every = points(box)
    chosen = every if IS_FULL else random.Random(SEED).sample(every, min(SAMPLE, len(every)))
    killed = 0
    for count, (call, number) in enumerate(chosen):
        name = f"c{count:04}"
        box.comment("a", name, f"killed at {call} {number}")

        killed += traced(box, "-e", f"trace={call}", "-e", f"inject={call}:signal=KILL:when={number}") != 0
        for _ in range(RUNS_TO_SETTLE):
            box.once()
            if not box.pending() and any(name in one for one in box.messages()):
                break

        assert [one for one in box.messages() if f"comment:{name} " in one] == [
            f"{ref}/comment:{name} false\nkilled at {call} {number}"
        ], (call, number)
    assert killed > len(chosen) // 2
    ids = [one.split()[0] for one in box.messages()]
    assert ids == [f"{ref}/spawn:1", f"{ref}/comment:traced", *(f"{ref}/comment:c{n:04}" for n in range(len(chosen)))]
    assert box.attempts() == {}
