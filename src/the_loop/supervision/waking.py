"""Waking the poller of a state root, also one that is just being started again."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from the_loop.lock import Probe, look
from the_loop.state import StateRoot
from the_loop.supervision.sockets import OWN_NAME, send_wake
from the_loop.supervision.stopping import Code, Result
from the_loop.supervision.unit import unit_record, units_on_their_way

_PATIENCE_S: Final = 10.0
_LOOK_AGAIN_S: Final = 0.1
_LOOKS: Final = 3


def wake(root: StateRoot, pidfile: str) -> Result:
    """Send a wake; done once it was accepted. Waits a while for a poller that is between two starts."""
    until = time.monotonic() + _PATIENCE_S
    in_vain = 0
    while True:
        is_held = look(root.path, pidfile).probe is Probe.HELD
        if is_held and any(send_wake(path) for path in _places(root)):
            return Result(Code.DONE, "woken")
        if not is_held and not units_on_their_way(root)[0] and look(root.path, pidfile).probe is not Probe.HELD:
            in_vain += 1  # between a pause and its restart a unit is down for an instant
            if in_vain == _LOOKS:
                return Result(Code.NOTHING_RUNS, f"no poller runs on '{root.path}'")
        if time.monotonic() > until:
            return Result(Code.NOTHING_RUNS, f"the poller on '{root.path}' has no wake socket that answers")
        time.sleep(_LOOK_AGAIN_S)


def _places(root: StateRoot) -> list[Path]:
    given = unit_record(root).get("wake")
    return [*([Path(given)] if isinstance(given, str) and given.startswith("/") else []), root.path / OWN_NAME]
