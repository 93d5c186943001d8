"""Handing over: how many at once, in which order, what a stop finds, and what happens where nothing can be begun."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support import factories as make
from support.fakes import (
    DELIVERED,
    LATER,
    REFUSED,
    UNKNOWN,
    UNSTARTABLE,
    FakeRunner,
    FakeSource,
    Life,
    comments,
    idle,
    in_loop,
    new_root,
)
from the_loop.ledger import Phase, Standing
from the_loop.state import StateRoot


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture
def root(tmp_path: Path) -> StateRoot:
    return new_root(tmp_path)


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


async def live_item(root: StateRoot, runner: FakeRunner, *numbers: int, **options: Any) -> tuple[Life, FakeSource]:
    """Item 1 with a session and these new comments."""
    life, source = await items(root, 1, runner=runner, **options)
    source.write("fake:1", *comments(*numbers))
    await life.cycle()
    return life, source


# --- how many, in which order --------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 4, 100])
@in_loop
async def test_no_more_than_the_limit_run_at_once_and_all_get_their_turn(root: StateRoot, limit: int) -> None:
    runner = FakeRunner(default=None)
    life, _ = await items(root, 10, runner=runner, limit=limit)
    assert life.dispatcher.running_count == min(limit, 10)

    while runner.going():
        runner.finish(runner.going()[-1])
        await idle()

    assert sorted(runner.ids()) == sorted(spawn(number) for number in range(1, 11))
    assert runner.most_at_once == min(limit, 10)


@in_loop
async def test_items_get_their_turn_in_the_order_they_came_up(root: StateRoot) -> None:
    runner = FakeRunner()

    await items(root, 6, runner=runner, limit=1)

    assert runner.ids() == [spawn(number) for number in range(1, 7)]


@in_loop
async def test_events_of_one_item_go_one_after_the_other_whatever_is_free(root: StateRoot) -> None:
    runner = FakeRunner()
    runner.script = {f"fake:1/comment:{number}": [None] for number in (1, 2, 3)}
    life, _ = await live_item(root, runner, 1, 2, 3, limit=10)

    for number in (1, 2, 3):
        await life.cycle()
        assert runner.going() == [f"fake:1/comment:{number}"]
        runner.finish(f"fake:1/comment:{number}")
        await idle()

    assert runner.most_at_once == 1


@in_loop
async def test_slow_item_holds_back_no_other(root: StateRoot) -> None:
    runner = FakeRunner()
    runner.script = {spawn(1): [None]}

    await items(root, 5, runner=runner, limit=2)

    assert sorted(runner.ids()) == [spawn(number) for number in range(1, 6)]
    assert runner.going() == [spawn(1)]


@in_loop
async def test_raised_limit_takes_effect_with_the_next_offer(root: StateRoot) -> None:
    runner = FakeRunner(default=None)
    life, _ = await items(root, 5, runner=runner, limit=1)

    life.dispatcher.limit = 3
    life.dispatcher.resume()
    await idle()

    assert life.dispatcher.running_count == 3


@in_loop
async def test_adopted_deliveries_count_but_wait_for_no_slot(root: StateRoot) -> None:
    runner = FakeRunner(default=None)
    life, source = await items(root, 3, runner=runner, limit=3)
    await life.die()
    source.add(4)

    life = Life(root, runner, source, limit=2)
    await life.begin()
    await life.cycle()
    assert life.dispatcher.running_count == 3

    for number in (1, 2):
        assert spawn(4) not in runner.ids()
        runner.finish(spawn(number))
        await idle()
    assert runner.going() == [spawn(3), spawn(4)]


@in_loop
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


# --- a stop --------------------------------------------------------------------------------------------------------


@in_loop
async def test_stop_with_five_slow_items_and_four_slots_names_each_of_them(root: StateRoot) -> None:
    runner = FakeRunner(default=None)
    life, source = await items(root, 5, runner=runner, limit=4)

    report = await life.stop()

    assert sorted(report.left_running) == [spawn(number) for number in (1, 2, 3, 4)]
    assert report.abandoned == (spawn(5),)
    states = [life.ledger(f"fake:{number}").poll.pending["spawn:1"].state for number in range(1, 6)]
    assert states == [Standing.RUNNING] * 4 + [Standing.RELEASED]

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


@in_loop
async def test_stop_names_what_waits_behind_a_running_event(root: StateRoot) -> None:
    runner = FakeRunner()
    runner.script = {"fake:1/comment:1": [None]}
    life, _ = await live_item(root, runner, 1, 2, 3)

    report = await life.stop()

    assert report.left_running == ("fake:1/comment:1",)
    assert report.abandoned == ("fake:1/comment:2", "fake:1/comment:3")


@in_loop
async def test_stop_names_again_what_the_last_life_put_back_and_this_one_did_not_begin(root: StateRoot) -> None:
    runner = FakeRunner()
    runner.script = {"fake:1/comment:1": [None]}
    life, source = await live_item(root, runner, 1, 2)
    assert (await life.stop()).abandoned == ("fake:1/comment:2",)

    life = Life(root, runner, source)
    await life.begin()

    assert (await life.stop()).abandoned == ("fake:1/comment:2",)


@in_loop
async def test_stop_does_not_call_abandoned_what_ended_and_could_not_be_recorded(
    root: StateRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its outcome is in its files: it was delivered, and nothing of it is put back."""
    runner = FakeRunner()
    runner.script = {"fake:1/comment:1": [None]}
    life, source = await live_item(root, runner, 1)
    monkeypatch.setattr(life.archive, "save", no_space)
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


