"""Time: the wall clock, and an uptime that goes on while the machine sleeps.

Waits and intervals are measured by CLOCK_BOOTTIME. A wait that ended while the machine was asleep is over as soon as
it wakes up: the event loop is woken by a timer of the kernel's on that clock, not by its own, which stands still.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import time
from collections.abc import Iterator
from typing import Final, Protocol

_TFD_FLAGS: Final = os.O_NONBLOCK | os.O_CLOEXEC  # as TFD_NONBLOCK and TFD_CLOEXEC
_TFD_ABSTIME: Final = 1


class Clock(Protocol):
    """What the loops are given, so that tests can let time pass."""

    def now(self) -> float:
        """The wall clock, epoch seconds. It may be set."""

    def uptime(self) -> float:
        """Seconds since the machine was booted, including those it slept."""

    async def wait(self, event: asyncio.Event, until_s: float | None) -> bool:
        """Return True once `event` is set, False at the uptime `until_s` (None: never)."""


class SystemClock:
    """This machine's clocks."""

    def now(self) -> float:
        return time.time()

    def uptime(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    async def wait(self, event: asyncio.Event, until_s: float | None) -> bool:
        if event.is_set() or until_s is None:
            return await event.wait()
        over = asyncio.Event()
        with _alarm(until_s, over):
            waits = [asyncio.ensure_future(one.wait()) for one in (event, over)]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()
        return event.is_set()


class _Spec(ctypes.Structure):
    """`struct itimerspec`: interval, then value, each in seconds and nanoseconds."""

    _fields_ = [(name, ctypes.c_long) for name in ("interval_s", "interval_ns", "value_s", "value_ns")]


@contextlib.contextmanager
def _alarm(until_s: float, over: asyncio.Event) -> Iterator[None]:
    """Set `over` at that uptime. Where the kernel gives no timer, the event loop's own has to do."""
    loop = asyncio.get_running_loop()
    libc = ctypes.CDLL(None, use_errno=True)
    timer = libc.timerfd_create(time.CLOCK_BOOTTIME, _TFD_FLAGS)
    if timer < 0:
        handle = loop.call_later(max(0.0, until_s - time.clock_gettime(time.CLOCK_BOOTTIME)), over.set)
        try:
            yield
        finally:
            handle.cancel()
        return
    try:
        moment_ns = max(1, int(until_s * 1e9))  # 0 would disarm it
        spec = _Spec(0, 0, *divmod(moment_ns, 1_000_000_000))
        libc.timerfd_settime(timer, _TFD_ABSTIME, ctypes.byref(spec), None)
        loop.add_reader(timer, over.set)
        yield
    finally:
        loop.remove_reader(timer)
        os.close(timer)
