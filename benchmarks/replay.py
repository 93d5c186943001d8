"""Sixty days of a real repository's traffic, played to the poller in virtual time: what arrived, and what it cost.

    benchmarks/replay.py [--interval 60] [--days 60] [--seed 1]
        [--lag 20] [--coalesce 10] [--exclusive] [--still-reviews] [--rotate 3600] [--restarts 0.005] [--crashes 0.5]
        [--breaker 30]

Everybody who writes is authorised. What has to arrive: each comment, review and review comment that came to light
while its pull request was in a listing that the poller made, or up to `lingerSeconds` after the first one without it.
Exit status 1 if any of it is missing, doubled, late or out of order, if anything else arrived, or if an idle look
cost a point or more than a request beside its formula. With `--breaker`, which items it would have paused; what waits
behind one until the next look is not late.
"""  # noqa: INP001 (a script, not a package)

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median, quantiles

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from support.github.values import Kind
from support.replay import Plan, Replay, play
from support.replay_judge import Outcome, judge
from support.traffic import TRAFFIC

_LINES = 100  # of what is wrong


def table(replay: Replay, outcome: Outcome) -> str:
    """The run as a table in Markdown."""
    rows = [*_set_up(replay), *_cost(replay), *_arrivals(outcome)]
    return "\n".join(["| | |", "|---|---|", *(f"| {what} | {value} |" for what, value in rows)])


def _set_up(replay: Replay) -> Iterator[tuple[str, str]]:
    plan = replay.plan
    yield "interval, seed", f"{plan.interval_s} s, {plan.seed}"
    yield "answers up to so old, `updated_at` coalesced within", f"{plan.lag_s:g} s, {plan.coalesce_s:g} s"
    yield "`since`, reviews", f"{_choice(plan.is_exclusive)}, {'still' if plan.are_reviews_still else 'move the row'}"
    yield "token renewed every, times", f"{plan.rotate_s:g} s, {replay.tokens.renewals}" if plan.rotate_s else "never"
    yield "virtual days, looks", f"{_hours(replay) / 24:.1f}, {len(replay.moments)}"
    yield "lives, of them cut off within a look", f"{replay.lives}, {replay.crashes.total()}"
    yield "cut off before request: times", _histogram(replay)
    listed = [spent.listed for spent in replay.account.spent]
    yield "listed items: median, most", f"{median(listed):g}, {max(listed)}"


def _cost(replay: Replay) -> Iterator[tuple[str, str]]:
    account, hours = replay.account, _hours(replay)
    requests = [spent.requests for spent in account.spent]
    points = [spent.points for spent in account.spent]
    yield "requests per look: mean, median, most", f"{_mean(requests):.2f}, {median(requests):g}, {max(requests)}"
    yield "points per look: mean, most", f"{_mean(points):.3f}, {max(points)}"
    yield "requests, points per hour", f"{replay.github.requests / hours:.1f}, {replay.github.points / hours:.2f}"
    yield "looks that cost no point", f"{100 * points.count(0) / len(points):.1f} %"
    yield "idle looks, points in them", f"{len(account.idle)}, {sum(points[number] for number in account.idle)}"
    yield "requests of an idle look: furthest from the formula", f"{account.furthest:.2f}"


def _arrivals(outcome: Outcome) -> Iterator[tuple[str, str]]:
    due = ", ".join(str(outcome.expected[kind]) for kind in (Kind.COMMENT, Kind.REVIEW_COMMENT, Kind.REVIEW))
    wrong = (outcome.missed, outcome.doubled, outcome.late, outcome.disordered)
    yield "had to arrive: comments, review comments, reviews", due
    yield "arrived: by themselves, with a spawn", f"{outcome.arrived - outcome.by_spawn}, {outcome.by_spawn}"
    yield "missed, doubled, late, out of order", ", ".join(str(len(lines)) for lines in wrong)
    yield "nothing to be delivered, sessions gone wrong", f"{len(outcome.unwanted)}, {len(outcome.surprising)}"
    yield "looks in which a review was overlooked: median, 99 %, most", _spread(outcome.review_delays)
    yield "the same of comments and review comments", _spread(outcome.other_delays)
    for why, count in sorted(outcome.left_out.items()):
        yield f"left out: {why}", str(count)


