"""What had to arrive in a replay, beside what did."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from support.github.values import Kind
from support.replay import LINGER_S
from support.replay_cost import SWEEP

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from support.replay import Replay
    from support.traffic import TrafficEvent


@dataclass
class Outcome:
    """The lists are empty when all is well. Delays are in looks after the first that could have brought it."""

    expected: Counter[Kind]
    left_out: Counter[str]
    arrived: int
    by_spawn: int  # of these, what a spawn carried
    review_delays: list[int]
    other_delays: list[int]
    late: list[str]
    missed: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    disordered: list[str] = field(default_factory=list)
    unwanted: list[str] = field(default_factory=list)  # what is nothing to be delivered
    surprising: list[str] = field(default_factory=list)  # sessions that should not have started or ended
    costly: list[str] = field(default_factory=list)  # idle looks that were not

    @property
    def faults(self) -> list[str]:
        names = ("missed", "doubled", "late", "disordered", "unwanted", "surprising", "costly")
        return [f"{name}: {line}" for name in names for line in getattr(self, name)]


def judge(replay: Replay) -> Outcome:
    """Compare what arrived with what the listings say."""
    due, left_out = _due(replay)
    known = {_name(event): event for event in replay.traffic.events}
    items = _by_item(replay.world.received)
    arrived = Counter(name for keys in items.values() for name in keys if not _is_of_session(name))
    delays = list(_delays(replay, known))
    outcome = Outcome(
        expected=Counter(event.kind for event in due),
        left_out=left_out,
        arrived=arrived.total(),
        by_spawn=sum(len(payload["thread"]) for payload in replay.world.received),
        review_delays=[delay for event, delay in delays if event.kind is Kind.REVIEW],
        other_delays=[delay for event, delay in delays if event.kind is not Kind.REVIEW],
        late=[f"{_name(event)}: {delay} looks" for event, delay in delays if delay > _most_looks(event, replay)],
        missed=sorted({_name(event) for event in due} - set(arrived)),
        doubled=sorted(name for name, count in arrived.items() if count > 1),
        unwanted=sorted(name for name in arrived if name not in known or known[name].is_empty()),
        costly=replay.account.wrong,
    )
    for number, names in items.items():
        events = [known[name] for name in names if name in known]
        outcome.disordered += _disorder(events, replay)
        outcome.surprising += _sessions(number, names, replay)
    outcome.surprising += [f"{number}: never started" for number in replay.first_listed if number not in items]
    return outcome


def _due(replay: Replay) -> tuple[list[TrafficEvent], Counter[str]]:
    """What had to arrive, and a count of the rest by reason."""
    due, left_out = [], Counter[str]()
    last = replay.moments[-1] - replay.plan.lag_s
    last_swept = last if replay.plan.is_prompt else replay.moments[-2 * SWEEP - 2 :][0]
    for event in replay.traffic.events:
        listed, left = replay.first_listed.get(event.number), replay.left.get(event.number)
        if event.is_empty():
            left_out["only holds review comments"] += 1
        elif event.visible > last:
            left_out["came to light after the last look"] += 1
        elif listed is None:
            left_out["its item was in no listing"] += 1
        elif left is not None and event.visible > left + LINGER_S - replay.plan.lag_s:
            left_out["came to light too long after its item had left"] += 1
        elif event.kind is Kind.REVIEW and last_swept < event.visible and (left is None or left + LINGER_S > last):
            left_out["a review that the last sweeps need not have met"] += 1
        else:
            due.append(event)
    return due, left_out


def _by_item(received: Sequence[dict[str, Any]]) -> dict[int, list[str]]:
    """What arrived, by item and in order; the entries that a spawn carries stand behind it."""
    items: dict[int, list[str]] = {}
    for payload in received:
        number = int(payload["ref"].rpartition("#")[2])
        keys = [payload["deliveryId"].rpartition("/")[2], *(f"{e['kind']}:{e['id']}" for e in payload["thread"])]
        items.setdefault(number, []).extend(f"{number}/{key}" for key in keys)
    return items


def _delays(replay: Replay, known: dict[str, TrafficEvent]) -> Iterator[tuple[TrafficEvent, int]]:
    """Of everything that came by itself: how many looks could have brought it before the one that did."""
    for payload, look in zip(replay.world.received, replay.arrived_in, strict=True):
        ref, _, key = payload["deliveryId"].rpartition("/")
        event = known.get(f"{ref.rpartition('#')[2]}/{key}")
        if event is not None:
            yield event, look - _first_look(event, replay)


def _most_looks(event: TrafficEvent, replay: Replay) -> int:
    """How many looks may overlook this.

    A review that moves nothing waits for the sweep, which has been around after twice thirty looks for sure. Where
    answers lag, the next look has it; or the one after, where nobody could tell yet that its item left.
    """
    plan = replay.plan
    if event.kind is Kind.REVIEW and not plan.is_prompt:
        return 2 * SWEEP
    if not plan.lag_s:
        return 0
    left = replay.left.get(event.number)
    is_leaving = left is not None and _first_look(event, replay) + 1 >= bisect_left(replay.moments, left)
    return 2 if is_leaving else 1


def _first_look(event: TrafficEvent, replay: Replay) -> int:
    """The number of the first look that could show this."""
    listed = replay.first_listed.get(event.number, replay.moments[-1])
    return max(bisect_left(replay.moments, event.visible), bisect_left(replay.moments, listed))


def _disorder(arrived: Sequence[TrafficEvent], replay: Replay) -> list[str]:
    """Where reviews may be found by the sweep alone, their place among the others is nobody's promise."""
    if replay.plan.is_prompt:
        return list(_inversions(arrived, replay))
    reviews = [event for event in arrived if event.kind is Kind.REVIEW]
    others = [event for event in arrived if event.kind is not Kind.REVIEW]
    return [*_inversions(reviews, replay), *_inversions(others, replay)]


def _inversions(arrived: Sequence[TrafficEvent], replay: Replay) -> Iterator[str]:
    """Neighbours of which the later one had been there a look before the earlier one came to light.

    What one look could show first, and no earlier one that was cut off, has to come in the order of writing.
    """
    slack = 1 if replay.plan.lag_s else 0
    for one, other in pairwise(arrived):
        is_late = bisect_left(replay.moments, one.visible) > _first_look(other, replay) + slack
        same_look = not slack and len({bisect_left(replay.tries, event.visible) for event in (one, other)}) == 1
        if is_late or (same_look and (one.created, one.id) > (other.created, other.id)):
            yield f"{_name(one)} before {_name(other)}"


def _sessions(number: int, names: Sequence[str], replay: Replay) -> list[str]:
    """One spawn, first; one close, last, once its item had left for long enough."""
    own = [name.partition("/")[2] for name in names if _is_of_session(name)]
    left = replay.left.get(number)
    is_over = left is not None and left + LINGER_S <= replay.moments[-1]
    wanted = ["spawn:1", "close:1"] if is_over else ["spawn:1"]
    if number not in replay.first_listed and number in replay.glimpsed:
        wanted = own[:1] + ["close:1"] * (len(own) > 1)
    if own != wanted or not names[0].endswith("/spawn:1") or ("close:1" in own and not names[-1].endswith("/close:1")):
        return [f"{number}: {own}, not {wanted}"]
    return []


def _is_of_session(name: str) -> bool:
    return "/spawn:" in name or "/close:" in name


def _name(event: TrafficEvent) -> str:
    return f"{event.number}/{event.kind}:{event.id}"
