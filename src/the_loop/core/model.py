"""Values that every part of the poller speaks of. This module imports nothing of ours.

A `WorkItem` is one thing to work on, an `Entry` one thing somebody wrote on it, an `Event` one thing to hand
over to the item's session, an `Outcome` what became of one hand-over.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

_SURROGATE: Final = re.compile("[\ud800-\udfff]")
ENTRY_LIMIT: Final = 1 << 20  # bytes of UTF-8; contract R6.9
THREAD_LIMIT: Final = 4 << 20


class LoopError(Exception):
    """Base of every error that is told to a person: one sentence, then what to do about it."""

    exit_code = 1

    def __init__(self, problem: str, hint: str = "") -> None:
        super().__init__(problem)
        self.problem = problem
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.problem} ({self.hint})" if self.hint else self.problem


def explain(error: Exception) -> str:
    """An error in a few words: what the system says, or the error's own sentence."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__


class Kind(StrEnum):
    """What an event hands over."""

    SPAWN = "spawn"
    COMMENT = "comment"
    REVIEW = "review"
    REVIEW_COMMENT = "review_comment"
    CLOSE = "close"


def clean(text: str) -> str:
    """Text that every receiver can take: NUL becomes U+2400, a lone surrogate U+FFFD. The one place for it."""
    return _SURROGATE.sub("\ufffd", text.replace("\0", "\u2400"))


def timestamp(epoch_s: float) -> str:
    """`epoch_s` as ISO 8601 UTC in milliseconds, ending in `Z`."""
    moment = datetime.fromtimestamp(epoch_s, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def epoch(moment: Any) -> float | None:
    """The reverse of `timestamp`; None for what is no moment."""
    try:
        return datetime.fromisoformat(moment).timestamp()
    except (TypeError, ValueError):
        return None


def span(seconds: float) -> str:
    """How long that is, in its largest unit: `45 s`, `12 min`, `5 h`, `3 d`."""
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{int(seconds / size)} {unit}"
    return f"{int(max(seconds, 0.0))} s"


@dataclass(frozen=True, slots=True)
class Entry:
    """One comment, review or review comment, as its source tells it. `author` is None when nobody stands for it."""

    kind: Kind
    id: str  # the source's own, unique within its kind
    author: str | None
    body: str
    url: str
    created_at: str  # ISO 8601 UTC
    truncated: bool = False  # the body was over ENTRY_LIMIT and left out
    about: Mapping[str, str | int] = field(default_factory=dict)  # what a review says, and where a comment stands
    renamed_from: tuple[str, ...] = ()  # keys under which the same content was there before, and is not any more

    @property
    def key(self) -> str:
        """Its identity within the item: kinds are separate streams that share numbers."""
        return f"{self.kind}:{self.id}"

    @property
    def is_verdict(self) -> bool:
        """True for a review that says something beside its text."""
        return self.about.get("verdict", "commented") != "commented"

    def to_json(self) -> dict[str, Any]:
        shown: dict[str, Any] = {
            "id": self.id,
            "kind": str(self.kind),
            "author": self.author,
            "url": self.url,
            **self.about,
        }
        if self.truncated:
            return {**shown, "truncated": True}
        return {**shown, "body": self.body, "createdAt": self.created_at}


@dataclass(frozen=True, slots=True)
class WorkItem:
    """One issue, pull request or folder as it stands now."""

    ref: str
    id: str  # stable over renames: the node id of GitHub, the folder's name of a directory
    url: str
    title: str
    body: str
    author: str | None
    created_at: str
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class Event:
    """One thing to hand over. `key` is `<kind>:<id>`; with the ref it makes the delivery id."""

    ref: str
    key: str
    url: str
    title: str
    author: str | None
    body: str
    created_at: str
    truncated: bool = False
    thread: tuple[Entry, ...] = ()
    omitted: int = 0
    reason: str | None = None
    about: Mapping[str, str | int] = field(default_factory=dict)

    @property
    def kind(self) -> Kind:
        return Kind(self.key.partition(":")[0])

    @property
    def delivery_id(self) -> str:
        return delivery_id(self.ref, self.key)

    def to_json(self, *, attempt: int, redelivery: bool) -> dict[str, Any]:
        """What the receiver reads; `attempt` counts from 1, `redelivery` marks an earlier offer of unknown outcome."""
        payload: dict[str, Any] = {
            "deliveryId": self.delivery_id,
            "kind": str(self.kind),
            "ref": self.ref,
            "url": self.url,
            "title": self.title,
            "author": self.author,
            "body": self.body,
            "createdAt": self.created_at,
            "attempt": attempt,
            "redelivery": redelivery,
            "thread": [entry.to_json() for entry in bounded(self.thread)],
            "omitted": self.omitted,
            **self.about,
        }
        if self.truncated:
            payload["truncated"] = True
        if self.reason is not None:
            payload["reason"] = self.reason
        return payload


def delivery_id(ref: str, key: str) -> str:
    """The event's name, and the idempotency key that receivers get."""
    return f"{ref}/{key}"


def bounded(thread: Sequence[Entry]) -> Sequence[Entry]:
    """`thread`, or the same entries without their bodies where these are over THREAD_LIMIT together."""
    if sum(len(entry.body.encode()) for entry in thread) <= THREAD_LIMIT:
        return thread
    return [replace(entry, body="", truncated=True) for entry in thread]


def in_order(entries: Sequence[Entry]) -> list[Entry]:
    """The order of acceptance inside one answer: created, then id (numbers as numbers)."""
    return sorted(entries, key=lambda e: (e.created_at, e.id.isdigit(), e.id.zfill(20) if e.id.isdigit() else e.id))


class Verdict(StrEnum):
    """What became of one hand-over (contract R7.2)."""

    DELIVERED = "delivered"
    REFUSED = "refused"  # the receiver said no: the only one that counts
    LATER = "later"  # the receiver asked for later
    UNSTARTABLE = "unstartable"  # the receiver could not be started at all
    UNKNOWN = "unknown"  # begun, and nobody can tell how it ended
    NEVER_BEGUN = "never-begun"


@dataclass(frozen=True, slots=True)
class Outcome:
    verdict: Verdict
    reason: str = ""


class Presence(StrEnum):
    """Where an item stands, seen from its source."""

    LISTED = "listed"
    AWAY = "away"  # still open, its label is gone
    LEFT = "left"  # ended, but its last words may still come
    GONE = "gone"  # ended, and the time for last words is over


@dataclass(frozen=True, slots=True)
class Note:
    """An event of the trail, told once what it speaks of is on disk. `name` is one of `events.CATALOG`."""

    name: str
    fields: Mapping[str, Any] = field(default_factory=dict)
