"""What the core asks of a runner, and what it gives one to work with.

Provisional until 1.0. The rules of a runner, beside what the signatures say:

**One start for each number.** Before `deliver` is called, `<stem>.payload.json` is on disk and says the offer's
number as `offer`. For one delivery id and number the receiver is started once at most, however often and by whichever
process `deliver` is called, and whatever is killed in between. A payload of another number is not this offer's:
nothing is begun. Where the same number was offered before, `deliver` waits for that start and returns its outcome.
An item's events come one after the other; several items at the same time.

**What is known of an offer** is asked with `inspect`, by this process or a later one, before, while and after it is
delivered. The answer is one of these, and never a guess:

    never begun     no receiver saw it, and none will under this number unless `deliver` is called
    running         it was accepted, or runs: it is waited for (`adopt`), also over stops and kills of the poller
    done            its outcome, the same for as long as its files are there
    unknown         it was begun, and how it ended cannot be told any more

An offer counts as accepted from the moment at which it will be begun whatever becomes of the poller. Marks of another
number say nothing of this one. An answer that cannot be found out at this moment is an OSError: it is asked again.

**Outcomes.** Refused is the receiver's own word, and the only verdict that spends an attempt; later is its wish;
unstartable holds back everything, as the next event would fare no better. An exception of `deliver` counts as
unstartable, so none may leave it once the receiver may have begun; where nothing was begun, unstartable is also its
answer; "never begun" only where another number will do better: the event is offered again within a second.

**Not now.** `deliver` raises NotNow where nothing was begun, and the receiver is to be looked at again in a moment
under the same number: somebody uses it. `adopt`, and `deliver` of what was begun, raise it for a receiver that is slow
to take what it was given. It is not an outcome, and takes no slot from others; both are called again until they end.

**Cancelling** `deliver` or `adopt` ends the wait and leaves the delivery alone. A delivery that was not accepted
by then is never begun: a start is whole, or is not at all.

**Ends of sessions.** A runner that keeps sessions of its own says so (`keeps_sessions = True`). It gets each `close`
then, also where `session.kinds` leaves it out, ends the session with it, and in that case says nothing there.

**Files.** A runner may keep `<stem>.lock`, `<stem>.started.json` and `<stem>.outcome.json`, with the number they
belong to in them; they are removed with the payload, which it never writes, once the event is settled. Anything else
is in `RunnerSite.folder`, and its own to clear away.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from the_loop.core.model import Note, Outcome, delivery_id


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


class NotNow(Exception):
    """The receiver cannot be given anything at this moment, or has not read yet what it was given; says why."""


@dataclass(frozen=True, slots=True)
class Deferral:
    """An event whose receiver cannot be given anything at this moment; it is looked at again and again."""

    key: str
    reason: str
    since: float  # epoch seconds


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


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerSite:
    """What a runner may use beside its own section."""

    root: Path  # the state root
    folder: Path  # for files of its own; not made before the runner makes it, 0700 and with its parents
    environ: Mapping[str, str]  # the poller's: with its secrets, which no receiver may see
    limit_s: int  # how long a delivery may take
    tell: Callable[[Note], None]  # of events in `eventlog.CATALOG`


class Sessions(Protocol):
    """What else a runner can do that has a session for each item, and says so by `keeps_sessions`."""

    async def end(self, ref: str) -> bool:
        """End the session of this item; False if there is none. Raises OSError where that cannot be found out."""

    def insist(self, ref: str) -> None:
        """Give the session the next event of this item, whatever its terminal shows."""


class Runner(Protocol):
    """Starts the operator's command, or writes to a session. The module's docstring has the rules."""

    async def deliver(self, offer: Offer) -> Outcome:
        """Start this offer, unless it was started before, and wait for what becomes of it."""

    async def adopt(self, offer: Offer) -> Outcome:
        """Wait for an offer that an earlier poller started. Starts nothing."""

    def inspect(self, offer: Offer) -> Status:
        """What became of this offer, without waiting. Raises OSError where that cannot be found out."""

    async def close(self) -> None:
        """Let go of connections; deliveries go on, and a start that is under way may still happen."""
