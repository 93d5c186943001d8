"""What `the-loop report` shows of a span of time: from the event log and the heartbeat to numbers. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import accumulate
from typing import Any, Final

from the_loop.shapes import histogram, mapping, mappings, number

Event = Mapping[str, Any]

_LIMITS_S: Final = (10, 60, 300, 900, 1800, 3600, 7200, 14_400, 86_400)  # of the time until a delivery is over
_MOST_BARS: Final = 48
_WIDTHS_S: Final = (60, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400)  # then doubled


class Result(StrEnum):
    """What became of one delivery, in words for people."""

    DELIVERED = "delivered"
    DEFERRED = "deferred"
    REJECTED = "rejected"
    UNKNOWN = "outcome unknown"


_RESULTS: Final[Mapping[str, Result]] = {
    "poll.spawned": Result.DELIVERED,
    "poll.comment_forwarded": Result.DELIVERED,
    "session.closed": Result.DELIVERED,
    "poll.deferred": Result.DEFERRED,
    "poll.spawn_failed": Result.REJECTED,
    "poll.comment_failed": Result.REJECTED,
    "dispatch.uncertain": Result.UNKNOWN,
    "poll.comment_held": Result.UNKNOWN,
}


@dataclass(frozen=True, slots=True)
class Bar:
    """The deliveries of one stretch of the span, which begins at `start`."""

    start: datetime
    counts: Counter[Result]


@dataclass(frozen=True, slots=True)
class Wait:
    """How long it took with events of one kind.

    `counts` are per bucket; `limits` are their upper limits in seconds, of all but the last.
    """

    since: str  # created or accepted
    source: str
    kind: str
    limits: Sequence[float]
    counts: Sequence[int]

    @property
    def number(self) -> int:
        return sum(self.counts)

    def within_s(self, share: float) -> float | None:
        """A time within which at least this share of the events was handed over; None if that has no limit."""
        enough = share * self.number
        reached = (limit for limit, count in zip(self.limits, accumulate(self.counts), strict=False) if count >= enough)
        return next(reached, None)


@dataclass(frozen=True, slots=True)
class ItemStory:
    """One item in the span: its events, the oldest first."""

    ref: str
    events: Sequence[Event]
    counts: Counter[Result]
    needs_person: bool


@dataclass(frozen=True, slots=True)
class Report:
    """Everything on the page. None is what is not known."""

    since: datetime
    until: datetime
    width: timedelta
    bars: Sequence[Bar]
    counts: Counter[Result]
    gave_up: int
    items: Sequence[ItemStory]  # those that need a person first, then the one with the newest event
    others: Sequence[Event]  # of no item
    deliveries: Sequence[Wait]  # from acceptance to delivery, in the span
    waits: Sequence[Wait]  # until the first hand-over, since the poller's start
    sources: Sequence[Mapping[str, Any]] | None
    attention: Sequence[Mapping[str, Any]] | None
    running: int | None
    beat: Mapping[str, Any]


def report_of(
    events: Iterable[Event], beat: Mapping[str, Any], since: datetime, until: datetime, *, is_current: bool
) -> Report:
    """The report about `since` to `until`. `events` are of that span, the oldest first; `beat` is empty if unknown.

    `is_current`: the poller that wrote the heartbeat is running. Bars begin at full hours and days
    of the time zone of `since`.
    """
    told = list(events)
    attention = mappings(beat["attention"]) if "attention" in beat else None
    width = _width(until - since)
    return Report(
        since=since,
        until=until,
        width=width,
        bars=_bars(told, since, until, width),
        counts=_counts(told),
        gave_up=sum(event.get("willRetry") is False for event in told),
        items=_items(told, {str(one.get("ref")) for one in attention or ()}),
        others=[event for event in told if not _item_of(event) and _is_news(event)],
        deliveries=_deliveries(told),
        waits=_waits(beat),
        sources=mappings(beat["sources"]) if "writtenAt" in beat else None,
        attention=attention,
        running=_running(beat) if is_current else None,
        beat=beat,
    )


def moment_of(event: Event) -> datetime:
    """When it was told; `eventlog.parse_line` made sure that this can be read."""
    return datetime.fromisoformat(event["time"])


def result_of(event: Event) -> Result | None:
    """What the event says of one delivery; None if nothing."""
    return _RESULTS.get(event["event"])


def _counts(events: Iterable[Event]) -> Counter[Result]:
    return Counter(result for event in events if (result := result_of(event)) is not None)


def _width(span: timedelta) -> timedelta:
    """The narrowest of the usual widths with which the bars are not too many."""
    for width_s in _WIDTHS_S:
        if span <= timedelta(seconds=width_s * _MOST_BARS):
            return timedelta(seconds=width_s)
    width = timedelta(seconds=_WIDTHS_S[-1])
    while span > width * _MOST_BARS:
        width *= 2
    return width


def _bars(events: Iterable[Event], since: datetime, until: datetime, width: timedelta) -> list[Bar]:
    """The bars of the span; the first one begins before it, as they begin at full hours and days."""
    midnight = since.replace(hour=0, minute=0, second=0, microsecond=0)
    first = midnight + (since - midnight) // width * width
    number = -((first - until) // width)
    counts: list[Counter[Result]] = [Counter() for _ in range(max(number, 1))]
    for event in events:
        place = (moment_of(event) - first) // width
        if (result := result_of(event)) is not None and 0 <= place < len(counts):
            counts[place][result] += 1
    return [Bar(first + place * width, one) for place, one in enumerate(counts)]


def _items(events: Iterable[Event], attention: set[str]) -> list[ItemStory]:
    by_ref: dict[str, list[Event]] = {}
    for event in events:
        if ref := _item_of(event):
            by_ref.setdefault(ref, []).append(event)
    stories = [ItemStory(ref, told, _counts(told), ref in attention) for ref, told in by_ref.items()]
    return sorted(stories, key=lambda story: (story.needs_person, story.events[-1]["time"]), reverse=True)


def _item_of(event: Event) -> str:
    """The item that the event is about; empty if about none."""
    ref, delivery = event.get("ref"), event.get("deliveryId")
    if isinstance(ref, str):
        return ref
    return delivery.rpartition("/")[0] if isinstance(delivery, str) else ""


def _is_news(event: Event) -> bool:
    """Cycles that delivered something are told by their items."""
    return event["event"] != "poll.cycle" or bool(event.get("errors")) or bool(event.get("interrupted"))


def _running(beat: Mapping[str, Any]) -> int | None:
    running = number(mapping(beat.get("counters")).get("running"))
    return None if running is None else int(running)


def _deliveries(events: Iterable[Event]) -> list[Wait]:
    """The time from acceptance to delivery, of events of which both were told."""
    accepted: dict[str, datetime] = {}
    counts: dict[tuple[str, str], list[int]] = {}
    for event in events:
        delivery = str(event.get("deliveryId"))
        if event["event"] == "poll.accepted":
            accepted.setdefault(delivery, moment_of(event))
        elif result_of(event) is Result.DELIVERED and (begun := accepted.pop(delivery, None)) is not None:
            place = (str(event.get("source", "")), str(event.get("kind")))
            found = counts.setdefault(place, [0] * (len(_LIMITS_S) + 1))
            found[bisect_left(_LIMITS_S, (moment_of(event) - begun).total_seconds())] += 1
    return [Wait("accepted", source, kind, _LIMITS_S, found) for (source, kind), found in sorted(counts.items())]


def _waits(beat: Mapping[str, Any]) -> list[Wait]:
    """The histograms of the heartbeat, as far as they are whole."""
    counters = mapping(beat.get("counters"))
    found = []
    for one in mappings(counters.get("waits")):
        whole = histogram(counters.get("limits"), one.get("counts"))
        if whole is not None and any(whole[1]):
            since, source, kind = (str(one.get(name)) for name in ("since", "source", "kind"))
            found.append(Wait(since, source, kind, *whole))
    return found
