"""`the-loop poll`: start, stop, restart, wake and status."""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from the_loop.cli.common import Options, check_configuration_of, with_options
from the_loop.config_file import doubts
from the_loop.core.model import epoch, printable, span
from the_loop.eventlog import say
from the_loop.lock import Probe, Sight, look
from the_loop.state import PIDFILE, StateRoot
from the_loop.supervision.stopping import Result, mention_other_units
from the_loop.supervision.unit import recorded_unit, state_of, unit_of

F = TypeVar("F", bound=Callable[..., Any])
_STOP_LIMIT_S: Final = 30.0


def _with_timeout(help_text: str) -> Callable[[F], F]:
    return click.option(
        "--timeout",
        "timeout_s",
        type=click.FloatRange(min=0),
        default=_STOP_LIMIT_S,
        show_default=True,
        metavar="SECONDS",
        help=help_text,
    )


@click.group("poll")
def command() -> None:
    """Start, stop, restart and observe the poller."""


@command.command()
@click.option("--once", is_flag=True, help="Run one cycle, wait for its deliveries, and exit.")
@click.option(
    "--wait",
    "wait_s",
    type=click.FloatRange(min=0),
    is_flag=False,
    flag_value=math.inf,
    default=0,
    metavar="[SECONDS]",
    help="If another poller is running, wait for it to end: SECONDS, or without a limit.",
)
@click.option("--takeover", is_flag=True, help="Stop the running poller first, as `poll stop` does.")
@with_options
def start(options: Options, *, once: bool, wait_s: float, takeover: bool) -> None:
    """Run the poller in the foreground.

    It makes a cycle now and one every polling.intervalSeconds, until it is told
    to stop. Only one poller can run on a state root.
    """
    from the_loop import daemon
    from the_loop.supervision import stopping

    loaded = options.load()
    root = options.root_of(loaded)
    for doubt in doubts(loaded.config):
        say(f"the-loop: warning: {doubt}")
    if takeover:
        root.prepare_root()  # a start that is bound to fail must not stop the running poller
        result = stopping.stop(root, PIDFILE, _STOP_LIMIT_S, for_takeover=True)
        if result.code not in (stopping.Code.DONE, stopping.Code.NOTHING_RUNS):
            _tell(options, result)
    how = daemon.How(once=once, wait_s=wait_s, verbose=options.verbose)
    code = daemon.run(root, loaded, lambda: options.reload(loaded).config, how)
    _end(code)


