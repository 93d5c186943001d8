"""`the-loop report`: one HTML page about a span of time."""

from __future__ import annotations

import shlex
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from the_loop.authors import AuthorsUnusable, Waiting, read_authors, waiting_authors
from the_loop.cli.common import Options, with_options
from the_loop.cli.events import parse_moment, read_events
from the_loop.cli.help import examples
from the_loop.cli.status import see
from the_loop.core.model import LoopError, explain
from the_loop.durable import replace_file
from the_loop.eventlog import Wanted, matches
from the_loop.lock import Probe, Sight
from the_loop.report import report_of
from the_loop.report_page import page
from the_loop.state import StateRoot

_PRIVATE = 0o600


@click.command("report", epilog=examples("the-loop report --since '7 days ago' --output week.html"))
@click.option("--since", metavar="T", default="24h ago", show_default=True, help="From then on, as `events` takes it.")
@click.option("--output", metavar="FILE", help="Write the page to FILE instead of standard output.")
@with_options
def command(options: Options, *, since: str, output: str | None) -> None:
    """Write an HTML page about the last day.

    It shows deliveries over time, how long events waited, the sources, what
    needs a person, and the events of each item. The page needs no other file
    and no network, and runs no script.
    """
    until = datetime.now(UTC)
    after = parse_moment(since, until)
    if after >= until:
        raise click.BadParameter(f"'{since}' is not in the past", param_hint="--since")
    if output is None and sys.stdout.isatty():
        problem = "a page of HTML is not readable on a terminal"
        raise LoopError(problem, "write it to a file: `the-loop report --output report.html`")
    text = _page_of(options, options.root(), after, until)
    if output is None:
        print(text, end="")
    else:
        _write(Path(output), text)


def _page_of(options: Options, root: StateRoot, after: datetime, until: datetime) -> str:
    """Raises LoopError if the events or the heartbeat cannot be read."""
    try:
        events = read_events(root.path, root.logs / "events.jsonl", after)
        told = [event for event in events if matches(event, Wanted(since=after))]
        _check_heartbeat(root)
    except OSError as error:
        problem = f"cannot read the events and the state of '{root.path}': {explain(error)}"
        raise LoopError(problem, "name the right one with --state-root DIR") from error
    seen = see(root, options.typed, asks_manager=False)
    beat = dict(seen.beat)
    if "attention" in beat:
        beat["attention"] = [*beat["attention"], *_changed_authors(options, root)]
    holder = seen.sight.holder
    is_current = holder is not None and (beat.get("pid"), beat.get("starttime")) == (holder.pid, holder.starttime)
    report = report_of(told, beat, after.astimezone(), until, is_current=is_current)
    return page(report, state_root=str(root.path), state=_state(seen.sight))


def _check_heartbeat(root: StateRoot) -> None:
    """Raise OSError if it is there and may not be read; a missing or damaged one is shown as unknown."""
    try:
        root.heartbeat.open("rb").close()
    except FileNotFoundError:
        return


def _changed_authors(options: Options, root: StateRoot) -> list[dict[str, Any]]:
    """What a person should look at beside the heartbeat's `attention`, as `poll status --check` decides."""
    try:
        waiting = waiting_authors(read_authors(root.authors))
    except AuthorsUnusable as error:
        return [{"state": "accounts of authors cannot be read", "reason": str(error)}]
    return [_decision(options, one) for one in waiting]


def _decision(options: Options, one: Waiting) -> dict[str, Any]:
    verb = "reject" if one.is_pinned_by_hand else "accept"
    return {
        "ref": one.login,
        "state": "account changed",
        "since": one.since,
        "reason": f"it is account {one.id} on {one.host}, and was {one.pinned}; accept or reject it",
        "command": options.typed(f"`the-loop authors {verb} {shlex.quote(one.login)}`").strip("`"),
    }


def _state(sight: Sight) -> str:
    if sight.probe is Probe.UNKNOWN:
        return f"unknown whether a poller is running: {sight.cause}"
    if sight.probe is Probe.FREE:
        return "no poller is running"
    return "running" if sight.holder is None else f"running as pid {sight.holder.pid}"


def _write(file: Path, text: str) -> None:
    """Replace the file. A new one is readable by its owner only, an existing one keeps its mode. Raises LoopError."""
    try:
        mode = file.stat().st_mode & 0o777 if file.is_file() else _PRIVATE
        replace_file(file, text.encode(), sync=False, mode=mode)
    except OSError as error:
        raise LoopError(f"cannot write '{file}': {explain(error)}") from error
