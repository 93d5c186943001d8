"""Sixty days of a real repository's traffic, played to the poller in virtual time: what arrived, and what it cost.

    benchmarks/replay.py [--interval 60] [--lag 20] [--restarts 0.02] [--seed 1] [--days 60]

Everybody who writes is authorised. What has to arrive: each comment and review comment that came to light while its
pull request was in a listing that the poller made, or up to `lingerSeconds` after the first one without it. Exit
status 1 if any of it is missing, doubled or out of order.
"""  # noqa: INP001 (a script, no package)

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from support.github_fake import FakeGitHub
from support.github_values import Kind, Rules, View
from support.traffic import TRAFFIC, Traffic, TrafficEvent, load_traffic
from support.world import REPO, Clock, Crash, Fuse, World

LINGER_S = 180
_LONGEST_OUTAGE_S = 3 * 3600.0
_STEPS_AT_MOST = 16  # of a life that is to be cut off within a cycle


@dataclass(frozen=True)
class Plan:
    """How the poller lives. `restarts`: the probability of one in a cycle, ten times that where something came up."""

    interval_s: int = 60
    lag_s: float = 0.0  # answers are up to this much behind, each as it happens
    restarts: float = 0.0
    seed: int = 1
    days: float = 60.0


@dataclass
class Cost:
    """What the cycles asked for, each as (requests, points)."""

    cycles: list[tuple[int, int]] = field(default_factory=list)
    listed: list[int] = field(default_factory=list)
    lives: int = 1
    crashes: int = 0
    processor_s: float = 0.0  # of everything: the poller, the GitHub it asks, and the keeping of accounts


@dataclass
class Outcome:
    """What arrived beside what had to. The four lists are empty when all is well."""

    expected: int
    arrived: int
    by_spawn: int  # of these, what a spawn carried
    left_out: Counter[str]
    cost: Cost
    virtual_s: float
    missed: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    disordered: list[str] = field(default_factory=list)
    surprising: list[str] = field(default_factory=list)  # sessions that should not have started or ended

    @property
    def is_good(self) -> bool:
        return not (self.missed or self.doubled or self.disordered or self.surprising)


