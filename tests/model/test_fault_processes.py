"""The same with real processes: the calls with which a keeper is started and awaited, and the keeper's own."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import random
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

import pytest

from model.os_faults import ERRORS, Faults
from support.fakes import FakeSource
from support.life import Life, new_root
from support.processes import LIMIT_S, wait_until
from the_loop import dispatcher as dispatcher_module
from the_loop import handover as handover_module
from the_loop.core.ledger import Phase
from the_loop.runners import exec as exec_module
from the_loop.runners.exec import KEEPER, Command, ExecRunner
from the_loop.state import StateRoot

IS_FULL: Final = bool(os.environ.get("THE_LOOP_FULL_SWEEP"))
SEED: Final = int(os.environ.get("THE_LOOP_SEED") or random.randrange(10**6))
SAMPLE: Final = 20
OF_THE_RUNNER: Final = (
    "posix_spawn",
    "waitid",
    "pidfd_open",
    "flock",
    "dup",
    "open fake,1+spawn",
    "fstat fake,1+spawn",
)

pytestmark = pytest.mark.timeout(14400 if IS_FULL else 120)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handover_module, "_RETRY_S", (0.01, 0.05))
    monkeypatch.setattr(dispatcher_module, "_FIRST_PAUSE_S", 0.02)
    monkeypatch.setattr(dispatcher_module, "_LONGEST_PAUSE_S", 0.05)


class Place:
    """A state root, and a command that notes down what it gets."""

    def __init__(self, folder: Path) -> None:
        self.root: StateRoot = new_root(folder)
        self.file = folder / "got"

    def life(self) -> Life:
        source = FakeSource()
        source.add(1)
        command = ("/bin/sh", "-c", f"cat >> '{self.file}'")
        environ = {"PATH": os.environ["PATH"]}
        runner = ExecRunner(Command(command, self.root.path, 60, environ, self.root.logs / "output.log"))
        return Life(self.root, runner, source)  # type: ignore[arg-type]

    def got(self) -> list[tuple[str, bool]]:
        """What arrived: delivery id and mark."""
        lines = self.file.read_text().splitlines() if self.file.exists() else []
        return [(payload["deliveryId"], payload["redelivery"]) for payload in map(json.loads, lines)]

    def run(self, faults: Faults) -> None:
        """Poll until the item's session is live."""
        asyncio.run(self._run(faults))

    async def _run(self, faults: Faults) -> None:
        life = self.life()
        until = time.monotonic() + LIMIT_S
        with faults.in_force():
            await life.begin()
            while not _is_live(life):
                assert time.monotonic() < until, life.told
                await life.cycle()
                await asyncio.sleep(0.005)
        await life.die()


def _is_live(life: Life) -> bool:
    try:
        ledger = life.ledgers.get("fake:1")
    except OSError:
        return False
    return ledger is not None and ledger.poll.phase is Phase.LIVE


ONCE: Final = [("fake:1/spawn:1", False)]


@pytest.mark.slow
def test_whatever_call_of_the_runner_fails_the_event_arrives_once(tmp_path: Path) -> None:
    first = Place(tmp_path / "undisturbed")
    faults = Faults(first.root.path)
    first.run(faults)
    assert first.got() == ONCE
    points = points_of([call for call in faults.calls if call.startswith(OF_THE_RUNNER)])
    print(f"THE_LOOP_SEED={SEED}: {len(points)} calls fail")

    for number, (place, nth, error, times) in enumerate(points):
        here = Place(tmp_path / str(number))
        here.run(Faults(here.root.path, error=error, times=times, place=place, nth=nth))
        assert here.got() == ONCE, f"THE_LOOP_SEED={SEED}: {place}, the {nth}., {errno.errorcode[error]}, {times} times"


def points_of(calls: Sequence[str]) -> list[tuple[str, int, int, int]]:
    """Place, which of its calls, error, how often: how many calls there are differs from run to run."""
    rng = random.Random(SEED)
    everything = [
        (place, nth, error, times)
        for place in sorted(set(calls))
        for nth in range(1, min(calls.count(place), 4) + 1)
        for error in ERRORS
        for times in (1, 3)
    ]
    if IS_FULL:
        return everything
    always = [
        (place, 1, rng.choice(ERRORS), rng.choice((1, 3)))
        for place in sorted(set(calls))
        if place.startswith(OF_THE_RUNNER[:3])
    ]
    return [*always, *rng.sample(everything, SAMPLE - len(always))]


def test_keeper_that_ended_before_it_could_be_watched_is_not_taken_for_not_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(tmp_path)
    outcome = place.root.delivery("fake:1/spawn:1").with_name("fake,1+spawn,1.outcome.json")
    pidfd_open = os.pidfd_open
    failed: list[int] = []

    def late(pid: int, flags: int = 0) -> int:
        if failed:
            return pidfd_open(pid, flags)
        failed.append(pid)
        wait_until(outcome.exists, "the keeper writes its outcome")
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "pidfd_open", late)
    place.run(Faults(place.root.path))

    assert failed
    assert place.got() == ONCE


