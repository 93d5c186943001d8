"""Kinds of events that a session does not take (contract R7.1, `session.kinds`)."""

from __future__ import annotations

from dataclasses import replace

from support import factories as make
from support.fakes import UNKNOWN, FakeRunner, FakeSource
from support.life import Life, files_of, idle, in_virtual_loop, live_item
from the_loop.core.decide import Decision, decide
from the_loop.core.guards import Rules
from the_loop.core.ledger import Ledger, Phase, Standing
from the_loop.core.model import Kind, Presence
from the_loop.state import StateRoot

REF = "fake:1"
ALL = frozenset(Kind)


def rules(*left_out: Kind) -> Rules:
    return replace(make.rules(), kinds=ALL - set(left_out))


def recorded(decision: Decision) -> Ledger:
    assert decision.ledger is not None
    return decision.ledger


def told(decision: Decision) -> list[tuple[str, object, object]]:
    return [(note.name, note.fields["key"], note.fields["reason"]) for note in decision.notes]


REVIEW = make.entry(3, kind=Kind.REVIEW)


def test_entry_of_another_kind_is_settled_and_told_and_the_others_are_taken_up() -> None:
    decision = decide(make.ledger(), make.view(make.entry(1), REVIEW, make.entry(4)), rules(Kind.REVIEW))

    assert [event.key for event in decision.events] == ["comment:1", "comment:4"]
    assert told(decision) == [("dispatch.dropped", "review:3", "kind")]
    assert recorded(decision).poll.seen_comments == {"review:3"}


def test_entry_of_another_kind_still_says_its_words() -> None:
    decision = decide(make.ledger(), make.view(make.entry(1, "the-loop pause")), rules(Kind.COMMENT))

    assert recorded(decision).poll.paused
    assert told(decision) == [("control.applied", "comment:1", "pause")]

    decision = decide(make.ledger(), make.view(make.entry(1, "please\nthe-loop pause")), rules(Kind.COMMENT))

    assert recorded(decision).poll.paused
    assert told(decision)[1:] == [("dispatch.dropped", "comment:1", "kind")]


def test_entry_of_another_kind_by_a_stranger_is_unauthorised_first() -> None:
    decision = decide(make.ledger(), make.view(make.entry(1, author=make.STRANGER)), rules(Kind.COMMENT))

    assert told(decision) == [("dispatch.dropped", "comment:1", "unauthorized")]


def test_spawn_carries_entries_of_kinds_that_do_not_come_alone() -> None:
    decision = decide(None, make.view(thread=[make.entry(1), REVIEW]), rules(Kind.COMMENT, Kind.REVIEW))

    (event,) = decision.events
    assert [entry.key for entry in event.thread] == ["comment:1", "review:3"]


def test_item_without_spawn_is_live_at_once_and_its_thread_follows_as_events() -> None:
    thread = [make.entry(2), make.entry(1), make.entry(5, author=make.STRANGER), REVIEW]

    decision = decide(None, make.view(thread=thread), rules(Kind.SPAWN))

    ledger = recorded(decision)
    assert ledger.poll.phase is Phase.LIVE
    assert [event.key for event in decision.events] == ["comment:1", "comment:2", "review:3"]
    assert list(ledger.poll.pending) == ["comment:1", "comment:2", "review:3"]
    assert ledger.poll.seen_comments == {"spawn:1", "comment:5"}
    assert told(decision) == [
        ("dispatch.dropped", "spawn:1", "kind"),
        ("dispatch.dropped", "comment:5", "unauthorized"),
    ]


def test_reopened_item_without_spawn_delivers_only_what_is_new() -> None:
    ledger = make.ledger(Phase.ENDED, seen=("spawn:1", "close:1", "comment:1"), reason="closed")

    decision = decide(ledger, make.view(thread=[make.entry(1), make.entry(2)]), rules(Kind.SPAWN))

    assert [event.key for event in decision.events] == ["comment:2"]
    assert recorded(decision).poll.seen_comments >= {"spawn:2", "comment:1"}


def test_pending_spawn_that_is_rebuilt_under_other_kinds_gives_its_entries_as_events() -> None:
    spawn = make.pending("spawn:1", Standing.RELEASED, carries=("comment:1",), offer=2)
    ledger = make.ledger(Phase.STARTING, queue={"spawn:1": spawn}, behind=True)

    decision = decide(ledger, make.view(thread=[make.entry(1)]), rules(Kind.SPAWN))

    assert [event.key for event in decision.events] == ["comment:1"]
    assert recorded(decision).poll.phase is Phase.LIVE
    assert decision.withdrawn == {"spawn:1": 2}


