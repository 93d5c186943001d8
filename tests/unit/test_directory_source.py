"""The `directory` source on real folders (SPEC R9, CASES 95 and 96)."""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support import factories as make
from support.fakes import FakeRunner, Life, in_loop, new_root
from the_loop.model import ENTRY_LIMIT, Entry, Note, Presence
from the_loop.sources.base import Known, Listing, SourceError, Thread
from the_loop.sources.directory import DirectorySource, encode_name, unquote_name

ME = pwd.getpwuid(os.geteuid()).pw_name
LAST_YEAR, NEXT_CENTURY = 1_600_000_000, 4_102_444_800


class Inbox:
    """An inbox, a source that reads it, and what a poller would remember from one look to the next."""

    def __init__(self, path: Path, *, settle_s: float = 0.0, authorized: frozenset[str] = frozenset({ME})) -> None:
        self.path = path
        self.now = make.NOON
        self.position: Any = None
        self.known: dict[str, Known] = {}
        self.source = DirectorySource("inbox", path, settle_s=settle_s, authorized=authorized, now=lambda: self.now)

    def write(self, name: str | bytes, text: str | bytes = "text", at: float | None = None) -> Path:
        """A file that its owner alone may write, in a folder of the same kind."""
        path = Path(os.fsdecode(os.path.join(os.fsencode(self.path), os.fsencode(name))))  # noqa: PTH118 (bytes)
        if not path.parent.exists():
            path.parent.mkdir()
            path.parent.chmod(0o755)
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        path.chmod(0o644)
        if at is not None:
            os.utime(path, (at, at))
        return path

    def look(self) -> Listing:
        listing = asyncio.run(self.source.look(self.position, self.known))
        self.position = json.loads(json.dumps(listing.position))
        for sighting in listing.sightings:
            if sighting.item is not None:
                self.known.setdefault(sighting.ref, Known(is_open=True, is_away=False, url=sighting.item.url))
            if sighting.presence is Presence.GONE:
                self.known[sighting.ref] = Known(is_open=False, is_away=False, url=self.known[sighting.ref].url)
        return listing

    def thread(self, name: str = "one") -> Thread:
        return asyncio.run(self.source.thread(f"directory:inbox/{name}"))


@pytest.fixture
def inbox(tmp_path: Path) -> Inbox:
    path = tmp_path / "inbox"
    path.mkdir()
    return Inbox(path)


def refs(listing: Listing, presence: Presence = Presence.LISTED) -> list[str]:
    return [
        sighting.ref.removeprefix("directory:inbox/") for sighting in listing.sightings if sighting.presence is presence
    ]


def rows(listing: Listing) -> list[Entry]:
    return [row for sighting in listing.sightings for row in sighting.rows]


def ids(entries: Any) -> list[str]:
    return sorted(entry.id for entry in entries)


def told(listing: Listing, name: str) -> list[Note]:
    return [note for note in listing.notes if note.name == name]


# --- an item -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "body"),
    [
        (["item.md", "a.txt"], "item.md"),
        (["b.txt", "a.txt"], "a.txt"),
        (["zz", "item.md~", "y"], "y"),
        (["B", "a"], "B"),
    ],
)
def test_folder_is_an_item_whose_body_is_one_of_its_files(inbox: Inbox, files: list[str], body: str) -> None:
    for name in files:
        inbox.write(f"one/{name}", f"text of {name}", at=LAST_YEAR)

    (sighting,) = inbox.look().sightings
    thread = inbox.thread()

    assert (sighting.ref, sighting.presence) == ("directory:inbox/one", Presence.LISTED)
    assert thread.item is not None
    assert (thread.item.title, thread.item.id, thread.item.body) == ("one", "one", f"text of {body}")
    assert (thread.item.author, thread.item.created_at) == (ME, "2020-09-13T12:26:40.000Z")
    assert thread.item.url == f"file://{inbox.path}/one/{body}"
    others = [name for name in files if name != body and not name.endswith("~")]
    assert ids(thread.entries) == sorted(others)
    assert ids(sighting.rows) == sorted(others)


