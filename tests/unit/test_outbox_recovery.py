"""What a start finds of the life before it, and what it makes of it (contract R4, R5, R7.5)."""

from __future__ import annotations

from typing import Any

import pytest

from support import factories as make
from support.fakes import DELIVERED, LATER, REFUSED, UNKNOWN, FakeRunner, FakeSource, comments
from support.life import (
    Life,
    files_of,
    idle,
    in_virtual_loop,
    live_item,
    next_life,
)
from the_loop import deliveries
from the_loop.core.ledger import Phase, Standing
from the_loop.core.model import Event, Outcome, Presence
from the_loop.runners.base import Offer, Trace
from the_loop.sources.base import SourceError
from the_loop.state import StateRoot

REF = "fake:1"
SPAWN, ONE, TWO = (f"{REF}/{key}" for key in ("spawn:1", "comment:1", "comment:2"))


async def left_behind(root: StateRoot, runner: FakeRunner, source: FakeSource, **options: Any) -> Life:
    """A life that ended hard while comment 1 was under way and comment 2 waited behind it."""
    life = await live_item(root, runner, source, **options)
    runner.script = {ONE: [None]}
    source.write(REF, *comments(1, 2))
    await life.cycle()
    assert runner.going() == [ONE]
    await life.die()
    return life


# --- what a start finds -----------------------------------------------------------------------------------------------


@in_virtual_loop
async def test_start_when_a_delivery_still_runs_adopts_it_and_waits(root: StateRoot) -> None:
    runner, source = FakeRunner(), FakeSource()
    await left_behind(root, runner, source)

    life = Life(root, runner, source)
    await life.begin()
    await life.cycle()
    assert (life.dispatcher.running(REF), runner.ids()) == ("comment:1", [SPAWN, ONE])
    assert len(life.notes("dispatch.adopted")) == 1

    runner.finish(ONE)
    await idle()
    assert runner.ids() == [SPAWN, ONE, TWO]
    assert life.ledger(REF).poll.pending == {}


@in_virtual_loop
async def test_start_when_a_spawn_still_runs_that_a_word_has_stopped_then_its_session_is_closed_after_it(
    root: StateRoot,
) -> None:
    """The close was put back, which ended the item: the spawn was never recorded, nor its session closed."""
    runner, source = FakeRunner(), FakeSource()
    runner.script = {SPAWN: [None]}
    source.add(1)
    life = Life(root, runner, source)
    await life.begin()
    await life.cycle()
    source.write(REF, make.entry(1, "the-loop stop"))
    await life.cycle()
    assert list(life.ledger(REF).poll.pending) == ["spawn:1", "close:1"]

    life = await next_life(life, root, runner, source)
    assert life.dispatcher.running(REF) == "spawn:1"
    runner.finish(SPAWN)
    await idle()
    await life.cycle()

    assert runner.ids() == [SPAWN, f"{REF}/close:1"]
    assert life.ledger(REF).poll.phase is Phase.ENDED
    assert "spawn:1" in life.ledger(REF).poll.seen_comments


@pytest.mark.parametrize("outcome", [DELIVERED, REFUSED, LATER], ids=lambda outcome: str(outcome.verdict))
@in_virtual_loop
async def test_start_when_a_delivery_ended_meanwhile_records_its_outcome(root: StateRoot, outcome: Outcome) -> None:
    runner, source = FakeRunner(), FakeSource()
    await left_behind(root, runner, source)
    runner.finish(ONE, outcome)

    life = Life(root, runner, source)
    await life.begin()

    poll = life.ledger(REF).poll
    assert ("comment:1" in poll.seen_comments) is (outcome is DELIVERED)
    assert poll.comment_attempts == ({"comment:1": 1} if outcome is REFUSED else {})
    life.clock.now += 1000
    await life.cycle()
    assert runner.ids().count(ONE) == (1 if outcome is DELIVERED else 2)
    assert runner.ids()[-1] == TWO
    assert files_of(root) == []


