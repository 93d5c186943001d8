"""What is no ledger is never taken for "no ledger": its item is held, and no byte is lost (contract section 3)."""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support.processes import python_argv, traced
from support.shelf import LONG, REF, Shelf, ledger, tree
from the_loop import records as records_module
from the_loop.deliveries import Deliveries
from the_loop.durable import to_json_bytes
from the_loop.ledgers import HeldItem
from the_loop.outbox import Outbox
from the_loop.recovery import Recovery
from the_loop.runners.base import Status, Trace

BAD: dict[str, tuple[Any, str]] = {
    "empty": (b"", "not JSON"),
    "zeroed": (b"\0" * 400, "not JSON"),
    "cut": (to_json_bytes(tree())[:200], "not JSON"),
    "not UTF-8": (b'{"schema": 1, "ref": "\xff\xff"}', ""),
    "list": ([], "list, not an object"),
    "number": (5, "int, not an object"),
    "nested": (b"[" * 100_000, ""),
    "huge number": (b'{"schema": ' + b"9" * 5000 + b"}", "not JSON"),
    "empty object": ({}, "schema"),
    "older schema": (tree(schema=0), "schema is 0"),
    "schema of another kind": (tree(schema="1"), "schema"),
    "other item": (tree(ref="github:octo/repo#2"), "github:octo/repo#2"),
    "no ref": ({key: value for key, value in tree().items() if key != "ref"}, "ref"),
    "no poll": ({key: value for key, value in tree().items() if key != "poll"}, "phase"),
    "poll is a list": (tree(poll=[]), ""),
    "phase": (tree(poll={**tree()["poll"], "phase": "dancing"}), "phase"),
    "seen is a number": (tree(poll={**tree()["poll"], "seenComments": 5}), "seenComments"),
    "seen has numbers": (tree(poll={**tree()["poll"], "seenComments": [1, 2]}), "seenComments"),
    "pending is a list": (tree(poll={**tree()["poll"], "pending": []}), ""),
    "pending entry is null": (tree(poll={**tree()["poll"], "pending": {"comment:1": None}}), ""),
    "attempts are text": (tree(poll={**tree()["poll"], "commentAttempts": {"comment:1": "x"}}), "commentAttempts"),
    "starts are text": (tree(g="1"), "g"),
    "held without reason": ({"schema": 1, "ref": REF, "held": {}}, ""),
    "held record of another item": ({"schema": 1, "ref": "x:y", "held": {"reason": "r"}}, ""),
}


@pytest.mark.parametrize("kind", BAD)
def test_file_that_is_no_ledger_is_set_aside_whole_and_its_item_held(shelf: Shelf, kind: str) -> None:
    content, words = BAD[kind]
    shelf.put(content)
    before = shelf.path.read_bytes()
    inode = shelf.path.stat().st_ino

    reason = shelf.held()

    assert words in reason
    aside = shelf.path.with_name(f"{shelf.path.name}.bad-1")
    assert (aside.read_bytes(), aside.stat().st_ino) == (before, inode)
    assert json.loads(shelf.path.read_bytes()) == {
        "ref": REF,
        "schema": 1,
        "held": {"reason": reason, "since": "2023-11-14T22:13:20.000Z", "aside": aside.name},
    }
    assert stat.S_IMODE(shelf.path.stat().st_mode) == 0o600
    assert [(note.name, note.fields["ref"], note.fields["reason"]) for note in shelf.notes] == [
        ("ledger.held", REF, reason)
    ]


def test_bad_ledger_has_its_second_name_on_disk_before_anything_takes_its_place(shelf: Shelf, tmp_path: Path) -> None:
    script = """
        import sys
        from pathlib import Path
        from the_loop.ledgers import Ledgers
        from the_loop.state import StateRoot
        Ledgers(StateRoot(Path(sys.argv[1])), lambda note: None, lambda: 0.0).load()
    """
    shelf.put(b"garbage")

    lines = traced(python_argv(script, shelf.root.path), tmp_path / "log", "link,linkat,fsync,rename")

    name = re.escape(shelf.path.name)
    told = [line for line in lines if str(shelf.root.portable) in line]
    steps = [
        rf'link.*/{name}".*/{name}\.bad-1"',
        r"fsync\(\d+<.*/portable>\)",
        rf"fsync\(\d+<.*/\.{name}\.tmp>\)",
        rf'rename\(".*/\.{name}\.tmp", ".*/{name}"\)',
        r"fsync\(\d+<.*/portable>\)",
    ]
    assert len(told) == len(steps), told
    assert all(re.match(step, line) for step, line in zip(steps, told, strict=True)), told