def test_item_that_stops_before_its_start_needs_no_spawn() -> None:
    decision = decide(None, make.view(thread=[make.entry(1, "the-loop stop")]), rules(Kind.SPAWN))

    assert recorded(decision).poll.phase is Phase.ENDED
    assert decision.events == ()


# --- at the hand-over, where the configuration changed since ---


def take_kinds(life: Life, *left_out: Kind) -> None:
    """What a reload does."""
    life.watched[0].rules = rules(*left_out)


@in_virtual_loop
async def test_event_that_waits_when_its_kind_is_taken_out_is_dropped_in_its_turn(root: StateRoot) -> None:
    runner, source = FakeRunner(), FakeSource()
    life = await live_item(root, runner, source)
    runner.script = {f"{REF}/comment:1": [None]}
    source.write(REF, make.entry(1), make.entry(2), REVIEW)
    await life.cycle()
    take_kinds(life, Kind.COMMENT)
    runner.finish(f"{REF}/comment:1")
    await idle()

    assert runner.ids() == [f"{REF}/{key}" for key in ("spawn:1", "comment:1", "review:3")]
    assert [fields["reason"] for fields in life.notes("dispatch.dropped")] == ["kind"]
    assert files_of(root) == []


@in_virtual_loop
async def test_event_that_may_have_arrived_is_brought_to_its_end_whatever_the_kinds(root: StateRoot) -> None:
    runner, source = FakeRunner(), FakeSource()
    life = await live_item(root, runner, source)
    runner.script = {f"{REF}/comment:1": [None]}
    source.write(REF, make.entry(1))
    await life.cycle()
    take_kinds(life, Kind.COMMENT)
    runner.finish(f"{REF}/comment:1", UNKNOWN)
    await idle()

    assert runner.ids() == [f"{REF}/{key}" for key in ("spawn:1", "comment:1", "comment:1")]
    assert life.notes("dispatch.dropped") == []


@in_virtual_loop
async def test_spawn_that_waits_when_its_kind_is_taken_out_gives_its_entries_as_events(root: StateRoot) -> None:
    runner, source = FakeRunner(), FakeSource()
    source.add(1, make.entry(1), make.entry(2))
    life = Life(root, runner, source)
    life.dispatcher.limit = 0
    await life.begin()
    await life.cycle()
    take_kinds(life, Kind.SPAWN)
    life.dispatcher.limit = 4
    for _ in range(3):
        life.dispatcher.resume()
        await life.cycle()

    assert runner.ids() == [f"{REF}/comment:1", f"{REF}/comment:2"]
    assert [(fields["key"], fields["reason"]) for fields in life.notes("dispatch.dropped")] == [("spawn:1", "kind")]
    assert life.ledger(REF).poll.phase is Phase.LIVE


@in_virtual_loop
async def test_session_without_close_ends_after_what_was_accepted_before(root: StateRoot) -> None:
    runner, source = FakeRunner(), FakeSource()
    life = await live_item(root, runner, source, rules=rules(Kind.CLOSE))
    source.write(REF, make.entry(1))
    source.items[REF].presence = Presence.GONE
    await life.cycle()

    assert runner.ids() == [f"{REF}/spawn:1", f"{REF}/comment:1"]
    assert life.ledger(REF).poll.phase is Phase.ENDED
    assert [fields["key"] for fields in life.notes("dispatch.dropped")] == ["close:1"]
    assert [fields["reason"] for fields in life.notes("session.closed")] == ["closed"]
    assert files_of(root) == []


@in_virtual_loop
async def test_runner_that_keeps_sessions_is_handed_every_close(root: StateRoot) -> None:
    runner, source = FakeRunner(), FakeSource()
    life = await live_item(root, runner, source, rules=rules(Kind.CLOSE))
    life.outbox._runner.keeps_sessions = True  # type: ignore[attr-defined]
    source.items[REF].presence = Presence.GONE
    await life.cycle()

    assert runner.ids() == [f"{REF}/spawn:1", f"{REF}/close:1"]
    assert life.ledger(REF).poll.phase is Phase.ENDED


@in_virtual_loop
async def test_many_events_of_another_kind_are_dropped_in_one_go(root: StateRoot) -> None:
    runner, source = FakeRunner(), FakeSource()
    life = await live_item(root, runner, source, events_per_hour=30)
    life.dispatcher.limit = 0
    source.write(REF, *(make.entry(number) for number in range(1, 1500)), make.entry(9000, kind=Kind.REVIEW))
    await life.cycle()
    take_kinds(life, Kind.COMMENT)
    life.dispatcher.limit = 4
    life.dispatcher.resume()
    await idle()

    assert runner.ids() == [f"{REF}/spawn:1", f"{REF}/review:9000"]
