"""What is on its way, by name, and what does not start: as `poll status` shows it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType
from typing import Any, Final

from the_loop.core.ledger import Ledger, Pending, Standing
from the_loop.core.model import delivery_id, timestamp
from the_loop.ledgers import Ledgers
from the_loop.runners.base import Deferral, Trace

WAITING_SHOWN: Final = 200
_STATES: Final = {
    Standing.LATER: "deferred",
    Standing.REFUSED: "refused",
    Standing.UNCERTAIN: "unknown",
    Standing.HELD: "held",
    Standing.GAVE_UP: "gave-up",
}
_UNDER_WAY: Final = {Trace.NEVER_BEGUN: "waiting", Trace.DONE: "running"}  # its outcome is not recorded
_BUILT: Final = 200  # of one sort: the heartbeat shows no more, and counts the rest
_NOT_SHOWN: Final[dict[str, Any]] = {}
_FOR_PEOPLE: Final = (Standing.HELD, Standing.GAVE_UP)


@dataclass(frozen=True, slots=True)
class UnderWay:
    """A delivery that is waited for. `trace` is None where that cannot be found out; `since`: epoch seconds."""

    trace: Trace | None
    since: float
    place: str = ""  # the unit it runs in


def work_of(
    ledgers: Ledgers,
    under_way: Mapping[tuple[str, str], UnderWay],
    deferred: Mapping[tuple[str, str], Deferral] = MappingProxyType({}),
) -> list[dict[str, Any]]:
    """The elements of `work` in `status --json`: what runs, what a person decides on, what waits, what does not start.

    `under_way` has by item and key how far each delivery is. One that is `accepted` was taken by the service manager
    and has not begun. `deferred` are those whose receiver is not free. Of the items that do not start, at most
    WAITING_SHOWN. What is too far back to be shown is an empty object: the queue may be long, and is looked at often.
    """
    running: list[dict[str, Any]] = []
    decided: list[dict[str, Any]] = []
    waiting: list[dict[str, Any]] = []
    for ledger in ledgers.with_pending():
        for key, entry, reason in _queue(ledger):
            here, one = under_way.get((ledger.ref, key)), deferred.get((ledger.ref, key))
            others = decided if entry.state in _FOR_PEOPLE else waiting
            if here is None and len(others) >= _BUILT:
                others.append(_NOT_SHOWN)
                continue
            shown = {"ref": ledger.ref, "deliveryId": delivery_id(ledger.ref, key)}
            if here is not None and not (one is not None and here.trace is Trace.NEVER_BEGUN):
                running.append({**shown, **_running(here), "command": _trace(shown["deliveryId"])})
            elif entry.state in _FOR_PEOPLE:
                command = f"the-loop ledger retry {shlex.quote(ledger.ref)} {shlex.quote(key)}"
                decided.append({**shown, **_waiting(entry, entry.reason), "command": command})
            elif one is not None:
                why = {"state": "deferred", "since": timestamp(one.since), "reason": one.reason}
                waiting.append({**shown, **why, "command": _trace(shown["deliveryId"])})
            else:
                waiting.append({**shown, **_waiting(entry, reason), "command": _trace(shown["deliveryId"])})
    return [*running, *decided, *waiting, *map(_not_started, islice(ledgers.waiting(), WAITING_SHOWN))]


def _queue(ledger: Ledger) -> Iterator[tuple[str, Pending, str]]:
    """The pending events of an item in turn, with why each is not handed over now."""
    poll, first = ledger.poll, ""
    pauses = {"paused by a control word": poll.paused, "its label is gone": poll.away}
    pauses |= {"too many events within an hour": bool(poll.breaker.since)}
    pause = next((reason for reason, is_so in pauses.items() if is_so), "")
    for key, entry in poll.pending.items():
        last = entry.reason if entry.state in _STATES else ""  # offered again: that is over
        yield key, entry, last or pause or (f"behind {first}" if first else "its turn comes with a free slot")
        if not first and entry.state is not Standing.GAVE_UP:
            first = key


def _running(one: UnderWay) -> dict[str, Any]:
    state = "unknown" if one.trace is None else _UNDER_WAY.get(one.trace, str(one.trace))
    return {"state": state, "since": timestamp(one.since), **({"unit": one.place} if one.place else {})}


def _waiting(entry: Pending, reason: str) -> dict[str, Any]:
    until = {"until": timestamp(entry.retry_at)} if entry.retry_at else {}
    return {"state": _STATES.get(entry.state, "waiting"), **until, **({"reason": reason} if reason else {})}


def _not_started(ledger: Ledger) -> dict[str, Any]:
    reason = {"reason": ledger.poll.reason} if ledger.poll.reason else {}
    return {"ref": ledger.ref, "state": "waiting-to-start", **reason, "command": _trace(ledger.ref)}


def _trace(what: str) -> str:
    return f"the-loop trace {shlex.quote(what)}"
