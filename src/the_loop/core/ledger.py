"""The durable record of one item, its file format, and the tables of permitted transitions.

Format 1 (`portable/<slug>.json`)::

    {"schema": 1, "ref", "id", "url", "title", "g",
     "poll": {"phase", "reason", "detail", "paused", "away", "behind", "receiver",
              "seenComments": ["comment:1", …],         settled ids, kept forever; on disk see `records`
              "obeyed": ["comment:2", …],               control words applied, rest of the text not settled yet
              "commentAttempts": {"comment:3": 1},      rejections only
              "gaveUp": {"comment:3": ["0.1.0"]},       the versions that gave up
              "spawn": {"attempts": 0, "gaveUp": []},
              "breaker": {"events": {"comment:4": 1769860800.0}, "since": 0.0},     see `breaker`
              "pending": {"comment:3": {"kind", "attempt", "state", "offer", …}}}}

`pending` is the item's queue, in order of acceptance. `offer` numbers the offers of an event; it rises with every
recorded outcome, which distinguishes the files of an earlier offer from those of the present one. `behind`: needs a
full re-read. Unknown keys are kept on every level. A record `{"schema", "ref", "held"}` replaces a ledger that could
not be read.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Container, Iterable, Mapping
from enum import StrEnum
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct

from the_loop.core.model import Kind, WorkItem

REASON_LIMIT: Final = 500
SCHEMA: Final = 1


class Phase(StrEnum):
    """The phase of an item's session."""

    WAITING = "waiting"  # for the start word
    STARTING = "starting"  # its spawn is pending
    LIVE = "live"  # its spawn was delivered
    ENDING = "ending"  # its close is pending
    ENDED = "ended"

    @property
    def has_queue(self) -> bool:
        """True if events of the item may be pending."""
        return self in (Phase.STARTING, Phase.LIVE, Phase.ENDING)

    @property
    def is_open(self) -> bool:
        """True while the end of the item would have an effect."""
        return self in (Phase.WAITING, Phase.STARTING, Phase.LIVE)


PHASES: Final[Mapping[Phase | None, frozenset[Phase]]] = {
    None: frozenset({Phase.WAITING, Phase.STARTING, Phase.ENDED}),  # ENDED: its last control word was stop
    Phase.WAITING: frozenset({Phase.STARTING, Phase.ENDED}),
    Phase.STARTING: frozenset({Phase.LIVE, Phase.ENDING, Phase.ENDED, Phase.WAITING}),  # the last two: withdrawn
    Phase.LIVE: frozenset({Phase.ENDING}),
    Phase.ENDING: frozenset({Phase.ENDED}),
    Phase.ENDED: frozenset({Phase.STARTING, Phase.WAITING}),  # reopened, or told to start
}


class Standing(StrEnum):
    """The state of one pending event. Whether its delivery is running is not recorded here; its keeper knows."""

    QUEUED = "queued"
    RELEASED = "released"  # not begun when the poller stopped; a spawn is rebuilt from its thread
    RUNNING = "running"  # left running when the poller stopped
    REFUSED = "refused"  # rejected, waits for its next attempt
    LATER = "later"  # deferred by its receiver
    UNCERTAIN = "uncertain"  # outcome unknown, offered again with a mark
    HELD = "held"  # outcome unknown, the operator decides
    GAVE_UP = "gave-up"
    LOST = "lost"  # its payload is not on this machine; to be read again from the thread

    @property
    def may_have_begun(self) -> bool:
        """True if this offer may have arrived: the same bytes are offered again, not rebuilt or withdrawn."""
        return self in (Standing.RUNNING, Standing.UNCERTAIN, Standing.HELD)

    @property
    def is_offered(self) -> bool:
        """True while the event is on its way: it may be handed over, or may have been."""
        return self not in (Standing.HELD, Standing.GAVE_UP, Standing.LOST)


class Notice(StrEnum):
    """The state of the notice that an event was given up (`polling.reportGiveUps`)."""

    NONE = ""
    DUE = "due"
    SENT = "sent"  # requested; it may have been posted
    TOLD = "told"
    REFUSED = "refused"  # GitHub rejected it


NOTICES: Final[Mapping[Notice, frozenset[Notice]]] = {
    Notice.NONE: frozenset({Notice.DUE}),
    Notice.DUE: frozenset({Notice.SENT}),
    Notice.SENT: frozenset({Notice.DUE, Notice.TOLD, Notice.REFUSED}),
    Notice.TOLD: frozenset(),  # posted once, however often the event is given up
    Notice.REFUSED: frozenset(),
}

