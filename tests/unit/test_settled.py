"""Settled ids in a log beside the record: what counts, what holds the item, and what a comment costs."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from support.file_faults import failing
from support.shelf import REF, Shelf, ledger
from the_loop import settled
from the_loop.cli import cli
from the_loop.core.ledger import Ledger, UnreadableLedger, accept, after_receipt, decode, forgotten, settle
from the_loop.ledgers import HeldItem, UnreadItem
from the_loop.settled import Log, append, begin, read


def keys(count: int, first: int = 100) -> list[str]:
    return [f"comment:{number}" for number in range(first, first + count)]


def long_lived(shelf: Shelf, count: int = 200) -> Ledger:
    """A ledger with so many more settled ids, in a log."""
    made = settle(ledger(), *keys(count))
    shelf.ledgers.save(made)
    assert shelf.names == shelf.files
    return made


def on_disk(shelf: Shelf) -> dict[str, Any]:
    tree: dict[str, Any] = json.loads(shelf.path.read_bytes())
    return tree


# --- one log ---


@settings(max_examples=100, deadline=None)
@given(st.frozensets(st.text(max_size=8)), st.frozensets(st.text(max_size=8)))
def test_ids_of_any_text_are_read_as_they_were_written(
    tmp_path_factory: pytest.TempPathFactory, first: frozenset[str], more: frozenset[str]
) -> None:
    path = tmp_path_factory.mktemp("log") / "x.settled"

    log = begin(path, "a:b/ä\n", 7, first)
    longer = append(path, "a:b/ä\n", log, more)

    content = read(path, "a:b/ä\n", longer)
    assert content is not None
    assert (content.ids, content.behind, content.is_torn) == (first | more, frozenset(), False)
    content = read(path, "a:b/ä\n", log)
    assert content is not None
    assert (content.ids, content.behind, content.is_torn) == (first, more, bool(more))
    assert longer.length == path.stat().st_size
    assert path.read_bytes().isascii()


def test_append_cuts_off_what_is_behind_the_named_length(tmp_path: Path) -> None:
    path = tmp_path / "x.settled"
    log = begin(path, REF, 7, ["comment:1"])
    with path.open("ab") as file:
        file.write(b"comment:2\ncomm")

    log = append(path, REF, log, ["comment:3"])

    assert path.read_bytes().splitlines()[1:] == [b"comment:1", b"comment:3"]
    assert log.length == path.stat().st_size


@pytest.mark.parametrize("other", [Log(8, 200), Log(7, 10_000)], ids=["generation", "longer"])
def test_append_to_another_log_changes_nothing(tmp_path: Path, other: Log) -> None:
    path = tmp_path / "x.settled"
    begin(path, REF, 7, keys(50))
    before = path.read_bytes()

    with pytest.raises(OSError, match="not the file that was written before"):
        append(path, REF, other, ["comment:3"])

    assert path.read_bytes() == before


def test_what_is_behind_may_be_anything(tmp_path: Path) -> None:
    path = tmp_path / "x.settled"
    log = begin(path, REF, 7, ["comment:1"])
    with path.open("ab") as file:
        file.write(b"\0\0\n\xff\n\n")

    content = read(path, REF, log)

    assert content is not None
    assert (content.ids, content.behind, content.is_torn) == ({"comment:1"}, frozenset(), True)  # type: ignore[comparison-overlap]


# --- record and log ---


def test_ids_stay_in_the_record_until_they_are_too_many(shelf: Shelf) -> None:
    few = settle(ledger(), *keys(settled.INLINE - 1))
    shelf.ledgers.save(few)
    assert shelf.names == [shelf.path.name]
    assert set(on_disk(shelf)["poll"]["seenComments"]) == few.poll.seen_comments

    many = settle(few, "comment:1000")
    shelf.ledgers.save(many)

    assert shelf.names == shelf.files
    assert on_disk(shelf)["poll"]["seenComments"] == [{"generation": 1_700_000_000, "length": shelf.log.stat().st_size}]
    assert set(shelf.log.read_text().splitlines()[1:]) == many.poll.seen_comments
    for again in (shelf.ledgers, shelf.opened()):
        assert again.get(REF) == many


def test_log_is_only_appended_to_and_seldom(shelf: Shelf) -> None:
    one = long_lived(shelf)
    before = shelf.log.read_bytes()
    sizes = set()

    for number in range(2 * settled.INLINE + 2):
        one = settle(one, f"comment:{1000 + number}")
        shelf.ledgers.save(one)
        sizes.add(shelf.log.stat().st_size)

    assert shelf.log.read_bytes().startswith(before)
    assert len(sizes) == 3
    assert shelf.opened().get(REF) == one


def test_show_prints_all_settled_ids_as_ever(shelf: Shelf) -> None:
    made = long_lived(shelf)

    done = CliRunner().invoke(cli, ["--state-root", str(shelf.root.path), "ledger", "show", REF])

    assert json.loads(done.stdout)["poll"]["seenComments"] == sorted(made.poll.seen_comments)


def test_record_with_a_log_is_not_a_ledger_to_a_version_without_logs(shelf: Shelf) -> None:
    """It must hold the item: without its ids everything would be delivered again."""
    long_lived(shelf)

    with pytest.raises(UnreadableLedger, match="seenComments"):
        decode(shelf.path.read_bytes(), REF)


def test_unknown_keys_survive_beside_a_log(shelf: Shelf) -> None:
    long_lived(shelf)
    tree = on_disk(shelf)
    tree["later"] = tree["poll"]["later"] = [1, {"x": None}]
    shelf.put(tree)

    found = shelf.ledgers.get(REF)
    assert found is not None
    shelf.ledgers.save(accept(found, "comment:5000", "alice"))

    after = on_disk(shelf)
    assert after["later"] == after["poll"]["later"] == [1, {"x": None}]
    assert shelf.opened().get(REF) == accept(found, "comment:5000", "alice")


def cut(log: Path) -> None:
    log.write_bytes(log.read_bytes()[:-1])


def exchange(log: Path) -> None:
    begin(log, REF, 5, keys(300))


def of_another_item(log: Path) -> None:
    log.write_bytes(log.read_bytes().replace(b"octo/repo#1", b"octo/repo#2"))


def zero(log: Path) -> None:
    content = log.read_bytes()
    log.write_bytes(content[:200] + bytes(100) + content[300:])


def blank(log: Path) -> None:
    content = log.read_bytes()
    log.write_bytes(content[:200] + b"\n\n" + content[202:])


def link(log: Path) -> None:
    log.rename(log.with_name("elsewhere"))
    log.symlink_to("elsewhere")


def make_folder(log: Path) -> None:
    log.unlink()
    log.mkdir()


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (Path.unlink, "is missing"),
        (cut, "bytes, and not"),
        (lambda log: log.write_bytes(b""), "is not generation"),
        (exchange, "is not generation 1700000000"),
        (of_another_item, "is not generation"),
        (zero, "damaged"),
        (blank, "damaged"),
        (link, "not a regular file"),
        (make_folder, "not a regular file"),
    ],
    ids=["missing", "cut", "empty", "generation", "item", "zeroed", "blank", "link", "folder"],
)
def test_log_that_cannot_be_used_holds_its_item_and_a_repaired_one_brings_it_back(
    shelf: Shelf, fault: Callable[[Path], object], words: str
) -> None:
    made = long_lived(shelf)
    record, log = shelf.path.read_bytes(), shelf.log.read_bytes()
    fault(shelf.log)

    for _ in range(2):
        again = shelf.opened()
        again.load()
        assert words in shelf.held(again)
        assert again.with_pending() == []
    assert shelf.path.with_name(f"{shelf.path.name}.bad-1").read_bytes() == record

    if shelf.log.is_symlink() or shelf.log.is_file():
        shelf.log.unlink()
    elif shelf.log.is_dir():
        shelf.log.rmdir()
    shelf.log.write_bytes(log)
    shelf.path.write_bytes(record)
    assert again.get(REF) == made  # type: ignore[possibly-undefined]
    assert again.held() == {}


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.EMFILE], ids=errno.errorcode.get)
def test_log_that_cannot_be_read_for_now_changes_nothing(shelf: Shelf, number: int) -> None:
    made = long_lived(shelf)
    before = [path.read_bytes() for path in (shelf.path, shelf.log)]
    again = shelf.opened()

    with failing("open", number, shelf.log), pytest.raises(UnreadItem):
        again.get(REF)

    assert [path.read_bytes() for path in (shelf.path, shelf.log)] == before
    assert shelf.names == shelf.files
    assert again.get(REF) == made


@pytest.mark.parametrize("call", ["open", "ftruncate", "pwrite", "fsync"])
def test_save_when_the_log_cannot_be_written_leaves_the_old_one_in_force(shelf: Shelf, call: str) -> None:
    one = settle(long_lived(shelf), *keys(settled.INLINE, 1000))
    shelf.ledgers.save(one)
    with shelf.log.open("ab") as file:
        file.write(b"torn")
    new = settle(one, "comment:2000")

    with (
        mock.patch.object(os, call, side_effect=OSError(errno.EIO, "Input/output error")),
        pytest.raises(OSError, match="output"),
    ):
        shelf.ledgers.save(new)

    assert shelf.ledgers.get(REF) == shelf.opened().get(REF) == one
    shelf.ledgers.save(new)
    assert shelf.ledgers.get(REF) == shelf.opened().get(REF) == new


def test_save_that_failed_leaves_nothing_that_a_later_start_takes_for_settled(shelf: Shelf) -> None:
    """The ids of a record that was not written are cut off before the next one, which may not settle them."""
    one = settle(long_lived(shelf), *keys(settled.INLINE, 1000))
    shelf.ledgers.save(one)
    with (
        mock.patch("the_loop.durable.replace_file", side_effect=OSError(28, "No space left")),
        pytest.raises(OSError, match="space"),
    ):
        shelf.ledgers.save(after_receipt(one, "comment:2"))
    assert shelf.log.read_bytes().endswith(b"comment:2\n")

    other = accept(one, "comment:3000", "alice")
    shelf.ledgers.save(other)

    assert b"comment:2\n" not in shelf.log.read_bytes()
    assert shelf.opened().get(REF) == other


def test_reset_forgets_the_log_as_well(shelf: Shelf) -> None:
    made = long_lived(shelf)

    shelf.ledgers.save(forgotten(made))

    assert shelf.names == [shelf.path.name]
    assert shelf.opened().get(REF) == forgotten(made)


def test_reset_of_a_held_item_keeps_its_log_under_another_name(shelf: Shelf) -> None:
    long_lived(shelf)
    log = shelf.log.read_bytes()
    shelf.path.write_bytes(b"garbage")
    again = shelf.opened()
    shelf.held(again)

    again.reset_held(REF)

    assert shelf.log.with_name(f"{shelf.log.name}.bad-1").read_bytes() == log
    assert not shelf.log.exists()
    found = again.get(REF)
    assert found is not None
    assert found.poll.seen_comments == frozenset()
    again.save(settle(found, *keys(100)))
    assert shelf.opened().get(REF) == again.get(REF)


def test_generation_is_never_the_same_again(shelf: Shelf) -> None:
    """A record that names a log of before must not be taken for one of the log that is there now."""
    generations = []
    for number in range(3):
        shelf.ledgers.save(settle(ledger(), *keys(200 + number)))
        shelf.log.unlink()
        shelf.ledgers.save(settle(ledger(), *keys(300 + number)))
        generations.append(on_disk(shelf)["poll"]["seenComments"][-1]["generation"])

    assert generations == sorted(set(generations))


# --- what a comment costs ---


def test_comment_on_an_item_with_5000_settled_ids_writes_under_10_kib(shelf: Shelf) -> None:
    one = long_lived(shelf, 5000)
    written = 0
    worst = 0
    real_write, real_pwrite = os.write, os.pwrite

    def count(descriptor: int, content: Any, *at: int) -> int:
        nonlocal written
        done = real_pwrite(descriptor, content, *at) if at else real_write(descriptor, content)
        written += done
        return done

    with mock.patch.object(os, "write", count), mock.patch.object(os, "pwrite", count):
        for number in range(settled.INLINE + 2):
            written = 0
            one = accept(one, f"comment:{9000 + number}", "alice")
            shelf.ledgers.save(one)
            one = after_receipt(one, f"comment:{9000 + number}")
            shelf.ledgers.save(one)
            worst = max(worst, written)

    assert 0 < worst < 10_240
    assert shelf.opened().get(REF) == one


def test_held_record_is_left_by_whoever_may_not_write(shelf: Shelf) -> None:
    long_lived(shelf)
    shelf.log.unlink()
    before = shelf.path.read_bytes()

    with pytest.raises(HeldItem):
        shelf.opened(may_write=False).get(REF)

    assert (shelf.path.read_bytes(), shelf.names) == (before, [shelf.path.name])
