"""What the `directory` source makes of folders and files (contract R9)."""

from __future__ import annotations

import itertools
import os
import pwd
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.clock import NOON
from support.inbox import LAST_YEAR, ME, NEXT_CENTURY, Inbox, ids, refs, rows, told
from the_loop.core.model import Presence
from the_loop.sources.base import SourceError, Thread

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="to give a file away takes root")


@pytest.fixture
def inbox(tmp_path: Path) -> Inbox:
    path = tmp_path / "inbox"
    path.mkdir()
    return Inbox(path)


# --- an item ----------------------------------------------------------------------------------------------------------


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

    (sighting,) = inbox.poll().sightings
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

    listing = inbox.poll()

    assert refs(listing) == ["one", "two"]
    assert listing.items == 2


def test_body_is_chosen_once(inbox: Inbox) -> None:
    """What comes later is a comment, whatever its name, in a look and in a thread alike."""
    inbox.write("one/notes.txt", "the body")
    first = inbox.poll()
    assert rows(first) == []

    inbox.write("one/item.md", "a comment")
    inbox.write("one/a.txt", "another")
    later = inbox.poll()

    assert ids(rows(later)) == ["a.txt", "item.md"]
    assert later.sightings[0].item is not None
    assert later.sightings[0].item.url.endswith("/one/notes.txt")
    thread = inbox.thread()
    assert thread.item is not None
    assert (thread.item.body, ids(thread.entries)) == ("the body", ["a.txt", "item.md"])


def test_body_that_was_removed_stays_the_body(inbox: Inbox) -> None:
    inbox.write("one/item.md", "the body")
    inbox.write("one/a.txt", "a comment")
    inbox.poll()

    (inbox.path / "one/item.md").unlink()
    inbox.poll()

    assert "a.txt" in ids(inbox.thread().entries)


def test_folder_that_was_emptied_is_still_there(inbox: Inbox) -> None:
    inbox.write("one/item.md")
    inbox.poll()
    (inbox.path / "one/item.md").unlink()

    for _ in range(3):
        inbox.now += 100
        listing = inbox.poll()
        assert (refs(listing), refs(listing, Presence.GONE)) == (["one"], [])


def test_thread_of_a_folder_that_is_not_there_has_no_item(inbox: Inbox) -> None:
    assert inbox.thread("nowhere") == Thread(None, ())


def test_owns_its_own_items_only(inbox: Inbox) -> None:
    assert inbox.source.owns("directory:inbox/one")
    for ref in ("directory:inbox2/one", "directory:in/one", "github:inbox/one#1", "directory:inbox"):
        assert not inbox.source.owns(ref)


# --- new entries ------------------------------------------------------------------------------------------------------


def test_new_file_is_one_row_once_over_ten_looks(inbox: Inbox) -> None:
    inbox.write("one/item.md")
    inbox.poll()
    inbox.write("one/a.txt", "do it", at=LAST_YEAR)

    (row,) = rows(inbox.poll())

    assert (row.key, row.body, row.author, bool(row.renamed_from)) == ("comment:a.txt", "do it", ME, False)
    assert (row.url, row.created_at) == (f"file://{inbox.path}/one/a.txt", "2020-09-13T12:26:40.000Z")
    assert [rows(inbox.poll()) for _ in range(10)] == [[]] * 10


def test_newness_is_a_name_and_no_time(inbox: Inbox) -> None:
    inbox.write("one/item.md", at=NOON)
    inbox.poll()
    inbox.write("one/old.txt", at=LAST_YEAR)
    inbox.write("one/future.txt", at=NEXT_CENTURY)
    inbox.write("one/same-1.txt", at=NOON + 5)
    inbox.write("one/same-2.txt", at=NOON + 5)

    found = rows(inbox.poll())

    assert ids(found) == ["future.txt", "old.txt", "same-1.txt", "same-2.txt"]
    assert {row.created_at[:4] for row in found} == {"2020", "2100", "2023"}
    assert [rows(inbox.poll()) for _ in range(10)] == [[]] * 10


