"""What the cycle asks of a source, and how a source says that it could not find out.

    SourceError             this round failed: nothing is known, nothing changes
      Unanswered            the other side itself is in trouble
      Limited               a limit named the moment before which nobody asks again

A source has no side effects: `look` and `thread` may be cancelled at any await and asked again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, runtime_checkable

from the_loop.core.model import Entry, LoopError, Note, Presence, WorkItem

_SHOWN: Final = 3  # faults in one sentence


class SourceError(LoopError):
    """The source, or a part of it, could not be asked."""


def in_few_words(faults: Iterable[SourceError]) -> str:
    """Some of them in one sentence, in an order that does not change while they do not."""
    texts = sorted({str(fault) for fault in faults})
    more = f"; and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
    return "; ".join(texts[:_SHOWN]) + more


class Unanswered(SourceError):
    """The other side gave no answer, or only that it cannot; others may get none either."""


class Limited(SourceError):
    """A limit is in force for `wait_s` more seconds."""

    def __init__(self, problem: str, wait_s: float) -> None:
        super().__init__(problem)
        self.wait_s = wait_s


@dataclass(frozen=True, slots=True)
class Sighting:
    """One item in one answer: where it stands, and the rows of it that may be new."""

    ref: str
    presence: Presence
    item: WorkItem | None = None  # with LISTED; title and body may be missing where nothing changed
    reason: str = ""  # why it left: closed, merged, deleted, transferred
    detail: str = ""  # more of that, in the source's own word
    rows: Sequence[Entry] = ()
    is_owed: bool = False  # there was no position for it: the rows are not all that may be new


@dataclass(frozen=True, slots=True)
class Thread:
    """One item asked for by itself: as it is now (None: it is not there any more), and all its entries."""

    item: WorkItem | None
    entries: Sequence[Entry]


@dataclass(frozen=True, slots=True)
class Listing:
    """One look at a source.

    `position` is where the next look may start from once all of this is written; of a part that could not be read
    it is the old one. `faults` name those parts. `items` counts what is listed.
    """

    sightings: Sequence[Sighting]
    cursor: Mapping[str, Any]
    items: int
    faults: Sequence[SourceError] = ()
    notes: Sequence[Note] = ()
    is_short: bool = False  # what may be asked of it is nearly used up, and kept for the items that are known


@dataclass(frozen=True, slots=True)
class Known:
    """What the ledgers say of an item of this source."""

    is_open: bool  # its end would mean something
    is_away: bool
    url: str
    id: str = ""  # as the source told it; nothing where it never did


@dataclass(frozen=True, slots=True)
class GiveUp:
    """One event that was given up, for a notice about it."""

    ref: str
    key: str
    url: str  # of the item
    attempts: int


@runtime_checkable
class Reporting(Protocol):
    """A source on whose items a notice can be written."""

    async def report(self, report: GiveUp) -> str:
        """Write the notice. Returns why that is not allowed, nothing if it is written.

        Raises Limited, where nothing was written, and SourceError, where that is not known.
        """

    async def is_reported(self, report: GiveUp) -> bool:
        """True if the item shows the notice. Raises SourceError."""


class Source(Protocol):
    """One entry of `polling.sources`."""

    name: str
    provider: str
    folds_case: bool  # authors' names differing only in case are the same person

    def owns(self, ref: str) -> bool:
        """True if the item is one of this source's as configured."""

    async def poll(self, cursor: Mapping[str, Any] | None, known: Mapping[str, Known]) -> Listing:
        """List the items, their new rows, and what became of the known ones that are missing. Raises SourceError."""

    async def thread(self, ref: str) -> Thread:
        """The item and its whole thread. Raises SourceError."""

    async def close(self) -> None:
        """Let go of connections."""
