"""What a person should look at, with what to type: the `attention` of `status --json`."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

from the_loop.core.ledger import Ledger, Standing, is_without_receiver
from the_loop.core.model import delivery_id, timestamp
from the_loop.ledgers import Ledgers
from the_loop.runners.base import Deferral
from the_loop.watched import Watched

SHOWN: Final = 200
DEFERRED_S: Final = 600.0
_REASONS: Final = {
    Standing.GAVE_UP: ("gave-up", "rejected too often"),
    Standing.HELD: ("held", "its outcome is unknown"),
}


def attention_of(
    ledgers: Ledgers,
    watched: Iterable[Watched],
    pause_reason: str,
    deferred: Mapping[tuple[str, str], Deferral] = MappingProxyType({}),
    now: float = 0.0,
) -> list[dict[str, Any]]:
    """Items and events that wait for a decision, sources that fail, a receiver that does not start; at most SHOWN.

    Each has `state` and `reason`, and `ref`, `deliveryId`, `source`, `since` and `command` as they apply.
    `deferred` are the events whose receiver is not free: after DEFERRED_S a person is to see why.
    """
    watched = list(watched)
    found = [{"state": "paused", "reason": pause_reason}] if pause_reason else []
    found += [
        {"source": one.source.name, "state": "failing", "reason": one.error or "no author is authorised"}
        for one in watched
        if one.error or one.is_unread
    ]
    for ref, reason in ledgers.held().items():
        why = f"its ledger cannot be used: {reason}"
        command = f"the-loop ledger reset {shlex.quote(ref)}"
        found.append({"ref": ref, "state": "held", "reason": why, "command": command})
    found += [_of_deferral(ref, one) for (ref, _), one in deferred.items() if now - one.since >= DEFERRED_S]
    for ledger in ledgers.with_pending():
        found += _of_item(ledger)
    for ledger in ledgers.all():
        if ledger.poll.receiver:
            found += _of_receiver(ledger, watched)
    return found[:SHOWN]


def _of_deferral(ref: str, one: Deferral) -> dict[str, Any]:
    shown = {"ref": ref, "deliveryId": delivery_id(ref, one.key), "state": "deferred", "since": timestamp(one.since)}
    return {**shown, "reason": one.reason, "command": f"the-loop sessions attach {shlex.quote(ref)}"}


def _of_receiver(ledger: Ledger, watched: Iterable[Watched]) -> Iterable[dict[str, Any]]:
    """An item waits for as long as its receiver is not in the configuration of its source."""
    label = ledger.poll.receiver
    if any(one.source.owns(ledger.ref) and is_without_receiver(ledger, one.rules.receivers) for one in watched):
        reason = f"its receiver (byLabel '{label}') is not in the configuration: put it back, or forget the item"
        command = f"the-loop ledger reset {shlex.quote(ledger.ref)}"
        yield {"ref": ledger.ref, "state": "no-receiver", "reason": reason, "command": command}


def _of_item(ledger: Ledger) -> Iterable[dict[str, Any]]:
    if since := ledger.poll.breaker.since:
        shown = {"ref": ledger.ref, "state": "breaker", "since": timestamp(since)}
        yield {**shown, "reason": "too many events within an hour", "command": _retry(ledger)}
    for key, entry in ledger.poll.pending.items():
        if entry.state in _REASONS:
            state, reason = _REASONS[entry.state]
            if entry.state is Standing.HELD and not entry.redelivery:
                reason = "it was not begun"
            reason += f": {entry.reason}" if entry.reason else ""
            shown = {"ref": ledger.ref, "deliveryId": delivery_id(ledger.ref, key), "state": state, "reason": reason}
            yield {**shown, "command": f"{_retry(ledger)} {shlex.quote(key)}"}


def _retry(ledger: Ledger) -> str:
    return f"the-loop ledger retry {shlex.quote(ledger.ref)}"