@pytest.mark.parametrize("kind", ["link", "dangling link", "fifo"])
@pytest.mark.timeout(20)
def test_thing_that_is_no_file_is_set_aside_and_not_followed(shelf: Shelf, kind: str) -> None:
    victim = shelf.root.path / "victim"
    match kind:
        case "link":
            victim.write_bytes(to_json_bytes(tree()))
            shelf.path.symlink_to(victim)
        case "dangling link":
            shelf.path.symlink_to(victim)
        case _:
            os.mkfifo(shelf.path)

    assert shelf.held()

    aside = shelf.path.with_name(f"{shelf.path.name}.bad-1")
    assert not stat.S_ISREG(aside.lstat().st_mode)
    assert stat.S_ISREG(shelf.path.lstat().st_mode)
    assert victim.exists() is (kind == "link")
    assert kind != "link" or victim.read_bytes() == to_json_bytes(tree())


def test_directory_in_its_place_is_held_and_left_alone(shelf: Shelf) -> None:
    shelf.path.mkdir()

    assert "cannot be set aside" in shelf.held()

    assert shelf.names == [shelf.path.name]
    assert shelf.path.is_dir()


def test_held_item_stays_held_over_restarts_and_is_set_aside_once(shelf: Shelf) -> None:
    shelf.put(b"garbage")
    reason = shelf.held()
    before = shelf.path.read_bytes()

    for _ in range(3):
        again = shelf.opened()
        again.load()
        assert shelf.held(again) == reason
        assert again.held() == {REF: reason}
        assert list(again.refs()) == [REF]
        assert again.with_pending() == []

    assert shelf.names == [shelf.path.name, f"{shelf.path.name}.bad-1"]
    assert shelf.path.read_bytes() == before
    assert len(shelf.notes) == 1


def test_held_item_is_back_when_a_readable_ledger_is_put_in_its_place(shelf: Shelf) -> None:
    shelf.put(b"garbage")
    shelf.held()

    shelf.put(tree())

    assert shelf.ledgers.get(REF) == ledger()
    assert shelf.ledgers.held() == {}
    assert [one.ref for one in shelf.ledgers.with_pending()] == [REF]
    assert shelf.path.with_name(f"{shelf.path.name}.bad-1").read_bytes() == b"garbage"


def test_second_bad_file_is_set_aside_beside_the_first(shelf: Shelf) -> None:
    for content in (b"first", b"second"):
        shelf.put(content)
        shelf.held()

    aside = [shelf.path.with_name(f"{shelf.path.name}.bad-{number}").read_bytes() for number in (1, 2)]
    assert aside == [b"first", b"second"]


def test_bad_ledger_costs_its_item_only(shelf: Shelf) -> None:
    shelf.ledgers.save(ledger("github:octo/repo#2"))
    shelf.put([])

    again = shelf.opened()
    again.load()

    assert again.get("github:octo/repo#2") == ledger("github:octo/repo#2")
    assert set(again.held()) == {REF}


@pytest.mark.parametrize("content", [b"garbage", b"[]", b"[" * 100_000])
def test_bad_ledger_with_a_cut_name_is_held_as_soon_as_its_item_is_met(shelf: Shelf, content: bytes) -> None:
    shelf.root.ledger(LONG).write_bytes(content)
    again = shelf.opened()
    again.load()

    with pytest.raises(HeldItem):
        again.get(LONG)

    third = shelf.opened()
    third.load()
    assert set(third.held()) == {LONG}


@pytest.mark.parametrize("fault", ["garbage under a cut name", "unreadable for a moment", "unreadable for now"])
def test_ledger_that_cannot_be_told_at_a_start_keeps_its_deliveries(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    ref = LONG if fault.startswith("garbage") else REF
    stem, orphan = shelf.root.delivery(f"{ref}/comment:2"), shelf.root.delivery("github:octo/repo#9/comment:1")
    for part in ("payload", "started", "outcome"):
        stem.with_name(f"{stem.name}.{part}.json").write_text(json.dumps({"ref": ref, "offer": 1}))
    orphan.with_name(f"{orphan.name}.payload.json").write_text(json.dumps({"ref": "github:octo/repo#9"}))
    shelf.root.ledger(ref).write_bytes(b"garbage" if ref == LONG else to_json_bytes(tree()))
    again = shelf.opened()
    with monkeypatch.context() as patch:
        if ref == REF:
            patch.setattr(records_module, "read_regular", fail_to_read)
        again.load()
        if fault.endswith("moment"):
            patch.undo()

        nothing: Any = None
        runner: Any = SimpleNamespace(inspect=lambda _: Status(Trace.UNKNOWN))
        deliveries, tell = Deliveries(shelf.root), shelf.notes.append
        outbox = Outbox(deliveries, again, runner, policy=nothing, rules_of=lambda _: None, tell=tell, now=lambda: 0.0)
        assert list(chain.from_iterable(Recovery(deliveries, again, outbox, tell).run())) == []

    left = {path.name.removeprefix(stem.name) for path in shelf.root.deliveries.iterdir()}
    assert left == {".payload.json", ".started.json", ".outcome.json"}


def fail_to_read(_path: Path) -> bytes:
    raise OSError(errno.EIO, "Input/output error")