def test_each_folder_is_an_item_and_plain_files_beside_them_are_none(inbox: Inbox, tmp_path: Path) -> None:
    for name in ("one/item.md", "two/item.md", ".hidden/item.md"):
        inbox.write(name)
    (inbox.path / "loose.txt").write_text("no item")
    (inbox.path / "empty").mkdir()
    outside = Inbox(tmp_path / "outside")
    outside.path.mkdir()
    outside.write("x/item.md")
    (inbox.path / "linked").symlink_to(outside.path / "x")

    listing = inbox.look()

    assert refs(listing) == ["one", "two"]
    assert listing.items == 2


def test_body_is_chosen_once(inbox: Inbox) -> None:
    """What comes later is a comment, whatever its name, in a look and in a thread alike."""
    inbox.write("one/notes.txt", "the body")
    first = inbox.look()
    assert rows(first) == []

    inbox.write("one/item.md", "a comment")
    inbox.write("one/a.txt", "another")
    later = inbox.look()

    assert ids(rows(later)) == ["a.txt", "item.md"]
    assert later.sightings[0].item is not None
    assert later.sightings[0].item.url.endswith("/one/notes.txt")
    thread = inbox.thread()
    assert thread.item is not None
    assert (thread.item.body, ids(thread.entries)) == ("the body", ["a.txt", "item.md"])


def test_body_that_was_removed_stays_the_body(inbox: Inbox) -> None:
    inbox.write("one/item.md", "the body")
    inbox.write("one/a.txt", "a comment")
    inbox.look()

    (inbox.path / "one/item.md").unlink()
    inbox.look()

    assert "a.txt" in ids(inbox.thread().entries)


def test_folder_that_was_emptied_is_still_there(inbox: Inbox) -> None:
    inbox.write("one/item.md")
    inbox.look()
    (inbox.path / "one/item.md").unlink()

    for _ in range(3):
        inbox.now += 100
        listing = inbox.look()
        assert (refs(listing), refs(listing, Presence.GONE)) == (["one"], [])


def test_thread_of_a_folder_that_is_not_there_has_no_item(inbox: Inbox) -> None:
    assert inbox.thread("nowhere") == Thread(None, ())


def test_owns_its_own_items_only(inbox: Inbox) -> None:
    assert inbox.source.owns("directory:inbox/one")
    for ref in ("directory:inbox2/one", "directory:in/one", "github:inbox/one#1", "directory:inbox"):
        assert not inbox.source.owns(ref)


# --- new entries ---------------------------------------------------------------------------------------------------


def test_new_file_is_one_row_once_over_ten_looks(inbox: Inbox) -> None:
    inbox.write("one/item.md")
    inbox.look()
    inbox.write("one/a.txt", "do it", at=LAST_YEAR)

    (row,) = rows(inbox.look())

    assert (row.key, row.body, row.author, row.renamed) == ("comment:a.txt", "do it", ME, False)
    assert (row.url, row.created_at) == (f"file://{inbox.path}/one/a.txt", "2020-09-13T12:26:40.000Z")
    assert [rows(inbox.look()) for _ in range(10)] == [[]] * 10


def test_newness_is_a_name_and_no_time(inbox: Inbox) -> None:
    inbox.write("one/item.md", at=make.NOON)
    inbox.look()
    inbox.write("one/old.txt", at=LAST_YEAR)
    inbox.write("one/future.txt", at=NEXT_CENTURY)
    inbox.write("one/same-1.txt", at=make.NOON + 5)
    inbox.write("one/same-2.txt", at=make.NOON + 5)

    found = rows(inbox.look())

    assert ids(found) == ["future.txt", "old.txt", "same-1.txt", "same-2.txt"]
    assert {row.created_at[:4] for row in found} == {"2020", "2100", "2023"}
    assert [rows(inbox.look()) for _ in range(10)] == [[]] * 10


