"""Signs of life: the watchdog's pings, the progress of long cycles, and the pidfile that is put back.

Nothing here wakes an idle poller but the watchdog: the state root is watched by the kernel, and progress is shown only
while a cycle is under way.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

from the_loop.clocks import Clock
from the_loop.inotify import drain, watch_names
from the_loop.source_loop import SourceLoop
from the_loop.supervision.notify import Notifier

SHOW_PROGRESS_S: Final = 5.0
STEP_LIMIT_S: Final = 900.0  # a cycle that makes no progress for this long is stuck
_LOOK_S: Final = 2.0  # at the pidfile, where the kernel does not watch it for us


class Vitals:
    """`loops` gives the sources' loops, `check` looks after the pidfile, `beat` shows how far everything is."""

    def __init__(
        self,
        notifier: Notifier,
        clock: Clock,
        loops: Callable[[], Iterable[SourceLoop]],
        *,
        check: Callable[[], object],
        beat: Callable[[], None],
    ) -> None:
        self._notifier = notifier
        self._clock = clock
        self._loops = loops
        self._check = check
        self._beat = beat
        self._changed = asyncio.Event()
        self._visited: list[Any] = []
        self._watch: int | None = None

    def watch(self, root: Path) -> None:
        """Have the pidfile looked after whenever a name in the root changes."""
        try:
            self._watch = watch_names(root)
        except OSError:
            return  # looked at now and then instead
        asyncio.get_running_loop().add_reader(self._watch, self._on_names)

    def close(self) -> None:
        if self._watch is not None:
            asyncio.get_running_loop().remove_reader(self._watch)
            os.close(self._watch)
            self._watch = None

    def note_change(self) -> None:
        """A cycle began or ended."""
        self._changed.set()

    async def run(self) -> None:
        """Ping, show progress, look after the pidfile: each in its time, until cancelled."""
        while True:
            self._changed.clear()
            if self._watch is None:
                self._check()
            self._note_progress()
            if self._notifier.watchdog_s is not None and not self._is_stuck():
                self._notifier.watchdog()
            pause_s = self._pause_s()
            until_s = None if pause_s is None else self._clock.uptime() + pause_s
            if not await self._clock.wait(self._changed, until_s) and self._is_busy():
                self._beat()

    def _pause_s(self) -> float | None:
        """Until something is due here; None while nothing is."""
        pauses = [self._notifier.watchdog_s] if self._notifier.watchdog_s is not None else []
        pauses += [SHOW_PROGRESS_S] if self._is_busy() else []
        pauses += [_LOOK_S] if self._watch is None else []
        return min(pauses, default=None)

    def _is_busy(self) -> bool:
        return any(loop.busy_since_s is not None for loop in self._loops())

    def _note_progress(self) -> None:
        before, self._visited = self._visited, [loop.watched.visited for loop in self._loops()]
        if before == self._visited:
            return
        for loop in self._loops():
            if loop.busy_since_s is not None:
                loop.busy_since_s = self._clock.uptime()  # slow, and not stuck

    def _is_stuck(self) -> bool:
        now_s = self._clock.uptime()
        return any(loop.busy_since_s is not None and now_s - loop.busy_since_s > STEP_LIMIT_S for loop in self._loops())

    def _on_names(self) -> None:
        if self._watch is not None:
            drain(self._watch)
            self._check()