_OUTCOMES: Final = frozenset(
    {Standing.REFUSED, Standing.LATER, Standing.UNCERTAIN, Standing.HELD, Standing.GAVE_UP, Standing.QUEUED}
)
_BY_STOP: Final = frozenset({Standing.RELEASED, Standing.RUNNING, Standing.LOST})
STANDINGS: Final[Mapping[Standing, frozenset[Standing]]] = {
    Standing.QUEUED: _OUTCOMES | _BY_STOP,
    Standing.RELEASED: _OUTCOMES | _BY_STOP,
    Standing.RUNNING: _OUTCOMES | _BY_STOP,
    Standing.REFUSED: _OUTCOMES | _BY_STOP,
    Standing.LATER: _OUTCOMES | _BY_STOP,
    Standing.UNCERTAIN: _OUTCOMES | _BY_STOP,
    Standing.HELD: frozenset({Standing.UNCERTAIN, Standing.LOST}),  # by `ledger retry`, or moved to another machine
    Standing.GAVE_UP: frozenset({Standing.QUEUED, Standing.RELEASED, Standing.LOST}),  # re-armed
    Standing.LOST: frozenset({Standing.QUEUED, Standing.UNCERTAIN, Standing.LOST}),
}


class Pending(Struct, frozen=True, rename="camel", omit_defaults=True):
    """One accepted event that is not settled. Times are epoch seconds, pauses are seconds."""

    kind: Kind
    attempt: int  # the number of this attempt if it is rejected, from 1
    state: Standing
    offer: int = 1
    unknown: int = 0  # offers with unknown outcome, in a row
    redelivery: bool = False  # an earlier offer may have arrived
    author: str | None = None
    carries: tuple[str, ...] = ()  # the entries that a spawn settles with it
    created: float = 0.0  # when it was written; 0 if that is not known
    group: str = ""  # what it counts with as one, for the breaker
    reason: str = ""  # of its last outcome, at most REASON_LIMIT characters
    pause: float = 0.0  # the pause that was set
    retry_at: float = 0.0  # when it is over; at most `pause` away
    notice: Notice = Notice.NONE
    notice_at: float = 0.0  # when it was requested
    extra: dict[str, Any] = {}

    @property
    def may_have_arrived(self) -> bool:
        """True if this offer or an earlier one may have arrived."""
        return self.state.may_have_begun or self.redelivery


class Spawn(Struct, frozen=True, rename="camel"):
    """The rejections of the current spawn, and the versions that gave up on it."""

    attempts: int = 0
    gave_up: tuple[str, ...] = ()
    extra: dict[str, Any] = {}


class Breaker(Struct, frozen=True, rename="camel"):
    """What was forwarded lately, by key or group, with when it was written; `since` when it is tripped, else 0."""

    events: dict[str, float] = {}
    since: float = 0.0
    extra: dict[str, Any] = {}


class Poll(Struct, frozen=True, rename="camel"):
    """The `poll` part of a ledger. Keys of its mappings are `<kind>:<id>`."""

    phase: Phase
    reason: str = ""  # why the item ended, or does not start
    detail: str = ""  # more of that, in the source's own term
    paused: bool = False
    away: bool = False  # its label is gone
    behind: bool = False  # needs a full re-read before single rows count
    receiver: str = ""  # the label whose receiver was chosen at the spawn; "" for the session's own
    seen_comments: frozenset[str] = frozenset()
    obeyed: frozenset[str] = frozenset()
    comment_attempts: dict[str, int] = {}
    gave_up: dict[str, tuple[str, ...]] = {}
    spawn: Spawn = Spawn()
    breaker: Breaker = Breaker()
    pending: dict[str, Pending] = {}
    extra: dict[str, Any] = {}


