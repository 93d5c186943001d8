"""One source at its own pace: polled, what is due offered, reported, and then a pause that a wake cuts short."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Final

from the_loop.clocks import Clock
from the_loop.core.model import Note, timestamp
from the_loop.counters import Counters
from the_loop.cycle import Cycle, backoff_s
from the_loop.outbox import Outbox
from the_loop.sources.base import Waiting
from the_loop.watched import Summary, Watched

_JITTER: Final = 0.05
_STANDBY_S: Final = 5.0  # so that a claim is taken within 10 s of its holder's death
_QUIET_FOR_S: Final = 3600.0  # cycles without news are told together, once in this time (contract R8.5)


class SourceLoop:
    """`is_in_charge` is asked before each cycle; `beat` shows what changed."""

    def __init__(
        self,
        watched: Watched,
        cycle: Cycle,
        outbox: Outbox,
        *,
        interval_s: float,
        clock: Clock,
        tell: Callable[[Note], None],
        is_in_charge: Callable[[], bool],
        beat: Callable[[], None],
        counters: Counters | None = None,
    ) -> None:
        self.watched = watched
        self.interval_s = interval_s
        self.busy_since_s: float | None = None  # uptime of the last progress of the cycle that is under way
        self._cycle = cycle
        self._outbox = outbox
        self._clock = clock
        self._tell = tell
        self._is_in_charge = is_in_charge
        self._beat = beat
        self._counters = counters or Counters(clock.now)
        self._wake = asyncio.Event()
        self._is_woken = False
        self._quiet = 0
        self._told_at_s = clock.uptime()

    async def run(self) -> None:
        """Cycles, until cancelled: in a fetch, in the pause, or between two items."""
        while True:
            began_at = self._clock.now()
            try:
                errors = await self.poll()
            except asyncio.CancelledError:
                self.report(began_at, 0, interrupted=True)
                raise
            self.report(began_at, errors)
            await self._pause()

    async def poll(self) -> int:
        """One cycle, without its report; the number of errors. A source that is not read counts as one."""
        self._wake.clear()
        watched = self.watched
        if watched.is_unread:
            self._say_unread()
            return 1
        if not self._is_in_charge():
            return 0
        self.busy_since_s = self._clock.uptime()
        try:
            is_limited = watched.wait_left_s(self._clock.uptime()) > 0
            errors = 1 if is_limited else await self._cycle.run(watched)
            self._cycle.offer_pending(watched)
        finally:
            self.busy_since_s = None
        return errors

    def wake(self) -> None:
        """Poll now, whatever pause there is; not before a moment that a limit named."""
        self._is_woken = True
        self._wake.set()
        if isinstance(self.watched.source, Waiting):
            self.watched.source.look_up()

    def report(self, began_at: float, errors: int, *, interrupted: bool = False, is_single: bool = False) -> None:
        """Note how the cycle went, and tell it if it is news. `began_at` is epoch seconds."""
        watched, uptime_s = self.watched, self._clock.uptime()
        delivered = self._outbox.take_receipts(watched.source.owns)
        seconds = max(0.0, self._clock.now() - began_at)
        watched.last_cycle = Summary(began_at, seconds, watched.items, delivered, errors, interrupted)
        self._counters.note_cycle(watched.source.name, seconds, errors, interrupted=interrupted)
        is_news = delivered or errors or interrupted or self._is_woken or is_single
        self._quiet += not is_news
        self._is_woken = False
        if is_news or (self._quiet and uptime_s - self._told_at_s >= _QUIET_FOR_S):
            cycles = None if is_news else self._quiet
            good_at = watched.last_good_at
            fields = {"source": watched.source.name, **watched.last_cycle.to_json(), "cycles": cycles}
            self._tell(Note("poll.cycle", {**fields, "lastGoodCycleAt": good_at and timestamp(good_at)}))
            self._quiet, self._told_at_s = 0, uptime_s

    def pause_s(self) -> float | None:
        """Seconds until the next cycle; None for a source that is not read."""
        if self.watched.is_unread:
            return None
        interval_s = min(self.interval_s, _STANDBY_S) if self.watched.held_by else self.interval_s
        pause_s = backoff_s(self.watched.failures, interval_s) * random.uniform(1 - _JITTER, 1 + _JITTER)
        return max(pause_s, self.watched.wait_left_s(self._clock.uptime()))

    async def _pause(self) -> None:
        pause_s = self.pause_s()
        self.watched.next_cycle_at = None if pause_s is None else self._clock.now() + pause_s
        self._beat()
        await self._clock.wait(self._wake, None if pause_s is None else self._clock.uptime() + pause_s)

    def _say_unread(self) -> None:
        reason = "no author is authorised, so it is not read; set routing.authorizedUsers"
        if self.watched.error != reason:
            self._tell(Note("source.failed", {"source": self.watched.source.name, "reason": reason}))
        self.watched.error = reason
