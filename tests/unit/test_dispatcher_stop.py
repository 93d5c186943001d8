"""What a stop finds of the deliveries, and what it puts back (contract R4, R5)."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest

from support import factories as make
from support.fakes import FakeRunner, FakeSource, comments
from support.life import (
    Life,
    idle,
    in_virtual_loop,
    no_space,
)
from the_loop.core.ledger import Standing
from the_loop.state import StateRoot


def spawn(number: int) -> str:
    return f"fake:{number}/spawn:1"


async def items(root: StateRoot, count: int, *, runner: FakeRunner, **options: Any) -> tuple[Life, FakeSource]:
    """A life that has looked at so many new items."""
    source = FakeSource()
    for number in range(1, count + 1):
        source.add(number)
    life = Life(root, runner, source, **options)
    await life.begin()
    await life.cycle()
    return life, source


async def item_with(root: StateRoot, runner: FakeRunner, *numbers: int, **options: Any) -> tuple[Life, FakeSource]:
    """Item 1 with a session and these new comments."""
    life, source = await items(root, 1, runner=runner, **options)
    source.write("fake:1", *comments(*numbers))
    await life.cycle()
    return life, source


@in_virtual_loop
async def test_stop_with_five_slow_items_and_four_slots_names_each_of_them(root: StateRoot) -> None:
    runner = FakeRunner(default=None)
    life, source = await items(root, 5, runner=runner, limit=4)

    report = await life.stop()

    assert sorted(report.left_running) == [spawn(number) for number in (1, 2, 3, 4)]
    assert report.abandoned == (spawn(5),)
    states = [life.ledger(f"fake:{number}").poll.pending["spawn:1"].state for number in range(1, 6)]
    assert states == [Standing.RUNNING] * 4 + [Standing.QUEUED]

    await life.die()
    life = Life(root, runner, source)
    await life.begin()
    await life.cycle()
    for number in (1, 2, 3, 4):
        runner.finish(spawn(number))
    await idle()
    runner.finish(spawn(5))
    await idle()
    assert sorted(runner.ids()) == [spawn(number) for number in range(1, 6)]
    assert {payload["attempt"] for payload in runner.got} == {1}


@in_virtual_loop
async def test_stop_names_what_waits_behind_a_running_event(root: StateRoot) -> None:
    runner = FakeRunner()
    runner.script = {"fake:1/comment:1": [None]}
    life, _ = await item_with(root, runner, 1, 2, 3)

    report = await life.stop()

    assert report.left_running == ("fake:1/comment:1",)
    assert report.abandoned == ("fake:1/comment:2", "fake:1/comment:3")


@in_virtual_loop
async def test_stop_names_again_what_the_last_life_put_back_and_this_one_did_not_begin(root: StateRoot) -> None:
    runner = FakeRunner()
    runner.script = {"fake:1/comment:1": [None]}
    life, source = await item_with(root, runner, 1, 2)
    assert (await life.stop()).abandoned == ("fake:1/comment:2",)

    life = Life(root, runner, source)
    await life.begin()

    assert (await life.stop()).abandoned == ("fake:1/comment:2",)


@in_virtual_loop
async def test_stop_does_not_call_abandoned_what_ended_and_could_not_be_recorded(
    root: StateRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its outcome is in its files: it was delivered, and nothing of it is put back."""
    runner = FakeRunner()
    runner.script = {"fake:1/comment:1": [None]}
    life, source = await item_with(root, runner, 1)
    monkeypatch.setattr(life.ledgers, "save", no_space)
    runner.finish("fake:1/comment:1")
    await idle()
    monkeypatch.undo()
    monkeypatch.setattr(os, "fsync", lambda _: None)

    report = await life.stop()

    assert (report.abandoned, report.left_running) == ((), ())
    life = Life(root, runner, source)
    await life.begin()
    await life.cycle()
    assert runner.ids() == [spawn(1), "fake:1/comment:1"]
    assert life.ledger("fake:1").poll.pending == {}


@in_virtual_loop
async def test_stop_waits_for_nothing_and_hands_nothing_over_any_more(root: StateRoot) -> None:
    runner = FakeRunner(default=None)
    life, source = await items(root, 8, runner=runner, limit=4)

    await asyncio.wait_for(life.stop(), 1)
    for delivery_id in runner.going():
        runner.finish(delivery_id)
    source.write("fake:1", make.entry(1))
    life.dispatcher.offer("fake:5")
    life.dispatcher.resume()
    await life.cycle()

    assert len(runner.got) == 4


@in_virtual_loop
async def test_stop_of_an_idle_poller_finds_nothing(root: StateRoot) -> None:
    life, _ = await items(root, 2, runner=FakeRunner())
    before = {path.name: path.stat().st_mtime_ns for path in root.portable.iterdir()}

    report = await life.stop()

    assert (report.abandoned, report.left_running) == ((), ())
    assert {path.name: path.stat().st_mtime_ns for path in root.portable.iterdir()} == before


@in_virtual_loop
async def test_stop_when_the_disk_is_full_ends_all_the_same(root: StateRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = FakeRunner(default=None)
    life, source = await items(root, 3, runner=runner, limit=1)
    monkeypatch.setattr(life.ledgers, "save", no_space)

    report = await life.stop()

    assert report.left_running == (spawn(1),)
    life = Life(root, runner, source, limit=1)
    await life.begin()
    await life.cycle()
    for number in (1, 2, 3):
        runner.finish(spawn(number))
        await idle()
    assert runner.ids() == [spawn(number) for number in (1, 2, 3)]


@in_virtual_loop
async def test_stop_without_releases_writes_nothing(root: StateRoot) -> None:
    life, _ = await items(root, 3, runner=FakeRunner(default=None), limit=1)
    before = {path.name: path.read_bytes() for path in root.portable.iterdir()}

    report = await life.dispatcher.stop(releases=False)

    assert report.abandoned == ()
    assert {path.name: path.read_bytes() for path in root.portable.iterdir()} == before


@in_virtual_loop
async def test_poller_that_is_not_in_charge_any_more_hands_nothing_over(root: StateRoot) -> None:
    runner = FakeRunner(default=None)
    life, source = await items(root, 2, runner=runner, limit=1)
    life.is_in_charge = False

    runner.finish(spawn(1))
    await idle()
    source.add(3)
    await life.cycle()

    assert runner.ids() == [spawn(1)]
