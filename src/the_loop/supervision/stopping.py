"""Stopping and restarting the poller of a state root, in a unit or as a plain process, and verifying the result.

A pidfile alone is never a reason to signal a process: the kernel names the holder of the lock, the pidfile confirms
it, and the signal goes through a pidfd of exactly that process. A state that could not be found out is an error.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Final

from the_loop.core.model import LoopError, explain
from the_loop.lock import Probe, Sight, look, remove_stale_claim
from the_loop.processes import Identity, pinned
from the_loop.state import StateRoot
from the_loop.supervision.unit import (
    Unit,
    active_companions,
    active_elsewhere,
    runs,
    state_of,
    systemctl,
    unit_of,
    units_on_their_way,
)

_STAYS_FREE_S: Final = 0.2  # the lock of a plain process; of a unit the manager knows whether it starts again
_VISIBLE_WITHIN_S: Final = 1.0  # a holder that is not visible may just be ending
_NO_NEW_START_S: Final = 5.0
_CALL_LIMIT_S: Final = 10.0
_PROBE_INTERVAL_S: Final = 0.02


class Code(IntEnum):
    """Exit codes of `stop` and `restart` (contract section 2)."""

    DONE = 0
    FAILED = 1
    NOTHING_RUNS = 3
    STILL_THERE = 4
    MISCONFIGURED = 78


@dataclass(frozen=True, slots=True)
class Result:
    """The exit code of the command and its message for people, without a full stop."""

    code: Code
    message: str


def stop(root: StateRoot, pidfile: str, timeout_s: float, *, for_takeover: bool = False) -> Result:
    """Stop the poller of this root and return when it is gone, at the latest after `timeout_s`. Raises OSError.

    `for_takeover`: the caller is about to take the lock itself, so its own unit is not stopped.
    """
    until = time.monotonic() + timeout_s
    sight = look(root.path, pidfile)
    while sight.probe is Probe.FREE:
        result = _stop_what_is_on_its_way(root, pidfile, sight, until, for_takeover=for_takeover)
        sight = look(root.path, pidfile)  # a unit may have restarted while its manager was asked
        if result.code is not Code.NOTHING_RUNS or sight.probe is Probe.FREE or time.monotonic() >= until:
            return result
    asked: set[Identity] = set()
    while True:
        stays_free_s = _STAYS_FREE_S
        sight = _look_for_holder(root, pidfile, until, sight)
        if refusal := _refusal(root, sight):
            return Result(Code.STILL_THERE, refusal)
        if sight.verified and sight.holder is not None:
            problem, is_unit = _end_holder(root, pidfile, sight.holder, asked=asked, until=until)
            if problem:
                return Result(Code.STILL_THERE, problem)
            stays_free_s = 0.0 if is_unit else _STAYS_FREE_S
        sight = _watch_it_stay_free(root, pidfile, until, stays_free_s)
        if sight.probe is Probe.FREE:
            return _stopped(root, asked, until, for_takeover=for_takeover)
        if time.monotonic() >= until:
            return Result(Code.STILL_THERE, _still_there(sight, timeout_s, asked))
        time.sleep(_PROBE_INTERVAL_S)


def _look_for_holder(root: StateRoot, pidfile: str, until: float, sight: Sight) -> Sight:
    """Probe for a while if the holder is not visible: it may just be ending. Returns the last probe."""
    until = min(until, time.monotonic() + _VISIBLE_WITHIN_S)
    while sight.probe is Probe.HELD and sight.holder is None and time.monotonic() < until:
        time.sleep(_PROBE_INTERVAL_S)
        sight = look(root.path, pidfile)
    return sight


def restart(
    root: StateRoot, pidfile: str, timeout_s: float, check: Callable[[Identity], None] = lambda _: None
) -> Result:
    """Restart the running poller; return when the new start holds the lock, at the latest after `timeout_s`.

    `check` raises LoopError if this process, executed again, would not start: then it is left running.
    """
    until = time.monotonic() + timeout_s
    sight = look(root.path, pidfile)
    while not (sight.verified and sight.holder):
        if sight.probe is Probe.FREE:
            return Result(Code.NOTHING_RUNS, f"no poller is running on '{root.path}'")
        sight = _look_for_holder(root, pidfile, until, sight)
        if (refusal := _refusal(root, sight)) or time.monotonic() >= until:
            return Result(Code.STILL_THERE, refusal or _still_there(sight, timeout_s, set()))
        time.sleep(_PROBE_INTERVAL_S)
        sight = look(root.path, pidfile)
    before = _claimed_at(root.path / pidfile)
    unit, unit_refusal = _unit_that_runs(sight.holder, until)
    if refusal := _refusal(root, sight) or unit_refusal:
        return Result(Code.STILL_THERE, refusal)
    try:
        check(sight.holder)
    except LoopError as error:
        by_force = f"; `{unit.command('restart')}` restarts it anyway" if unit is not None else ""
        code = Code.MISCONFIGURED if error.exit_code == Code.MISCONFIGURED else Code.STILL_THERE
        return Result(code, f"not restarted, pid {sight.holder.pid} goes on: {error}{by_force}")
    if unit is not None:
        finished = systemctl(unit, "restart", "--", unit.name, limit_s=max(1.0, until - time.monotonic()))
        if not finished.is_good:
            return Result(
                Code.STILL_THERE, f"cannot restart '{unit}': {finished.problem} (run `{unit.command('restart')}`)"
            )
    else:
        with pinned(sight.holder) as descriptor:
            if descriptor is not None and look(root.path, pidfile).holder == sight.holder:
                signal.pidfd_send_signal(descriptor, signal.SIGUSR2)
    return _wait_for_new_start(root, pidfile, before, until, timeout_s)


def _end_holder(
    root: StateRoot, pidfile: str, holder: Identity, *, asked: set[Identity], until: float
) -> tuple[str, bool]:
    """Stop the holder's unit, or signal it as a plain process.

    Returns why neither is possible, else "", and whether a unit was stopped: then no job of it is queued any more.
    """
    unit, refusal = _unit_that_runs(holder, until)
    if refusal:
        return refusal, False
    if unit is None:
        _ask(root, pidfile, holder, asked=asked, until=until)
        return "", False
    asked.add(holder)
    return _stop_unit(unit, until), True


def _unit_that_runs(holder: Identity, until: float) -> tuple[Unit | None, str]:
    """The unit whose main process this is, None for a plain process; and why it is left alone, else ""."""
    try:
        unit = unit_of(holder.pid)
    except OSError as error:
        return None, f"cannot find out whether a unit runs pid {holder.pid}: {explain(error)}"
    if unit is None:
        return None, ""
    is_main = runs(unit, holder, _left(until))
    return (unit if is_main else None), _unit_refusal(unit, is_main=is_main)


def _unit_refusal(unit: Unit, *, is_main: bool | None) -> str:
    if is_main is None:
        return f"a poller runs in '{unit}', but its manager cannot be asked (run `{unit.command('stop')}`)"
    if is_main and unit == unit_of("self"):
        return f"this command runs inside '{unit}' and would end with it (run `{unit.command('stop')}` outside)"
    return ""


def _stop_unit(unit: Unit, until: float) -> str:
    """Stop a unit and verify that it is down; return why it is not, else "". Retries a job that was canceled."""
    problem = ""
    while (left_s := until - time.monotonic()) > 0:
        finished = systemctl(unit, "stop", "--", unit.name, limit_s=left_s)
        state = state_of(unit, _left(until))
        if state is not None and state.is_down:
            return ""
        standing = f"'{unit}' is {state.active if state else 'in an unknown state'}"
        if finished.code is None:
            return f"timed out: {standing}, a stop is under way"
        problem = standing if finished.is_good else finished.problem
        if not finished.is_good and "cancel" not in problem:
            break
        time.sleep(_PROBE_INTERVAL_S)
    return f"cannot stop '{unit}': {problem or 'timed out'} (run `{unit.command('stop')}`)"


def _stopped(root: StateRoot, asked: set[Identity], until: float, *, for_takeover: bool) -> Result:
    """The lock is free: also stop units that are about to take it again."""
    on_their_way, unknown = units_on_their_way(root, _left(until))
    for unit in on_their_way:
        if unit == unit_of("self"):
            if for_takeover:
                continue
            return Result(Code.STILL_THERE, _unit_refusal(unit, is_main=True))
        if problem := _stop_unit(unit, until):
            return Result(Code.STILL_THERE, problem)
    if unknown:
        return Result(Code.STILL_THERE, "; ".join(unknown))
    who = ", ".join(f"pid {one.pid}" for one in asked) or ", ".join(map(str, on_their_way)) or "the poller"
    return Result(Code.DONE, f"stopped {who}{_would_start_again(root, until)}")


def _stop_what_is_on_its_way(
    root: StateRoot, pidfile: str, sight: Sight, until: float, *, for_takeover: bool
) -> Result:
    """The lock is free: stop a unit that is between two starts."""
    on_their_way, unknown = units_on_their_way(root, _left(until))
    if on_their_way:
        return _stopped(root, set(), until, for_takeover=for_takeover)
    if unknown:
        return Result(Code.STILL_THERE, "; ".join(unknown))
    nothing = _nothing_runs(root, pidfile, sight)
    return Result(nothing.code, f"{nothing.message}{_would_start_again(root, until)}{mention_other_units(root)}")


def mention_other_units(root: StateRoot) -> str:
    """Name active units on other state roots, which may be the ones that are meant: "; …" for each."""
    told = []
    for unit, path in active_elsewhere(root):
        where = f" on '{path}'" if path else ""
        told.append(f"; the {unit.scope} unit '{unit.name}' is active{where} (run `{unit.command('stop')}` to stop it)")
    return "".join(told)


def _left(until: float) -> float:
    """The time limit of one call to a manager, in seconds."""
    return min(_CALL_LIMIT_S, max(0.5, until - time.monotonic()))


def _would_start_again(root: StateRoot, until: float) -> str:
    names = active_companions(root, _left(until))
    return f"; {' and '.join(names)} will start it again" if names else ""


def _wait_for_new_start(root: StateRoot, pidfile: str, before: int, until: float, timeout_s: float) -> Result:
    free_since: float | None = None
    while time.monotonic() < until:
        sight = look(root.path, pidfile)
        if sight.verified and sight.holder and _claimed_at(root.path / pidfile) != before:
            return Result(Code.DONE, f"restarted as pid {sight.holder.pid}")
        if sight.probe is not Probe.FREE:
            free_since = None
        elif free_since is None:
            free_since = time.monotonic()
        elif time.monotonic() - free_since > _NO_NEW_START_S:
            return Result(Code.FAILED, "the poller ended, but did not start again (see `the-loop events`)")
        time.sleep(_PROBE_INTERVAL_S)
    return Result(
        Code.STILL_THERE, f"timed out after {timeout_s:.0f} s: a restart is under way, without a new start yet"
    )


def _nothing_runs(root: StateRoot, pidfile: str, sight: Sight) -> Result:
    """The result if no poller is running; a stale pidfile is removed, and its content is not relied on."""
    path = root.path / pidfile
    nothing = f"no poller is running on '{root.path}'"
    if not os.path.lexists(path):
        return Result(Code.NOTHING_RUNS, nothing)
    try:
        root.check_owner()
        found = remove_stale_claim(root.path, pidfile)
    except (LoopError, OSError) as error:
        return Result(Code.NOTHING_RUNS, f"{nothing}; cannot remove its stale pidfile: {error}")
    if found is None:
        named = f" (it named pid {sight.note.pid})" if sight.note else ""
        return Result(Code.NOTHING_RUNS, f"{nothing}; removed the stale pidfile '{path}'{named}")
    return Result(Code.NOTHING_RUNS, f"{nothing}; {found.cause or 'its pidfile is in use again'}")


def _ask(root: StateRoot, pidfile: str, holder: Identity, *, asked: set[Identity], until: float) -> None:
    """Send SIGTERM to exactly this process, once, if it still holds the lock; wait until it ends or `until`."""
    with pinned(holder) as descriptor:
        if descriptor is None:
            return
        if holder not in asked:
            if look(root.path, pidfile).holder != holder:
                return
            signal.pidfd_send_signal(descriptor, signal.SIGTERM)
            asked.add(holder)
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        poll.poll(max(0.0, until - time.monotonic()) * 1000)


def _refusal(root: StateRoot, sight: Sight) -> str:
    """Why no process may be signalled, if waiting does not change that; else ""."""
    if sight.probe is Probe.UNKNOWN:
        return f"cannot find out whether a poller runs: {sight.cause}{mention_other_units(root)}"
    if sight.holder is None:
        return f"a poller holds the lock, but {sight.cause}" if sight.probe is Probe.HELD else ""
    try:
        owner = Path(f"/proc/{sight.holder.pid}").stat().st_uid
    except OSError:
        return ""
    if os.geteuid() not in (0, owner):
        return f"pid {sight.holder.pid} holds the lock and belongs to uid {owner} (stop it as that user or as root)"
    return ""


def _still_there(sight: Sight, timeout_s: float, asked: set[Identity]) -> str:
    who = f"pid {sight.holder.pid}" if sight.holder else "an unknown process"
    under_way = "a stop is under way" if asked else f"it was not signalled: {sight.cause}"
    return f"timed out after {timeout_s:.0f} s: {who} still holds the lock; {under_way}"


def _watch_it_stay_free(root: StateRoot, pidfile: str, until: float, for_s: float) -> Sight:
    """Probe until the lock is held or has stayed free for `for_s` seconds: the poller may be starting again."""
    stays_until = min(time.monotonic() + for_s, max(until, time.monotonic() + _PROBE_INTERVAL_S))
    sight = look(root.path, pidfile)
    while sight.probe is Probe.FREE and time.monotonic() < stays_until:
        time.sleep(_PROBE_INTERVAL_S)
        sight = look(root.path, pidfile)
    return sight


def _claimed_at(path: Path) -> int:
    """When the lock was last taken, in nanoseconds, 0 if unknown. Distinguishes two starts under the same pid."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0
