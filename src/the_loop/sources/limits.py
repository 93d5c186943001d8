"""Rate limiters, one for each API and token: when the next request may be sent, and by how many at once.

All sources with the same token share its rate limiter: a limit applies to all of them. A source sends its requests
one after the other, and at most four sources at once, so that one that is not answered does not delay the others.
Rule: GitHub REST documentation, "Best practices" and "Rate limits".
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from hashlib import blake2b
from typing import Final

_AT_ONCE: Final = 4
_FIRST_GUESS_S: Final = 60.0
_LONGEST_GUESS_S: Final = 900.0
_KEPT: Final = 100  # rate limiters, apart from those that are waiting
_RESERVE: Final = 0.2  # share of the hour's requests


class RateLimiter:
    """The rate limiter of one token. A request holds `turn` while it is sent."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self.turn = asyncio.Semaphore(_AT_ONCE)
        self._monotonic = monotonic
        self._ends_s = float("-inf")
        self._last_wait_s = 0.0  # of limits in a row
        self.points_left: float | None = None  # as the last response said
        self.points_limit: float | None = None

    @property
    def wait_left_s(self) -> float:
        """Seconds until the next request may be sent, 0 if at once."""
        return max(0.0, self._ends_s - self._monotonic())

    @property
    def is_short(self) -> bool:
        """True if less than a fifth of the hour's requests is left: it is reserved for known items."""
        if self.points_left is None or not self.points_limit:
            return False
        return self.points_left / self.points_limit < _RESERVE

    def note_left(self, points: float | None, limit: float | None) -> None:
        """Record the remaining requests of the hour and their limit, from the headers of a response."""
        self.points_left, self.points_limit = points, limit

    def hold(self, wait_s: float) -> None:
        """Send no request for `wait_s` seconds from now."""
        self._ends_s = self._monotonic() + wait_s
        self._last_wait_s = wait_s

    def resume(self, left_s: float, wait_s: float) -> None:
        """Continue a wait of an earlier run that was set to `wait_s` and has `left_s` seconds left."""
        self._ends_s = max(self._ends_s, self._monotonic() + left_s)
        self._last_wait_s = max(self._last_wait_s, wait_s)

    def clear(self) -> None:
        """Record a response that was not a limit."""
        self._last_wait_s = 0.0

    def guess_s(self) -> float:
        """Seconds to wait after a limit that names no time: 60, doubled each time in a row, at most 900."""
        return min(max(_FIRST_GUESS_S, 2 * self._last_wait_s), _LONGEST_GUESS_S)


class RateLimiters:
    """The rate limiters of all tokens in this process."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._limiters: dict[str, RateLimiter] = {}

    def of(self, api: str, token: str | None) -> RateLimiter:
        """The rate limiter of `token` at the API with this URL."""
        key = fingerprint(api.rstrip("/"), token or "")
        if key not in self._limiters:
            self._forget_old_ones()
            self._limiters[key] = RateLimiter(self._monotonic)
        return self._limiters[key]

    def _forget_old_ones(self) -> None:
        """Drop one that is not waiting: tokens that are renewed every hour would accumulate."""
        if len(self._limiters) >= _KEPT:
            oldest = next((key for key, limiter in self._limiters.items() if not limiter.wait_left_s), "")
            self._limiters.pop(oldest, None)


def fingerprint(*parts: str) -> str:
    """A short hash of `parts`, which does not reveal them."""
    return blake2b("\0".join(parts).encode("utf-8", "backslashreplace"), digest_size=9).hexdigest()
