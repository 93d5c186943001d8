"""One change of a ledger, cut off before each of its steps: afterwards the old ledger counts, or the new one."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from support.fuse import Crash, Fuse
from support.shelf import REF, Shelf, ledger
from the_loop import settled
from the_loop.core.ledger import (
    Ledger,
    Phase,
    accept,
    after_receipt,
    change,
    end,
    forgotten,
    new_ledger,
    restarted,
    settle,
)
from the_loop.core.model import WorkItem
from the_loop.ledgers import HeldItem, Ledgers

LIMIT = 4  # settled ids in a record, in these tests
ITEM = WorkItem(REF, "node-1", "", "", "", "alice", "")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settled, "INLINE", LIMIT)
    monkeypatch.setattr(os, "fsync", lambda _: None)


def keys(first: int, behind: int) -> list[str]:
    return [f"comment:{number}" for number in range(first, behind)]


def with_log(shelf: Shelf) -> Ledger:
    """A live item with ten ids in its log, and comment:2 pending."""
    shelf.ledgers.save(settle(ledger(), *keys(10, 19)))
    assert shelf.log.exists()
    return loaded(shelf.ledgers)


def nearly_full(shelf: Shelf) -> Ledger:
    """One more settled id, and those in the record are appended."""
    with_log(shelf)
    shelf.ledgers.save(settle(loaded(shelf.ledgers), *keys(20, 20 + LIMIT)))
    return loaded(shelf.ledgers)


def torn(shelf: Shelf) -> Ledger:
    """Behind what the record says of the log there is more, and half a line."""
    nearly_full(shelf)
    with shelf.log.open("ab") as file:
        file.write(b"comment:77\ncomment:7")
    shelf.ledgers = shelf.opened()
    return loaded(shelf.ledgers)


def ended(shelf: Shelf) -> Ledger:
    with_log(shelf)
    shelf.ledgers.save(over(loaded(shelf.ledgers)))
    assert (shelf.path.exists(), shelf.log.exists(), shelf.root.ended_ledger(REF).exists()) == (False, False, True)
    return loaded(shelf.ledgers)


def over(before: Ledger) -> Ledger:
    return end(change(before, phase=Phase.ENDING), "closed")


def reopened(before: Ledger) -> Ledger:
    return accept(change(restarted(before, ITEM), phase=Phase.STARTING), "spawn:2", "alice", ("comment:30",))


def loaded(ledgers: Ledgers) -> Ledger:
    found = ledgers.get(REF)
    assert found is not None
    return found


def saved(shelf: Shelf, one: Ledger) -> Ledger:
    shelf.ledgers.save(one)
    return loaded(shelf.ledgers)


def migrated(shelf: Shelf) -> Ledger:
    """A ledger as it was written before there were logs."""
    settled.INLINE = 1000  # type: ignore[misc]
    saved(shelf, settle(ledger(), *keys(10, 30)))
    settled.INLINE = LIMIT  # type: ignore[misc]
    assert not shelf.log.exists()
    shelf.ledgers = shelf.opened()
    return loaded(shelf.ledgers)


CHANGES: dict[str, tuple[Callable[[Shelf], Ledger], Callable[[Ledger], Ledger]]] = {
    "its first log": (lambda shelf: saved(shelf, ledger()), lambda old: settle(old, *keys(10, 19))),
    "one of an item before it had logs": (migrated, lambda old: accept(old, "comment:3", "bob")),
    "in the record": (with_log, lambda old: after_receipt(old, "comment:2")),
    "appended": (nearly_full, lambda old: after_receipt(old, "comment:2")),
    "appended, others accepted": (nearly_full, lambda old: accept(settle(old, "comment:50"), "comment:3", "bob")),
    "appended behind a torn end": (torn, lambda old: after_receipt(old, "comment:2")),
    "a torn end cut": (torn, lambda old: accept(old, "comment:77", "alice")),
    "ended, with a log": (with_log, over),
    "ended, without one": (lambda shelf: saved(shelf, ledger()), over),
    "reopened": (ended, reopened),
    "reset": (with_log, forgotten),
    "reset once it ended": (ended, forgotten),
    "settled once it ended": (ended, lambda old: settle(old, "comment:50")),
}


def steps_of(folder: Path, name: str) -> tuple[Fuse, list[str]]:
    """The steps of this change, and the files that are there afterwards."""
    prepare, changed = CHANGES[name]
    shelf, fuse = Shelf(folder), Fuse()
    before = prepare(shelf)
    with fuse.watching_files():
        shelf.ledgers.save(changed(before))
    return fuse, shelf.names


@pytest.mark.parametrize("name", CHANGES)
def test_change_when_cut_off_before_any_step_is_done_or_not_begun(tmp_path: Path, name: str) -> None:
    prepare, changed = CHANGES[name]
    whole, names = steps_of(tmp_path / "whole", name)
    assert len(whole.steps) >= 1

    outcomes = set()
    for at in range(1, len(whole.steps) + 1):
        shelf = Shelf(tmp_path / f"at-{at}")
        old = prepare(shelf)
        new = changed(old)
        with Fuse(at=at).watching_files(), suppress(Crash):
            shelf.ledgers.save(new)

        for _ in range(2):  # what a start tidies up is as good as what it found
            shelf.ledgers = shelf.opened()
            shelf.ledgers.load()
            found = loaded(shelf.ledgers)
            assert found in (old, new), f"cut off before step {at} of {whole.log}"
        outcomes.add(found == new)  # type: ignore[possibly-undefined]
        shelf.ledgers.save(new)
        assert loaded(shelf.opened()) == new
        assert shelf.names == names
    assert False in outcomes


def test_log_that_was_taken_away_under_a_running_poller_is_written_anew(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    old = with_log(shelf)
    shelf.log.unlink()

    shelf.ledgers.save(settle(old, *keys(50, 60)))

    assert loaded(shelf.opened()) == loaded(shelf.ledgers) == settle(old, *keys(50, 60))
    assert shelf.names == shelf.files


def test_event_that_is_in_the_log_and_pending_is_settled(tmp_path: Path) -> None:
    """Cut off between the append and the record: it must not be delivered again, wherever its outcome went."""
    shelf = Shelf(tmp_path)
    old = nearly_full(shelf)
    new = after_receipt(old, "comment:2")
    fuse = Fuse(at=3)
    with fuse.watching_files(), suppress(Crash):
        shelf.ledgers.save(new)
    assert fuse.log == [f"append at {shelf.log.stat().st_size - len(_appended(shelf))}", fuse.log[1]]

    reader = shelf.opened(may_write=False)
    reader.load()
    writer = shelf.opened()
    writer.load()

    assert loaded(reader) == loaded(writer) == new
    assert loaded(shelf.opened(may_write=False)) == new
    assert writer.with_pending() == []
    assert not shelf.log.with_name(f"{shelf.log.name}.next").exists()


def _appended(shelf: Shelf) -> bytes:
    lines = shelf.log.read_bytes().splitlines(keepends=True)
    return b"".join(lines[-(LIMIT + 1) :])


def test_spawn_that_is_in_the_log_and_pending_has_its_effect(tmp_path: Path) -> None:
    """Otherwise the item would have no session, and be spawned again."""
    shelf = Shelf(tmp_path)
    base = new_ledger(ITEM, Phase.STARTING, 1)
    old = saved(shelf, accept(base, "spawn:1", None, tuple(keys(1, 10))))
    settled.INLINE = 0  # type: ignore[misc]
    saved(shelf, settle(old, "comment:0"))
    old = loaded(shelf.ledgers)
    new = after_receipt(old, "spawn:1")
    with Fuse(at=3).watching_files(), suppress(Crash):
        shelf.ledgers.save(new)
    assert b'"starting"' in shelf.path.read_bytes()

    shelf.ledgers = shelf.opened()
    shelf.ledgers.load()

    assert loaded(shelf.ledgers) == new
    assert new.poll.phase is Phase.LIVE


def test_compaction_when_cut_off_before_any_step_is_done_or_not_begun(tmp_path: Path) -> None:
    """The new generation after a start that found an event in the log and pending."""

    def cut_off(folder: Path) -> tuple[Shelf, Ledger]:
        shelf = Shelf(folder)
        new = after_receipt(nearly_full(shelf), "comment:2")
        with Fuse(at=3).watching_files(), suppress(Crash):
            shelf.ledgers.save(new)
        return shelf, new

    shelf, new = cut_off(tmp_path / "whole")
    fuse = Fuse()
    with fuse.watching_files():
        shelf.opened().load()
    next_name = f"{shelf.log.name}.next"
    assert fuse.log == [
        f"write {next_name}",
        f"write {shelf.path.name}",
        f"move {next_name} to portable/{shelf.log.name}",
    ]
    assert not shelf.log.with_name(next_name).exists()

    for at in range(1, len(fuse.steps) + 1):
        shelf, new = cut_off(tmp_path / f"at-{at}")
        with Fuse(at=at).watching_files(), suppress(Crash):
            shelf.opened().load()
        reader = shelf.opened(may_write=False)
        reader.load()
        assert loaded(reader) == new
        for _ in range(2):
            shelf.ledgers = shelf.opened()
            shelf.ledgers.load()
            assert loaded(shelf.ledgers) == new
        more = settle(new, *keys(50, 60))
        shelf.ledgers.save(more)
        assert loaded(shelf.opened()) == more
        assert not shelf.log.with_name(next_name).exists()


@pytest.mark.parametrize("place", ["portable", "ended"])
def test_hold_when_cut_off_before_any_step_is_held_and_no_byte_is_lost(tmp_path: Path, place: str) -> None:
    def broken(folder: Path) -> Shelf:
        shelf = Shelf(folder)
        (with_log if place == "portable" else ended)(shelf)
        (shelf.path if place == "portable" else shelf.root.ended_ledger(REF)).write_bytes(b"garbage")
        shelf.ledgers = shelf.opened()
        return shelf

    shelf, fuse = broken(tmp_path / "whole"), Fuse()
    with fuse.watching_files(), pytest.raises(HeldItem):
        shelf.ledgers.get(REF)

    for at in range(1, len(fuse.steps) + 1):
        shelf = broken(tmp_path / f"at-{at}")
        with Fuse(at=at).watching_files(), pytest.raises(Crash):
            shelf.ledgers.get(REF)
        for _ in range(2):
            shelf.ledgers = shelf.opened()
            assert "not JSON" in shelf.held()
        assert b"garbage" in [path.read_bytes() for path in shelf.root.portable.rglob("*.bad-*")]
        assert shelf.log.exists() is (place == "portable")


def test_reset_of_a_held_item_when_cut_off_before_any_step_is_held_or_reset(tmp_path: Path) -> None:
    def held(folder: Path) -> tuple[Shelf, bytes]:
        shelf = Shelf(folder)
        with_log(shelf)
        shelf.path.write_bytes(b'{"g": 5}')
        shelf.ledgers = shelf.opened()
        shelf.held()
        return shelf, shelf.log.read_bytes()

    shelf, _ = held(tmp_path / "whole")
    fuse = Fuse()
    with fuse.watching_files():
        shelf.ledgers.reset_held(REF)

    for at in range(1, len(fuse.steps) + 1):
        shelf, log = held(tmp_path / f"at-{at}")
        with Fuse(at=at).watching_files(), suppress(Crash):
            shelf.ledgers.reset_held(REF)
        shelf.ledgers = shelf.opened()
        with suppress(HeldItem):
            assert loaded(shelf.ledgers).g == 5
        shelf.ledgers.reset_held(REF)
        assert loaded(shelf.opened()).poll.seen_comments == frozenset()
        assert log in [path.read_bytes() for path in shelf.root.portable.glob("*.settled.bad-*")]
        assert not shelf.log.exists()
