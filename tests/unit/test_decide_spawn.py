"""What becomes of an item while its spawn is pending (contract R6.1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from support import factories as make
from support.clock import NOON
from the_loop.core.decide import Decision, decide, wants_thread
from the_loop.core.ledger import Ledger, Phase, Standing
from the_loop.core.model import Entry, Event, Kind, Presence

BEGUN = (Standing.RUNNING, Standing.UNCERTAIN, Standing.HELD)
START, STOP, PAUSE = (f"the-loop {word}" for word in ("start", "stop", "pause"))


def recorded(decision: Decision) -> Ledger:
    assert decision.ledger is not None
    return decision.ledger


def only_event(decision: Decision) -> Event:
    assert len(decision.events) == 1
    return decision.events[0]


def carried(decision: Decision) -> list[str]:
    """The keys in the spawn's thread."""
    return [entry.key for entry in only_event(decision).thread]


def told(decision: Decision) -> list[str]:
    return [note.name for note in decision.notes]


# --- the spawn is pending, not begun ----------------------------------------------------------------------------------


def starting(state: Standing = Standing.QUEUED, *, carries: Sequence[str] = ("comment:1",), **fields: Any) -> Ledger:
    poll = {key: fields.pop(key) for key in ("behind", "away", "paused", "obeyed") if key in fields}
    spawn = make.pending("spawn:1", state, carries=tuple(carries), **fields)
    return make.ledger(Phase.STARTING, queue={"spawn:1": spawn}, **poll)


@pytest.mark.parametrize(
    ("rows", "wants"),
    [
        ((), False),
        ((make.entry(1),), False),
        ((make.entry(2),), True),
        ((make.entry(2, author=make.STRANGER),), False),
        ((make.entry(2, author=None),), False),
        ((make.entry(1, kind=Kind.REVIEW_COMMENT),), True),
    ],
)
def test_queued_spawn_wants_its_thread_again_when_somebody_of_ours_wrote(rows: Sequence[Entry], *, wants: bool) -> None:
    assert wants_thread(starting(), make.view(*rows), make.rules(), owed=False) is wants


def test_queued_spawn_when_a_comment_comes_is_rebuilt_and_makes_no_other_event() -> None:
    thread = (make.entry(1), make.entry(2))
    decision = decide(starting(), make.view(thread[1], thread=thread), make.rules())

    assert carried(decision) == ["comment:1", "comment:2"]
    assert set(recorded(decision).poll.pending) == {"spawn:1"}
    assert recorded(decision).poll.pending["spawn:1"].carries == ("comment:1", "comment:2")
    assert decision.withdrawn == {}


def test_queued_spawn_when_a_comment_was_deleted_does_not_carry_it_any_more() -> None:
    decision = decide(
        starting(Standing.RELEASED, carries=("comment:1", "comment:2")), make.view(thread=[make.entry(2)]), make.rules()
    )

    assert carried(decision) == ["comment:2"]
    assert recorded(decision).poll.pending["spawn:1"].carries == ("comment:2",)


def test_queued_spawn_when_nothing_came_is_left_alone() -> None:
    assert decide(starting(), make.view(), make.rules()) == Decision(None)


@pytest.mark.parametrize("state", [Standing.RELEASED, Standing.LOST])
def test_spawn_that_was_never_begun_is_rebuilt_from_the_thread_as_it_is_now(state: Standing) -> None:
    ledger = starting(state, behind=True)
    assert wants_thread(ledger, make.view(), make.rules(), owed=False)

    decision = decide(ledger, make.view(thread=[make.entry(1), make.entry(2)]), make.rules())

    spawn = recorded(decision).poll.pending["spawn:1"]
    assert (spawn.state, spawn.attempt, spawn.redelivery) == (Standing.QUEUED, 1, False)
    assert carried(decision) == ["comment:1", "comment:2"]
    assert not recorded(decision).poll.behind


def test_lost_spawn_that_may_have_begun_is_offered_again_marked() -> None:
    decision = decide(starting(Standing.LOST, redelivery=True), make.view(thread=[make.entry(1)]), make.rules())

    spawn = recorded(decision).poll.pending["spawn:1"]
    assert (spawn.state, spawn.redelivery) == (Standing.UNCERTAIN, True)


