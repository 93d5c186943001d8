"""Power cuts before every change of a life: boot, and what arrives is what arrives without one (contract, the promise).

A whole life (`story.py`, with the keepers' files) is cut before one of its changes; the disk is then as bad as it may
be, as good, or anything between, and the next life goes on from there. Exempt is what ran at that moment: a command
that was cut off comes again, marked. A sample whose seed is printed; `THE_LOOP_FULL_SWEEP=1` takes every change.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from model.power import Best, Choice, Power, Some, Worst
from model.story import EXPECTED, Arrived, Story, arrived, keys_of, new_world
from support.life import Life, _VirtualLoop
from the_loop import durable, settled
from the_loop.runners import exec as exec_module
from the_loop.state import StateRoot

IS_FULL: Final = bool(os.environ.get("THE_LOOP_FULL_SWEEP"))
SEED: Final = int(os.environ.get("THE_LOOP_SEED") or random.randrange(10**6))
SAMPLE: Final = 100

pytestmark = pytest.mark.timeout(14400 if IS_FULL else 120)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(exec_module, "_WAITS_S", (300.0, 300.0))
    monkeypatch.setattr(settled, "INLINE", 1)  # so that the logs of settled ids are in it
    monkeypatch.setattr(os, "fsync", lambda _: None)  # the machine that runs this loses no power
    yield
    Life.lives.clear()


@dataclass
class Telling:
    """One life on a disk of its own, cut before its `at`-th change."""

    folder: Path
    at: int = 0
    choice: Choice = field(default_factory=Worst)
    before: Arrived = field(default_factory=dict)  # what had arrived when the power went
    ran: Mapping[str, bool] = field(
        default_factory=dict
    )  # deliveries cut off then, and whether their command had begun

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True)
        self.power = Power(self.folder, self.at)
        self.keepers, self.source = new_world()
        self.root = StateRoot(self.folder / "root")

    def tell(self) -> None:
        story = Story(self.root, self.keepers, self.source, cut=self._boot, is_off=lambda: self.power.is_off)
        try:
            with self.power.recording(), asyncio.Runner(loop_factory=_VirtualLoop) as loop:
                loop.run(story.tell())
        finally:
            self.keepers.kill_all()

    def left(self) -> list[str]:
        return sorted(path.name for path in self.root.deliveries.iterdir())

    def _boot(self) -> None:
        self.before = arrived(self.keepers)
        self.power.boot(self.choice)
        self.ran = self.keepers.kill_all()


def differences(told: Telling, undisturbed: Arrived) -> Iterator[str]:
    """What arrived otherwise than it should have, but for what was cut off."""
    for ref, expected in undisturbed.items():
        events = arrived(told.keepers).get(ref, [])
        cut = {
            key: ran
            for key, ran in ((one.removeprefix(f"{ref}/"), ran) for one, ran in told.ran.items())
            if "/" not in key
        }
        before, after = events[: len(told.before.get(ref, []))], events[len(told.before.get(ref, [])) :]
        for key, ran in cut.items():
            again = next((event for event in after if event[0] == key), None)
            if again is None:
                yield f"{ref}: {key} did not come again"
            elif ran and not again[2]:
                yield f"{ref}: {key} came again unmarked"
            elif ran:
                after.remove(again)
        got = [_told(event, cut) for event in [*before, *after]]
        if got != [_told(event, cut) for event in expected]:
            yield f"{ref}: {got}"


def _told(event: tuple[Any, ...], cut: Mapping[str, bool]) -> tuple[Any, ...]:
    """The event without its mark, where that may be there or not."""
    key, attempt, marked, said = event
    return key, attempt, marked and key not in cut, said


def cuts(count: int) -> list[tuple[int, Choice]]:
    """Before which change, and what becomes of what was not flushed."""
    rng = random.Random(SEED)
    choices: tuple[Choice, ...] = (Worst(), Best(), Some(rng), Some(rng))
    every = range(1, count + 1)
    if IS_FULL:
        return [(at, choice) for at in every for choice in choices]
    return [(at, rng.choice(choices)) for at in rng.sample(every, min(SAMPLE, count))]


def undisturbed_life(folder: Path) -> Telling:
    telling = Telling(folder)
    telling.tell()
    return telling


def test_life_without_a_cut_is_as_it_is_meant(tmp_path: Path) -> None:
    telling = undisturbed_life(tmp_path / "disk")

    assert keys_of(arrived(telling.keepers)) == EXPECTED
    assert not telling.left()
    kinds = {change.partition(" ")[0] for change in telling.power.changes}
    assert kinds >= {"create", "write", "flush", "rename", "remove", "make"}


@pytest.mark.slow
def test_power_cut_before_any_change_loses_and_repeats_nothing(tmp_path: Path) -> None:
    undisturbed = undisturbed_life(tmp_path / "undisturbed")
    changes, expected = undisturbed.power.changes, arrived(undisturbed.keepers)
    chosen = cuts(len(changes))
    print(f"THE_LOOP_SEED={SEED}: {len(chosen)} cuts, before {len(changes)} changes")

    wrong = []
    for number, (at, choice) in enumerate(chosen):
        telling = Telling(tmp_path / str(number), at, choice)
        place = f"cut {at} before '{changes[at - 1]}', {type(choice).__name__.lower()}"
        try:
            telling.tell()
            wrong += [f"{place}: {problem}" for problem in differences(telling, expected)]
            wrong += [f"{place}: left {telling.left()}"] if telling.left() else []
        except Exception as error:  # noqa: BLE001 (it escaped)
            wrong.append(f"{place}: {type(error).__name__}: {error}")
        shutil.rmtree(telling.folder)

    assert not wrong, f"THE_LOOP_SEED={SEED}\n" + "\n".join(wrong)


def test_write_without_a_flush_of_its_folder_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durable, "fsync_directory", lambda _: None)
    undisturbed = undisturbed_life(tmp_path / "undisturbed")
    changes, expected = undisturbed.power.changes, arrived(undisturbed.keepers)
    at = next(at for at, change in enumerate(changes, 1) if change == "remove fake,1+spawn,1.started.json")

    telling = Telling(tmp_path / "cut", at, Worst())
    telling.tell()

    assert any("spawn:1" in problem for problem in differences(telling, expected))
