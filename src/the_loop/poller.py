"""One run of `poll start`: signals first, then the lock, then a life that is lived with it.

One thread, one event loop. A signal sets a flag and wakes the loop.
"""

from __future__ import annotations

import asyncio
import random
from typing import Final

from the_loop.config import ConfigError
from the_loop.core.model import LoopError, Note
from the_loop.life import Life, Setup
from the_loop.lock import LockBusy, LockHeld, RunLock
from the_loop.signals import Wishes
from the_loop.state import PIDFILE

_PROBES_GONE_S: Final = 1.0  # a probe holds the lock for a moment only
_FOREIGN_GONE_S: Final = 5.0  # systemd-tmpfiles locks a directory while it ages it
_QUEUE_LOOK_S: Final = 0.1
_SAY_WAITING_S: Final = 5.0


class Poller:
    """`run` returns the exit code; `wants_restart` says whether the process is to be executed again."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._wishes = Wishes(self._tell_stop, self._may_restart)
        self._said_waiting_s = float("-inf")

    def _tell_stop(self, reason: str) -> None:
        self._setup.trail.tell(Note("poller.stopping", {"reason": reason}))

    def _may_restart(self) -> bool:
        try:
            self._setup.load()
        except LoopError as error:
            reason = error.summary if isinstance(error, ConfigError) else str(error)
            self._setup.trail.tell(Note("config.rejected", {"reason": reason}))
            return False
        return True

    @property
    def wants_restart(self) -> bool:
        return self._wishes.wants_restart

    async def run(self) -> int:
        """Hold the lock, do the work, stop in order. Raises LockHeld, LockBusy, LockUnusable, LoopError."""
        self._wishes.install()
        self._setup.root.prepare_root()
        lock = await self._acquire()
        if lock is None:
            return 0  # told to stop while it waited
        try:
            return await Life(self._setup, lock, self._wishes).run()
        finally:
            lock.close()

    async def _acquire(self) -> RunLock | None:
        clock = self._setup.clock
        obstacle, since_s = "", 0.0
        began_s = clock.uptime()
        while not self._wishes.is_stop:
            try:
                return RunLock.attempt(self._setup.root.path, PIDFILE)
            except LockHeld as held:
                if clock.uptime() - began_s >= self._setup.wait_s:
                    raise
                obstacle = ""
                self._say_waiting(held)
                await clock.wait(self._wishes.stopped, clock.uptime() + _QUEUE_LOOK_S)
            except LockBusy as busy:
                kind, patience_s = ("probe", _PROBES_GONE_S) if busy.shared else ("foreign", _FOREIGN_GONE_S)
                if kind != obstacle:
                    obstacle, since_s = kind, clock.uptime()
                elif clock.uptime() - since_s > patience_s:
                    raise
            await asyncio.sleep(0.01 + random.random() / 100)
        return None

    def _say_waiting(self, held: LockHeld) -> None:
        """The manager is told who is waited for, and not to lose patience."""
        now_s = self._setup.clock.uptime()
        if now_s - self._said_waiting_s > _SAY_WAITING_S:
            self._said_waiting_s = now_s
            self._setup.notifier.status(f"waiting for {held.holder or 'the holder'} to let go of {held.claim}")
            self._setup.notifier.extend_timeout(6 * _SAY_WAITING_S)