class Replay:
    """One run. The listings are noted from the fake's own history, never from what the poller says of them."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        self.plan = plan
        self.random = Random(plan.seed)
        self.clock = Clock()
        self.github = FakeGitHub(self.clock, Rules(lag_s=self._lag_s), log_limit=100)
        self.traffic: Traffic = load_traffic(self.github)
        self._visible = [event.visible for event in self.traffic.events]
        self.clock.now = float(self.traffic.start)
        self.end = min(self.traffic.end, self.traffic.start + plan.days * 86_400)
        people = frozenset(event.author.lower() for event in self.traffic.events) | frozenset(self._openers())
        self.world = World(
            folder, self.github, self.clock, people=people, interval_s=plan.interval_s, linger_s=LINGER_S
        )
        self.cost = Cost()
        self.moments: list[float] = []  # of the cycles that ran to their end
        self.first_listed: dict[int, float] = {}
        self.left: dict[int, float] = {}
        self._listing_lag_s = 0.0

    async def run(self) -> Outcome:
        began = time.process_time()
        while self.clock.now < self.end:
            await self._cycle()
        self.cost.processor_s = time.process_time() - began
        return judge(self)

    # --- one cycle ---

    async def _cycle(self) -> None:
        if self.random.random() < self.plan.restarts * (10 if self._has_news() else 1):
            await self._restart()
        before = (self.github.requests, self.github.points)
        self.moments.append(self.clock.now)
        self._listing_lag_s = 0.0
        await self.world.cycle()
        self._note_listing(self.moments[-1] - self._listing_lag_s)
        self.cost.cycles.append((self.github.requests - before[0], self.github.points - before[1]))

    async def _restart(self) -> None:
        """Between two cycles, or cut off at some step of one; then nobody polls for a while."""
        if self.random.random() < 0.5:
            self.world = self.world.restart(fuse=Fuse(at=self.random.randrange(1, _STEPS_AT_MOST)))
            try:
                await self.world.cycle()
            except Crash:
                self.cost.crashes += 1
        self.clock.run(self.random.choice((0.0, self.random.uniform(0, _LONGEST_OUTAGE_S))))
        self.world = self.world.restart()
        self.cost.lives += 1

    def _has_news(self) -> bool:
        after = self.moments[-1] if self.moments else 0.0
        return bisect_right(self._visible, after) < bisect_right(self._visible, self.clock.now)

    def _lag_s(self, view: View) -> float:
        lag_s = self.random.uniform(0, self.plan.lag_s) if self.plan.lag_s else 0.0
        if view is View.ISSUES:
            self._listing_lag_s = lag_s
        return lag_s

    def _note_listing(self, moment: float) -> None:
        listed = 0
        for number, thread in self.github.repo(REPO).threads.items():
            issue = thread.issue.at(moment)
            if issue is not None and issue.closed is None:
                listed += 1
                self.first_listed.setdefault(number, self.moments[-1])
            elif number in self.first_listed:
                self.left.setdefault(number, self.moments[-1])
        self.cost.listed.append(listed)

    def _openers(self) -> Iterator[str]:
        for thread in self.github.repo(REPO).threads.values():
            author = thread.issue.state(0).author
            if author is not None:
                yield author.lower()


async def play(folder: Path, plan: Plan) -> Outcome:
    """One whole run, with the state root below `folder`."""
    return await Replay(folder, plan).run()


# --- what had to arrive ---


def judge(replay: Replay) -> Outcome:
    """Compare what arrived with what the listings say."""
    due, left_out = _due(replay)
    items = _by_item(replay.world.received)
    arrived = Counter(name for keys in items.values() for name in keys if not _is_of_session(name))
    outcome = Outcome(
        expected=len(due),
        arrived=arrived.total(),
        by_spawn=sum(len(payload["thread"]) for payload in replay.world.received),
        left_out=left_out,
        cost=replay.cost,
        virtual_s=replay.clock.now - replay.traffic.start,
        missed=sorted(set(due) - set(arrived)),
        doubled=sorted(name for name, count in arrived.items() if count > 1),
    )
    known = {_name(event): event for event in replay.traffic.events}
    for number, names in items.items():
        outcome.disordered += _disorder([known[name] for name in names if name in known], replay)
        outcome.surprising += _sessions(number, names, replay)
    outcome.surprising += [f"{number}: never started" for number in replay.first_listed if number not in items]
    return outcome


def _due(replay: Replay) -> tuple[list[str], Counter[str]]:
    """The names of what had to arrive, and a count of the rest by reason."""
    due, left_out = [], Counter[str]()
    last = replay.moments[-1] - replay.plan.lag_s
    for event in replay.traffic.events:
        if event.kind is Kind.REVIEW:
            left_out["a review: not in scope yet"] += 1
        elif event.visible > last:
            left_out["came to light after the last cycle"] += 1
        elif event.number not in replay.first_listed:
            left_out["its item was in no listing"] += 1
        elif event.visible > replay.left.get(event.number, last) + LINGER_S - replay.plan.lag_s:
            left_out["came to light too long after its item had left"] += 1
        else:
            due.append(_name(event))
    return due, left_out


def _by_item(received: Sequence[dict[str, Any]]) -> dict[int, list[str]]:
    """What arrived, by item and in order; the entries that a spawn carries stand behind it."""
    items: dict[int, list[str]] = {}
    for payload in received:
        number = int(payload["ref"].rpartition("#")[2])
        keys = [payload["deliveryId"].rpartition("/")[2], *(f"{e['kind']}:{e['id']}" for e in payload["thread"])]
        items.setdefault(number, []).extend(f"{number}/{key}" for key in keys)
    return items


def _disorder(arrived: Sequence[TrafficEvent], replay: Replay) -> list[str]:
    """Neighbours of which the later one had been there a cycle before the earlier one came to light."""
    found = []
    slack = 1 if replay.plan.lag_s else 0
    for one, other in pairwise(arrived):
        cycles = [bisect_left(replay.moments, event.visible) for event in (one, other)]
        is_late = cycles[0] > max(cycles[1], bisect_left(replay.moments, replay.first_listed[one.number])) + slack
        same_look = cycles[0] == cycles[1] and not slack
        if is_late or (same_look and (one.created, one.id) > (other.created, other.id)):
            found.append(f"{_name(one)} before {_name(other)}")
    return found


def _sessions(number: int, names: Sequence[str], replay: Replay) -> list[str]:
    """One spawn, first; one close, last, once its item had left for long enough."""
    own = [name.partition("/")[2] for name in names if _is_of_session(name)]
    left = replay.left.get(number)
    is_over = left is not None and left + LINGER_S <= replay.moments[-1]
    wanted = ["spawn:1", "close:1"] if is_over else ["spawn:1"]
    if own != wanted or not names[0].endswith("/spawn:1") or (is_over and not names[-1].endswith("/close:1")):
        return [f"{number}: {own}, not {wanted}"]
    return []


def _is_of_session(name: str) -> bool:
    return "/spawn:" in name or "/close:" in name


def _name(event: TrafficEvent) -> str:
    return f"{event.number}/{event.kind}:{event.id}"


# --- as a program ---


def table(plan: Plan, outcome: Outcome) -> str:
    """The run as a table in Markdown."""
    cost = outcome.cost
    requests = [asked for asked, _ in cost.cycles]
    points = [spent for _, spent in cost.cycles]
    hours = outcome.virtual_s / 3600
    rows = [
        ("interval, lag, restarts, seed", f"{plan.interval_s} s, {plan.lag_s:g} s, {plan.restarts:g}, {plan.seed}"),
        ("virtual days, cycles", f"{outcome.virtual_s / 86400:.1f}, {len(requests)}"),
        ("lives, of them cut off within a cycle", f"{cost.lives}, {cost.crashes}"),
        ("listed items: median, most", f"{median(cost.listed):g}, {max(cost.listed)}"),
        ("requests per cycle: mean, median, most", f"{_mean(requests):.2f}, {median(requests):g}, {max(requests)}"),
        ("points per cycle: mean, most", f"{_mean(points):.3f}, {max(points)}"),
        ("points per hour", f"{sum(points) / hours:.2f}"),
        ("cycles that cost no point", f"{100 * points.count(0) / len(points):.1f} %"),
        ("comments that had to arrive", str(outcome.expected)),
        ("arrived: by themselves, with a spawn", f"{outcome.arrived - outcome.by_spawn}, {outcome.by_spawn}"),
        ("missed, doubled, out of order", f"{len(outcome.missed)}, {len(outcome.doubled)}, {len(outcome.disordered)}"),
        ("sessions gone wrong", str(len(outcome.surprising))),
        *((f"left out: {why}", str(count)) for why, count in sorted(outcome.left_out.items())),
        ("processor time", f"{cost.processor_s:.0f} s"),
    ]
    return "\n".join(["| | |", "|---|---|", *(f"| {what} | {value} |" for what, value in rows)])


def _mean(numbers: Sequence[int]) -> float:
    return sum(numbers) / len(numbers)


def main(arguments: Sequence[str] | None = None) -> int:
    """Replay as the arguments say, print the table, return the exit status."""
    parser = argparse.ArgumentParser(description=f"Replay {TRAFFIC.name} in virtual time.")
    parser.add_argument("--interval", type=int, default=60, metavar="SECONDS")
    parser.add_argument("--lag", type=float, default=0.0, metavar="SECONDS")
    parser.add_argument("--restarts", type=float, default=0.0, metavar="PROBABILITY")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--days", type=float, default=60.0)
    asked = parser.parse_args(arguments)
    plan = Plan(asked.interval, asked.lag, asked.restarts, asked.seed, asked.days)
    with tempfile.TemporaryDirectory() as folder:
        outcome = asyncio.run(play(Path(folder), plan))
    sys.stdout.write(f"{table(plan, outcome)}\n")
    for what in ("missed", "doubled", "disordered", "surprising"):
        for line in getattr(outcome, what):
            sys.stdout.write(f"{what}: {line}\n")
    return 0 if outcome.is_good else 1


if __name__ == "__main__":
    sys.exit(main())
