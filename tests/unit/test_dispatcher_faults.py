"""Receivers that cannot be started, and a disk that refuses to record (contract R7.2)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from support import factories as make
from support.fakes import LATER, REFUSED, UNKNOWN, UNSTARTABLE, FakeRunner, FakeSource, comments
from support.life import (
    Life,
    idle,
    in_virtual_loop,
    no_space,
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


# --- nothing can be begun ---------------------------------------------------------------------------------------------


@in_virtual_loop
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


@in_virtual_loop
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
@in_virtual_loop
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


@in_virtual_loop
async def test_what_ran_when_the_pause_began_is_recorded(root: StateRoot) -> None:
    runner = FakeRunner(default=None)
    runner.script = {spawn(2): [UNSTARTABLE]}
    life, _ = await items(root, 3, runner=runner, limit=2)
    runner.finish(spawn(1))
    await idle()

    assert life.ledger("fake:1").poll.phase is Phase.LIVE
    assert runner.ids() == [spawn(1), spawn(2)]


@in_virtual_loop
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
@in_virtual_loop
async def test_runner_that_raises_pauses_and_is_not_asked_in_a_loop(
    root: StateRoot, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner, calls = FakeRunner(), []

    async def deliver(offer: object) -> None:
        calls.append(offer)
        raise error

    monkeypatch.setattr(runner, "deliver", deliver)
    life = Life(root, runner, source := FakeSource())
    source.add(1)
    await life.begin()
    await life.cycle()

    assert len(calls) == 1
    assert life.dispatcher.pause_reason
    assert life.ledger("fake:1").poll.spawn.attempts == 0
    assert life.ledger("fake:1").poll.pending["spawn:1"].unknown == 0


# --- the disk refuses -------------------------------------------------------------------------------------------------


class Failing:
    """`work`, but its first calls raise."""

    def __init__(self, count: int, work: Callable[..., Any], error: Exception) -> None:
        self.calls = 0
        self._count, self._work, self._error = count, work, error

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        if self.calls <= self._count:
            raise self._error
        return self._work(*args, **kwargs)


@in_virtual_loop
async def test_disk_full_while_recording_is_tried_again_and_nothing_is_handed_over_twice(
    root: StateRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = FakeRunner()
    runner.script = {"fake:1/comment:1": [None]}
    life, source = await item_with(root, runner, 1, 2)
    real = life.ledgers.save
    monkeypatch.setattr(life.ledgers, "save", no_space)
    runner.finish("fake:1/comment:1")
    await asyncio.sleep(100)
    assert runner.ids() == [spawn(1), "fake:1/comment:1"]
    assert len(life.notes("item.failed")) == 1

    source.add(2)
    await life.cycle()
    assert runner.ids() == [spawn(1), "fake:1/comment:1"]

    monkeypatch.setattr(life.ledgers, "save", real)
    await asyncio.sleep(31)
    await life.cycle()
    assert runner.ids() == [spawn(1), "fake:1/comment:1", "fake:1/comment:2", spawn(2)]
    assert life.ledger("fake:1").poll.comment_attempts == {}


@in_virtual_loop
async def test_disk_full_while_a_refusal_is_recorded_counts_it_once(
    root: StateRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = FakeRunner()
    runner.script = {"fake:1/comment:1": [None]}
    life, _ = await item_with(root, runner, 1)
    monkeypatch.setattr(life.ledgers, "save", Failing(3, life.ledgers.save, OSError(28, "full")))

    runner.finish("fake:1/comment:1", REFUSED)
    await asyncio.sleep(100)

    assert life.ledger("fake:1").poll.comment_attempts == {"comment:1": 1}
    assert runner.ids() == [spawn(1), "fake:1/comment:1"]


@in_virtual_loop
async def test_disk_that_is_full_over_a_restart_repeats_nothing(
    root: StateRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = FakeRunner()
    runner.script = {"fake:1/comment:1": [None]}
    life, source = await item_with(root, runner, 1, 2)
    runner.finish("fake:1/comment:1")
    await life.die()

    life = Life(root, runner, source)
    with monkeypatch.context() as patch:
        patch.setattr(life.ledgers, "save", no_space)
        await life.begin()
        await life.cycle()
    assert runner.ids() == [spawn(1), "fake:1/comment:1"]

    await asyncio.sleep(60)
    await life.cycle()
    assert runner.ids() == [spawn(1), "fake:1/comment:1", "fake:1/comment:2"]


@in_virtual_loop
async def test_outcome_that_cannot_be_understood_costs_its_item_only_and_no_loop(
    root: StateRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = FakeRunner()
    life, source = await item_with(root, runner)
    conclude = Failing(1000, life.outbox.conclude, ValueError("a bug"))
    monkeypatch.setattr(life.outbox, "conclude", conclude)
    source.write("fake:1", make.entry(1))
    await life.cycle()

    assert conclude.calls < 5
    assert runner.ids().count("fake:1/comment:1") == 1


@in_virtual_loop
async def test_item_whose_next_event_cannot_be_prepared_costs_itself_only(
    root: StateRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = FakeRunner()
    life = Life(root, runner, source := FakeSource())
    source.add(1)
    monkeypatch.setattr(life.outbox, "next", Failing(2, life.outbox.next, OSError(5, "Input/output error")))
    await life.begin()
    await life.cycle()
    assert runner.ids() == []
    assert {fields["ref"] for fields in life.notes("item.failed")} == {"fake:1"}

    source.add(2)
    await life.cycle()
    assert sorted(runner.ids()) == [spawn(1), spawn(2)]
