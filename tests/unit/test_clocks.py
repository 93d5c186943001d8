"""Waits on the clock that goes on while the machine sleeps. That it sleeps cannot be tried here: see test_life."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from support.world import in_real_loop
from the_loop.clocks import SystemClock


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@in_real_loop
async def test_wait_ends_at_its_moment_and_not_before() -> None:
    clock = SystemClock()
    began = clock.uptime()

    assert not await clock.wait(asyncio.Event(), began + 0.05)
    assert clock.uptime() >= began + 0.05


@in_real_loop
async def test_wait_ends_with_its_event_and_leaves_no_descriptor() -> None:
    clock, event = SystemClock(), asyncio.Event()
    before = open_files()
    asyncio.get_running_loop().call_later(0.01, event.set)

    assert await clock.wait(event, clock.uptime() + 3600)
    assert open_files() == before


@in_real_loop
async def test_wait_for_a_moment_that_is_over_ends_at_once() -> None:
    assert not await SystemClock().wait(asyncio.Event(), -5.0)


@in_real_loop
async def test_wait_where_the_kernel_gives_no_timer_ends_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    class NoTimers:
        def timerfd_create(self, *_: int) -> int:
            return -1

    monkeypatch.setattr("the_loop.clocks.ctypes.CDLL", lambda *_, **__: NoTimers())
    began = time.monotonic()

    assert not await SystemClock().wait(asyncio.Event(), SystemClock().uptime() + 0.02)
    assert time.monotonic() - began >= 0.015
