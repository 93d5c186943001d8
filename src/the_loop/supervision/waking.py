"""Waking the poller of a state root, also one that is between two starts."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Final

from the_loop.lock import Probe, look
from the_loop.state import StateRoot
from the_loop.supervision.asking import NoAnswer, NothingServes, Refused, ask
from the_loop.supervision.sockets import OWN_NAME, send_wake
from the_loop.supervision.stopping import Code, Result
from the_loop.supervision.unit import unit_record, units_on_their_way

_TIMEOUT_S: Final = 10.0
_PROBE_INTERVAL_S: Final = 0.1
_PROBES: Final = 3


def wake(root: StateRoot, pidfile: str, source: str | None = None) -> Result:
    """Wake the poller of this root, for a cycle of one source or of all. Waits up to 10 s for one that is starting.

    Raises Refused, with exit code 2 for a source that it does not have.
    """
    until = time.monotonic() + _TIMEOUT_S
    not_running = 0
    problem = Result(Code.NOTHING_RUNS, f"cannot wake the poller on '{root.path}': no socket of it answers")
    while True:
        is_held = look(root.path, pidfile).probe is Probe.HELD
        if is_held:
            problem = _woken(root, source, until) or problem
            if problem.code is Code.DONE:
                return problem
        if not is_held and not units_on_their_way(root)[0] and look(root.path, pidfile).probe is not Probe.HELD:
            not_running += 1  # a unit is down for an instant between its restart delay and its start
            if not_running == _PROBES:
                return Result(Code.NOTHING_RUNS, f"no poller is running on '{root.path}'")
        if time.monotonic() > until:
            return problem
        time.sleep(_PROBE_INTERVAL_S)


def _woken(root: StateRoot, source: str | None, until: float) -> Result | None:
    """DONE if a wake-up was accepted; why it was not, None if nothing serves. Raises Refused."""
    problem: Result | None = None
    try:
        ask(root, "wake", {"source": source}, max(until - time.monotonic(), _PROBE_INTERVAL_S))
        return Result(Code.DONE, "wake-up accepted")
    except NothingServes:
        pass
    except NoAnswer as error:
        problem = Result(Code.STILL_THERE, str(error))
    except Refused as error:
        if error.exit_code != Code.NOTHING_RUNS:
            raise
        problem = Result(Code.NOTHING_RUNS, error.problem)  # a single run: the next poller may make a cycle
    if source is None and any(send_wake(path) for path in _places(root)):
        return Result(Code.DONE, "wake-up accepted")
    return problem


def _places(root: StateRoot) -> list[Path]:
    """Paths of wake sockets: the manager's, if the unit has one, then the poller's own.

    Only sockets of the root's owner: the record belongs to that user, and the caller may be root.
    """
    given = None
    with contextlib.suppress(OSError):  # its own socket may still answer
        given = unit_record(root).get("wake")
    places = [*([Path(given)] if isinstance(given, str) and given.startswith("/") else []), root.path / OWN_NAME]
    owner = _owner(root.path)
    return [path for path in places if owner is not None and _owner(path) == owner]


def _owner(path: Path) -> int | None:
    try:
        return path.lstat().st_uid
    except (OSError, ValueError):
        return None
