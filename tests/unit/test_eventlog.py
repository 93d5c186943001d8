"""The decision trail: safe sentences, a log that survives cuts and full disks, and never costs more than itself."""

from __future__ import annotations

import ast
import io
import json
import os
import re
import stat
import string
import subprocess
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import the_loop
from support.processes import LIMIT_S, python_argv, run_python
from the_loop import eventlog
from the_loop.core.model import Note
from the_loop.eventlog import (
    CATALOG,
    FIELD_LIMIT,
    JsonLog,
    Teller,
    Trail,
    Wanted,
    compose,
    matches,
    parse_line,
    read_log,
    rotate,
)

NOON = 1_700_000_000.5
SOURCE = Path(the_loop.__file__).parent
PARTS = {
    "poller": ("started", "blocked", "stopping"),
    "poll": ("cycle", "spawned", "comment_forwarded", "comment_failed", "comment_held", "spawn_failed", "rearmed"),
    "dispatch": ("abandoned", "left_running", "dropped"),
    "control": ("applied", "ambiguous"),
    "session": ("started", "closed"),
    "ledger": ("held",),
    "source": ("failed", "waiting", "recovered"),
    "config": ("reloaded", "rejected"),
}
DOCUMENTED = [
    "poll.attempts_released",
    "poll.edited",
    *(f"{part}.{name}" for part, names in PARTS.items() for name in names),
]


def event(**fields: Any) -> dict[str, Any]:
    return compose(Note("source.failed", {"source": "work", "reason": "x", **fields}), NOON)


class Sink:
    """Keeps what it is told, or fails as a full disk does."""

    def __init__(self) -> None:
        self.told: list[Mapping[str, Any]] = []
        self.is_full = False

    def write(self, event: Mapping[str, Any]) -> None:
        if self.is_full:
            with Path("/dev/full").open("wb", buffering=0) as full:
                full.write(b"x")
        self.told.append(event)

    def drop_log(self) -> None:
        pass

    def check(self) -> None:
        pass


# --- the catalog ---


@pytest.mark.parametrize("name", DOCUMENTED)
def test_catalog_has_every_documented_event(name: str) -> None:
    assert name in CATALOG


def test_catalog_has_every_event_that_the_code_tells() -> None:
    told = {
        call.args[0].value
        for path in SOURCE.rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "Note"
        if isinstance(call.args[0], ast.Constant)
    }

    assert len(told) > 20
    assert told <= set(CATALOG)


@pytest.mark.parametrize("name", CATALOG)
def test_sentence_without_any_field_is_still_one(name: str) -> None:
    told = compose(Note(name), NOON)

    assert told["event"] == name
    assert told["level"] == CATALOG[name].level
    assert told["time"] == "2023-11-14T22:13:20.500Z"
    assert told["message"]
    assert "{" not in told["message"]


@pytest.mark.parametrize("name", CATALOG)
def test_sentence_shows_each_field_it_speaks_of(name: str) -> None:
    spoken = {field for _, field, _, _ in string.Formatter().parse(CATALOG[name].sentence) if field}
    fields = {field: f"<{field}>" for field in spoken - {"suffix"}}

    message = compose(Note(name, fields), NOON)["message"]

    assert all(value in message for value in fields.values())
    assert CATALOG[name].level in ("info", "notice", "warning", "error")


def test_interrupted_cycle_says_so_in_its_sentence_and_in_a_field() -> None:
    told = compose(Note("poll.cycle", {"items": 1, "interrupted": True}), NOON)

    assert told["message"].endswith(", interrupted")
    assert told["interrupted"] is True
    assert "interrupted" not in compose(Note("poll.cycle", {"interrupted": False}), NOON)["message"]


def test_give_up_says_in_its_sentence_what_to_type() -> None:
    fields = {"ref": "github:o/r#1", "key": "comment:5", "attempt": 3, "reason": "exit status 1"}
    told = [compose(Note("poll.comment_failed", {**fields, "willRetry": again}), NOON) for again in (True, False)]

    assert told[0]["message"] == "github:o/r#1/comment:5 was rejected (attempt 3): exit status 1"
    assert told[1]["message"] == f"{told[0]['message']}; given up (run `the-loop ledger retry 'github:o/r#1'`)"


