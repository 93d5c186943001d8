"""`poll-status.json`, the heartbeat: what `poll status` shows of a running poller, without reading ledgers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final

from the_loop import __version__
from the_loop.blocks import MeasuredSelector
from the_loop.clocks import Clock
from the_loop.core.ledger import Standing
from the_loop.core.model import epoch, span, timestamp
from the_loop.counters import Counters
from the_loop.durable import replace_file, to_json_bytes
from the_loop.last_report import read_heartbeat
from the_loop.ledgers import Ledgers
from the_loop.processes import Identity
from the_loop.sources.base import Metered
from the_loop.state import StateRoot
from the_loop.watched import Watched

WORK_SHOWN: Final = 200
OVERLOOKED_SHOWN: Final = 20


class Health:
    """The heartbeat of this run. Until a source was polled, what the last run left of it is shown."""

    def __init__(
        self,
        root: StateRoot,
        holder: Identity,
        clock: Clock,
        runtime: Path | None = None,
        blocks: MeasuredSelector | None = None,
        *,
        counters: Counters | None = None,
    ) -> None:
        """With `runtime`, a directory in memory, beats go there, and to the root only when an outcome changes.

        `blocks`: what the event loop measures of itself.
        """
        self.left_alone: list[str] = []  # what has ledgers and no source
        self.configuration = ""  # the file in force
        self._runtime = runtime
        self._blocks = blocks
        self._counters = counters or Counters(clock.now)
        self._copied: tuple[Any, ...] | None = None
        self._root = root
        self._holder = holder
        self._clock = clock
        self._since = timestamp(clock.now())
        before = read_heartbeat(root)
        self._before = {str(one.get("name")): one for one in before.get("sources", [])}
        self._no_manager = before.get("noManager")

    def is_news(self, no_manager: str) -> bool:
        """True if deliveries run without units for another reason than told before, also by an earlier run."""
        before, self._no_manager = self._no_manager, no_manager
        return before != no_manager

    def last_good_at(self, source: str) -> float | None:
        """When an earlier run last read this source completely, epoch seconds; None if never."""
        return epoch(self._before.get(source, {}).get("lastGoodAt"))

    def beat(
        self,
        ledgers: Ledgers,
        watched: Sequence[Watched],
        pause_reason: str,
        work: Sequence[Mapping[str, Any]] = (),
        attention: Sequence[Mapping[str, Any]] = (),
        *,
        is_last: bool = False,
    ) -> None:
        """Write the heartbeat. Errors are ignored: it is only shown, no decision depends on it."""
        beat = {
            "schema": 1,
            "version": __version__,
            "writtenAt": timestamp(self._clock.now()),
            "pid": self._holder.pid,
            "starttime": self._holder.starttime,
            "since": self._since,
            "stateRoot": str(self._root.path),
            "configuration": self.configuration or None,
            "lastGoodCycleAt": last_good_cycle_at(watched),
            "sources": [self._source(one, is_last=is_last) for one in watched],
            **queue_counts(ledgers),
            **_capped(work),
            "attention": list(attention),
            "heldItems": ledgers.held(),
            "leftAlone": self.left_alone,
            "paused": pause_reason or None,
            "noManager": self._no_manager,
            "longestBlock": None if self._blocks is None else self._blocks.longest(),
            "counters": {**self._counters.to_json(one.source for one in watched), "running": _running(work)},
        }
        content = to_json_bytes(beat)
        if self._runtime is not None:
            with contextlib.suppress(OSError):
                replace_file(self._runtime / self._root.heartbeat.name, content, sync=False)
        outcome = (pause_reason, *((one.source.name, one.error, _outcome(one)) for one in watched))
        if self._runtime is None or is_last or outcome != self._copied:
            self._copied = outcome
            with contextlib.suppress(OSError):
                replace_file(self._root.heartbeat, content, sync=False)

    def status(self, watched: Sequence[Watched]) -> str:
        """The STATUS= line: items, progress of a full re-read, and which sources fail since when."""
        now = self._clock.now()
        polled = [one.last_cycle.started_at for one in watched if one.last_cycle is not None]
        items = sum(one.items for one in watched)
        parts = [f"{items} items, last cycle {timestamp(max(polled))}" if polled else "first cycle"]
        if owed := sum(len(one.cursor.owed) for one in watched):
            parts.append(f"{owed} need a full re-read")
        for one in watched:
            if (wait_s := one.wait_left_s(self._clock.uptime())) > 0:
                parts.append(f"{one.source.name} waits until {timestamp(now + wait_s)}")
            elif one.cursor.owed and isinstance(one.source, Metered) and (left := one.source.usage().points_left):
                parts.append(f"{one.source.name} has {left:.0f} points left")
            if one.held_by:
                parts.append(f"{one.source.name} on standby, held by {one.held_by}")
            if one.visited is not None:
                done, total = one.visited
                parts.append(f"{one.source.name}: {done} of {total} items processed")
            if one.error:
                age = "never" if one.last_good_at is None else f"{span(now - one.last_good_at)} ago"
                parts.append(f"{one.source.name} failing, last good {age}: {one.error}")
        return ", ".join(parts)

    def _source(self, watched: Watched, *, is_last: bool) -> dict[str, Any]:
        """One element of `sources` in `status --json`."""
        name, uptime_s = watched.source.name, self._clock.uptime()
        wait_s = watched.wait_left_s(uptime_s)
        cycle = watched.last_cycle
        before = self._before.get(name, {}).get("lastCycle")
        return {
            "name": name,
            "provider": watched.source.provider,
            "state": watched.state(uptime_s),
            "heldBy": watched.held_by or None,
            "items": watched.items,
            "waiting": watched.waiting,
            "owed": len(watched.cursor.owed),
            "lastGoodAt": _moment(watched.last_good_at),
            "error": watched.error or None,
            "overlooked": dict(islice(sorted(watched.overlooked.items()), OVERLOOKED_SHOWN)),
            "overlookedOmitted": max(0, len(watched.overlooked) - OVERLOOKED_SHOWN),
            "waitingUntil": timestamp(self._clock.now() + wait_s) if wait_s > 0 else None,
            "nextCycleAt": None if is_last else _moment(watched.next_cycle_at),
            "lastCycle": before if cycle is None else cycle.to_json(),
        }


def last_good_cycle_at(watched: Iterable[Watched]) -> str | None:
    """When every source that is read was last read completely: the oldest of these moments, ISO 8601; None if never."""
    moments = [one.last_good_at for one in watched if not (one.is_unread or one.held_by)]
    return None if not moments or None in moments else _moment(min(one for one in moments if one is not None))


def _outcome(watched: Watched) -> tuple[bool, bool] | None:
    """How the last cycle went, as far as a change of it is news."""
    cycle = watched.last_cycle
    return None if cycle is None else (bool(cycle.errors), cycle.interrupted)


def _capped(work: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    omitted = {"workOmitted": len(work) - WORK_SHOWN} if len(work) > WORK_SHOWN else {}
    return {"work": list(work[:WORK_SHOWN]), **omitted}


def _running(work: Sequence[Mapping[str, Any]]) -> int:
    """The number of deliveries that run: before the cut, which `work` shows."""
    return sum(one.get("state") == "running" for one in work)


def _moment(epoch_s: float | None) -> str | None:
    return None if epoch_s is None else timestamp(epoch_s)


def queue_counts(ledgers: Ledgers) -> dict[str, int]:
    """The number of events per state. Held items are not counted here; they are shown as `heldItems`."""
    counts = {"pending": 0, "uncertain": 0, "held": 0, "gaveUp": 0}
    names = {Standing.UNCERTAIN: "uncertain", Standing.HELD: "held", Standing.GAVE_UP: "gaveUp"}
    for ledger in ledgers.with_pending():
        for entry in ledger.poll.pending.values():
            counts[names.get(entry.state, "pending")] += 1
    return counts


def left_alone(ledgers: Ledgers, watched: Iterable[Watched]) -> list[str]:
    """Repositories and inboxes (`github:octo/repo`, `directory:inbox`) that have ledgers but no configured source."""
    sources = [one.source for one in watched]
    refs = (ref for ref in ledgers.refs() if not any(source.owns(ref) for source in sources))
    return sorted({ref.rpartition("#")[0] or ref.rpartition("/")[0] for ref in refs})
