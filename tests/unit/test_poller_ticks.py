"""The watchdog hears of the loop's own progress: a long cycle that goes on is alive, one that stands still is not."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from support.world import in_real_loop
from the_loop import poller as poller_module
from the_loop.poller import Poller


class Ticking:
    """A poller of which only the ticks run, in a cycle that began a moment ago by a clock of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.pings = self.beats = 0
        self.ticks = asyncio.Semaphore(0)
        monkeypatch.setattr(poller_module, "time", SimpleNamespace(monotonic=lambda: self.now))
        self.watched = SimpleNamespace(visited=None)
        poller: Any = Poller.__new__(Poller)
        notifier = SimpleNamespace(watchdog_s=0.001, watchdog=self._ping)
        poller._setup = SimpleNamespace(notifier=notifier, trail=SimpleNamespace(check=self._tick))
        poller._watched, poller._work = [self.watched], object()
        poller._busy_since = poller._beaten_at = self.now
        poller._is_in_charge = lambda: True
        poller._beat = self._beat
        self.poller = poller
        self.task = asyncio.create_task(poller._keep_ticking())

    def _tick(self) -> None:
        self.ticks.release()

    def _ping(self) -> None:
        self.pings += 1

    def _beat(self) -> None:
        self.beats += 1
        self.poller._beaten_at = self.now

    async def pass_time(self, seconds: float, visited: tuple[int, int] | None) -> int:
        """Some ticks at a later moment; how often the watchdog was fed in them."""
        self.now += seconds
        self.watched.visited = visited
        await self._ticks(2)  # one may be half way
        self.pings = 0
        await self._ticks(3)
        return self.pings

    async def _ticks(self, count: int) -> None:
        self.ticks = asyncio.Semaphore(0)
        for _ in range(count):
            await self.ticks.acquire()


@in_real_loop
async def test_watchdog_when_a_cycle_goes_on_item_by_item_then_is_fed_however_long_it_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ticking = Ticking(monkeypatch)
    fed = [await ticking.pass_time(600, (number, 10_000)) for number in range(1, 6)]

    ticking.task.cancel()
    assert all(fed)
    assert ticking.beats >= 5, "and how far it is can be seen meanwhile"


@in_real_loop
async def test_watchdog_when_a_cycle_stands_still_then_is_not_fed_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    ticking = Ticking(monkeypatch)

    fed = [await ticking.pass_time(600, (7, 10_000)) for _ in range(3)]
    ticking.task.cancel()

    assert [bool(pings) for pings in fed] == [True, True, False]
