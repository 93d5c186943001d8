"""What the dispatcher asks of a runner: start one hand-over, look what became of an earlier one, wait for it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from the_loop.core.model import Outcome, delivery_id


@dataclass(frozen=True, slots=True)
class Offer:
    """One hand-over of one event of the item `ref`. `stem` plus `.payload.json` is what the receiver reads.

    `number` rises with every hand-over of the event that had an outcome; `attempt` only with refusals.
    """

    ref: str
    key: str
    stem: Path
    number: int
    attempt: int

    @property
    def delivery_id(self) -> str:
        return delivery_id(self.ref, self.key)


class Trace(StrEnum):
    """How far an offer is."""

    NEVER_BEGUN = "never-begun"  # and it will not begin any more
    ACCEPTED = "accepted"  # it will begin, or is beginning
    RUNNING = "running"
    DONE = "done"
    UNKNOWN = "unknown"  # begun, and its end was not recorded

    @property
    def is_under_way(self) -> bool:
        """True while nothing can be concluded."""
        return self in (Trace.ACCEPTED, Trace.RUNNING)


@dataclass(frozen=True, slots=True)
class Status:
    trace: Trace
    outcome: Outcome | None = None  # with DONE


class Runner(Protocol):
    """Starts the operator's command, or writes to a session. Cancelling a wait leaves the delivery alone."""

    async def deliver(self, offer: Offer) -> Outcome:
        """Start this offer once and wait for what becomes of it. The start itself cannot be cancelled half way."""

    async def adopt(self, offer: Offer) -> Outcome:
        """Wait for an offer that an earlier poller started."""

    def inspect(self, offer: Offer) -> Status:
        """What became of this offer, without waiting. Raises OSError where that cannot be found out."""

    async def close(self) -> None:
        """Let go of connections; deliveries go on, and a start that is under way may still happen."""
