"""An operator's decision: carried out by the running poller, or, where none runs, here under the lock."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any, Final

from the_loop.cli.common import must_exist
from the_loop.lock import LockBusy, LockHeld, Probe, RunLock, look
from the_loop.state import PIDFILE, StateRoot

_STARTS_WITHIN_S: Final = 10.0  # a poller that takes the lock serves requests
_PAUSE_S: Final = 0.05


def decide(root: StateRoot, verb: str, request: dict[str, Any], here: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The answer of the poller, or that of `here`, called with the lock held. Raises LoopError.

    A poller that is starting or stopping, or another command, holds the lock without answering: it is waited for.
    """
    from the_loop.supervision.asking import NothingServes, ask

    must_exist(root)
    if os.geteuid() != 0:
        root.check_owner()  # root may ask for any user, and writes nothing itself
    until = time.monotonic() + _STARTS_WITHIN_S
    while True:
        try:
            return ask(root, verb, request)
        except NothingServes:
            is_over = time.monotonic() >= until
        try:
            return _under_lock(root, here)
        except (LockHeld, LockBusy):
            if is_over:
                raise
        time.sleep(_PAUSE_S)


def _under_lock(root: StateRoot, here: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Raises LockHeld (exit code 75) or LockBusy while something holds the lock, LoopError."""
    if root.path.stat().st_uid != os.geteuid() and (sight := look(root.path, PIDFILE)).probe is Probe.HELD:
        raise LockHeld(root.pidfile, sight.holder)
    root.check_owner()
    lock = RunLock.attempt(root.path, PIDFILE)
    try:
        root.prepare_folders()
        return here()
    finally:
        lock.close()