# --- the keeper's own calls ---

# the keeper with the `at`-th of its calls failing, in as many keepers as `times` says
FAULTY: Final = """
import builtins, fcntl, importlib.util, os, sys
made, process = 0, os.getpid()
keeper_process = process
def failing(name, call):
    def checked(*arguments, **options):
        global made, process
        made, process = (made if process == os.getpid() else 0) + 1, os.getpid()
        with open_file({trace!r}, "a") as file:
            file.write(f"{{os.getpid()}} {{name}}\\n")
        if made == {at} and (process == keeper_process) == {is_keeper}:
            with open_file({struck!r}, "a+") as file:
                file.seek(0)
                if len(file.read()) < {times}:
                    file.write("x")
                    raise OSError({error}, os.strerror({error}))
        return call(*arguments, **options)
    return checked
open_file = open
spec = importlib.util.spec_from_file_location("keeper", {keeper!r})
keeper = importlib.util.module_from_spec(spec)
spec.loader.exec_module(keeper)
keeper.GRACE_S, keeper.RETRY_S = 0.3, 0.02
for name in {calls!r}:
    setattr(os, name, failing(name, getattr(os, name)))
fcntl.flock, fcntl.fcntl = failing("flock", fcntl.flock), failing("fcntl", fcntl.fcntl)
keeper.open = failing("read", open)
sys.exit(keeper.main(sys.argv[1:]))
"""
CALLS: Final = (
    "open",
    "fstat",
    "lstat",
    "listdir",
    "dup2",
    "pipe",
    "fork",
    "waitid",
    "fsync",
    "fchmod",
    "rename",
    "unlink",
)


@dataclass(frozen=True)
class KeeperPoint:
    """The `at`-th call of the keeper, or of the process that becomes its command."""

    at: int
    call: str
    error: int = 0
    times: int = 1
    is_keeper: bool = True
    has_begun: bool = False  # after its fork

    def __str__(self) -> str:
        whose = "keeper" if self.is_keeper else "command"
        return f"{whose}'s call {self.at} '{self.call}', {errno.errorcode[self.error]}, {self.times} times"


def faulty_keeper(folder: Path, point: KeeperPoint) -> Path:
    path = folder / "keeper.py"
    names = {"trace": str(folder / "trace"), "struck": str(folder / "struck"), "calls": CALLS}
    names["keeper"] = str(KEEPER.with_name("keeper.py"))
    path.write_text(FAULTY.format(**names, **asdict(point)))
    return path


def keeper_points(trace: Path) -> list[KeeperPoint]:
    """Every call of one keeper with one error each; with THE_LOOP_FULL_SWEEP with all."""
    lines = [line.split() for line in trace.read_text().splitlines()]
    mine = [call for process, call in lines if process == lines[0][0]]
    child = [call for process, call in lines if process != lines[0][0]]
    assert set(mine) >= {"open", "fork", "pipe", "fsync", "rename", "flock", "read", "waitid"}
    assert set(child) >= {"open", "dup2"}
    places = [KeeperPoint(at, call, has_begun=at > mine.index("fork") + 1) for at, call in enumerate(mine, 1)]
    places += [KeeperPoint(at, call, is_keeper=False) for at, call in enumerate(child, 1)]
    rng = random.Random(SEED)
    every = [(error, times) for times in (1, 3) for error in ERRORS]
    return [
        replace(place, error=error, times=times)
        for place in places
        for error, times in (every if IS_FULL else [rng.choice(every[: 5 if place.has_begun else 10])])
        if times == 1 or not place.has_begun  # three unknown outcomes in a row are held
    ]


@pytest.mark.slow
def test_whatever_call_of_the_keeper_fails_the_event_arrives_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once its command has begun, a keeper that cannot go on leaves an unknown outcome: again, and marked."""
    first = Place(tmp_path / "undisturbed")
    monkeypatch.setattr(exec_module, "KEEPER", faulty_keeper(tmp_path, KeeperPoint(0, "")))
    first.run(Faults(first.root.path))
    assert first.got() == ONCE
    points = keeper_points(tmp_path / "trace")
    print(f"THE_LOOP_SEED={SEED}: {len(points)} calls of the keeper fail")

    wrong = []
    for number, point in enumerate(points):
        here = Place(tmp_path / str(number))
        monkeypatch.setattr(exec_module, "KEEPER", faulty_keeper(tmp_path / str(number), point))
        here.run(Faults(here.root.path))
        got = here.got()
        is_fair = bool(got) and all(marked for _, marked in got[1:])
        if got != ONCE and not (point.has_begun and is_fair):
            wrong.append(f"{point}: {got}")

    assert not wrong, f"THE_LOOP_SEED={SEED}\n" + "\n".join(wrong)
