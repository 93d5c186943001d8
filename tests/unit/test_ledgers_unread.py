"""Where it cannot be found out what a ledger says, nothing changes: only ENOENT means "none" (contract section 3)."""

from __future__ import annotations

import errno
import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from support import factories as make
from support.fakes import FakeRunner, FakeSource
from support.file_faults import failing
from support.life import Life, in_virtual_loop, next_life
from support.shelf import LONG, REF, Shelf, ledger
from the_loop.cli import cli
from the_loop.ledgers import HeldItem, UnreadItem
from the_loop.state import StateRoot, StateRootError

CALLS = ("lstat", "open")
ERRORS = (errno.EIO, errno.EACCES, errno.EMFILE, errno.ENOMEM, errno.EAGAIN, errno.ENOTDIR, errno.ESTALE)


@pytest.mark.parametrize("number", ERRORS, ids=errno.errorcode.get)
@pytest.mark.parametrize("call", CALLS)
def test_get_when_it_cannot_be_found_out_is_an_error_and_changes_nothing(shelf: Shelf, call: str, number: int) -> None:
    shelf.ledgers.save(ledger())
    before = shelf.path.read_bytes()
    again = shelf.opened()

    for _ in range(3):
        with failing(call, number, shelf.path) as failed, pytest.raises(UnreadItem) as caught:
            again.get(REF)
        assert failed == [shelf.path.name]
        assert caught.value.errno == number

    assert (shelf.names, shelf.path.read_bytes()) == ([shelf.path.name], before)
    assert [(note.name, note.fields["ref"]) for note in shelf.notes] == [("item.failed", REF)]
    assert again.get(REF) == ledger()
    assert (again.unread(), again.held()) == ({}, {})


@pytest.mark.parametrize("call", CALLS)
def test_load_when_one_cannot_be_read_loses_none_and_looks_again(shelf: Shelf, call: str) -> None:
    other = "github:octo/repo#2"
    shelf.ledgers.save(ledger())
    shelf.ledgers.save(ledger(other))
    again = shelf.opened()

    with failing(call, errno.EIO, shelf.path):
        again.load()
        again.look_again()

        assert [one.ref for one in again.all()] == [other]
        assert again.unread() == {REF: "Input/output error"}
        assert set(again.refs()) == {REF, other}
        assert len(shelf.notes) == 1

    again.look_again()
    assert {one.ref for one in again.with_pending()} == {REF, other}
    assert again.unread() == {}


def test_load_when_a_cut_name_cannot_be_read_says_which_file_and_finds_its_item_later(shelf: Shelf) -> None:
    shelf.ledgers.save(ledger(LONG))
    path = shelf.root.ledger(LONG)
    again = shelf.opened()

    with failing("open", errno.EIO, path):
        again.load()
        assert again.unread() == {path.name: "Input/output error"}
        assert [note.fields["ref"] for note in shelf.notes] == [path.name]

    again.look_again()
    assert [one.ref for one in again.all()] == [LONG]
    assert again.unread() == {}


def test_file_with_a_cut_name_that_does_not_say_whose_it_is_is_told_until_its_item_is_met(shelf: Shelf) -> None:
    path = shelf.root.ledger(LONG)
    path.write_bytes(b"[]")
    again = shelf.opened()

    again.load()
    assert list(again.unread()) == [path.name]
    with pytest.raises(HeldItem):
        again.get(LONG)
    again.look_again()

    assert again.unread() == {}
    assert set(again.held()) == {LONG}
    assert [note.name for note in shelf.notes] == ["item.failed", "ledger.held"]


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.EMFILE], ids=errno.errorcode.get)
def test_load_when_the_folder_cannot_be_listed_is_an_error_that_names_it(shelf: Shelf, number: int) -> None:
    shelf.ledgers.save(ledger())

    with failing("listdir", number, shelf.root.portable), pytest.raises(StateRootError) as caught:
        shelf.opened().load()

    assert caught.value.problem.startswith(f"cannot list '{shelf.root.portable}': ")


def test_load_when_there_is_no_folder_finds_none(shelf: Shelf) -> None:
    shelf.root.portable.rmdir()
    shelf.ledgers.load()

    assert list(shelf.ledgers.refs()) == []
    assert shelf.ledgers.get(REF) is None


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("times", [1, 2, 3, 5])
@in_virtual_loop
async def test_ledger_when_it_cannot_be_read_for_a_while_then_its_item_is_not_started_again(
    root: StateRoot, call: str, times: int
) -> None:
    """A failed `lstat` was "no ledger": the item was spawned again, and its record overwritten without a copy."""
    runner, source = FakeRunner(), FakeSource()
    source.add(1, *[make.entry(number) for number in range(3)])
    life = Life(root, runner, source)
    await life.begin()
    await life.cycle()
    source.write("fake:1", make.entry(7))

    with failing(call, errno.EIO, root.ledger("fake:1"), times=times) as failed:
        life = await next_life(life, root, runner, source)
        for _ in range(times + 2):
            await life.cycle()

    assert len(failed) == times
    assert runner.ids() == ["fake:1/spawn:1", "fake:1/comment:7"]
    assert life.ledger("fake:1").g == 1


@pytest.mark.parametrize("call", ["openat", "lstat,newfstatat"])
def test_list_when_portable_cannot_be_searched_is_1_with_the_reason_and_never_an_empty_list(
    shelf: Shelf, call: str
) -> None:
    shelf.ledgers.save(ledger())
    place = shelf.root.portable if call == "openat" else shelf.path
    program = [sys.executable, "-m", "the_loop", "--state-root", str(shelf.root.path), "ledger", "list"]
    inject = ["-P", str(place), "-e", f"trace={call}", "-e", f"inject={call}:error=EACCES"]

    done = subprocess.run(
        ["strace", "-f", "-qq", "-o", "/dev/null", *inject, *program], capture_output=True, text=True, check=False
    )

    assert done.returncode == 1, done.stderr
    assert "Permission denied" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("command", [["show", REF], ["retry", REF], ["settle", REF, "comment:2"], ["reset", REF]])
def test_ledger_command_when_the_record_cannot_be_read_is_1_and_changes_nothing(
    shelf: Shelf, command: list[str]
) -> None:
    shelf.ledgers.save(ledger())
    before = shelf.path.read_bytes()

    with failing("open", errno.EIO, shelf.path):
        done = CliRunner().invoke(cli, ["--state-root", str(shelf.root.path), "ledger", *command])

    assert done.exit_code == 1
    assert "Input/output error" in str(done.exception)
    assert shelf.path.read_bytes() == before


def test_list_when_one_of_two_cannot_be_read_shows_the_other_and_is_1(shelf: Shelf) -> None:
    shelf.ledgers.save(ledger())
    shelf.ledgers.save(ledger("github:octo/repo#2"))

    with failing("open", errno.EIO, shelf.path):
        done = CliRunner().invoke(cli, ["--state-root", str(shelf.root.path), "ledger", "list", "--json"])

    assert done.exit_code == 1
    assert [json.loads(line)["ref"] for line in done.stdout.splitlines()] == ["github:octo/repo#2"]
    assert "cannot read" in str(done.exception)
