"""What `poll status` shows: the report of the poller as an object, and as a page."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final, NoReturn

from the_loop import __version__
from the_loop.authors import AuthorsUnusable, read_authors, waiting_authors
from the_loop.cli.authors import waiting_lines
from the_loop.cli.page import Line, age, clock, put, redraw, when, whole_screen
from the_loop.core.model import epoch, span
from the_loop.lock import Probe, Sight, look
from the_loop.state import PIDFILE, StateRoot
from the_loop.supervision.stopping import mention_other_units
from the_loop.supervision.unit import recorded_unit, state_of, unit_of

Report = dict[str, Any]
SHOWN: Final = 10  # events in one state
WATCH_S: Final = 2.0
_WAITED_FOR: Final = (signal.SIGWINCH, signal.SIGTSTP, signal.SIGTERM, signal.SIGHUP)
_OF_HEARTBEAT: Final = (
    *("version", "writtenAt", "configuration", "lastGoodCycleAt", "pending", "uncertain", "held", "gaveUp"),
    *("attention", "work", "workOmitted", "heldItems", "leftAlone", "paused", "longestBlock"),
)
_COUNTS: Final = {"pending": "pending", "uncertain": "outcome unknown", "held": "held", "gaveUp": "given up"}
_SOURCE_STYLES: Final = {"ok": "good", "failing": "bad", "unread": "bad", "waiting": "warn", "standby": "dim"}
_WORK: Final = {  # in this order: how a state is called, and its style
    "running": ("running", "good"),
    "accepted": ("accepted, not begun", "warn"),
    "unknown": ("outcome unknown", "warn"),
    "deferred": ("deferred", "warn"),
    "refused": ("rejected, tried again", "warn"),
    "waiting": ("waiting", "dim"),
    "waiting-to-start": ("does not start", "warn"),
}


@dataclass(frozen=True, slots=True)
class Seen:
    """What can be seen of a poller: the lock, the heartbeat, and the object of `status --json` that they make.

    `changed` and `others` are lines for people: logins that changed hands, units that run on other roots.
    """

    sight: Sight
    beat: Mapping[str, Any]
    report: Report
    changed: Sequence[str] = ()
    others: str = ""


def see(root: StateRoot, typed: Callable[[str], str], *, asks_manager: bool = True) -> Seen:
    """Look at the poller of this root. `typed` puts the options of the call into commands."""
    from the_loop.last_report import read_heartbeat

    sight, beat = look(root.path, PIDFILE), read_heartbeat(root)
    report = report_of(sight, beat, root)
    for one in (*(report["work"] or ()), *(report["attention"] or ())):
        if isinstance(one, dict) and isinstance(one.get("command"), str):
            one["command"] = typed(f"`{one['command']}`").strip("`")
    report["unit"] = unit_of_poller(sight, root) if asks_manager else None
    report["changedAuthors"], changed = changed_authors(root)
    others = mention_other_units(root).removeprefix("; ") if asks_manager and sight.probe is not Probe.HELD else ""
    return Seen(sight, beat, report, [typed(line) for line in changed], typed(others))


def show(seen: Seen, *, as_json: bool) -> None:
    """Print it once."""
    if as_json:
        print(json.dumps(seen.report))
    else:
        put(page(seen))


def watch(root: StateRoot, typed: Callable[[str], str], *, as_json: bool) -> NoReturn:
    """Show it again and again, on a terminal in its place, until the user has seen enough."""
    is_page = sys.stdout.isatty() and not as_json
    code = 0
    if is_page:
        signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED_FOR)
        whole_screen(is_on=True)
    try:
        while True:
            seen = see(root, typed)
            code = exit_code(seen)
            redraw(page(seen)) if is_page else show(seen, as_json=as_json)
            sys.stdout.flush()
            _obey_signal() if is_page else time.sleep(WATCH_S)
    except (KeyboardInterrupt, BrokenPipeError):
        pass
    finally:
        whole_screen(is_on=False) if is_page else None
    raise SystemExit(code)


def _obey_signal() -> None:
    """Wait until the page is due again. No signal leaves the terminal as the page needs it."""
    came = signal.sigtimedwait(_WAITED_FOR, WATCH_S)
    if came is None or came.si_signo == signal.SIGWINCH:
        return
    if came.si_signo != signal.SIGTSTP:
        raise SystemExit(128 + came.si_signo)
    whole_screen(is_on=False)
    os.kill(os.getpid(), signal.SIGSTOP)
    whole_screen(is_on=True)


def exit_code(seen: Seen, *, is_check: bool = False) -> int:
    """0 running, 3 nothing runs, 4 unknown; with `is_check` 1 if a person should look."""
    report = seen.report
    if is_check and seen.sight.probe is Probe.HELD and (report["attention"] != [] or report["changedAuthors"] != []):
        return 1
    return {Probe.HELD: 0, Probe.FREE: 3, Probe.UNKNOWN: 4}[seen.sight.probe]


def report_of(sight: Sight, beat: Mapping[str, Any], root: StateRoot) -> Report:
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


def unit_of_poller(sight: Sight, root: StateRoot) -> dict[str, Any] | None:
    """The state of the unit that runs the poller, or ran it last; None if there is none or it cannot be asked."""
    try:
        unit = unit_of(sight.holder.pid) if sight.holder else recorded_unit(root)
    except OSError:
        unit = None
    state = state_of(unit) if unit is not None else None
    if unit is None or state is None or (sight.holder is not None and state.main_pid != sight.holder.pid):
        return None
    return {"name": unit.name, "scope": unit.scope, "activeState": state.active, "subState": state.sub}


def changed_authors(root: StateRoot) -> tuple[list[dict[str, Any]] | None, list[str]]:
    """Logins that another account has now, for programs (null: cannot be read) and for people."""
    try:
        waiting = waiting_authors(read_authors(root.authors))
    except AuthorsUnusable as error:
        return None, [f"authors: {error}"]
    fields = ("host", "login", "pinned", "id", "since")
    return [{name: getattr(one, name) for name in fields} for one in waiting], waiting_lines(waiting)


def page(seen: Seen, now: float | None = None) -> Iterator[Line]:
    """The report for people. `now` is epoch seconds."""
    report, now = seen.report, time.time() if now is None else now
    yield _holder(report, seen.sight.cause, now)
    yield Line(f"state root: {report['stateRoot']}")
    if unit := report["unit"]:
        yield Line(f"unit: {unit['name']} ({unit['scope']}), {unit['activeState']} ({unit['subState']})")
    if report["configuration"]:
        yield Line(f"configuration: {report['configuration']}")
    if report["running"] is False and report["writtenAt"]:
        yield Line(f"what follows was seen at {when(report['writtenAt'], now)}")
    never = "unknown" if report["pending"] is None else "never"
    yield Line(f"last good cycle: {_ever(report['lastGoodCycleAt'], now, never)}")
    for source in report["sources"]:
        yield from _source(source, now)
    yield from _queue(report, now)
    yield from _attention(report, now)
    for place in report["leftAlone"] or []:
        yield Line(f"no longer configured: {place}")
    for line in seen.changed:
        yield Line(line, is_command=line.startswith(" "))
    if seen.others:
        yield Line(seen.others)


def _holder(report: Report, cause: str, now: float) -> Line:
    if report["running"] is None:
        return Line(f" {cause}", head="unknown:", style="warn")
    if not report["running"]:
        return Line(head="not running", style="bold")
    who = f"pid {report['pid']}" if report["pid"] else "a process that is not visible here"
    version = report["version"]
    said = f" {who}, since {_ever(report['since'], now, 'unknown')}" + (f", version {version}" if version else "")
    said += f", not the version of this command ({__version__})" if version and version != __version__ else ""
    return Line(said + (f" ({cause})" if cause else ""), head="running:", style="good")


def _source(source: Mapping[str, Any], now: float) -> Iterator[Line]:
    state = str(source.get("state"))
    head = f"source {source.get('name')} ({source.get('provider')}): {state}"
    items = source.get("items")
    said = f": held by {source['heldBy']}" if source.get("heldBy") else ""
    said += f", {items} {'item' if items == 1 else 'items'}"
    if source.get("waitingUntil"):
        said += f", waiting until {when(source['waitingUntil'], now)}"
    if source.get("owed"):
        said += f", {source['owed']} need a full re-read"
    if source.get("waiting"):
        said += f", {source['waiting']} do not start"
    yield Line(said, head=head, style=_SOURCE_STYLES.get(state, ""))
    if source.get("error"):
        yield Line(f"  last good {_ever(source.get('lastGoodAt'), now)}: {source['error']}")
    overlooked = source.get("overlooked")
    for place, reason in sorted(overlooked.items()) if isinstance(overlooked, dict) else ():
        yield Line(f"  passed over: {place}: {reason}")
    if more := source.get("overlookedOmitted"):
        yield Line(f"  passed over: {more} more")
    if isinstance(last := source.get("lastCycle"), dict):
        yield _last_cycle(last, source.get("nextCycleAt"), now)


def _last_cycle(last: Mapping[str, Any], upcoming: Any, now: float) -> Line:
    interrupted = ", interrupted" if last.get("interrupted") else ""
    said = f"{last.get('delivered')} delivered, {last.get('errors')} errors in {last.get('seconds')} s{interrupted}"
    at = epoch(upcoming)
    next_one = "" if at is None else f", next {age(at, now) if at > now else 'now'}"
    return Line(f"  last cycle {when(last.get('startedAt'), now)}: {said}{next_one}", hang=2)


def _queue(report: Report, now: float) -> Iterator[Line]:
    if report["pending"] is None:
        yield Line("queue: unknown")
    else:
        yield Line("queue: " + ", ".join(f"{report[name]} {label}" for name, label in _COUNTS.items()))
    if report["paused"]:
        yield Line(f" {report['paused']}", head="deliveries paused:", style="bad")
    order = list(_WORK)
    work = [one for one in report["work"] or [] if isinstance(one, dict) and one.get("state") in order]
    work.sort(key=lambda one: order.index(one["state"]))
    for state, found in groupby(work, key=lambda one: str(one["state"])):
        yield from _in_state(state, list(found), now)
    if report["workOmitted"]:
        yield Line(f"  and {report['workOmitted']} more that are not listed")


def _in_state(state: str, work: list[Mapping[str, Any]], now: float) -> Iterator[Line]:
    name, style = _WORK[state]
    for one in work[:SHOWN]:
        yield Line(_event(one, now), head=f"  {name}:", style=style, hang=4)
    if len(work) > SHOWN:
        yield Line(f"  {name}: {len(work) - SHOWN} more (`the-loop poll status --json` has them)")


def _event(one: Mapping[str, Any], now: float) -> str:
    said = f" {one.get('deliveryId') or one.get('ref')}"
    began, until = epoch(one.get("since")), epoch(one.get("until"))
    if began is not None:
        said += f", for {span(now - began)}"
    if one.get("unit"):
        said += f", in {one['unit']}"
    if until is not None:
        said += f", until {clock(until, now)} ({age(until, now)})" if until > now else ", due now"
    return said + (f": {one['reason']}" if one.get("reason") else "")


def _attention(report: Report, now: float) -> Iterator[Line]:
    """What a person has to decide, with what to type; the sources that fail are above."""
    if held := report["heldItems"]:
        yield Line(head=f"items held: {len(held)}", style="bad")
        for ref, reason in held.items():
            yield Line(f"  {ref}: {reason}")
    decisions = [one for one in report["attention"] or [] if isinstance(one, dict) and one.get("command")]
    if decisions:
        yield Line(head="needs a person:", style="bad")
    for one in decisions:
        since = f", since {when(one['since'], now)}" if one.get("since") else ""
        state = str(one.get("state")).replace("gave-up", "given up").replace("breaker", "paused")
        yield Line(f"  {one.get('deliveryId') or one.get('ref')}: {state}{since}: {one.get('reason')}")
        yield Line(f"    {one['command']}", is_command=True)


def _ever(moment: Any, now: float, never: str = "never") -> str:
    return never if epoch(moment) is None else when(moment, now)
