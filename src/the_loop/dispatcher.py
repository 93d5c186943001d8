"""Hands events over: one at a time per item, a bounded number at once, in the order in which items came up.

It keeps no events of its own. What is next for an item is asked of the outbox at the moment a slot is free, so a word
that withdraws or pauses takes effect up to that moment, and whatever was only waiting is still in its ledger.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from the_loop.core.model import Note, Outcome, Verdict, explain
from the_loop.handover import HandOver
from the_loop.outbox import Outbox
from the_loop.runners.base import Offer, Trace

_FIRST_PAUSE_S: Final = 5.0
_LONGEST_PAUSE_S: Final = 900.0


@dataclass(frozen=True, slots=True)
class StopReport:
    """What a stop found: delivery ids accepted but not begun, and those that go on without us."""

    abandoned: tuple[str, ...]
    left_running: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Running:
    hand_over: HandOver
    task: asyncio.Task[None]

    @property
    def offer(self) -> Offer:
        return self.hand_over.offer


class Dispatcher:
    """`may_hand_over` is asked before each hand-over; once it says no, nothing is handed over any more."""

    def __init__(
        self, outbox: Outbox, *, limit: int, tell: Callable[[Note], None], may_hand_over: Callable[[], bool]
    ) -> None:
        self.limit = limit
        self.pause_reason = ""
        self._outbox = outbox
        self._tell = tell
        self._may_hand_over = may_hand_over
        self._ready: dict[str, None] = {}
        self._running: dict[str, _Running] = {}
        self._is_closed = False
        self._pause_s = 0.0
        self._resume: asyncio.TimerHandle | None = None

    def offer(self, ref: str) -> None:
        """This item may have something to hand over."""
        if not self._is_closed:
            self._ready[ref] = None
            self._pump()

    def adopt(self, offer: Offer) -> None:
        """Wait for a delivery that an earlier poller started. It counts, but waits for no slot: it runs already."""
        self._tell(Note("dispatch.adopted", {"ref": offer.ref, "key": offer.key}))
        self._begin(offer, adopted=True)

    def running(self, ref: str) -> str | None:
        """The key of the item's event that is being delivered."""
        running = self._running.get(ref)
        return running.offer.key if running else None

    @property
    def running_count(self) -> int:
        return len(self._running)

    @property
    def is_stuck(self) -> bool:
        """True if something is due that cannot be handed over."""
        return bool(self._ready)

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
        traces = {running.offer: self._trace(running.offer) for running in left}
        begun = [offer for offer, trace in traces.items() if trace is not Trace.NEVER_BEGUN]
        abandoned = self._outbox.leave_running(begun) if releases else []
        runs_on = [offer.delivery_id for offer, trace in traces.items() if trace is None or trace.is_under_way]
        return StopReport(tuple(abandoned), tuple(runs_on))

    def _trace(self, offer: Offer) -> Trace | None:
        """How far the offer is; None where that cannot be found out."""
        try:
            return self._outbox.inspect(offer).trace
        except OSError:
            return None

    def _pump(self) -> None:
        while self._ready and self._slots_taken < self.limit and not self._is_closed and not self.pause_reason:
            ref = next(iter(self._ready))
            del self._ready[ref]
            if ref in self._running:
                continue  # it is asked again when that has ended
            if not self._may_hand_over():
                self._is_closed = True
                return
            try:
                offer = self._outbox.next(ref)
            except Exception as error:  # noqa: BLE001 (the border: one item costs itself)
                self._tell(Note("item.failed", {"ref": ref, "reason": explain(error)}))
                continue  # the next cycle offers it again
            if offer is not None:
                self._begin(offer, adopted=False)

    @property
    def _slots_taken(self) -> int:
        return sum(not running.hand_over.is_out_of_sight for running in self._running.values())

    def _begin(self, offer: Offer, *, adopted: bool) -> None:
        hand_over = HandOver(self._outbox, offer, adopted, self._tell, self._pump)
        self._running[offer.ref] = _Running(hand_over, asyncio.create_task(self._serve(hand_over)))

    async def _serve(self, hand_over: HandOver) -> None:
        ref = hand_over.offer.ref
        try:
            outcome = await hand_over.run()
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
        self.offer(ref)

    def _note_start(self, outcome: Outcome) -> None:
        """A receiver that cannot be started at all would refuse everything: pause, growing, until one starts."""
        if outcome.verdict is not Verdict.UNSTARTABLE:
            self._pause_s = 0.0
        elif not self.pause_reason:
            self._pause_s = min(max(_FIRST_PAUSE_S, 2 * self._pause_s), _LONGEST_PAUSE_S)
            self.pause_reason = outcome.reason
            self._tell(Note("dispatch.paused", {"reason": outcome.reason, "seconds": round(self._pause_s)}))
            self._resume = asyncio.get_running_loop().call_later(self._pause_s, self.resume)
