"""What a position keeps of one repository, typed: a record of any other shape is no record.

A half-right one could file items under a wrong name, or hide rows for good. Times are the server's, in epoch
seconds where they are numbers. Validators are opaque (`client.Answer.etag`).
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

Moment = Annotated[float, Meta(ge=0, le=1e11)]


class Row(Struct, frozen=True, array_like=True):
    """One listed item. `updated_at` is a hint that something happened, never the only one."""

    number: int
    id: str
    is_pull: bool
    author: str | None
    updated_at: str


class Asked(Struct, frozen=True):
    """One page of a list as it was asked for; `size` counts the rows of the answer, also those of another form."""

    path: str
    etag: str
    size: Annotated[int, Meta(ge=0)]


class Page(Asked, frozen=True):
    """One page of the item list."""

    rows: list[Row]


class Stream(Struct, frozen=True):
    """One list of comments of the whole repository: what was asked last, and its newest row's `updated_at`.

    `recent` has the ids of the rows about as new as that one: another row of that age came late.
    """

    since: str
    path: str
    etag: str
    newest: str
    recent: list[int] = []


class Left(Struct, frozen=True):
    """An item that ended and is still listened to."""

    reason: str
    at: Moment
    pull: bool
    detail: str = ""  # what GitHub calls its `state_reason`

    @property
    def is_readable(self) -> bool:
        """False for what has no thread here any more."""
        return self.reason not in ("deleted", "transferred")


class Record(Struct, frozen=True):
    """`hot`: until when a pull request's reviews are asked for in each look. `reviews`: their pages.

    `turn` numbers the looks, for what is asked now and then; it may lag a little behind, as an idle look writes
    nothing for it. `away`: validators of the items without their label; `due`: those of them whose turn came, and
    nobody could ask.
    """

    id: int
    name: str
    filed: str
    pages: list[Page] = []
    excluded: list[int] = []
    comment: Stream | None = None
    review_comment: Stream | None = None
    left: dict[int, Left] = {}
    missing: list[int] = []
    away: dict[int, str] = {}
    due: list[int] = []
    hot: dict[int, Moment] = {}
    reviews: dict[int, list[Asked]] = {}
    turn: int = 0

    def rows(self) -> dict[int, Row]:
        """What was listed, of every kind, by number."""
        return {row.number: row for page in self.pages for row in page.rows}


def read_record(value: Any) -> Record | None:
    """The record that a look left behind; None for anything else."""
    try:
        record = msgspec.convert(value, Record, str_keys=True)
    except msgspec.ValidationError:
        return None
    excluded = set(record.excluded)
    has_pulls = any(row.is_pull and number not in excluded for number, row in record.rows().items())
    if record.comment is None or (has_pulls and record.review_comment is None):
        return None  # without its moment a list would be asked from today on
    return record


def write_record(record: Record) -> dict[str, Any]:
    """The record as JSON has it."""
    tree: dict[str, Any] = msgspec.to_builtins(record, str_keys=True)
    return tree