@in_virtual_loop
async def test_start_when_a_delivery_was_killed_too_offers_it_again_marked(root: StateRoot) -> None:
    runner, source = FakeRunner(), FakeSource()
    await left_behind(root, runner, source)
    runner.kill(ONE)

    life = Life(root, runner, source)
    await life.begin()
    await life.cycle()

    offers = [(payload["redelivery"], payload["attempt"]) for payload in runner.got if payload["deliveryId"] == ONE]
    assert offers == [(False, 1), (True, 1)]
    assert runner.ids() == [SPAWN, ONE, ONE, TWO]
    assert [fields["key"] for fields in life.notes("dispatch.uncertain")] == ["comment:1"]


@in_virtual_loop
async def test_start_when_a_delivery_was_killed_too_holds_it_where_that_is_configured(root: StateRoot) -> None:
    runner, source = FakeRunner(), FakeSource()
    await left_behind(root, runner, source)
    runner.kill(ONE)

    life = Life(root, runner, source, holds_uncertain=True)
    await life.begin()
    await life.cycle()
    life = await next_life(life, root, runner, source, holds_uncertain=True)
    await life.cycle()

    assert runner.ids() == [SPAWN, ONE]
    assert life.ledger(REF).poll.pending["comment:1"].state is Standing.HELD
    assert life.ledger(REF).poll.pending["comment:2"].state is Standing.QUEUED


@in_virtual_loop
async def test_start_when_nothing_had_begun_offers_it_with_the_budget_it_had(root: StateRoot) -> None:
    runner, source = FakeRunner(), FakeSource()
    life = await live_item(root, runner, source)
    life.is_in_charge = False
    source.write(REF, *comments(1, 2))
    await life.cycle()

    life = await next_life(life, root, runner, source)
    assert {entry.state for entry in life.ledger(REF).poll.pending.values()} == {Standing.QUEUED}
    await life.cycle()

    assert runner.ids() == [SPAWN, ONE, TWO]
    assert {payload["attempt"] for payload in runner.got} == {1}


@in_virtual_loop
async def test_killed_again_and_again_is_held_and_never_given_up(root: StateRoot) -> None:
    runner, source = FakeRunner(), FakeSource()
    life = await live_item(root, runner, source)
    runner.script = {ONE: [None] * 10}
    source.write(REF, *comments(1))
    await life.cycle()

    for _ in range(10):
        if ONE in runner.going():
            runner.kill(ONE)
        life = await next_life(life, root, runner, source)
        await life.cycle()

    assert runner.ids() == [SPAWN, ONE, ONE, ONE]
    assert life.ledger(REF).poll.pending["comment:1"].state is Standing.HELD
    assert life.ledger(REF).poll.comment_attempts == {}


@in_virtual_loop
async def test_ten_restarts_during_one_delivery_hand_it_over_once_and_charge_nothing(root: StateRoot) -> None:
    runner, source = FakeRunner(), FakeSource()
    life = await live_item(root, runner, source)
    runner.script = {ONE: [None]}
    source.write(REF, *comments(1))
    await life.cycle()

    for number in range(10):
        if number % 2:
            report = await life.stop()
            assert report.left_running == (ONE,)
        life = await next_life(life, root, runner, source)
        await life.cycle()
    runner.finish(ONE)
    await idle()

    assert runner.ids() == [SPAWN, ONE]
    assert life.ledger(REF).poll.seen_comments == {"spawn:1", "comment:1"}


@in_virtual_loop
async def test_spawn_that_was_not_begun_is_rebuilt_with_what_came_meanwhile(root: StateRoot) -> None:
    runner, source = FakeRunner(), FakeSource()
    source.add(1, *comments(1))
    life = Life(root, runner, source)
    life.is_in_charge = False
    await life.begin()
    await life.cycle()
    assert (await life.stop()).abandoned == (SPAWN,)
    source.write(REF, *comments(2))

    life = Life(root, runner, source)
    await life.begin()
    await life.cycle()

    assert [[entry["id"] for entry in payload["thread"]] for payload in runner.got] == [["1", "2"]]
    assert life.ledger(REF).poll.seen_comments == {"spawn:1", "comment:1", "comment:2"}


@in_virtual_loop
async def test_spawn_that_was_not_begun_waits_for_its_thread(root: StateRoot) -> None:
    """Its source answers, but not about this item: what was written meanwhile must not be left out."""
    runner, source = FakeRunner(), FakeSource()
    source.add(1, *comments(1))
    life = Life(root, runner, source)
    life.is_in_charge = False
    await life.begin()
    await life.cycle()
    await life.stop()
    source.write(REF, *comments(2))
    source.thread_errors = {REF: [SourceError("502")]}

    life = Life(root, runner, source)
    await life.begin()
    await life.cycle()
    assert runner.ids() == []
    await life.cycle()

    assert [[entry["id"] for entry in payload["thread"]] for payload in runner.got] == [["1", "2"]]