def _trips(replay: Replay) -> Iterator[str]:
    """A table of what the breaker paused."""
    if not replay.plan.breaker:
        return
    yield f"\n{len(replay.trips)} pauses at {replay.plan.breaker} events within an hour"
    yield "| item | the events it counted were written | in minutes | authors | kinds |"
    yield "|---|---|---|---|---|"
    for ref, moments in replay.trips:
        number = int(ref.rpartition("#")[2])
        written = [one for one in replay.traffic.events if one.number == number and one.created in set(moments)]
        authors = Counter(one.author for one in written).most_common(3)
        kinds = Counter(str(one.kind) for one in written)
        began = datetime.fromtimestamp(moments[0], UTC)
        yield (
            f"| {number} | {began:%Y-%m-%d %H:%M} | {(moments[-1] - moments[0]) / 60:.0f} "
            f"| {_counted(authors)} | {_counted(kinds.items())} |"
        )


def _counted(counts: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{name}: {count}" for name, count in counts)


def _choice(is_exclusive: bool) -> str:  # noqa: FBT001
    return "exclusive" if is_exclusive else "inclusive"


def _hours(replay: Replay) -> float:
    return (replay.clock.now - replay.traffic.start) / 3600


def _histogram(replay: Replay) -> str:
    """Crashes by the number of the request before which they came; the rare high ones together."""
    most = 9
    by_request = {number: count for number, count in replay.crashes.items() if isinstance(number, int)}
    parts = [f"{number}: {by_request[number]}" for number in sorted(by_request) if number < most]
    beyond = sum(count for number, count in by_request.items() if number >= most)
    return ", ".join([*parts, f"later: {beyond}"] if beyond else parts) or "none"


def _spread(delays: Sequence[int]) -> str:
    if len(delays) < 2:
        return "too few"
    return f"{median(delays):g}, {quantiles(delays, n=100, method='inclusive')[98]:.0f}, {max(delays)}"


def _mean(numbers: Sequence[int]) -> float:
    return sum(numbers) / len(numbers)


def plan_of(arguments: Sequence[str] | None) -> Plan:
    """The plan that these arguments ask for."""
    parser = argparse.ArgumentParser(description=f"Replay {TRAFFIC.name} in virtual time.")
    parser.add_argument("--interval", dest="interval_s", type=int, default=60, metavar="SECONDS")
    parser.add_argument("--days", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    for name, field in (("lag", "lag_s"), ("coalesce", "coalesce_s"), ("rotate", "rotate_s")):
        parser.add_argument(f"--{name}", dest=field, type=float, default=0.0, metavar="SECONDS")
    for name, field in (("exclusive", "is_exclusive"), ("still-reviews", "are_reviews_still")):
        parser.add_argument(f"--{name}", dest=field, action="store_true")
    parser.add_argument("--breaker", type=int, default=0, metavar="EVENTS")
    for name in ("restarts", "crashes"):
        parser.add_argument(f"--{name}", type=float, default=0.0, metavar="PROBABILITY")
    return Plan(**vars(parser.parse_args(arguments)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Replay as the arguments say, print the table and what is wrong, return the exit status."""
    with tempfile.TemporaryDirectory() as folder:
        replay = asyncio.run(play(Path(folder), plan_of(arguments)))
    outcome = judge(replay)
    sys.stdout.write(f"{table(replay, outcome)}\n| processor time | {replay.processor_s:.0f} s |\n")
    sys.stdout.writelines(f"{line}\n" for line in _trips(replay))
    if replay.plan.breaker:
        outcome.late.clear()
    sys.stdout.writelines(f"{line}\n" for line in outcome.faults[:_LINES])
    return 1 if outcome.faults else 0


if __name__ == "__main__":
    sys.exit(main())
