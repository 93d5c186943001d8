"""The watchdog hears of the loop's own progress, and the pidfile is looked after when its directory changes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from support.clock import Clock, Clocks
from support.world import in_real_loop
from the_loop.vitals import Vitals


class Ticking:
    """The vitals of a poller with one source, in a cycle that began a moment ago by a clock of its own."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.pings = self.beats = self.checks = 0
        self.loop = SimpleNamespace(watched=SimpleNamespace(visited=None), busy_since_s=self.clock.uptime_s)
        notifier: Any = SimpleNamespace(watchdog_s=90.0, watchdog=self._ping)
        loops: Any = [self.loop]
        self.vitals = Vitals(notifier, Clocks(self.clock), lambda: loops, check=self._check, beat=self._beat)

    def _ping(self) -> None:
        self.pings += 1

    def _beat(self) -> None:
        self.beats += 1

    def _check(self) -> None:
        self.checks += 1

    async def pass_time(self, seconds: float, visited: tuple[int, int] | None) -> int:
        """Later; how often the watchdog was fed since."""
        self.loop.watched.visited = visited
        self.clock.run(seconds)
        self.pings = 0
        ticks = asyncio.create_task(self.vitals.run())
        for _ in range(6):
            await asyncio.sleep(0)
        ticks.cancel()
        return self.pings


@in_real_loop
async def test_watchdog_when_a_cycle_goes_on_item_by_item_then_is_fed_however_long_it_takes() -> None:
    ticking = Ticking()

    fed = [await ticking.pass_time(600, (number, 10_000)) for number in range(1, 6)]

    assert all(fed)
    assert ticking.beats >= 5, "and how far it is can be seen meanwhile"


@in_real_loop
async def test_watchdog_when_a_cycle_makes_no_progress_then_is_not_fed_any_more() -> None:
    ticking = Ticking()

    fed = [await ticking.pass_time(600, (7, 10_000)) for _ in range(3)]

    assert [bool(pings) for pings in fed] == [True, True, False]


@in_real_loop
async def test_idle_poller_is_woken_by_nothing_but_the_watchdog() -> None:
    ticking = Ticking()
    ticking.loop.busy_since_s = None
    ticking.vitals._notifier.watchdog_s = None
    ticking.vitals.watch(Path("/"))

    await ticking.pass_time(0, None)

    assert (ticking.clock.uptime_s, ticking.beats, ticking.checks) == (1000.0, 0, 0)
    ticking.vitals.close()


@in_real_loop
async def test_pidfile_is_looked_after_as_soon_as_a_name_in_the_root_changes(tmp_path: Path) -> None:
    ticking = Ticking()
    ticking.vitals.watch(tmp_path)
    (tmp_path / "poll.pid").touch()

    async with asyncio.timeout(30):
        while not ticking.checks:  # noqa: ASYNC110 (what the kernel tells comes with the loop's next round)
            await asyncio.sleep(0.01)
    ticking.vitals.close()
