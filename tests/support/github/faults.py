"""Scripted faults: what the GitHub fake answers instead of the truth, and to which requests.

`github.fail(r"/issues/comments", server_error(), times=2)` breaks the next two matching requests.
An effect is given the means to make the true answer, and need not use it; a write it does not ask for did not happen.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from support.github.rows import encode
from support.github.values import Answer

if TYPE_CHECKING:
    from collections.abc import Mapping

Effect = Callable[[Callable[[], Answer]], Answer]

_JSON = "application/json; charset=utf-8"
_DOCS = "https://docs.github.com/rest"


@dataclass(slots=True)
class Fault:
    """An effect for requests whose `METHOD target` the pattern is found in.

    The first `after` matching ones are let through, the next `times` are hit (None: all from then on). `is_bare`: the
    answer carries no rate limit headers but its own.
    """

    pattern: re.Pattern[str]
    effect: Effect
    times: int | None
    after: int
    is_bare: bool
    hits: int = 0
    _seen: int = 0

    def takes(self, call: str) -> bool:
        """Whether this fault hits the request; counts it."""
        if self.times is not None and self.hits >= self.times:
            return False
        if not self.pattern.search(call):
            return False
        self._seen += 1
        if self._seen <= self.after:
            return False
        self.hits += 1
        return True


def reply(status: int, body: bytes | object = b"", headers: Mapping[str, str] | None = None) -> Effect:
    """Any answer: bytes as they are, anything else as JSON."""
    raw = body if isinstance(body, bytes) else encode(body)
    answer = Answer(status, {"Content-Type": _JSON, **(headers or {})}, raw)
    return lambda _genuine: answer


def _error(status: int, message: str, headers: Mapping[str, str] | None = None) -> Effect:
    body = {"message": message, "documentation_url": _DOCS, "status": str(status)}
    return reply(status, body, headers)


def hang(*, done: bool = False) -> Effect:
    """Accept the request and never answer; `done`: a write has happened all the same."""

    def effect(genuine: Callable[[], Answer]) -> Answer:
        return replace(genuine(), hang=True) if done else Answer(0, hang=True)

    return effect


def drip(every_s: float) -> Effect:
    """The true answer, one byte every so many seconds."""
    return lambda genuine: replace(genuine(), drip_s=every_s)


def cut() -> Effect:
    """The true answer, with the connection closed after half the body."""
    return lambda genuine: replace(genuine(), cut=True)


def half_json() -> Effect:
    """The first half of the true body, announced as if it were all."""

    def effect(genuine: Callable[[], Answer]) -> Answer:
        answer = genuine()
        return replace(answer, body=answer.body[: len(answer.body) // 2])

    return effect


def html(status: int = 200) -> Effect:
    """A web page where JSON was asked for."""
    page = b"<!DOCTYPE html><html><body><h1>Please stand by</h1></body></html>"
    return reply(status, page, {"Content-Type": "text/html; charset=utf-8"})


def server_error(status: int = 502) -> Effect:
    """500, 502, 503 or 504; no such body repeats its status."""
    return reply(status, {"message": "Server Error", "documentation_url": _DOCS})


def secondary_limit(retry_after_s: int | None = None, status: int = 403) -> Effect:
    """The limit on bursts: named in the body, and in `retry-after` only if told so."""
    message = (
        "You have exceeded a secondary rate limit. Please wait a few minutes before you try again. "
        "If you reach out to GitHub Support for help, please include the request ID."
    )
    return _error(status, message, None if retry_after_s is None else {"Retry-After": str(retry_after_s)})


def too_many_requests(retry_after_s: int | None = None) -> Effect:
    """The same limit as a 429."""
    return secondary_limit(retry_after_s, 429)


def primary_limit(reset: float, status: int = 403, limit: int = 5000) -> Effect:
    """No points left until `reset`, in epoch seconds."""
    headers = {"X-RateLimit-Limit": str(limit), "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": str(int(reset))}
    headers |= {"X-RateLimit-Used": str(limit), "X-RateLimit-Resource": "core"}
    return _error(status, "API rate limit exceeded for user ID 1.", headers)


def limit_in_200() -> Effect:
    """A rate limit told as an error object in a 200."""
    return reply(200, {"errors": [{"type": "RATE_LIMITED", "message": "API rate limit exceeded for user ID 1."}]})


def permission_denied() -> Effect:
    """A 403 that is about rights, not about limits."""
    return _error(403, "Resource not accessible by personal access token")


def bad_credentials() -> Effect:
    """A 401, as after a token was revoked."""
    return _error(401, "Bad credentials")


def redirect(location: str, status: int = 301) -> Effect:
    """Send the client elsewhere, to another origin for example."""
    return reply(status, {"message": "Moved Permanently", "url": location}, {"Location": location})
