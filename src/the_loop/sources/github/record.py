"""What a position keeps of one repository, typed: a record of any other shape is no record.

`source.GithubSource` describes it. A half-right one could file items under a wrong name, or hide rows for good.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct


class _Page(Struct):
    path: str
    etag: str
    size: int
    rows: list[tuple[int, str, bool, str | None]]


class _Stream(Struct):
    since: str
    path: str
    etag: str


class _Left(Struct):
    reason: str
    at: float
    pull: bool


class _Record(Struct):
    id: int
    name: str
    filed: str
    pages: list[_Page]
    excluded: list[int]
    left: dict[str, _Left]
    missing: list[int]
    comment: _Stream | None = None
    review_comment: _Stream | None = None


def is_record(value: Any) -> bool:
    """True if all of it has the shape that a look leaves behind."""
    try:
        msgspec.convert(value, _Record)
    except msgspec.ValidationError:
        return False
    return True