def test_copy_of_a_file_that_is_still_there_is_new(inbox: Inbox) -> None:
    inbox.write("one/item.md")
    inbox.write("one/a.txt", "yes", at=LAST_YEAR)
    inbox.look()
    inbox.write("one/b.txt", "yes", at=LAST_YEAR)

    (row,) = rows(inbox.look())

    assert (row.id, row.renamed) == ("b.txt", False)


def test_renamed_file_is_told_apart(inbox: Inbox) -> None:
    inbox.write("one/item.md")
    inbox.write("one/a.txt", "yes")
    inbox.look()
    (inbox.path / "one/a.txt").rename(inbox.path / "one/b.txt")

    (row,) = rows(inbox.look())

    assert (row.id, row.renamed) == ("b.txt", True)
    assert rows(inbox.look()) == []


def test_same_words_long_after_a_file_was_deleted_are_new_words(inbox: Inbox) -> None:
    """A person who tidies up and says "yes" once more is to be heard: nothing was renamed."""
    inbox.write("one/item.md")
    inbox.write("one/a.txt", "yes")
    inbox.look()
    (inbox.path / "one/a.txt").unlink()
    for _ in range(3):
        inbox.now += 1000
        inbox.look()
    inbox.write("one/b.txt", "yes")

    (row,) = rows(inbox.look())

    assert (row.id, row.renamed) == ("b.txt", False)


def test_other_content_under_a_known_name_is_an_edit_told_once(inbox: Inbox) -> None:
    inbox.write("one/item.md")
    inbox.write("one/a.txt", "yes", at=LAST_YEAR)
    inbox.look()
    inbox.write("one/a.txt", "no!", at=LAST_YEAR)
    inbox.write("one/item.md", "another body")

    listing = inbox.look()

    assert rows(listing) == []
    notes = told(listing, "poll.edited")
    assert sorted(note.fields["key"] for note in notes) == ["comment:a.txt", "comment:item.md"]
    assert [inbox.look().notes for _ in range(3)] == [[]] * 3


def test_touched_file_is_neither_new_nor_an_edit(inbox: Inbox) -> None:
    path = inbox.write("one/item.md")
    inbox.look()
    os.utime(path, (LAST_YEAR, LAST_YEAR))
    path.chmod(0o600)

    listing = inbox.look()

    assert (rows(listing), listing.notes) == ([], [])


def test_file_replaced_by_the_same_content_is_neither_new_nor_an_edit(inbox: Inbox) -> None:
    inbox.write("one/item.md", "text")
    inbox.look()
    inbox.write("one/item.md.tmp", "text").replace(inbox.path / "one/item.md")

    listing = inbox.look()

    assert (rows(listing), listing.notes) == ([], [])


# --- what is ignored -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        ".hidden",
        ".#lock",
        "#autosave#",
        "a.txt~",
        "a.tmp",
        "a.temp",
        "a.swp",
        "a.part",
        "a.partial",
        "a.crdownload",
        "a.bak",
    ],
)
def test_hidden_and_temporary_files_are_no_comments(inbox: Inbox, name: str) -> None:
    inbox.write("one/item.md")
    inbox.write(f"one/{name}")

    assert rows(inbox.look()) == []
    assert inbox.thread().entries == []
    inbox.write("two/.only-hidden")
    assert refs(inbox.look()) == ["one"]


@pytest.fixture
def short_folder() -> Iterator[None]:
    """A socket's path may have 107 bytes only: it is made from inside its folder."""
    before = Path.cwd()
    yield
    os.chdir(before)