def test_copy_of_a_file_that_is_still_there_is_new(inbox: Inbox) -> None:
    inbox.write("one/item.md")
    inbox.write("one/a.txt", "yes", at=LAST_YEAR)
    inbox.poll()
    inbox.write("one/b.txt", "yes", at=LAST_YEAR)

    (row,) = rows(inbox.poll())

    assert (row.id, bool(row.renamed_from)) == ("b.txt", False)


def test_renamed_file_is_told_apart(inbox: Inbox) -> None:
    inbox.write("one/item.md")
    inbox.write("one/a.txt", "yes")
    inbox.poll()
    (inbox.path / "one/a.txt").rename(inbox.path / "one/b.txt")

    (row,) = rows(inbox.poll())

    assert (row.id, bool(row.renamed_from)) == ("b.txt", True)
    assert rows(inbox.poll()) == []


def test_same_words_long_after_a_file_was_deleted_are_new_words(inbox: Inbox) -> None:
    """A person who tidies up and says "yes" once more is to be heard: nothing was renamed."""
    inbox.write("one/item.md")
    inbox.write("one/a.txt", "yes")
    inbox.poll()
    (inbox.path / "one/a.txt").unlink()
    for _ in range(3):
        inbox.now += 1000
        inbox.poll()
    inbox.write("one/b.txt", "yes")

    (row,) = rows(inbox.poll())

    assert (row.id, bool(row.renamed_from)) == ("b.txt", False)


def correct_and_rename(path: Path) -> None:
    path.chmod(0o644)
    path.rename(path.with_name("b.txt"))


def write_again_under_another_name(path: Path) -> None:
    path.unlink()
    again = path.with_name("b.txt")
    again.write_text("yes")
    again.chmod(0o644)


@pytest.mark.parametrize("mend", [correct_and_rename, write_again_under_another_name], ids=lambda mend: mend.__name__)
@pytest.mark.parametrize("looks_between", [0, 1], ids=["at once", "corrected before"])
def test_file_without_an_author_has_no_renames(inbox: Inbox, mend: Callable[[Path], None], looks_between: int) -> None:
    """It was dropped, not delivered: with the right mode under a new name it is new."""
    inbox.write("one/item.md")
    inbox.poll()
    path = inbox.write("one/a.txt", "yes")
    path.chmod(0o664)
    (dropped,) = rows(inbox.poll())
    for _ in range(looks_between):
        path.chmod(0o644)
        assert rows(inbox.poll()) == []

    mend(path)
    (row,) = rows(inbox.poll())

    assert (dropped.author, row.id, row.author, row.renamed_from) == (None, "b.txt", ME, ())


def test_renamed_file_is_told_apart_however_often(inbox: Inbox) -> None:
    inbox.write("one/item.md")
    inbox.write("one/a.txt", "yes")
    inbox.poll()
    found = []
    for name, next_name in itertools.pairwise("abcd"):
        (inbox.path / f"one/{name}.txt").rename(inbox.path / f"one/{next_name}.txt")
        found += rows(inbox.poll())

    assert [(row.id, row.renamed_from[-1]) for row in found] == [
        ("b.txt", "comment:a.txt"),
        ("c.txt", "comment:b.txt"),
        ("d.txt", "comment:c.txt"),
    ]


@needs_root
def test_same_words_of_another_person_are_new_words(inbox: Inbox) -> None:
    inbox.write("one/item.md")
    inbox.write("one/a.txt", "yes")
    inbox.poll()
    (inbox.path / "one/a.txt").unlink()
    os.chown(inbox.write("one/b.txt", "yes"), pwd.getpwnam("nobody").pw_uid, -1)

    (row,) = rows(inbox.poll())

    assert (row.author, row.renamed_from) == ("nobody", ())


def test_cursor_without_authors_is_not_a_fault(inbox: Inbox) -> None:
    inbox.write("one/item.md")
    inbox.write("one/a.txt", "yes")
    inbox.poll()
    files = inbox.cursor["folders"]["one"]["files"]
    files["a.txt"] = files["a.txt"][:2]
    assert rows(inbox.poll()) == []

    (inbox.path / "one/a.txt").rename(inbox.path / "one/b.txt")
    inbox.poll()
    (inbox.path / "one/b.txt").rename(inbox.path / "one/c.txt")

    (row,) = rows(inbox.poll())
    assert row.renamed_from == ("comment:b.txt",)


