"""The trail in the journal: which fields an entry has, where our messages go, and what is read back."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Final, Self

import pytest

from systemd import journal as library
from the_loop.core.model import Note
from the_loop.eventlog import CATALOG, FIELD_LIMIT, JsonLog, compose, message_id, read_log
from the_loop.supervision.journal import JournalSink, entry_fields, is_connected, new_events

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

NOW: Final = 1_700_000_000.0
REF: Final = "github:octo/repo#1"


def event(name: str = "poll.cycle", **fields: Any) -> dict[str, Any]:
    return compose(Note(name, fields), NOW)


def entry(root: Path, name: str = "poll.cycle", **fields: Any) -> dict[str, Any]:
    return entry_fields(event(name, **fields), root)


# --- fields ---


def test_entry_when_made_then_has_the_documented_fields(tmp_path: Path) -> None:
    made = entry(tmp_path, "poll.comment_failed", ref=REF, key="comment:7", source="work", attempt=2, willRetry=True)

    assert made["MESSAGE_ID"] == message_id("poll.comment_failed")
    assert made["SYSLOG_IDENTIFIER"] == "the-loop"
    assert made["THE_LOOP_EVENT"] == "poll.comment_failed"
    assert made["THE_LOOP_STATE_ROOT"] == str(tmp_path)
    assert made["THE_LOOP_REF"] == REF
    assert made["THE_LOOP_SOURCE"] == "work"
    assert made["THE_LOOP_DELIVERY_ID"] == f"{REF}/comment:7"
    assert made["THE_LOOP_ATTEMPT"] == "2"
    assert made["THE_LOOP_WILL_RETRY"] == "1"


@pytest.mark.parametrize(("value", "expected"), [(True, "1"), (False, "0"), (3, "3"), (0.25, "0.25"), ("x", "x")])
def test_entry_when_a_value_is_no_text_then_is_written_to_be_matched(tmp_path: Path, value: Any, expected: str) -> None:
    assert entry(tmp_path, interrupted=value)["THE_LOOP_INTERRUPTED"] == expected


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        ("deliveryId", "THE_LOOP_DELIVERY_ID"),
        ("startedAt", "THE_LOOP_STARTED_AT"),
        ("willRetry", "THE_LOOP_WILL_RETRY"),
        ("ref", "THE_LOOP_REF"),
    ],
)
def test_entry_when_a_name_has_humps_then_they_are_underscores(tmp_path: Path, field: str, expected: str) -> None:
    assert entry(tmp_path, **{field: "x"})[expected] == "x"


@pytest.mark.parametrize(("level", "priority"), [("error", 3), ("warning", 4), ("notice", 5), ("info", 6)])
def test_entry_when_of_a_level_then_has_its_priority(tmp_path: Path, level: str, priority: int) -> None:
    for name, form in CATALOG.items():
        if form.level == level:
            assert entry(tmp_path, name)["PRIORITY"] == priority


def test_levels_when_listed_then_the_journal_knows_every_one() -> None:
    assert {form.level for form in CATALOG.values()} <= {"error", "warning", "notice", "info"}


def test_entry_when_read_back_then_is_the_whole_event(tmp_path: Path) -> None:
    told = event("poll.cycle", items=3, interrupted=True, nested={"a": [1]})

    assert json.loads(entry_fields(told, tmp_path)["THE_LOOP_JSON"]) == told


def test_entry_when_values_are_nested_then_only_the_json_has_them(tmp_path: Path) -> None:
    assert "THE_LOOP_NESTED" not in entry(tmp_path, nested={"a": 1})


def test_entry_when_a_text_from_outside_has_lines_then_makes_no_field_of_its_own(tmp_path: Path) -> None:
    nasty = "x\nPRIORITY=0\nMESSAGE_ID=00000000000000000000000000000000\x00\x1b[31m\udc80"

    made = entry(tmp_path, "dispatch.dropped", ref=REF, key="comment:7", reason=nasty)

    assert made["PRIORITY"] == 6
    for value in made.values():
        assert not re.search(r"[\x00-\x1f\x7f\ud800-\udfff]", str(value)), value


def test_entry_when_a_text_is_long_then_is_capped_and_fits_a_datagram(tmp_path: Path) -> None:
    fields = dict.fromkeys(("reason", "author", "url"), "\U0001f600" * 100_000)

    made = entry(tmp_path, "source.failed", **fields)

    assert all(len(made[f"THE_LOOP_{name.upper()}"]) <= FIELD_LIMIT for name in fields)
    # much over 200 kB a datagram is refused, and the entry takes a longer way
    assert sum(len(str(value).encode()) for value in made.values()) < 200_000


def test_entry_when_of_any_event_then_its_fields_have_names_that_the_journal_takes(tmp_path: Path) -> None:
    fields = ("ref", "deliveryId", "heldItems", "lastGoodCycleAt", "x1", "a_b")

    made = entry(tmp_path, **dict.fromkeys(fields, "x"))

    assert [name for name in made if not re.fullmatch(r"[A-Z][A-Z0-9_]{0,63}", name)] == []


# --- where our messages go ---


def connected(environ: Mapping[str, str], **options: Any) -> bool:
    """`is_connected` in a process of its own, with the standard error that is given."""
    script = (
        "import json, sys; from the_loop.supervision.journal import is_connected;"
        "print(is_connected(json.loads(sys.argv[1])))"
    )
    argv = [sys.executable, "-c", script, json.dumps(environ)]
    done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, timeout=30, check=True, **options)
    return {"True": True, "False": False}[done.stdout.strip()]


def test_connected_when_the_variable_names_our_stderr_then_is(tmp_path: Path) -> None:
    with (tmp_path / "stream").open("wb") as stream:
        found = os.fstat(stream.fileno())

        assert connected({"JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino}"}, stderr=stream)


@pytest.mark.parametrize("value", ["", "1:2", "abc", ":", "1:", "-1:-2", "1:2:3", "²:²", "9" * 400 + ":1"])
def test_connected_when_the_variable_is_another_streams_or_garbage_then_is_not(tmp_path: Path, value: str) -> None:
    with (tmp_path / "stream").open("wb") as stream:
        assert not connected({"JOURNAL_STREAM": value}, stderr=stream)


def test_connected_when_there_is_no_variable_then_is_not() -> None:
    assert not is_connected({})


def test_connected_when_stderr_is_closed_then_is_not() -> None:
    assert not connected({"JOURNAL_STREAM": "1:2"}, preexec_fn=lambda: os.close(2))


# --- the sink ---


class Reader:
    """A journal with these entries, as `systemd.journal.Reader` gives them."""

    entries: tuple[dict[str, Any], ...] = ()
    opened = 0

    def __init__(self) -> None:
        type(self).opened += 1
        self.matches: dict[str, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        pass

    def add_match(self, **match: str) -> None:
        self.matches.update(match)

    def process(self) -> None:
        pass

    def get_next(self) -> dict[str, Any]:
        return next(iter(self), {})

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (one for one in self.entries if all(one.get(name) == value for name, value in self.matches.items()))


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What was sent to the journal."""
    found: list[dict[str, Any]] = []
    monkeypatch.setattr(library, "send", lambda message, **fields: found.append({"MESSAGE": message, **fields}))
    monkeypatch.setattr(library, "Reader", Reader)
    monkeypatch.setattr(Reader, "entries", ())
    monkeypatch.setattr(Reader, "opened", 0)
    return found


