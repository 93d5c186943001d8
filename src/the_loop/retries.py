"""Events whose wait is over are offered at that moment, whatever the pace of their source."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from the_loop.clocks import Clock
from the_loop.core.ledger import Standing, is_spawn
from the_loop.dispatcher import Dispatcher
from the_loop.ledgers import Ledgers


class Retries:
    """`wake` has the source of an item polled: a spawn is built anew from its thread before its next try."""

    def __init__(self, ledgers: Ledgers, dispatcher: Dispatcher, clock: Clock, wake: Callable[[str], None]) -> None:
        self._ledgers = ledgers
        self._dispatcher = dispatcher
        self._clock = clock
        self._wake = wake
        self._changed = asyncio.Event()

    def note_change(self) -> None:
        """There may be another wait now."""
        self._changed.set()

    async def run(self) -> None:
        """Wait for the next moment, for ever. Costs nothing while nothing waits."""
        while True:
            self._changed.clear()
            waits = self._waits()
            left_s = min(waits.values(), default=None)
            until_s = None if left_s is None else self._clock.uptime() + left_s
            if not await self._clock.wait(self._changed, until_s):
                self._offer([one for one, wait_s in waits.items() if wait_s == left_s])

    def _waits(self) -> dict[tuple[str, str], float]:
        """Seconds until the next try, by item and key; what is due already was offered when it came to be."""
        now = self._clock.now()
        return {
            (ledger.ref, key): entry.retry_at - now
            for ledger in self._ledgers.with_pending()
            for key, entry in ledger.poll.pending.items()
            if entry.state in (Standing.REFUSED, Standing.LATER) and 0 < entry.retry_at - now <= entry.pause
        }

    def _offer(self, events: list[tuple[str, str]]) -> None:
        for ref, key in events:
            if is_spawn(key):
                self._wake(ref)
            else:
                self._dispatcher.offer(ref)