def test_other_content_under_a_known_name_is_an_edit_told_once(inbox: Inbox) -> None:
    inbox.write("one/item.md")
    inbox.write("one/a.txt", "yes", at=LAST_YEAR)
    inbox.poll()
    inbox.write("one/a.txt", "no!", at=LAST_YEAR)
    inbox.write("one/item.md", "another body")

    listing = inbox.poll()

    assert rows(listing) == []
    notes = told(listing, "poll.edited")
    assert sorted(note.fields["key"] for note in notes) == ["comment:a.txt", "comment:item.md"]
    assert [inbox.poll().notes for _ in range(3)] == [[]] * 3


def test_touched_file_is_neither_new_nor_an_edit(inbox: Inbox) -> None:
    path = inbox.write("one/item.md")
    inbox.poll()
    os.utime(path, (LAST_YEAR, LAST_YEAR))
    path.chmod(0o600)

    listing = inbox.poll()

    assert (rows(listing), listing.notes) == ([], [])


def test_file_replaced_by_the_same_content_is_neither_new_nor_an_edit(inbox: Inbox) -> None:
    inbox.write("one/item.md", "text")
    inbox.poll()
    inbox.write("one/item.md.tmp", "text").replace(inbox.path / "one/item.md")

    listing = inbox.poll()

    assert (rows(listing), listing.notes) == ([], [])


# --- what is ignored --------------------------------------------------------------------------------------------------


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

    assert rows(inbox.poll()) == []
    assert inbox.thread().entries == []
    inbox.write("two/.only-hidden")
    assert refs(inbox.poll()) == ["one"]


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
        first, *later = [inbox.poll() for _ in range(10)]

    names = ["dangling", "fifo", "link", "socket", "sub", "to-item"]
    assert rows(first) == []
    assert sorted(note.fields["deliveryId"].rpartition("/")[2] for note in told(first, "dispatch.dropped")) == names
    assert [(rows(listing), listing.notes) for listing in later] == [([], [])] * 9
    assert inbox.thread().entries == []


def test_item_that_is_a_fifo_and_nothing_else_is_no_item_and_no_hang(inbox: Inbox) -> None:
    (inbox.path / "one").mkdir()
    os.mkfifo(inbox.path / "one" / "item.md")

    assert refs(inbox.poll()) == []
    assert inbox.thread() == Thread(None, ())


# --- who wrote it -----------------------------------------------------------------------------------------------------


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
    inbox.poll()
    spoil(inbox.write("one/a.txt"))

    (row,) = rows(inbox.poll())

    assert row.author is None
    assert [entry.author for entry in inbox.thread().entries] == [None]


def test_file_in_a_folder_of_somebody_who_is_not_authorised_has_no_author(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path, authorized=frozenset({"somebody-else"}))
    inbox.write("one/item.md")
    inbox.write("one/a.txt")

    (sighting,) = inbox.poll().sightings

    assert sighting.item is not None
    assert (sighting.item.author, [row.author for row in sighting.rows]) == (None, [None])


def test_author_is_the_owner_of_the_file(inbox: Inbox) -> None:
    """To give a file away takes root; for anybody else the owner is whoever runs the tests."""
    inbox.write("one/item.md")
    path = inbox.write("one/a.txt")
    if os.geteuid() == 0:
        os.chown(path, pwd.getpwnam("nobody").pw_uid, -1)

    (row,) = rows(inbox.poll())

    assert row.author == ("nobody" if os.geteuid() == 0 else ME)


