"""Time that passes when a test says so."""

from __future__ import annotations

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
