"""How items end, and start again (contract R6.5, R6.6)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from support import factories as make
from the_loop.core.decide import Decision, closing_event, decide, wants_thread
from the_loop.core.ledger import Ledger, Phase, Standing, after_receipt
from the_loop.core.model import Entry, Event, Presence

ENDS = (Presence.LEFT, Presence.GONE)
NOT_BEGUN = (Standing.QUEUED, Standing.RELEASED, Standing.REFUSED, Standing.LATER, Standing.GAVE_UP, Standing.LOST)
MAY_HAVE_BEGUN = (Standing.RUNNING, Standing.UNCERTAIN, Standing.HELD)


def recorded(decision: Decision) -> Ledger:
    assert decision.ledger is not None
    return decision.ledger


def keys(events: Sequence[Event]) -> list[str]:
    return [event.key for event in events]


def gone(ledger: Ledger, *thread: Entry, reason: str = "closed") -> Decision:
    return decide(ledger, make.view(presence=Presence.GONE, reason=reason, thread=thread), make.rules())


# --- before there is a session -------------------------------------------------------------------------------------


@pytest.mark.parametrize("presence", [Presence.AWAY, *ENDS])
def test_item_that_was_never_met_and_is_not_listed_is_nothing(presence: Presence) -> None:
    assert decide(None, make.view(make.entry(1), presence=presence), make.rules()) == Decision(None)


@pytest.mark.parametrize("presence", ENDS)
@pytest.mark.parametrize("state", NOT_BEGUN)
def test_item_that_closes_before_its_spawn_was_begun_gets_neither(state: Standing, presence: Presence) -> None:
    ledger = make.ledger(Phase.STARTING, queue={"spawn:1": make.pending("spawn:1", state, carries=("comment:1",))})
    assert not wants_thread(ledger, make.view(presence=presence), make.rules(), owed=True)

    decision = decide(ledger, make.view(presence=presence), make.rules())

    assert (decision.events, decision.withdrawn) == ((), {"spawn:1": 1})
    assert (recorded(decision).poll.phase, recorded(decision).poll.pending) == (Phase.ENDED, {})
    assert recorded(decision).poll.seen_comments == frozenset()


def test_item_that_is_gone_when_an_earlier_offer_of_its_spawn_may_have_arrived_is_closed() -> None:
    """Unknown, then refused: nobody can tell whether the first offer started a session."""
    spawn = make.pending("spawn:1", Standing.REFUSED, attempt=2, redelivery=True)
    ledger = make.ledger(Phase.STARTING, queue={"spawn:1": spawn})

    decision = gone(ledger)

    assert (list(recorded(decision).poll.pending), recorded(decision).poll.phase) == (["close:1"], Phase.ENDING)


@pytest.mark.parametrize("presence", ENDS)
@pytest.mark.parametrize("state", [Standing.QUEUED, *MAY_HAVE_BEGUN])
def test_item_that_closes_while_its_spawn_may_have_begun_waits_for_the_outcome(
    state: Standing, presence: Presence
) -> None:
    ledger = make.ledger(Phase.STARTING, queue={"spawn:1": make.pending("spawn:1", state)})
    running = "spawn:1" if state is Standing.QUEUED else None

    decision = decide(ledger, make.view(make.entry(2), presence=presence, running=running), make.rules())

    assert decision.events == ()
    assert recorded(decision).poll.phase is Phase.STARTING
    assert recorded(decision).poll.behind
    assert decide(ledger, make.view(presence=presence, running=running), make.rules()).ledger is None


def test_item_that_closed_while_its_spawn_ran_is_closed_after_the_receipt_with_its_last_words() -> None:
    starting = make.ledger(
        Phase.STARTING,
        queue={"spawn:1": make.pending("spawn:1", Standing.RUNNING, carries=("comment:1",))},
        behind=True,
    )
    live = after_receipt(starting, "spawn:1")
    view = make.view(presence=Presence.GONE)
    assert wants_thread(live, view, make.rules(), owed=False)

    decision = gone(live, make.entry(1), make.entry(2))

    assert keys(decision.events) == ["comment:2", "close:1"]
    assert list(recorded(decision).poll.pending) == ["comment:2", "close:1"]


# --- the last look -------------------------------------------------------------------------------------------------


def test_item_that_left_is_listened_to_and_not_closed_yet() -> None:
    decision = decide(make.ledger(), make.view(make.entry(1), presence=Presence.LEFT), make.rules())

    assert keys(decision.events) == ["comment:1"]
    assert recorded(decision).poll.phase is Phase.LIVE


def test_item_that_left_while_something_was_missed_reads_it_before_its_new_rows() -> None:
    """Else what came later would overtake what is still only in the thread."""
    behind = make.ledger(seen=["spawn:1"], behind=True)
    view = make.view(make.entry(2), presence=Presence.LEFT)

    if wants_thread(behind, view, make.rules(), owed=False):
        view = make.view(make.entry(2), presence=Presence.LEFT, thread=[make.entry(1), make.entry(2)])
    left = decide(behind, view, make.rules())
    after = decide(
        left.ledger or behind,
        make.view(presence=Presence.GONE, thread=[make.entry(1), make.entry(2)]),
        make.rules(),
    )

    assert list(recorded(after).poll.pending) == ["comment:1", "comment:2", "close:1"]


@pytest.mark.parametrize("presence", [Presence.LISTED, Presence.AWAY, Presence.LEFT, Presence.GONE])
def test_live_item_wants_its_thread_for_the_last_look(presence: Presence) -> None:
    wants = wants_thread(make.ledger(), make.view(presence=presence), make.rules(), owed=False)

    assert wants is (presence is Presence.GONE)


@pytest.mark.parametrize("reason", ["closed", "merged", "deleted", "transferred"])
def test_item_that_is_gone_is_closed_behind_everything_accepted(reason: str) -> None:
    ledger = make.ledger(queue=["comment:1"], seen=["spawn:1"])

    decision = gone(ledger, make.entry(1), make.entry(2), make.entry(3, author=make.STRANGER), reason=reason)

    after = recorded(decision)
    assert keys(decision.events) == ["comment:2", "close:1"]
    assert list(after.poll.pending) == ["comment:1", "comment:2", "close:1"]
    assert (after.poll.phase, after.poll.reason) == (Phase.ENDING, reason)
    assert decision.events[-1] == closing_event(after)
    assert decision.events[-1].to_json(attempt=1, redelivery=False)["reason"] == reason


def test_deleted_item_without_a_thread_is_closed_and_keeps_what_was_accepted() -> None:
    decision = gone(make.ledger(queue=["comment:1"]), reason="deleted")

    assert list(recorded(decision).poll.pending) == ["comment:1", "close:1"]


@pytest.mark.parametrize("flag", ["paused", "away"])
def test_paused_item_that_is_gone_is_closed_and_its_comments_flow(flag: str) -> None:
    state: dict[str, Any] = {flag: True}
    ledger = make.ledger(queue=["comment:1"], **state)

    after = recorded(gone(ledger, make.entry(1)))

    assert (after.poll.paused, after.poll.away) == (False, False)
    assert list(after.poll.pending) == ["comment:1", "close:1"]


def test_stop_word_among_the_last_words_closes_once() -> None:
    decision = gone(make.ledger(queue=["comment:1"]), make.entry(1), make.entry(2, "the-loop stop"))

    assert keys(decision.events) == ["close:1"]
    assert (recorded(decision).poll.reason, list(recorded(decision).poll.pending)) == ("stopped", ["close:1"])


@pytest.mark.parametrize("phase", [Phase.ENDING, Phase.ENDED])
@pytest.mark.parametrize("presence", [Presence.AWAY, *ENDS])
def test_item_that_ended_already_does_not_end_again(phase: Phase, presence: Presence) -> None:
    ledger = make.ledger(phase, reason="stopped")

    assert not wants_thread(ledger, make.view(presence=presence), make.rules(), owed=True)
    assert decide(ledger, make.view(make.entry(1), presence=presence), make.rules()).ledger is None


@pytest.mark.parametrize("presence", ENDS)
def test_open_item_that_is_only_away_is_not_closed(presence: Presence) -> None:
    away = recorded(decide(make.ledger(), make.view(presence=Presence.AWAY), make.rules()))
    assert away.poll.phase is Phase.LIVE

    assert recorded(gone(away)).poll.phase is Phase.ENDING if presence is Presence.GONE else True


# --- reopened ------------------------------------------------------------------------------------------------------


def test_item_that_is_listed_again_before_its_close_goes_on() -> None:
    left = decide(make.ledger(), make.view(make.entry(1), presence=Presence.LEFT), make.rules())

    back = decide(recorded(left), make.view(make.entry(2)), make.rules())

    assert keys(back.events) == ["comment:2"]
    assert (recorded(back).poll.phase, recorded(back).g) == (Phase.LIVE, 1)


def test_reopened_item_starts_again_with_its_thread_and_what_was_settled_stays_settled() -> None:
    ended = make.ledger(Phase.ENDED, reason="closed", seen=["spawn:1", "close:1", "comment:1"])
    assert wants_thread(ended, make.view(), make.rules(), owed=False)

    decision = decide(ended, make.view(thread=[make.entry(1), make.entry(2)]), make.rules())

    (event,) = decision.events
    after = recorded(decision)
    assert (event.key, after.g, after.poll.phase) == ("spawn:2", 2, Phase.STARTING)
    assert [entry.key for entry in event.thread] == ["comment:1", "comment:2"]
    assert after.poll.pending["spawn:2"].carries == ("comment:2",)
    assert after.poll.seen_comments == ended.poll.seen_comments

    live = after_receipt(after, "spawn:2")
    assert live.poll.seen_comments == ended.poll.seen_comments | {"spawn:2", "comment:2"}
    assert keys(decide(live, make.view(make.entry(1), make.entry(3)), make.rules()).events) == ["comment:3"]


def test_reopened_item_of_a_stranger_that_had_a_session_starts_again() -> None:
    ended = make.ledger(Phase.ENDED, reason="closed")

    decision = decide(ended, make.view(item=make.item(author=make.STRANGER), thread=()), make.rules())

    assert keys(decision.events) == ["spawn:2"]


def test_reopened_item_whose_close_is_still_pending_waits_for_it() -> None:
    ending = make.ledger(Phase.ENDING, reason="closed")
    assert not wants_thread(ending, make.view(make.entry(1)), make.rules(), owed=True)

    waiting = decide(ending, make.view(make.entry(1)), make.rules())
    assert (waiting.events, list(recorded(waiting).poll.pending)) == ((), ["close:1"])

    ended = after_receipt(recorded(waiting), "close:1")
    assert ended.poll.phase is Phase.ENDED
    again = decide(ended, make.view(thread=[make.entry(1)]), make.rules())
    assert (keys(again.events), recorded(again).g) == (["spawn:2"], 2)
    assert not recorded(again).poll.behind


def test_starts_are_counted_over_several_lives() -> None:
    ledger = make.ledger(Phase.ENDED, reason="closed", g=7)

    assert keys(decide(ledger, make.view(thread=()), make.rules()).events) == ["spawn:8"]
