"""Sources that fail, answer in part, or name a limit (contract R4.2, R6.7)."""

from __future__ import annotations

from typing import Any

import pytest

from support import factories as make
from support.clock import NOON, Clock
from support.fakes import REFUSED, FakeRunner, FakeSource
from support.life import (
    Life,
    in_virtual_loop,
)
from the_loop.core.guards import Rules
from the_loop.core.ledger import Phase
from the_loop.cursors import Wait, read_cursor
from the_loop.cycle import backoff_s
from the_loop.sources.base import Limited, SourceError
from the_loop.state import StateRoot
from the_loop.watched import Watched

REF = "fake:1"


async def begun(root: StateRoot, runner: FakeRunner, source: FakeSource, *numbers: int, **options: Any) -> Life:
    """A life in which these items have their sessions."""
    for number in numbers:
        source.add(number)
    life = Life(root, runner, source, **options)
    await life.begin()
    await life.cycle()
    return life


def owed(root: StateRoot) -> set[str]:
    """What the position on disk says is owed."""
    return set(read_cursor(root, "fake").owed)


# --- a source that fails ----------------------------------------------------------------------------------------------


@in_virtual_loop
async def test_look_that_fails_changes_nothing_and_is_told_once(
    root: StateRoot, runner: FakeRunner, source: FakeSource
) -> None:
    life = await begun(root, runner, source, 1)
    files = {path: path.read_bytes() for path in root.path.rglob("*.json")}
    source.poll_errors = [SourceError("no route to host")] * 3
    for _ in range(3):
        assert await life.cycle() == 1

    assert [fields["reason"] for fields in life.notes("source.failed")] == ["no route to host"]
    assert {path: path.read_bytes() for path in root.path.rglob("*.json")} == files
    assert life.watched[0].state(life.clock.uptime_s) == "failing"

    source.write(REF, make.entry(1))
    assert await life.cycle() == 0
    assert len(life.notes("source.recovered")) == 1
    assert (life.watched[0].error, life.watched[0].failures) == ("", 0)
    assert runner.ids() == [f"{REF}/spawn:1", f"{REF}/comment:1"]


@in_virtual_loop
async def test_failing_source_backs_off_to_ten_minutes_at_most(
    root: StateRoot, runner: FakeRunner, source: FakeSource
) -> None:
    life = Life(root, runner, source)
    source.poll_errors = [SourceError("down")] * 30
    waits = []
    for _ in range(30):
        await life.cycle()
        waits.append(backoff_s(life.watched[0].failures, 60.0))

    assert waits == sorted(waits)
    assert waits[0] == 60
    assert waits[1] > waits[0]
    assert waits[-1] == 600


@in_virtual_loop
async def test_unexpected_error_of_a_source_costs_that_source_only_and_repeats_nothing(
    root: StateRoot, runner: FakeRunner, source: FakeSource
) -> None:
    other = FakeSource("other")
    other.add(1)
    source.add(1)
    life = Life(root, runner, source, other)
    await life.cycle()
    source.write(REF, make.entry(1))
    source.poll_errors = [KeyError("number")]
    other.write("other:1", make.entry(1))
    assert await life.cycle() == 1
    assert runner.ids()[2:] == ["other:1/comment:1"]
    assert "KeyError" in life.notes("source.failed")[0]["reason"]

    await life.cycle()
    assert runner.ids()[2:] == ["other:1/comment:1", f"{REF}/comment:1"]


@in_virtual_loop
async def test_partial_listing_closes_nothing(root: StateRoot, runner: FakeRunner, source: FakeSource) -> None:
    life = await begun(root, runner, source, 1, 2)
    for fake in source.items.values():
        fake.is_hidden = True
    source.faults = [SourceError("octo/a: 502"), SourceError("octo/b: 404")]

    assert await life.cycle() == 2

    assert {life.ledger(ref).poll.phase for ref in source.items} == {Phase.LIVE}
    assert [fields["reason"] for fields in life.notes("source.failed")] == ["octo/a: 502; octo/b: 404"]
    await life.cycle()
    assert {life.ledger(ref).poll.phase for ref in source.items} == {Phase.LIVE}


@in_virtual_loop
async def test_what_is_due_is_handed_over_while_its_source_fails(root: StateRoot, source: FakeSource) -> None:
    runner = FakeRunner()
    life = await begun(root, runner, source, 1)
    life.is_in_charge = False
    source.write(REF, make.entry(1))
    source.add(2, make.entry(3))
    await life.cycle()
    await life.stop()

    life = Life(root, runner, source)
    await life.begin()
    source.poll_errors = [SourceError("down")]
    await life.cycle()

    assert sorted(runner.ids()) == [f"{REF}/comment:1", f"{REF}/spawn:1", "fake:2/spawn:1"]
    assert [entry["id"] for entry in runner.got[-1]["thread"] or runner.got[-2]["thread"]] == ["3"]


