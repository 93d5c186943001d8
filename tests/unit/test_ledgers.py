"""Ledgers on disk: read once, written whole, and left alone where they must be (contract section 3)."""

from __future__ import annotations

import json
import os
import stat
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.processes import run_python
from support.shelf import LONG, REF, Shelf, full_disk, ledger, tree
from the_loop import records as records_module
from the_loop.core.ledger import accept, encode
from the_loop.durable import read_regular, to_json_bytes
from the_loop.ledgers import HeldItem
from the_loop.state import slug

# --- what is right ---


def test_ledger_that_was_saved_is_read_after_a_restart(shelf: Shelf) -> None:
    shelf.ledgers.save(ledger())

    again = shelf.opened()
    again.load()

    assert again.get(REF) == ledger() == shelf.ledgers.get(REF)
    assert list(again.refs()) == [REF]
    assert [one.ref for one in again.with_pending()] == [REF]
    assert stat.S_IMODE(shelf.path.stat().st_mode) == 0o600
    assert shelf.notes == []


def test_item_without_a_file_has_no_ledger(shelf: Shelf) -> None:
    assert shelf.ledgers.get(REF) is None
    assert list(shelf.ledgers.refs()) == []
    assert shelf.names == []


def test_load_finds_ledgers_of_every_name_and_nothing_else(shelf: Shelf) -> None:
    refs = [REF, LONG, "directory:inbox/.hidden", "directory:inbox/a b%#", "github:ghe.example/octo/re-po#1"]
    for ref in refs:
        shelf.ledgers.save(ledger(ref))
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

    monkeypatch.setattr(records_module, "read_regular", count)
    shelf.ledgers.save(ledger())
    for _ in range(5):
        shelf.ledgers.get(REF)
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
    monkeypatch.setattr(records_module, "read_regular", lambda *_: pytest.fail("opened"))

    for _ in range(5):
        shelf.held()

    assert len(shelf.notes) == 1


@pytest.mark.parametrize("way", ["renamed into place", "written in place", "written in place with its times kept"])
def test_change_from_outside_is_noticed(shelf: Shelf, way: str) -> None:
    shelf.ledgers.save(ledger(title="before"))
    changed = to_json_bytes(encode(ledger(title="after!")))
    before = shelf.path.stat()
    assert len(changed) == before.st_size

    if way == "renamed into place":
        shelf.put(changed)
    else:
        shelf.path.write_bytes(changed)
    if way.endswith("kept"):
        os.utime(shelf.path, ns=(before.st_atime_ns, before.st_mtime_ns))

    found = shelf.ledgers.get(REF)
    assert found is not None
    assert found.title == "after!"


def test_file_that_was_taken_away_is_noticed(shelf: Shelf) -> None:
    shelf.ledgers.save(ledger())
    shelf.path.unlink()

    assert shelf.ledgers.get(REF) is None
    assert shelf.ledgers.with_pending() == []


def test_save_when_the_disk_refuses_leaves_the_old_one_in_force(shelf: Shelf) -> None:
    shelf.ledgers.save(ledger(title="before"))

    with full_disk(), pytest.raises(OSError, match="File too large"):
        shelf.ledgers.save(ledger(title="after"))

    found = shelf.ledgers.get(REF)
    assert found is not None
    assert found.title == "before"
    assert shelf.opened().get(REF) == found


# --- what must not be touched ---


def test_ledger_of_a_newer_version_is_held_and_unchanged_to_the_byte(shelf: Shelf) -> None:
    content = b'{"schema" : 99,\n  "ref":"github:octo/repo#1", "poll": [1, {"x": null}], "z": 1e400 }\n\n'
    shelf.put(content)
    inode = shelf.path.stat().st_ino

    for _ in range(3):
        again = shelf.opened()
        again.load()
        assert "schema is 99" in shelf.held(again)

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
        from the_loop.ledgers import Ledgers
        from the_loop.state import StateRoot
        ledgers = Ledgers(StateRoot(Path(sys.argv[1])), lambda note: None, lambda: 0.0)
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        spare = os.dup(0)
        os.close(spare)
        resource.setrlimit(resource.RLIMIT_NOFILE, (spare, limits[1]))  # no descriptor is left
        try:
            ledgers.get("github:octo/repo#1")
            print("read")
        except Exception as error:
            print(type(error).__name__)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        print(ledgers.get("github:octo/repo#1").ref)
    """
    shelf.ledgers.save(ledger())
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

    found = shelf.ledgers.get(REF)
    assert found is not None
    shelf.ledgers.save(accept(found, "comment:3", "alice"))

    after = json.loads(shelf.path.read_bytes())
    for part in (
        after,
        after["poll"],
        after["poll"]["spawn"],
        after["poll"]["pending"]["comment:2"],
    ):
        assert part.items() >= odd.items()
    assert "comment:3" in after["poll"]["pending"]
    assert shelf.opened().get(REF) == shelf.ledgers.get(REF)


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
            found = shelf.ledgers.get(REF)
            assert found is not None
            shelf.ledgers.save(found)
            assert shelf.opened().get(REF) == found
        assert not shelf.ledgers.held() or content in [path.read_bytes() for path in shelf.root.portable.iterdir()]