@in_loop
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


@in_loop
async def test_stop_of_an_idle_poller_finds_nothing(root: StateRoot) -> None:
    life, _ = await items(root, 2, runner=FakeRunner())
    before = {path.name: path.stat().st_mtime_ns for path in root.portable.iterdir()}

    report = await life.stop()

    assert (report.abandoned, report.left_running) == ((), ())
    assert {path.name: path.stat().st_mtime_ns for path in root.portable.iterdir()} == before


@in_loop
async def test_stop_when_the_disk_is_full_ends_all_the_same(root: StateRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = FakeRunner(default=None)
    life, source = await items(root, 3, runner=runner, limit=1)
    monkeypatch.setattr(life.archive, "save", no_space)

    report = await life.stop()

    assert report.left_running == (spawn(1),)
    life = Life(root, runner, source, limit=1)
    await life.begin()
    await life.cycle()
    for number in (1, 2, 3):
        runner.finish(spawn(number))
        await idle()
    assert runner.ids() == [spawn(number) for number in (1, 2, 3)]


@in_loop
async def test_stop_without_releases_writes_nothing(root: StateRoot) -> None:
    life, _ = await items(root, 3, runner=FakeRunner(default=None), limit=1)
    before = {path.name: path.read_bytes() for path in root.portable.iterdir()}

    report = await life.dispatcher.stop(releases=False)

    assert report.abandoned == ()
    assert {path.name: path.read_bytes() for path in root.portable.iterdir()} == before


@in_loop
async def test_poller_that_is_not_in_charge_any_more_hands_nothing_over(root: StateRoot) -> None:
    runner = FakeRunner(default=None)
    life, source = await items(root, 2, runner=runner, limit=1)
    life.is_in_charge = False

    runner.finish(spawn(1))
    await idle()
    source.add(3)
    await life.cycle()

    assert runner.ids() == [spawn(1)]


# --- nothing can be begun ------------------------------------------------------------------------------------------


@in_loop
async def test_unstartable_pauses_all_charges_nothing_and_goes_on_by_itself(root: StateRoot) -> None:
    runner = FakeRunner()
    runner.script = {spawn(1): [UNSTARTABLE] * 2}
    life, _ = await items(root, 3, runner=runner, limit=1)
    assert (runner.ids(), life.dispatcher.pause_reason, life.dispatcher.is_stuck) == (
        [spawn(1)],
        "no such command",
        True,
    )

    await asyncio.sleep(4.9)
    await life.cycle()
    assert runner.ids() == [spawn(1)]

    await asyncio.sleep(0.2)
    assert runner.ids() == [spawn(1), spawn(1)]

    await asyncio.sleep(10)
    await idle()
    assert sorted(runner.ids()) == [spawn(1), spawn(1), spawn(1), spawn(2), spawn(3)]
    assert (life.dispatcher.pause_reason, life.dispatcher.is_stuck) == ("", False)
    assert {payload["attempt"] for payload in runner.got} == {1}
    assert not any(payload["redelivery"] for payload in runner.got)


@in_loop
async def test_pauses_grow_to_fifteen_minutes_and_start_over_once_something_began(root: StateRoot) -> None:
    runner = FakeRunner()
    runner.script = {spawn(1): [UNSTARTABLE] * 11}
    life, source = await items(root, 1, runner=runner)
    for _ in range(11):
        life.dispatcher.resume()
        await life.cycle()
    assert life.dispatcher.pause_reason == ""
    seconds = [fields["seconds"] for fields in life.notes("dispatch.paused")]
    assert seconds == [5, 10, 20, 40, 80, 160, 320, 640, 900, 900, 900]

    source.add(2)
    runner.script = {spawn(2): [UNSTARTABLE]}
    await life.cycle()
    assert life.notes("dispatch.paused")[-1]["seconds"] == 5


@pytest.mark.parametrize("between", [REFUSED, LATER, UNKNOWN], ids=lambda outcome: str(outcome.verdict))
@in_loop
async def test_receiver_that_began_ends_the_growing_whatever_it_answered(root: StateRoot, between: Any) -> None:
    runner = FakeRunner()
    runner.script = {spawn(1): [UNSTARTABLE, UNSTARTABLE, between], spawn(2): [UNSTARTABLE]}
    life, source = await items(root, 1, runner=runner)
    for _ in range(2):
        life.dispatcher.resume()
        await life.cycle()
    source.add(2)
    await life.cycle()

    assert [fields["seconds"] for fields in life.notes("dispatch.paused")] == [5, 10, 5]


@in_loop
async def test_what_ran_when_the_pause_began_is_recorded(root: StateRoot) -> None:
    runner = FakeRunner(default=None)
    runner.script = {spawn(2): [UNSTARTABLE]}
    life, _ = await items(root, 3, runner=runner, limit=2)
    runner.finish(spawn(1))
    await idle()

    assert life.ledger("fake:1").poll.phase is Phase.LIVE
    assert runner.ids() == [spawn(1), spawn(2)]


@in_loop
async def test_stop_during_a_pause_names_what_waited(root: StateRoot) -> None:
    runner = FakeRunner()
    runner.script = {spawn(1): [UNSTARTABLE]}
    life, _ = await items(root, 2, runner=runner, limit=1)

    report = await life.stop()
    await asyncio.sleep(1000)
    await idle()

    assert sorted(report.abandoned) == [spawn(1), spawn(2)]
    assert runner.ids() == [spawn(1)]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), ValueError("embedded null byte")])