@pytest.mark.usefixtures("short_folder")
def test_special_files_folders_and_links_are_ignored_with_one_event_each(inbox: Inbox, tmp_path: Path) -> None:
    outside = tmp_path / "outside.txt"
    outside.write_text("secret")
    inbox.write("one/item.md")
    folder = inbox.path / "one"
    os.mkfifo(folder / "fifo")
    (folder / "sub").mkdir()
    (folder / "sub" / "x.txt").write_text("x")
    (folder / "link").symlink_to(outside)
    (folder / "dangling").symlink_to("nowhere")
    (folder / "to-item").symlink_to("item.md")
    os.chdir(folder)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
        first, *later = [inbox.look() for _ in range(10)]

    names = ["dangling", "fifo", "link", "socket", "sub", "to-item"]
    assert rows(first) == []
    assert sorted(note.fields["deliveryId"].rpartition("/")[2] for note in told(first, "dispatch.dropped")) == names
    assert [(rows(listing), listing.notes) for listing in later] == [([], [])] * 9
    assert inbox.thread().entries == []


def test_item_that_is_a_fifo_and_nothing_else_is_no_item_and_no_hang(inbox: Inbox) -> None:
    (inbox.path / "one").mkdir()
    os.mkfifo(inbox.path / "one" / "item.md")

    assert refs(inbox.look()) == []
    assert inbox.thread() == Thread(None, ())


# --- who wrote it --------------------------------------------------------------------------------------------------


def make_group_writable(path: Path) -> None:
    path.chmod(0o664)


def make_world_writable(path: Path) -> None:
    path.chmod(0o646)


def give_a_second_link(path: Path) -> None:
    os.link(path, path.parent.parent.parent / "second-link")


def make_folder_group_writable(path: Path) -> None:
    path.parent.chmod(0o775)


def make_folder_world_writable(path: Path) -> None:
    path.parent.chmod(0o1777)


@pytest.mark.parametrize(
    "spoil",
    [
        make_group_writable,
        make_world_writable,
        give_a_second_link,
        make_folder_group_writable,
        make_folder_world_writable,
    ],
    ids=lambda spoil: spoil.__name__,
)
def test_file_that_somebody_else_may_have_written_has_no_author(inbox: Inbox, spoil: Callable[[Path], None]) -> None:
    inbox.write("one/item.md")
    inbox.look()
    spoil(inbox.write("one/a.txt"))

    (row,) = rows(inbox.look())

    assert row.author is None
    assert [entry.author for entry in inbox.thread().entries] == [None]


def test_file_in_a_folder_of_somebody_who_is_not_authorised_has_no_author(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path, authorized=frozenset({"somebody-else"}))
    inbox.write("one/item.md")
    inbox.write("one/a.txt")

    (sighting,) = inbox.look().sightings

    assert sighting.item is not None
    assert (sighting.item.author, [row.author for row in sighting.rows]) == (None, [None])


def test_author_is_the_owner_of_the_file(inbox: Inbox) -> None:
    """To give a file away takes root; for anybody else the owner is whoever runs the tests."""
    inbox.write("one/item.md")
    path = inbox.write("one/a.txt")
    if os.geteuid() == 0:
        os.chown(path, pwd.getpwnam("nobody").pw_uid, -1)

    (row,) = rows(inbox.look())

    assert row.author == ("nobody" if os.geteuid() == 0 else ME)


# --- odd names and contents ----------------------------------------------------------------------------------------

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

    listing = inbox.look()

    assert len(set(refs(listing))) == len(ODD)
    for sighting in listing.sightings:
        assert sighting.ref.isprintable()
        assert "\n" not in sighting.ref
        assert len({row.id for row in sighting.rows}) == len(ODD)
        thread = asyncio.run(inbox.source.thread(sighting.ref))
        assert thread.item is not None
        assert (thread.item.body, ids(thread.entries)) == ("text of item.md", ids(sighting.rows))
        thread.item.title.encode()
    assert rows(inbox.look()) == []