def test_sink_when_an_event_is_told_then_sends_one_entry_with_its_sentence(
    tmp_path: Path, sent: list[dict[str, Any]]
) -> None:
    told = event("poll.spawned", ref=REF)

    JournalSink(tmp_path, None).write(told)

    assert [one["MESSAGE"] for one in sent] == [f"started {REF}"]
    assert sent[0]["THE_LOOP_EVENT"] == "poll.spawned"


def logged(path: Path) -> list[str]:
    return [one["event"] for one in read_log(path)]


def test_sink_when_nothing_can_be_read_back_then_keeps_the_log(tmp_path: Path, sent: list[dict[str, Any]]) -> None:
    sink = JournalSink(tmp_path, JsonLog(tmp_path / "log"))
    for _ in range(20):
        sink.write(event())
        sink.check()

    assert len(logged(tmp_path / "log")) == 20
    assert len(sent) == 20
    assert Reader.opened <= 10  # it is not asked again for ever


def test_sink_when_an_entry_of_ours_is_read_back_then_drops_the_log(
    tmp_path: Path, sent: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = JournalSink(tmp_path, JsonLog(tmp_path / "log"))
    sink.write(event("poll.spawned", ref=REF))
    monkeypatch.setattr(Reader, "entries", ({"_PID": str(os.getpid()), "THE_LOOP_STATE_ROOT": str(tmp_path)},))

    sink.check()
    sink.write(event())

    assert logged(tmp_path / "log") == ["poll.spawned"]
    assert len(sent) == 2


def test_sink_when_only_entries_of_others_are_read_then_keeps_the_log(
    tmp_path: Path, sent: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = JournalSink(tmp_path, JsonLog(tmp_path / "log"))
    others = ({"_PID": "1", "THE_LOOP_STATE_ROOT": str(tmp_path)}, {"_PID": str(os.getpid())})
    monkeypatch.setattr(Reader, "entries", others)

    sink.check()
    sink.write(event())

    assert logged(tmp_path / "log") == ["poll.cycle"]
    assert len(sent) == 1


# --- reading ---


# anybody on the machine may send an entry that looks like ours
FORGED: Final[tuple[Any, ...]] = (
    "{",
    "[]",
    "7",
    '{"event": "x"}',
    '{"time": 7, "event": "x"}',
    '{"time": "2026-01-01T00:00:00Z", "event": 7}',
    '{"time": "2026-01-01T00:00:00", "event": "x"}',
    '{"time": "yesterday", "event": "x"}',
    b"\xff",
    None,
    "[" * 100_000,
)


@pytest.mark.parametrize("text", FORGED, ids=lambda text: repr(text)[:40])
def test_reading_when_an_entry_is_garbled_or_forged_then_passes_over_it(
    monkeypatch: pytest.MonkeyPatch, text: Any
) -> None:
    whole = event("poll.spawned", ref=REF)
    monkeypatch.setattr(Reader, "entries", ({}, {"THE_LOOP_JSON": text}, {"THE_LOOP_JSON": json.dumps(whole)}))

    assert list(new_events(Reader())) == [whole]
