"""Small builders of the core's values: each test names only what it is about."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from the_loop.core.decide import View
from the_loop.core.guards import Rules, phrases
from the_loop.core.ledger import Ledger, Pending, Phase, Poll, Spawn, Standing
from the_loop.core.model import Entry, Kind, Presence, WorkItem
from the_loop.core.outcomes import Policy

REF: Final = "github:octo/repo#15"
URL: Final = "https://github.example/octo/repo/issues/15"
PERSON: Final = "alice"
STRANGER: Final = "mallory"
MARKER: Final = "<!-- the-loop -->"
_EPOCH: Final = datetime(2024, 5, 1, 10, tzinfo=UTC)


def when(second: int) -> str:
    """A moment as sources write it, in whole seconds as GitHub does."""
    return (_EPOCH + timedelta(seconds=second)).strftime("%Y-%m-%dT%H:%M:%SZ")


def item(**changes: Any) -> WorkItem:
    """An issue that an authorised person opened."""
    fields: dict[str, Any] = {
        "ref": REF,
        "id": "node-15",
        "url": URL,
        "title": "a title",
        "body": "the item's own text",
        "author": PERSON,
        "created_at": when(0),
    }
    return WorkItem(**{**fields, **changes})


def entry(number: int | str, body: str | None = None, author: str | None = PERSON, **changes: Any) -> Entry:
    """A comment of an authorised person; a number is its second, too."""
    fields: dict[str, Any] = {
        "kind": Kind.COMMENT,
        "id": str(number),
        "author": author,
        "body": f"text {number}" if body is None else body,
        "url": f"{URL}#{number}",
        "created_at": when(number if isinstance(number, int) else 0),
    }
    return Entry(**{**fields, **changes})


def rules(*people: str, require_start: bool = False, folds_case: bool = True) -> Rules:
    """What holds for one source; `alice` may speak unless others are named."""
    words = phrases("the-loop start", "the-loop stop", "the-loop pause", "the-loop resume")
    return Rules(frozenset(people or (PERSON,)), folds_case, words, require_start)


def policy(**changes: Any) -> Policy:
    fields: dict[str, Any] = {"max_retries": 3, "interval_s": 60.0, "holds_uncertain": False, "version": "1.0"}
    return Policy(**{**fields, **changes})


def pending(key: str, state: Standing = Standing.QUEUED, **changes: Any) -> Pending:
    kind = Kind(key.partition(":")[0])
    author = None if kind in (Kind.SPAWN, Kind.CLOSE) else PERSON
    return Pending(**{"kind": kind, "attempt": 1, "state": state, "author": author, **changes})


def ledger(
    phase: Phase = Phase.LIVE,
    *,
    queue: Mapping[str, Pending] | Iterable[str] = (),
    seen: Iterable[str] = (),
    g: int | None = None,
    **poll: Any,
) -> Ledger:
    """An item in this phase. `queue`: what is pending, mere keys for what is queued."""
    entries = dict(queue) if isinstance(queue, Mapping) else {key: pending(key) for key in queue}
    if phase is Phase.STARTING and not any(key.startswith("spawn:") for key in entries):
        entries = {"spawn:1": pending("spawn:1"), **entries}
    if phase is Phase.ENDING and not any(key.startswith("close:") for key in entries):
        entries = {**entries, "close:1": pending("close:1")}
    starts = (0 if phase is Phase.WAITING else 1) if g is None else g
    poll = {"spawn": Spawn(), **poll}
    return Ledger(
        ref=REF,
        id="node-15",
        url=URL,
        title="a title",
        g=starts,
        poll=Poll(phase=phase, seen_comments=frozenset(seen), pending=entries, **poll),
    )


def view(
    *rows: Entry,
    presence: Presence = Presence.LISTED,
    thread: Iterable[Entry] | None = None,
    reason: str = "",
    **changes: Any,
) -> View:
    """What a cycle knows of the item: rows only, unless a thread is given."""
    fields: dict[str, Any] = {
        "ref": REF,
        "presence": presence,
        "item": item() if presence is Presence.LISTED else None,
        "reason": reason or ("closed" if presence in (Presence.LEFT, Presence.GONE) else ""),
        "rows": rows,
        "thread": None if thread is None else tuple(thread),
    }
    return View(**{**fields, **changes})