@pytest.mark.parametrize("state", [Standing.REFUSED, Standing.LATER])
def test_refused_spawn_is_rebuilt_when_it_is_due_and_only_then(state: Standing) -> None:
    ledger = starting(state, attempt=2, offer=2, pause=60.0, retry_at=NOON)
    thread = (make.entry(1), make.entry(2))

    assert not wants_thread(ledger, make.view(due=False), make.rules(), owed=False)
    early = decide(ledger, make.view(thread[1], thread=thread, due=False), make.rules())
    assert (early.events, early.ledger) == ((), None)

    assert wants_thread(ledger, make.view(due=True), make.rules(), owed=False)
    due = decide(ledger, make.view(thread=thread, due=True), make.rules())
    spawn = recorded(due).poll.pending["spawn:1"]
    assert carried(due) == ["comment:1", "comment:2"]
    assert (spawn.state, spawn.attempt, spawn.offer) == (Standing.QUEUED, 2, 3)


GIVEN_UP: dict[str, Any] = {"attempt": 4, "offer": 4, "pause": 900.0, "retry_at": NOON}


@pytest.mark.parametrize(
    "rows",
    [
        (),
        (make.entry(2, author=make.STRANGER),),
        (make.entry(2, author=None),),
        (make.entry(2, f"it was never received\n\n{make.MARKER}"),),
    ],
    ids=["nothing", "stranger", "nobody", "own notice"],
)
def test_given_up_spawn_when_nobody_of_ours_wrote_stays_given_up(rows: Sequence[Entry]) -> None:
    view = make.view(*rows, thread=(make.entry(1), *rows), due=True)
    decision = decide(starting(Standing.GAVE_UP, **GIVEN_UP), view, make.rules())

    assert decision.events == ()
    assert "poll.rearmed" not in told(decision)


@pytest.mark.parametrize("body", ["try again please", START, f"{START}\nnow"], ids=["text", "word", "word and text"])
def test_given_up_spawn_when_an_authorised_person_writes_starts_over(body: str) -> None:
    ledger = starting(Standing.GAVE_UP, **GIVEN_UP)
    row = make.entry(2, body)
    assert wants_thread(ledger, make.view(row), make.rules(), owed=False)

    decision = decide(ledger, make.view(row, thread=(make.entry(1), row)), make.rules())

    spawn = recorded(decision).poll.pending["spawn:1"]
    assert (spawn.state, spawn.attempt, spawn.offer) == (Standing.QUEUED, 1, 5)
    assert recorded(decision).poll.spawn.attempts == 0
    assert "comment:1" in carried(decision)
    assert "poll.rearmed" in told(decision)


# --- the spawn is pending, and may have begun -------------------------------------------------------------------------


def begun(state: Standing) -> tuple[Ledger, str | None]:
    """A spawn that may have begun, and what its keeper says is running."""
    return (starting(state), "spawn:1") if state is Standing.QUEUED else (starting(state), None)


@pytest.mark.parametrize("state", [Standing.QUEUED, *BEGUN])
def test_rows_while_the_spawn_may_have_begun_are_remembered_and_come_later_as_comments(state: Standing) -> None:
    ledger, running = begun(state)
    row = make.entry(2)
    view = make.view(row, running=running)
    assert not wants_thread(ledger, view, make.rules(), owed=True)

    meanwhile = decide(ledger, view, make.rules())
    assert meanwhile.events == ()
    assert recorded(meanwhile).poll.behind
    assert recorded(meanwhile).poll.pending == ledger.poll.pending
    assert recorded(meanwhile).poll.seen_comments == frozenset()

    live = make.ledger(seen=["comment:1", "spawn:1"], behind=True)
    assert wants_thread(live, make.view(), make.rules(), owed=False)
    later = decide(live, make.view(thread=(make.entry(1), row)), make.rules())
    assert [event.key for event in later.events] == ["comment:2"]
    assert not recorded(later).poll.behind


