"""State files that break: each costs one item or nothing, says so, and is never taken for "nothing there"."""

from __future__ import annotations

import json
import os
import shutil
import stat
import time
from typing import TYPE_CHECKING, Any

import pytest

from support.poller import Box

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.slow

A, B = "directory:inbox/a", "directory:inbox/b"


@pytest.fixture
def lived(box: Box) -> Box:
    """A root with two items that are under way."""
    box.item("a")
    box.item("b")
    assert box.once().code == 0
    return box


def status(box: Box) -> dict[str, Any]:
    report: dict[str, Any] = box.run("poll", "status", "--json").json()
    return report


BAD_LEDGERS: dict[str, Callable[[bytes], bytes]] = {
    "list": lambda _: b"[]",
    "empty": lambda _: b"",
    "zeroed": lambda good: b"\0" * len(good),
    "half": lambda good: good[: len(good) // 2],
    "number-for-list": lambda good: good.replace(b'"seenComments": [', b'"seenComments": 7, "x": ['),
    "other-ref": lambda good: good.replace(b"inbox/a", b"inbox/z"),
    "deep": lambda _: b"[" * 100_000,
}


@pytest.mark.parametrize("kind", BAD_LEDGERS)
def test_ledger_when_broken_while_stopped_then_its_item_is_held_and_the_other_served(lived: Box, kind: str) -> None:
    path = lived.ledger_path(A)
    good = path.read_bytes()
    bad = BAD_LEDGERS[kind](good)
    path.write_bytes(bad)
    lived.comment("a", "c1")
    lived.comment("b", "c1")

    for _ in range(2):
        lived.once()

    assert lived.sink.keys(A) == ["spawn:1"], "neither replayed nor started over"
    assert lived.sink.keys(B) == ["spawn:1", "comment:c1"]
    assert (list(status(lived)["heldItems"]), status(lived)["held"]) == ([A], 0)
    assert f"items held: 1\n  {A}: " in lived.run("poll", "status").out
    assert path.with_name(f"{path.name}.bad-1").read_bytes() == bad
    assert not path.with_name(f"{path.name}.bad-2").exists()
    path.write_bytes(good)
    assert lived.once().code == 0
    lived.assert_once({A: ["spawn:1", "comment:c1"], B: ["spawn:1", "comment:c1"]})
    assert status(lived)["heldItems"] == {}


def test_ledger_when_zeroed_under_a_running_poller_then_held_over_a_restart_until_reset(lived: Box) -> None:
    poller = lived.start()
    lived.wait_for_cycles()
    path = lived.ledger_path(A)
    path.write_bytes(b"")
    lived.comment("a", "c1")
    lived.comment("b", "c1")
    lived.wait(lambda: lived.events("ledger.held") and "comment:c1" in lived.sink.keys(B), "the hold")
    assert poller.stop() == 0
    lived.once()
    assert lived.sink.keys(A) == ["spawn:1"]
    held = json.loads(path.read_bytes())["held"]
    assert set(held) >= {"reason", "since", "aside"}

    assert lived.run("ledger", "reset", A).code == 0
    assert lived.once().code == 0

    starts = [key for key in lived.sink.keys(A) if key.startswith("spawn:")]
    assert len(starts) == 2
    assert lived.sink.got()[-1].thread == ("comment:c1",)


def test_ledger_when_it_is_a_link_then_held_and_the_file_at_its_end_untouched(lived: Box) -> None:
    path = lived.ledger_path(A)
    elsewhere = lived.folder / "elsewhere.json"
    path.rename(elsewhere)
    good = elsewhere.read_bytes()
    path.symlink_to(elsewhere)
    lived.comment("a", "c1")
    lived.comment("b", "c1")

    lived.once()

    assert lived.sink.keys(A) == ["spawn:1"]
    assert lived.sink.keys(B) == ["spawn:1", "comment:c1"]
    assert elsewhere.read_bytes() == good
    assert list(status(lived)["heldItems"]) == [A]
    path.unlink()
    path.write_bytes(good)
    assert lived.once().code == 0
    lived.assert_once({A: ["spawn:1", "comment:c1"], B: ["spawn:1", "comment:c1"]})


def test_ledger_when_of_a_newer_version_then_untouched_to_the_byte_and_its_item_held(lived: Box) -> None:
    path = lived.ledger_path(A)
    newer = path.read_bytes().replace(b'"schema": 1', b'"schema": 99')
    path.write_bytes(newer)
    lived.comment("a", "c1")
    lived.comment("b", "c1")

    lived.once()

    assert path.read_bytes() == newer
    assert list(path.parent.glob("*.bad-*")) == []
    assert lived.sink.keys(A) == ["spawn:1"]
    assert lived.sink.keys(B) == ["spawn:1", "comment:c1"]
    assert "99" in lived.run("poll", "status").out


@pytest.mark.parametrize("content", [b"[]", b"", b"{", b'{"schema": 1, "position": 5, "owed": 7}', b"\0" * 50])
def test_position_when_broken_then_nothing_is_replayed_or_skipped(lived: Box, content: bytes) -> None:
    (path,) = (lived.root / "local" / "sources").iterdir()
    path.write_bytes(content)
    lived.comment("a", "c1")

    assert lived.once().code == 0

    lived.assert_once({A: ["spawn:1", "comment:c1"], B: ["spawn:1"]})


@pytest.mark.parametrize("part", ["payload.json", "started.json", "outcome.json", "lock"])
@pytest.mark.parametrize("content", [b"[]", b"", b"{"])
def test_delivery_file_when_broken_then_its_event_is_not_lost_and_the_other_item_served(
    lived: Box, part: str, content: bytes
) -> None:
    lived.configure(routing={"maxConcurrentDispatches": 1})
    lived.sink.behave(("*", {"gate": lived.sink.gate("open")}))
    lived.comment("a", "c1")
    lived.comment("b", "c1")
    poller = lived.start()
    lived.wait(lambda: len(lived.pending()) == 2 and len(lived.sink.runs()) == 3, "one to run, one to wait")
    poller.kill()
    waiting = next(ref for ref in (A, B) if "comment:c1" not in lived.sink.keys(ref))
    stem = next(
        path.name.removesuffix(".payload.json")
        for path in (lived.root / "local" / "deliveries").glob("*.payload.json")
        if json.loads(path.read_bytes())["ref"] == waiting
    )
    (lived.root / "local" / "deliveries" / f"{stem}.{part}").write_bytes(content)
    lived.sink.open_gate("open")

    for _ in range(3):
        lived.once()

    assert lived.pending() == {}
    assert sorted(lived.sink.ids()) == sorted(f"{ref}/{key}" for ref in (A, B) for key in ("spawn:1", "comment:c1"))
    assert lived.attempts() == {}


def test_heartbeat_when_broken_then_status_still_says_who_runs(lived: Box) -> None:
    lived.configure(polling={"intervalSeconds": 600})
    poller = lived.start()
    lived.wait_for_cycles()
    for content in (b"[]", b"", b"{", b'{"work": 5, "sources": 7, "pending": "x"}', b"\xff"):
        (lived.root / "poll-status.json").write_bytes(content)
        done = lived.run("poll", "status", "--json")
        assert (done.code, done.json()["pid"]) == (0, poller.pid)
        assert f"pid {poller.pid}" in lived.run("poll", "status").out


def test_leftovers_of_cut_off_writes_when_found_then_cleared_and_never_read(lived: Box) -> None:
    for folder in ("portable", "local/sources", "local/deliveries"):
        (lived.root / folder / ".directory,inbox+a.json.tmp").write_bytes(b"{")
        (lived.root / folder / "stray").write_bytes(b"x")
    lived.comment("a", "c1")
    lived.environ["TMPDIR"] = "/dev/shm"  # another file system: a rename from there would fail

    assert lived.once().code == 0

    lived.assert_once({A: ["spawn:1", "comment:c1"], B: ["spawn:1"]})
    assert [path for path in lived.root.rglob(".*.tmp") if path.parent != lived.root] == []


def swap(one: Path, other: Path) -> None:
    spare = one.with_name("spare")
    one.rename(spare)
    other.rename(one)
    spare.rename(other)


@pytest.mark.parametrize("is_running", [True, False])
def test_inbox_when_unmounted_then_nobody_has_gone_and_it_goes_on_once_it_is_back(box: Box, is_running: bool) -> None:
    inbox, below = box.folder / "in", box.folder / "mount-point"
    inbox.mkdir()
    below.mkdir()
    box.inbox = inbox
    box.configure(sources=[{"provider": "directory", "path": str(inbox), "settleSeconds": 0}])
    for name in ("a", "b"):
        box.item(name)
    if is_running:
        box.start()
        box.wait(lambda: len(box.events("poll.spawned")) == 2 and not box.pending(), "both")
        swap(inbox, below)
        box.wait_for_cycles(3, since=time.time())
    else:
        assert box.once().code == 0
        swap(inbox, below)
        for _ in range(3):
            assert box.once().code == 1
    assert status(box)["sources"][0]["state"] == "failing"
    assert str(inbox) in status(box)["sources"][0]["error"]
    assert box.events("session.closed") == []

    swap(inbox, below)
    box.comment("a", "c1")

    if is_running:
        box.wait(lambda: box.events("source.recovered") and not box.pending() and len(box.sink.ids()) == 3, "it again")
    else:
        assert box.once().code == 0
    box.assert_once({"directory:in/a": ["spawn:1", "comment:c1"], "directory:in/b": ["spawn:1"]})


def test_item_when_its_folder_really_goes_then_closed_once(lived: Box) -> None:
    shutil.rmtree(lived.inbox / "a")
    for _ in range(3):
        assert lived.once().code == 0

    lived.assert_once({A: ["spawn:1", "close:1"], B: ["spawn:1"]})


def test_root_when_missing_then_made_for_its_owner_only(box: Box) -> None:
    shutil.rmtree(box.root)
    before = os.umask(0)
    try:
        assert box.once().code == 0
    finally:
        os.umask(before)

    assert stat.S_IMODE(box.root.stat().st_mode) == 0o700
    assert box.inbox.is_dir()
