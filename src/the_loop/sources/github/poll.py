"""One repository in one look: what was found so far, what the position will say of it, and what the core is told.

`listing`, `streams`, `departures` and `reviews` each fill in their part, in this order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Final

from msgspec.structs import replace

from the_loop.core.model import Entry, Kind, Presence, WorkItem
from the_loop.sources.base import Known, Limited, Sighting, SourceError
from the_loop.sources.github.record import Asked, Left, Page, Record, Row, Stream
from the_loop.sources.github.rows import Repository

_PATIENCE: Final = 3  # questions in vain
QUESTIONS: Final = 400  # about single items in one look at a source: nobody sees the end of one that asks for ever
_TURNS_UNWRITTEN: Final = 4
SWEEP: Final = 30  # what only a question of its own can tell is asked every so many looks


class Budget:
    """What may still be asked about single items in one look at a source, whichever repository they are in."""

    def __init__(self) -> None:
        self.left = QUESTIONS
        self.is_limited = False


@dataclass(slots=True)
class RepositoryPoll:
    """`old` is the position it began with; times are the server's (`now`: epoch seconds)."""

    old: Record
    prefix: str  # of its items' refs
    turn: int  # the number of this look, for what is asked every SWEEP looks
    known: Mapping[int, Known]  # what the ledgers say, by number
    name: str  # its present one
    budget: Budget = field(default_factory=Budget)
    kept: Mapping[int, WorkItem] = field(default_factory=dict)  # whole items of an earlier look, not taken up yet
    heard: Mapping[int, list[Asked]] = field(default_factory=dict)  # reviews that were read with a thread since
    now: float = 0.0
    before: Mapping[int, Row] = field(init=False)  # what was listed then
    pages: list[Page] = field(default_factory=list)
    rows: dict[int, Row] = field(default_factory=dict)  # all that the listing shows
    fresh: dict[int, WorkItem] = field(default_factory=dict)  # of pages that changed: the items whole
    listed: dict[int, WorkItem] = field(default_factory=dict)  # of monitored kinds, in order
    excluded: list[int] = field(default_factory=list)
    streams: dict[Kind, Stream | None] = field(default_factory=dict)
    entries: dict[int, list[Entry]] = field(default_factory=dict)
    stirred: set[int] = field(default_factory=set)  # pull requests with news that may come with a review
    left: dict[int, Left] = field(default_factory=dict)
    away: dict[int, str] = field(default_factory=dict)  # the items without their label, with validators
    unlabelled: list[int] = field(default_factory=list)  # of them those that were found so in this look
    missing: list[int] = field(default_factory=list)
    due: list[int] = field(default_factory=list)  # items without their label whose turn came, and nobody could ask
    hot: dict[int, float] = field(default_factory=dict)
    reviews: dict[int, list[Asked]] = field(default_factory=dict)
    faults: list[SourceError] = field(default_factory=list)
    confirmed: Repository | None = None  # what answered under the name, if it was asked
    is_unsure: bool = False  # nobody knows since when rows are missing
    is_doubtful: bool = False  # rows may be of another repository

    def __post_init__(self) -> None:
        self.before = self.old.rows()

    def in_any_order(self, numbers: Iterable[int]) -> list[int]:
        """These in an order that is another one in each look: nobody is always behind one that fails, or too many."""
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
        self.entries.setdefault(number, []).extend(entries)

    def record(self, looks_before: int) -> Record:
        """The position after this look; `looks_before`: of this process.

        The turn is kept with every change, and of its own where short lives would otherwise begin at the same one
        again and again; a life in which everything had its turn writes nothing for it any more.
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
            missing=sorted(self.missing),
            hot=self.hot,
            reviews=self.reviews,
            due=sorted(self.due),
            turn=self.old.turn,
            away=self.away,
        )
        takes_turns = bool(self.pulls or self.away)
        is_late = looks_before < _TURNS_UNWRITTEN or self.turn - self.old.turn >= _TURNS_UNWRITTEN
        is_to_be_kept = takes_turns and looks_before < SWEEP and is_late
        return replace(record, turn=self.turn) if is_to_be_kept or record != self.old else record

    def sightings(self, linger_s: float) -> Iterator[Sighting]:
        """What the core is told, item by item."""
        before = self.before.keys() - set(self.old.excluded)
        for number, item in self.listed.items():
            # whoever was not in the last listing may have been written on since: those rows were nobody's
            rows = self.entries.get(number, ())
            is_owed = self.is_unsure or number not in before
            yield Sighting(item.ref, Presence.LISTED, item, rows=rows, is_owed=is_owed)
        for number in self.unlabelled:
            yield Sighting(self.ref(number), Presence.AWAY)
        for number, left in self.left.items():
            presence = Presence.GONE if self.now - left.at >= linger_s else Presence.LEFT
            rows = self.entries.get(number, ())
            # a look in which it was neither listed nor known to have ended gave its rows to nobody
            is_owed = number not in before and number not in self.old.left
            yield Sighting(
                self.ref(number), presence, reason=left.reason, detail=left.detail, rows=rows, is_owed=is_owed
            )


class Step:
    """A part of a look that asks about items one by one: what it may still ask, and what was in vain."""

    def __init__(self, poll: RepositoryPoll) -> None:
        self._poll = poll
        self._in_vain = 0

    def may_ask(self) -> bool:
        """False once the other items have to wait: for a limit, or after many questions, or some in vain."""
        budget = self._poll.budget
        return budget.left > 0 and not budget.is_limited and self._in_vain < _PATIENCE

    def ask(self) -> None:
        self._poll.budget.left -= 1

    def fail(self, fault: SourceError) -> None:
        """Nothing changes for this one, and it is shown."""
        self._poll.faults.append(fault)
        self._poll.budget.is_limited |= isinstance(fault, Limited)
        self._in_vain += 1