def test_delivery_id_is_made_of_ref_and_key() -> None:
    told = compose(Note("poll.comment_forwarded", {"ref": "github:o/r#1", "key": "comment:5"}), NOON)

    assert told["deliveryId"] == "github:o/r#1/comment:5"
    assert "key" not in told
    assert told["message"] == "delivered github:o/r#1/comment:5"


def test_field_that_does_not_apply_is_left_out() -> None:
    assert "until" not in event(until=None)


# --- text from outside ---


@settings(deadline=None)
@given(st.text(), st.text())
def test_text_of_any_kind_is_one_printable_capped_line(ref: str, reason: str) -> None:
    told = compose(Note("control.ambiguous", {"ref": ref, "key": "comment:1", "reason": reason}), NOON)

    assert all(str(value).isprintable() for value in told.values())
    assert len(told["ref"]) <= FIELD_LIMIT
    assert b"\n" not in json.dumps(told).encode("ascii")


def test_line_breaks_escapes_and_levels_are_shown_and_split_nothing() -> None:
    told = event(reason="a\n<0>spoofed\r\x1b[31m\0\u2028\x9b")

    assert told["reason"] == r"a\x0a<0>spoofed\x0d\x1b[31m\x00\u2028\x9b"
    assert told["message"].startswith("source work failed: ")


def test_braces_in_text_are_no_fields() -> None:
    assert event(reason="{source} {0} {x!r}")["message"] == "source work failed: {source} {0} {x!r}"


def test_long_text_is_capped_and_shows_it() -> None:
    told = event(reason="x" * 60_000, source="\0" * 60_000)

    assert told["reason"] == "x" * (FIELD_LIMIT - 1) + "…"
    assert len(told["source"]) == FIELD_LIMIT
    assert len(told["message"]) < 3 * FIELD_LIMIT
    assert event(reason="x" * FIELD_LIMIT)["reason"] == "x" * FIELD_LIMIT


# --- the log file ---


def test_log_has_one_ascii_line_for_each_event_and_reads_them_back(tmp_path: Path) -> None:
    log = JsonLog(tmp_path / "events.jsonl")
    told = [event(reason="日本\n🎉"), event(reason="b")]

    for one in told:
        log.write(one)

    content = (tmp_path / "events.jsonl").read_bytes()
    assert content.isascii()
    assert content.count(b"\n") == 2
    assert list(read_log(tmp_path / "events.jsonl")) == told


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_log_is_private_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    path = tmp_path / "events.jsonl"
    script = """
        import sys
        from pathlib import Path
        from the_loop.eventlog import JsonLog
        JsonLog(Path(sys.argv[1])).write({})
    """

    run_python(script, path, umask=umask)

    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_log_over_its_limit_keeps_one_older_file_and_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eventlog, "LOG_LIMIT", 1000)
    path = tmp_path / "events.jsonl"

    for number in range(50):
        JsonLog(path).write(event(reason=str(number)))

    assert {file.name for file in tmp_path.iterdir()} == {"events.jsonl", "events.jsonl.1"}
    assert all(file.stat().st_size < 1300 for file in tmp_path.iterdir())
    assert {stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()} == {0o600}
    numbers = [int(one["reason"]) for one in read_log(path)]
    assert numbers == list(range(numbers[0], 50))
    assert len(numbers) > 7


def test_log_that_cannot_be_rotated_is_written_on_and_that_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(eventlog, "LOG_LIMIT", 1000)
    (tmp_path / "events.jsonl.1" / "in the way").mkdir(parents=True)
    log = JsonLog(tmp_path / "events.jsonl")

    for number in range(20):
        log.write(event(reason=str(number)))

    lines = (tmp_path / "events.jsonl").read_text().splitlines()
    assert [json.loads(line)["reason"] for line in lines] == [str(number) for number in range(20)]
    assert capsys.readouterr().err.count("cannot rotate") == 1


# --- the log of the commands' output ---


