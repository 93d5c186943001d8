"""`poll status --prometheus`: valid in both formats, honest about what is not known, whatever the heartbeat holds."""

from __future__ import annotations

import fcntl
import json
import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import click
import pytest
from click.testing import CliRunner, Result
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from the_loop import __version__
from the_loop.cli import cli, prometheus
from the_loop.cli import status as status_module
from the_loop.counters import Counters
from the_loop.durable import to_json_bytes
from the_loop.lock import Probe, Sight
from the_loop.processes import Identity, identity_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from prometheus_client import Metric

    from the_loop.state import StateRoot

BEAT: dict[str, Any] = {
    "writtenAt": "2026-01-31T12:00:10.000Z",
    "since": "2026-01-31T12:00:00.000Z",
    "version": "0.0.9",
    "pid": 11,
    "starttime": 22,
    "pending": 3,
    "uncertain": 0,
    "held": 1,
    "gaveUp": 2,
    "heldItems": {"fake:2": "why"},
    "attention": [{"state": "held"}, {"state": "gave-up"}],
    "sources": [
        {
            "name": "inbox",
            "items": 5,
            "waiting": 0,
            "owed": 1,
            "lastGoodAt": "2026-01-31T12:00:09.000Z",
            "waitingUntil": None,
        }
    ],
    "counters": {
        "running": 1,
        "sources": {
            "inbox": {
                "cycles": {"good": 4, "failed": 1},
                "cycleSeconds": 2.5,
                "errors": 1,
                "requests": 9,
                "pointsLeft": 10.0,
                "pointsLimit": 60.0,
            }
        },
        "deliveries": [{"source": "inbox", "kind": "spawn", "outcome": "delivered", "count": 2}],
        "limits": [1, 5],
        "waits": [
            {"since": "created", "source": "inbox", "kind": "spawn", "counts": [1, 0, 1], "seconds": 9.5},
            {"since": "accepted", "source": "inbox", "kind": "spawn", "counts": [2, 0, 0], "seconds": 0.5},
        ],
    },
}
HOSTILE = 'a"b\\c\nd{e="f"}\x1b[31m\ud800 # EOF'


def sight(probe: Probe = Probe.HELD, *, pid: int = 11) -> Any:
    return SimpleNamespace(probe=probe, holder=Identity(pid, 22) if probe is Probe.HELD else None)


def text_of(beat: Mapping[str, Any], seen: Any = None, changed: list[Any] | None = None, root: str = "/r") -> str:
    report = {"stateRoot": root, "changedAuthors": [] if changed is None else changed}
    return prometheus.exposition(seen or sight(), beat, report)


def samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """By name and labels without the one that all have; a sample that is there twice fails."""
    found: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = dict(sample.labels)
            assert labels.pop("state_root"), sample
            place = (sample.name, tuple(sorted(labels.items())))
            assert place not in found
            found[place] = sample.value
    return found


def value(text: str, name: str, **labels: str) -> float | None:
    return samples(text).get((name, tuple(sorted(labels.items()))))


strictly: Callable[[str], Iterator[Metric]] = openmetrics.text_string_to_metric_families


def as_openmetrics(text: str) -> str:
    """The same metrics in the other format: there metadata name a counter without `_total`, and the end is marked."""
    lines = re.sub(r"^(# \w+ \w+)_total ", r"\1 ", text, flags=re.MULTILINE)
    lines = re.sub(r"^(# TYPE (\w+_seconds) \w+)$", r"\1\n# UNIT \2 seconds", lines, flags=re.MULTILINE)
    return f"{lines}# EOF\n"


def changed(beat: Mapping[str, Any], **fields: Any) -> dict[str, Any]:
    return {**json.loads(json.dumps(beat)), **fields}


# --- the format ---


def test_text_when_parsed_as_either_format_then_has_every_metric_with_its_type() -> None:
    text = text_of(changed(BEAT, sources=[{**BEAT["sources"][0], "waitingUntil": "2026-01-31T13:00:00.000Z"}]))

    classic = {family.name: family.type for family in text_string_to_metric_families(text)}
    strict = {family.name: family.type for family in strictly(as_openmetrics(text))}

    expected = {name.removesuffix("_total"): kind for name, (kind, _) in prometheus.METRICS.items()}
    assert classic == strict == expected


def test_names_when_listed_then_keep_to_the_rules_for_suffixes_and_units() -> None:
    for name, (kind, meaning) in prometheus.METRICS.items():
        assert re.fullmatch(r"the_loop_[a-z_]+", name)
        assert name.endswith("_total") == (kind == "counter"), name
        assert not re.search(r"_(sum|count|bucket|created|ms|milliseconds|minutes|time)$", name), name
        assert meaning.endswith("."), name


