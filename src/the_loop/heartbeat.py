"""`poll-status.json`, the heartbeat: what `poll status` shows of a running poller, without reading ledgers."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from the_loop.core.ledger import Standing
from the_loop.core.model import epoch, span, timestamp
from the_loop.durable import read_json_object, replace_file, to_json_bytes
from the_loop.ledgers import Ledgers
from the_loop.processes import Identity
from the_loop.state import StateRoot
from the_loop.watched import Watched


class Health:
    """The results of this run's cycles, and the heartbeat that shows them; before the first, those of the last run."""

    def __init__(
        self, root: StateRoot, holder: Identity, now: Callable[[], float], runtime: Path | None = None
    ) -> None:
        """With `runtime`, a directory in memory, beats go there, and to the root only when the outcome changes."""
        self._runtime = runtime
        self._copied: tuple[Any, ...] | None = None
        self.next_cycle_at: float | None = None  # epoch seconds
        self._root = root
        self._holder = holder
        self._now = now
        self._since = timestamp(now())
        self._began = (now(), time.monotonic())
        before = read_heartbeat(root)
        self._good_before = {str(one.get("name")): epoch(one.get("lastGoodAt")) for one in before.get("sources", [])}
        last, good = before.get("lastCycle"), before.get("lastGoodCycleAt")
        self._last: dict[str, Any] | None = last if isinstance(last, dict) else None
        self._last_good_at = good if isinstance(good, str) else None

    def last_good_at(self, source: str) -> float | None:
        """When an earlier run last read this source completely, epoch seconds; None if never."""
        return self._good_before.get(source)

    @property
    def last_good_cycle_at(self) -> str | None:
        """When a cycle last read every source completely, ISO 8601; None if never."""
        return self._last_good_at

    def cycle_begins(self) -> None:
        """Note the start of a cycle."""
        self._began = (self._now(), time.monotonic())

    def cycle_ends(self, *, items: int, delivered: int, errors: int, interrupted: bool) -> dict[str, Any]:
        """The summary of the cycle, as status and event log show it."""
        started_at, began = self._began
        self._last = {
            "startedAt": timestamp(started_at),
            "seconds": round(time.monotonic() - began, 3),
            "items": items,
            "delivered": delivered,
            "errors": errors,
            "interrupted": interrupted,
        }
        if not errors and not interrupted:
            self._last_good_at = timestamp(self._now())
        return self._last

    def beat(self, ledgers: Ledgers, watched: Sequence[Watched], pause_reason: str, *, is_last: bool = False) -> None:
        """Write the heartbeat. Errors are ignored: it is only shown, no decision depends on it."""
        now = self._now()
        beat = {
            "schema": 1,
            "writtenAt": timestamp(now),
            "pid": self._holder.pid,
            "starttime": self._holder.starttime,
            "since": self._since,
            "stateRoot": str(self._root.path),
            "lastCycle": self._last,
            "lastGoodCycleAt": self._last_good_at,
            "nextCycleAt": timestamp(self.next_cycle_at) if self.next_cycle_at else None,
            "sources": [source_status(one, now) for one in watched],
            **queue_counts(ledgers),
            "heldItems": ledgers.held(),
            "leftAlone": left_alone(ledgers, watched),
            "paused": pause_reason or None,
        }
        content = to_json_bytes(beat)
        if self._runtime is not None:
            with contextlib.suppress(OSError):
                replace_file(self._runtime / self._root.heartbeat.name, content, sync=False)
        last = self._last or {}
        outcome = (bool(last.get("errors")), last.get("interrupted"), pause_reason, *(one.error for one in watched))
        if self._runtime is None or is_last or outcome != self._copied:
            self._copied = outcome
            with contextlib.suppress(OSError):
                replace_file(self._root.heartbeat, content, sync=False)

    def status(self, watched: Sequence[Watched]) -> str:
        """The STATUS= line: the last cycle, progress of a full re-read, and which sources fail since when."""
        last, now = self._last, self._now()
        parts = ["first cycle" if last is None else f"{last.get('items')} items, last cycle {last.get('startedAt')}"]
        if owed := sum(len(one.cursor.owed) for one in watched):
            parts.append(f"{owed} need a full re-read")
        for one in watched:
            if one.visited is not None:
                done, total = one.visited
                parts.append(f"{one.source.name}: {done} of {total} items processed")
            if one.error:
                age = "never" if one.last_good_at is None else f"{span(now - one.last_good_at)} ago"
                parts.append(f"{one.source.name} failing, last good {age}: {one.error}")
        return ", ".join(parts)


def queue_counts(ledgers: Ledgers) -> dict[str, int]:
    """The number of events per state. Held items are not counted here; they are shown as `heldItems`."""
    counts = {"pending": 0, "uncertain": 0, "held": 0, "gaveUp": 0}
    names = {Standing.UNCERTAIN: "uncertain", Standing.HELD: "held", Standing.GAVE_UP: "gaveUp"}
    for ledger in ledgers.with_pending():
        for entry in ledger.poll.pending.values():
            counts[names.get(entry.state, "pending")] += 1
    return counts


def source_status(watched: Watched, now: float) -> dict[str, Any]:
    """One element of `sources` in `status --json`. `now` is epoch seconds."""
    wait_s = watched.wait_left_s(time.monotonic())
    return {
        "name": watched.source.name,
        "provider": watched.source.provider,
        "state": watched.state(time.monotonic()),
        "items": watched.items,
        "owed": len(watched.cursor.owed),
        "lastGoodAt": None if watched.last_good_at is None else timestamp(watched.last_good_at),
        "error": watched.error or None,
        "waitingUntil": timestamp(now + wait_s) if wait_s > 0 else None,
    }


def left_alone(ledgers: Ledgers, watched: Iterable[Watched]) -> list[str]:
    """Repositories and inboxes (`github:octo/repo`, `directory:inbox`) that have ledgers but no configured source."""
    sources = [one.source for one in watched]
    refs = (ref for ref in ledgers.refs() if not any(source.owns(ref) for source in sources))
    return sorted({ref.rpartition("#")[0] or ref.rpartition("/")[0] for ref in refs})


def read_heartbeat(root: StateRoot) -> dict[str, Any]:
    """The newest heartbeat, in the root or the runtime directory of the last unit; empty if none can be read."""
    beats = [_read(root.heartbeat)]
    runtime = _read(root.path / "local" / "unit.json").get("heartbeat")
    if isinstance(runtime, str) and runtime.startswith("/"):
        beats.append(_read(Path(runtime) / root.heartbeat.name))
    return _shaped(max(beats, key=lambda beat: str(beat.get("writtenAt", ""))))


def _shaped(beat: dict[str, Any]) -> dict[str, Any]:
    """`beat` without values of a wrong type: a damaged heartbeat must not keep the rest from being shown."""
    kinds: dict[str, type] = {"lastCycle": dict, "sources": list, "heldItems": dict, "leftAlone": list}
    kinds |= dict.fromkeys(("pending", "uncertain", "held", "gaveUp", "pid", "starttime"), int)
    kinds |= dict.fromkeys(("since", "lastGoodCycleAt", "nextCycleAt", "paused", "writtenAt"), str)
    shaped: dict[str, Any] = {name: value for name, value in beat.items() if isinstance(value, kinds.get(name, object))}
    shaped["sources"] = [one for one in shaped.get("sources", []) if isinstance(one, dict)]
    return shaped


def _read(path: Path) -> dict[str, Any]:
    try:
        return read_json_object(path)
    except (OSError, ValueError):
        return {}