def output_of(folder: Path) -> bytes:
    return b"".join((folder / name).read_bytes() for name in ("output.log.1", "output.log"))


def test_rotated_output_of_a_command_that_runs_on_goes_on_in_the_emptied_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Renamed, the file would be the command's for as long as it runs, and grow without limit."""
    monkeypatch.setattr(eventlog, "LOG_LIMIT", 1000)
    path = tmp_path / "output.log"
    with path.open("ab", buffering=0) as command:
        for number in range(500):
            command.write(b"%07d\n" % number)
            if number % 10 == 0:
                rotate(path)
            assert all(file.stat().st_size <= 1100 for file in tmp_path.iterdir())

    assert {file.name for file in tmp_path.iterdir()} == {"output.log", "output.log.1"}
    assert {stat.S_IMODE((tmp_path / "output.log.1").stat().st_mode)} == {0o600}
    numbers = [int(line) for line in output_of(tmp_path).split()]
    assert numbers == list(range(500 - len(numbers), 500))
    assert len(numbers) > 125


def test_rotated_output_that_grew_far_over_the_limit_keeps_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eventlog, "LOG_LIMIT", 1000)
    (tmp_path / "output.log").write_bytes(b"a" * 50_000 + b"b" * 1000)

    rotate(tmp_path / "output.log")

    assert output_of(tmp_path) == b"b" * 1000


@pytest.mark.parametrize("size", [0, 1000])
def test_output_up_to_the_limit_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(eventlog, "LOG_LIMIT", 1000)
    rotate(tmp_path / "output.log")
    (tmp_path / "output.log").write_bytes(b"a" * size)

    rotate(tmp_path / "output.log")

    assert [(file.name, file.stat().st_size) for file in tmp_path.iterdir()] == [("output.log", size)]


def in_the_way(folder: Path) -> None:
    (folder / "output.log.1" / "x").mkdir(parents=True)


def a_link(folder: Path) -> None:
    (folder / "output.log").rename(folder / "victim")
    (folder / "output.log").symlink_to("victim")


def a_fifo(folder: Path) -> None:
    (folder / "output.log").unlink()
    os.mkfifo(folder / "output.log")


@pytest.mark.parametrize("spoil", [in_the_way, a_link, a_fifo], ids=lambda spoil: spoil.__name__)
def test_output_that_cannot_be_rotated_is_said_once_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], spoil: Callable[[Path], None]
) -> None:
    monkeypatch.setattr(eventlog, "LOG_LIMIT", 1000)
    (tmp_path / "output.log").write_bytes(b"a" * 2000)
    spoil(tmp_path)
    before = {file.name for file in tmp_path.iterdir()}

    for _ in range(5):
        rotate(tmp_path / "output.log")

    assert capsys.readouterr().err.count("cannot rotate") == 1
    assert {file.name for file in tmp_path.iterdir()} == before
    if spoil is not a_fifo:
        assert (tmp_path / "output.log").read_bytes() == b"a" * 2000


def test_output_on_a_disk_that_refuses_is_said_again_only_after_it_worked(
    tmp_path: Path,
) -> None:
    script = """
        import resource, sys
        from pathlib import Path
        from the_loop import eventlog
        eventlog.LOG_LIMIT, path = 1000, Path(sys.argv[1])
        for limit in (100, 100, -1, 100):
            path.write_bytes(b"a" * 2000) if limit > 0 else None
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, -1))
            eventlog.rotate(path)
            resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))
            print(sorted((file.name, file.stat().st_size) for file in path.parent.iterdir()))
    """
    done = subprocess.run(
        python_argv(script, tmp_path / "output.log"), capture_output=True, text=True, timeout=LIMIT_S, check=True
    )

    full, rotated = "[('output.log', 2000)]", "[('output.log', 0), ('output.log.1', 1000)]"
    assert done.stdout.splitlines() == [full, full, rotated, "[('output.log', 2000), ('output.log.1', 1000)]"]
    assert done.stderr.count("cannot rotate") == 2


