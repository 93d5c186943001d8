"""Sixty days of a real repository's traffic, lived through by a whole poller core in virtual time.

    outcome = judge(await play(tmp_path, Plan(interval_s=300, crashes=0.5)))   # `judge` is in replay_judge
    assert outcome.is_good

Everybody who writes is authorised. What the poller could see is noted from the fake's own history, never from what
the poller says of it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass
from itertools import count
from random import Random
from time import process_time
from typing import TYPE_CHECKING

from support.clock import Clock
from support.fuse import Crash, Fuse
from support.github.fake import FakeGitHub
from support.github.values import Rules, View
from support.replay_cost import Account
from support.traffic import Traffic, load_traffic
from support.world import REPO, World
from the_loop.core.breaker import lifted

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LINGER_S = 180
_LONGEST_OUTAGE_S = 3 * 3600.0
_LONGEST_PAUSE_S = 300.0  # between a crash and the next life
_STEPS_AT_MOST = 16  # of a life that is to be cut off within a look
_REQUESTS_AT_MOST = 10  # likewise, where nothing but requests counts
_QUIET = 20  # so many times rarer is a crash in a look without news
_REQUEST = frozenset({"request"})
_LOG_LIMIT = 1000  # requests; no look needs as many


@dataclass(frozen=True)
class Plan:
    """How GitHub behaves, and how the poller lives.

    `restarts`: the probability of one in a look, ten times that where something came up. `crashes`: the probability
    that a look in which something came up is cut off at a request, a twentieth of that for any other look.
    """

    interval_s: int = 60
    days: float = 60.0
    seed: int = 1
    lag_s: float = 0.0  # answers are up to this much behind, each as it happens
    coalesce_s: float = 0.0  # the `updated_at` of an item does not move twice within that
    is_exclusive: bool = False  # `since` leaves out its own second
    are_reviews_still: bool = False  # reviews and review comments do not move the item's row
    rotate_s: float = 0.0  # how long a token lives; 0: for ever
    restarts: float = 0.0
    crashes: float = 0.0
    breaker: int = 0  # events of one item within an hour; one that it pauses goes on with the next look

    @property
    def is_prompt(self) -> bool:
        """Whether each review shows at once on the row of its item."""
        return not (self.lag_s or self.coalesce_s or self.are_reviews_still)


class Tokens:
    """The token in its file, which is another one every so often. The one before it is still taken."""

    def __init__(self, github: FakeGitHub, path: Path, every_s: float) -> None:
        self.path = path
        self.renewals = -1
        self._github = github
        self._every_s = every_s
        self._renew()
        self._due = github.clock() + every_s

    def renew_if_due(self, random: Random) -> None:
        """Now, or after one of the next three requests: a look may begin with one token and end with another."""
        if not self._every_s or self._github.clock() < self._due:
            return
        self._due = self._github.clock() + self._every_s
        if requests := random.randrange(4):
            self._github.between(self._github.requests + requests, self._renew)
        else:
            self._renew()

    def _renew(self) -> None:
        self.renewals += 1
        present, last = f"token-{self.renewals}", f"token-{self.renewals - 1}"
        self._github.tokens = {present: "the-loop-bot", last: "the-loop-bot"}
        self.path.write_text(f"{present}\n", "ascii")


class Replay:
    """One run, and all that its judge has to know.

    `tries`: the moments of all looks; `moments`: of those that ran to their end. `glimpsed`: what was listed in one
    that did not. `arrived_in` has for each thing received the number of the look that brought it. `crashes` counts
    by request, or kind of step.
    """

    def __init__(self, folder: Path, plan: Plan) -> None:
        self.plan = plan
        self.random = Random(plan.seed)
        self.clock = Clock()
        rules = Rules(
            since_inclusive=not plan.is_exclusive,
            lag_s=self._lag_s,
            coalesce_s=plan.coalesce_s,
            reviews_move_issue=not plan.are_reviews_still,
        )
        self.github = FakeGitHub(self.clock, rules, log_limit=_LOG_LIMIT)
        self.traffic: Traffic = load_traffic(self.github)
        self._visible = [event.visible for event in self.traffic.events]
        self.clock.now = float(self.traffic.start)
        self.end = min(self.traffic.end, self.traffic.start + plan.days * 86_400)
        self.tokens = Tokens(self.github, folder / "token", plan.rotate_s)
        self.world = World(
            folder,
            self.github,
            self.clock,
            people=frozenset(event.author.lower() for event in self.traffic.events) | frozenset(self._openers()),
            interval_s=plan.interval_s,
            linger_s=LINGER_S,
            section={"token_file": str(self.tokens.path)},
            events_per_hour=plan.breaker,
        )
        self.account = Account(self.github, self.traffic, plan.lag_s + plan.coalesce_s)
        self.tries: list[float] = []
        self.moments: list[float] = []
        self.first_listed: dict[int, float] = {}
        self.left: dict[int, float] = {}
        self.glimpsed: set[int] = set()
        self.arrived_in: list[int] = []
        self.lives = 1
        self.trips: list[tuple[str, list[float]]] = []  # items that the breaker paused, with the moments it counted
        self.crashes: Counter[int | str] = Counter()
        self.processor_s = 0.0  # of everything: the poller, the GitHub it asks, and the keeping of accounts
        self._listing_lag_s: float | None = None  # of the present look, None before it listed anything

    async def run(self) -> None:
        """All of it."""
        began = process_time()
        while self.clock.now < self.end:
            self.tokens.renew_if_due(self.random)
            await self._cycle()
        self.processor_s = process_time() - began

    # --- one cycle ---

    async def _cycle(self) -> None:
        has_news = self._has_news()
        if self.random.random() < self.plan.restarts * (10 if has_news else 1):
            await self._restart()
        if self.random.random() < self.plan.crashes / (1 if has_news else _QUIET) and await self._crash():
            return
        await self._look()

    async def _restart(self) -> None:
        """Between two looks, or cut off at some step of one; then nobody polls for a while."""
        if self.random.random() < 0.5:
            await self._look(Fuse(at=self.random.randrange(1, _STEPS_AT_MOST)))
        self.clock.run(self.random.choice((0.0, self.random.uniform(0, _LONGEST_OUTAGE_S))))
        self.world.fuse.is_blown = True

    async def _crash(self) -> bool:
        """Before one request, or before each in turn, life after life; True if one of them got through."""
        if self.random.random() < 0.5:
            for at in count(1):
                if await self._look(Fuse(at=at, kinds=_REQUEST)):
                    return True
        if await self._look(Fuse(at=self.random.randrange(1, _REQUESTS_AT_MOST), kinds=_REQUEST)):
            return True
        self.clock.run(self.random.choice((0.0, self.random.uniform(0, _LONGEST_PAUSE_S))))
        return False

    async def _look(self, fuse: Fuse | None = None) -> bool:
        """One look, in a new life if it is to have a fuse or the last one is over; False if it was cut off."""
        moment, number = self.clock.now, len(self.moments)
        is_new = fuse is not None or self.world.fuse.is_blown
        self._listing_lag_s = None
        self.tries.append(moment)
        self.account.begin()
        try:
            if is_new:
                self.lives += 1
                self.world = self.world.restart(fuse=fuse or Fuse())
            await self.world.cycle()
        except Crash:
            self._note_crash(fuse, moment)
            return False
        finally:
            self.arrived_in += [number] * (len(self.world.received) - len(self.arrived_in))
        self._lift()
        self.world.fuse.at = None
        self.moments.append(moment)
        listed = self._listed(moment)
        self._note_listing(moment, listed)
        self.account.end(self.moments, len(listed), is_new_life=is_new)
        return True

    def _lift(self) -> None:
        """A person looks at what was paused, and lets it go on."""
        refs = {str(note.fields["ref"]) for note in self.world.told("poll.breaker")}
        for ledger in filter(None, map(self.world.ledgers.get, sorted(refs))):
            if not ledger.poll.breaker.since:
                continue
            self.trips.append((ledger.ref, sorted(ledger.poll.breaker.events.values())))
            self.world.ledgers.save(lifted(ledger))

    def _has_news(self) -> bool:
        after = self.moments[-1] if self.moments else 0.0
        return bisect_right(self._visible, after) < bisect_right(self._visible, self.clock.now)

    def _lag_s(self, view: View) -> float:
        lag_s = self.random.uniform(0, self.plan.lag_s) if self.plan.lag_s else 0.0
        if view is View.ISSUES:
            self._listing_lag_s = lag_s
        return lag_s

    # --- what could be seen ---

    def _note_listing(self, moment: float, listed: set[int]) -> None:
        for number in listed:
            self.first_listed.setdefault(number, moment)
        for number in self.first_listed.keys() - listed:
            self.left.setdefault(number, moment)

    def _note_crash(self, fuse: Fuse | None, moment: float) -> None:
        steps = fuse.steps if fuse is not None else []
        self.crashes[steps.count("request") if steps[-1:] == ["request"] else steps[-1]] += 1
        if self._listing_lag_s is not None:
            self.glimpsed |= self._listed(moment)

    def _listed(self, moment: float) -> set[int]:
        """What the listing of the look at this moment has: all of it are pull requests."""
        moment -= self._listing_lag_s or 0.0
        states = {number: thread.issue.at(moment) for number, thread in self.github.repo(REPO).threads.items()}
        return {number for number, issue in states.items() if issue is not None and issue.closed is None}

    def _openers(self) -> Iterator[str]:
        for thread in self.github.repo(REPO).threads.values():
            author = thread.issue.state(0).author
            if author is not None:
                yield author.lower()


async def play(folder: Path, plan: Plan) -> Replay:
    """One whole run, with the state root below `folder`."""
    replay = Replay(folder, plan)
    await replay.run()
    return replay
