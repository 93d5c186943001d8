"""SIGKILL at every step of a delivery, then a start: what arrives is what would have arrived anyway.

A traced run says which system calls change something below the state root (between two of them every kill leaves the
same disk behind). One after the other, the poller, its keeper, or both are killed as they enter such a call. Each run
takes a sample (its seed is printed; `THE_LOOP_SEED` repeats it); `THE_LOOP_FULL_SWEEP=1` takes every point.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from support.poller import Box, wait_for
from the_loop.core.ledger import settle
from the_loop.ledgers import Ledgers
from the_loop.settled import INLINE
from the_loop.state import StateRoot

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

IS_FULL: Final = bool(os.environ.get("THE_LOOP_FULL_SWEEP"))
SEED: Final = int(os.environ.get("THE_LOOP_SEED") or random.randrange(10**6))
RUNS_TO_SETTLE: Final = 6

CHANGES: Final = ("write", "pwrite64", "ftruncate", "fsync", "rename", "unlink", "mkdir", "fchmod")
CALL: Final = re.compile(r"^(\d+) +(\w+)\((.*)$")
FILE: Final = re.compile(r'"(/[^"]*)"|<(/[^>]*)>')

pytestmark = [pytest.mark.crash, pytest.mark.timeout(3600 if IS_FULL else 300)]


@dataclass(frozen=True)
class Point:
    """The `number`-th call of this kind on this file (below the root; empty: on any) by the poller or its keeper."""

    call: str
    file: str
    number: int

    def inject(self, root: Path, signal_name: str) -> list[str]:
        where = ["-P", str(root / self.file)] if self.file else []
        return [*where, "-e", f"trace={self.call}", "-e", f"inject={self.call}:signal={signal_name}:when={self.number}"]


# calls that only the keeper makes: before its mark, before its command, after its outcome
KEEPER_STEPS: Final = (Point("chdir", "", 1), Point("pipe2", "", 1), Point("kill", "", 1))


@dataclass(frozen=True)
class Scenario:
    """What is waiting when the poller is killed, and the calls of the receiver that it has to come to."""

    prepare: Callable[[Box], None]
    expected: tuple[tuple[str, int], ...]  # key and attempt


def _first_sight(box: Box) -> None:
    box.item("a", "please", early="with it")


def _comments(box: Box) -> None:
    _first_sight(box)
    assert box.once().code == 0
    box.comment("a", "c1")
    box.comment("a", "c2")


def _refused(box: Box) -> None:
    _comments(box)
    box.sink.behave(("*/comment:c1", {"fail": 1}))


def _close(box: Box) -> None:
    _first_sight(box)
    assert box.once().code == 0
    shutil.rmtree(box.inbox / "a")


def _many_settled(box: Box) -> None:
    """Its record is full: the next settled id has all of them appended to the log, which there is already."""
    _comments(box)
    ledgers = Ledgers(StateRoot(box.root), lambda _: None, time.time)
    for count in (200, 200 + INLINE):
        ledger = ledgers.get("directory:inbox/a")
        assert ledger is not None
        ledgers.save(settle(ledger, *(f"comment:earlier-{number}" for number in range(count))))
    assert list((box.root / "portable").glob("*.settled"))


def _ended_and_back(box: Box) -> None:
    _close(box)
    wait_for(lambda: box.once().code == 0 and list((box.root / "portable" / "ended").glob("*.json")), "its end")
    box.item("a", "please", early="with it", later="and more")


SPAWN: Final = ("spawn:1", 1)
SCENARIOS: Final = {
    "first-sight": Scenario(_first_sight, (SPAWN,)),
    "comments": Scenario(_comments, (SPAWN, ("comment:c1", 1), ("comment:c2", 1))),
    "refused": Scenario(_refused, (SPAWN, ("comment:c1", 1), ("comment:c1", 2), ("comment:c2", 1))),
    "close": Scenario(_close, (SPAWN, ("close:1", 1))),
    "log": Scenario(_many_settled, (SPAWN, ("comment:c1", 1), ("comment:c2", 1))),
    "again": Scenario(_ended_and_back, (SPAWN, ("close:1", 1), ("spawn:2", 1))),
}


class Stage:
    """The prepared world, put back for each kill at the same place."""

    def __init__(self, box: Box, scenario: Scenario) -> None:
        self.box = box
        self.expected = list(scenario.expected)
        scenario.prepare(box)
        self._kept = box.folder / "kept"
        for part in ("root", "sink"):
            shutil.copytree(box.folder / part, self._kept / part)

    def restore(self) -> None:
        """The inbox stays where it is: nobody writes to it, and it has to be the same directory."""
        for part in ("root", "sink"):
            for path in (self.box.folder / part).iterdir():
                if path.is_dir() and path != self.box.inbox:
                    shutil.rmtree(path)
                elif path != self.box.inbox:
                    path.unlink()
            shutil.copytree(
                self._kept / part, self.box.folder / part, dirs_exist_ok=True, ignore=shutil.ignore_patterns("inbox")
            )

    def strace(self, *arguments: str, follow: bool) -> subprocess.Popen[bytes]:
        """A single run of the poller under strace."""
        with (self.box.folder / "traced.err").open("ab") as said:
            return subprocess.Popen(
                ["strace", *(["-f"] if follow else []), *arguments, *self.box.argv("poll", "start", "--once")],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                env=self.box.environ,
                start_new_session=True,
            )

    def points(self) -> tuple[list[Point], list[Point]]:
        """Every call of poller and keeper that changes something below the root, from one traced run."""
        trace = self.box.folder / "trace"
        calls = ",".join((*CHANGES, "openat"))
        self.restore()
        process = self.strace("-y", "-qq", "-s", "0", "-o", str(trace), "-e", f"trace={calls}", follow=True)
        assert process.wait(60) == 0, trace.read_text()[-2000:]
        lines = [match.groups() for line in trace.read_text().splitlines() if (match := CALL.match(line))]
        return self._sorted_out(lines)

    def _sorted_out(self, lines: Sequence[tuple[str, ...]]) -> tuple[list[Point], list[Point]]:
        seen: Counter[tuple[str, str, str]] = Counter()
        points: dict[str, list[Point]] = {}
        keepers = []
        for pid, call, rest in lines:
            found = FILE.search(rest if call != "openat" else rest.partition(",")[2])
            path = Path(found[1] or found[2]) if found else Path("/")
            if call == "openat" and path.name == "keep.py":
                keepers.append(pid)
            if self.box.root not in path.parents and path != self.box.root:
                continue
            file = str(path.relative_to(self.box.root))
            seen[pid, call, file] += 1
            if call != "openat" or "O_CREAT" in rest:
                points.setdefault(pid, []).append(Point(call, file, seen[pid, call, file]))
        poller = points[lines[0][0]]
        touched = {(pid, call, file) for pid, call, file in seen if pid == lines[0][0]}
        own = {point for keeper in keepers for point in points.get(keeper, ())}
        alone = [one for one in own if (lines[0][0], one.call, one.file) not in touched]
        return poller, [*sorted(alone, key=repr), *KEEPER_STEPS]

    def kill_poller(self, point: Point) -> bool:
        """True if the point was reached. Whoever it started lives on."""
        return (
            self.strace("-qq", "-o", "/dev/null", *point.inject(self.box.root, "SIGKILL"), follow=False).wait(60) != 0
        )

    def kill_keeper(self, point: Point) -> bool:
        """True if the point was reached. The poller lives on, unless it makes the same call when it asks for marks."""
        trace = self.box.folder / "trace"
        process = self.strace("-o", str(trace), *point.inject(self.box.root, "SIGKILL"), follow=True)
        process.wait(60)
        return "killed by SIGKILL" in trace.read_text()

    def kill_both(self, point: Point) -> bool:
        """Stop the keeper at the point, then kill both: it can tell nobody."""
        trace = self.box.folder / "trace"
        trace.write_text("")
        process = self.strace("-o", str(trace), *point.inject(self.box.root, "SIGSTOP"), follow=True)
        stopped = re.compile(r"^(\d+) +--- stopped by SIGSTOP", re.MULTILINE)
        wait_for(lambda: stopped.search(trace.read_text()) or process.poll() is not None, "the keeper to stop")
        found = stopped.search(trace.read_text())
        if found:
            poller = int((self.box.root / "poll.pid").read_text().split(":")[0])
            os.kill(poller, signal.SIGKILL)
            os.kill(int(found[1]), signal.SIGKILL)
        process.wait(60)
        return found is not None

    def settle(self) -> None:
        """Start again, as often as it takes until nothing is pending; then once more, which must change nothing."""
        for _ in range(RUNS_TO_SETTLE):
            self.box.once()
            if not self.box.pending():
                break
        calls = self.box.sink.ids()
        assert self.box.once().code == 0
        assert self.box.sink.ids() == calls, "delivered again after everything was settled"

    def assert_fair(self, *, may_repeat: bool) -> None:
        """All of it arrived in order, each attempt once; where allowed, a second time directly after, and marked."""
        assert self.box.pending() == {}
        assert self.box.attempts() == {}
        calls: list[tuple[str, int]] = []
        repeated = 0
        for got in self.box.sink.got():
            call = (got.key, got.attempt)
            if may_repeat and calls and calls[-1] == call:
                assert got.redelivery, f"a second time without a mark: {call}"
                repeated += 1
            else:
                calls.append(call)
                assert may_repeat or not got.redelivery, f"marked, though nothing was cut off: {call}"
        assert calls == self.expected
        assert repeated <= 1


def _sweep(
    stage: Stage, points: Sequence[Point], size: int, kill: Callable[[Point], bool], *, may_repeat: bool
) -> None:
    """Kill at each of these points (a sample of them), and tell all that went wrong at once."""
    chosen = list(points) if IS_FULL else random.Random(SEED).sample(list(points), min(size, len(points)))
    print(f"THE_LOOP_SEED={SEED}: {len(chosen)} of {len(points)} points")
    wrong: list[str] = []
    reached = 0
    for point in chosen:
        stage.restore()
        reached += kill(point)
        try:
            stage.settle()
            stage.assert_fair(may_repeat=may_repeat)
        except AssertionError as error:
            wrong.append(
                f"{point}: {error}\n  got {[(one.key, one.attempt, one.redelivery) for one in stage.box.sink.got()]}"
            )
    assert not wrong, f"THE_LOOP_SEED={SEED}\n" + "\n".join(wrong)
    assert reached >= len(chosen) * 0.8, f"only {reached} of {len(chosen)} points were reached"


@pytest.fixture(params=SCENARIOS)
def stage(request: pytest.FixtureRequest, box: Box) -> Stage:
    return Stage(box, SCENARIOS[request.param])


def test_poller_killed_at_any_step_then_each_event_arrives_exactly_once(stage: Stage) -> None:
    poller, _ = stage.points()
    assert len(poller) > 20

    _sweep(stage, poller, 6, stage.kill_poller, may_repeat=False)


def test_keeper_killed_at_any_step_then_at_most_a_second_time_and_marked(stage: Stage) -> None:
    _, keeper = stage.points()
    assert len(keeper) > 5

    _sweep(stage, keeper, 3, stage.kill_keeper, may_repeat=True)


def test_both_killed_at_any_step_then_at_most_a_second_time_and_marked(stage: Stage) -> None:
    _, keeper = stage.points()

    _sweep(stage, keeper, 3, stage.kill_both, may_repeat=True)
