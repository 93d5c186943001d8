"""What the looks of a replay cost, read off the fake's log, and the idle ones held against their formula."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from support.github.values import Kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from support.github.fake import FakeGitHub
    from support.github.values import Request
    from support.traffic import Traffic

HOT_S = 180  # how long an item is looked at closely after news of it, or after it left
SWEEP = 30  # looks in which each pull request is asked for its reviews
PAGE = 100
_REVIEWS = re.compile(r"/pulls/(\d+)/reviews")


class Spent(NamedTuple):
    """What one look cost, and how much was listed in it."""

    requests: int
    points: int
    listed: int


class Account:
    """One entry in `spent` for each look that ran to its end. `wrong` names the idle ones that cost too much.

    A look is idle if all news were noticed two looks and more than `HOT_S` ago, no life began with it, and no reviews
    were asked for in it that had changed, or that this token was not shown for a validator: then not one point is to
    be spent. `slack_s`: how long news may take to show.
    """

    def __init__(self, github: FakeGitHub, traffic: Traffic, slack_s: float) -> None:
        self.spent: list[Spent] = []
        self.idle: list[int] = []  # numbers of looks
        self.furthest = 0.0  # from the formula, in requests
        self.wrong: list[str] = []
        self._github = github
        self._changes = traffic.changes
        self._slack_s = slack_s
        self._reviews: defaultdict[int, list[int]] = defaultdict(list)
        for event in traffic.events:
            if event.kind is Kind.REVIEW:
                self._reviews[event.number].append(event.visible)
        self._asked: dict[int, Request] = {}  # the last one for the reviews of each pull request
        self._in_threads: set[int] = set()
        self._tokens: set[str] = set()
        self._mark = (0, 0)

    def begin(self) -> None:
        """A look begins."""
        self._mark = (self._github.requests, self._github.points)

    def end(self, moments: Sequence[float], listed: int, *, is_new_life: bool) -> None:
        """The look at the last of `moments` ran to its end; so many pull requests and nothing else were listed."""
        requests, points = (self._github.requests - self._mark[0], self._github.points - self._mark[1])
        self.spent.append(Spent(requests, points, listed))
        log = self._github.log[-requests:]
        has_news = self._has_news(moments)
        has_news |= self._is_other_token(log)
        if is_new_life:
            for number in self._in_threads:  # what was read with a whole thread is on disk after the next look
                del self._asked[number]
        has_news |= self._has_reviews(log)
        if not has_news and not is_new_life:
            self._compare(len(moments) - 1, self.spent[-1])

    def _compare(self, number: int, spent: Spent) -> None:
        distance = abs(spent.requests - idle_requests(spent.listed, spent.listed))
        self.idle.append(number)
        self.furthest = max(self.furthest, distance)
        if spent.points or distance > 1:
            log = self._github.log[-spent.requests :]
            asked = [f"{request.status} {request.target.partition('?')[0]}" for request in log]
            self.wrong.append(f"look {number}: {spent.points} points, {distance:.2f} off: {', '.join(asked)}")

    def _has_news(self, moments: Sequence[float]) -> bool:
        last = self._changes[bisect_right(self._changes, moments[-1]) - 1]
        noticed = bisect_left(moments, last + self._slack_s)
        return noticed + 2 >= len(moments) or moments[-1] - moments[noticed] <= HOT_S

    def _is_other_token(self, log: Sequence[Request]) -> bool:
        before = self._tokens
        self._tokens = {_token(request) for request in log}
        return len(before | self._tokens) > 1

    def _has_reviews(self, log: Sequence[Request]) -> bool:
        has_news = False
        self._in_threads = set()
        for before, request in pairwise(log):
            if found := _REVIEWS.search(request.target):
                number = int(found[1])
                has_news |= self._is_news(number, request)
                self._asked[number] = request
                if f"/pulls/{number}/comments" in before.target:
                    self._in_threads.add(number)
        return has_news

    def _is_news(self, number: int, request: Request) -> bool:
        before, visible = self._asked.get(number), self._reviews[number]
        if before is None or _token(before) != _token(request):
            return True
        return bisect_right(visible, before.time - self._slack_s) < bisect_right(visible, request.time)


def idle_requests(items: int, pulls: int) -> float:
    """What an idle look asks for: pages of items, comments, review comments, and the sweep for reviews."""
    return items // PAGE + 1 + 1 + (pulls > 0) + pulls / SWEEP


def _token(request: Request) -> str:
    return request.headers.get("authorization", "")