class NameService:
    """Stands in for `pwd.getpwuid`: names by uid, and the questions it was asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, names: dict[int, str]) -> None:
        self.names = names
        self.asked: list[int] = []
        monkeypatch.setattr("the_loop.sources.textfiles.pwd.getpwuid", self._answer)

    def _answer(self, uid: int) -> pwd.struct_passwd:
        self.asked.append(uid)
        if uid not in self.names:
            raise KeyError(f"getpwuid(): uid not found: {uid}")  # what a name service that is down looks like
        return pwd.struct_passwd((self.names[uid], "x", uid, uid, "", "/", "/bin/sh"))


@pytest.mark.parametrize("known", [True, False], ids=["known item", "new item"])
def test_file_written_while_the_name_service_is_out_is_read_later_and_told(
    inbox: Inbox, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    inbox.write("one/item.md")
    if known:
        inbox.poll()
    service = NameService(monkeypatch, {})
    inbox.write("one/a.txt", "do it")

    without = [inbox.poll() for _ in range(3)]
    service.names = {os.geteuid(): ME}
    (sighting,) = inbox.poll().sightings

    uid = os.geteuid()
    cause = f"its owner, uid {uid}, has no user name now, see `getent passwd {uid}`"
    fault = f"cannot read '{inbox.path}/one': {cause}"
    assert [refs(listing) for listing in without] == [[]] * 3
    assert [list(map(str, listing.faults)) for listing in without] == [[fault]] * 3
    assert sighting.item is not None
    assert sighting.item.author == ME
    assert [(row.id, row.author) for row in sighting.rows] == [("a.txt", ME)]


@needs_root
def test_file_whose_owner_cannot_be_named_waits_alone_and_is_neither_gone_nor_an_answer(
    inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = NameService(monkeypatch, {0: ME})
    inbox.write("one/item.md")
    inbox.write("one/old.txt", "old")
    inbox.poll()
    os.chown(inbox.write("one/a.txt", "by another"), 4711, -1)
    inbox.write("one/b.txt", "mine")
    os.chown(inbox.path / "one/old.txt", 4711, -1)

    listing = inbox.poll()

    assert [(row.id, row.author) for row in rows(listing)] == [("b.txt", ME)]
    (fault,) = listing.faults
    assert str(fault).startswith(f"cannot read '{inbox.path}/one/a.txt': its owner, uid 4711, has no user name now")
    with pytest.raises(SourceError, match="uid 4711"):
        inbox.thread()

    inbox.poll()
    service.names[4711] = "late"
    listing = inbox.poll()

    assert ([(row.id, row.author, row.renamed_from) for row in rows(listing)], listing.faults) == (
        [("a.txt", "late", ())],
        [],
    )
    assert ids(inbox.thread().entries) == ["a.txt", "b.txt", "old.txt"]


@needs_root
def test_new_folder_with_a_file_whose_owner_cannot_be_named_waits_as_a_whole(
    inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its body is chosen once: not before all of its files are known."""
    service = NameService(monkeypatch, {0: ME})
    os.chown(inbox.write("one/item.md", "the body"), 4711, -1)
    inbox.write("one/a.txt")

    assert (refs(inbox.poll()), len(inbox.poll().faults)) == ([], 1)
    service.names[4711] = "late"
    (sighting,) = inbox.poll().sightings

    assert sighting.item is not None
    assert (sighting.item.author, sighting.item.url.rpartition("/")[2]) == ("late", "item.md")


def test_uid_that_was_given_to_another_account_has_the_new_name_at_once(
    inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = NameService(monkeypatch, {os.geteuid(): ME})
    inbox.write("one/item.md")
    inbox.poll()
    service.names[os.geteuid()] = "newcomer"
    inbox.write("one/a.txt")

    (row,) = rows(inbox.poll())

    assert row.author is None  # the folder is not an authorised user's any more


def test_each_owner_is_looked_up_once_in_a_poll(inbox: Inbox, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in range(20):
        for file in range(5):
            inbox.write(f"{folder}/{file}.txt")
    service = NameService(monkeypatch, {os.geteuid(): ME})

    inbox.poll()
    inbox.thread("3")
    assert service.asked == [os.geteuid()]
    inbox.poll()
    assert service.asked == [os.geteuid()] * 2


@pytest.mark.parametrize("names", [{}, {os.geteuid(): "has-a-name"}], ids=["without a name", "with a name"])
def test_user_that_is_authorised_by_the_uid_is_called_by_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: dict[int, str]
) -> None:
    uid = str(os.geteuid())
    inbox = Inbox(tmp_path, authorized=frozenset({uid}))
    NameService(monkeypatch, names)
    inbox.write("one/item.md")

    (sighting,) = inbox.poll().sightings

    assert sighting.item is not None
    assert sighting.item.author == uid
