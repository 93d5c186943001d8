"""Long work in the event loop gives others a turn now and then."""

from __future__ import annotations

import asyncio
import time
from typing import Final

_AT_ONCE_S: Final = 0.004  # a stop takes about five turns from the signal to where it takes hold


class Turns:
    """Ask after each step: others run once the steps since the last turn took 4 ms together."""

    def __init__(self) -> None:
        self._since_s = time.perf_counter()

    async def are_given(self, *, now: bool = False) -> None:
        """Let others run, if it is time, or `now`. A stop takes hold here."""
        if now or time.perf_counter() - self._since_s > _AT_ONCE_S:
            await asyncio.sleep(0)
            self._since_s = time.perf_counter()
