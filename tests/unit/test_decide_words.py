"""Control words through the decision: who may say them, where, and what a last word undoes (contract R6.4)."""

from __future__ import annotations

import pytest

from support import factories as make
from the_loop.core.decide import Decision, decide, wants_thread
from the_loop.core.guards import Rules, phrases
from the_loop.core.ledger import Ledger, Phase, Standing
from the_loop.core.model import Entry

START, STOP, PAUSE, RESUME = (f"the-loop {word}" for word in ("start", "stop", "pause", "resume"))


def heard(*rows: Entry, ledger: Ledger | None = None, rules: Rules | None = None) -> Decision:
    return decide(ledger or make.ledger(), make.view(*rows), rules or make.rules())


def recorded(decision: Decision) -> Ledger:
    assert decision.ledger is not None
    return decision.ledger


def told(decision: Decision) -> list[tuple[str, str, str]]:
    return [(note.name, note.fields["key"], note.fields["reason"]) for note in decision.notes]


# --- one comment ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "rest"),
    [
        (PAUSE, None),
        (f"\n\n  {PAUSE}  \n", None),
        (f"first\n{PAUSE}\nlast", "first\nlast"),
        (f"{PAUSE}\n\nonly after", "only after"),
        ("THE-LOOP\t  Pause\r\nwith\r\nCRLF", "with\nCRLF"),
        (f"{PAUSE}\n{PAUSE}", None),
        (f"{PAUSE}\n> {STOP}", f"> {STOP}"),
        (f"{PAUSE}\n```\n{STOP}\n```", f"```\n{STOP}\n```"),
    ],
)
def test_word_on_a_line_of_its_own_is_obeyed_and_only_other_text_is_handed_over(body: str, rest: str | None) -> None:
    decision = heard(make.entry(1, body))

    assert recorded(decision).poll.paused
    assert [event.body for event in decision.events] == ([] if rest is None else [rest])
    assert ("comment:1" in recorded(decision).poll.seen_comments) is (rest is None)
    assert told(decision) == [("control.applied", "comment:1", "pause")]


@pytest.mark.parametrize(
    "body",
    [
        f"please {PAUSE}",
        f"{PAUSE} now",
        f"{PAUSE}.",
        f"> {PAUSE}",
        f">{PAUSE}",
        f"   > {PAUSE}",
        f"    {PAUSE}",
        f"\t{PAUSE}",
        f"```\n{PAUSE}\n```",
        f"~~~\n{PAUSE}\n~~~",
        f"```sh\n{PAUSE}",
        f"````\n```\n{PAUSE}\n```\n````",
        f"```\n~~~\n{PAUSE}\n```",
        "the-loop pausé",
        "the-looppause",
        "pause",
    ],
)
def test_word_that_is_quoted_fenced_indented_or_part_of_a_line_is_text(body: str) -> None:
    decision = heard(make.entry(1, body))

    assert not recorded(decision).poll.paused
    assert [event.body for event in decision.events] == [body]
    assert decision.notes == ()


@pytest.mark.parametrize(("body", "rest"), [(f"{PAUSE}\n{STOP}", None), (f"either\n{START}\nor\n{STOP}", "either\nor")])
def test_two_different_words_in_one_comment_are_neither(body: str, rest: str | None) -> None:
    decision = heard(make.entry(1, body))

    ledger = recorded(decision)
    assert (ledger.poll.phase, ledger.poll.paused) == (Phase.LIVE, False)
    assert [event.body for event in decision.events] == ([] if rest is None else [rest])
    assert [note.name for note in decision.notes] == ["control.ambiguous"]


@pytest.mark.parametrize("author", [make.STRANGER, None])
@pytest.mark.parametrize("word", [START, STOP, PAUSE, RESUME, f"{STOP}\n{PAUSE}"])
def test_word_of_a_stranger_is_not_heard(word: str, author: str | None) -> None:
    decision = heard(make.entry(1, word, author), ledger=make.ledger(paused=True))

    assert (recorded(decision).poll.phase, recorded(decision).poll.paused) == (Phase.LIVE, True)
    assert told(decision) == [("dispatch.dropped", "comment:1", "unauthorized")]
    assert decision.notes[0].fields["author"] == author


def test_word_in_an_own_notice_is_not_heard() -> None:
    decision = heard(make.entry(1, f"{STOP}\n\n{make.MARKER}"))

    assert recorded(decision).poll.phase is Phase.LIVE
    assert told(decision) == [("dispatch.dropped", "comment:1", "own")]


