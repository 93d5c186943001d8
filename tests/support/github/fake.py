"""A GitHub REST API in memory: a world that tests change, and `handle`, which answers requests about it.

It has no socket and no clock of its own: `http_server.FakeServer` and `http_transport.FakeTransport` bring it to a
client, and all times come from the clock it is given, so that sixty days can pass in seconds.

    github = FakeGitHub(clock)
    github.add_repo("octo/repo")
    number = github.add_issue("octo/repo", labels=["auto"])
    github.fail(r"/issues\\?", server_error(), times=1)
    with FakeServer(github) as server:
        ...  # a client at server.url
    assert github.points == 3
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from support.github.api import Api
from support.github.faults import Fault
from support.github.values import Answer, Request, Rules

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from support.github.faults import Effect


class FakeGitHub(Api):
    """The world, its API, and what goes wrong with it.

    `tokens`: login by token; if given, requests without one of them get a 401. `base_url`: where clients find this
    API, with a path if it has one. `log_limit`: how many requests the log keeps at least, None
    for all.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        rules: Rules | None = None,
        *,
        tokens: Mapping[str, str] | None = None,
        base_url: str = "https://api.github.com",
        web_url: str = "https://github.com",
        log_limit: int | None = None,
    ) -> None:
        super().__init__(clock, rules or Rules(), tokens=tokens or {}, base_url=base_url, web_url=web_url)
        self.log: list[Request] = []
        self.log_limit = log_limit
        self.requests = 0  # made so far
        self.points = 0  # spent so far, by all tokens
        self.faults: list[Fault] = []
        self._hooks: list[Callable[[int, str], object]] = []
        self._between: dict[int, list[Callable[[], object]]] = {}

    # What tests script.

    def fail(self, pattern: str, effect: Effect, *, times: int | None = 1, after: int = 0, bare: bool = True) -> Fault:
        """Hit matching requests with `effect`; see `Fault`. The earliest fault that takes a request wins."""
        fault = Fault(re.compile(pattern), effect, times, after, bare)
        self.faults.append(fault)
        return fault

    def hook(self, call: Callable[[int, str], object]) -> None:
        """Call this with number and target of each request, before it is answered."""
        self._hooks.append(call)

    def between(self, number: int, call: Callable[[], object]) -> None:
        """Call this once after request `number` was answered and before the next one is."""
        self._between.setdefault(number + 1, []).append(call)

    def requests_matching(self, pattern: str) -> list[Request]:
        """The logged requests whose `METHOD target` the pattern is found in."""
        with self.lock:
            found = re.compile(pattern)
            return [entry for entry in self.log if found.search(f"{entry.method} {entry.target}")]

    # What clients ask.

    def handle(self, method: str, target: str, headers: Mapping[str, str], body: bytes = b"") -> Answer:
        """The answer to one request; `target` is path and query. Never raises for what a client sends."""
        with self.lock:
            self.requests += 1
            number = self.requests
            if self._between or self._hooks:
                self._call_hooks(number, target)
            now = self.clock()
            asked = {name.lower(): value for name, value in headers.items()}
            answer, points = self._answer(method, target, asked, body, now)
            self.points += points
            status = 0 if answer.hang else answer.status
            self._note(Request(number, now, method, target, asked, status, points))
            return answer

    def _note(self, request: Request) -> None:
        self.log.append(request)
        if self.log_limit is not None and len(self.log) >= 2 * self.log_limit:
            del self.log[: -self.log_limit]

    def _call_hooks(self, number: int, target: str) -> None:
        for call in self._between.pop(number, ()):
            call()
        for hook in self._hooks:
            hook(number, target)

    def _answer(
        self, method: str, target: str, asked: Mapping[str, str], body: bytes, now: float
    ) -> tuple[Answer, int]:
        """The answer and the points it cost; a fault that wants the true answer gets it whole, never as a 304."""
        call = f"{method} {target}" if self.faults else ""
        fault = next((fault for fault in self.faults if fault.takes(call)), None)
        if fault is None:
            return self.answer(method, target, asked, body, now)
        spent: list[int] = []
        unconditional = {name: value for name, value in asked.items() if name != "if-none-match"}

        def genuine() -> Answer:
            answer, points = self.answer(method, target, unconditional, body, now)
            spent.append(points)
            return answer

        answer = fault.effect(genuine)
        if spent:
            return answer, sum(spent)
        window = self.window(asked, now)
        window.used += 1
        usual = {"Date": self.http_date(now)} if fault.is_bare else self.head(window, now)
        return replace(answer, headers={**usual, **answer.headers}), 1
