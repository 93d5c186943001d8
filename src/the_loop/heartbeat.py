"""`poll-status.json`: what `poll status` shows of a running poller, without reading a ledger."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from the_loop.archive import Archive
from the_loop.cycle import Watched
from the_loop.ledger import Standing
from the_loop.model import timestamp
from the_loop.state import StateRoot, read_json_object, replace_file, to_json_bytes


@dataclass(frozen=True, slots=True)
class CycleSummary:
    """One cycle as status and trail show it. `started_at` is ISO 8601 UTC."""

    started_at: str
    seconds: float
    items: int
    delivered: int
    errors: int
    interrupted: bool

    def to_json(self) -> dict[str, Any]:
        fields = asdict(self)
        return {"startedAt": fields.pop("started_at"), **fields}


def queue_counts(archive: Archive) -> dict[str, int]:
    """How many events stand how; held items count as held."""
    counts = {"pending": 0, "uncertain": 0, "held": len(archive.held()), "gaveUp": 0}
    names = {Standing.UNCERTAIN: "uncertain", Standing.HELD: "held", Standing.GAVE_UP: "gaveUp"}
    for ledger in archive.with_pending():
        for entry in ledger.poll.pending.values():
            counts[names.get(entry.state, "pending")] += 1
    return counts


def source_status(watched: Watched, now: float) -> dict[str, Any]:
    wait = watched.position.wait
    is_waiting = wait is not None and wait.remaining_s(now) > 0
    return {
        "name": watched.source.name,
        "provider": watched.source.provider,
        "state": watched.state(now),
        "items": watched.items,
        "lastGoodAt": None if watched.last_good_at is None else timestamp(watched.last_good_at),
        "error": watched.error or None,
        "waitingUntil": timestamp(now + wait.remaining_s(now)) if wait is not None and is_waiting else None,
    }


def left_alone(archive: Archive, watched: Iterable[Watched]) -> list[str]:
    """The parts of ref (`github:octo/repo`, `directory:inbox`) that have ledgers and no source any more."""
    sources = [one.source for one in watched]
    refs = (ref for ref in archive.refs() if not any(source.owns(ref) for source in sources))
    return sorted({ref.rpartition("#")[0] or ref.rpartition("/")[0] for ref in refs})


def write_heartbeat(root: StateRoot, beat: Mapping[str, Any]) -> None:
    """Best effort: it is shown, never acted on."""
    with contextlib.suppress(OSError):
        replace_file(root.heartbeat, to_json_bytes(beat), sync=False)


def read_heartbeat(root: StateRoot) -> dict[str, Any]:
    """The last heartbeat; empty where there is none that can be read."""
    try:
        return read_json_object(root.heartbeat)
    except (OSError, ValueError):
        return {}
