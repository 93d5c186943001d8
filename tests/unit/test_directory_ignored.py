"""What tools leave in folders is not a comment, and what may not be read is passed over (FAULTS E1 to E3)."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

import pytest

from support.inbox import Inbox, ids, refs, rows, told
from the_loop.core.model import Presence
from the_loop.sources import textfiles
from the_loop.sources.ignored import is_left_file, is_left_folder, pattern_fault

FILES = [
    *(
        "notes.sync-conflict-20260131-120000-ABCDEFG.md",
        "a (conflicted copy 2026-01-31).md",
        "a (Anna's conflicted copy).md",
    ),
    *("a (In Konflikt stehende Kopie von B).md", "x (Copie en conflit de y).txt", "a_conflict-20260131-120000.md"),
    *("a (SFConflict bob@x 2026-01-31-12-00-00).md", "a (Case Conflict 1).md", "a [Conflict].md"),
    *("item.md:Zone.Identifier", "~$report.docx", "desktop.ini", "Thumbs.db", "THUMBS.DB", "ehthumbs.db", "Icon\r"),
    *("fix.orig", "fix.rej", "x.filepart", "x.part", "x.crdownload", "x.TMP", "x.swo", "4913", "x~", "#x#", ".#x"),
    *(".DS_Store", "._item.md", ".~lock.a.odt#", "~syncthing~a.tmp", ".syncthing.a.tmp", "x.aria2", "x.bak"),
]
FOLDERS = [
    *(
        "lost+found",
        "System Volume Information",
        "$RECYCLE.BIN",
        "@eaDir",
        "__MACOSX",
        ".git",
        ".stfolder",
        ".Trash-1000",
    ),
    *("fix.sync-conflict-20260131-120000-ABCDEFG", "new.tmp", "copy~", "#recycle", "@Recycle"),
]
PEOPLES = [
    "notes (1).md",
    "conflict.md",
    "original",
    "5000",
    "bak",
    "reject",
    "part",
    "a copy.md",
    "download",
    "tmp.md",
    "conflicted copy.md",
    "[Conflict] main.md",
    "x.sync-conflict-notes.md",
    "copie en conflit que faire.md",
]


@pytest.fixture
def inbox(tmp_path: Path) -> Inbox:
    path = tmp_path / "inbox"
    path.mkdir()
    return Inbox(path)


@pytest.mark.parametrize("name", FILES)
def test_file_when_a_tool_left_it_then_is_no_comment(inbox: Inbox, name: str) -> None:
    inbox.write("one/item.md")
    inbox.write(f"one/{name}")

    assert is_left_file(name)
    assert rows(inbox.poll()) == []
    assert inbox.thread().entries == []


@pytest.mark.parametrize("name", FOLDERS)
def test_folder_when_a_tool_left_it_then_is_no_item(inbox: Inbox, name: str) -> None:
    inbox.write(f"{name}/item.md")

    assert is_left_folder(name)
    assert refs(inbox.poll()) == []


@pytest.mark.parametrize("name", [*PEOPLES, "#12", "4913", "cvs", "v1.download", "app.part", "Recycler"])
def test_folder_when_a_person_may_have_named_it_so_then_is_an_item(inbox: Inbox, name: str) -> None:
    inbox.write(f"{name}/item.md")

    assert len(refs(inbox.poll())) == 1


@pytest.mark.parametrize("name", PEOPLES)
def test_file_when_a_person_may_have_named_it_so_then_is_a_comment(inbox: Inbox, name: str) -> None:
    inbox.write("one/item.md")
    inbox.write(f"one/{name}")

    assert ids(rows(inbox.poll())) == [name]


# --- `ignore` ---


def test_ignore_when_it_has_patterns_then_they_add_to_the_list_and_take_back(tmp_path: Path) -> None:
    (tmp_path / "inbox").mkdir()
    inbox = Inbox(tmp_path / "inbox", ignore=["*.log", "drafts/", "!*.orig", "/one/private-*", "# a comment"])
    for name in (
        "one/item.md",
        "one/a.log",
        "one/b.orig",
        "one/private-1",
        "two/item.md",
        "two/private-1",
        "drafts/item.md",
    ):
        inbox.write(name)

    listing = inbox.poll()

    assert refs(listing) == ["one", "two"]
    assert ids(rows(listing)) == ["b.orig", "private-1"]


def test_ignore_when_it_comes_to_cover_an_item_then_that_did_not_end(inbox: Inbox) -> None:
    inbox.write("one/item.md")
    inbox.write("two/item.md")
    inbox.poll()
    inbox.begin(["one/"])

    for _ in range(3):
        inbox.now += 100
        listing = inbox.poll()
        assert (refs(listing), refs(listing, Presence.GONE)) == (["two"], [])

    inbox.begin()
    assert refs(inbox.poll()) == ["one", "two"]


def test_ignore_when_it_covers_a_file_no_more_then_that_is_a_comment(inbox: Inbox) -> None:
    inbox.begin(["*.log"])
    inbox.write("one/item.md")
    inbox.write("one/a.log")
    assert rows(inbox.poll()) == []

    inbox.begin()

    assert ids(rows(inbox.poll())) == ["a.log"]


def test_ignore_when_it_comes_to_cover_a_delivered_file_then_another_of_its_content_is_no_rename(inbox: Inbox) -> None:
    """The new comment was taken for the old one under another name, and never delivered."""
    inbox.write("one/item.md")
    inbox.write("one/a.log", "the same")
    assert ids(rows(inbox.poll())) == ["a.log"]
    inbox.begin(["*.log"])
    inbox.write("one/b.md", "the same")

    (row,) = rows(inbox.poll())

    assert (row.id, row.renamed_from) == ("b.md", ())
    inbox.begin()
    assert rows(inbox.poll()) == []


def test_ignore_when_only_some_files_are_wanted_then_folders_are_taken_back_as_in_git(tmp_path: Path) -> None:
    (tmp_path / "inbox").mkdir()
    inbox = Inbox(tmp_path / "inbox", ignore=["*", "!*/", "!*.md"])
    for name in ("item.md", "a.txt", "b.md"):
        inbox.write(f"one/{name}")

    listing = inbox.poll()

    assert (refs(listing), ids(rows(listing))) == (["one"], ["b.md"])


def test_inbox_when_all_its_items_are_ignored_and_it_was_moved_then_is_no_fault(inbox: Inbox) -> None:
    inbox.write("one/item.md")
    inbox.poll()
    inbox.begin(["one/"])
    inbox.cursor["inbox"] = "1:1"

    assert refs(inbox.poll(), Presence.GONE) == []


@pytest.mark.parametrize("pattern", ["!", "[z-a]", "\\", "", "a\nb"])
def test_pattern_when_it_is_none_then_says_why(pattern: str) -> None:
    assert pattern_fault(pattern) != ""
    assert pattern_fault("a/**/b") == ""


def test_ignored_files_when_there_are_thousands_then_cost_little(inbox: Inbox) -> None:
    inbox.write("one/item.md")
    for number in range(3000):
        (inbox.path / "one" / f"{number}.orig").touch()
    began = time.process_time()

    assert rows(inbox.poll()) == []
    assert time.process_time() - began < 1


# --- what may not be read ---


def refusing(monkeypatch: pytest.MonkeyPatch, *paths: Path, number: int = errno.EACCES) -> None:
    """As an ordinary user finds another one's files; root may read everything."""
    opened, scanned = os.open, os.scandir

    def check(path: object) -> None:
        if Path(os.fsdecode(path)) in paths:  # type: ignore[arg-type]
            raise OSError(number, os.strerror(number))

    def opening(path: object, *rest: int, **named: object) -> int:
        check(path)
        return opened(path, *rest, **named)  # type: ignore[arg-type]

    def scanning(path: object) -> object:
        check(path)
        return scanned(path)  # type: ignore[call-overload]

    monkeypatch.setattr(os, "open", opening)
    monkeypatch.setattr(os, "scandir", scanning)


