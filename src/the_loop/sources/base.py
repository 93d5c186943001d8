"""What the core asks of a source, what it gives one to work with, and how a source says that it could not find out.

    SourceError             this poll failed: nothing is known, nothing changes
      Unanswered            the other side itself is in trouble
        Silent              it let a whole time limit pass
      Limited               a limit named the moment before which nothing is asked again

Provisional until 1.0. The rules of a source, beside what the signatures say:

**Polls.** One call at a time for each source: `poll`, then `thread` for items of the listing it returned, from the
same object, then `poll` again. `thread` is never asked for anything else, so a source may remember of its last poll
where an item is. A poll may take as long as it has to (waiting for news is a poll that is not over yet), must not
block the event loop, and can be cancelled at any await, as can `thread`. It has no side effects: cancelled or failed,
the next one with the same cursor finds all that this one would have.

**Refs** are `<provider>:<place>/<name>`, as in `github:octo/repo#15` and `directory:inbox/door`: the provider's own
name, a place that no other source of the configuration has (`SourceSite.name`, or what belongs to one source only),
and a name within it. Printable, and equal for ever: a ref is the item's identity on disk and part of all its delivery
ids. `owns` looks at the text alone, before the first poll too, and is also asked about delivery ids, which are a ref,
a slash, and a key.

**Items and entries.** `WorkItem.id` is the same in each sighting of a ref; another one means another item, which is
held. An entry's id is unique within item and kind, printable, without a slash, and the same over restarts and edits:
entries are told apart by it alone. Times are ISO 8601 in UTC, all of one form: entries of one answer are put in their
order. Texts have passed `model.clean`; one over `ENTRY_LIMIT` is left out and `truncated`. An author is the account
that the other side vouches for, or None; a name that anybody can write into a text is not an author.

**Cursors** are JSON objects of the source's own making. A cursor is stored once everything in its listing is, and
comes back as JSON makes it, in this life or a later one; one that the source cannot read any more may raise anything
but SourceError, and is forgotten. Without a cursor everything that is open is listed, and the core reads each thread
whole; with one, `rows` has at least each entry since. An entry may be shown again, under its id.

**Partial failure.** A poll that learned nothing raises SourceError and nothing else. Where parts of a source fail by
themselves, the others are listed, each failed part is one of `Listing.faults`, and its part of the cursor is the old
one. An item that cannot be read is neither listed nor missing.

**Departures.** An item that is not listed stays as it is. `LEFT`, `GONE` and `AWAY` are told only with proof: the
other side says so, or a complete listing of the same place lacks it. A missing answer is not a proof. They are told
again in each poll for as long as `known` says that the item is open: `LEFT` while last words may come, then `GONE`.

**More than polling.** Each further ability has a protocol of its own, and a source without it is complete:
`Reporting` writes notices, `Metered` counts requests, `Waiting` has polls that wait for news. Answering will be of this
kind. A place that only one poller may ask at a time is claimed by its source, which says in `Listing.held_by` that
another one has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

from the_loop.core.model import Entry, LoopError, Note, Presence, WorkItem

if TYPE_CHECKING:
    from the_loop.sources.limits import RateLimiters

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


class Silent(Unanswered):
    """The other side let a whole time limit pass: nothing more is asked of it in this poll."""


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
    """One item asked for by itself: as it is now (None: it is not there any more), and all its entries.

    `gap`: why some entries may be missing. These count, and the item is asked for again.
    """

    item: WorkItem | None
    entries: Sequence[Entry]
    omitted: int = 0  # entries that there were, and that nobody keeps any more
    gap: str = ""


@dataclass(frozen=True, slots=True)
class Listing:
    """One poll of a source.

    `cursor` is where the next poll may start from once all of this is written; of a part that could not be read
    it is the old one. `faults` name those parts. `items` counts what is listed.
    """

    sightings: Sequence[Sighting]
    cursor: Mapping[str, Any]
    items: int
    faults: Sequence[SourceError] = ()
    notes: Sequence[Note] = ()
    held_by: str = ""  # another poller that this source's place belongs to at present: it was not asked for news
    is_short: bool = False  # what may be asked of it is nearly used up, and kept for the items that are known
    overlooked: Mapping[str, str] = field(default_factory=dict)  # what may not be read, and why: no fault of ours


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


@dataclass(frozen=True, slots=True)
class Usage:
    """What a source asked for since it was made, and what is left of what it may ask for; None: not known."""

    requests: int
    points_left: float | None = None  # as the last response said
    points_limit: float | None = None  # of these, per period of the server


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSite:
    """What a source may use beside its own section. A source that is made anew by a reload gets a new one."""

    name: str  # the source's own, unique in the configuration
    root: Path  # the state root, where relative paths of the section start
    folder: Path  # for files of its own; not made before the source makes it, 0700 and with its parents
    environ: Mapping[str, str]
    authorized: frozenset[str]  # the accounts that are listened to; the core drops all others by itself
    linger_s: float  # how long after its end the last words of an item are waited for
    limiters: RateLimiters  # shared by all sources: one for each API and token
    tell: Callable[[Note], None] = lambda _note: None  # tells an event that is in the catalog
    takes_over: bool = False  # the operator said so: a claim that another poller holds is asked for
    waits: bool = True  # a poll may wait for news; not where there is to be one only
    cursor: Mapping[str, Any] | None = None  # the one that the first poll will get
    wait_left_s: float = 0.0  # of a limit that an earlier life met, which was to last `wait_s`
    wait_s: float = 0.0


@runtime_checkable
class Reporting(Protocol):
    """A source on whose items a notice can be written."""

    async def report(self, report: GiveUp) -> str:
        """Write the notice. Returns why that is not allowed, nothing if it is written.

        Raises Limited, where nothing was written, and SourceError, where that is not known.
        """

    async def is_reported(self, report: GiveUp) -> bool:
        """True if the item shows the notice. Raises SourceError."""


@runtime_checkable
class Waiting(Protocol):
    """A source whose polls may wait for news for long."""

    def look_up(self) -> None:
        """Have the poll that waits now, if one does, end with what there is. Nothing is asked again for that."""


@runtime_checkable
class Metered(Protocol):
    """A source that counts its requests, for metrics."""

    def usage(self) -> Usage:
        """Asked with each heartbeat: answers at once."""


@runtime_checkable
class Labelled(Protocol):
    """A source whose labels anybody may have set. Labels of others count as they are."""

    async def labelled_by(self, ref: str) -> Mapping[str, tuple[str | None, int | None]]:
        """Who set each label of an item last, by its name in lower case: login and number, as in `Entry`.

        Asked after `thread`, once for each start of an item with a label that has a receiver. Raises SourceError.
        """


class Source(Protocol):
    """One entry of `polling.sources`. The module's docstring has the rules."""

    name: str
    provider: str
    folds_case: bool  # authors' names differing only in case are the same person

    def owns(self, ref: str) -> bool:
        """True if the item, or the delivery of one, is one of this source's as configured. Never raises."""

    async def poll(self, cursor: Mapping[str, Any] | None, known: Mapping[str, Known]) -> Listing:
        """List the items, their new rows, and what became of the known ones that are missing. Raises SourceError.

        `known` has every item of this source that has a ledger, by ref. Iterating leaves out those that ended, and
        are not to be told of any more; looking one up finds it.
        """

    async def thread(self, ref: str) -> Thread:
        """The item and its whole thread. Raises SourceError. `ref` was in the listing of the last poll."""

    async def close(self) -> None:
        """Let go of connections, whatever happened before; also of a source that was never polled."""
