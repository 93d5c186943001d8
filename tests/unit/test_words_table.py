"""What GitHub shows of a text, and what of it is a control word or our own mark (contract R6.3, R6.4; FAULTS D1 to D5).

The rules are those of CommonMark 0.31 and GFM, named by their sections. `S` stands for `the-loop stop`.
"""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support import factories as make
from the_loop.core.guards import OWN_MARKER, Word, is_own_notice, read_text
from the_loop.core.markdown import LIMIT, shown

S = "the-loop stop"
RULES = make.rules()

WORDS = [
    # a line of its own
    S,
    f"  {S}  ",
    f"   {S}",
    S.upper(),
    "The-Loop  Stop",
    f"please\n{S}\nthanks",
    f"please\n\n{S}\n\nthanks",
    f"{S}\r\nthanks",
    f"thanks\r{S}",
    f"\n\n{S}",
    # paragraph continuation: an indented line cannot interrupt a paragraph (4.4)
    f"please\n    {S}",
    f"please\n\t{S}",
    # fences: closed (4.5), and what only looks like one
    f"```\ncode\n```\n{S}",
    f"~~~\ncode\n~~~\n{S}",
    f"```` \n```\n````\n{S}",
    f"``` code ```\n{S}",  # no backtick in the info string: code in a line
    f"```inline```\n{S}\n",
    f"``x``\n{S}",
    f"   ```\ncode\n  ```\n{S}",
    f"text ```\n{S}",
    # code in a line (6.1): without its like a run is text
    f"a ` b\n{S}",
    f"a `` b ` c\n{S}",
    f"`a` b\n{S}\n`c`",
    f"\\`a\n{S}\n`",
    f"``a`\n{S}",
    # lists (5.2): a paragraph in an item is shown, so is what follows the list
    f"- one\n- two\n\n{S}",
    f"- one\n\n  {S}",
    f"- one\n{S}",  # a lazy line of the item's paragraph
    f"1. one\n\n   {S}",
    f"* one\n\n\n{S}",
    f"- ```\n  code\n  ```\n\n{S}",
    f"- ```\n  code\n\n{S}",  # the end of the item ends its fence
    # quotations (5.1) that are over
    f"> quoted\n\n{S}",
    f"> quoted\n>\n{S}",  # the quoted paragraph ended: not lazy
    f"> # quoted\n{S}",
    f"> ```\n> code\n{S}",
    # headings and rules
    f"# heading\n{S}",
    f"---\n{S}",
    f"***\n{S}\n",
    f"{S}\n---",  # a heading by its underline (4.3)
    f"{S}\n===",
    # HTML (4.6, 6.6) that is over
    f"<!-- hidden -->\n{S}",
    f"<!-- a\nb -->\n\n{S}",
    f"<pre>\ncode\n</pre>\n{S}",
    f"<details>\n\n{S}\n\n</details>",
    f"<b>bold</b> text\n{S}",
    f"text <code>x</code>\n{S}",
    f"a < b\n{S}",
    f"text <!-- not closed\n{S}",
    f"use `<code>` here\n{S}",
    f"use \\<code> here\n{S}",
    f"<code>\n\nx\n\n</code>\n\n{S}",
    # tables (GFM) that are over
    f"| a |\n|---|\n| b |\n\n{S}",
    f"a | b\n{S}",  # no table without its delimiter row
    # link definitions (4.7) and links
    f"[a]: https://example.org\n{S}",
    f"[a](b)\n{S}",
    # what cannot be seen
    f"\ufeff{S}",
    f"\u200b{S}\u200b",
    f"{S}\u2060",
    "the-loop\u00a0stop",
    "the-\u00adloop stop",
    f"\u202a{S}\u202c",
    f"{S}\ufe0f",
    "the-loop \u200dstop",
    f"\u3000{S}",
    # mail: what is above the old one
    f"{S}\n\nFrom: Bob <bob@x>\nSent: Monday\nTo: Alice\nSubject: Re: it\n\nold text",
    f"{S}\n\nOn Mon, 1 Jan 2026 at 10:00, Bob <bob@x> wrote:\n> old",
    f"{S}\n-----Original Message-----\nFrom: x",
    # not a mail
    f"From: the start\n{S}",
    f"On the whole I wrote: it is fine\n{S}",
    f"Subject: a thing\n\n{S}",
]
NO_WORDS = [
    "",
    "\n",
    "please the-loop stop now",
    f"{S}.",
    f"{S} please",
    f"`{S}`",
    f"**{S}**",
    f"- {S}",
    f"1. {S}",
    f"# {S}",
    "the-loop  -stop",
    # quotations, also a line that goes on without its mark (5.1, laziness)
    f"> {S}",
    f"> please\n{S}",
    f">> please\n> {S}",
    f"> - a\n{S}",
    f"- > a\n{S}",
    f"   > {S}",
    # a fence (4.5)
    f"```\n{S}\n```",
    f"```\n{S}",
    f"~~~ sh\n{S}\n~~~",
    f"````\n```\n{S}\n````",
    f"```\n~~~\n{S}\n```",
    f"  ```\n{S}\n  ```",
    f"text\n```\n{S}\n```",
    f"```\ncode\n``` no end\n{S}\n```",
    # fences in items of lists, and behind them (5.2)
    f"- ```\n  {S}\n  ```",
    f"- a\n  ```\n  {S}\n  ```",
    f"1. ```\n   code\n   {S}\n   ```",
    f"- ```\n  {S}",
    # indented code (4.4)
    f"    {S}",
    f"\t{S}",
    f"please\n\n    {S}",
    f"- a\n\n      {S}",
    # code in a line that goes over lines (6.1)
    f"a `b\n{S}\nc` d",
    f"a ``b\n{S}\nc`` d",
    # HTML: comments, code, and what is raw (4.6)
    f"<!--\n{S}\n-->",
    f"<!-- a\n\n{S}\n\n-->",
    f"<!--\n{S}",
    f"text <!--\n{S}\n--> text",
    f"<pre>\n{S}\n</pre>",
    f"<pre>\n\n{S}\n</pre>",
    f"<code>\n{S}\n</code>",
    f"text <code>\n{S}\n</code>",
    f"text <CODE>\n{S}",
    f"<div>\n{S}\n</div>",
    f"<script>\n{S}\n</script>",
    f"<details>\n{S}\n</details>",
    f"<code>\n\n{S}\n\n</code>",
    f"<blockquote>\n\n{S}\n\n</blockquote>",
    # tables (GFM): a row goes on until a blank line
    f"| a |\n|---|\n| b |\n{S}",
    # old mail below an answer
    f"thanks\n\nFrom: Bob <bob@x>\nSent: Monday\nTo: Alice\nSubject: Re: it\n\n{S}",
    f"thanks\n\nVon: Bob\nGesendet: Montag\nAn: Alice\nBetreff: AW: es\n\n{S}",
    f"merci\n\nDe : Bob\nEnvoyé : lundi\nÀ : Alice\nObjet : RE\n\n{S}",
    f"thanks\n\n*From:* Bob\n*Sent:* Monday\n*To:* Alice\n*Subject:* it\n\n{S}",
    f"thanks\n\n**From:** Bob\n**Date:** Monday\n**To:** Alice\n\n{S}",
    f"thanks\n\nOn Mon, 1 Jan 2026 at 10:00, Bob <bob@x> wrote:\n\n{S}",
    f"thanks\n\nOn Mon, 1 Jan 2026 at 10:00, Bob <bob@x>\nwrote:\n\n{S}",
    f"thanks\n\nDate: Monday\nFrom: Bob\nTo: Alice\n\n{S}",
    f"danke\n\nAm 01.01.2026 um 10:00 schrieb Bob:\n\n{S}",
    f"merci\n\nLe 1 janv. 2026 à 10:00, Bob a écrit :\n\n{S}",
    f"thanks\n-----Original Message-----\n{S}",
    f"danke\n-----Ursprüngliche Nachricht-----\nVon: x\n{S}",
]

