"""Files that are still written when the `directory` source looks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest

from support.inbox import Inbox, ids, refs, rows, told
from the_loop.sources.base import Listing


@pytest.fixture
def inbox(tmp_path: Path) -> Inbox:
    path = tmp_path / "inbox"
    path.mkdir()
    return Inbox(path)


SETTLE_S = 0.25
T = TypeVar("T")


@pytest.fixture
def slow(tmp_path: Path) -> Inbox:
    path = tmp_path / "slow"
    path.mkdir()
    return Inbox(path, settle_s=SETTLE_S)


def wait_until_settled() -> None:
    """The kernel's own clock decides: until it says that so much time has passed."""
    until = time.time() + SETTLE_S + 0.05
    while time.time() < until:
        time.sleep(0.01)


class Writer:
    """Appends to a file for as long as it is asked to, from beside the look."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def during(self, work: Coroutine[Any, Any, T]) -> T:
        task = asyncio.create_task(work)
        while not task.done():
            with self._path.open("a") as file:
                file.write("x")
            await asyncio.sleep(SETTLE_S / 10)
        return await task


def test_file_that_is_still_written_is_waited_for_once_and_then_left(slow: Inbox) -> None:
    slow.write("one/item.md")
    slow.poll()
    path = slow.write("one/a.txt", "begin ")

    async def story() -> Listing:
        return await Writer(path).during(slow.source.poll(slow.cursor, slow.known))

    began = time.monotonic()
    listing = asyncio.run(story())

    assert rows(listing) == []
    assert time.monotonic() - began < SETTLE_S * 4
    wait_until_settled()
    (row,) = rows(slow.poll())
    assert row.body == path.read_text()


def test_file_that_was_just_written_is_taken_by_the_same_look(slow: Inbox) -> None:
    slow.write("one/item.md", "the body")

    listing = slow.poll()

    assert refs(listing) == ["one"]
    assert slow.thread().item is not None


def test_item_is_not_met_before_all_its_files_are_complete(slow: Inbox) -> None:
    slow.write("one/item.md")
    wait_until_settled()
    path = slow.write("one/a.txt")

    async def story() -> Listing:
        return await Writer(path).during(slow.source.poll(None, {}))

    assert refs(asyncio.run(story())) == []
    wait_until_settled()
    assert refs(slow.poll()) == ["one"]


def test_complete_files_of_a_known_item_do_not_wait_for_the_others(slow: Inbox) -> None:
    slow.write("one/item.md")
    slow.poll()
    slow.write("one/done.txt")
    wait_until_settled()
    path = slow.write("one/writing.txt")

    async def story() -> Listing:
        return await Writer(path).during(slow.source.poll(slow.cursor, slow.known))

    assert ids(rows(asyncio.run(story()))) == ["done.txt"]


def test_what_a_writer_adds_after_a_pause_is_an_edit(slow: Inbox) -> None:
    slow.write("one/item.md")
    slow.poll()
    path = slow.write("one/a.txt", "first half")
    (row,) = rows(slow.poll())
    assert row.body == "first half"

    with path.open("a") as file:
        file.write(", second half")
    listing = slow.poll()

    assert (rows(listing), len(told(listing, "poll.edited"))) == ([], 1)


def test_file_that_is_written_aside_and_renamed_is_one_comment(slow: Inbox) -> None:
    slow.write("one/item.md")
    slow.poll()
    aside = slow.write("one/a.txt.tmp", "whole")
    assert rows(slow.poll()) == []

    aside.rename(slow.path / "one/a.txt")
    (row,) = rows(slow.poll())

    assert (row.id, row.body, bool(row.renamed_from)) == ("a.txt", "whole", False)


def test_rename_of_a_known_file_is_known_although_it_has_to_settle_again(slow: Inbox) -> None:
    """A rename changes the file's times; looks in between see the old name gone and the new one unfinished."""
    slow.write("one/item.md")
    slow.write("one/a.txt", "yes")
    slow.poll()
    (slow.path / "one/a.txt").rename(slow.path / "one/b.txt")
    path = slow.write("one/c.txt")

    async def story() -> Listing:
        return await Writer(path).during(slow.source.poll(slow.cursor, slow.known))

    (row,) = rows(asyncio.run(story()))

    assert (row.id, bool(row.renamed_from)) == ("b.txt", True)
