"""One repository in one look: what was found so far, what the position will say of it, and what the core is told.

`listing`, `streams`, `departures` and `reviews` each fill in their part, in this order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from msgspec.structs import replace

from the_loop.model import Entry, Kind, Presence, WorkItem
from the_loop.sources.base import Known, Limited, Sighting, SourceError, Unanswered
from the_loop.sources.github.record import Asked, Left, Page, Record, Row, Stream

_PATIENCE: Final = 3  # questions without an answer
QUESTIONS: Final = 400  # about single items in one look: what takes longer is no look, and nobody sees it end
_TURNS_UNWRITTEN: Final = 4
SWEEP: Final = 30  # what only a question of its own can tell is asked every so many looks


@dataclass(slots=True)
class Look:
    """`old` is the position it began with; times are the server's (`now`: epoch seconds)."""

    old: Record
    prefix: str  # of its items' refs
    turn: int  # the number of this look, for what is asked every SWEEP looks
    known: Mapping[int, Known]  # what the ledgers say, by number
    name: str  # its present one
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
    hot: dict[int, float] = field(default_factory=dict)
    reviews: dict[int, list[Asked]] = field(default_factory=dict)
    faults: list[SourceError] = field(default_factory=list)
    questions: int = 0  # asked about single items
    is_unsure: bool = False  # nobody knows since when rows are missing
    is_doubtful: bool = False  # rows may be of another repository

    def __post_init__(self) -> None:
        self.before = self.old.rows()

    @property
    def may_ask(self) -> bool:
        """False once the other single items have to wait: for a limit, or after many questions, or some in vain."""
        unanswered = sum(isinstance(fault, Unanswered) for fault in self.faults)
        is_limited = any(isinstance(fault, Limited) for fault in self.faults)
        return self.questions < QUESTIONS and unanswered < _PATIENCE and not is_limited

    def in_turn(self, numbers: Iterable[int]) -> list[int]:
        """These in a circle that each look enters elsewhere: nobody is always behind one that fails, or too many."""
        ordered = sorted(numbers)
        step = 1 if len(ordered) <= QUESTIONS else QUESTIONS - 1
        first = self.turn * step % len(ordered) if ordered else 0
        return ordered[first:] + ordered[:first]

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
            missing=self.missing,
            hot=self.hot,
            reviews=self.reviews,
            turn=self.old.turn,
            away=self.away,
        )
        takes_turns = bool(self.pulls or self.away)
        is_late = looks_before == 0 or self.turn - self.old.turn >= _TURNS_UNWRITTEN
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