def test_labels_when_they_hold_anything_then_are_one_value_of_one_line() -> None:
    source = {**BEAT["sources"][0], "name": HOSTILE}
    counters = {**BEAT["counters"], "sources": {HOSTILE: {"errors": 3}}}
    text = text_of(changed(BEAT, sources=[source], counters=counters, version=HOSTILE), root=f"/r/{HOSTILE}")

    list(strictly(as_openmetrics(text)))
    shown = 'a"b\\c\\x0ad{e="f"}\\x1b[31m\ufffd # EOF'
    assert value(text, "the_loop_cycle_errors_total", source=shown) == 3
    assert value(text, "the_loop_items", source=shown) == 5
    assert all(line.startswith(("# HELP the_loop_", "# TYPE the_loop_", "the_loop_")) for line in text.splitlines())


def test_sources_when_two_have_one_name_then_no_sample_is_there_twice() -> None:
    text = text_of(changed(BEAT, sources=[*BEAT["sources"], {**BEAT["sources"][0], "items": 6}]))

    assert value(text, "the_loop_items", source="inbox") == 6


def test_histogram_when_shown_then_is_cumulated() -> None:
    text = text_of(BEAT)
    labels = {"source": "inbox", "kind": "spawn"}
    name = "the_loop_delivery_latency_seconds"

    assert [value(text, f"{name}_bucket", le=le, **labels) for le in ("1.0", "5.0", "+Inf")] == [1, 1, 2]
    assert (value(text, f"{name}_sum", **labels), value(text, f"{name}_count", **labels)) == (9.5, 2)


def test_counters_when_nothing_happened_yet_then_are_0_and_not_missing() -> None:
    """`increase()` does not see the first failure of a series that begins with it."""
    text = text_of(BEAT)

    assert value(text, "the_loop_deliveries_total", source="inbox", kind="comment", outcome="refused") == 0
    assert value(text, "the_loop_deliveries_total", source="inbox", kind="spawn", outcome="delivered") == 2
    assert value(text, "the_loop_cycles_total", source="inbox", result="interrupted") == 0


# --- what is known ---


@pytest.mark.parametrize(("probe", "up"), [(Probe.HELD, 1), (Probe.FREE, 0), (Probe.UNKNOWN, None)])
def test_up_when_it_cannot_be_found_out_then_is_missing_and_not_0(probe: Probe, up: int | None) -> None:
    assert value(text_of(BEAT, sight(probe)), "the_loop_up") == up


@pytest.mark.parametrize("seen", [sight(Probe.FREE), sight(Probe.UNKNOWN), sight(pid=99)])
def test_heartbeat_when_it_is_of_an_earlier_run_then_only_what_is_still_true_is_shown(seen: Any) -> None:
    text = text_of(BEAT, seen)

    assert {name for name, _ in samples(text)} - {"the_loop_up"} == {
        "the_loop_info",
        "the_loop_heartbeat_timestamp_seconds",
        "the_loop_last_good_cycle_timestamp_seconds",
    }


@pytest.mark.parametrize(("seen", "version"), [(sight(), "0.0.9"), (sight(Probe.FREE), __version__)])
def test_version_is_that_of_the_running_poller_or_else_of_the_command(seen: Any, version: str) -> None:
    assert value(text_of(BEAT, seen), "the_loop_info", version=version) == 1


def test_heartbeat_when_it_is_of_a_version_without_counters_then_the_rest_is_shown() -> None:
    text = text_of({name: one for name, one in BEAT.items() if name != "counters"})

    assert value(text, "the_loop_events_gave_up") == 2
    assert value(text, "the_loop_deliveries_running") is None


def test_counters_when_the_heartbeat_lacks_them_then_they_are_missing_and_not_0() -> None:
    counters = changed(BEAT["counters"], sources={"inbox": {"errors": 1}}, deliveries=None)

    names = {name for name, _ in samples(text_of(changed(BEAT, counters=counters)))}

    assert names & {"the_loop_cycles_total", "the_loop_deliveries_total"} == set()
    assert "the_loop_cycle_errors_total" in names


@pytest.mark.parametrize(("authors", "count"), [([], 2), ([{"login": "a"}], 3), (None, 3)])
def test_attention_when_authors_changed_or_cannot_be_read_then_counts_that_as_check_does(
    authors: list[Any] | None, count: int
) -> None:
    report = {"stateRoot": "/r", "changedAuthors": authors}

    assert value(prometheus.exposition(sight(), BEAT, report), "the_loop_attention") == count


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of everything in a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield (*path, key)
        yield from places(one, (*path, key))


