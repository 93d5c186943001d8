"""The primary rate limit: a number of points for each token and hour."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_WINDOW_S = 3600


@dataclass(slots=True)
class RateWindow:
    """The current hour of one token; `reset` in epoch seconds."""

    limit: int
    reset: int
    used: int = 0
    _headers: tuple[int, Mapping[str, str]] = field(default=(-1, {}))

    def is_exhausted(self) -> bool:
        """Whether nothing is left to spend."""
        return self.used >= self.limit

    def numbers(self) -> dict[str, int]:
        """The window as `/rate_limit` shows it."""
        left = max(self.limit - self.used, 0)
        return {"limit": self.limit, "used": self.used, "remaining": left, "reset": self.reset}

    def headers(self) -> Mapping[str, str]:
        """The `X-RateLimit-*` headers, made again only after something was spent."""
        if self._headers[0] != self.used:
            made = {f"X-RateLimit-{name.capitalize()}": str(value) for name, value in self.numbers().items()}
            self._headers = (self.used, {**made, "X-RateLimit-Resource": "core"})
        return self._headers[1]


class RateWindows:
    """The windows of all tokens; one begins with a token's first request after the last one's end."""

    def __init__(self) -> None:
        self._by_token: dict[str, RateWindow] = {}

    def of(self, token: str, now: float, limit: int) -> RateWindow:
        """The window of this token at `now`."""
        window = self._by_token.get(token)
        if window is None or now >= window.reset or window.limit != limit:
            window = self._by_token[token] = RateWindow(limit, int(now) + _WINDOW_S)
        return window