class Ledger(Struct, frozen=True, rename="camel"):
    """One item. Immutable: every transition returns a new value."""

    ref: str
    id: str
    url: str
    title: str
    g: int
    poll: Poll
    schema: int = SCHEMA
    extra: dict[str, Any] = {}

    @property
    def spawn_key(self) -> str:
        return f"{Kind.SPAWN}:{self.g}"

    @property
    def close_key(self) -> str:
        return f"{Kind.CLOSE}:{self.g}"

    @property
    def is_over(self) -> bool:
        """True once the item ended and none of its events is pending in any way."""
        return self.poll.phase is Phase.ENDED and not self.poll.pending

    def attempts(self, key: str) -> int:
        """The number of rejections of this event so far."""
        return self.poll.spawn.attempts if is_spawn(key) else self.poll.comment_attempts.get(key, 0)

    def knows(self, key: str) -> bool:
        """True if this entry is settled, queued, or carried by the pending spawn."""
        return not self.unknown((key,))

    def unknown(self, keys: Iterable[str]) -> list[str]:
        """Those of these entries that are neither settled, nor queued, nor carried by the pending spawn, in order."""
        seen = self.poll.seen_comments
        queued = {key for entry in self.poll.pending.values() for key in entry.carries}
        queued.update(self.poll.pending)
        lost = {key for key, entry in self.poll.pending.items() if entry.state is Standing.LOST}
        return [key for key in keys if (key not in seen and key not in queued) or key in lost]


class UnreadableLedger(ValueError):
    """The file does not contain a ledger; the message says why."""


class NewerLedger(UnreadableLedger):
    """The file was written by a newer version; it must not be changed."""


T = TypeVar("T", bound=Struct)


def is_spawn(key: str) -> bool:
    return key.startswith(f"{Kind.SPAWN}:")


def is_without_receiver(ledger: Ledger, names: Container[str]) -> bool:
    """True for an item whose receiver is not among these (any more): nothing of it is handed over."""
    return ledger.poll.phase.has_queue and ledger.poll.receiver != "" and ledger.poll.receiver not in names


def new_ledger(item: WorkItem, phase: Phase, g: int = 0) -> Ledger:
    """A ledger for `item`. Raises ValueError if `phase` is not a first phase (PHASES)."""
    if phase not in PHASES[None]:
        raise ValueError(f"cannot create the ledger of '{item.ref}': {phase} is not a first phase")
    return Ledger(ref=item.ref, id=item.id, url=item.url, title=item.title, g=g, poll=Poll(phase=phase))


def restarted(ledger: Ledger, item: WorkItem) -> Ledger:
    """The ledger for the next start of its item, with the item's present id, url and title."""
    return msgspec.structs.replace(ledger, g=ledger.g + 1, id=item.id, url=item.url, title=item.title)


def forgotten(ledger: Ledger) -> Ledger:
    """The ledger as after an initial sync of its item; only the number of its starts is kept."""
    return msgspec.structs.replace(ledger, poll=Poll(phase=Phase.WAITING, behind=True))


def change(ledger: Ledger, **poll: Any) -> Ledger:
    """`ledger` with these fields of its `poll` part. Raises ValueError for a change of phase not in PHASES."""
    phase = poll.get("phase")
    if phase is not None and phase is not ledger.poll.phase and phase not in PHASES[ledger.poll.phase]:
        raise ValueError(f"cannot change '{ledger.ref}' from {ledger.poll.phase} to {phase}")
    return msgspec.structs.replace(ledger, poll=msgspec.structs.replace(ledger.poll, **poll))


def accept(ledger: Ledger, key: str, author: str | None, carries: tuple[str, ...] = ()) -> Ledger:
    """Accept an event: add it to `pending`. One whose payload was lost keeps its place and its counts."""
    return change(ledger, pending={**ledger.poll.pending, key: _accepted(ledger, key, author, carries)})


def accept_all(ledger: Ledger, facts: Mapping[str, Mapping[str, Any]]) -> Ledger:
    """Accept these events in their order; of each, by its key, the fields `author`, `created` and `group`."""
    entries = {
        key: msgspec.structs.replace(_accepted(ledger, key, None, ()), **fields) for key, fields in facts.items()
    }
    return change(ledger, pending={**ledger.poll.pending, **entries}) if entries else ledger


def _accepted(ledger: Ledger, key: str, author: str | None, carries: tuple[str, ...]) -> Pending:
    before = ledger.poll.pending.get(key)
    if before is not None and before.state is Standing.LOST:
        state = Standing.UNCERTAIN if before.redelivery else Standing.QUEUED
        return msgspec.structs.replace(before, state=state, author=author, carries=carries)
    kind = Kind(key.partition(":")[0])
    return Pending(kind, ledger.attempts(key) + 1, Standing.QUEUED, author=author, carries=carries)