def test_words_can_be_configured() -> None:
    rules = Rules(frozenset({"alice"}), True, phrases("go", "halt  now", "hold", "on"))

    assert recorded(heard(make.entry(1, "Halt Now"), rules=rules)).poll.phase is Phase.ENDING
    assert [event.body for event in heard(make.entry(1, STOP), rules=rules).events] == [STOP]


def test_words_and_text_in_one_answer_keep_their_places() -> None:
    decision = heard(make.entry(3, RESUME), make.entry(1, PAUSE), make.entry(2), make.entry(4))

    assert [event.key for event in decision.events] == ["comment:2", "comment:4"]
    assert not recorded(decision).poll.paused
    assert [key for _, key, _ in told(decision)] == ["comment:1", "comment:3"]


def test_word_with_text_is_obeyed_once_even_when_its_entry_is_read_again() -> None:
    """Its text is pending and could be lost or withdrawn: the word itself must not act twice."""
    row = make.entry(1, f"{PAUSE}\ntext")
    paused = recorded(heard(row))
    resumed = recorded(heard(make.entry(2, RESUME), ledger=paused))
    assert not resumed.poll.paused

    entry = make.pending("comment:1", Standing.LOST)
    lost = make.ledger(queue={"comment:1": entry}, obeyed=frozenset({"comment:1"}), seen=["comment:2"], behind=True)
    again = decide(lost, make.view(thread=[row, make.entry(2, RESUME)]), make.rules())

    assert not recorded(again).poll.paused
    assert [event.body for event in again.events] == ["text"]


# --- stop ----------------------------------------------------------------------------------------------------------

NOT_BEGUN = (Standing.QUEUED, Standing.RELEASED, Standing.REFUSED, Standing.LATER, Standing.GAVE_UP, Standing.LOST)
MAY_HAVE_BEGUN = (Standing.RUNNING, Standing.UNCERTAIN, Standing.HELD)


def test_stop_closes_a_live_session() -> None:
    decision = heard(make.entry(1, STOP))

    (event,) = decision.events
    assert (event.key, event.reason, event.url, event.title) == ("close:1", "stopped", make.URL, "a title")
    assert (event.author, event.body, event.thread) == (None, "", ())
    ledger = recorded(decision)
    assert (ledger.poll.phase, ledger.poll.reason) == (Phase.ENDING, "stopped")
    assert list(ledger.poll.pending) == ["close:1"]
    assert ledger.poll.seen_comments == {"comment:1"}


@pytest.mark.parametrize("state", NOT_BEGUN)
def test_stop_withdraws_what_has_not_begun(state: Standing) -> None:
    queue = {"comment:5": make.pending("comment:5", state, attempt=2), "comment:6": make.pending("comment:6")}
    before = make.ledger(queue=queue, comment_attempts={"comment:5": 1})

    decision = heard(make.entry(7, STOP), ledger=before)

    ledger = recorded(decision)
    assert list(ledger.poll.pending) == ["close:1"]
    assert set(decision.withdrawn) == {"comment:5", "comment:6"}
    assert ledger.poll.seen_comments == {"comment:7"}
    assert ledger.poll.comment_attempts == {}


@pytest.mark.parametrize("state", MAY_HAVE_BEGUN)
def test_stop_keeps_what_may_have_begun_in_front_of_the_close(state: Standing) -> None:
    queue = {"comment:5": make.pending("comment:5", state), "comment:6": make.pending("comment:6")}

    decision = heard(make.entry(7, STOP), ledger=make.ledger(queue=queue))

    assert list(recorded(decision).poll.pending) == ["comment:5", "close:1"]
    assert decision.withdrawn == {"comment:6": 1}


def test_stop_keeps_what_runs_right_now_in_front_of_the_close() -> None:
    before = make.ledger(queue=["comment:5", "comment:6"])

    decision = decide(before, make.view(make.entry(7, STOP), running="comment:5"), make.rules())

    assert list(recorded(decision).poll.pending) == ["comment:5", "close:1"]


def test_stop_when_an_earlier_offer_of_the_spawn_may_have_arrived_closes() -> None:
    """Unknown, then refused: nobody can tell whether the first offer started a session."""
    spawn = make.pending("spawn:1", Standing.REFUSED, attempt=2, redelivery=True)
    row = make.entry(7, STOP)

    decision = decide(make.ledger(Phase.STARTING, queue={"spawn:1": spawn}), make.view(row, thread=[row]), make.rules())

    assert (list(recorded(decision).poll.pending), recorded(decision).poll.phase) == (["close:1"], Phase.ENDING)
    assert decision.withdrawn == {"spawn:1": 1}