M = OWN_MARKER
OWN = [
    M,
    f"answer\n{M}",
    f"answer\n\n{M}\n\n",
    f"answer\r\n{M}\r\n",
    f"   {M}  ",
    f"- a\n- b\n\n{M}",
    f"- a\n{M}",
    f"> quoted\n{M}",  # HTML of its own interrupts the quoted paragraph (4.6)
    f"``` code ```\n{M}",
    f"```code```\n\n{M}",
    f"```\ncode\n```\n{M}",
    f"<details>\ntext\n{M}",
    f"| a |\n|---|\n| b |\n{M}",
    f"\ufeff{M}",
    "x" * LIMIT + f"\n{M}",
    f"thanks\n\nFrom: Bob\nSent: Monday\nTo: Alice\n\nold\n{M}",  # what follows a mail that is shown is ours as well
    f"On Mon, 1 Jan 2026, Bob wrote:\n\nold\n\n{M}",
]
NOT_OWN = [
    f"{M}\nand more",
    f"> {M}",
    f"    {M}",
    f"\t{M}",
    f"```\n{M}",
    f"```\n{M}\n```",
    f"- ```\n  {M}",
    f"text {M}",
    f"`{M}`",
    "answer",
]


def test_table_has_what_it_is_to_have() -> None:
    assert len(WORDS) + len(NO_WORDS) + len(OWN) + len(NOT_OWN) >= 120


