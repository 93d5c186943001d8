"""What is on its way, by name: each event that is pending, as `poll status` shows it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from the_loop.core.ledger import Pending, Standing
from the_loop.core.model import delivery_id, timestamp
from the_loop.ledgers import Ledgers
from the_loop.runners.base import Trace

_STATES = {
    Standing.LATER: "deferred",
    Standing.REFUSED: "refused",
    Standing.UNCERTAIN: "unknown",
    Standing.HELD: "held",
    Standing.GAVE_UP: "gave-up",
}
_UNDER_WAY = {Trace.NEVER_BEGUN: "waiting", Trace.DONE: "running"}  # it is being offered; its outcome is not recorded


def work_of(ledgers: Ledgers, under_way: Mapping[tuple[str, str], tuple[Trace | None, float]]) -> list[dict[str, Any]]:
    """The elements of `work` in `status --json`, what runs first.

    `under_way` has by item and key how far each delivery is (None: that cannot be found out) and since when, epoch
    seconds. One that is `accepted` was taken by the service manager and has not begun.
    """
    running, others = [], []
    for ledger in ledgers.with_pending():
        for key, entry in ledger.poll.pending.items():
            shown = {"ref": ledger.ref, "deliveryId": delivery_id(ledger.ref, key)}
            if (ledger.ref, key) in under_way:
                trace, since = under_way[ledger.ref, key]
                state = _UNDER_WAY.get(trace, str(trace)) if trace is not None else "unknown"
                running.append({**shown, "state": state, "since": timestamp(since)})
            else:
                others.append({**shown, **_waiting(entry)})
    return running + others


def _waiting(entry: Pending) -> dict[str, Any]:
    until = {"until": timestamp(entry.retry_at)} if entry.retry_at else {}
    return {"state": _STATES.get(entry.state, "waiting"), **until}
