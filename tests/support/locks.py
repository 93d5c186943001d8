"""Scripts of processes that hold, look at or wait for a run lock, and short ways to ask for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from the_loop.lock import LockBusy, LockHeld, RunLock
from the_loop.processes import Identity, identity_of

if TYPE_CHECKING:
    from pathlib import Path

    from support.processes import Child

CLAIM = "poll.pid"

HOLDER = """
    import sys
    from pathlib import Path
    from the_loop.lock import RunLock
    lock = RunLock.attempt(Path(sys.argv[1]), "poll.pid")
    print(lock.identity, flush=True)
    for line in sys.stdin:
        print(getattr(lock, line.strip())(), flush=True)
"""
FLOCK = """
    import fcntl, os, sys
    path, *operations = sys.argv[1:]
    descriptor = os.open(path, os.O_RDONLY)
    for operation in operations:
        fcntl.flock(descriptor, getattr(fcntl, operation))
        print(operation, flush=True)
        sys.stdin.readline()
"""
# as `poll start` takes it, with its patience; until it has the lock it needs nothing else
ACQUIRE = """
    import asyncio, sys, threading, time
    from dataclasses import fields
    from pathlib import Path
    from the_loop.lock import LockBusy, LockHeld, look
    from the_loop.clocks import SystemClock
    from the_loop.life import Setup
    from the_loop.poller import Poller
    from the_loop.state import StateRoot

    def acquire(directory):
        known = {"root": StateRoot(Path(directory)), "wait_s": 0.0, "clock": SystemClock()}
        return asyncio.run(Poller(Setup(**{field.name: known.get(field.name) for field in fields(Setup)}))._acquire())
"""


def take(root: Path) -> bool:
    """True if the lock could be had; it is given back at once."""
    try:
        RunLock.attempt(root, CLAIM).close()
    except (LockHeld, LockBusy):
        return False
    return True


def identity(child: Child) -> Identity:
    found = identity_of(child.pid)
    assert found is not None
    return found
