"""One offer on its way: prepared, started, waited for, recorded.

A fault on that way says nothing about the receiver: before the start it costs this try, afterwards the delivery is
looked at again for as long as the fault lasts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from the_loop.backoff import growing
from the_loop.core.ledger import is_spawn
from the_loop.core.model import Note, Outcome, Verdict, explain
from the_loop.deliveries import DeliveryRuns
from the_loop.outbox import Outbox
from the_loop.runners.base import NotNow, Offer, Trace

_ENDING_S: Final = (0.002, 0.1)  # between two looks at a lock that is about to be free
_RETRY_S: Final = (1.0, 30.0)  # between two tries of what a fault keeps from being done
_SLOW_S: Final = 2.0  # between two looks at a receiver that does not take what it was given


@dataclass(slots=True)
class HandOver:
    """`make_room` is called when the delivery is out of sight: it takes no slot from others then."""

    outbox: Outbox
    offer: Offer
    is_adopted: bool  # an earlier poller started it
    tell: Callable[[Note], None]
    make_room: Callable[[], None]
    is_out_of_sight: bool = False

    async def run(self) -> Outcome | None:
        """What was recorded; None if there was nothing to hand over after all.

        Raises NotNow, or whatever kept the offer from being started; nothing was handed over then.
        """
        if self.is_adopted:
            outcome = await self._seen()
        elif await self._is_prepared():
            outcome = await self._started()
        else:
            return None
        while not await self._is_recorded(outcome):
            outcome = await self._seen()
        return outcome

    async def _is_prepared(self) -> bool:
        """Have the payload ready, once the unit of an earlier offer has ended."""
        waits_s = growing(*_ENDING_S)
        while True:
            try:
                return self.outbox.prepare(self.offer)
            except DeliveryRuns:
                await asyncio.sleep(next(waits_s))

    async def _started(self) -> Outcome:
        if is_spawn(self.offer.key):
            self.tell(Note("session.started", {"ref": self.offer.ref, "key": self.offer.key}))
        try:
            return await self.outbox.hand_over(self.offer)
        except NotNow:
            if self.outbox.trace(self.offer) is Trace.NEVER_BEGUN:
                raise
            problem = "it was begun, and is not any more"
        except Exception as error:  # noqa: BLE001 (it may have been started all the same)
            problem = f"unexpected: {type(error).__name__}: {error}"
        outcome = await self._seen()
        return Outcome(Verdict.UNSTARTABLE, problem) if outcome.verdict is Verdict.NEVER_BEGUN else outcome

    async def _seen(self) -> Outcome:
        """What becomes of an offer that may be under way, for as long as it cannot be looked at."""
        waits_s = growing(*_RETRY_S)
        while True:
            try:
                return await self.outbox.adopt(self.offer)
            except NotNow:
                wait_s = _SLOW_S
            except Exception as error:  # noqa: BLE001 (it could not be found out: looked at again)
                self._say("look after the delivery", error, is_first=not self.is_out_of_sight)
                wait_s = next(waits_s)
            self.is_out_of_sight = True
            self.make_room()
            await asyncio.sleep(wait_s)

    async def _is_recorded(self, outcome: Outcome) -> bool:
        """Record the outcome, for as long as the disk refuses. False if it is none: the delivery is under way."""
        waits_s, is_first = growing(*_RETRY_S), True
        while True:
            try:
                self.outbox.conclude(self.offer, outcome)
            except DeliveryRuns:
                return False
            except Exception as error:  # noqa: BLE001 (unrecorded, it must not be offered again)
                self._say("record an outcome", error, is_first=is_first)
            else:
                return True
            is_first = False
            await asyncio.sleep(next(waits_s))

    def _say(self, what: str, error: Exception, *, is_first: bool) -> None:
        if is_first:
            reason = f"cannot {what}: {explain(error)}, trying again"
            self.tell(Note("item.failed", {"ref": self.offer.ref, "reason": reason}))
