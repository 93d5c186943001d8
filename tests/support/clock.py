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