@pytest.mark.parametrize("odd", [None, True, -1, 10**400, 1e999, float("nan"), "x", [], {}, [[]], {"a": []}], ids=repr)
def test_heartbeat_when_any_part_is_damaged_then_what_is_shown_is_valid(odd: Any) -> None:
    for path in places(BEAT):
        beat = changed(BEAT)
        part: Any = beat
        for key in path[:-1]:
            part = part[key]
        part[path[-1]] = odd

        text = text_of(beat)

        list(strictly(as_openmetrics(text)))
        assert not re.search(r" (nan|inf)$", text, re.MULTILINE | re.IGNORECASE)
        assert "the_loop_up{" in text


def test_counters_as_the_poller_writes_them_are_shown() -> None:
    counters = Counters(lambda: 100.0)
    counters.note_cycle("inbox", 2.0, 1, interrupted=False)
    inbox: Any = SimpleNamespace(name="inbox")
    written = json.loads(to_json_bytes({**counters.to_json([inbox]), "running": 0}))

    text = text_of(changed(BEAT, counters=written))

    assert value(text, "the_loop_cycles_total", source="inbox", result="failed") == 1
    assert value(text, "the_loop_cycle_seconds_total", source="inbox") == 2
    assert value(text, "the_loop_requests_total", source="inbox") is None


# --- the command ---


def status(root: StateRoot, *more: str) -> Result:
    return CliRunner().invoke(cli, ["--state-root", str(root.path), "poll", "status", *more])


@pytest.fixture
def held(root: StateRoot) -> Iterator[StateRoot]:
    """A root whose lock this process holds, and whose heartbeat it wrote."""
    me = identity_of(os.getpid())
    assert me is not None
    root.pidfile.write_text(f"{me.pid}:{me.starttime}")
    descriptors = [os.open(root.path, os.O_RDONLY), os.open(root.pidfile, os.O_RDONLY)]
    for descriptor in descriptors:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    root.heartbeat.write_bytes(to_json_bytes(changed(BEAT, pid=me.pid, starttime=me.starttime)))
    yield root
    for descriptor in descriptors:
        os.close(descriptor)


def test_status_when_nothing_runs_then_3_and_it_is_down(root: StateRoot) -> None:
    done = status(root, "--prometheus")

    assert done.exit_code == 3
    assert value(done.output, "the_loop_up") == 0


@pytest.mark.parametrize(("more", "code"), [([], 0), (["--check"], 1)])
def test_status_when_a_poller_runs_then_its_numbers_and_the_code_of_status(
    held: StateRoot, more: list[str], code: int
) -> None:
    done = status(held, "--prometheus", *more)

    assert done.exit_code == code
    assert value(done.output, "the_loop_up") == 1
    assert value(done.output, "the_loop_requests_total", source="inbox") == 9
    assert f'state_root="{held.path}"' in done.output


def test_status_when_the_lock_cannot_be_probed_then_4_and_up_is_missing(
    root: StateRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status_module, "look", lambda *_: Sight(Probe.UNKNOWN, cause="no rights"))
    done = status(root, "--prometheus")

    assert done.exit_code == 4
    assert value(done.output, "the_loop_up") is None


def test_status_when_metrics_and_json_are_wanted_then_2(root: StateRoot) -> None:
    assert status(root, "--prometheus", "--json").exit_code == click.UsageError.exit_code


def test_file_when_named_then_is_replaced_whole_and_readable_by_the_exporter(root: StateRoot, tmp_path: Path) -> None:
    folder = tmp_path / "textfiles"
    folder.mkdir()
    file = folder / "the-loop.prom"
    file.write_text("old")
    before = file.stat().st_ino
    (reader := file.open()).close()

    done = status(root, "--prometheus", str(file))

    assert (done.exit_code, done.output) == (3, "")
    assert value(file.read_text(), "the_loop_up") == 0
    assert file.stat().st_ino != before
    assert file.stat().st_mode & 0o777 == 0o644
    assert [one.name for one in folder.iterdir()] == [reader.name.rpartition("/")[2]]


def test_file_when_it_cannot_be_written_then_1_and_it_says_which(root: StateRoot, tmp_path: Path) -> None:
    done = status(root, "--prometheus", str(tmp_path / "none" / "x.prom"))

    assert done.exit_code == 1
    assert f"cannot write '{tmp_path}/none/x.prom': No such file or directory" in str(done.exception)
