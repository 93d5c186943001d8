"""Odd names, odd contents and large ones in the `directory` source."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.inbox import Inbox, ids, refs, rows, told
from the_loop.core.model import ENTRY_LIMIT
from the_loop.sources.textfiles import encode_name, unquote_name


@pytest.fixture
def inbox(tmp_path: Path) -> Inbox:
    path = tmp_path / "inbox"
    path.mkdir()
    return Inbox(path)


ODD = [
    b"new\nline",
    b"\xff\xfe",
    "\N{SNOWMAN}\N{PILE OF POO}".encode(),
    b"100%",
    b"%41",
    b"A",
    b"a#b",
    b"-rf",
    b" ",
    b"\xc3\xa9",
    b"e\xcc\x81",
]


def test_odd_names_are_items_and_comments_of_their_own(inbox: Inbox) -> None:
    for name in ODD:
        for file in (b"item.md", *ODD):
            inbox.write(name + b"/" + file, b"text of " + file)

    listing = inbox.poll()

    assert len(set(refs(listing))) == len(ODD)
    for sighting in listing.sightings:
        assert sighting.ref.isprintable()
        assert "\n" not in sighting.ref
        assert len({row.id for row in sighting.rows}) == len(ODD)
        thread = asyncio.run(inbox.source.thread(sighting.ref))
        assert thread.item is not None
        assert (thread.item.body, ids(thread.entries)) == ("text of item.md", ids(sighting.rows))
        thread.item.title.encode()
    assert rows(inbox.poll()) == []


def test_odd_names_can_be_bodies(inbox: Inbox) -> None:
    for number, name in enumerate(ODD):
        inbox.write(f"{number}/".encode() + name, f"body {number}")
    inbox.poll()

    for number in range(len(ODD)):
        thread = inbox.thread(str(number))
        assert thread.item is not None
        assert (thread.item.body, thread.entries) == (f"body {number}", [])
    assert rows(inbox.poll()) == []


@given(st.binary(min_size=1, max_size=12).filter(lambda name: b"/" not in name and b"\0" not in name))
def test_name_is_told_back(name: bytes) -> None:
    encoded = encode_name(name)

    assert os.fsencode(unquote_name(encoded)) == name
    assert encoded.isprintable()
    assert not set(encoded) & {"/", "#"}
    encoded.encode()


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="/\0"), min_size=1, max_size=8))
def test_readable_name_is_told_back(name: str) -> None:
    assert unquote_name(encode_name(name.encode())) == name


@pytest.mark.parametrize(
    ("content", "body"),
    [
        (b"a\0b", "a\N{SYMBOL FOR NULL}b"),
        (b"\xff\xff", "\N{REPLACEMENT CHARACTER}" * 2),
        (b"\xff\xfe", ""),
        ("\ufeffplease".encode(), "please"),
        (b"\xff\xfe" + "bitte \u00e4".encode("utf-16-le"), "bitte \u00e4"),
        (b"\xfe\xff" + "bitte \u00e4".encode("utf-16-be"), "bitte \u00e4"),
        (b"\xff\xfe\0\0" + "bitte".encode("utf-32-le"), "bitte"),
        (b"\xff\xfe" + b"odd", "\u646f\N{REPLACEMENT CHARACTER}"),
        ("\N{RIGHT-TO-LEFT MARK}\N{SNOWMAN}".encode(), "\N{RIGHT-TO-LEFT MARK}\N{SNOWMAN}"),
        (b"", ""),
        (b"\xed\xa0\x80", "\N{REPLACEMENT CHARACTER}" * 3),
    ],
)
def test_odd_content_is_made_safe(inbox: Inbox, content: bytes, body: str) -> None:
    inbox.write("one/item.md", content)
    inbox.write("one/a.txt", content)

    (row,) = rows(inbox.poll())
    thread = inbox.thread()

    assert row.body == body
    assert thread.item is not None
    assert thread.item.body == body


@pytest.mark.parametrize(("size", "truncated"), [(ENTRY_LIMIT, False), (ENTRY_LIMIT + 1, True)])
def test_text_over_its_limit_is_left_out_and_said_to_be(inbox: Inbox, size: int, *, truncated: bool) -> None:
    inbox.write("one/item.md", "x" * size)
    inbox.write("one/a.txt", "x" * size)

    (row,) = rows(inbox.poll())
    thread = inbox.thread()

    assert (row.truncated, len(row.body)) == (truncated, 0 if truncated else size)
    assert thread.item is not None
    assert (thread.item.truncated, len(thread.item.body)) == (truncated, 0 if truncated else size)


def test_edit_of_a_text_over_its_limit_is_told(inbox: Inbox) -> None:
    inbox.write("one/item.md")
    inbox.write("one/a.txt", "x" * (ENTRY_LIMIT + 1))
    inbox.poll()
    inbox.write("one/a.txt", "x" * (ENTRY_LIMIT + 2))

    assert len(told(inbox.poll(), "poll.edited")) == 1
