"""What becomes of an item that has no session yet: first sight, and waiting for the start word (contract R6.1)."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from support import factories as make
from the_loop.core.decide import Decision, decide, wants_thread
from the_loop.core.guards import Rules
from the_loop.core.ledger import Ledger, Phase, Standing
from the_loop.core.model import ENTRY_LIMIT, THREAD_LIMIT, Entry, Event, Kind, Presence

START, STOP, PAUSE, RESUME = (f"the-loop {word}" for word in ("start", "stop", "pause", "resume"))


def first_sight(*thread: Entry, rules: Rules | None = None, **item: object) -> Decision:
    return decide(None, make.view(item=make.item(**item), thread=thread), rules or make.rules())


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


# --- first sight ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("presence", list(Presence))
def test_wants_thread_when_item_is_new_only_where_it_is_listed(presence: Presence) -> None:
    wants = wants_thread(None, make.view(presence=presence), make.rules(), owed=False)

    assert wants is (presence is Presence.LISTED)


def test_first_sight_without_its_thread_decides_nothing() -> None:
    assert decide(None, make.view(make.entry(1)), make.rules()) == Decision(None)


def test_listed_item_without_its_row_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match="without its item"):
        decide(None, make.view(item=None, thread=()), make.rules())


def test_first_sight_hands_over_the_item_with_its_thread_in_order() -> None:
    decision = first_sight(make.entry(3), make.entry(1), make.entry(2))

    event = only_event(decision)
    assert (event.key, event.kind, event.ref) == ("spawn:1", Kind.SPAWN, make.REF)
    assert (event.title, event.body, event.url) == ("a title", "the item's own text", make.URL)
    assert (event.author, event.reason) == (make.PERSON, None)
    assert [entry.body for entry in event.thread] == ["text 1", "text 2", "text 3"]
    assert (recorded(decision).poll.phase, recorded(decision).g) == (Phase.STARTING, 1)


def test_first_sight_settles_nothing_of_what_it_carries_before_the_receipt() -> None:
    ledger = recorded(first_sight(make.entry(1), make.entry(2)))

    spawn = ledger.poll.pending["spawn:1"]
    assert spawn.carries == ("comment:1", "comment:2")
    assert (spawn.attempt, spawn.state) == (1, Standing.QUEUED)
    assert ledger.poll.seen_comments == frozenset()


def test_first_sight_leaves_out_and_counts_what_strangers_wrote() -> None:
    thread = [
        make.entry(1),
        make.entry(2, author=make.STRANGER),
        make.entry(3, author=None),
        make.entry(4, f"a notice\n\n{make.MARKER}"),
        make.entry(5, START),
    ]
    decision = first_sight(*thread)

    assert carried(decision) == ["comment:1"]
    assert only_event(decision).omitted == 2
    assert recorded(decision).poll.seen_comments == {f"comment:{number}" for number in (2, 3, 4, 5)}
    assert recorded(decision).poll.pending["spawn:1"].carries == ("comment:1",)


@pytest.mark.parametrize("author", [make.STRANGER, None])
def test_first_sight_when_author_is_not_authorised_waits(author: str | None) -> None:
    decision = first_sight(make.entry(1), make.entry(2, author=make.STRANGER), author=author)

    assert decision.events == ()
    ledger = recorded(decision)
    assert (ledger.poll.phase, ledger.g) == (Phase.WAITING, 0)
    assert (ledger.poll.seen_comments, ledger.poll.pending) == (frozenset(), {})


@pytest.mark.parametrize(
    ("listed", "author", "folds", "starts"),
    [
        ("alice", "Alice", True, True),
        ("alice", "ALICE", True, True),
        ("alice", "Alice", False, False),
        ("alice", "alice ", True, False),
        ("alice", "alic", True, False),
        ("alice", "", True, False),
    ],
)
def test_author_is_compared_by_the_rules_of_its_source(*, listed: str, author: str, folds: bool, starts: bool) -> None:
    decision = first_sight(author=author, rules=make.rules(listed, folds_case=folds))

    assert bool(decision.events) is starts


def test_first_sight_of_a_truncated_item_says_so() -> None:
    decision = first_sight(make.entry(1, "", truncated=True), body="", truncated=True)

    payload = only_event(decision).to_json(attempt=1, redelivery=False)
    assert payload["truncated"] is True
    assert payload["thread"] == [
        {"id": "1", "kind": "comment", "author": "alice", "url": f"{make.URL}#1", "truncated": True}
    ]
    assert recorded(decision).poll.pending["spawn:1"].carries == ("comment:1",)


def test_thread_over_its_limit_is_carried_without_bodies() -> None:
    body = "x" * (ENTRY_LIMIT - 1)
    entries = [make.entry(number, body) for number in range(1, THREAD_LIMIT // ENTRY_LIMIT + 2)]
    decision = first_sight(*entries)

    payload = only_event(decision).to_json(attempt=1, redelivery=False)
    assert {row.get("truncated") for row in payload["thread"]} == {True}
    assert len(json.dumps(payload)) < ENTRY_LIMIT
    assert recorded(decision).poll.pending["spawn:1"].carries == tuple(entry.key for entry in entries)


def test_thread_up_to_its_limit_is_carried_whole() -> None:
    body = "x" * ENTRY_LIMIT
    decision = first_sight(*(make.entry(number, body) for number in range(1, THREAD_LIMIT // ENTRY_LIMIT + 1)))

    assert {entry["body"] for entry in only_event(decision).to_json(attempt=1, redelivery=False)["thread"]} == {body}


# --- waiting for the start word ---------------------------------------------------------------------------------------


def test_waiting_item_when_only_text_comes_reads_no_thread() -> None:
    waiting = make.ledger(Phase.WAITING)
    stranger = make.item(author=make.STRANGER)

    assert not wants_thread(waiting, make.view(make.entry(1), item=stranger), make.rules(), owed=False)
    assert decide(waiting, make.view(make.entry(1), item=stranger), make.rules()).ledger is None


def test_waiting_item_when_an_authorised_person_says_start_starts_with_its_thread() -> None:
    waiting = make.ledger(Phase.WAITING)
    rows = (make.entry(1), make.entry(2, author=make.STRANGER), make.entry(3, START))
    view = make.view(rows[-1], item=make.item(author=make.STRANGER))

    assert wants_thread(waiting, view, make.rules(), owed=False)
    decision = decide(waiting, make.view(rows[-1], item=view.item, thread=rows), make.rules())

    assert (carried(decision), only_event(decision).omitted) == (["comment:1"], 1)
    assert (only_event(decision).key, only_event(decision).author) == ("spawn:1", make.STRANGER)
    assert recorded(decision).poll.seen_comments == {"comment:2", "comment:3"}
    assert told(decision) == ["control.applied"]


def test_waiting_item_when_a_stranger_says_start_waits_on() -> None:
    waiting = make.ledger(Phase.WAITING, reason=f"its author '{make.STRANGER}' is not authorised")
    rows = (make.entry(1, START, make.STRANGER), make.entry(2, START, None))
    item = make.item(author=make.STRANGER, body=START)

    assert not wants_thread(waiting, make.view(*rows, item=item), make.rules(), owed=False)
    assert decide(waiting, make.view(item=item, thread=rows), make.rules()) == Decision(None)


def test_waiting_item_when_its_author_gets_authorised_starts_by_itself() -> None:
    waiting = make.ledger(Phase.WAITING)

    assert wants_thread(waiting, make.view(), make.rules(), owed=False)
    assert only_event(decide(waiting, make.view(thread=()), make.rules())).key == "spawn:1"


@pytest.mark.parametrize(
    ("body", "thread", "starts"),
    [
        ("please do", [], False),
        ("please do", [make.entry(1, "some text")], False),
        ("please do", [make.entry(1, START)], True),
        ("please do", [make.entry(1, START, make.STRANGER)], False),
        (f"please do\n{START}", [], True),
        (f"{START}\n", [make.entry(1, STOP)], False),
        ("please do", [make.entry(1, PAUSE), make.entry(2, RESUME)], False),
    ],
)
def test_first_sight_when_a_start_word_is_required(body: str, thread: Sequence[Entry], *, starts: bool) -> None:
    decision = first_sight(*thread, rules=make.rules(require_start=True), body=body)

    assert bool(decision.events) is starts
    assert recorded(decision).poll.phase.has_queue is starts


def test_word_in_the_items_own_text_is_obeyed_once_and_not_handed_over() -> None:
    decision = first_sight(body=f"please do\n\n{PAUSE}\n")

    assert only_event(decision).body == "please do"
    assert recorded(decision).poll.paused
    resumed = decide(recorded(decision), make.view(make.entry(1, RESUME)), make.rules())
    assert not recorded(resumed).poll.paused
    again = make.view(make.entry(2), item=make.item(body=PAUSE), thread=(make.entry(1, RESUME), make.entry(2)))
    assert not recorded(decide(recorded(resumed), again, make.rules())).poll.paused


# --- words before first sight -----------------------------------------------------------------------------------------


WORDS_BEFORE = [
    ([PAUSE], Phase.STARTING, True),
    ([PAUSE, RESUME], Phase.STARTING, False),
    ([RESUME], Phase.STARTING, False),
    ([RESUME, PAUSE], Phase.STARTING, True),
    ([STOP], Phase.ENDED, False),
    ([STOP, START], Phase.STARTING, False),
    ([START, STOP], Phase.ENDED, False),
    ([STOP, START, PAUSE], Phase.STARTING, True),
    ([PAUSE, START], Phase.STARTING, False),
    ([STOP, RESUME], Phase.ENDED, False),
]


@pytest.mark.parametrize(("words", "phase", "paused"), WORDS_BEFORE)
@pytest.mark.parametrize("shuffled", [False, True])
def test_words_before_first_sight_are_applied_in_thread_order(
    words: list[str], phase: Phase, *, paused: bool, shuffled: bool
) -> None:
    thread = [make.entry(number, word) for number, word in enumerate(words, 1)]
    decision = first_sight(*(reversed(thread) if shuffled else thread))

    ledger = recorded(decision)
    assert (ledger.poll.phase, ledger.poll.paused) == (phase, paused)
    assert bool(decision.events) is (phase is Phase.STARTING)
    assert ledger.poll.seen_comments == {entry.key for entry in thread}
    assert told(decision) == ["control.applied"] * len(words)


def test_stop_before_first_sight_makes_neither_spawn_nor_close_and_a_later_start_starts() -> None:
    stopped = first_sight(make.entry(1), make.entry(2, STOP))
    assert (stopped.events, recorded(stopped).poll.pending) == ((), {})
    assert recorded(stopped).poll.reason == "stopped"

    thread = (make.entry(1), make.entry(2, STOP), make.entry(3), make.entry(4, START))
    assert not wants_thread(recorded(stopped), make.view(thread[2]), make.rules(), owed=False)
    assert wants_thread(recorded(stopped), make.view(*thread[2:]), make.rules(), owed=False)
    started = decide(recorded(stopped), make.view(*thread[2:], thread=thread), make.rules())

    assert (only_event(started).key, carried(started)) == ("spawn:1", ["comment:1", "comment:3"])


def test_word_with_text_beside_it_is_obeyed_and_the_text_carried() -> None:
    decision = first_sight(make.entry(1, f"wait a bit\n{PAUSE}\nI am not done"))

    assert recorded(decision).poll.paused
    assert only_event(decision).thread[0].body == "wait a bit\nI am not done"
    assert recorded(decision).poll.pending["spawn:1"].carries == ("comment:1",)


def test_two_words_in_one_comment_are_neither_and_the_text_is_carried() -> None:
    decision = first_sight(make.entry(1, f"{STOP}\n{PAUSE}\nor what?"), make.entry(2, f"{STOP}\n{PAUSE}"))

    ledger = recorded(decision)
    assert (ledger.poll.phase, ledger.poll.paused) == (Phase.STARTING, False)
    assert told(decision) == ["control.ambiguous", "control.ambiguous"]
    assert [entry.body for entry in only_event(decision).thread] == ["or what?"]
    assert ledger.poll.seen_comments == {"comment:2"}