def _end(code: int) -> None:
    """Leave at once: everything is on disk, and what the interpreter would tear down (90 ms) goes with the process."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


@command.command()
@_with_timeout("Give up waiting after this time and exit 4.")
@with_options
def stop(options: Options, *, timeout_s: float) -> None:
    """Stop the running poller and wait until it is gone."""
    from the_loop.supervision import stopping

    _tell(options, stopping.stop(options.root(), PIDFILE, timeout_s))


@command.command()
@_with_timeout("Give up waiting after this time and exit 4.")
@with_options
def restart(options: Options, *, timeout_s: float) -> None:
    """Restart the running poller and wait for the new start.

    A unit is restarted by its service manager. A plain process executes the
    program again, with the same pid, arguments and environment. If the
    configuration that it would load is not valid, it is left running.
    """
    from the_loop.supervision import stopping

    _tell(options, stopping.restart(options.root(), PIDFILE, timeout_s, check_configuration_of))


@command.command()
@click.argument("source", required=False)
@with_options
def wake(options: Options, *, source: str | None) -> None:
    """Make the running poller start a cycle now.

    A cycle of SOURCE, a name from the configuration, or of every source.
    """
    from the_loop.supervision import waking

    _tell(options, waking.wake(options.root(), PIDFILE, source))


@command.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--check", is_flag=True, help="Exit with 1 if a person should look.")
@click.option(
    "--prometheus",
    "metrics_file",
    is_flag=False,
    flag_value="",
    metavar="[FILE]",
    help="Print metrics in Prometheus's text format, or write them to FILE.",
)
@with_options
def status(options: Options, *, as_json: bool, check: bool, metrics_file: str | None) -> None:
    """Show the state of the poller, its sources and its queue."""
    from the_loop.heartbeat import read_heartbeat

    if as_json and metrics_file is not None:
        raise click.UsageError("--json and --prometheus contradict each other")
    root = options.root()
    sight = look(root.path, PIDFILE)
    beat = read_heartbeat(root)
    report = _report(sight, beat, root)
    report["unit"] = _unit(sight, root) if metrics_file is None else None
    report["changedAuthors"], changed = _changed_authors(root)
    if metrics_file is not None:
        from the_loop.cli import prometheus

        prometheus.show(metrics_file, sight, beat, report)
    elif as_json:
        print(json.dumps(report))
    else:
        lines = [*_in_words(report, sight.cause), *changed]
        print("\n".join(printable(options.typed(line)) for line in lines))
        if sight.probe is not Probe.HELD and (others := mention_other_units(root)):
            print(others.removeprefix("; "))
    codes = {Probe.HELD: 0, Probe.FREE: 3, Probe.UNKNOWN: 4}
    needs_person = check and sight.probe is Probe.HELD and (report["attention"] != [] or report["changedAuthors"] != [])
    click.get_current_context().exit(1 if needs_person else codes[sight.probe])


def _tell(options: Options, result: Result) -> None:
    print(f"the-loop: {options.typed(result.message)}", file=sys.stderr)
    click.get_current_context().exit(int(result.code))


def _unit(sight: Sight, root: StateRoot) -> dict[str, Any] | None:
    """The state of the unit that runs the poller, or ran it last; None if there is none or it cannot be asked."""
    try:
        unit = unit_of(sight.holder.pid) if sight.holder else recorded_unit(root)
    except OSError:
        unit = None
    state = state_of(unit) if unit is not None else None
    if unit is None or state is None or (sight.holder is not None and state.main_pid != sight.holder.pid):
        return None
    return {"name": unit.name, "scope": unit.scope, "activeState": state.active, "subState": state.sub}


def _changed_authors(root: StateRoot) -> tuple[list[dict[str, Any]] | None, list[str]]:
    """Logins that another account has now, for programs (null: cannot be read) and for people."""
    from the_loop.authors import AuthorsUnusable, read_authors, waiting_authors
    from the_loop.cli.authors import waiting_lines

    try:
        waiting = waiting_authors(read_authors(root.authors))
    except AuthorsUnusable as error:
        return None, [f"authors: {error}"]
    fields = ("host", "login", "pinned", "id", "since")
    return [{name: getattr(one, name) for name in fields} for one in waiting], waiting_lines(waiting)


def _report(sight: Sight, beat: dict[str, Any], root: StateRoot) -> dict[str, Any]:
    """The object of `status --json`. From a heartbeat of an earlier run only what was last seen is shown."""
    holder = sight.holder
    is_of_holder = holder is not None and (beat.get("pid"), beat.get("starttime")) == (holder.pid, holder.starttime)
    is_running = {Probe.HELD: True, Probe.FREE: False}.get(sight.probe)  # None: could not find out
    report = {
        "running": is_running,
        "pid": holder.pid if holder else None,
        "starttime": holder.starttime if holder else None,
        "since": beat.get("since") if is_of_holder else None,
        "stateRoot": str(root.path),
        "pidfile": str(root.pidfile),
        "unit": None,
    }
    for name in _OF_HEARTBEAT:  # null: not known
        report[name] = beat.get(name)
    report["sources"] = [
        source if is_of_holder else {**source, "nextCycleAt": None} for source in beat.get("sources", [])
    ]
    return report


def _in_words(report: dict[str, Any], cause: str) -> list[str]:
    lines = [_holder_line(report, cause), f"state root: {report['stateRoot']}"]
    if unit := report["unit"]:
        lines.append(f"unit: {unit['name']} ({unit['scope']}), {unit['activeState']} ({unit['subState']})")
    if report["configuration"]:
        lines.append(f"configuration: {report['configuration']}")
    lines.append(f"last good cycle: {_age(report['lastGoodCycleAt'])}")
    for source in report["sources"]:
        lines += _source_lines(source)
    counts = ", ".join(f"{report[name]} {label}" for name, label in _COUNTS.items())
    lines.append("queue: unknown" if report["pending"] is None else f"queue: {counts}")
    lines += [f"  {_work_line(work)}" for work in report["work"] or [] if work.get("state") in _SHOWN]
    lines += [_attention_line(one) for one in report["attention"] or [] if "command" in one]
    if report["paused"]:
        lines.append(f"deliveries paused: {report['paused']}")
    if held_items := report["heldItems"]:
        lines.append(f"items held: {len(held_items)}")
        lines += [f"  {ref}: {reason}" for ref, reason in held_items.items()]
    lines += [f"no longer configured: {place}" for place in report["leftAlone"] or []]
    return lines


_OF_HEARTBEAT: Final = (
    *("configuration", "lastGoodCycleAt", "pending", "uncertain", "held", "gaveUp"),
    *("attention", "work", "workOmitted", "heldItems", "leftAlone", "paused", "longestBlock"),
)
_COUNTS: Final = {"pending": "pending", "uncertain": "outcome unknown", "held": "held", "gaveUp": "given up"}


def _holder_line(report: dict[str, Any], cause: str) -> str:
    if report["running"]:
        who = f"pid {report['pid']}" if report["pid"] else "a process that is not visible here"
        return f"running: {who}, since {report['since'] or 'unknown'}" + (f" ({cause})" if cause else "")
    return f"unknown: {cause}" if report["running"] is None else "not running"


def _source_lines(source: dict[str, Any]) -> list[str]:
    line = f"source {source.get('name')} ({source.get('provider')}): {source.get('state')}, {source.get('items')} items"
    if source.get("waitingUntil"):
        line += f", waiting until {source['waitingUntil']}"
    if source.get("owed"):
        line += f", {source['owed']} need a full re-read"
    if source.get("waiting"):
        line += f", {source['waiting']} wait for a start word"
    if source.get("error"):
        line += f", last good {_age(source.get('lastGoodAt'))}: {source['error']}"
    lines = [line, *(f"  passed over: {place}: {reason}" for place, reason in _named(source.get("overlooked")))]
    last = source.get("lastCycle")
    if not isinstance(last, dict):
        return lines
    suffix = ", interrupted" if last.get("interrupted") else ""
    cycle = f"{last.get('delivered')} delivered, {last.get('errors')} errors in {last.get('seconds')} s{suffix}"
    upcoming = f", next {source['nextCycleAt']}" if source.get("nextCycleAt") else ""
    return [*lines, f"  last cycle {last.get('startedAt')}: {cycle}{upcoming}"]


def _named(value: Any) -> list[tuple[str, Any]]:
    return sorted(value.items()) if isinstance(value, dict) else []


_SHOWN: Final = ("running", "accepted", "unknown", "held", "gave-up", "deferred", "refused")


def _work_line(work: dict[str, Any]) -> str:
    """What is on its way, by name. One that is accepted for long waits for a service manager that is frozen or busy."""
    line = f"{work.get('state')}: {work.get('deliveryId')}"
    if work.get("state") == "accepted":
        line = f"accepted by the service manager, not begun: {work.get('deliveryId')}"
    if work.get("since"):
        line += f", since {_age(work['since'])}"
    return line + (f", until {work['until']}" if work.get("until") else "")


def _attention_line(one: dict[str, Any]) -> str:
    since = f" since {_age(one['since'])}" if one.get("since") else ""
    what = one.get("deliveryId") or one.get("ref")
    return f"look at {what}: {one.get('state')}{since}, {one.get('reason')} (run `{one['command']}`)"


def _age(moment: Any) -> str:
    """A timestamp of the heartbeat, and its age."""
    at = epoch(moment)
    return "never" if at is None else f"{moment} ({span(time.time() - at)} ago)"