def test_odd_names_can_be_bodies(inbox: Inbox) -> None:
    for number, name in enumerate(ODD):
        inbox.write(f"{number}/".encode() + name, f"body {number}")
    inbox.look()

    for number in range(len(ODD)):
        thread = inbox.thread(str(number))
        assert thread.item is not None
        assert (thread.item.body, thread.entries) == (f"body {number}", [])
    assert rows(inbox.look()) == []


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
        (b"\xff\xfe", "\N{REPLACEMENT CHARACTER}" * 2),
        ("\N{RIGHT-TO-LEFT MARK}\N{SNOWMAN}".encode(), "\N{RIGHT-TO-LEFT MARK}\N{SNOWMAN}"),
        (b"", ""),
        (b"\xed\xa0\x80", "\N{REPLACEMENT CHARACTER}" * 3),
    ],
)
def test_odd_content_is_made_safe(inbox: Inbox, content: bytes, body: str) -> None:
    inbox.write("one/item.md", content)
    inbox.write("one/a.txt", content)

    (row,) = rows(inbox.look())
    thread = inbox.thread()

    assert row.body == body
    assert thread.item is not None
    assert thread.item.body == body


@pytest.mark.parametrize(("size", "truncated"), [(ENTRY_LIMIT, False), (ENTRY_LIMIT + 1, True)])
def test_text_over_its_limit_is_left_out_and_said_to_be(inbox: Inbox, size: int, *, truncated: bool) -> None:
    inbox.write("one/item.md", "x" * size)
    inbox.write("one/a.txt", "x" * size)

    (row,) = rows(inbox.look())
    thread = inbox.thread()

    assert (row.truncated, len(row.body)) == (truncated, 0 if truncated else size)
    assert thread.item is not None
    assert (thread.item.truncated, len(thread.item.body)) == (truncated, 0 if truncated else size)


def test_edit_of_a_text_over_its_limit_is_told(inbox: Inbox) -> None:
    inbox.write("one/item.md")
    inbox.write("one/a.txt", "x" * (ENTRY_LIMIT + 1))
    inbox.look()
    inbox.write("one/a.txt", "x" * (ENTRY_LIMIT + 2))

    assert len(told(inbox.look(), "poll.edited")) == 1


# --- files that are still written ----------------------------------------------------------------------------------

SETTLE_S = 0.25


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

    async def during(self, work: Any) -> Any:
        task = asyncio.create_task(work)
        while not task.done():
            with self._path.open("a") as file:
                file.write("x")
            await asyncio.sleep(SETTLE_S / 10)
        return await task


def test_file_that_is_still_written_is_waited_for_once_and_then_left(slow: Inbox) -> None:
    slow.write("one/item.md")
    slow.look()
    path = slow.write("one/a.txt", "begin ")

    async def story() -> Listing:
        return await Writer(path).during(slow.source.look(slow.position, slow.known))

    began = time.monotonic()
    listing = asyncio.run(story())

    assert rows(listing) == []
    assert time.monotonic() - began < SETTLE_S * 4
    wait_until_settled()
    (row,) = rows(slow.look())
    assert row.body == path.read_text()


def test_file_that_was_just_written_is_taken_by_the_same_look(slow: Inbox) -> None:
    slow.write("one/item.md", "the body")

    listing = slow.look()

    assert refs(listing) == ["one"]
    assert slow.thread().item is not None


def test_item_is_not_met_before_all_its_files_are_complete(slow: Inbox) -> None:
    slow.write("one/item.md")
    wait_until_settled()
    path = slow.write("one/a.txt")

    async def story() -> Listing:
        return await Writer(path).during(slow.source.look(None, {}))

    assert refs(asyncio.run(story())) == []
    wait_until_settled()
    assert refs(slow.look()) == ["one"]


def test_complete_files_of_a_known_item_do_not_wait_for_the_others(slow: Inbox) -> None:
    slow.write("one/item.md")
    slow.look()
    slow.write("one/done.txt")
    wait_until_settled()
    path = slow.write("one/writing.txt")

    async def story() -> Listing:
        return await Writer(path).during(slow.source.look(slow.position, slow.known))

    assert ids(rows(asyncio.run(story()))) == ["done.txt"]