def move(ledger: Ledger, key: str, state: Standing, **fields: Any) -> Ledger:
    """Move a pending event to another state. Raises ValueError for a change not in STANDINGS."""
    before = ledger.poll.pending[key]
    if state is not before.state and state not in STANDINGS[before.state]:
        raise ValueError(f"cannot change '{ledger.ref}/{key}' from {before.state} to {state}")
    entry = msgspec.structs.replace(before, state=state, **fields)
    if entry == before:
        return ledger
    return change(ledger, pending={**ledger.poll.pending, key: entry})


def settle(ledger: Ledger, *keys: str) -> Ledger:
    """Settle these events and what they carry: only their ids are kept, forever."""
    done = set(keys)
    for key in keys:
        done.update(ledger.poll.pending[key].carries if key in ledger.poll.pending else ())
    poll = ledger.poll
    return change(
        ledger,
        pending={key: entry for key, entry in poll.pending.items() if key not in done},
        seen_comments=poll.seen_comments | done,
        obeyed=poll.obeyed - done,
        comment_attempts={key: count for key, count in poll.comment_attempts.items() if key not in done},
        gave_up={key: versions for key, versions in poll.gave_up.items() if key not in done},
        spawn=Spawn(extra=poll.spawn.extra) if any(map(is_spawn, keys)) else poll.spawn,
    )


def withdraw(ledger: Ledger, *keys: str) -> Ledger:
    """Withdraw events that were not begun, as if they had never been accepted: not settled, attempts forgotten."""
    gone = set(keys)
    poll = ledger.poll
    return change(
        ledger,
        pending={key: entry for key, entry in poll.pending.items() if key not in gone},
        comment_attempts={key: count for key, count in poll.comment_attempts.items() if key not in gone},
        spawn=Spawn(extra=poll.spawn.extra) if any(map(is_spawn, gone)) else poll.spawn,
    )


def count_refusal(ledger: Ledger, key: str) -> Ledger:
    """Count one more rejection of this event; its entry gets the number of the next attempt."""
    attempts = ledger.attempts(key) + 1
    if is_spawn(key):
        ledger = change(ledger, spawn=msgspec.structs.replace(ledger.poll.spawn, attempts=attempts))
    else:
        ledger = change(ledger, comment_attempts={**ledger.poll.comment_attempts, key: attempts})
    return move(ledger, key, ledger.poll.pending[key].state, attempt=attempts + 1)


def give_up(ledger: Ledger, key: str, version: str, *, reports: bool = False) -> Ledger:
    """Give an event up, by this version; with `reports` a notice is due, unless there was one before."""
    ledger = move(ledger, key, Standing.GAVE_UP)
    if reports and ledger.poll.pending[key].notice is Notice.NONE:
        ledger = note_notice(ledger, key, Notice.DUE, 0.0)
    if is_spawn(key):
        versions = (*ledger.poll.spawn.gave_up, version)
        return change(ledger, spawn=msgspec.structs.replace(ledger.poll.spawn, gave_up=versions))
    versions = (*ledger.poll.gave_up.get(key, ()), version)
    return change(ledger, gave_up={**ledger.poll.gave_up, key: versions})


def rearm(ledger: Ledger, key: str) -> Ledger:
    """Re-arm a given-up event from attempt 1; the versions that gave up are kept."""
    if is_spawn(key):
        ledger = change(ledger, spawn=msgspec.structs.replace(ledger.poll.spawn, attempts=0))
    else:
        attempts = {other: count for other, count in ledger.poll.comment_attempts.items() if other != key}
        ledger = change(ledger, comment_attempts=attempts)
    state = Standing.RELEASED if is_spawn(key) else Standing.QUEUED
    return move(ledger, key, state, attempt=1, unknown=0, pause=0.0, retry_at=0.0)


def note_notice(ledger: Ledger, key: str, notice: Notice, now: float) -> Ledger:
    """Change the state of the event's notice. `now` is epoch seconds. Raises ValueError if not in NOTICES."""
    entry = ledger.poll.pending[key]
    if notice not in NOTICES[entry.notice]:
        raise ValueError(f"cannot change the notice of '{ledger.ref}/{key}' from {entry.notice!r} to {notice!r}")
    at = now if notice is Notice.SENT else entry.notice_at
    return move(ledger, key, entry.state, notice=notice, notice_at=at)


