"""What becomes of new entries once the session is live (contract R6.2, R6.3)."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from support import factories as make
from the_loop.core.decide import Decision, View, decide, wants_thread
from the_loop.core.guards import Rules
from the_loop.core.ledger import Ledger, Phase, Standing
from the_loop.core.model import Entry, Event, Kind, Presence

START, STOP, PAUSE, RESUME = (f"the-loop {word}" for word in ("start", "stop", "pause", "resume"))


def taken_up(*rows: Entry, ledger: Ledger | None = None, rules: Rules | None = None) -> Decision:
    return decide(ledger or make.ledger(), make.view(*rows), rules or make.rules())


def recorded(decision: Decision) -> Ledger:
    assert decision.ledger is not None
    return decision.ledger


def keys(events: Sequence[Event]) -> list[str]:
    return [event.key for event in events]


# --- one event per entry, in order ---------------------------------------------------------------------------------


def test_new_comment_becomes_one_pending_event() -> None:
    decision = taken_up(make.entry(1, "do it"))

    (event,) = decision.events
    assert (event.key, event.body, event.author, event.created_at) == ("comment:1", "do it", "alice", make.when(1))
    assert (event.title, event.url) == ("a title", f"{make.URL}#1")
    assert (event.thread, event.omitted, event.reason) == ((), 0, None)
    pending = recorded(decision).poll.pending["comment:1"]
    assert (pending.state, pending.attempt, pending.author) == (Standing.QUEUED, 1, "alice")
    assert recorded(decision).poll.seen_comments == frozenset()


@pytest.mark.parametrize(
    ("entries", "order"),
    [
        ([make.entry(2), make.entry(1)], ["comment:1", "comment:2"]),
        ([make.entry("10"), make.entry("9")], ["comment:9", "comment:10"]),
        ([make.entry("9000000001"), make.entry("999")], ["comment:999", "comment:9000000001"]),
        (
            [make.entry("5", created_at=make.when(9)), make.entry("7", created_at=make.when(2))],
            ["comment:7", "comment:5"],
        ),
        ([make.entry("b"), make.entry("a")], ["comment:a", "comment:b"]),
        ([make.entry("10.txt"), make.entry("2.txt")], ["comment:10.txt", "comment:2.txt"]),
        (
            [make.entry("4", kind=Kind.REVIEW_COMMENT), make.entry("3"), make.entry("5", kind=Kind.REVIEW)],
            ["comment:3", "review_comment:4", "review:5"],
        ),
    ],
    ids=["created", "numbers", "long numbers", "created before id", "names", "names are no numbers", "over kinds"],
)
def test_order_inside_one_answer_is_created_then_id(entries: list[Entry], order: list[str]) -> None:
    decision = taken_up(*entries)

    assert keys(decision.events) == order
    assert list(recorded(decision).poll.pending) == order


def test_order_does_not_depend_on_how_the_answer_was_ordered() -> None:
    entries = [make.entry(str(number), created_at=make.when(number % 4)) for number in range(1, 40)]
    expected = keys(taken_up(*entries).events)

    for seed in range(20):
        random.Random(seed).shuffle(entries)
        assert keys(taken_up(*entries).events) == expected


def test_new_entries_queue_behind_those_that_are_pending() -> None:
    decision = taken_up(make.entry(1), ledger=make.ledger(queue=["comment:5"]))

    assert list(recorded(decision).poll.pending) == ["comment:5", "comment:1"]


def test_kinds_are_streams_of_their_own_that_share_numbers() -> None:
    entries = [make.entry(9001, kind=kind) for kind in (Kind.COMMENT, Kind.REVIEW, Kind.REVIEW_COMMENT)]
    decision = taken_up(*entries, ledger=make.ledger(seen=["comment:9002"]))
    assert sorted(keys(decision.events)) == ["comment:9001", "review:9001", "review_comment:9001"]

    again = taken_up(*entries, ledger=make.ledger(seen=["comment:9001"]))
    assert sorted(keys(again.events)) == ["review:9001", "review_comment:9001"]


@pytest.mark.parametrize(
    "ledger",
    [
        make.ledger(seen=["comment:1"]),
        make.ledger(queue=["comment:1"]),
        make.ledger(queue={"comment:1": make.pending("comment:1", Standing.GAVE_UP, attempt=4)}),
        make.ledger(queue={"comment:1": make.pending("comment:1", Standing.HELD)}),
        make.ledger(queue={"comment:1": make.pending("comment:1", Standing.REFUSED, attempt=2)}),
    ],
    ids=["settled", "queued", "given up", "held", "refused"],
)
@pytest.mark.parametrize("as_thread", [False, True])
def test_known_entry_when_it_is_seen_again_is_nothing_new(ledger: Ledger, *, as_thread: bool) -> None:
    edited = make.entry(1, "other text than it was", created_at=make.when(500))
    view = make.view(edited, thread=[edited] if as_thread else None)

    assert decide(ledger, view, make.rules()) == Decision(None)


def test_rows_that_repeat_in_one_answer_are_taken_up_once() -> None:
    decision = taken_up(make.entry(1), make.entry(1), make.entry(2))

    assert keys(decision.events) == ["comment:1", "comment:2"]


def test_entries_that_repeat_in_one_thread_are_carried_once() -> None:
    """A page that shifted under the walk shows its last entry twice."""
    decision = decide(None, make.view(thread=[make.entry(1), make.entry(1), make.entry(2)]), make.rules())

    assert [entry.key for entry in decision.events[0].thread] == ["comment:1", "comment:2"]


def test_settled_entry_with_a_control_word_edited_into_it_is_not_obeyed() -> None:
    assert taken_up(make.entry(1, STOP), ledger=make.ledger(seen=["comment:1"])).ledger is None


# --- what is not for us --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (make.entry(1, author=make.STRANGER), "unauthorized"),
        (make.entry(1, author=None), "unauthorized"),
        (make.entry(1, STOP, author=make.STRANGER), "unauthorized"),
        (make.entry(1, f"told\n{make.MARKER}"), "own"),
        (make.entry(1, f"told\n{make.MARKER}\n \n", author=make.STRANGER), "own"),
        (make.entry(1, f"told\n{make.MARKER}", author=None), "own"),
    ],
)
def test_entry_that_is_not_for_us_is_settled_and_told(entry: Entry, reason: str) -> None:
    decision = taken_up(entry)

    assert decision.events == ()
    assert recorded(decision).poll.seen_comments == {"comment:1"}
    assert [(note.name, note.fields["reason"]) for note in decision.notes] == [("dispatch.dropped", reason)]


def test_renamed_entry_is_settled_and_told_as_an_edit() -> None:
    known = make.ledger(seen=["comment:old.txt"])

    decision = taken_up(make.entry("new.txt", renamed_from=("comment:old.txt",)), ledger=known)

    assert decision.events == ()
    assert recorded(decision).poll.seen_comments == {"comment:old.txt", "comment:new.txt"}
    assert [(note.name, note.fields["reason"]) for note in decision.notes] == [("poll.edited", "renamed")]


def test_renamed_entry_that_was_never_taken_up_is_new() -> None:
    decision = taken_up(make.entry("new.txt", renamed_from=("comment:old.txt",)))

    assert keys(decision.events) == ["comment:new.txt"]


def test_strange_entries_between_ours_cost_nothing_but_themselves() -> None:
    decision = taken_up(
        make.entry(1), make.entry(2, author=None), make.entry(3, ""), make.entry(4, author=make.STRANGER), make.entry(5)
    )

    assert keys(decision.events) == ["comment:1", "comment:3", "comment:5"]
    assert recorded(decision).poll.seen_comments == {"comment:2", "comment:4"}


def test_a_name_taken_off_the_list_is_not_served_any_more_and_one_put_on_it_is() -> None:
    row = make.entry(1, author="bob")

    assert keys(taken_up(row, rules=make.rules("alice", "bob")).events) == ["comment:1"]
    assert taken_up(row, rules=make.rules("alice")).events == ()


def test_truncated_entry_is_handed_over_as_such() -> None:
    (event,) = taken_up(make.entry(1, "", truncated=True)).events

    payload = event.to_json(attempt=2, redelivery=True)
    assert (payload["truncated"], payload["body"]) == (True, "")
    assert (payload["attempt"], payload["redelivery"], payload["deliveryId"]) == (2, True, f"{make.REF}/comment:1")


# --- when the whole thread is read ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ledger", "owed", "wants"),
    [
        (make.ledger(), False, False),
        (make.ledger(), True, True),
        (make.ledger(away=True), False, True),
        (make.ledger(behind=True), False, True),
        (make.ledger(paused=True), False, False),
    ],
)
def test_live_item_wants_its_thread_only_where_rows_may_have_been_missed(
    ledger: Ledger, *, owed: bool, wants: bool
) -> None:
    assert wants_thread(ledger, make.view(make.entry(1)), make.rules(), owed=owed) is wants


def test_thread_makes_events_of_what_is_not_settled_only() -> None:
    thread = [make.entry(number) for number in (1, 2, 3, 4)]
    ledger = make.ledger(seen=["comment:1", "comment:3"], queue=["comment:2"], behind=True)

    decision = decide(ledger, make.view(thread=thread), make.rules())

    assert keys(decision.events) == ["comment:4"]
    assert not recorded(decision).poll.behind


def test_rows_that_the_thread_does_not_show_yet_are_taken_up_as_well() -> None:
    """A list and a thread are answered by different replicas; a row that was seen once must not be lost."""
    view = make.view(make.entry(3), make.entry(2), thread=[make.entry(1), make.entry(2)])

    decision = decide(make.ledger(seen=["comment:1"], behind=True), view, make.rules())

    assert keys(decision.events) == ["comment:2", "comment:3"]


def test_rows_that_the_thread_does_not_show_yet_are_carried_by_a_first_spawn() -> None:
    view = make.view(make.entry(2), thread=[make.entry(1)])

    decision = decide(None, view, make.rules())

    assert [entry.key for entry in decision.events[0].thread] == ["comment:1", "comment:2"]


def test_item_behind_when_only_rows_are_there_stays_behind() -> None:
    """The caller may have no thread to give (a limit): what was missed must still be read one day."""
    decision = decide(make.ledger(behind=True), make.view(make.entry(1)), make.rules())

    assert (decision.ledger or make.ledger(behind=True)).poll.behind


# --- what lost its payload -----------------------------------------------------------------------------------------


def lost(**fields: object) -> Ledger:
    entry = make.pending("comment:1", Standing.LOST, **fields)
    return make.ledger(queue={"comment:1": entry, "comment:2": make.pending("comment:2")}, behind=True)


@pytest.mark.parametrize(
    ("redelivery", "state"), [(False, Standing.QUEUED), (True, Standing.UNCERTAIN)], ids=["never begun", "may have"]
)
def test_lost_event_is_read_again_keeps_its_place_and_its_history(*, redelivery: bool, state: Standing) -> None:
    ledger = lost(attempt=3, offer=5, redelivery=redelivery)
    assert wants_thread(ledger, make.view(), make.rules(), owed=False)

    decision = decide(ledger, make.view(thread=[make.entry(1), make.entry(2)]), make.rules())

    pending = recorded(decision).poll.pending
    assert list(pending) == ["comment:1", "comment:2"]
    assert (pending["comment:1"].state, pending["comment:1"].attempt, pending["comment:1"].offer) == (state, 3, 5)
    assert keys(decision.events) == ["comment:1"]


def test_lost_event_that_is_not_in_the_thread_any_more_is_dropped_and_told() -> None:
    decision = decide(lost(), make.view(thread=[make.entry(2)]), make.rules())

    assert list(recorded(decision).poll.pending) == ["comment:2"]
    assert recorded(decision).poll.seen_comments == {"comment:1"}
    assert [(note.name, note.fields["reason"]) for note in decision.notes] == [("dispatch.dropped", "deleted")]


# --- pause and label -----------------------------------------------------------------------------------------------


def test_paused_session_takes_new_comments_up() -> None:
    decision = taken_up(make.entry(1), ledger=make.ledger(paused=True))

    assert keys(decision.events) == ["comment:1"]
    assert recorded(decision).poll.paused


@pytest.mark.parametrize(
    ("words", "before", "after"),
    [
        ([PAUSE], False, True),
        ([RESUME], True, False),
        ([PAUSE, RESUME], False, False),
        ([RESUME, PAUSE], True, True),
        ([START], True, False),
        ([START], False, False),
        ([PAUSE], True, True),
    ],
)
def test_pause_and_resume_the_last_word_decides(words: list[str], *, before: bool, after: bool) -> None:
    rows = [make.entry(number, word) for number, word in enumerate(words, 1)]
    decision = taken_up(*rows, ledger=make.ledger(paused=before))

    assert recorded(decision).poll.paused is after
    assert (decision.events, recorded(decision).poll.pending) == ((), {})
    assert recorded(decision).poll.seen_comments == {row.key for row in rows}


def test_label_gone_pauses_once_and_takes_nothing_up() -> None:
    decision = decide(make.ledger(), make.view(make.entry(1), presence=Presence.AWAY), make.rules())

    assert (recorded(decision).poll.away, recorded(decision).poll.phase) == (True, Phase.LIVE)
    assert decision.events == ()
    again = decide(recorded(decision), make.view(make.entry(2), presence=Presence.AWAY), make.rules())
    assert again.ledger is None


def test_label_back_brings_what_was_written_meanwhile() -> None:
    away = make.ledger(seen=["comment:1"], away=True, paused=True)

    back = decide(away, make.view(thread=[make.entry(number) for number in (1, 2, 3)]), make.rules())

    assert keys(back.events) == ["comment:2", "comment:3"]
    assert (recorded(back).poll.away, recorded(back).poll.paused) == (False, True)


def test_label_back_without_a_thread_stays_behind_until_it_was_read() -> None:
    back = decide(make.ledger(away=True), make.view(make.entry(9)), make.rules())

    assert (recorded(back).poll.away, recorded(back).poll.behind) == (False, True)


@pytest.mark.parametrize("presence", [Presence.LEFT, Presence.GONE])
def test_label_gone_and_then_closed_and_reopened_misses_nothing(presence: Presence) -> None:
    """Unlabelled, commented, closed, reopened with the label: the comment is in no row any more."""
    view: View = make.view(presence=presence, thread=None if presence is Presence.LEFT else [make.entry(1)])
    left = decide(make.ledger(away=True), view, make.rules())

    if presence is Presence.GONE:
        assert keys(left.events) == ["comment:1", "close:1"]
    else:
        assert wants_thread(recorded(left), make.view(), make.rules(), owed=False)


def test_rows_of_a_stopping_session_are_remembered() -> None:
    decision = decide(make.ledger(Phase.ENDING, reason="stopped"), make.view(make.entry(1, START)), make.rules())

    assert decision.events == ()
    assert recorded(decision).poll.behind
    ended = make.ledger(Phase.ENDED, reason="stopped", behind=True)
    assert wants_thread(ended, make.view(), make.rules(), owed=False)
