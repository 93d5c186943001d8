"""What a running poller counts since its start, for metrics: kept in memory, shown in the heartbeat (`counters`).

Counts start again at 0 with each start, which the start time tells; sources keep theirs over a reload.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from the_loop.core.ledger import Pending
from the_loop.core.model import Event, Kind, Verdict, delivery_id, epoch
from the_loop.sources.base import Metered, Source, Usage

LIMITS_S: Final = (1, 5, 15, 60, 300, 900, 3600, 14_400, 86_400)  # upper limits of the buckets; above is one more
_REMEMBERED: Final = 10_000  # events that were not handed over yet


@dataclass(slots=True)
class Waits:
    """How long events waited: how many per bucket (not cumulated), and their sum in seconds."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(LIMITS_S) + 1))
    seconds: float = 0.0

    def note(self, seconds: float) -> None:
        seconds = max(0.0, seconds)  # clocks differ, and are set
        self.counts[bisect_left(LIMITS_S, seconds)] += 1
        self.seconds += seconds


@dataclass(slots=True)
class _OfSource:
    """The counts of one source. `earlier`: requests of objects that a reload replaced."""

    cycles: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    errors: int = 0
    usage: Usage | None = None
    earlier: int = 0

    def note_usage(self, usage: Usage) -> None:
        if self.usage is not None and usage.requests < self.usage.requests:
            self.earlier += self.usage.requests
        self.usage = usage

    def to_json(self) -> dict[str, Any]:
        shown: dict[str, Any] = {"cycles": dict(self.cycles), "cycleSeconds": round(self.seconds, 3)}
        shown["errors"] = self.errors
        if self.usage is not None:
            shown["requests"] = self.earlier + self.usage.requests
            shown |= {"pointsLeft": _finite(self.usage.points_left), "pointsLimit": _finite(self.usage.points_limit)}
        return shown


class Counters:
    """`now` gives epoch seconds, `source_of` the name of the source that owns an item."""

    def __init__(self, now: Callable[[], float] = time.time, source_of: Callable[[str], str] = lambda _: "") -> None:
        self._now = now
        self._source_of = source_of
        self._sources: dict[str, _OfSource] = {}
        self._deliveries: Counter[tuple[str, Kind, Verdict]] = Counter()
        self._waits: dict[tuple[str, str, Kind], Waits] = {}
        self._accepted: dict[str, tuple[float | None, float]] = {}  # when it was written, and accepted

    def note_cycle(self, source: str, seconds: float, errors: int, *, interrupted: bool) -> None:
        """A cycle of this source ended, or was cut short."""
        counts = self._sources.setdefault(source, _OfSource())
        counts.cycles["interrupted" if interrupted else "failed" if errors else "good"] += 1
        counts.seconds += seconds
        counts.errors += errors

    def note_accepted(self, event: Event, entry: Pending) -> None:
        """The event is in its ledger. One that is built anew, under a higher number, keeps its moment."""
        if entry.offer == 1:
            self._accepted.setdefault(event.delivery_id, (epoch(event.created_at), self._now()))
        if len(self._accepted) > _REMEMBERED:
            del self._accepted[next(iter(self._accepted))]

    def note_handed_over(self, ref: str, key: str, entry: Pending) -> None:
        """The event is about to be handed over. Only the first time counts, and only what is known.

        The first offer of an event has the number 1, unless it was built anew before, in this run or an earlier one.
        """
        known = self._accepted.pop(delivery_id(ref, key), None)
        if known is None and entry.offer > 1:
            return
        created, accepted = known or (entry.created or None, None)
        for since, moment in (("created", created), ("accepted", accepted)):
            if moment is not None:
                place = (since, self._source_of(ref), entry.kind)
                self._waits.setdefault(place, Waits()).note(self._now() - moment)

    def note_outcome(self, ref: str, kind: Kind, verdict: Verdict) -> None:
        """The outcome of a delivery is in its ledger. One that never began is not a delivery."""
        if verdict is not Verdict.NEVER_BEGUN:
            self._deliveries[self._source_of(ref), kind, verdict] += 1

    def to_json(self, sources: Iterable[Source]) -> dict[str, Any]:
        """The heartbeat's `counters`, of these sources and of what they delivered."""
        names = []
        for source in sources:
            names.append(source.name)
            counts = self._sources.setdefault(source.name, _OfSource())
            if (usage := _usage_of(source)) is not None:
                counts.note_usage(usage)
        return {
            "sources": {name: self._sources[name].to_json() for name in names},
            "deliveries": [
                {"source": source, "kind": str(kind), "outcome": str(verdict), "count": count}
                for (source, kind, verdict), count in self._deliveries.items()
            ],
            "limits": list(LIMITS_S),
            "waits": [
                {"since": since, "source": source, "kind": str(kind), **_shown(waits)}
                for (since, source, kind), waits in self._waits.items()
            ],
        }


def _finite(number: float | None) -> float | None:
    return number if number is not None and math.isfinite(number) else None


def _shown(waits: Waits) -> dict[str, Any]:
    return {"counts": waits.counts, "seconds": round(waits.seconds, 3)}


def _usage_of(source: Source) -> Usage | None:
    """None for a source that does not count its requests, or fails to tell."""
    if not isinstance(source, Metered):
        return None
    try:
        return source.usage()
    except Exception:  # noqa: BLE001 (the border: the heartbeat does not depend on it)
        return None