def test_what_a_writer_adds_after_a_pause_is_an_edit(slow: Inbox) -> None:
    slow.write("one/item.md")
    slow.look()
    path = slow.write("one/a.txt", "first half")
    (row,) = rows(slow.look())
    assert row.body == "first half"

    with path.open("a") as file:
        file.write(", second half")
    listing = slow.look()

    assert (rows(listing), len(told(listing, "poll.edited"))) == ([], 1)


def test_file_that_is_written_aside_and_renamed_is_one_comment(slow: Inbox) -> None:
    slow.write("one/item.md")
    slow.look()
    aside = slow.write("one/a.txt.tmp", "whole")
    assert rows(slow.look()) == []

    aside.rename(slow.path / "one/a.txt")
    (row,) = rows(slow.look())

    assert (row.id, row.body, row.renamed) == ("a.txt", "whole", False)


def test_rename_of_a_known_file_is_known_although_it_has_to_settle_again(slow: Inbox) -> None:
    """A rename changes the file's times; looks in between see the old name gone and the new one unfinished."""
    slow.write("one/item.md")
    slow.write("one/a.txt", "yes")
    slow.look()
    (slow.path / "one/a.txt").rename(slow.path / "one/b.txt")
    path = slow.write("one/c.txt")

    async def story() -> Listing:
        return await Writer(path).during(slow.source.look(slow.position, slow.known))

    (row,) = rows(asyncio.run(story()))

    assert (row.id, row.renamed) == ("b.txt", True)


# --- what is gone --------------------------------------------------------------------------------------------------


