"""Ledgers on disk: what is no ledger is never taken for "no ledger", and no byte of it is lost (SPEC section 3)."""

from __future__ import annotations

import json
import os
import resource
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.factories import item
from support.processes import run_python
from the_loop import archive as archive_module
from the_loop.archive import Archive, HeldItem
from the_loop.ledger import Ledger, Phase, accept, encode, new_ledger, settle
from the_loop.model import Note
from the_loop.runners.base import Look, Offer, Trace
from the_loop.state import StateRoot, read_regular, slug, to_json_bytes

REF = "github:octo/repo#1"
LONG = "directory:inbox/" + "工" * 40  # its file name is cut, so that only its content says whose it is


class Shelf:
    """A state root, an archive on it, and what that told."""

    def __init__(self, folder: Path) -> None:
        self.root = StateRoot(folder / "root")
        self.root.prepare_root()
        self.root.prepare_folders()
        self.notes: list[Note] = []
        self.archive = self.opened()

    def opened(self, **options: Any) -> Archive:
        """A new archive, as after a restart."""
        return Archive(self.root, self.notes.append, lambda: 1_700_000_000.0, **options)

    @property
    def path(self) -> Path:
        return self.root.ledger(REF)

    def put(self, content: Any) -> None:
        """Put this in the ledger's place, as an editor does: a new file."""
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        new = self.path.with_name("new")
        new.write_bytes(data)
        new.rename(self.path)

    @property
    def names(self) -> list[str]:
        return sorted(path.name for path in self.root.portable.iterdir())

    def held(self, archive: Archive | None = None) -> str:
        """Why the item is held."""
        with pytest.raises(HeldItem) as caught:
            (archive or self.archive).get(REF)
        return caught.value.reason


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path)


def ledger(ref: str = REF, **fields: Any) -> Ledger:
    made = new_ledger(item(ref=ref, **fields), Phase.LIVE, 1)
    return settle(accept(accept(made, "comment:1", "alice"), "comment:2", "alice"), "comment:1")


def tree(**fields: Any) -> dict[str, Any]:
    return {**encode(ledger()), **fields}


# --- what is right ---


def test_ledger_that_was_saved_is_read_after_a_restart(shelf: Shelf) -> None:
    shelf.archive.save(ledger())

    again = shelf.opened()
    again.load()

    assert again.get(REF) == ledger() == shelf.archive.get(REF)
    assert list(again.refs()) == [REF]
    assert [one.ref for one in again.with_pending()] == [REF]
    assert stat.S_IMODE(shelf.path.stat().st_mode) == 0o600
    assert shelf.notes == []


def test_item_without_a_file_has_no_ledger(shelf: Shelf) -> None:
    assert shelf.archive.get(REF) is None
    assert list(shelf.archive.refs()) == []
    assert shelf.names == []


def test_load_finds_ledgers_of_every_name_and_nothing_else(shelf: Shelf) -> None:
    refs = [REF, LONG, "directory:inbox/.hidden", "directory:inbox/a b%#", "github:ghe.example/octo/re-po#1"]
    for ref in refs:
        shelf.archive.save(ledger(ref))
    shelf.root.repositories.write_text("{}")
    (shelf.root.portable / "notes.txt").write_text("x")
    (shelf.root.portable / ".x.json.tmp").write_text("{")
    (shelf.root.portable / f"{slug(REF)}.json.bad-1").write_text("{")

    again = shelf.opened()
    again.load()

    assert sorted(again.refs()) == sorted(refs)
    assert again.held() == {}


def test_unchanged_ledger_is_not_opened_again(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Path] = []

    def count(path: Path, *rest: int) -> bytes:
        opened.append(path)
        return read_regular(path, *rest)

    monkeypatch.setattr(archive_module, "read_regular", count)
    shelf.archive.save(ledger())
    for _ in range(5):
        shelf.archive.get(REF)
    assert opened == []

    again = shelf.opened()
    again.load()
    for _ in range(5):
        again.get(REF)
        again.get("github:octo/repo#2")
    assert opened == [shelf.path]


