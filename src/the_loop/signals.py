"""What people and managers want of a running poller: a flag each, and one event that says that there is something."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from typing import Final

HELD_BACK: Final = (signal.SIGHUP, signal.SIGUSR2)  # blocked from the first moment: by default they end a process


class Wishes:
    """Set by signals, read by the loop. A second signal changes nothing. `on_stop` is told the reason, once.

    `may_restart` is asked before a restart: a poller that could not start again goes on.
    """

    def __init__(self, on_stop: Callable[[str], None], may_restart: Callable[[], bool]) -> None:
        self.is_stop = False
        self.wants_restart = False
        self.wants_reload = False
        self.changed = asyncio.Event()
        self.stopped = asyncio.Event()
        self._on_stop = on_stop
        self._may_restart = may_restart

    def install(self) -> None:
        """First of all: no signal ends the process from now on."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop, signal.Signals(number).name)
        loop.add_signal_handler(signal.SIGHUP, self.reload)
        loop.add_signal_handler(signal.SIGUSR2, self.restart)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD_BACK)

    def stop(self, reason: str) -> None:
        if not self.is_stop:
            self._on_stop(reason)
            self.halt()

    def halt(self) -> None:
        """Stop, without a word."""
        self.is_stop = True
        self.stopped.set()
        self.changed.set()

    def restart(self) -> None:
        if not self.is_stop and self._may_restart():
            self.wants_restart = True
            self.stop("SIGUSR2, to start again")

    def reload(self) -> None:
        self.wants_reload = True
        self.changed.set()
