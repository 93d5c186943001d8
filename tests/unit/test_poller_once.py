"""A single run counts every error of the sources that it polls at once."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from support import factories as make
from support.fakes import FakeRunner, FakeSource
from support.life import in_virtual_loop
from support.setups import Notes, setup_of
from the_loop import wiring
from the_loop.clocks import SystemClock
from the_loop.config import Config, Polling, SourceSection
from the_loop.poller import Poller
from the_loop.sources.base import Known, Listing, SourceError
from the_loop.state import StateRoot
from the_loop.watched import Watched


class Gate(FakeSource):
    """Fails, and only then lets the others have their answers."""

    def __init__(self, *others: FakeSource) -> None:
        super().__init__("gate")
        self.opened = asyncio.Event()
        for other in others:
            other.gate = self.opened

    async def poll(self, cursor: Mapping[str, Any] | None, known: Mapping[str, Known]) -> Listing:
        self.opened.set()
        raise SourceError("no route to host")


async def run_once(root: StateRoot, monkeypatch: pytest.MonkeyPatch, *sources: FakeSource) -> tuple[int, Notes]:
    """The exit code of `poll start --once` on these sources, and what it told."""
    notes = Notes()
    by_name = {source.name: source for source in sources}
    monkeypatch.setattr(wiring, "watch", lambda _, section, *__, **___: Watched(by_name[section.name], make.rules()))
    monkeypatch.setattr(wiring, "runner", lambda *_: FakeRunner())
    config = Config(polling=Polling(sources=tuple(SourceSection(provider="fake", name=name) for name in by_name)))
    setup = setup_of(root, lambda: config, notes, SystemClock(), once=True)
    return await Poller(setup).run(), notes


@in_virtual_loop
async def test_once_when_one_of_two_sources_fails_while_the_other_is_read_then_exits_1_and_counts_it(
    root: StateRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = FakeSource("slow")
    slow.add(1)

    code, notes = await run_once(root, monkeypatch, slow, Gate(slow))

    cycles = {note.fields["source"]: note.fields for note in notes.told if note.name == "poll.cycle"}
    assert [cycles["slow"][name] for name in ("errors", "items", "delivered")] == [0, 1, 1]
    assert (cycles["gate"]["errors"], cycles["gate"]["lastGoodCycleAt"]) == (1, None)
    assert code == 1


@in_virtual_loop
async def test_once_when_all_sources_are_read_then_exits_0(root: StateRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    code, notes = await run_once(root, monkeypatch, FakeSource("one"), FakeSource("two"))

    cycles = [note.fields for note in notes.told if note.name == "poll.cycle"]
    assert (code, [summary["errors"] for summary in cycles]) == (0, [0, 0])
    assert all(summary["lastGoodCycleAt"] for summary in cycles)
