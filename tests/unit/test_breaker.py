"""The breaker: too many events within an hour of their writing, and an item pauses (contract R7.5)."""

from __future__ import annotations

from typing import Any

import pytest

from support import factories as make
from support.clock import NOON
from support.fakes import FakeRunner, FakeSource
from support.life import Life, in_virtual_loop, live_item, next_life
from the_loop.attention import attention_of
from the_loop.core import breaker
from the_loop.core.ledger import Ledger, change
from the_loop.core.model import Entry, Presence, timestamp
from the_loop.state import StateRoot

REF = "fake:1"
LIMIT = 3


def written(number: int, minute: float, **more: Any) -> Entry:
    return make.entry(number, created_at=timestamp(NOON + 60 * minute), **more)


def numbers(runner: FakeRunner) -> list[str]:
    return [one.rpartition(":")[2] for one in runner.ids() if "/comment:" in one or "/review" in one]


async def item(root: StateRoot, runner: FakeRunner, source: FakeSource, limit: int = LIMIT) -> Life:
    """Item 1, live since two hours: its spawn counts no more."""
    life = await live_item(root, runner, source, events_per_hour=limit)
    life.clock.now += 7200
    return life


@in_virtual_loop
async def test_item_when_too_much_was_written_within_an_hour_then_pauses_and_what_comes_waits(root: StateRoot) -> None:
    runner, source = FakeRunner(), FakeSource()
    life = await item(root, runner, source)

    source.write(REF, *(written(number, 60 + number) for number in range(1, 6)))
    await life.cycle()
    await life.cycle()

    assert numbers(runner) == ["1", "2", "3"]
    (told,) = life.notes("poll.breaker")
    assert told["count"] == LIMIT
    assert list(life.ledger(REF).poll.pending) == ["comment:4", "comment:5"]
    (shown,) = attention_of(life.ledgers, life.watched, "")
    assert (shown["ref"], shown["state"], shown["command"]) == (REF, "breaker", f"the-loop ledger retry {REF}")


@pytest.mark.parametrize("word", ["resume", "start"])
@in_virtual_loop
async def test_item_when_a_person_lets_it_go_on_then_all_of_it_comes_in_order_and_is_counted_anew(
    root: StateRoot, word: str
) -> None:
    runner, source = FakeRunner(), FakeSource()
    life = await item(root, runner, source)
    source.write(REF, *(written(number, 60 + number) for number in range(1, 6)))
    await life.cycle()

    life = await next_life(life, root, runner, source, events_per_hour=LIMIT)
    await life.cycle()
    assert numbers(runner) == ["1", "2", "3"]

    source.write(REF, written(6, 70, body=f"the-loop {word}"))
    await life.cycle()
    assert numbers(runner) == ["1", "2", "3", "4", "5"]

    source.write(REF, *(written(number, 70 + number) for number in range(7, 10)))
    await life.cycle()
    assert numbers(runner) == ["1", "2", "3", "4", "5", "7"], "a loop that goes on trips it again"


@in_virtual_loop
async def test_item_when_it_is_read_again_or_comes_back_then_still_pauses(root: StateRoot) -> None:
    runner, source = FakeRunner(), FakeSource()
    life = await item(root, runner, source)
    source.write(REF, written(1, 61, body="the-loop resume"), *(written(number, 60 + number) for number in range(2, 7)))
    await life.cycle()
    assert numbers(runner) == ["2", "3", "4"]

    for presence in (Presence.AWAY, Presence.LISTED):
        source.items[REF].presence = presence
        await life.cycle()

    assert numbers(runner) == ["2", "3", "4"]


@in_virtual_loop
async def test_outage_when_a_day_is_caught_up_with_then_nothing_trips(root: StateRoot) -> None:
    runner, source = FakeRunner(), FakeSource()
    life = await item(root, runner, source)
    life.clock.now += 86_400

    source.write(REF, *(written(number, 120 + 21 * number) for number in range(1, 60)))
    await life.cycle()

    assert len(numbers(runner)) == 59
    assert life.notes("poll.breaker") == []


