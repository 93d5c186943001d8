"""`the-loop poll status --prometheus`: the heartbeat as metrics, in Prometheus's text format.

Names and units follow OpenMetrics. Every sample has the label `state_root`: several pollers of one machine may write
files into one directory, and samples of them must not be equal. Of a poller that does not run, or did not report yet,
only what is still true is shown; a value that is not known has no sample.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

from the_loop import __version__
from the_loop.core.model import Kind, LoopError, Verdict, clean, epoch, explain, printable
from the_loop.durable import replace_file
from the_loop.lock import Probe, Sight
from the_loop.shapes import histogram, mapping, mappings, number

METRICS: Final[Mapping[str, tuple[str, str]]] = {
    "the_loop_info": ("gauge", "Version and state root of the poller."),
    "the_loop_up": ("gauge", "1 if a poller holds the state root, 0 if none does."),
    "the_loop_start_time_seconds": ("gauge", "When the poller started, which is when its counters were 0."),
    "the_loop_heartbeat_timestamp_seconds": ("gauge", "When the poller reported what is shown here."),
    "the_loop_cycles_total": ("counter", "Cycles of a source by result: good, failed, interrupted."),
    "the_loop_cycle_seconds_total": ("counter", "Seconds that the cycles of a source took."),
    "the_loop_cycle_errors_total": ("counter", "Errors in the cycles of a source."),
    "the_loop_last_good_cycle_timestamp_seconds": ("gauge", "When a source was last read completely."),
    "the_loop_waiting_until_timestamp_seconds": ("gauge", "Until when a limit of the server keeps a source waiting."),
    "the_loop_items": ("gauge", "Items that a source listed."),
    "the_loop_items_waiting": ("gauge", "Items of a source that wait for a start word."),
    "the_loop_items_owed": ("gauge", "Items of a source that need a full re-read."),
    "the_loop_items_held": ("gauge", "Items whose ledger cannot be used."),
    "the_loop_requests_total": ("counter", "Requests that a source sent."),
    "the_loop_rate_limit_points": ("gauge", "Requests per hour that the server allows the token of a source."),
    "the_loop_rate_limit_points_left": ("gauge", "How many of these were left, as the last response said."),
    "the_loop_deliveries_total": ("counter", "Outcomes of deliveries by source, kind and outcome."),
    "the_loop_delivery_latency_seconds": ("histogram", "From the writing of an event to its first hand-over."),
    "the_loop_delivery_queue_seconds": ("histogram", "From the acceptance of an event to its first hand-over."),
    "the_loop_deliveries_running": ("gauge", "Deliveries that run."),
    "the_loop_events_pending": ("gauge", "Events that are accepted and not settled, also those that run."),
    "the_loop_events_uncertain": ("gauge", "Events whose outcome is unknown, and that are offered again."),
    "the_loop_events_held": (
        "gauge",
        "Events that wait for a decision: their outcome is unknown, or their program ended again and again.",
    ),
    "the_loop_events_gave_up": ("gauge", "Events that were rejected too often."),
    "the_loop_attention": ("gauge", "What a person should look at, as `poll status --check` decides."),
}
_OUTCOMES: Final = [verdict for verdict in Verdict if verdict is not Verdict.NEVER_BEGUN]
_OF_SOURCE: Final = {
    "the_loop_cycle_seconds_total": "cycleSeconds",
    "the_loop_cycle_errors_total": "errors",
    "the_loop_requests_total": "requests",
    "the_loop_rate_limit_points": "pointsLimit",
    "the_loop_rate_limit_points_left": "pointsLeft",
}
_WAITS: Final = {"created": "the_loop_delivery_latency_seconds", "accepted": "the_loop_delivery_queue_seconds"}
_READABLE: Final = 0o644  # by the exporter, which is another user


def show(file: str, sight: Sight, beat: Mapping[str, Any], report: Mapping[str, Any]) -> None:
    """Print the metrics, or replace `file` by them. Raises LoopError if it cannot be written.

    `report`: the object of `status --json`.
    """
    text = exposition(sight, beat, report)
    if not file:
        print(text, end="")
        return
    try:
        replace_file(Path(file), text.encode(), sync=False, mode=_READABLE)
    except OSError as error:
        raise LoopError(f"cannot write '{file}': {explain(error)}") from error


def exposition(sight: Sight, beat: Mapping[str, Any], report: Mapping[str, Any]) -> str:
    """The metrics of a poller that is seen like this."""
    page = _Page(str(report["stateRoot"]))
    holder = sight.holder
    is_of_holder = holder is not None and (beat.get("pid"), beat.get("starttime")) == (holder.pid, holder.starttime)
    counters = mapping(beat.get("counters")) if is_of_holder else {}
    page.add("the_loop_info", 1, version=beat.get("version") if is_of_holder else __version__)
    page.add("the_loop_up", {Probe.HELD: 1, Probe.FREE: 0}.get(sight.probe))
    page.add("the_loop_heartbeat_timestamp_seconds", epoch(beat.get("writtenAt")))
    for source in mappings(beat.get("sources")):
        page.add("the_loop_last_good_cycle_timestamp_seconds", epoch(source.get("lastGoodAt")), **_of(source))
    if is_of_holder:
        page.add("the_loop_start_time_seconds", epoch(beat.get("since")))
        _add_queue(page, beat, counters, report)
        for source in mappings(beat.get("sources")):
            _add_source(page, source)
        _add_counters(page, counters)
    return page.text()


def _add_queue(page: _Page, beat: Mapping[str, Any], counters: Mapping[str, Any], report: Mapping[str, Any]) -> None:
    page.add("the_loop_deliveries_running", counters.get("running"))
    for key, name in (("pending", "pending"), ("uncertain", "uncertain"), ("held", "held"), ("gaveUp", "gave_up")):
        page.add(f"the_loop_events_{name}", beat.get(key))
    if isinstance(held := beat.get("heldItems"), dict):
        page.add("the_loop_items_held", len(held))
    if isinstance(attention := beat.get("attention"), list):
        changed = report["changedAuthors"]  # None: cannot be read, which a person should look at as well
        page.add("the_loop_attention", len(attention) + (1 if changed is None else len(changed)))


def _add_source(page: _Page, source: Mapping[str, Any]) -> None:
    page.add("the_loop_items", source.get("items"), **_of(source))
    page.add("the_loop_items_waiting", source.get("waiting"), **_of(source))
    page.add("the_loop_items_owed", source.get("owed"), **_of(source))
    page.add("the_loop_waiting_until_timestamp_seconds", epoch(source.get("waitingUntil")), **_of(source))


def _add_counters(page: _Page, counters: Mapping[str, Any]) -> None:
    for name, counts in mapping(counters.get("sources")).items():
        _add_counts(page, name, mapping(counts))
        for kind in Kind if isinstance(counters.get("deliveries"), list) else ():
            for outcome in _OUTCOMES:
                page.add("the_loop_deliveries_total", 0, source=name, kind=kind, outcome=outcome)
    for one in mappings(counters.get("deliveries")):
        labels = {**_of(one, "source"), "kind": one.get("kind"), "outcome": one.get("outcome")}
        page.add("the_loop_deliveries_total", one.get("count"), **labels)
    for one in mappings(counters.get("waits")):
        if (metric := _WAITS.get(str(one.get("since")))) is not None:
            _add_histogram(page, metric, one, counters.get("limits"))


def _add_counts(page: _Page, source: str, counts: Mapping[str, Any]) -> None:
    """What did not happen yet is 0: a series that begins with its first failure hides that from `increase()`."""
    if isinstance(cycles := counts.get("cycles"), dict):
        for result in ("good", "failed", "interrupted"):
            page.add("the_loop_cycles_total", cycles.get(result, 0), source=source, result=result)
    for name, key in _OF_SOURCE.items():
        page.add(name, counts.get(key), source=source)


def _add_histogram(page: _Page, name: str, waits: Mapping[str, Any], limits: Any) -> None:
    whole, seconds = histogram(limits, waits.get("counts")), number(waits.get("seconds"))
    if whole is None or seconds is None:
        return
    upper, counts = whole
    labels = {**_of(waits, "source"), "kind": waits.get("kind")}
    for limit, count in zip((*upper, math.inf), accumulate(counts), strict=True):
        page.add(name, count, "_bucket", **labels, le=repr(float(limit)) if limit < math.inf else "+Inf")
    page.add(name, seconds, "_sum", **labels)
    page.add(name, sum(counts), "_count", **labels)


class _Page:
    """The samples by metric. A second one with the same labels takes the place of the first: a page has each once."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._samples: dict[str, dict[str, str]] = {name: {} for name in METRICS}

    def add(self, name: str, value: Any, suffix: str = "", /, **labels: Any) -> None:
        """Add a sample, unless its value is not a number of at least 0, or a label not a text."""
        known = number(value)
        if known is None or not all(isinstance(label, str) for label in labels.values()):
            return
        named = {"state_root": self._root, **labels}
        shown = ",".join(f'{label}="{_escaped(text)}"' for label, text in named.items())
        self._samples[name][f"{name}{suffix}{{{shown}}}"] = repr(known)

    def text(self) -> str:
        return "".join(f"{line}\n" for name in METRICS for line in self._lines(name))

    def _lines(self, name: str) -> Iterator[str]:
        if not self._samples[name]:
            return
        kind, meaning = METRICS[name]
        yield f"# HELP {name} {meaning}"
        yield f"# TYPE {name} {kind}"
        yield from (f"{series} {value}" for series, value in self._samples[name].items())


def _escaped(text: str) -> str:
    """A label's value: on one line, and no backslash but those of the format's own escapes."""
    return printable(clean(text)).replace("\\", "\\\\").replace('"', '\\"')


def _of(one: Mapping[str, Any], key: str = "name") -> dict[str, Any]:
    return {"source": one.get(key)}
