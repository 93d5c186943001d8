"""Waking the poller of a state root, also one that is between two starts."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Final

from the_loop.lock import Probe, look
from the_loop.state import StateRoot
from the_loop.supervision.sockets import OWN_NAME, send_wake
from the_loop.supervision.stopping import Code, Result
from the_loop.supervision.unit import unit_record, units_on_their_way

_TIMEOUT_S: Final = 10.0
_PROBE_INTERVAL_S: Final = 0.1
_PROBES: Final = 3


def wake(root: StateRoot, pidfile: str) -> Result:
    """Send a wake-up to the poller of this root. Waits up to 10 s for one that is between two starts."""
    until = time.monotonic() + _TIMEOUT_S
    not_running = 0
    while True:
        is_held = look(root.path, pidfile).probe is Probe.HELD
        if is_held and any(send_wake(path) for path in _places(root)):
            return Result(Code.DONE, "wake-up accepted")
        if not is_held and not units_on_their_way(root)[0] and look(root.path, pidfile).probe is not Probe.HELD:
            not_running += 1  # a unit is down for an instant between its restart delay and its start
            if not_running == _PROBES:
                return Result(Code.NOTHING_RUNS, f"no poller is running on '{root.path}'")
        if time.monotonic() > until:
            return Result(Code.NOTHING_RUNS, f"cannot wake the poller on '{root.path}': no wake socket answers")
        time.sleep(_PROBE_INTERVAL_S)


def _places(root: StateRoot) -> list[Path]:
    """Paths of wake sockets: the manager's, if the unit has one, then the poller's own."""
    given = None
    with contextlib.suppress(OSError):  # its own socket may still answer
        given = unit_record(root).get("wake")
    return [*([Path(given)] if isinstance(given, str) and given.startswith("/") else []), root.path / OWN_NAME]
