"""How long the event loop was away: the steps that it made between two looks at what happens outside.

Signals, requests, the watchdog and every other source wait for that long. Measuring costs a reading of the clock for
each look, and wakes nothing.

Python's garbage collector is a part of it: with 20,000 folders it walks a million objects, which takes 0.15 s.
"""

from __future__ import annotations

import gc
import selectors
import time


class MeasuredSelector(selectors.DefaultSelector):
    """For an event loop."""

    def __init__(self) -> None:
        super().__init__()
        self._clock_s = self._processor_s = 0.0
        self._since = (time.perf_counter(), time.thread_time())

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        clock, processor = self._since
        self._clock_s = max(self._clock_s, time.perf_counter() - clock)
        self._processor_s = max(self._processor_s, time.thread_time() - processor)
        try:
            return super().select(timeout)
        finally:
            self._since = (time.perf_counter(), time.thread_time())

    def longest(self) -> dict[str, float]:
        """The most since the start, in seconds. The first grows with the load of the machine, the second does not."""
        return {"seconds": round(self._clock_s, 4), "processorSeconds": round(self._processor_s, 4)}


def collect_seldom() -> None:
    """Have the garbage collector walk through everything a hundred times less often than it does by itself."""
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, 1000)


def keep_what_lives() -> None:
    """Have the garbage collector not walk again what is alive now: ledgers, cursors, the pages of a poll.

    It still goes when its last reference does. Only a circle of references that dies later than this stays, and there
    are few: the young ones are collected first.
    """
    gc.collect(1)
    gc.freeze()