def test_folder_when_it_may_not_be_read_then_is_passed_over_and_told_once(
    inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A colleague's 0700 folder kept the source failing for good."""
    inbox.write("one/item.md")
    inbox.write("theirs/item.md")
    refusing(monkeypatch, inbox.path / "theirs")

    first, second = inbox.poll(), inbox.poll()

    assert (refs(first), list(first.faults), dict(first.overlooked)) == (["one"], [], {"theirs": "Permission denied"})
    assert [note.fields["ref"] for note in told(first, "item.failed")] == ["directory:inbox/theirs"]
    assert told(second, "item.failed") == []
    assert dict(second.overlooked) == dict(first.overlooked)
    monkeypatch.undo()
    third = inbox.poll()
    assert (refs(third), dict(third.overlooked)) == (["one", "theirs"], {})


@pytest.mark.parametrize("is_known", [True, False])
def test_folder_when_it_is_an_item_or_the_error_is_another_then_is_a_fault(
    inbox: Inbox, monkeypatch: pytest.MonkeyPatch, is_known: bool
) -> None:
    inbox.write("one/item.md")
    if is_known:
        inbox.poll()
    refusing(monkeypatch, inbox.path / "one", number=errno.EACCES if is_known else errno.EIO)

    listing = inbox.poll()

    assert (len(listing.faults), refs(listing), dict(listing.overlooked)) == (1, [], {})


def test_item_when_its_text_may_not_be_read_then_is_passed_over_whole(
    inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread failed in each cycle, and --once ended with 1."""
    refusing(monkeypatch, inbox.write("one/item.md"))
    inbox.write("one/a.md")

    listing = inbox.poll()

    assert (refs(listing), list(listing.faults)) == ([], [])
    assert dict(listing.overlooked) == {"one/item.md": "Permission denied"}
    monkeypatch.undo()
    assert refs(inbox.poll()) == ["one"]


def test_file_when_it_may_not_be_read_then_is_named_and_told_once(
    inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of mode 0600 of another user was never mentioned."""
    inbox.write("one/item.md")
    secret = inbox.write("one/secret.md")
    refusing(monkeypatch, secret)

    first, second = inbox.poll(), inbox.poll()

    assert dict(first.overlooked) == {"one/secret.md": "Permission denied"}
    assert (rows(first), list(first.faults), len(told(first, "item.failed"))) == ([], [], 1)
    assert told(second, "item.failed") == []
    monkeypatch.undo()
    assert ids(rows(inbox.poll())) == ["secret.md"]


@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE])
def test_file_when_reading_it_fails_otherwise_then_is_a_fault_and_read_later(
    inbox: Inbox, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """It was taken for a file that had changed meanwhile, which nobody is told of."""
    inbox.write("one/item.md")
    inbox.poll()
    refusing(monkeypatch, inbox.write("one/c.md"), number=number)

    listing = inbox.poll()

    assert (len(listing.faults), rows(listing), refs(listing, Presence.GONE)) == (1, [], [])
    monkeypatch.undo()
    assert ids(rows(inbox.poll())) == ["c.md"]


def test_text_when_its_file_is_a_link_by_now_then_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "there").write_text("secret")
    (tmp_path / "link").symlink_to("there")
    found = textfiles.File(tmp_path / "link", "link", (0, 0, 0, 0), None, 0.0)

    assert textfiles.read_text(found) is None
