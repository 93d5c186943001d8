"""Time that passes when a test says so."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

NOON: Final = 1_700_000_000.0  # epoch seconds


@dataclass
class Clock:
    """The machine's two clocks, moved by tests alone: `now` in epoch seconds, which may be set, and `uptime_s`."""

    now: float = NOON
    uptime_s: float = 1000.0

    def __call__(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.uptime_s

    def run(self, seconds: float) -> None:
        """Time passes."""
        self.now += seconds
        self.uptime_s += seconds


@dataclass(frozen=True)
class Clocks:
    """The same as the product takes it (`clocks.Clock`)."""

    clock: Clock

    def now(self) -> float:
        return self.clock.now

    def uptime(self) -> float:
        return self.clock.uptime_s

    async def wait(self, event: asyncio.Event, until_s: float | None) -> bool:
        """Time passes while this is waited for, at no other moment."""
        if not event.is_set() and until_s is not None:
            self.clock.run(max(0.0, until_s - self.clock.uptime_s))
            await asyncio.sleep(0)
            return event.is_set()
        return await event.wait()


class LoopClocks:
    """Clocks that go with the event loop's own, which may be a virtual one; `sleep` is that of the machine."""

    def __init__(self) -> None:
        self._slept_s = 0.0
        self._woken: set[asyncio.Event] = set()

    def now(self) -> float:
        return NOON + self.uptime()

    def uptime(self) -> float:
        return asyncio.get_running_loop().time() + self._slept_s

    def sleep(self, seconds: float) -> None:
        """The machine was asleep for so long: the loop's own clock stood still meanwhile."""
        self._slept_s += seconds
        for woken in self._woken:
            woken.set()

    async def wait(self, event: asyncio.Event, until_s: float | None) -> bool:
        """Return True once `event` is set, False at that uptime, also if the machine slept through it."""
        if until_s is None:
            return await event.wait()
        woken = asyncio.Event()
        self._woken.add(woken)
        try:
            while not event.is_set() and self.uptime() < until_s:
                woken.clear()
                waits = [asyncio.ensure_future(one.wait()) for one in (event, woken)]
                await asyncio.wait(waits, timeout=until_s - self.uptime(), return_when=asyncio.FIRST_COMPLETED)
                for wait in waits:
                    wait.cancel()
        finally:
            self._woken.discard(woken)
        return event.is_set()
