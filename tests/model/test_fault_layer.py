"""Every system call of the core fails, at each place in turn: what arrives is what arrives without it (contract R7.2).

A whole life (`story.py`) is told again and again; one call fails once, or three times in a row on the same file, with
EIO, EMFILE, ENOMEM, EACCES or EAGAIN. A start may be refused in words, as the manager starts us again; nothing else
escapes. A sample whose seed is printed (`THE_LOOP_SEED` repeats it); `THE_LOOP_FULL_SWEEP=1` takes every call.
"""

from __future__ import annotations

import asyncio
import errno
import os
import random
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from model.os_faults import ERRORS, Faults
from model.story import EXPECTED, Arrived, Story, arrived, keys_of, new_world
from support.life import Life, _VirtualLoop, new_root
from the_loop.runners import exec as exec_module
from the_loop.runners import keeper as keeper_module
from the_loop.state import StateRoot

IS_FULL: Final = bool(os.environ.get("THE_LOOP_FULL_SWEEP"))
SEED: Final = int(os.environ.get("THE_LOOP_SEED") or random.randrange(10**6))
SAMPLE: Final = 120

pytestmark = pytest.mark.timeout(14400 if IS_FULL else 120)


@pytest.fixture(autouse=True)
def _few_looks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(exec_module, "_WAITS_S", (300.0, 300.0))  # what runs is looked at some times in each chapter
    monkeypatch.setattr(keeper_module, "RETRY_S", 0.0)
    yield
    Life.lives.clear()


@dataclass(frozen=True)
class Point:
    """The `at`-th call, on `place`."""

    at: int
    place: str
    error: int
    times: int

    def __str__(self) -> str:
        return f"call {self.at} '{self.place}', {errno.errorcode[self.error]}, {self.times} times"


@dataclass(frozen=True)
class Told:
    """How a life went."""

    arrived: Arrived
    left: list[str]  # files of deliveries
    calls: list[str]


def tell(root: StateRoot, point: Point | None = None) -> Told:
    keepers, source = new_world()
    faults = Faults(root.path) if point is None else Faults(root.path, point.at, point.error, point.times)
    try:
        with faults.in_force(), asyncio.Runner(loop_factory=_VirtualLoop) as loop:
            loop.run(Story(root, keepers, source).tell())
    finally:
        keepers.kill_all()
    return Told(arrived(keepers), sorted(path.name for path in root.deliveries.iterdir()), faults.calls)


def points_of(calls: Sequence[str]) -> list[Point]:
    """Of each place one call at random until there are enough: most calls are on a few files."""
    rng = random.Random(SEED)
    where: dict[str, list[int]] = {}
    for at, place in enumerate(calls, 1):
        where.setdefault(place, []).append(at)
    if IS_FULL:
        return [
            Point(at, place, error, times)
            for place, ats in where.items()
            for at in ats
            for error in ERRORS
            for times in (1, 3)
        ]
    places = rng.sample(sorted(where), min(SAMPLE, len(where)))
    return [Point(rng.choice(where[place]), place, rng.choice(ERRORS), rng.choice((1, 3))) for place in places]


def test_life_without_a_fault_is_as_it_is_meant(tmp_path: Path) -> None:
    told = tell(new_root(tmp_path))

    assert keys_of(told.arrived) == EXPECTED
    assert not told.left
    kinds = Counter(call.partition(" ")[0] for call in told.calls)
    assert kinds.keys() >= {"open", "read", "fstat", "stat", "flock", "fsync", "write", "rename", "unlink", "dup"}


@pytest.mark.slow
def test_whatever_call_fails_the_same_arrives(tmp_path: Path) -> None:
    undisturbed = tell(new_root(tmp_path / "undisturbed"))
    points = points_of(undisturbed.calls)
    print(f"THE_LOOP_SEED={SEED}: {len(points)} of {len(undisturbed.calls)} calls, with 5 errors, once and for a while")

    wrong = [problem for point in points if (problem := _problem(tmp_path / "disturbed", point, undisturbed))]

    assert not wrong, f"THE_LOOP_SEED={SEED}\n" + "\n".join(wrong)


def _problem(folder: Path, point: Point, undisturbed: Told) -> str:
    """What was different; nothing if it was the same."""
    try:
        told = tell(new_root(folder), point)
    except Exception as error:  # noqa: BLE001 (it escaped)
        return f"{point}: {type(error).__name__}: {error}"
    finally:
        shutil.rmtree(folder)
    if told.arrived != undisturbed.arrived:
        got = {ref: events for ref, events in told.arrived.items() if events != undisturbed.arrived.get(ref)}
        return f"{point}: arrived {got}"
    return f"{point}: left {told.left}" if told.left else ""
