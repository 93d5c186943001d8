"""The values that all parts of the poller share. This module imports nothing of ours.

A `WorkItem` is one thing to work on, an `Entry` one comment or review on it, an `Event` one thing to deliver to the
item's session, an `Outcome` the result of one delivery.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_NOUNS: Final = "authors|config|doctor|events|ledger|once|poll|reply|report|sessions|trace|unit"
_COMMAND: Final = re.compile(rf"`(?:[^\s`]*/)?the-loop (?=(?:{_NOUNS})\b)")
ENTRY_LIMIT: Final = 1 << 20  # bytes of UTF-8; contract R6.9
THREAD_LIMIT: Final = 4 << 20


def with_given(text: str, given: str) -> str:
    """`text` with the options `given` (quoted for a shell) in each command of ours that it tells to run in backquotes.

    Copied, such a command is about the state root and the configuration that the text is about.
    """
    return _COMMAND.sub(lambda found: f"{found[0]}{given} ", text) if given else text


class LoopError(Exception):
    """Base of every error that a person sees: one sentence without a full stop, and a hint with something to do."""

    exit_code = 1

    def __init__(self, problem: str, hint: str = "") -> None:
        super().__init__(problem)
        self.problem = problem
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.problem} ({self.hint})" if self.hint else self.problem


def explain(error: Exception) -> str:
    """An error in a few words: the system's message, or the error's own sentence."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__


class Kind(StrEnum):
    """The kind of an event."""

    SPAWN = "spawn"
    COMMENT = "comment"
    REVIEW = "review"
    REVIEW_COMMENT = "review_comment"
    CLOSE = "close"


def clean(text: str) -> str:
    """`text` in a form that every receiver can take: NUL becomes U+2400, a lone surrogate U+FFFD."""
    return _SURROGATE.sub("\ufffd", text.replace("\0", "\u2400"))


def printable(text: str) -> str:
    """`text` on one line and safe for a terminal: what is not printable, line breaks too, is written as a code."""
    return text if text.isprintable() else "".join(map(_code, text))


def _code(char: str) -> str:
    if char.isprintable():
        return char
    return f"\\x{ord(char):02x}" if ord(char) < 0x100 else f"\\u{ord(char):04x}"


def timestamp(epoch_s: float) -> str:
    """`epoch_s` as ISO 8601 UTC in milliseconds, ending in `Z`."""
    moment = datetime.fromtimestamp(epoch_s, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def epoch(moment: Any) -> float | None:
    """The inverse of `timestamp`: epoch seconds; None if `moment` is not a timestamp."""
    try:
        return datetime.fromisoformat(moment).timestamp()
    except (TypeError, ValueError):
        return None


def span(seconds: float) -> str:
    """A duration in its largest unit, rounded down: `45 s`, `12 min`, `5 h`, `3 d`."""
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{int(seconds / size)} {unit}"
    return f"{int(max(seconds, 0.0))} s"


@dataclass(frozen=True, slots=True)
class Entry:
    """One comment, review or review comment from a source. `author` is None if it is unknown or not trustworthy."""

    kind: Kind
    id: str  # the source's own, unique within its kind
    author: str | None
    body: str
    url: str
    created_at: str  # ISO 8601 UTC
    truncated: bool = False  # the body was over ENTRY_LIMIT bytes and left out
    about: Mapping[str, str | int] = field(default_factory=dict)  # the verdict of a review, the place of a comment
    author_id: int | None = None  # the account's own number, which stays while its name may change hands
    group: str = ""  # what it was written with as one: a review and its comments on lines
    renamed_from: tuple[str, ...] = ()  # former keys of the same content by the same author, who could speak then

    @property
    def key(self) -> str:
        """Its identity within the item; two entries of different kinds may have the same id."""
        return self.kind + ":" + self.id  # formatting an enumeration's member takes five times as long

    @property
    def is_verdict(self) -> bool:
        """True for a review that approves, requests changes or is dismissed, which counts even without a text."""
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
    """One issue, pull request or folder in its present state."""

    ref: str
    id: str  # stable over renames: GitHub's node id, or the name of a folder
    url: str
    title: str
    body: str
    author: str | None
    created_at: str
    truncated: bool = False
    author_id: int | None = None  # as in `Entry`
    labels: tuple[str, ...] = ()  # those that count for the choice of a receiver
    author_doubt: str = ""  # why there is no author, for people


@dataclass(frozen=True, slots=True)
class Event:
    """One thing to deliver. `key` is `<kind>:<id>`; the delivery id is `<ref>/<key>`."""

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
        """The payload for the receiver. `attempt` counts from 1; `redelivery`: an earlier offer may have arrived."""
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
    """The name of an event, which is also the idempotency key that receivers get."""
    return f"{ref}/{key}"


def bounded(thread: Sequence[Entry]) -> Sequence[Entry]:
    """`thread`; without bodies if they exceed THREAD_LIMIT bytes in total."""
    if sum(len(entry.body.encode()) for entry in thread) <= THREAD_LIMIT:
        return thread
    return [replace(entry, body="", truncated=True) for entry in thread]


def in_order(entries: Sequence[Entry]) -> list[Entry]:
    """`entries` in order of acceptance within one answer: by creation time, then id (numbers as numbers)."""
    return sorted(entries, key=lambda e: (e.created_at, e.id.isdigit(), e.id.zfill(20) if e.id.isdigit() else e.id))


class Verdict(StrEnum):
    """The result of one delivery (contract R7.2)."""

    DELIVERED = "delivered"
    REFUSED = "refused"  # rejected by the receiver: the only one that counts as an attempt
    LATER = "later"  # deferred by the receiver
    UNSTARTABLE = "unstartable"  # the receiver could not be started
    UNKNOWN = "unknown"  # begun, outcome unknown
    NEVER_BEGUN = "never-begun"
    HELD = "held"  # nothing was begun, and nothing will be before a person looked at it


@dataclass(frozen=True, slots=True)
class Outcome:
    verdict: Verdict
    reason: str = ""


class Presence(StrEnum):
    """The state of an item in its source."""

    LISTED = "listed"
    AWAY = "away"  # still open, its label is gone
    LEFT = "left"  # ended, but last comments may still arrive
    GONE = "gone"  # ended, and the time for last comments is over


@dataclass(frozen=True, slots=True)
class Note:
    """An event for the event log, written after its effect is on disk. `name` is a key of `eventlog.CATALOG`."""

    name: str
    fields: Mapping[str, Any] = field(default_factory=dict)