@in_loop
async def test_runner_that_raises_pauses_and_is_not_asked_in_a_loop(root: StateRoot, error: Exception) -> None:
    runner, calls = FakeRunner(), []

    async def deliver(offer: object) -> None:
        calls.append(offer)
        raise error

    life = Life(root, runner, source := FakeSource())
    source.add(1)
    life.outbox.runner.deliver = deliver
    await life.begin()
    await life.cycle()

    assert len(calls) == 1
    assert life.dispatcher.pause_reason
    assert life.ledger("fake:1").poll.spawn.attempts == 0
    assert life.ledger("fake:1").poll.pending["spawn:1"].unknown == 0


# --- the disk refuses ----------------------------------------------------------------------------------------------


def no_space(*_: object) -> None:
    raise OSError(28, "No space left on device")


def failing(count: int, work: Callable[..., Any], error: Exception) -> Callable[..., Any]:
    """`work`, but its first calls raise; `.calls` counts."""

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        wrapped.calls += 1
        if wrapped.calls <= count:
            raise error
        return work(*args, **kwargs)

    wrapped.calls = 0
    return wrapped


@in_loop
async def test_disk_full_while_recording_is_tried_again_and_nothing_is_handed_over_twice(root: StateRoot) -> None:
    runner = FakeRunner()
    runner.script = {"fake:1/comment:1": [None]}
    life, source = await live_item(root, runner, 1, 2)
    real, life.archive.save = life.archive.save, no_space
    runner.finish("fake:1/comment:1")
    await asyncio.sleep(100)
    assert runner.ids() == [spawn(1), "fake:1/comment:1"]
    assert len(life.notes("item.failed")) in range(3, 10)

    source.add(2)
    await life.cycle()
    assert runner.ids() == [spawn(1), "fake:1/comment:1"]

    life.archive.save = real
    await asyncio.sleep(31)
    await life.cycle()
    assert runner.ids() == [spawn(1), "fake:1/comment:1", "fake:1/comment:2", spawn(2)]
    assert life.ledger("fake:1").poll.comment_attempts == {}


