"""Positions of sources: whole or not at all, and a wait that never outgrows itself (contract R6.8, section 3)."""

from __future__ import annotations

import json
import resource
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.processes import run_python
from the_loop import wiring
from the_loop.clocks import SystemClock
from the_loop.config import Config
from the_loop.config_file import parse
from the_loop.core.model import Note
from the_loop.cursors import Cursor, UnusableCursor, Wait, read_cursor, recover_cursor, write_cursor
from the_loop.sources.limits import RateLimiters
from the_loop.state import StateRoot
from the_loop.watched import Watched

FULL = Cursor({"cursor": "2026", "etags": {"a": "b"}}, frozenset({"github:o/r#1", "github:o/r#2"}), Wait(90, 60, "x"))


def make_config(folder: Path) -> Config:
    section = f"{{provider: directory, path: {folder / 'inbox'}, authorizedUsers: [root]}}"
    return parse(f"polling: {{sources: [{section}]}}\nsession: {{runner: print}}".encode(), "config.yaml")


def watch(config: Config, root: StateRoot, told: list[Note]) -> Watched:
    (section,) = config.polling.sources
    clock = SystemClock()
    limiters = RateLimiters(clock.uptime)
    return wiring.watch(config, section, root, {}, clock=clock, limiters=limiters, tell=told.append)


@pytest.mark.parametrize("cursor", [FULL, Cursor(), Cursor({}), Cursor(None, frozenset({"a:b"}), None)])
def test_position_is_read_back_as_it_was_written(root: StateRoot, cursor: Cursor) -> None:
    write_cursor(root, "work", cursor)

    assert read_cursor(root, "work") == cursor
    assert stat.S_IMODE(root.cursor("work").stat().st_mode) == 0o600


def test_positions_of_two_sources_are_apart(root: StateRoot) -> None:
    write_cursor(root, "a b", FULL)
    write_cursor(root, "a%20b", Cursor({}))

    assert read_cursor(root, "a b") == FULL
    assert read_cursor(root, "a%20b") == Cursor({})


def test_position_that_is_missing_is_the_empty_one(root: StateRoot) -> None:
    assert read_cursor(root, "work") == Cursor()


def written(**fields: Any) -> dict[str, Any]:
    return {"schema": 1, "source": "work", "position": {"a": 1}, "owed": ["a:b"], "wait": None, **fields}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0" * 100,
        b"garbage",
        b"[" * 100_000,
        b"9" * 5000,
        [],
        5,
        {},
        written(schema=2),
        written(schema=None),
        written(position=[]),
        written(position=5),
        written(owed=5),
        written(owed=None),
        written(owed="a:b"),
        written(owed={"a:b": 1}),
        written(owed=[1, None]),
        written(wait=5),
        written(wait="soon"),
        written(wait=[1, 2, 3]),
        written(wait={"until": 1}),
        written(wait={"until": "x", "seconds": 1, "reason": "r"}),
        written(wait={"until": float("inf"), "seconds": float("inf"), "reason": "r"}),
        written(wait={"until": float("nan"), "seconds": 1, "reason": "r"}),
        written(wait={"until": 1e300, "seconds": 1e300, "reason": "r"}),
        written(wait={"until": 10**400, "seconds": 1, "reason": "r"}),
        written(wait={"until": 1, "seconds": -(10**400), "reason": "r"}),
        {key: value for key, value in written().items() if key != "owed"},
        {key: value for key, value in written().items() if key != "position"},
    ],
    ids=range(29),
)
def test_position_of_any_other_shape_is_the_empty_one_so_that_all_is_owed(root: StateRoot, content: Any) -> None:
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    root.cursor("work").write_bytes(text)

    with pytest.raises(UnusableCursor):
        read_cursor(root, "work")
    cursor, problem = recover_cursor(root, "work")

    assert cursor == Cursor()
    assert problem.endswith("it is set aside as 'work.json.bad-1'")
    assert root.cursor("work").with_name("work.json.bad-1").read_bytes() == text
    assert recover_cursor(root, "work") == (Cursor(), "")


@pytest.mark.parametrize("kind", ["link", "directory"])
def test_position_that_is_no_file_is_the_empty_one_and_not_followed(root: StateRoot, kind: str) -> None:
    write_cursor(root, "other", FULL)
    if kind == "link":
        root.cursor("work").symlink_to(root.cursor("other"))
    else:
        root.cursor("work").mkdir()

    cursor, problem = recover_cursor(root, "work")

    assert (cursor, "is not a regular file" in problem) == (Cursor(), True)
    write_cursor(root, "work", FULL)  # nothing is in its way any more
    assert (read_cursor(root, "work"), read_cursor(root, "other")) == (FULL, FULL)


def test_each_cursor_that_is_set_aside_has_a_name_of_its_own(root: StateRoot) -> None:
    for text in ("one", "two", "three"):
        root.cursor("work").write_text(text)
        assert recover_cursor(root, "work")[0] == Cursor()

    kept = sorted(root.cursor("work").parent.glob("work.json.bad-*"))
    assert [file.read_text() for file in kept] == ["one", "two", "three"]


def test_cursor_that_cannot_be_read_is_not_none_and_stays_where_it_is(root: StateRoot) -> None:
    script = """
        import resource, os, sys
        from pathlib import Path
        from the_loop.cursors import Cursor, read_cursor, recover_cursor
        from the_loop.state import StateRoot
        root = StateRoot(Path(sys.argv[1]))
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) - 1,) * 2)
        try:
            read_cursor(root, "work")
        except OSError as error:
            print(error.strerror)
        cursor, problem = recover_cursor(root, "work")
        print(cursor == Cursor(), problem)
    """
    write_cursor(root, "work", FULL)

    said = run_python(script, root.path)

    assert said == "Too many open files\nTrue Too many open files\n"
    assert recover_cursor(root, "work") == (FULL, "")


def test_source_whose_cursor_is_lost_is_made_and_told(root: StateRoot, tmp_path: Path) -> None:
    root.cursor("inbox").write_text(json.dumps(written(wait={"until": 10**400, "seconds": 1, "reason": "r"})))
    config = make_config(tmp_path)
    told: list[Note] = []

    watched = watch(config, root, told)

    assert watched.cursor == Cursor()
    assert [(note.name, note.fields["source"]) for note in told] == [("source.failed", "inbox")]
    assert "set aside as 'inbox.json.bad-1'" in told[0].fields["reason"]
    watch(config, root, told)
    assert len(told) == 1


def test_unknown_keys_are_no_fault(root: StateRoot) -> None:
    root.cursor("work").write_text(json.dumps(written(more=1)))

    assert read_cursor(root, "work").value == {"a": 1}


def test_write_when_the_disk_refuses_leaves_the_old_one(root: StateRoot) -> None:
    write_cursor(root, "work", FULL)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            write_cursor(root, "work", Cursor({}))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    assert read_cursor(root, "work") == FULL


@settings(deadline=None)
@given(st.floats(0, 1e10), st.floats(0, 1e7), st.floats(0, 1e10))
def test_wait_is_never_longer_than_it_was_set_whatever_the_clock_does(until: float, seconds: float, now: float) -> None:
    assert 0 <= Wait(until, seconds, "x").remaining_s(now) <= seconds


@pytest.mark.parametrize(
    ("now", "left"), [(100.0, 0.0), (90.0, 0.0), (60.0, 30.0), (30.0, 60.0), (0.0, 60.0), (-1e9, 60.0)]
)
def test_wait_counts_down_and_survives_a_clock_that_jumped(now: float, left: float) -> None:
    assert Wait(90.0, 60.0, "x").remaining_s(now) == left