def test_log_that_is_a_planted_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "victim").write_bytes(b"precious")
    (tmp_path / "events.jsonl").symlink_to(tmp_path / "victim")

    with pytest.raises(OSError, match="symbolic links"):
        JsonLog(tmp_path / "events.jsonl").write(event())

    assert (tmp_path / "victim").read_bytes() == b"precious"


@pytest.mark.parametrize(
    "cut", [b'{"time": "2023', b"\0" * 40, b"garbage", b'{"time": "2023-11-14T22:13:20Z", "event": "x"}']
)
def test_log_after_a_cut_line_loses_no_other_event(tmp_path: Path, cut: bytes) -> None:
    path = tmp_path / "events.jsonl"
    JsonLog(path).write(event(reason="before"))
    with path.open("ab") as file:
        file.write(cut)

    JsonLog(path).write(event(reason="after"))

    reasons = [one.get("reason", "whole") for one in read_log(path)]
    assert reasons == ["before", *(["whole"] if cut.endswith(b"}") else []), "after"]


def test_log_that_is_missing_has_no_events(tmp_path: Path) -> None:
    assert list(read_log(tmp_path / "events.jsonl")) == []


def test_log_that_cannot_be_read_is_an_error_and_no_empty_answer(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").mkdir()

    with pytest.raises(IsADirectoryError):
        list(read_log(tmp_path / "events.jsonl"))


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\n",
        b"{}",
        b"[]",
        b"5",
        b'"time"',
        b"null",
        b'{"time": 5, "event": "x"}',
        b'{"time": "soon", "event": "x"}',
        b'{"time": "2024-01-01T00:00:00", "event": "x"}',
        b'{"time": "2024-01-01T00:00:00Z"}',
        b'{"time": "2024-01-01T00:00:00Z", "event": 5}',
        b'{"time": "2024-01-01T00:00:00Z", "event": "x"',
        b'{"time": "2024-01-01T00:00:00Z", "event": "x"}{}',
        b"\xff\xfe",
        b"\0" * 100,
        b"[" * 100_000,
        b"9" * 5000,
    ],
    ids=range(18),
)
def test_line_that_is_no_whole_event_is_passed_over(line: bytes) -> None:
    assert parse_line(line) is None


@settings(deadline=None)
@given(st.binary(max_size=60))
def test_line_of_any_bytes_costs_that_line_only(line: bytes) -> None:
    parse_line(line)


def test_matches_by_part_of_the_trail_by_source_and_by_moment_not_by_text() -> None:
    told = event()
    noon = datetime.fromtimestamp(NOON, UTC)
    elsewhere = noon.astimezone(tz=datetime.now().astimezone().tzinfo)

    assert all(matches(told, Wanted(source)) for source in (None, "", "source", "work"))
    assert not any(matches(told, Wanted(source)) for source in ("poll", "source.failed", "wor"))
    assert all(matches(told, Wanted(since=since)) for since in (noon, elsewhere, noon - timedelta(days=400)))
    assert not matches(told, Wanted(since=noon + timedelta(milliseconds=1)))


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        (Wanted(ref="github:Octo/repo#15"), ["poll.accepted", "poll.comment_failed"]),
        (Wanted(ref="github:octo/repo#15/comment:9"), ["poll.comment_failed"]),
        (Wanted(ref="github:octo/repo#1"), []),
        (Wanted(level="warning"), ["poll.comment_failed", "of.tomorrow"]),
        (Wanted(level="info"), ["poll.cycle", "poll.cycle", "poll.accepted", "poll.comment_failed", "of.tomorrow"]),
        (Wanted(has_quiet=False), ["poll.cycle", "poll.accepted", "poll.comment_failed", "of.tomorrow"]),
    ],
)
def test_events_when_some_are_wanted_then_the_others_are_left_out(wanted: Wanted, names: list[str]) -> None:
    ref = "github:octo/repo#15"
    events: list[dict[str, Any]] = [
        {"event": "poll.cycle", "level": "info", "delivered": 0, "errors": 0, "interrupted": False},
        {"event": "poll.cycle", "level": "info", "delivered": 1, "errors": 0, "interrupted": False},
        {"event": "poll.accepted", "level": "info", "ref": ref, "deliveryId": f"{ref}/comment:8"},
        {"event": "poll.comment_failed", "level": "warning", "ref": ref, "deliveryId": f"{ref}/comment:9"},
        {"event": "of.tomorrow", "level": "dire"},
    ]

    assert [event["event"] for event in events if matches(event, wanted)] == names