@pytest.mark.parametrize("text", WORDS)
def test_word_when_it_is_shown_on_a_line_of_its_own_then_is_obeyed(text: str) -> None:
    assert read_text(text, RULES).words == {Word.STOP}


@pytest.mark.parametrize("text", NO_WORDS)
def test_word_when_it_is_not_shown_so_then_is_not_obeyed_and_the_text_goes_on_whole(text: str) -> None:
    reading = read_text(text, RULES)

    assert (reading.words, reading.text) == (frozenset(), text)


@pytest.mark.parametrize("text", OWN)
def test_text_when_it_ends_with_the_mark_then_is_our_own(text: str) -> None:
    assert is_own_notice(text)


@pytest.mark.parametrize("text", NOT_OWN)
def test_text_when_the_mark_is_elsewhere_then_is_somebodys(text: str) -> None:
    assert not is_own_notice(text)


def test_word_when_the_text_is_too_long_to_be_read_then_is_not_obeyed() -> None:
    text = f"{S}\n" + "x" * LIMIT

    assert read_text(text, RULES).words == frozenset()
    assert read_text(text, RULES).text == text


PARTS = st.sampled_from(
    [S, M, "> ", "- ", "```", "~~~", "`", "    ", "\n", "\n\n", "<!--", "-->", "<pre>", "</pre>", "| a |"],
)


@given(st.lists(PARTS | st.text(max_size=5), max_size=25).map("".join))
def test_any_text_is_read_alike_whatever_ends_its_lines(text: str) -> None:
    plain = text.replace("\r", "")
    reading = read_text(plain, RULES)

    assert read_text(plain.replace("\n", "\r\n"), RULES).words == reading.words
    assert is_own_notice(plain) == is_own_notice(plain.replace("\n", "\r\n"))
    assert not reading.words or S in plain.casefold() or not plain.isascii()


HOSTILE = {
    "brackets": "[" * (LIMIT - 20),
    "quotes": "> " * (LIMIT // 2 - 20),
    "stars": "*" * (LIMIT - 20),
    "lists": "".join(f"{'  ' * depth}- a\n" for depth in range(300)),
    "deep lists": "- " * (LIMIT // 2 - 20),
    "ticks": "`" * 200 + "".join("`" * (number % 90) + "a" for number in range(1300)),
    "comments": "a <!-- " * (LIMIT // 7 - 5),
    "tags": "a <code " * (LIMIT // 8 - 5),
    "lines": "a\n" * (LIMIT // 2 - 20),
    "spans": "`a`\n" * (LIMIT // 4 - 5),
    "pairs": "a<!---->\n" * (LIMIT // 9 - 5),
    "keys": "<kbd></kbd>\n" * (LIMIT // 12 - 5),
    "pipes": "|" * (LIMIT - 20),
    "table": "|a" * 2000 + "\n" + "|-" * 2000 + "\n",
    "mail": "From: a\n" * (LIMIT // 8 - 20),
    "wrote": ("on " + "a " * 100 + "\n") * (LIMIT // 210),
    "references": "[a]: b\n" * (LIMIT // 7 - 5),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_text_when_it_is_hostile_then_is_read_in_bounded_time(name: str) -> None:
    began = time.process_time()

    shown(f"{HOSTILE[name]}\n{S}")

    assert time.process_time() - began < 5  # a second at the most on an idle machine; it is read in a thread
