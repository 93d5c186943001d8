"""Folders that went, and inboxes that are not there, or not the ones they were (contract R9)."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from support.inbox import ME, Inbox, ids, refs, remove, rows
from the_loop.core.model import Presence
from the_loop.sources.base import Known, SourceError
from the_loop.sources.directory import DirectorySource


@pytest.fixture
def inbox(tmp_path: Path) -> Inbox:
    path = tmp_path / "inbox"
    path.mkdir()
    return Inbox(path)


def test_folder_is_gone_when_it_lacks_in_two_looks_far_enough_apart(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path, settle_s=0.02)
    inbox.write("one/item.md")
    inbox.write("two/item.md")
    inbox.poll()
    remove(inbox.path / "one")

    for passed in (0, 0.01, 0.009):
        inbox.now += passed
        assert refs(inbox.poll(), Presence.GONE) == []
    inbox.now += 0.002
    listing = inbox.poll()

    assert (refs(listing), refs(listing, Presence.GONE)) == (["two"], ["one"])
    assert [sighting.reason for sighting in listing.sightings if sighting.presence is Presence.GONE] == ["deleted"]
    assert refs(inbox.poll(), Presence.GONE) == []


def test_folder_that_was_back_in_between_has_to_lack_twice_again(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path, settle_s=0.02)
    inbox.write("one/item.md")
    inbox.poll()
    for _ in range(3):
        remove(inbox.path / "one")
        inbox.now += 100
        assert refs(inbox.poll(), Presence.GONE) == []
        inbox.write("one/item.md")
        inbox.now += 100
        assert refs(inbox.poll()) == ["one"]


def test_folder_that_lacks_when_the_clock_was_set_back_is_still_gone_one_day(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path, settle_s=0.02)
    inbox.write("one/item.md")
    inbox.poll()
    remove(inbox.path / "one")
    inbox.poll()
    inbox.now -= 1e8
    inbox.poll()
    inbox.now += 1

    assert refs(inbox.poll(), Presence.GONE) == ["one"]


def test_inbox_that_is_missing_is_a_source_that_cannot_be_asked(inbox: Inbox) -> None:
    inbox.write("one/item.md")
    inbox.poll()
    inbox.path.rename(inbox.path.with_name("away"))

    with pytest.raises(SourceError, match="No such file"):
        inbox.poll()
    inbox.path.with_name("away").rename(inbox.path)
    assert refs(inbox.poll()) == ["one"]


def test_other_empty_inbox_is_a_source_that_cannot_be_asked_and_ends_nothing(inbox: Inbox) -> None:
    """What is left where a file system was mounted is an empty directory of another device and inode."""
    inbox.write("one/item.md")
    inbox.poll()
    inbox.path.rename(inbox.path.with_name("mounted"))
    inbox.path.mkdir()

    for _ in range(4):
        inbox.now += 1000
        with pytest.raises(SourceError, match="not mounted"):
            inbox.poll()

    inbox.path.rmdir()
    inbox.path.with_name("mounted").rename(inbox.path)
    listing = inbox.poll()
    assert (refs(listing), rows(listing)) == (["one"], [])


def test_other_inbox_with_strange_items_only_ends_nothing(inbox: Inbox) -> None:
    inbox.write("one/item.md")
    inbox.poll()
    inbox.path.rename(inbox.path.with_name("mounted"))
    inbox.path.mkdir()
    inbox.write("lost+found/item.md")

    with pytest.raises(SourceError):
        inbox.poll()


def test_inbox_that_was_made_anew_with_its_items_is_taken(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path / "inbox", settle_s=0.02)
    inbox.path.mkdir()
    inbox.write("one/item.md")
    inbox.write("two/item.md")
    inbox.poll()
    inbox.path.rename(inbox.path.with_name("old"))
    inbox.path.mkdir()
    inbox.write("one/item.md")
    inbox.write("one/a.txt")

    first = inbox.poll()
    assert (refs(first), refs(first, Presence.GONE), ids(rows(first))) == (["one"], [], ["a.txt"])
    inbox.now += 1
    assert refs(inbox.poll(), Presence.GONE) == ["two"]


def test_other_inbox_is_taken_when_nothing_is_open(inbox: Inbox) -> None:
    inbox.poll()
    inbox.path.rename(inbox.path.with_name("old"))
    inbox.path.mkdir()
    inbox.write("one/item.md")

    assert refs(inbox.poll()) == ["one"]


def test_empty_inbox_ends_nothing_where_nobody_remembers_which_one_it_was(tmp_path: Path) -> None:
    """`portable/` came to another machine without the inbox; or the position was lost, and it is not mounted."""
    inbox = Inbox(tmp_path, settle_s=0.02)
    inbox.known = {"directory:inbox/one": Known(is_open=True, is_away=False, url="file:///inbox/one/item.md")}

    for _ in range(3):
        inbox.now += 1000
        try:
            listing = inbox.poll()
        except SourceError:
            continue
        assert refs(listing, Presence.GONE) == []


@pytest.mark.parametrize(
    ("cursor", "is_known", "is_ours", "made"),
    [(None, False, True, True), (None, False, False, False), (None, True, True, False), ({}, False, True, False)],
)
def test_inbox_is_made_at_the_very_start_and_only_below_the_state_root(
    tmp_path: Path, cursor: Any, *, is_known: bool, is_ours: bool, made: bool
) -> None:
    path = tmp_path / "inbox"
    source = DirectorySource("inbox", path, settle_s=0, authorized=frozenset({ME}), is_ours=is_ours)
    known = {"directory:inbox/one": Known(is_open=True, is_away=False, url="")} if is_known else {}

    if made:
        assert asyncio.run(source.poll(cursor, known)).items == 0
        assert path.stat().st_mode & 0o777 == 0o700
    else:
        with pytest.raises(SourceError):
            asyncio.run(source.poll(cursor, known))
        assert not path.exists()


def test_folder_that_cannot_be_read_costs_itself_only(inbox: Inbox, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("bad", "good"):
        inbox.write(f"{name}/item.md")
    inbox.poll()
    real = os.scandir

    def scandir(path: bytes) -> Any:
        if bytes(path).endswith(b"/bad"):
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    for name in ("a.txt", "b.txt"):
        inbox.write(f"good/{name}")
        inbox.now += 1000
        listing = inbox.poll()
        assert ids(rows(listing)) == [name]
        assert refs(listing, Presence.GONE) == []
        assert "bad" in str([*listing.faults, *listing.notes])
    assert ids(inbox.thread("good").entries) == ["a.txt", "b.txt"]

    monkeypatch.undo()
    inbox.write("bad/c.txt")
    assert "c.txt" in ids(rows(inbox.poll()))
    assert rows(inbox.poll()) == []
