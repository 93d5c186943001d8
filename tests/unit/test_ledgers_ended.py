"""Items that ended are out of the way, and found when they are asked for (contract section 3)."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path
from unittest import mock

import pytest
from click.testing import CliRunner

from support import factories as make
from support.fakes import FakeRunner, FakeSource
from support.file_faults import failing
from support.life import Life, in_virtual_loop, next_life
from support.shelf import LONG, REF, Shelf, ledger
from the_loop import ledgers as ledgers_module
from the_loop import records as records_module
from the_loop.cli import cli
from the_loop.core.ledger import Ledger, Phase, accept, change, end, move, restarted, settle
from the_loop.core.ledger import Standing as State
from the_loop.core.model import Entry, Presence
from the_loop.durable import read_regular, to_json_bytes
from the_loop.heartbeat import left_alone
from the_loop.known import KnownItems
from the_loop.ledgers import UnreadItem
from the_loop.state import StateRoot

OTHER = "github:octo/repo#2"


def over(ref: str = REF, settled: int = 0) -> Ledger:
    made = settle(ledger(ref), *(f"comment:{number}" for number in range(100, 100 + settled)))
    return end(change(made, phase=Phase.ENDING), "closed")


def reopened(before: Ledger) -> Ledger:
    item = make.item(ref=before.ref)
    return accept(change(restarted(before, item), phase=Phase.STARTING), "spawn:2", "alice")


def ended_files(shelf: Shelf) -> list[str]:
    return sorted(path.name for path in shelf.root.ended.iterdir()) if shelf.root.ended.exists() else []


# --- on disk ---


@pytest.mark.parametrize("ref", [REF, LONG, "directory:inbox/.hidden"])
@pytest.mark.parametrize("settled", [0, 200])
def test_ended_item_is_one_file_out_of_the_way_and_found_again(shelf: Shelf, ref: str, settled: int) -> None:
    shelf.ledgers.save(settle(ledger(ref), *(f"comment:{number}" for number in range(100, 100 + settled))))

    shelf.ledgers.save(over(ref, settled))

    assert shelf.names == ["ended"]
    assert ended_files(shelf) == [shelf.root.ledger(ref).name]
    assert stat.S_IMODE(shelf.root.ended.stat().st_mode) == 0o700
    for again in (shelf.ledgers, shelf.opened(), shelf.opened(may_write=False)):
        again.load()
        assert again.get(ref) == over(ref, settled)
        assert (list(again.refs()), list(again.all()), again.with_pending()) == ([], [], [])
        assert again.count_ended() == 1
        assert list(again.ended()) == [over(ref, settled)]


@pytest.mark.parametrize("state", [State.QUEUED, State.HELD, State.GAVE_UP])
def test_item_with_anything_pending_stays(shelf: Shelf, state: State) -> None:
    waiting = change(ledger(), phase=Phase.ENDING)
    waiting = change(move(waiting, "comment:2", state), phase=Phase.ENDED)

    shelf.ledgers.save(waiting)

    assert shelf.names == [shelf.path.name]
    again = shelf.opened()
    again.load()
    assert again.with_pending() == [waiting]


def test_reopened_item_is_moved_back_by_its_next_write(shelf: Shelf) -> None:
    shelf.ledgers.save(over(settled=200))
    before = shelf.opened().get(REF)
    assert before is not None

    again = shelf.opened()
    again.save(reopened(before))

    assert set(shelf.names) == {*shelf.files, "ended"}
    assert ended_files(shelf) == []
    assert again.get(REF) == shelf.opened().get(REF) == reopened(before)
    assert [one.ref for one in again.with_pending()] == [REF]


def test_items_that_ended_before_there_was_a_place_for_them_are_moved_by_a_start(shelf: Shelf) -> None:
    refs = [f"github:octo/repo#{number}" for number in range(30)]
    for ref in refs:
        shelf.root.ledger(ref).write_bytes(to_json_bytes(records_module.settled.encode(over(ref))))  # type: ignore[attr-defined]
    shelf.ledgers.save(ledger(OTHER))

    reader = shelf.opened(may_write=False)
    reader.load()
    assert len(list(reader.all())) == 30
    again = shelf.opened()
    flushed: list[str] = []
    with mock.patch.object(records_module, "fsync_directory", lambda path: flushed.append(path.name)):
        again.load()

    assert flushed == ["portable", "ended", "portable"]  # once for all
    assert list(again.refs()) == [OTHER]
    assert shelf.names == ["ended", shelf.root.ledger(OTHER).name]
    assert len(ended_files(shelf)) == 29
    assert again.get(REF) == over()


def test_start_neither_lists_nor_reads_what_ended(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(5):
        shelf.ledgers.save(over(f"github:octo/repo#{number}"))
    real, met = os.open, list[str]()
    listed = os.listdir
    monkeypatch.setattr(os, "open", lambda path, *rest, **more: met.append(str(path)) or real(path, *rest, **more))  # type: ignore[func-returns-value,redundant-expr]
    monkeypatch.setattr(os, "listdir", lambda path: met.append(f"{path}/") or listed(path))  # type: ignore[func-returns-value,redundant-expr]

    again = shelf.opened()
    again.load()
    left_alone(again, [])

    assert [path for path in met if "ended" in path] == []


def test_ended_item_that_goes_on_being_asked_for_is_read_once(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    shelf.ledgers.save(over())
    opened: list[Path] = []
    moment = 1000.0

    def count(path: Path, *rest: int) -> bytes:
        opened.append(path)
        return read_regular(path, *rest)

    monkeypatch.setattr(records_module, "read_regular", count)
    monkeypatch.setattr(ledgers_module.time, "monotonic", lambda: moment)  # type: ignore[attr-defined]
    again = shelf.opened()
    for _ in range(5):
        assert again.get(REF) == over()
    assert opened == [shelf.root.ended_ledger(REF)]

    moment += 3601  # others are let go of
    shelf.ledgers.save(over(OTHER))
    again.get(OTHER)
    again.get(REF)
    assert len(opened) == 3


def test_change_of_an_ended_record_from_outside_is_noticed(shelf: Shelf) -> None:
    shelf.ledgers.save(over())
    path = shelf.root.ended_ledger(REF)
    new = path.with_name("new")
    new.write_bytes(path.read_bytes().replace(b'"closed"', b'"merged"'))
    new.rename(path)

    found = shelf.ledgers.get(REF)

    assert found is not None
    assert found.poll.reason == "merged"


# --- what cannot be found out, and what cannot be used ---


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.EMFILE, errno.ENOTDIR], ids=errno.errorcode.get)
@pytest.mark.parametrize("call", ["lstat", "open"])
def test_ended_item_that_cannot_be_read_is_not_new(shelf: Shelf, call: str, number: int) -> None:
    shelf.ledgers.save(over())
    again = shelf.opened()

    with failing(call, number, shelf.root.ended), pytest.raises(UnreadItem):
        again.get(REF)

    assert again.get(REF) == over()


def test_ended_record_that_is_not_a_ledger_is_set_aside_and_its_item_held_over_restarts(shelf: Shelf) -> None:
    shelf.ledgers.save(over())
    shelf.root.ended_ledger(REF).write_bytes(b"garbage")

    for _ in range(3):
        again = shelf.opened()
        again.load()
        assert "not JSON" in shelf.held(again)
        assert again.held().keys() == {REF}

    assert ended_files(shelf) == [f"{shelf.path.name}.bad-1"]
    shelf.ledgers = shelf.opened()
    shelf.held()
    (shelf.root.ended / ended_files(shelf)[0]).write_bytes(b'{"g": 7}')
    shelf.ledgers.reset_held(REF)
    found = shelf.ledgers.get(REF)
    assert found is not None
    assert found.g == 7


def test_ended_record_of_a_newer_version_is_held_and_unchanged(shelf: Shelf) -> None:
    shelf.ledgers.save(over())
    path = shelf.root.ended_ledger(REF)
    content = path.read_bytes().replace(b'"schema": 1', b'"schema": 99')
    path.write_bytes(content)

    assert "schema is 99" in shelf.held(shelf.opened())

    assert path.read_bytes() == content
    assert shelf.names == ["ended"]


def test_of_two_records_the_one_that_is_not_older_counts_and_the_other_is_removed(shelf: Shelf) -> None:
    shelf.ledgers.save(over())
    before = shelf.root.ended_ledger(REF).read_bytes()
    shelf.ledgers.save(reopened(over()))
    shelf.root.ended_ledger(REF).write_bytes(before)

    reader = shelf.opened(may_write=False)
    assert reader.get(REF) == reopened(over())
    assert ended_files(shelf) == [shelf.path.name]
    again = shelf.opened()
    again.load()

    assert again.get(REF) == reopened(over())
    assert ended_files(shelf) == []


def test_of_two_records_an_older_one_is_held_and_nothing_is_lost(shelf: Shelf) -> None:
    """As after a version that knows no `ended/` took the item for new."""
    shelf.ledgers.save(over())
    shelf.ledgers.save(reopened(over()))
    shelf.ledgers.save(end(change(reopened(over()), phase=Phase.ENDING, pending={}), "closed"))
    newer = shelf.root.ended_ledger(REF).read_bytes()
    shelf.put(json.loads(to_json_bytes(records_module.settled.encode(ledger()))))  # type: ignore[attr-defined]

    again = shelf.opened()
    assert "newer record" in shelf.held(again)

    assert shelf.root.ended_ledger(REF).read_bytes() == newer
    assert shelf.path.with_name(f"{shelf.path.name}.bad-1").exists()
    shelf.path.unlink()
    found = again.get(REF)
    assert found is not None
    assert found.g == 2


def test_move_that_fails_is_tried_again_and_the_item_has_ended_all_the_same(shelf: Shelf) -> None:
    shelf.ledgers.save(ledger())
    shelf.root.ended.write_bytes(b"in the way")
    shelf.ledgers.save(over())
    assert shelf.ledgers.get(REF) == over()
    assert shelf.path.exists()

    shelf.root.ended.unlink()
    shelf.ledgers.look_again()

    assert shelf.names == ["ended"]
    assert shelf.ledgers.get(REF) == over()
    assert list(shelf.ledgers.refs()) == []


def test_start_removes_the_log_of_an_item_whose_end_was_cut_off_and_no_other(shelf: Shelf) -> None:
    many = tuple(f"comment:{number}" for number in range(100, 300))
    shelf.ledgers.save(settle(ledger(), *many))
    left = shelf.log.read_bytes()
    shelf.ledgers.save(over(settled=200))
    shelf.log.write_bytes(left)  # cut off before it was removed
    shelf.log.with_name(f"{shelf.log.name}.next").write_bytes(left)
    shelf.ledgers.save(settle(ledger(OTHER), *many))
    alone = shelf.root.settled("github:octo/repo#3")
    alone.write_bytes(left)  # its record was taken away for a repair

    shelf.opened(may_write=False).load()
    assert shelf.log.exists()
    shelf.opened().load()

    assert shelf.names == ["ended", shelf.root.ledger(OTHER).name, shelf.root.settled(OTHER).name, alone.name]
    assert shelf.opened().get(REF) == over(settled=200)


def test_reader_that_meets_a_move_in_between_finds_the_item(shelf: Shelf) -> None:
    """A command reads while the poller moves the record: it is in one place or the other."""
    shelf.ledgers.save(ledger())
    reader = shelf.opened(may_write=False)
    real = records_module.read_regular  # type: ignore[attr-defined]

    def move_first(path: Path, *rest: int) -> bytes:
        if path == shelf.path and path.exists():
            shelf.ledgers.save(over())
        return real(path, *rest)

    with mock.patch.object(records_module, "read_regular", move_first):
        assert reader.get(REF) == over()


# --- the command ---


def listed(shelf: Shelf, *arguments: str) -> tuple[str, str]:
    done = CliRunner().invoke(cli, ["--state-root", str(shelf.root.path), "ledger", "list", *arguments])
    assert done.exit_code == 0, done.exception
    return done.stdout, done.stderr


def test_list_shows_the_open_ones_and_says_how_many_ended(shelf: Shelf) -> None:
    shelf.ledgers.save(ledger(OTHER))
    header = f"ITEM{' ' * (len(OTHER) - 4)}  CHANGED     PHASE     TITLE\n"
    live = f"{OTHER}  0 s ago     live      a title\n    comment:2 queued\n"
    assert listed(shelf) == (header + live, "")
    shelf.ledgers.save(over())

    assert listed(shelf) == (f"{header}{live}1 more ended (--all lists them)\n", "")
    assert listed(shelf, "--all")[0].endswith(f"  ended     a title\n    closed\n{live}")
    lines, said = listed(shelf, "--json")
    assert [json.loads(line)["ref"] for line in lines.splitlines()] == [OTHER]
    assert said == "1 more ended (--all lists them)\n"
    assert (json.loads(lines)["title"], json.loads(lines)["pending"]) == ("a title", {"comment:2": "queued"})
    lines, said = listed(shelf, "--json", "--all")
    assert [json.loads(line)["phase"] for line in lines.splitlines()] == ["ended", "live"]


def test_list_when_the_ended_ones_cannot_be_read_is_1_with_the_reason(shelf: Shelf) -> None:
    shelf.ledgers.save(over())
    for call, arguments in (("listdir", []), ("listdir", ["--all"]), ("open", ["--all"])):
        with failing(call, errno.EIO, shelf.root.ended):
            done = CliRunner().invoke(cli, ["--state-root", str(shelf.root.path), "ledger", "list", *arguments])
        assert done.exit_code == 1
        assert "cannot" in str(done.exception)


@pytest.mark.parametrize("command", ["show", "settle", "reset"])
def test_command_on_an_ended_item_finds_it(shelf: Shelf, command: str) -> None:
    shelf.ledgers.save(over())
    arguments = [command, REF, *(["comment:1"] if command == "settle" else [])]

    done = CliRunner().invoke(cli, ["--state-root", str(shelf.root.path), "ledger", *arguments])

    assert done.exit_code == 0, done.exception
    found = shelf.opened().get(REF)
    assert found is not None
    assert found.poll.phase is (Phase.WAITING if command == "reset" else Phase.ENDED)
    assert ended_files(shelf) == ([] if command == "reset" else [shelf.path.name])


# --- sources and cycles ---


def test_source_is_told_of_the_open_items_and_finds_an_ended_one(shelf: Shelf) -> None:
    source = FakeSource("github")
    shelf.ledgers.save(over())
    shelf.ledgers.save(ledger(OTHER))

    known = KnownItems(shelf.ledgers, source)

    assert (list(known), len(known), list(known.items())) == ([OTHER], 1, [(OTHER, known[OTHER])])
    assert (known[OTHER].is_open, known[REF].is_open) == (True, False)
    assert REF in known
    assert known.get("github:octo/repo#3") is None
    assert known.doubtful == set()


def test_source_is_not_told_that_an_item_is_new_if_that_is_not_known(shelf: Shelf) -> None:
    shelf.ledgers.save(over())
    again = shelf.opened()
    known = KnownItems(again, FakeSource("github"))

    with failing("lstat", errno.EIO, shelf.root.ended):
        assert REF not in known

    assert known.doubtful == {REF}
    assert REF not in known, "not even if it can be read by now: what was said of it before is said"
    assert again.get(REF) == over()


@in_virtual_loop
async def test_item_that_is_listed_on_after_its_end_is_not_started_again(root: StateRoot) -> None:
    runner, source = FakeRunner(), FakeSource()
    source.add(1)
    life = Life(root, runner, source)
    await life.begin()
    await life.cycle()
    source.write("fake:1", make.entry(1, "the-loop stop"))
    await life.cycle()
    assert root.ended_ledger("fake:1").exists()

    for number in range(4):
        source.write("fake:1", make.entry(10 + number))
        life = await next_life(life, root, runner, source)
        await life.cycle()
        await life.cycle()
    assert runner.ids() == ["fake:1/spawn:1", "fake:1/close:1"]

    source.write("fake:1", make.entry(30, "the-loop start"))
    await life.cycle()

    assert runner.ids() == ["fake:1/spawn:1", "fake:1/close:1", "fake:1/spawn:2"]
    assert not root.ended_ledger("fake:1").exists()


@pytest.mark.parametrize("call", ["lstat", "open"])
@pytest.mark.parametrize("times", [1, 2, 3, 4])
@in_virtual_loop
async def test_ended_item_that_cannot_be_read_for_a_while_is_not_started_as_a_new_one(
    root: StateRoot, call: str, times: int
) -> None:
    runner, source = FakeRunner(), FakeSource()
    source.add(1, make.entry(1))
    life = Life(root, runner, source)
    await life.begin()
    await life.cycle()
    source.items["fake:1"].presence = Presence.GONE
    await life.cycle()
    source.items["fake:1"].presence = Presence.LISTED
    source.write("fake:1", make.entry(2))

    with failing(call, errno.EIO, root.ended, times=times) as failed:
        life = await next_life(life, root, runner, source)
        for _ in range(times + 2):
            await life.cycle()

    assert failed
    assert runner.ids() == ["fake:1/spawn:1", "fake:1/close:1", "fake:1/spawn:2"]
    assert life.ledger("fake:1").poll.seen_comments >= {"spawn:1", "comment:1", "spawn:2", "comment:2"}


class Forgetful(FakeSource):
    """Takes an item that it is not told of for new, with what was written on it since: as an inbox does."""

    async def poll(self, cursor, known):  # type: ignore[no-untyped-def]
        listing = await super().poll(cursor, known)
        self.is_known = "fake:1" in known
        return listing


@in_virtual_loop
async def test_item_that_was_in_doubt_when_its_source_was_polled_is_left_to_the_next_cycle(root: StateRoot) -> None:
    runner, source = FakeRunner(), Forgetful()
    source.add(1)
    life = Life(root, runner, source)
    await life.begin()
    await life.cycle()
    row: Entry = make.entry(1)
    source.write("fake:1", row)
    life = await next_life(life, root, runner, source)
    life.ledgers.forget("fake:1")
    with failing("lstat", errno.EIO, root.ledger("fake:1"), times=1) as failed:
        assert await life.cycle() == 1
    assert (failed, source.is_known) == ([root.ledger("fake:1").name], False)
    assert runner.ids() == ["fake:1/spawn:1"]

    assert await life.cycle() == 0

    assert runner.ids() == ["fake:1/spawn:1", "fake:1/comment:1"]


def test_no_error_is_hidden_by_what_is_remembered(shelf: Shelf) -> None:
    """An ended item in memory is looked for on disk each time, too."""
    shelf.ledgers.save(over())
    assert shelf.ledgers.get(REF) == over()
    shelf.root.ended_ledger(REF).unlink()

    assert shelf.ledgers.get(REF) is None
