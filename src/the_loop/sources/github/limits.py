"""When an API may be asked again, and by how many at once: one clock for each API and token.

All sources that use the same token share its clock: a limit met by one is met by all, and their requests go one
after the other. Rule: GitHub REST documentation, "Best practices" and "Rate limits".
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from hashlib import blake2b
from typing import Final

_FIRST_GUESS_S: Final = 60.0
_LONGEST_GUESS_S: Final = 900.0
_KEPT: Final = 100  # clocks, those that wait aside
_RESERVE: Final = 0.2  # of the hour's points


class RateLimiter:
    """The clock of one token. Whoever asks holds `turn` meanwhile."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self.turn = asyncio.Lock()
        self._monotonic = monotonic
        self._ends_s = float("-inf")
        self._last_wait_s = 0.0  # of limits in a row
        self._left = 1.0

    @property
    def wait_left_s(self) -> float:
        return max(0.0, self._ends_s - self._monotonic())

    @property
    def is_short(self) -> bool:
        """True if so little of the hour's points is left that it has to be kept for what is known already."""
        return self._left < _RESERVE

    def note_left(self, points: float | None, limit: float | None) -> None:
        """What the last answer said is left of the hour."""
        self._left = points / limit if limit and points is not None else 1.0

    def hold(self, wait_s: float) -> None:
        """Nobody asks for so many seconds from now."""
        self._ends_s = self._monotonic() + wait_s
        self._last_wait_s = wait_s

    def resume(self, left_s: float, wait_s: float) -> None:
        """A wait that was set in an earlier life, to `wait_s`, has so many seconds left."""
        self._ends_s = max(self._ends_s, self._monotonic() + left_s)
        self._last_wait_s = max(self._last_wait_s, wait_s)

    def clear(self) -> None:
        """It was asked, and answered."""
        self._last_wait_s = 0.0

    def guess_s(self) -> float:
        """How long to wait where a limit names no moment: a minute, and longer each time."""
        return min(max(_FIRST_GUESS_S, 2 * self._last_wait_s), _LONGEST_GUESS_S)


class RateLimiters:
    """The clocks of all tokens of this process."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._limiters: dict[str, RateLimiter] = {}

    def of(self, api: str, token: str | None) -> RateLimiter:
        key = fingerprint(api.rstrip("/"), token or "")
        if key not in self._limiters:
            self._forget_old_ones()
            self._limiters[key] = RateLimiter(self._monotonic)
        return self._limiters[key]

    def _forget_old_ones(self) -> None:
        """Tokens that are made anew every hour must not heap up."""
        if len(self._limiters) >= _KEPT:
            oldest = next((key for key, limiter in self._limiters.items() if not limiter.wait_left_s), "")
            self._limiters.pop(oldest, None)


def fingerprint(*parts: str) -> str:
    """These words as a short name that tells nothing of them."""
    return blake2b("\0".join(parts).encode("utf-8", "backslashreplace"), digest_size=9).hexdigest()
