"""Who may speak, which notices are our own, and which lines are control words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support import factories as make
from the_loop.core.guards import Dropped, Reading, Rules, Word, is_own_notice, phrases, read, read_text

MARK = make.MARKER
LINES = st.lists(st.sampled_from(["", "text", "> quoted", "```", "~~~", "    code", "the-loop stop", MARK, "\ttab"]))


# --- who may speak -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("listed", "folds", "author", "may"),
    [
        (["alice"], True, "alice", True),
        (["alice"], True, "AliCe", True),
        (["alice"], False, "AliCe", False),
        (["AliCe"], False, "AliCe", True),
        (["alice"], True, "alice2", False),
        (["alice"], True, "", False),
        (["alice"], True, None, False),
        ([], True, "alice", False),
        ([], True, None, False),
        (["none"], True, None, False),
        ([""], True, None, False),
    ],
)
def test_may_speak(listed: list[str], author: str | None, *, folds: bool, may: bool) -> None:
    rules = Rules(frozenset(listed), folds, {})

    assert rules.may_speak(author) is may


# --- own notices ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "own"),
    [
        (MARK, True),
        (f"told\n{MARK}", True),
        (f"told\n{MARK}\n\n  \n\t\n", True),
        (f"told\r\n{MARK}\r\n", True),
        (f"told\n   {MARK}  ", True),
        (f"told\n    {MARK}", False),
        (f"told\n\t{MARK}", False),
        (f"told\n> {MARK}", False),
        (f"told\n>{MARK}", False),
        (f"told\n```\n{MARK}", False),
        (f"told\n```\n{MARK}\n```", False),
        (f"```\ncode\n```\n{MARK}", True),
        (f"~~~\ncode\n~~~\n{MARK}", True),
        (f"```\ncode\n~~~\n{MARK}", False),
        (f"{MARK}\nand more", False),
        (f"text {MARK}", False),
        (f"{MARK} text", False),
        ("<!-- the-loop-->", False),
        ("", False),
        ("\n\n", False),
    ],
)
def test_own_notice_is_told_by_its_last_line(body: str, *, own: bool) -> None:
    assert is_own_notice(body) is own


def test_guards_come_in_their_order() -> None:
    own_of_a_stranger = make.entry(1, f"the-loop stop\n{MARK}", make.STRANGER)
    assert read(own_of_a_stranger, make.rules()) == Reading(Dropped.OWN)

    strangers_word = make.entry(1, "the-loop stop", make.STRANGER)
    assert read(strangers_word, make.rules()) == Reading(Dropped.UNAUTHORIZED)

    assert read(make.entry(1, "the-loop stop"), make.rules()).word is Word.STOP


# --- control words -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", list(Word))
@pytest.mark.parametrize(
    "shape", ["the-loop {}", "THE-LOOP {}", "  the-loop   {}  ", "the-loop\t{}", "\n\nThe-Loop {}\n"]
)
def test_word_alone_leaves_no_text(word: Word, shape: str) -> None:
    reading = read_text(shape.format(word), make.rules())

    assert (reading.word, reading.words, reading.text, reading.dropped) == (word, frozenset({word}), "", None)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("before\nthe-loop stop", "before"),
        ("the-loop stop\nafter", "after"),
        ("before\nthe-loop stop\nafter", "before\nafter"),
        ("before\n\nthe-loop stop\n\nafter", "before\n\n\nafter"),
        ("the-loop stop\n\n    the-loop stop", "    the-loop stop"),
        ("the-loop stop\n> the-loop pause", "> the-loop pause"),
    ],
)
def test_text_beside_a_word_is_kept(body: str, text: str) -> None:
    reading = read_text(body, make.rules())

    assert (reading.word, reading.text) == (Word.STOP, text)


@pytest.mark.parametrize(
    "body",
    [
        "say the-loop stop",
        "the-loop stop!",
        "`the-loop stop`",
        "> the-loop stop",
        "- the-loop stop",
        "    the-loop stop",
        " \tthe-loop stop",
        "```\nthe-loop stop\n```",
        "```python\nthe-loop stop",
        "~~~~\nthe-loop stop\n~~~\nthe-loop stop\n~~~~",
        "the-loop\nstop",
        "the-loop restop",
        "thе-loop stop",  # noqa: RUF001 (a look-alike letter)
        "",
    ],
)
def test_text_without_a_word_is_kept_as_it_is(body: str) -> None:
    reading = read_text(body, make.rules())

    assert (reading.words, reading.word, reading.text) == (frozenset(), None, body)


@pytest.mark.parametrize(
    "body",
    [
        "```\ncode\n```\nthe-loop stop",
        "~~~\n```\n~~~\nthe-loop stop",
        "```\n```\nthe-loop stop",
        "a\r\nthe-loop stop\r\n",
    ],
)
def test_word_after_a_fence_that_was_closed_counts(body: str) -> None:
    assert read_text(body, make.rules()).word is Word.STOP


@pytest.mark.parametrize("close", ["``", "``` not a closing one", "~~~", "    ```", "> ```"])
def test_fence_that_was_not_closed_goes_on(close: str) -> None:
    assert read_text(f"```\ncode\n{close}\nthe-loop stop", make.rules()).words == frozenset()


def test_two_different_words_are_ambiguous_and_the_same_twice_is_not() -> None:
    reading = read_text("the-loop stop\nthe-loop pause", make.rules())

    assert (reading.words, reading.word) == (frozenset({Word.STOP, Word.PAUSE}), None)
    assert read_text("the-loop stop\nthe-loop pause", make.rules()).word is None
    assert read_text("the-loop stop\ntext\nTHE-LOOP STOP", make.rules()).word is Word.STOP


def test_phrases_are_compared_folded() -> None:
    table = phrases("Los  Gehts", "STRASSE", "warte", "weiter")
    rules = Rules(frozenset({"alice"}), folds_case=True, words=table)

    assert read_text("los gehts", rules).word is Word.START
    assert read_text("straße", rules).word is Word.STOP


@given(LINES)
def test_reading_loses_no_text(lines: list[str]) -> None:
    """Whatever is no control word of its own arrives, in its order."""
    body = "\n".join(lines)
    reading = read_text(body, make.rules())

    if not reading.words:
        assert reading.text == body
    else:
        kept = [line for line in lines if "stop" not in line]
        left = [line for line in reading.text.split("\n") if "stop" not in line]
        assert [line.strip() for line in left if line.strip()] == [line.strip() for line in kept if line.strip()]


@given(LINES)
def test_quoting_a_whole_text_takes_every_word_out_of_it(lines: list[str]) -> None:
    quoted = "\n".join(f"> {line}" for line in lines)

    assert read_text(quoted, make.rules()).words == frozenset()
    assert not is_own_notice(quoted)


@given(st.text())
def test_any_text_can_be_read(body: str) -> None:
    reading = read_text(body, make.rules())

    assert reading.text == body or reading.words
    is_own_notice(body)
