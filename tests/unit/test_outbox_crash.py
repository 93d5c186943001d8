"""A life may end before any of its writes: nothing is lost, repeated or charged (contract R3, R4, DESIGN 1)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from support import factories as make
from support.clock import Clock
from support.fakes import LATER, REFUSED, FakeRunner, FakeSource, comments
from support.fuse import Crash, Fuse
from support.life import (
    Life,
    files_of,
    in_virtual_loop,
    new_root,
)
from the_loop import settled
from the_loop.core.ledger import Phase
from the_loop.core.model import Presence
from the_loop.ledgers import Ledgers
from the_loop.state import StateRoot

REF = "fake:1"
ONE = f"{REF}/comment:1"


@pytest.fixture(params=[0, 2, settled.INLINE], ids="{} ids in the record".format, autouse=True)
def inline(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """How many settled ids a record has before they go into its log."""
    monkeypatch.setattr(settled, "INLINE", request.param)


async def story(root: StateRoot, runner: FakeRunner, source: FakeSource, fuse: Fuse, clock: Clock) -> None:
    """A life with first sight, comments, a stranger, refusals and an end; cut off where the fuse says so."""
    life = Life(root, runner, source, fuse=fuse, clock=clock)
    try:
        with fuse.watching_files():
            try:
                await life.begin()
                for _ in range(8):
                    await life.cycle()
                    clock.now += 1000.0
                    if fuse.is_blown:
                        break
            finally:
                await life.die()
    except Crash:
        pass


def world() -> tuple[FakeRunner, FakeSource]:
    runner, source = FakeRunner(), FakeSource()
    runner.script = {ONE: [REFUSED, LATER], "fake:2/spawn:1": [REFUSED]}
    source.add(1, *comments(5))
    source.add(2)
    source.add(3, author=make.STRANGER)
    return runner, source


def grow(source: FakeSource) -> None:
    """What happens while the poller is about."""
    source.write(REF, make.entry(1), make.entry(2, author=make.STRANGER), make.entry(3))
    source.write("fake:3", make.entry(4, "the-loop start"))


EXPECTED = {
    "fake:1": ["spawn:1", "comment:1", "comment:1", "comment:1", "comment:3", "close:1", "spawn:2", "comment:7"],
    "fake:2": ["spawn:1", "spawn:1"],
    "fake:3": ["spawn:1"],
}


CHAPTERS = ["first sight", "comments", "end", "reopened", "comment on it"]


def arrived(runner: FakeRunner) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for delivery_id in runner.ids():
        ref, _, key = delivery_id.partition("/")
        found.setdefault(ref, []).append(key)
    return found


async def chapters(root: StateRoot, fuses: Sequence[Fuse]) -> FakeRunner:
    """The story in five lives, each with its own fuse; one that blew is followed by a life that goes on."""
    (runner, source), clock = world(), Clock()
    for number, fuse in enumerate(fuses):
        if number == 1:
            grow(source)
        if number == 2:
            source.items[REF].presence = Presence.GONE
        if number == 3:
            source.items[REF].presence = Presence.LISTED
            source.write(REF, make.entry(6))  # carried by its second start
        if number == 4:
            source.write(REF, make.entry(7))
        await story(root, runner, source, fuse, clock)
        if fuse.at:
            await story(root, runner, source, Fuse(), clock)
    return runner


@in_virtual_loop
async def test_story_without_a_crash(root: StateRoot) -> None:
    runner = await chapters(root, [Fuse() for _ in CHAPTERS])

    assert arrived(runner) == EXPECTED
    assert files_of(root) == []


def settled_in(root: StateRoot) -> set[str]:
    """What the ledger of the first item says at the end, read anew; it lives, and its earlier end left nothing."""
    ledgers = Ledgers(root, lambda _: None, lambda: 0.0)
    ledgers.load()
    ledger = ledgers.get(REF)
    assert ledger is not None
    assert (ledger.poll.phase, ledger.g, ledger.poll.pending) == (Phase.LIVE, 2, {})
    assert not root.ended_ledger(REF).exists()
    assert not root.settled(REF).with_suffix(".settled.next").exists()
    return set(ledger.poll.seen_comments)


def count_steps(tmp_path: Path, chapter: int) -> int:
    """How many steps the lives of this chapter take."""

    async def run() -> int:
        fuses = [Fuse() for _ in CHAPTERS]
        await chapters(new_root(tmp_path), fuses)
        Life.lives.clear()
        return len(fuses[chapter].steps)

    return asyncio.run(run())


@pytest.mark.parametrize("chapter", range(len(CHAPTERS)), ids=CHAPTERS)
def test_crash_before_any_step_loses_repeats_and_charges_nothing(tmp_path: Path, chapter: int) -> None:
    steps = count_steps(tmp_path, chapter)
    assert steps > 5

    for at in range(1, steps + 1):
        root = new_root(tmp_path / f"at-{at}")
        fuses = [Fuse() for _ in CHAPTERS]
        fuses[chapter] = Fuse(at)

        runner = asyncio.run(chapters(root, fuses))
        Life.lives.clear()

        assert arrived(runner) == EXPECTED, f"cut off at step {at}, after {fuses[chapter].log[-3:]}"
        attempts = [payload["attempt"] for payload in runner.got if payload["deliveryId"] == ONE]
        assert attempts == [1, 2, 2]
        assert not any(payload["redelivery"] for payload in runner.got)
        assert files_of(root) == []
        assert settled_in(root) == {
            "spawn:1",
            "close:1",
            "spawn:2",
            *(f"comment:{number}" for number in (1, 2, 3, 5, 6, 7)),
        }
