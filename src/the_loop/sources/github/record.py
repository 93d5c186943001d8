"""The part of a cursor for one repository, typed; a malformed record is rejected as a whole.

A partly valid one could give items a wrong ref, or skip rows forever. Times are the server's; numbers are epoch
seconds. Validators are opaque (`client.Answer.etag`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

Moment = Annotated[float, Meta(ge=0, le=1e11)]


class Row(Struct, frozen=True, array_like=True):
    """One listed item. `updated_at` is one hint among others that something happened."""

    number: int
    id: str
    is_pull: bool
    author: str | None
    updated_at: str
    author_id: int | None = None
    comments: int | None = None  # how many it has, review comments left out


class Asked(Struct, frozen=True):
    """One page of a list as it was requested; `size`: rows in the response, also malformed ones."""

    path: str
    etag: str
    size: Annotated[int, Meta(ge=0)]


class Reviews(Asked, frozen=True):
    """One page of the reviews of a pull request, with their ids; None if an earlier version read it."""

    ids: list[int] | None = None


class Page(Asked, frozen=True):
    """One page of the item list. `is_counted`: its rows say how many comments they have, if the server does."""

    rows: list[Row]
    is_counted: bool = False


class Stream(Struct, frozen=True):
    """One list of comments of the whole repository: its last request, and the `updated_at` of its newest row.

    `recent` has the ids of rows of about that age: any other row of that age arrived late.
    """

    since: str
    path: str
    etag: str
    newest: str
    recent: list[int] = []


class Left(Struct, frozen=True):
    """An item that ended, during the time in which last comments may arrive."""

    reason: str
    at: Moment
    pull: bool
    detail: str = ""  # GitHub's `state_reason`

    @property
    def is_readable(self) -> bool:
        """False if its thread can no longer be read here."""
        return self.reason not in ("deleted", "transferred")


class Record(Struct, frozen=True):
    """`hot`: until when a pull request's reviews are requested in each poll. `reviews`: their pages.

    `missing`: when items were not found first. `turn` numbers the polls, for requests that are made every SWEEP polls;
    it may lag behind, since an idle poll does not write it. `away`: validators of the items that lost their label;
    `due`: those of them whose request is overdue. `label`: one that exists there.
    """

    id: int
    name: str
    filed: str
    pages: list[Page] = []
    excluded: list[int] = []
    comment: Stream | None = None
    review_comment: Stream | None = None
    left: dict[int, Left] = {}
    missing: dict[int, Moment] = {}
    away: dict[int, str] = {}
    due: list[int] = []
    hot: dict[int, Moment] = {}
    reviews: dict[int, list[Reviews]] = {}
    turn: int = 0
    label: str = ""

    def rows(self) -> dict[int, Row]:
        """The listed items of both kinds, by number."""
        return {row.number: row for page in self.pages for row in page.rows}


def read_record(value: Any) -> Record | None:
    """The record in a cursor; None if it is malformed."""
    if isinstance(value, Mapping) and isinstance(value.get("missing"), list):
        value = {**value, "missing": {}}  # as 0.1.0 wrote it, without times: they are asked about twice again
    try:
        record = msgspec.convert(value, Record, str_keys=True)
    except msgspec.ValidationError:
        return None
    excluded = set(record.excluded)
    has_pulls = any(row.is_pull and number not in excluded for number, row in record.rows().items())
    if record.comment is None or (has_pulls and record.review_comment is None):
        return None  # without a stream its list would be read from now on only
    return record


def write_record(record: Record) -> dict[str, Any]:
    """The record as a JSON object."""
    tree: dict[str, Any] = msgspec.to_builtins(record, str_keys=True)
    return tree