@pytest.mark.parametrize("state", [Standing.QUEUED, *BEGUN])
def test_thread_that_was_read_while_the_spawn_began_rebuilds_nothing(state: Standing) -> None:
    ledger, running = begun(state)
    view = make.view(make.entry(2), thread=(make.entry(1), make.entry(2)), running=running)

    decision = decide(ledger, view, make.rules())

    assert decision.events == ()
    assert recorded(decision).poll.pending == ledger.poll.pending
    assert recorded(decision).poll.behind


@pytest.mark.parametrize("state", [Standing.QUEUED, *BEGUN])
def test_old_rows_while_the_spawn_may_have_begun_are_no_news(state: Standing) -> None:
    ledger, running = begun(state)

    assert decide(ledger, make.view(make.entry(1), running=running), make.rules()).ledger is None


# --- stop, pause and label while the spawn is pending -----------------------------------------------------------------


@pytest.mark.parametrize(
    "state", [Standing.QUEUED, Standing.RELEASED, Standing.REFUSED, Standing.LATER, Standing.GAVE_UP, Standing.LOST]
)
def test_stop_when_the_spawn_was_not_begun_withdraws_it_without_a_close(state: Standing) -> None:
    row = make.entry(2, STOP)
    decision = decide(starting(state), make.view(row, thread=(make.entry(1), row)), make.rules())

    ledger = recorded(decision)
    assert (ledger.poll.phase, ledger.poll.reason, ledger.poll.pending) == (Phase.ENDED, "stopped", {})
    assert (decision.events, decision.withdrawn) == ((), {"spawn:1": 1})
    assert ledger.poll.seen_comments == {"comment:2"}


@pytest.mark.parametrize("state", [Standing.QUEUED, *BEGUN])
def test_stop_when_the_spawn_may_have_begun_closes_behind_it(state: Standing) -> None:
    ledger, running = begun(state)
    decision = decide(ledger, make.view(make.entry(2, STOP), running=running), make.rules())

    assert list(recorded(decision).poll.pending) == ["spawn:1", "close:1"]
    assert (recorded(decision).poll.phase, recorded(decision).poll.reason) == (Phase.ENDING, "stopped")
    assert (only_event(decision).key, only_event(decision).reason) == ("close:1", "stopped")
    assert decision.withdrawn == {}


def test_pause_when_the_spawn_is_pending_is_kept_over_its_rebuilding() -> None:
    row = make.entry(2, PAUSE)
    decision = decide(starting(), make.view(row, thread=(make.entry(1), row)), make.rules())

    assert recorded(decision).poll.paused
    assert recorded(decision).poll.phase is Phase.STARTING


def test_label_back_when_the_spawn_is_pending_reads_the_thread() -> None:
    away = starting(away=True)
    assert wants_thread(away, make.view(), make.rules(), owed=False)

    decision = decide(away, make.view(thread=(make.entry(1), make.entry(2))), make.rules())

    assert not recorded(decision).poll.away
    assert carried(decision) == ["comment:1", "comment:2"]


def test_label_gone_when_the_item_waits_is_remembered_so_that_a_start_word_is_not_missed() -> None:
    waiting = make.ledger(Phase.WAITING)
    gone = decide(waiting, make.view(presence=Presence.AWAY), make.rules()).ledger or waiting

    assert wants_thread(gone, make.view(item=make.item(author=make.STRANGER)), make.rules(), owed=False)


@pytest.mark.parametrize("presence", [Presence.LEFT, Presence.GONE])
def test_waiting_item_that_ends_is_ended_without_a_word(presence: Presence) -> None:
    decision = decide(make.ledger(Phase.WAITING), make.view(presence=presence), make.rules())

    assert (recorded(decision).poll.phase, recorded(decision).poll.reason) == (Phase.ENDED, "closed")
    assert decision.events == ()


def test_waiting_item_that_ended_and_is_listed_again_waits_again() -> None:
    ended = make.ledger(Phase.ENDED, g=0, reason="closed")
    item = make.item(author=make.STRANGER)
    assert wants_thread(ended, make.view(item=item), make.rules(), owed=False)

    decision = decide(ended, make.view(item=item, thread=[make.entry(1)]), make.rules())

    assert (recorded(decision).poll.phase, decision.events) == (Phase.WAITING, ())