def test_held_ledger_is_not_opened_again_either(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    shelf.put(b"garbage")
    shelf.held()
    monkeypatch.setattr(archive_module, "read_regular", lambda *_: pytest.fail("opened"))

    for _ in range(5):
        shelf.held()

    assert len(shelf.notes) == 1


@pytest.mark.parametrize("way", ["renamed into place", "written in place", "written in place with its times kept"])
def test_change_from_outside_is_noticed(shelf: Shelf, way: str) -> None:
    shelf.archive.save(ledger(title="before"))
    changed = to_json_bytes(encode(ledger(title="after!")))
    before = shelf.path.stat()
    assert len(changed) == before.st_size

    if way == "renamed into place":
        shelf.put(changed)
    else:
        shelf.path.write_bytes(changed)
    if way.endswith("kept"):
        os.utime(shelf.path, ns=(before.st_atime_ns, before.st_mtime_ns))

    found = shelf.archive.get(REF)
    assert found is not None
    assert found.title == "after!"


def test_file_that_was_taken_away_is_noticed(shelf: Shelf) -> None:
    shelf.archive.save(ledger())
    shelf.path.unlink()

    assert shelf.archive.get(REF) is None
    assert shelf.archive.with_pending() == []


def test_save_when_the_disk_refuses_leaves_the_old_one_in_force(shelf: Shelf) -> None:
    shelf.archive.save(ledger(title="before"))

    with full_disk(), pytest.raises(OSError, match="File too large"):
        shelf.archive.save(ledger(title="after"))

    found = shelf.archive.get(REF)
    assert found is not None
    assert found.title == "before"
    assert shelf.opened().get(REF) == found


@contextmanager
def full_disk() -> Iterator[None]:
    """Every write fails."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


# --- what is no ledger ---

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

    assert shelf.archive.get(REF) == ledger()
    assert shelf.archive.held() == {}
    assert [one.ref for one in shelf.archive.with_pending()] == [REF]
    assert shelf.path.with_name(f"{shelf.path.name}.bad-1").read_bytes() == b"garbage"


def test_second_bad_file_is_set_aside_beside_the_first(shelf: Shelf) -> None:
    for content in (b"first", b"second"):
        shelf.put(content)
        shelf.held()

    aside = [shelf.path.with_name(f"{shelf.path.name}.bad-{number}").read_bytes() for number in (1, 2)]
    assert aside == [b"first", b"second"]


def test_bad_ledger_costs_its_item_only(shelf: Shelf) -> None:
    shelf.archive.save(ledger("github:octo/repo#2"))
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


def test_bad_ledger_with_a_cut_name_keeps_its_deliveries_over_a_start(shelf: Shelf) -> None:
    from the_loop.outbox import Outbox  # noqa: PLC0415 (only here)

    class Idle:
        def look(self, _offer: Offer) -> Look:
            return Look(Trace.UNKNOWN)

    stem = shelf.root.delivery(f"{LONG}/comment:1")
    for part in ("payload", "started", "outcome"):
        stem.with_name(f"{stem.name}.{part}.json").write_text(json.dumps({"ref": LONG, "offer": 1}))
    orphan = shelf.root.delivery("github:octo/repo#9/comment:1")
    orphan.with_name(f"{orphan.name}.payload.json").write_text(json.dumps({"ref": "github:octo/repo#9"}))
    shelf.root.ledger(LONG).write_bytes(b"garbage")
    again = shelf.opened()
    again.load()
    nothing: Any = None

    outbox = Outbox(
        shelf.root, again, Idle(), policy=nothing, rules_of=lambda _: None, tell=shelf.notes.append, now=lambda: 0.0
    )  # type: ignore[arg-type]
    outbox.recover()

    assert {path.name.removeprefix(stem.name) for path in shelf.root.deliveries.iterdir()} == {
        ".payload.json",
        ".started.json",
        ".outcome.json",
    }


# --- what must not be touched ---


def test_ledger_of_a_newer_version_is_held_and_unchanged_to_the_byte(shelf: Shelf) -> None:
    content = b'{"schema" : 99,\n  "ref":"github:octo/repo#1", "poll": [1, {"x": null}], "z": 1e400 }\n\n'
    shelf.put(content)
    inode = shelf.path.stat().st_ino

    for _ in range(3):
        again = shelf.opened()
        again.load()
        assert "schema 99" in shelf.held(again)

    assert (shelf.path.read_bytes(), shelf.path.stat().st_ino) == (content, inode)
    assert shelf.names == [shelf.path.name]


def test_bad_ledger_when_nothing_can_be_written_is_held_and_nothing_is_touched(shelf: Shelf) -> None:
    shelf.put(b"garbage")

    for _ in range(3):
        with full_disk():
            assert "cannot be set aside" in shelf.held(shelf.opened())

    assert shelf.path.read_bytes() == b"garbage"
    assert shelf.names == [shelf.path.name]


@pytest.mark.parametrize("options", [{"may_write": False}, {"guard": lambda: False}], ids=["reader", "displaced"])
def test_bad_ledger_read_by_who_may_not_write_is_held_and_nothing_is_touched(
    shelf: Shelf, options: dict[str, Any]
) -> None:
    shelf.put(b"garbage")

    assert shelf.held(shelf.opened(**options))

    assert shelf.path.read_bytes() == b"garbage"
    assert shelf.names == [shelf.path.name]


def test_save_in_a_root_that_is_somebody_elses_by_now_is_refused(shelf: Shelf) -> None:
    with pytest.raises(PermissionError):
        shelf.opened(guard=lambda: False).save(ledger())

    assert shelf.names == []


def test_good_ledger_that_cannot_be_read_for_now_is_neither_set_aside_nor_replaced(shelf: Shelf) -> None:
    script = """
        import os, resource, sys
        from pathlib import Path
        from the_loop.archive import Archive
        from the_loop.state import StateRoot
        archive = Archive(StateRoot(Path(sys.argv[1])), lambda note: None, lambda: 0.0)
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        spare = os.dup(0)
        os.close(spare)
        resource.setrlimit(resource.RLIMIT_NOFILE, (spare, limits[1]))  # no descriptor is left
        try:
            archive.get("github:octo/repo#1")
            print("read")
        except Exception as error:
            print(type(error).__name__)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        print(archive.get("github:octo/repo#1").ref)
    """
    shelf.archive.save(ledger())
    before = shelf.path.read_bytes()

    said = run_python(script, shelf.root.path)

    assert said.splitlines()[1] == REF
    assert said.splitlines()[0] != "read"
    assert shelf.path.read_bytes() == before
    assert shelf.names == [shelf.path.name]


def test_unknown_keys_survive_a_rewrite_on_every_level(shelf: Shelf) -> None:
    odd = {"x": [1, {"y": None}], "extra": {"z": 1.5}, "日本": "é"}
    content = tree(**odd)
    content["poll"] = {**content["poll"], **odd}
    content["poll"]["spawn"] = {**content["poll"]["spawn"], **odd}
    content["poll"]["pending"]["comment:2"] = {**content["poll"]["pending"]["comment:2"], **odd}
    shelf.put(content)

    found = shelf.archive.get(REF)
    assert found is not None
    shelf.archive.save(accept(found, "comment:3", "alice"))

    after = json.loads(shelf.path.read_bytes())
    for part in (
        after,
        after["poll"],
        after["poll"]["spawn"],
        after["poll"]["pending"]["comment:2"],
    ):
        assert part.items() >= odd.items()
    assert "comment:3" in after["poll"]["pending"]
    assert shelf.opened().get(REF) == shelf.archive.get(REF)


# --- anything at all ---

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def replaced(content: Any, draw: Callable[[Any], Any]) -> Any:
    """`content` with one part of it, anywhere, replaced by any JSON."""
    if not isinstance(content, dict | list) or not content or draw(st.integers(0, 3)) == 0:
        return draw(JSON)
    key = draw(st.sampled_from(sorted(content) if isinstance(content, dict) else range(len(content))))
    copy: Any = dict(content) if isinstance(content, dict) else list(content)
    copy[key] = replaced(content[key], draw)
    return copy


@st.composite
def near_ledgers(draw: Callable[[Any], Any]) -> bytes:
    return json.dumps(replaced(tree(), draw)).encode()


@settings(deadline=None, max_examples=150)
@given(st.binary(max_size=50) | JSON.map(lambda value: json.dumps(value).encode()) | near_ledgers())
def test_file_of_any_content_is_a_ledger_or_held_and_its_bytes_are_still_there(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        shelf = Shelf(Path(folder))
        shelf.put(content)

        with suppress(HeldItem):
            found = shelf.archive.get(REF)
            assert found is not None
            shelf.archive.save(found)
            assert shelf.opened().get(REF) == found
        assert not shelf.archive.held() or content in [path.read_bytes() for path in shelf.root.portable.iterdir()]
