"""The rows of GitHub's responses that we read, typed; a malformed row is skipped, the others are read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct

from the_loop.core.model import ENTRY_LIMIT, Entry, Kind, WorkItem, clean
from the_loop.sources.base import SourceError


class User(Struct, frozen=True):
    login: str
    id: int | None = None


class Label(Struct, frozen=True):
    name: str | None = None


class PullRequest(Struct, frozen=True):
    merged_at: str | None = None


class Issue(Struct, frozen=True):
    """A row of `/issues`: an issue, or a pull request if `pull_request` is there."""

    number: int
    node_id: str
    title: str
    html_url: str
    created_at: str
    state: str
    updated_at: str | None = None
    state_reason: str | None = None
    user: User | None = None
    body: str | None = None
    labels: list[Label | str] = []
    pull_request: PullRequest | None = None
    comments: int | None = None  # how many it has, review comments left out

    @property
    def login(self) -> str | None:
        return _login(self.user)

    @property
    def login_id(self) -> int | None:
        return self.user.id if self.user else None

    @property
    def label_names(self) -> tuple[str, ...]:
        return tuple(label if isinstance(label, str) else label.name or "" for label in self.labels)

    def has_label(self, name: str) -> bool:
        return name.casefold() in (label.casefold() for label in self.label_names)


class Change(Struct, frozen=True):
    """A row of `/issues/{n}/timeline`, as far as it is about labels."""

    event: str | None = None
    actor: User | None = None
    label: Label | None = None


class Comment(Struct, frozen=True):
    """A row of `/issues/comments` or `/pulls/comments`; one of the two urls names its item."""

    id: int
    html_url: str
    created_at: str
    updated_at: str
    user: User | None = None
    body: str | None = None
    issue_url: str | None = None
    pull_request_url: str | None = None
    path: str | None = None  # of a comment on a line
    line: int | None = None
    pull_request_review_id: int | None = None

    @property
    def group(self) -> str:
        """The review that it is a part of."""
        return f"review:{self.pull_request_review_id}" if self.pull_request_review_id else ""

    @property
    def about(self) -> Mapping[str, str | int]:
        """Its place in the change, as far as that still exists."""
        place = {"path": clean(self.path) if self.path else None, "line": self.line}
        return {name: value for name, value in place.items() if value is not None}

    @property
    def number(self) -> int:
        """The item's number; 0 if the url does not end in one."""
        found = _NUMBER.search(self.issue_url or self.pull_request_url or "")
        return int(found[1]) if found else 0


class Review(Struct, frozen=True):
    """A row of `/pulls/{n}/reviews`."""

    id: int
    html_url: str
    state: str
    submitted_at: str | None = None
    user: User | None = None
    body: str | None = None

    @property
    def created_at(self) -> str:
        return self.submitted_at or ""

    @property
    def group(self) -> str:
        return f"review:{self.id}"

    @property
    def about(self) -> Mapping[str, str | int]:
        return {"verdict": clean(self.state).lower()}

    @property
    def is_pending(self) -> bool:
        return self.state == "PENDING"

    @property
    def says_something(self) -> bool:
        """False for a pending review, and for one that only groups comments on lines."""
        return not self.is_pending and (self.state != "COMMENTED" or bool((self.body or "").strip()))


class Repository(Struct, frozen=True):
    id: int
    full_name: str
    has_issues: bool | None = None  # False while they are disabled


T = TypeVar("T", bound=Struct)
_NUMBER: Final = re.compile(r"/([0-9]{1,15})\Z")


def one(value: Any, kind: type[T], path: str) -> T:
    """`value` as a `kind`. Raises SourceError."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise SourceError(f"{path}: unexpected response: {error}") from error


def many(value: Any, kind: type[T], path: str, odd: list[str] | None = None) -> list[T]:
    """The rows of a list that are of this kind; the others are described in `odd`. Raises SourceError for no list."""
    if not isinstance(value, list):
        raise SourceError(f"{path}: unexpected response: not a list")
    rows = []
    for row in value:
        try:
            rows.append(msgspec.convert(row, kind))
        except msgspec.ValidationError as error:
            if odd is not None:
                odd.append(f"{_named(row)} is not as expected: {clean(str(error))[:200]}")
    return rows


def _named(row: Any) -> str:
    found = row if isinstance(row, dict) else {}
    if isinstance(found.get("number"), int):
        return f"#{found['number']}"
    return f"row {found['id']}" if isinstance(found.get("id"), int) else "a row"


def to_item(ref: str, issue: Issue) -> WorkItem:
    body, truncated = _bounded(issue.body)
    return WorkItem(
        ref=ref,
        id=issue.node_id,
        url=clean(issue.html_url),
        title=clean(issue.title),
        body=body,
        author=issue.login,
        created_at=clean(issue.created_at),
        truncated=truncated,
        author_id=issue.login_id,
        labels=tuple(map(clean, issue.label_names)),
    )


def to_entries(rows: Iterable[Comment], kind: Kind) -> list[Entry]:
    return [_to_entry(row, kind) for row in rows]


def to_reviews(rows: Iterable[Review]) -> list[Entry]:
    """The reviews that are not pending and not empty, as entries."""
    return [_to_entry(row, Kind.REVIEW) for row in rows if row.says_something]


def _to_entry(row: Comment | Review, kind: Kind) -> Entry:
    body, truncated = _bounded(row.body)
    return Entry(
        kind=kind,
        id=str(row.id),
        author=_login(row.user),
        body=body,
        url=clean(row.html_url),
        created_at=clean(row.created_at),
        truncated=truncated,
        about=row.about,
        group=row.group,
        author_id=row.user.id if row.user else None,
    )


def _login(user: User | None) -> str | None:
    return clean(user.login) if user else None


def _bounded(body: str | None) -> tuple[str, bool]:
    text = clean(body or "")
    return ("", True) if len(text.encode()) > ENTRY_LIMIT else (text, False)
