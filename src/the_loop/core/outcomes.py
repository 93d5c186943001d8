"""The effect of an outcome on the ledger: settled, counted, deferred, offered again with a mark, or held. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from the_loop.core import breaker
from the_loop.core.ledger import (
    REASON_LIMIT,
    Ledger,
    Pending,
    Phase,
    Standing,
    after_receipt,
    count_refusal,
    end,
    give_up,
    is_spawn,
    move,
    withdraw,
)
from the_loop.core.model import Kind, Note, Outcome, Verdict, delivery_id, timestamp

LONGEST_PAUSE_S: Final = 900.0
_FIRST_PAUSE_S: Final = 60.0
_INTERVALS: Final = {1: 1, 2: 5}  # retry interval by number of rejections; 15 from the third on


@dataclass(frozen=True, slots=True)
class Policy:
    """The retry policy from the configuration."""

    max_retries: int
    interval_s: float
    holds_uncertain: bool
    version: str
    reports_give_ups: bool = False
    events_per_hour: int = 0  # of one item; 0: no limit


def conclude(ledger: Ledger, key: str, outcome: Outcome, policy: Policy, now: float) -> tuple[Ledger, tuple[Note, ...]]:
    """The ledger after this outcome of a pending event, and the events to log. `now` is epoch seconds."""
    after, notes = _conclude(ledger, key, outcome, policy, now)
    return without_a_session_to_close(after), notes


def without_a_session_to_close(ledger: Ledger) -> Ledger:
    """End an item whose spawn never arrived, without a spawn or a close (contract R6.5).

    If an earlier offer of the spawn may have arrived, the close is still due.
    """
    spawn = ledger.poll.pending.get(ledger.spawn_key)
    if ledger.poll.phase is not Phase.ENDING or spawn is None or spawn.state.may_have_begun:
        return ledger
    return withdraw(ledger, ledger.spawn_key) if spawn.redelivery else end(ledger, ledger.poll.reason)


def _conclude(
    ledger: Ledger, key: str, outcome: Outcome, policy: Policy, now: float
) -> tuple[Ledger, tuple[Note, ...]]:
    entry = ledger.poll.pending[key]
    match outcome.verdict:
        case Verdict.DELIVERED:
            counted = breaker.forwarded(ledger, key, policy.events_per_hour, now)
            return after_receipt(counted, key), _receipts(ledger, key, entry)
        case Verdict.REFUSED:
            return _refused(ledger, key, outcome.reason, policy, now)
        case Verdict.LATER:
            pause = min(max(_FIRST_PAUSE_S, 2 * entry.pause), LONGEST_PAUSE_S)
            waits = {"pause": pause, "retry_at": now + pause, "reason": _short(outcome.reason)}
            ledger = move(ledger, key, Standing.LATER, **_next_offer(entry), **waits)
            until = timestamp(now + pause)
            return ledger, (_note("poll.deferred", ledger, key, entry, reason=outcome.reason, until=until),)
        case Verdict.UNKNOWN:
            return _unknown(ledger, key, outcome.reason, policy)
        case Verdict.HELD:
            ledger = move(ledger, key, Standing.HELD, **_next_offer(entry), reason=_short(outcome.reason))
            return ledger, (_note("session.held", ledger, key, entry, reason=outcome.reason),)
        case Verdict.UNSTARTABLE:
            return move(ledger, key, entry.state, offer=entry.offer + 1), ()
        case Verdict.NEVER_BEGUN:
            return never_begun(ledger, key, entry.offer + 1), ()


def never_begun(ledger: Ledger, key: str, number: int) -> Ledger:
    """The ledger once it is certain that this offer never begins; `number` is that of the next one.

    A spawn is built anew from its thread first, unless an earlier offer of it may have arrived.
    """
    entry = ledger.poll.pending[key]
    state = entry.state
    if entry.redelivery and state in (Standing.QUEUED, Standing.RUNNING):
        state = Standing.UNCERTAIN
    elif state is Standing.RUNNING or (state is Standing.QUEUED and is_spawn(key)):
        state = Standing.RELEASED
    return move(ledger, key, state, offer=number)


def is_due(entry: Pending, now: float) -> bool:
    """True if the event may be offered. A pause never gets longer than it was set, even if the clock changes."""
    return not 0 < entry.retry_at - now <= entry.pause


def _refused(ledger: Ledger, key: str, reason: str, policy: Policy, now: float) -> tuple[Ledger, tuple[Note, ...]]:
    entry = ledger.poll.pending[key]
    ledger = count_refusal(ledger, key)
    attempts = ledger.attempts(key)
    gives_up = attempts >= policy.max_retries
    pause = min(_INTERVALS.get(attempts, 15) * policy.interval_s, LONGEST_PAUSE_S)
    waits = {"pause": pause, "retry_at": now + pause, "reason": _short(reason)}
    ledger = move(ledger, key, Standing.REFUSED, **_next_offer(entry), **waits)
    if gives_up:
        ledger = give_up(ledger, key, policy.version, reports=policy.reports_give_ups and entry.kind is not Kind.CLOSE)
        if entry.kind is Kind.CLOSE:
            ledger = end(ledger, ledger.poll.reason)
    name = "poll.spawn_failed" if is_spawn(key) else "poll.comment_failed"
    until = None if gives_up else timestamp(now + pause)
    told = {"attempt": attempts, "reason": reason, "willRetry": not gives_up, "until": until}
    return ledger, (_note(name, ledger, key, entry, **told),)


def _unknown(ledger: Ledger, key: str, reason: str, policy: Policy) -> tuple[Ledger, tuple[Note, ...]]:
    entry = ledger.poll.pending[key]
    unknown = entry.unknown + 1
    holds = policy.holds_uncertain or unknown >= policy.max_retries
    state = Standing.HELD if holds else Standing.UNCERTAIN
    ledger = move(ledger, key, state, offer=entry.offer + 1, unknown=unknown, redelivery=True, reason=_short(reason))
    return ledger, (_note("poll.comment_held" if holds else "dispatch.uncertain", ledger, key, entry, reason=reason),)


def _short(reason: str) -> str:
    return reason if len(reason) <= REASON_LIMIT else reason[: REASON_LIMIT - 1] + "…"


def _next_offer(entry: Pending) -> dict[str, Any]:
    """Fields of the next offer after an answer: the count of unknown outcomes in a row starts again."""
    return {"offer": entry.offer + 1, "unknown": 0}


def _receipts(ledger: Ledger, key: str, entry: Pending) -> tuple[Note, ...]:
    match entry.kind:
        case Kind.SPAWN:
            return (_note("poll.spawned", ledger, key, entry),)
        case Kind.CLOSE:
            return (_note("session.closed", ledger, key, entry, reason=ledger.poll.reason),)
        case _:
            return (_note("poll.comment_forwarded", ledger, key, entry),)


def _note(name: str, ledger: Ledger, key: str, entry: Pending, **fields: Any) -> Note:
    known = {"ref": ledger.ref, "key": key, "deliveryId": delivery_id(ledger.ref, key), "kind": str(entry.kind)}
    return Note(name, {**known, "attempt": entry.attempt, **fields})
