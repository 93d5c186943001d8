"""Handing over: how many at once, in which order, and until when."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from support import factories as make
from support.fakes import DELIVERED, UNSTARTABLE, FakeRunner, FakeSource, comments
from support.life import (
    Life,
    idle,
    in_virtual_loop,
)
from the_loop.core.ledger import Phase
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


# --- how many, in which order -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 4, 100])
@in_virtual_loop
async def test_no_more_than_the_limit_run_at_once_and_all_get_their_turn(root: StateRoot, limit: int) -> None:
    runner = FakeRunner(default=None)
    life, _ = await items(root, 10, runner=runner, limit=limit)
    assert len(life.dispatcher.under_way()) == min(limit, 10)

    while runner.going():
        runner.finish(runner.going()[-1])
        await idle()

    assert sorted(runner.ids()) == sorted(spawn(number) for number in range(1, 11))
    assert runner.most_at_once == min(limit, 10)


@in_virtual_loop
async def test_items_get_their_turn_in_the_order_they_came_up(root: StateRoot) -> None:
    runner = FakeRunner()

    await items(root, 6, runner=runner, limit=1)

    assert runner.ids() == [spawn(number) for number in range(1, 7)]


@in_virtual_loop
async def test_events_of_one_item_go_one_after_the_other_whatever_is_free(root: StateRoot) -> None:
    runner = FakeRunner()
    runner.script = {f"fake:1/comment:{number}": [None] for number in (1, 2, 3)}
    life, _ = await item_with(root, runner, 1, 2, 3, limit=10)

    for number in (1, 2, 3):
        await life.cycle()
        assert runner.going() == [f"fake:1/comment:{number}"]
        runner.finish(f"fake:1/comment:{number}")
        await idle()

    assert runner.most_at_once == 1


@in_virtual_loop
async def test_slow_item_holds_back_no_other(root: StateRoot) -> None:
    runner = FakeRunner()
    runner.script = {spawn(1): [None]}

    await items(root, 5, runner=runner, limit=2)

    assert sorted(runner.ids()) == [spawn(number) for number in range(1, 6)]
    assert runner.going() == [spawn(1)]


@in_virtual_loop
async def test_raised_limit_takes_effect_with_the_next_offer(root: StateRoot) -> None:
    runner = FakeRunner(default=None)
    life, _ = await items(root, 5, runner=runner, limit=1)

    life.dispatcher.limit = 3
    life.dispatcher.resume()
    await idle()

    assert len(life.dispatcher.under_way()) == 3


@in_virtual_loop
async def test_adopted_deliveries_count_but_wait_for_no_slot(root: StateRoot) -> None:
    runner = FakeRunner(default=None)
    life, source = await items(root, 3, runner=runner, limit=3)
    await life.die()
    source.add(4)

    life = Life(root, runner, source, limit=2)
    await life.begin()
    await life.cycle()
    assert len(life.dispatcher.under_way()) == 3

    for number in (1, 2):
        assert spawn(4) not in runner.ids()
        runner.finish(spawn(number))
        await idle()
    assert runner.going() == [spawn(3), spawn(4)]


@in_virtual_loop
async def test_word_takes_effect_up_to_the_moment_of_the_hand_over(root: StateRoot) -> None:
    runner = FakeRunner(default=None)
    life, source = await items(root, 3, runner=runner, limit=1)
    source.write("fake:2", make.entry(1, "the-loop stop"))
    source.write("fake:3", make.entry(1, "the-loop pause"))
    await life.cycle()

    runner.finish(spawn(1))
    await idle()

    assert runner.ids() == [spawn(1)]
    assert life.ledger("fake:2").poll.phase is Phase.ENDED
    assert not life.dispatcher.is_stuck


# --- drain ------------------------------------------------------------------------------------------------------------


@in_virtual_loop
async def test_drain_returns_when_all_that_can_be_handed_over_has_ended(root: StateRoot) -> None:
    runner = FakeRunner()
    runner.script = {"fake:1/comment:1": [None], "fake:1/comment:2": [None]}
    life, _ = await item_with(root, runner, 1, 2)

    draining = asyncio.create_task(life.dispatcher.drain())
    for number in (1, 2):
        await idle()
        assert not draining.done()
        runner.finish(f"fake:1/comment:{number}", DELIVERED)
    await asyncio.wait_for(draining, 1)

    assert life.ledger("fake:1").poll.pending == {}


@in_virtual_loop
async def test_drain_returns_during_a_pause_and_says_that_something_is_stuck(root: StateRoot) -> None:
    runner = FakeRunner(default=UNSTARTABLE)
    life, _ = await items(root, 2, runner=runner, limit=1)

    await asyncio.wait_for(life.dispatcher.drain(), 1)

    assert life.dispatcher.is_stuck
