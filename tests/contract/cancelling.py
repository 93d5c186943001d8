"""Cancelling work at each of its awaits in turn."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class CancelledAt(Generic[T]):
    """Awaits a coroutine, and cancels its task at one of the places where it waits, counted from 1; 0 never."""

    def __init__(self, coroutine: Coroutine[Any, Any, T], at: int) -> None:
        self._coroutine = coroutine
        self._at = at

    def __await__(self) -> Generator[Any, Any, T]:
        steps = self._coroutine.__await__()
        count, error = 0, None
        while True:
            try:
                waited = next(steps) if error is None else steps.throw(error)
            except StopIteration as stop:
                value: T = stop.value
                return value
            count, error = count + 1, None
            if count == self._at:
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
            try:
                yield waited
            except BaseException as raised:  # noqa: BLE001 (whatever it is, it is the coroutine's)
                error = raised


async def is_cancelled(work: Awaitable[object]) -> bool:
    """True if this work is cancelled, False if it comes to an end of its own. Raises what it raises."""
    try:
        await asyncio.ensure_future(_as_coroutine(work))
    except asyncio.CancelledError:
        return True
    return False


async def _as_coroutine(work: Awaitable[T]) -> T:
    return await work