@in_virtual_loop
async def test_limit_when_it_is_none_then_nothing_is_counted(root: StateRoot) -> None:
    runner, source = FakeRunner(), FakeSource()
    life = await item(root, runner, source, limit=0)

    source.write(REF, *(written(number, 60) for number in range(1, 60)))
    await life.cycle()

    assert len(numbers(runner)) == 59
    assert life.ledger(REF).poll.breaker.events == {}


# --- what counts ---


def after(*moments: tuple[str, float, str], limit: int = LIMIT) -> Ledger:
    """An item to which these were forwarded: key, minute, group."""
    queue = {key: make.pending(key, created=60 * minute, group=group) for key, minute, group in moments}
    ledger = make.ledger(queue=queue)
    for key, _, _ in moments:
        ledger = breaker.forwarded(ledger, key, limit, NOON)
    return ledger


def would_trip(ledger: Ledger, minute: float, group: str = "", limit: int = LIMIT, **more: Any) -> bool:
    waiting = make.pending("comment:99", created=60 * minute, group=group, **more)
    queue = {**ledger.poll.pending, "comment:99": waiting}
    return breaker.trips(change(ledger, pending=queue), "comment:99", limit, NOON)


@pytest.mark.parametrize(("minute", "expected"), [(30.0, True), (60.9, True), (61.1, False), (500.0, False)])
def test_window_is_an_hour_of_writing(minute: float, expected: bool) -> None:
    ledger = after(("comment:1", 1, ""), ("comment:2", 2, ""), ("comment:3", 3, ""))

    assert would_trip(ledger, minute) is expected


def test_review_and_its_comments_on_lines_count_as_one() -> None:
    rows = (("review:7", 1), ("review_comment:8", 2), ("review_comment:9", 3))
    ledger = after(*((key, minute, "review:7") for key, minute in rows))

    assert len(ledger.poll.breaker.events) == 1
    assert not would_trip(ledger, 4, "review:7")
    assert not would_trip(ledger, 4)


def test_event_that_may_have_arrived_is_offered_again_whatever_the_count() -> None:
    ledger = after(("comment:1", 1, ""), ("comment:2", 2, ""), ("comment:3", 3, ""))

    assert not would_trip(ledger, 4, redelivery=True)


@pytest.mark.parametrize("created", [0.0, NOON + 1e9])
def test_moment_when_it_is_unknown_or_to_come_then_is_now(created: float) -> None:
    ledger = after(("comment:1", created / 60, ""))

    assert ledger.poll.breaker.events == {"comment:1": NOON}


def test_memory_is_bounded_by_the_limit() -> None:
    ledger = after(*((f"comment:{number}", 10 + number / 10, "") for number in range(500)))

    assert len(ledger.poll.breaker.events) <= LIMIT


# --- who is met and does not start ---


@in_virtual_loop
async def test_item_when_it_does_not_start_then_that_is_told_once_with_the_reason(root: StateRoot) -> None:
    runner, source = FakeRunner(), FakeSource()
    source.add(1, author=make.STRANGER)
    source.add(2, author=None)
    life = Life(root, runner, source)
    await life.begin()

    await life.cycle()
    life = await next_life(life, root, runner, source)
    told = life.notes("poll.waiting")
    await life.cycle()

    assert life.notes("poll.waiting") == [] == told


@in_virtual_loop
async def test_item_when_it_waits_then_its_author_and_the_reason_are_told(root: StateRoot) -> None:
    source = FakeSource()
    source.add(1, author=make.STRANGER)
    source.add(2, author=None)
    life = Life(root, FakeRunner(), source)
    await life.begin()

    await life.cycle()

    told = {note["ref"]: note["reason"] for note in life.notes("poll.waiting")}
    assert told == {
        "fake:1": f"its author '{make.STRANGER}' is not authorised",
        "fake:2": "its author cannot be established",
    }
