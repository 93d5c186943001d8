"""The rows of GitHub's answers that we read, typed; one odd row costs itself alone."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct

from the_loop.model import ENTRY_LIMIT, Entry, Kind, WorkItem, clean
from the_loop.sources.base import SourceError


class User(Struct, frozen=True):
    login: str


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
    user: User | None = None
    body: str | None = None
    labels: list[Label | str] = []
    pull_request: PullRequest | None = None

    def has_label(self, name: str) -> bool:
        names = (label if isinstance(label, str) else label.name or "" for label in self.labels)
        return name.casefold() in (label.casefold() for label in names)


class Comment(Struct, frozen=True):
    """A row of `/issues/comments` or `/pulls/comments`; one of the two urls names its item."""

    id: int
    html_url: str
    created_at: str
    updated_at: str
    user: User | None = None
    body: str | None = None
    issue_url: str = ""
    pull_request_url: str = ""

    @property
    def number(self) -> int:
        """The item's number; 0 where the url does not end in one."""
        found = _NUMBER.search(self.issue_url or self.pull_request_url)
        return int(found[1]) if found else 0


class Repository(Struct, frozen=True):
    id: int
    full_name: str


T = TypeVar("T", bound=Struct)
_NUMBER: Final = re.compile(r"/([0-9]{1,15})\Z")


def one(value: Any, kind: type[T], path: str) -> T:
    """`value` as a `kind`. Raises SourceError."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise SourceError(f"{path}: an answer of another form: {error}") from error


def many(value: Any, kind: type[T], path: str) -> list[T]:
    """The rows of a list that are of this kind. Raises SourceError for anything but a list."""
    if not isinstance(value, list):
        raise SourceError(f"{path}: expected a list")
    rows = []
    for row in value:
        try:
            rows.append(msgspec.convert(row, kind))
        except msgspec.ValidationError:
            continue
    return rows


def to_item(ref: str, issue: Issue) -> WorkItem:
    body, truncated = _bounded(issue.body)
    return WorkItem(
        ref=ref,
        id=issue.node_id,
        url=clean(issue.html_url),
        title=clean(issue.title),
        body=body,
        author=_login(issue.user),
        created_at=clean(issue.created_at),
        truncated=truncated,
    )


def to_entries(rows: Iterable[Comment], kind: Kind) -> list[Entry]:
    entries = []
    for row in rows:
        body, truncated = _bounded(row.body)
        entries.append(
            Entry(
                kind=kind,
                id=str(row.id),
                author=_login(row.user),
                body=body,
                url=clean(row.html_url),
                created_at=clean(row.created_at),
                truncated=truncated,
            )
        )
    return entries


def _login(user: User | None) -> str | None:
    return clean(user.login) if user else None


def _bounded(body: str | None) -> tuple[str, bool]:
    text = clean(body or "")
    return ("", True) if len(text.encode()) > ENTRY_LIMIT else (text, False)