@in_virtual_loop
async def test_uncertain_spawn_is_offered_with_the_same_bytes_and_what_came_since_follows(root: StateRoot) -> None:
    runner, source = FakeRunner(), FakeSource()
    runner.script = {SPAWN: [UNKNOWN]}
    source.add(1, *comments(1))
    life = Life(root, runner, source)
    life.dispatcher.limit = 0
    await life.begin()
    await life.cycle()
    life.dispatcher.limit = 4
    life.dispatcher.resume()
    await idle()
    source.write(REF, *comments(2))
    await life.cycle()
    await life.cycle()

    assert runner.ids() == [SPAWN, SPAWN, TWO]
    first, second = ({**payload, "offer": 0, "redelivery": None} for payload in runner.got[:2])
    assert first == second
    assert [payload["redelivery"] for payload in runner.got] == [False, True, False]


# --- files nobody stands behind ---------------------------------------------------------------------------------------


@in_virtual_loop
async def test_orphans_are_removed_at_the_start(root: StateRoot) -> None:
    runner, source = FakeRunner(), FakeSource()
    life = await live_item(root, runner, source)
    event = an_event("comment:77")
    life.deliveries.write(life.deliveries.stem(REF, event.key), event.to_json(attempt=1, redelivery=False))
    stem = root.delivery(f"{REF}/comment:78")
    for part in ("started.json", "outcome.json", "lock"):
        deliveries.beside(stem, part).write_text("{}")
    deliveries.beside(stem, "outcome.json.tmp").write_text("")
    assert len(files_of(root)) == 5

    await next_life(life, root, runner, source)

    assert files_of(root) == []


def an_event(key: str, ref: str = REF) -> Event:
    return Event(ref=ref, key=key, url="", title="", author=make.PERSON, body="", created_at="")


@in_virtual_loop
async def test_files_of_a_held_item_are_kept_and_used_once_its_ledger_is_back(root: StateRoot) -> None:
    runner, source = FakeRunner(), FakeSource()
    await left_behind(root, runner, source)
    runner.finish(ONE)
    good = root.ledger(REF).read_bytes()
    root.ledger(REF).write_bytes(b"\0" * len(good))
    before = files_of(root)

    for _ in range(2):
        life = Life(root, runner, source)
        await life.begin()
        await life.cycle()
        assert runner.ids() == [SPAWN, ONE]
        assert files_of(root) == before
        await life.die()

    root.ledger(REF).write_bytes(good)
    life = Life(root, runner, source)
    await life.begin()
    await life.cycle()
    assert runner.ids() == [SPAWN, ONE, TWO]
    assert files_of(root) == []


@in_virtual_loop
async def test_files_of_a_delivery_that_still_runs_are_left_alone_though_nothing_is_pending(root: StateRoot) -> None:
    runner, source = FakeRunner(), FakeSource()
    await left_behind(root, runner, source)
    root.ledger(REF).unlink()

    life = Life(root, runner, FakeSource("other"))
    await life.begin()

    assert life.outbox.inspect(offer_of(root, ONE)).trace is Trace.RUNNING
    assert any(name.endswith("comment,1.payload.json") for name in files_of(root))


def offer_of(root: StateRoot, delivery_id: str, number: int = 1) -> Offer:
    ref, _, key = delivery_id.rpartition("/")
    return Offer(ref, key, root.delivery(delivery_id), number, 1)


@in_virtual_loop
async def test_nothing_is_left_when_an_item_ended_with_something_given_up(root: StateRoot) -> None:
    runner, source = FakeRunner(), FakeSource()
    life = await live_item(root, runner, source, max_retries=1)
    runner.script = {ONE: [REFUSED]}
    source.write(REF, *comments(1))
    await life.cycle()
    source.items[REF].presence = Presence.GONE
    await life.cycle()

    assert runner.ids() == [SPAWN, ONE, f"{REF}/close:1"]
    assert life.ledger(REF).poll.phase is Phase.ENDED
    assert files_of(root) == []