def versions_that_gave_up(ledger: Ledger, key: str) -> tuple[str, ...]:
    return ledger.poll.spawn.gave_up if is_spawn(key) else ledger.poll.gave_up.get(key, ())


def after_receipt(ledger: Ledger, key: str) -> Ledger:
    """Settle an event that was delivered; a spawn or a close also changes the phase."""
    if ledger.poll.pending[key].kind is Kind.CLOSE:
        return end(ledger, ledger.poll.reason)
    ledger = settle(ledger, key)
    if is_spawn(key) and ledger.poll.phase is Phase.STARTING:
        ledger = change(ledger, phase=Phase.LIVE)
    return ledger


def end(ledger: Ledger, reason: str) -> Ledger:
    """End the item: settle its close if it is pending, and withdraw all other events."""
    if ledger.close_key in ledger.poll.pending:
        ledger = settle(ledger, ledger.close_key)
    ledger = withdraw(ledger, *ledger.poll.pending)
    return change(ledger, phase=Phase.ENDED, reason=reason, paused=False, away=False)


def decode(content: bytes, ref: str | None = None) -> Ledger:
    """The ledger in `content`. Raises UnreadableLedger, also if it is not of `ref`; NewerLedger for a newer schema."""
    return from_tree(parse(content), ref)


def parse(content: bytes) -> dict[str, Any]:
    """The JSON object in `content`. Raises UnreadableLedger."""
    try:
        tree = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise UnreadableLedger(f"it is not JSON: {error}") from error
    if not isinstance(tree, dict):
        raise UnreadableLedger(f"it is {type(tree).__name__}, not an object")
    return tree


def from_tree(tree: dict[str, Any], ref: str | None = None) -> Ledger:
    """The ledger in this JSON object; raises as `decode` does."""
    schema = tree.get("schema")
    if isinstance(schema, int) and schema > SCHEMA:
        raise NewerLedger(f"its schema is {schema}, this version supports up to {SCHEMA}")
    if schema != SCHEMA:
        raise UnreadableLedger(f"its schema is {schema!r}, not {SCHEMA}")
    try:
        ledger = _ledger(tree)
    except (msgspec.ValidationError, TypeError, AttributeError) as error:
        raise UnreadableLedger(f"it has the wrong shape: {error}") from error
    if ref is not None and ledger.ref != ref:
        raise UnreadableLedger(f"it is the ledger of '{ledger.ref}'")
    return ledger


def encode(ledger: Ledger) -> dict[str, Any]:
    """The ledger as a JSON object, with unknown keys in their places."""
    tree = _built(ledger)
    poll = tree["poll"] = _built(ledger.poll)
    poll["seenComments"] = sorted(ledger.poll.seen_comments)
    poll["obeyed"] = sorted(ledger.poll.obeyed)
    poll["spawn"] = _built(ledger.poll.spawn)
    poll["breaker"] = _built(ledger.poll.breaker)
    poll["pending"] = {key: _built(entry) for key, entry in ledger.poll.pending.items()}
    return tree


def _ledger(tree: dict[str, Any]) -> Ledger:
    poll = dict(tree["poll"]) if isinstance(tree.get("poll"), dict) else {}
    pending = poll.get("pending", {})
    spawn = poll.get("spawn", {})
    poll["pending"] = {key: _known(entry, Pending) for key, entry in pending.items()}
    poll["spawn"] = _known(spawn, Spawn)
    poll["breaker"] = _known(poll.get("breaker", {}), Breaker)
    return msgspec.convert({**_known(tree, Ledger), "poll": _known(poll, Poll)}, Ledger, strict=True)


def _known(tree: Mapping[str, Any], kind: type[Struct]) -> dict[str, Any]:
    """`tree` with all keys that `kind` does not have moved into `extra`."""
    names = _names(kind)
    known = {key: value for key, value in tree.items() if key in names}
    return {**known, "extra": {key: value for key, value in tree.items() if key not in names}}


@functools.cache
def _names(kind: type[Struct]) -> frozenset[str]:
    return frozenset(kind.__struct_encode_fields__) - {"extra"}


def _built(value: Struct) -> dict[str, Any]:
    tree: dict[str, Any] = msgspec.to_builtins(value)
    return {**value.extra, **{key: part for key, part in tree.items() if key != "extra"}}  # type: ignore[attr-defined]