@in_loop
async def test_disk_full_while_a_refusal_is_recorded_counts_it_once(root: StateRoot) -> None:
    runner = FakeRunner()
    runner.script = {"fake:1/comment:1": [None]}
    life, _ = await live_item(root, runner, 1)
    life.archive.save = failing(3, life.archive.save, OSError(28, "full"))

    runner.finish("fake:1/comment:1", REFUSED)
    await asyncio.sleep(100)

    assert life.ledger("fake:1").poll.comment_attempts == {"comment:1": 1}
    assert runner.ids() == [spawn(1), "fake:1/comment:1"]


@in_loop
async def test_disk_that_is_full_over_a_restart_repeats_nothing(
    root: StateRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = FakeRunner()
    runner.script = {"fake:1/comment:1": [None]}
    life, source = await live_item(root, runner, 1, 2)
    runner.finish("fake:1/comment:1")
    await life.die()

    life = Life(root, runner, source)
    with monkeypatch.context() as patch:
        patch.setattr(life.archive, "save", no_space)
        await life.begin()
        await life.cycle()
    assert runner.ids() == [spawn(1), "fake:1/comment:1"]

    await asyncio.sleep(60)
    await life.cycle()
    assert runner.ids() == [spawn(1), "fake:1/comment:1", "fake:1/comment:2"]


@in_loop
async def test_outcome_that_cannot_be_understood_costs_its_item_only_and_no_loop(root: StateRoot) -> None:
    runner = FakeRunner()
    life, source = await live_item(root, runner)
    life.outbox.conclude = failing(1000, life.outbox.conclude, ValueError("a bug"))
    source.write("fake:1", make.entry(1))
    await life.cycle()

    assert life.outbox.conclude.calls < 5
    assert runner.ids().count("fake:1/comment:1") == 1


@in_loop
async def test_item_whose_next_event_cannot_be_prepared_costs_itself_only(root: StateRoot) -> None:
    runner = FakeRunner()
    life = Life(root, runner, source := FakeSource())
    source.add(1)
    life.outbox.next = failing(2, life.outbox.next, OSError(5, "Input/output error"))
    await life.begin()
    await life.cycle()
    assert runner.ids() == []
    assert {fields["ref"] for fields in life.notes("item.failed")} == {"fake:1"}

    source.add(2)
    await life.cycle()
    assert sorted(runner.ids()) == [spawn(1), spawn(2)]


# --- drain ---------------------------------------------------------------------------------------------------------


@in_loop
async def test_drain_returns_when_all_that_can_be_handed_over_has_ended(root: StateRoot) -> None:
    runner = FakeRunner()
    runner.script = {"fake:1/comment:1": [None], "fake:1/comment:2": [None]}
    life, _ = await live_item(root, runner, 1, 2)

    draining = asyncio.create_task(life.dispatcher.drain())
    for number in (1, 2):
        await idle()
        assert not draining.done()
        runner.finish(f"fake:1/comment:{number}", DELIVERED)
    await asyncio.wait_for(draining, 1)

    assert life.ledger("fake:1").poll.pending == {}


@in_loop
async def test_drain_returns_during_a_pause_and_says_that_something_is_stuck(root: StateRoot) -> None:
    runner = FakeRunner(default=UNSTARTABLE)
    life, _ = await items(root, 2, runner=runner, limit=1)

    await asyncio.wait_for(life.dispatcher.drain(), 1)

    assert life.dispatcher.is_stuck