def test_source_that_nobody_may_speak_on_is_unread() -> None:
    watched = Watched(FakeSource(), Rules(frozenset(), folds_case=True, words={}))

    assert watched.is_unread
    assert watched.state(0.0) == "unread"


# --- limits -----------------------------------------------------------------------------------------------------------


@in_virtual_loop
async def test_limit_in_a_look_is_waited_for_also_after_a_restart(
    root: StateRoot, runner: FakeRunner, source: FakeSource
) -> None:
    life = await begun(root, runner, source, 1)
    source.poll_errors = [Limited("rate limit", 3600)]
    assert await life.cycle() == 1

    watched = life.watched[0]
    assert watched.state(life.clock.uptime_s) == "waiting"
    assert watched.wait_left_s(life.clock.uptime_s) == 3600
    assert life.notes("source.waiting")[0]["reason"] == "rate limit"
    assert watched.failures == 0
    stored = read_cursor(root, "fake").wait
    assert stored == Wait(NOON + 3600, 3600, "rate limit")
    assert read_cursor(root, "fake").value is not None

    life.clock.run(3601)
    assert watched.state(life.clock.uptime_s) == "failing"
    source.write(REF, make.entry(1))
    assert await life.cycle() == 0
    assert (watched.error, watched.state(life.clock.uptime_s)) == ("", "ok")
    assert read_cursor(root, "fake").wait is None
    assert runner.ids() == [f"{REF}/spawn:1", f"{REF}/comment:1"]


@pytest.mark.parametrize("jump", [-365 * 86_400.0, 365 * 86_400.0])
@in_virtual_loop
async def test_limit_is_not_made_longer_by_a_clock_that_was_set(
    root: StateRoot, runner: FakeRunner, source: FakeSource, jump: float
) -> None:
    life = await begun(root, runner, source, 1)
    source.poll_errors = [Limited("rate limit", 90)]
    await life.cycle()
    watched = life.watched[0]

    life.clock.now += jump
    assert 0 < watched.wait_left_s(life.clock.uptime_s) <= 90
    life.clock.run(91)
    assert watched.wait_left_s(life.clock.uptime_s) == 0
    await life.cycle()
    assert read_cursor(root, "fake").wait is None


@pytest.mark.parametrize(("now", "left"), [(0, 90), (-1e9, 90), (30, 60), (90, 0), (1e9, 0)])
def test_stored_wait_is_never_longer_than_it_was_when_it_was_set(now: float, left: float) -> None:
    wait = Wait(NOON + 90, 90, "rate limit")

    assert wait.remaining_s(NOON + now) == left


@in_virtual_loop
async def test_limit_while_threads_are_read_asks_for_no_more_of_them_and_owes_the_rest(
    root: StateRoot, runner: FakeRunner, source: FakeSource
) -> None:
    life = await begun(root, runner, source, 1)
    for number in (2, 3, 4):
        source.add(number)
    source.items[REF] = source.items.pop(REF)
    source.write(REF, make.entry(1))
    source.thread_errors = {"fake:3": [Limited("secondary limit", 60)]}
    source.threads.clear()

    assert await life.cycle() == 1

    assert source.threads == ["fake:2", "fake:3"]
    assert sorted(runner.ids()) == [f"{REF}/comment:1", f"{REF}/spawn:1", "fake:2/spawn:1"]
    assert owed(root) == {"fake:3", "fake:4"}
    assert read_cursor(root, "fake").wait == Wait(NOON + 60, 60, "secondary limit")

    life.clock.run(61)
    await life.cycle()
    assert sorted(runner.ids())[-2:] == ["fake:3/spawn:1", "fake:4/spawn:1"]
    assert (owed(root), life.watched[0].error) == (set(), "")


@in_virtual_loop
async def test_limit_of_one_part_is_waited_for_and_the_other_parts_are_served(
    root: StateRoot, runner: FakeRunner, source: FakeSource
) -> None:
    life = await begun(root, runner, source, 1)
    source.faults = [Limited("rate limit", 120)]
    source.write(REF, make.entry(1))

    await life.cycle()

    assert runner.ids() == [f"{REF}/spawn:1", f"{REF}/comment:1"]
    assert life.watched[0].wait_left_s(life.clock.uptime_s) == 120


@in_virtual_loop
async def test_clock_that_jumps_over_the_whole_story_delivers_each_once(
    root: StateRoot, runner: FakeRunner, source: FakeSource
) -> None:
    clock = Clock()
    life = await begun(root, runner, source, 1, clock=clock)
    runner.script = {f"{REF}/comment:{number}": [REFUSED] for number in (1, 2, 3)}
    for number, now in enumerate((NOON - 14 * 86_400, NOON + 365 * 86_400, NOON), 1):
        clock.now = now
        source.write(REF, make.entry(number))
        for _ in range(4):
            await life.cycle()
            clock.now += 400

    assert runner.ids() == [
        f"{REF}/{key}"
        for key in ("spawn:1", "comment:1", "comment:1", "comment:2", "comment:2", "comment:3", "comment:3")
    ]
