"""The state of one poll of one repository, from which the new cursor and the sightings are made.

`listing`, `streams`, `departures` and `reviews` each fill in their part, in this order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Final

from msgspec.structs import replace

from the_loop.core.model import Entry, Kind, Presence, WorkItem
from the_loop.sources.base import Known, Limited, Sighting, SourceError
from the_loop.sources.github.record import Left, Page, Record, Reviews, Row, Stream
from the_loop.sources.github.rows import Repository

_FAILURES_LIMIT: Final = 3  # failed requests in one step
QUESTIONS: Final = 400  # requests about single items in one poll of a source, so that a poll always ends
_TURNS_UNWRITTEN: Final = 4
SWEEP: Final = 30  # items that need a request of their own are requested every so many polls


class Budget:
    """The requests about single items that are left in one poll of a source, for all its repositories."""

    def __init__(self) -> None:
        self.left = QUESTIONS
        self.is_limited = False


@dataclass(slots=True)
class RepositoryPoll:
    """`old`: the cursor it began with. Times are the server's, `now` in epoch seconds."""

    old: Record
    prefix: str  # of its items' refs
    turn: int  # the number of this poll, for requests that are made every SWEEP polls
    known: Mapping[int, Known]  # from the ledgers, by number
    name: str  # its present name
    budget: Budget = field(default_factory=Budget)
    kept: Mapping[int, WorkItem] = field(default_factory=dict)  # whole items that the core does not know yet
    heard: Mapping[int, list[Reviews]] = field(default_factory=dict)  # reviews that were read with a thread since
    now: float = 0.0
    before: Mapping[int, Row] = field(init=False)  # what the poll before listed
    pages: list[Page] = field(default_factory=list)
    rows: dict[int, Row] = field(default_factory=dict)  # all listed items
    fresh: dict[int, WorkItem] = field(default_factory=dict)  # whole items, of pages that changed
    listed: dict[int, WorkItem] = field(default_factory=dict)  # of monitored kinds, in order of the listing
    excluded: list[int] = field(default_factory=list)
    streams: dict[Kind, Stream | None] = field(default_factory=dict)
    entries: dict[int, list[Entry]] = field(default_factory=dict)
    stirred: set[int] = field(default_factory=set)  # pull requests with news that may come with a review
    met: set[str] = field(default_factory=set)  # reviews of which the list of all has a new comment on a line
    is_cut: bool = False  # the listing, as the server returns no more of it
    unlisted: dict[int, tuple[WorkItem, bool]] = field(default_factory=dict)  # known ones behind that; a pull request?
    left: dict[int, Left] = field(default_factory=dict)
    away: dict[int, str] = field(default_factory=dict)  # items that lost their label, with validators
    unlabelled: list[int] = field(default_factory=list)  # those of them that were found so in this poll
    missing: dict[int, float] = field(default_factory=dict)  # when it was not found first
    arrived: Counter[int] = field(default_factory=Counter)  # new comments of each item, in the list of all
    behind: set[int] = field(default_factory=set)  # items with comments that no list has shown
    label: str | None = None  # one that was found to exist, "" if it does not; None: not asked
    due: list[int] = field(default_factory=list)  # items that lost their label and whose request is overdue
    hot: dict[int, float] = field(default_factory=dict)
    reviews: dict[int, list[Reviews]] = field(default_factory=dict)
    faults: list[SourceError] = field(default_factory=list)
    odd: dict[str, list[str]] = field(default_factory=dict)  # by path: rows that were read and are not as expected
    confirmed: Repository | None = None  # the response under the name, if it was requested
    is_unsure: bool = False  # rows may be missing since an unknown time
    is_doubtful: bool = False  # rows may be of another repository

    def __post_init__(self) -> None:
        self.before = self.old.rows()

    def in_any_order(self, numbers: Iterable[int]) -> list[int]:
        """`numbers` in an order that differs in each poll, so that no item is always behind ones that fail."""
        ordered = sorted(numbers)
        Random(self.turn).shuffle(ordered)
        return ordered

    def ref(self, number: int) -> str:
        return f"{self.prefix}#{number}"

    @property
    def pulls(self) -> list[int]:
        """The monitored pull requests, in the order of the listing."""
        return [number for number in self.listed if self.rows[number].is_pull]

    def add(self, number: int, entries: Iterable[Entry]) -> None:
        """Add new entries of an item."""
        self.entries.setdefault(number, []).extend(entries)

    def record(self, polls_before: int) -> Record:
        """The cursor after this poll. `polls_before`: number of earlier polls in this process.

        `turn` is written along with any other change. It is also written alone, because short runs would otherwise
        always begin with the same turn; a run that has completed a sweep does not write it alone any more.
        """
        record = Record(
            id=self.old.id,
            name=self.name,
            filed=self.old.filed,
            pages=self.pages,
            excluded=self.excluded,
            comment=self.streams.get(Kind.COMMENT, self.old.comment),
            review_comment=self.streams.get(Kind.REVIEW_COMMENT, self.old.review_comment),
            left=self.left,
            missing=dict(sorted(self.missing.items())),
            hot=self.hot,
            reviews=self.reviews,
            due=sorted(self.due),
            turn=self.old.turn,
            away=self.away,
            label=self.old.label if self.label is None else self.label,
        )
        takes_turns = bool(self.pulls or self.away)
        is_late = polls_before < _TURNS_UNWRITTEN or self.turn - self.old.turn >= _TURNS_UNWRITTEN
        is_to_be_kept = takes_turns and polls_before < SWEEP and is_late
        return replace(record, turn=self.turn) if is_to_be_kept or record != self.old else record

    def sightings(self, linger_s: float) -> Iterator[Sighting]:
        """The sightings of this poll. `linger_s`: seconds in which last comments of an ended item may arrive."""
        before = self.before.keys() - set(self.old.excluded)
        for number, item in self.listed.items():
            # comments may have been written since on an item that was not listed before: it needs a full re-read
            rows = self.entries.get(number, ())
            is_owed = self.is_unsure or number not in before or number in self.behind
            yield Sighting(item.ref, Presence.LISTED, item, rows=rows, is_owed=is_owed)
        for number, (item, _) in self.unlisted.items():
            # it may not have been found in each poll: what is new is looked for in its thread
            rows = self.entries.get(number, ())
            yield Sighting(item.ref, Presence.LISTED, item, rows=rows, is_owed=bool(rows) or self.is_unsure)
        for number in self.unlabelled:
            yield Sighting(self.ref(number), Presence.AWAY)
        for number, left in self.left.items():
            presence = Presence.GONE if self.now - left.at >= linger_s else Presence.LEFT
            rows = self.entries.get(number, ())
            # rows of a poll in which it was neither listed nor known to have ended were not reported
            is_owed = number not in before and number not in self.old.left
            yield Sighting(
                self.ref(number), presence, reason=left.reason, detail=left.detail, rows=rows, is_owed=is_owed
            )


class Step:
    """A part of a poll that requests items one by one: counts its requests and failures."""

    def __init__(self, poll: RepositoryPoll) -> None:
        self._poll = poll
        self._failures = 0

    def may_ask(self) -> bool:
        """False once the other items have to wait: after a rate limit, too many requests, or too many failures."""
        budget = self._poll.budget
        return budget.left > 0 and not budget.is_limited and self._failures < _FAILURES_LIMIT

    def ask(self) -> None:
        """Count one request."""
        self._poll.budget.left -= 1

    def fail(self, fault: SourceError) -> None:
        """Record a failed request: nothing changes for its item, and the fault is reported."""
        self._poll.faults.append(fault)
        self._poll.budget.is_limited |= isinstance(fault, Limited)
        self._failures += 1