# --- telling ---


def test_trail_with_a_full_disk_says_it_once_and_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    sink = Sink()
    trail = Trail(sink, lambda: NOON)
    note = Note("poll.cycle")

    for is_full in (False, True, True, False, True):
        sink.is_full = is_full
        trail.tell(note)

    assert len(sink.told) == 2
    assert capsys.readouterr().err == "the-loop: cannot write the event log: No space left on device, ignoring\n" * 2


def test_trail_with_log_and_stderr_on_a_full_disk_costs_nothing(tmp_path: Path) -> None:
    script = """
        import os, resource, sys
        from pathlib import Path
        from the_loop.eventlog import JsonLog, Teller, Trail
        from the_loop.core.model import Note
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        trail = Trail(Teller(JsonLog(Path(sys.argv[1])), sys.stderr, verbose=True), lambda: 0.0)
        for _ in range(3):
            trail.tell(Note("source.failed", {"reason": "x"}))
        print("went on", flush=True)
        os._exit(0)  # a flush of stderr at the end is Python's own affair
    """

    with Path("/dev/full").open("wb") as full:
        argv = python_argv(script, tmp_path / "events.jsonl")
        done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=full, timeout=LIMIT_S, check=True)

    assert done.stdout == b"went on\n"


def test_trail_whose_event_was_written_in_part_says_so(tmp_path: Path) -> None:
    script = """
        import resource, sys
        from pathlib import Path
        from the_loop.eventlog import JsonLog, Trail
        from the_loop.core.model import Note
        sys.stderr = sys.stdout
        resource.setrlimit(resource.RLIMIT_FSIZE, (50, 50))
        Trail(JsonLog(Path(sys.argv[1])), lambda: 0.0).tell(Note("poll.cycle"))
    """

    assert "cannot write the event log" in run_python(script, tmp_path / "events.jsonl")


@pytest.mark.parametrize("verbose", [False, True])
def test_teller_says_the_important_ones_and_keeps_all(verbose: bool) -> None:
    sink, stream = Sink(), io.StringIO()
    trail = Trail(Teller(sink, stream, verbose=verbose), lambda: NOON)

    trail.tell(Note("poll.spawned", {"ref": "a"}))
    trail.tell(Note("source.recovered", {"source": "work"}))

    assert [one["event"] for one in sink.told] == ["poll.spawned", "source.recovered"]
    assert stream.getvalue() == (
        "the-loop: poll.spawned: started a\n" * verbose + "the-loop: source.recovered: source work recovered\n"
    )


def test_teller_with_a_closed_stream_keeps_the_event() -> None:
    sink, stream = Sink(), io.StringIO()
    stream.close()

    Trail(Teller(sink, stream, verbose=True), lambda: NOON).tell(Note("poll.cycle"))

    assert len(sink.told) == 1


def test_teller_on_a_narrow_stream_says_odd_text_safely() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii", errors="backslashreplace")

    Trail(Teller(Sink(), stream, verbose=True), lambda: NOON).tell(Note("source.failed", {"reason": "日本\n\x1b"}))

    assert re.fullmatch(rb"the-loop: [ -~]*\n", raw.getvalue())
    assert os.linesep.encode() not in raw.getvalue()[:-1]


def test_trail_when_a_message_tells_a_command_then_it_names_the_root() -> None:
    told: list[Mapping[str, Any]] = []

    class Keeping(Sink):
        def write(self, event: Mapping[str, Any]) -> None:
            told.append(event)

    fields = {"ref": "github:o/r#1", "key": "spawn:1", "willRetry": False}
    Trail(Keeping(), lambda: NOON, "--state-root '/srv/my loop'").tell(Note("poll.comment_failed", fields))

    assert "`the-loop --state-root '/srv/my loop' ledger retry 'github:o/r#1'`" in told[0]["message"]