def test_stop_takes_nothing_up_that_came_with_it() -> None:
    decision = heard(make.entry(1), make.entry(2, STOP), make.entry(3))

    ledger = recorded(decision)
    assert [event.key for event in decision.events] == ["close:1"]
    assert ledger.poll.seen_comments == {"comment:2"}


def test_stop_flows_over_a_pause() -> None:
    assert not recorded(heard(make.entry(1, STOP), ledger=make.ledger(paused=True))).poll.paused


@pytest.mark.parametrize(("words", "stops"), [([STOP, START], False), ([START, STOP], True), ([STOP, PAUSE], True)])
def test_last_word_of_one_answer_decides(words: list[str], *, stops: bool) -> None:
    rows = [make.entry(number, word) for number, word in enumerate(words, 1)]
    decision = heard(*rows, ledger=make.ledger(queue=["comment:9"]))

    assert (recorded(decision).poll.phase is Phase.ENDING) is stops
    assert ("comment:9" in recorded(decision).poll.pending) is not stops


@pytest.mark.parametrize("word", [PAUSE, RESUME, STOP])
def test_other_words_after_a_stop_start_nothing(word: str) -> None:
    stopped = make.ledger(Phase.ENDED, reason="stopped")
    row = make.entry(1, word)

    assert not wants_thread(stopped, make.view(row), make.rules(), owed=False)
    decision = decide(stopped, make.view(row, thread=[row]), make.rules())

    assert decision.events == ()
    assert recorded(decision).poll.phase is Phase.ENDED


# --- start after stop ----------------------------------------------------------------------------------------------


def test_start_after_stop_is_a_spawn_of_the_next_start_with_the_thread() -> None:
    stopped = make.ledger(
        Phase.ENDED, reason="stopped", seen=["spawn:1", "close:1", "comment:1", "comment:3"], obeyed=frozenset({"body"})
    )
    thread = [make.entry(1), make.entry(2), make.entry(3, STOP), make.entry(4), make.entry(5, START)]
    assert wants_thread(stopped, make.view(*thread[3:]), make.rules(), owed=False)

    decision = decide(stopped, make.view(*thread[3:], thread=thread), make.rules())

    (event,) = decision.events
    ledger = recorded(decision)
    assert (event.key, ledger.g, ledger.poll.phase, ledger.poll.reason) == ("spawn:2", 2, Phase.STARTING, "")
    assert [entry.key for entry in event.thread] == ["comment:1", "comment:2", "comment:4"]
    assert ledger.poll.pending["spawn:2"].carries == ("comment:2", "comment:4")
    assert ledger.poll.seen_comments >= stopped.poll.seen_comments | {"comment:5"}


def test_start_after_stop_takes_the_items_present_title() -> None:
    stopped = make.ledger(Phase.ENDED, reason="stopped")
    row = make.entry(1, START)
    view = make.view(row, item=make.item(title="another", url="https://github.example/x"), thread=[row])

    ledger = recorded(decide(stopped, view, make.rules()))

    assert (ledger.title, ledger.url) == ("another", "https://github.example/x")


def test_start_by_a_stranger_after_stop_starts_nothing() -> None:
    stopped = make.ledger(Phase.ENDED, reason="stopped")
    row = make.entry(1, START, make.STRANGER)

    assert not wants_thread(stopped, make.view(row), make.rules(), owed=False)
    assert decide(stopped, make.view(row, thread=[row]), make.rules()).events == ()


def test_stopped_item_that_is_closed_and_reopened_stays_stopped() -> None:
    stopped = make.ledger(Phase.ENDED, reason="stopped")

    decision = decide(stopped, make.view(thread=[make.entry(1)]), make.rules())

    assert (decision.ledger, decision.events) == (None, ())


def test_start_word_while_the_stop_is_still_under_way_starts_afterwards() -> None:
    ending = make.ledger(Phase.ENDING, reason="stopped", seen=["comment:1"])
    row = make.entry(2, START)
    remembered = recorded(decide(ending, make.view(row), make.rules()))
    assert list(remembered.poll.pending) == ["close:1"]

    ended = make.ledger(Phase.ENDED, reason="stopped", seen=["comment:1", "close:1"], behind=remembered.poll.behind)
    assert wants_thread(ended, make.view(), make.rules(), owed=False)
    decision = decide(ended, make.view(thread=[make.entry(1, STOP), row]), make.rules())

    assert [event.key for event in decision.events] == ["spawn:2"]
