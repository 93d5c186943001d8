"""Hands events over: one at a time per item, a bounded number at once, in the order in which items came up.

It keeps no events of its own. What is next for an item is asked of the outbox at the moment a slot is free, so a word
that withdraws or pauses takes effect up to that moment, and whatever was only waiting is still in its ledger.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from the_loop.core.model import Note, Outcome, Verdict, explain, timestamp
from the_loop.handover import HandOver
from the_loop.outbox import Outbox
from the_loop.runners.base import Deferral, NotNow, Offer, Trace

_FIRST_PAUSE_S: Final = 5.0
_LONGEST_PAUSE_S: Final = 900.0
_AGAIN_S: Final = 1.0  # until an offer that never began is made again
_LOOK_AGAIN_S: Final = 2.0  # at a receiver that cannot be given anything (contract R7.3)


@dataclass(frozen=True, slots=True)
class StopReport:
    """What a stop found: delivery ids accepted but not begun, and those that go on without us."""

    abandoned: tuple[str, ...]
    left_running: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Running:
    hand_over: HandOver
    task: asyncio.Task[None]
    since: float  # epoch seconds

    @property
    def offer(self) -> Offer:
        return self.hand_over.offer


class Dispatcher:
    """Sources are served in turn, and one of which nothing runs may always start one (contract R9).

    `may_hand_over` is asked before each hand-over; once it says no, nothing is handed over any more. `source_of` names
    the source of an item, `on_end` is called whenever a delivery was recorded.
    """

    def __init__(
        self,
        outbox: Outbox,
        *,
        limit: int,
        tell: Callable[[Note], None],
        may_hand_over: Callable[[], bool],
        source_of: Callable[[str], str] = lambda _: "",
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        self.limit = limit
        self._source_of = source_of
        self._on_end = on_end
        self.pause_reason = ""
        self._outbox = outbox
        self._tell = tell
        self._may_hand_over = may_hand_over
        self._ready: dict[str, dict[str, None]] = {}  # items by source, the one to be served next first
        self._running: dict[str, _Running] = {}
        self._deferred: dict[str, Deferral] = {}  # by item
        self._is_closed = False
        self._pause_s = 0.0
        self._resume: asyncio.TimerHandle | None = None

    def offer(self, ref: str) -> None:
        """This item may have something to hand over."""
        if not self._is_closed:
            self._ready.setdefault(self._source_of(ref), {})[ref] = None
            self._pump()

    def adopt(self, offer: Offer) -> None:
        """Wait for a delivery that an earlier poller started. It counts, but waits for no slot: it runs already."""
        self._tell(Note("dispatch.adopted", {"ref": offer.ref, "key": offer.key}))
        self._begin(offer, adopted=True)

    def look_after(self, ref: str) -> None:
        """Wait for what is under way of this item, though it was not known. Raises OSError, HeldItem."""
        for offer in self._outbox.under_way(ref):
            if ref not in self._running:
                self.adopt(offer)

    def running(self, ref: str) -> str | None:
        """The key of the item's event that is being delivered."""
        running = self._running.get(ref)
        return running.offer.key if running else None

    def under_way(self) -> list[tuple[Offer, float]]:
        """The deliveries that are waited for, and since when, epoch seconds."""
        return [(running.offer, running.since) for running in self._running.values()]

    def deferred_key(self, ref: str) -> str | None:
        """The key of the item's event that waits for its receiver to be free."""
        return one.key if (one := self._deferred.get(ref)) is not None else None

    def deferred(self) -> dict[tuple[str, str], Deferral]:
        """By item and key, what waits for its receiver to be free."""
        return {(ref, one.key): one for ref, one in self._deferred.items()}

    @property
    def is_stuck(self) -> bool:
        """True if something is due that cannot be handed over."""
        return bool(self._ready or self._deferred)

    async def drain(self) -> None:
        """Return when nothing runs and nothing more can be handed over."""
        while self._running:
            await asyncio.wait([running.task for running in self._running.values()])

    def resume(self) -> None:
        """Try again now, whatever pause there is."""
        if self._resume is not None:
            self._resume.cancel()
            self._resume = None
        self.pause_reason = ""
        self._pump()

    async def stop(self, *, releases: bool = True) -> StopReport:
        """Hand over nothing more and wait for nothing. Deliveries go on; what was not begun is queued on disk already.

        Without `releases` nothing is written any more: the root is somebody else's.
        """
        self._is_closed = True
        if self._resume is not None:
            self._resume.cancel()
        left = list(self._running.values())
        for running in left:
            running.task.cancel()
        await asyncio.gather(*(running.task for running in left), return_exceptions=True)
        traces = {running.offer: self._outbox.trace(running.offer) for running in left}
        begun = [offer for offer, trace in traces.items() if trace is not Trace.NEVER_BEGUN]
        abandoned = self._outbox.leave_running(begun) if releases else []
        runs_on = [offer.delivery_id for offer, trace in traces.items() if trace is None or trace.is_under_way]
        return StopReport(tuple(abandoned), tuple(runs_on))

    def _pump(self) -> None:
        while not self._is_closed and not self.pause_reason and (ref := self._next_ready()) is not None:
            if not self._may_hand_over():
                self._is_closed = True
                return
            try:
                offer = self._outbox.next(ref)
            except Exception as error:  # noqa: BLE001 (the border: one item costs itself)
                self._tell(Note("item.failed", {"ref": ref, "reason": explain(error)}))
                continue  # the next cycle offers it again
            self._forget_deferral(ref, None if offer is None else offer.key)
            if offer is not None:
                self._begin(offer, adopted=False)

    def _next_ready(self) -> str | None:
        """Take the item whose turn it is, if there is a slot for it."""
        taken = Counter(self._source_of(ref) for ref, one in self._running.items() if not one.hand_over.is_out_of_sight)
        for source in list(self._ready):
            if taken.total() >= self.limit and (taken[source] or not self.limit):
                continue
            refs = self._ready.pop(source)
            ref = next((ref for ref in refs if ref not in self._running), None)  # else asked again when it has ended
            left = {} if ref is None else {other: None for other in refs if other != ref}
            if left:
                self._ready[source] = left  # behind the others now
            if ref is not None:
                return ref
        return None

    def _begin(self, offer: Offer, *, adopted: bool) -> None:
        hand_over = HandOver(self._outbox, offer, adopted, self._tell, self._pump)
        self._running[offer.ref] = _Running(hand_over, asyncio.create_task(self._serve(hand_over)), time.time())

    async def _serve(self, hand_over: HandOver) -> None:
        ref = hand_over.offer.ref
        try:
            outcome = await hand_over.run()
        except NotNow as error:
            del self._running[ref]
            self._defer(hand_over.offer, str(error))
            self._pump()
            return
        except Exception as error:  # noqa: BLE001 (the border: one item costs itself)
            self._tell(Note("item.failed", {"ref": ref, "reason": explain(error)}))
            del self._running[ref]
            self._pump()  # its own turn comes again with the next cycle
            return
        except BaseException:
            del self._running[ref]
            raise
        if outcome is not None:
            self._note_start(outcome)
        del self._running[ref]
        self._deferred.pop(ref, None)
        self._on_end()
        if outcome is not None and outcome.verdict is Verdict.NEVER_BEGUN:
            asyncio.get_running_loop().call_later(_AGAIN_S, self.offer, ref)
        else:
            self.offer(ref)

    def _defer(self, offer: Offer, reason: str) -> None:
        """Its turn comes again in a moment, if it is still due then. Told once for each reason."""
        before = self._deferred.get(offer.ref)
        is_new = before is None or before.key != offer.key
        if before is None or is_new or before.reason != reason:
            about = {"ref": offer.ref, "key": offer.key, "deliveryId": offer.delivery_id, "attempt": offer.attempt}
            until = timestamp(time.time() + _LOOK_AGAIN_S)
            self._tell(Note("poll.deferred", {**about, "reason": reason, "until": until}))
        since = time.time() if before is None or is_new else before.since
        self._deferred[offer.ref] = Deferral(offer.key, reason, since)
        asyncio.get_running_loop().call_later(_LOOK_AGAIN_S, self.offer, offer.ref)

    def _forget_deferral(self, ref: str, key: str | None) -> None:
        """Another event is next of this item, or none."""
        if (before := self._deferred.get(ref)) is not None and before.key != key and not self._outbox.offers_once:
            del self._deferred[ref]

    def _note_start(self, outcome: Outcome) -> None:
        """A receiver that cannot be started at all would refuse everything: pause, growing, until one starts."""
        if outcome.verdict is not Verdict.UNSTARTABLE:
            self._pause_s = 0.0
        elif not self.pause_reason:
            self._pause_s = min(max(_FIRST_PAUSE_S, 2 * self._pause_s), _LONGEST_PAUSE_S)
            self.pause_reason = outcome.reason
            self._tell(Note("dispatch.paused", {"reason": outcome.reason, "seconds": round(self._pause_s)}))
            self._resume = asyncio.get_running_loop().call_later(self._pause_s, self.resume)
