"""The breaker: an item to which too much is forwarded within an hour pauses, until a person lets it go on (R7.5).

An agent that answers under its user's own login, without the mark, is fed its own answers; this ends that. What counts
is when the forwarded events were written, so catching up after an outage does not trip it. It is a pause of its own:
what is read from the item neither sets nor lifts it, but for the words `resume` and `start`. Pure functions.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from the_loop.core.ledger import Breaker, Ledger, Pending, change
from the_loop.core.model import Kind

WINDOW_S: Final = 3600.0


def trips(ledger: Ledger, key: str, limit: int, now: float) -> bool:
    """True if forwarding this event would be one too many. `limit`: events of one item in an hour, 0 for no limit.

    One that may have arrived before is offered again whatever the count. `now` is epoch seconds.
    """
    entry = ledger.poll.pending[key]
    counted = ledger.poll.breaker.events
    if not limit or entry.kind is Kind.CLOSE or entry.may_have_arrived or _name(key, entry) in counted:
        return False
    moments = sorted((*counted.values(), _moment(entry, now)))
    return any(last - first < WINDOW_S for first, last in zip(moments, moments[limit:], strict=False))


def forwarded(ledger: Ledger, key: str, limit: int, now: float) -> Ledger:
    """Count this event, which was delivered. No more is kept than the limit needs."""
    entry = ledger.poll.pending[key]
    if not limit or entry.kind is Kind.CLOSE:
        return ledger
    counted = {**ledger.poll.breaker.events}
    counted.setdefault(_name(key, entry), _moment(entry, now))
    newest = max(counted.values())
    latest = sorted(counted.items(), key=lambda one: one[1])[-limit:]
    return _with(ledger, events={name: moment for name, moment in latest if newest - moment < WINDOW_S})


def tripped(ledger: Ledger, now: float) -> Ledger:
    """The item pauses from now on."""
    return _with(ledger, since=now)


def lifted(ledger: Ledger) -> Ledger:
    """It goes on, and is counted anew."""
    return _with(ledger, events={}, since=0.0)


def _name(key: str, entry: Pending) -> str:
    """A review and its comments on lines count as one."""
    return entry.group or key


def _moment(entry: Pending, now: float) -> float:
    """When it was written; one without a date, or from the future, was written now."""
    return entry.created if 0 < entry.created <= now else now


def _with(ledger: Ledger, **fields: Any) -> Ledger:
    before: Breaker = ledger.poll.breaker
    after = msgspec.structs.replace(before, **fields)
    return ledger if after == before else change(ledger, breaker=after)