def remove(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()


def test_folder_is_gone_when_it_lacks_in_two_looks_far_enough_apart(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path, settle_s=0.02)
    inbox.write("one/item.md")
    inbox.write("two/item.md")
    inbox.look()
    remove(inbox.path / "one")

    for passed in (0, 0.01, 0.009):
        inbox.now += passed
        assert refs(inbox.look(), Presence.GONE) == []
    inbox.now += 0.002
    listing = inbox.look()

    assert (refs(listing), refs(listing, Presence.GONE)) == (["two"], ["one"])
    assert [sighting.reason for sighting in listing.sightings if sighting.presence is Presence.GONE] == ["deleted"]
    assert refs(inbox.look(), Presence.GONE) == []


def test_folder_that_was_back_in_between_has_to_lack_twice_again(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path, settle_s=0.02)
    inbox.write("one/item.md")
    inbox.look()
    for _ in range(3):
        remove(inbox.path / "one")
        inbox.now += 100
        assert refs(inbox.look(), Presence.GONE) == []
        inbox.write("one/item.md")
        inbox.now += 100
        assert refs(inbox.look()) == ["one"]


def test_folder_that_lacks_when_the_clock_was_set_back_is_still_gone_one_day(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path, settle_s=0.02)
    inbox.write("one/item.md")
    inbox.look()
    remove(inbox.path / "one")
    inbox.look()
    inbox.now -= 1e8
    inbox.look()
    inbox.now += 1

    assert refs(inbox.look(), Presence.GONE) == ["one"]


def test_inbox_that_is_missing_is_a_source_that_cannot_be_asked(inbox: Inbox) -> None:
    inbox.write("one/item.md")
    inbox.look()
    inbox.path.rename(inbox.path.with_name("away"))

    with pytest.raises(SourceError, match="No such file"):
        inbox.look()
    inbox.path.with_name("away").rename(inbox.path)
    assert refs(inbox.look()) == ["one"]


def test_other_empty_inbox_is_a_source_that_cannot_be_asked_and_ends_nothing(inbox: Inbox) -> None:
    """What is left where a file system was mounted is an empty directory of another device and inode."""
    inbox.write("one/item.md")
    inbox.look()
    inbox.path.rename(inbox.path.with_name("mounted"))
    inbox.path.mkdir()

    for _ in range(4):
        inbox.now += 1000
        with pytest.raises(SourceError, match="not mounted"):
            inbox.look()

    inbox.path.rmdir()
    inbox.path.with_name("mounted").rename(inbox.path)
    listing = inbox.look()
    assert (refs(listing), rows(listing)) == (["one"], [])


def test_other_inbox_with_strange_items_only_ends_nothing(inbox: Inbox) -> None:
    inbox.write("one/item.md")
    inbox.look()
    inbox.path.rename(inbox.path.with_name("mounted"))
    inbox.path.mkdir()
    inbox.write("lost+found/item.md")

    with pytest.raises(SourceError):
        inbox.look()


def test_inbox_that_was_made_anew_with_its_items_is_taken(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path / "inbox", settle_s=0.02)
    inbox.path.mkdir()
    inbox.write("one/item.md")
    inbox.write("two/item.md")
    inbox.look()
    inbox.path.rename(inbox.path.with_name("old"))
    inbox.path.mkdir()
    inbox.write("one/item.md")
    inbox.write("one/a.txt")

    first = inbox.look()
    assert (refs(first), refs(first, Presence.GONE), ids(rows(first))) == (["one"], [], ["a.txt"])
    inbox.now += 1
    assert refs(inbox.look(), Presence.GONE) == ["two"]


def test_other_inbox_is_taken_when_nothing_is_open(inbox: Inbox) -> None:
    inbox.look()
    inbox.path.rename(inbox.path.with_name("old"))
    inbox.path.mkdir()
    inbox.write("one/item.md")

    assert refs(inbox.look()) == ["one"]


def test_empty_inbox_ends_nothing_where_nobody_remembers_which_one_it_was(tmp_path: Path) -> None:
    """`portable/` came to another machine without the inbox; or the position was lost, and it is not mounted."""
    inbox = Inbox(tmp_path, settle_s=0.02)
    inbox.known = {"directory:inbox/one": Known(is_open=True, is_away=False, url="file:///inbox/one/item.md")}

    for _ in range(3):
        inbox.now += 1000
        try:
            listing = inbox.look()
        except SourceError:
            continue
        assert refs(listing, Presence.GONE) == []


@pytest.mark.parametrize(
    ("position", "is_known", "is_ours", "made"),
    [(None, False, True, True), (None, False, False, False), (None, True, True, False), ({}, False, True, False)],
)
def test_inbox_is_made_at_the_very_start_and_only_below_the_state_root(
    tmp_path: Path, position: Any, *, is_known: bool, is_ours: bool, made: bool
) -> None:
    path = tmp_path / "inbox"
    source = DirectorySource("inbox", path, settle_s=0, authorized=frozenset({ME}), is_ours=is_ours)
    known = {"directory:inbox/one": Known(is_open=True, is_away=False, url="")} if is_known else {}

    if made:
        assert asyncio.run(source.look(position, known)).items == 0
        assert path.stat().st_mode & 0o777 == 0o700
    else:
        with pytest.raises(SourceError):
            asyncio.run(source.look(position, known))
        assert not path.exists()


def test_folder_that_cannot_be_read_costs_itself_only(inbox: Inbox, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("bad", "good"):
        inbox.write(f"{name}/item.md")
    inbox.look()
    inbox.write("good/a.txt")
    real = os.scandir

    def scandir(path: bytes) -> Any:
        if bytes(path).endswith(b"/bad"):
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    for _ in range(2):
        inbox.now += 1000
        listing = inbox.look()
        assert "good" in refs(listing)
        assert refs(listing, Presence.GONE) == []
        if rows(listing):
            assert ids(rows(listing)) == ["a.txt"]
            inbox.write("good/b.txt")
    assert ids(inbox.thread("good").entries) == ["a.txt", "b.txt"]

    monkeypatch.undo()
    inbox.write("bad/c.txt")
    assert "c.txt" in ids(rows(inbox.look()))
    assert rows(inbox.look()) == []


# --- with the rest of the poller -----------------------------------------------------------------------------------


@in_loop
async def test_odd_inbox_over_ten_looks_and_restarts_delivers_each_once(tmp_path: Path) -> None:
    """CASES 96."""
    runner, root = FakeRunner(), new_root(tmp_path / "state")
    inbox = Inbox(tmp_path / "inbox")
    inbox.path.mkdir()
    inbox.write("one/item.md", "the body", at=make.NOON)

    async def look(count: int) -> None:
        for _ in range(count):
            life = Life(root, runner, inbox.source, rules=make.rules(ME, folds_case=False))
            await life.begin()
            await life.cycle()
            await life.die()

    await look(2)
    inbox.write("one/old", "last year's", at=LAST_YEAR)
    inbox.write("one/future", "next century's", at=NEXT_CENTURY)
    inbox.write("one/same-1", "of one second", at=make.NOON)
    inbox.write("one/same-2", "of one second, too", at=make.NOON)
    inbox.write(b"one/line\nbreak", "odd")
    for odd in (".dot", "backup~"):
        inbox.write(f"one/{odd}", "no")
    (inbox.path / "one/link").symlink_to("/etc/passwd")
    os.mkfifo(inbox.path / "one/fifo")
    await look(5)
    inbox.write("one/old", "other words", at=LAST_YEAR)
    (inbox.path / "one/future").rename(inbox.path / "one/renamed")
    await look(5)

    assert sorted(payload["body"] for payload in runner.got) == sorted(
        ["the body", "last year's", "next century's", "of one second", "of one second, too", "odd"]
    )
    assert [payload["body"] for payload in runner.got if payload["body"].startswith("of")] == [
        "of one second",
        "of one second, too",
    ]


@in_loop
async def test_file_renamed_while_the_spawn_that_carries_it_runs_is_not_delivered_again(tmp_path: Path) -> None:
    runner, root = FakeRunner(default=None), new_root(tmp_path / "state")
    inbox = Inbox(tmp_path / "inbox")
    inbox.path.mkdir()
    inbox.write("one/item.md", "the body")
    inbox.write("one/a.txt", "a comment")
    life = Life(root, runner, inbox.source, rules=make.rules(ME, folds_case=False))
    await life.cycle()
    assert [entry["id"] for entry in runner.got[0]["thread"]] == ["a.txt"]

    (inbox.path / "one/a.txt").rename(inbox.path / "one/b.txt")
    await life.cycle()
    runner.default = None
    runner.finish("directory:inbox/one/spawn:1")
    for _ in range(3):
        await life.cycle()

    assert len(runner.got) == 1


@in_loop
async def test_item_md_that_came_later_is_a_comment_also_when_the_thread_is_read(tmp_path: Path) -> None:
    runner, root = FakeRunner(), new_root(tmp_path / "state")
    inbox = Inbox(tmp_path / "inbox")
    inbox.path.mkdir()
    inbox.write("one/notes.txt", "the body")
    for _ in range(3):
        life = Life(root, runner, inbox.source, rules=make.rules(ME, folds_case=False))
        await life.begin()
        await life.cycle()
        await life.die()
        inbox.write("one/item.md", "a comment")
        root.position("inbox").unlink()

    assert [(payload["kind"], payload["body"]) for payload in runner.got] == [
        ("spawn", "the body"),
        ("comment", "a comment"),
    ]


@in_loop
async def test_folder_that_was_removed_is_closed_and_starts_again_when_it_is_back(tmp_path: Path) -> None:
    runner, root = FakeRunner(), new_root(tmp_path / "state")
    inbox = Inbox(tmp_path / "inbox")
    inbox.path.mkdir()
    inbox.write("one/item.md", "the body")
    inbox.write("one/a.txt", "a comment")
    life = Life(root, runner, inbox.source, rules=make.rules(ME, folds_case=False))
    await life.cycle()
    remove(inbox.path / "one")
    for _ in range(3):
        inbox.now += 100
        await life.cycle()
    inbox.write("one/item.md", "the body")
    inbox.write("one/b.txt", "another")
    await life.cycle()

    assert [(payload["deliveryId"].rpartition("/")[2], payload.get("reason")) for payload in runner.got] == [
        ("spawn:1", None),
        ("close:1", "deleted"),
        ("spawn:2", None),
    ]
