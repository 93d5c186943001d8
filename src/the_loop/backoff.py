"""How long to wait before the next try."""

from __future__ import annotations

from collections.abc import Iterator


def growing(first_s: float, longest_s: float) -> Iterator[float]:
    """Seconds to wait before each further try, without end: `first_s`, then twice as long, at most `longest_s`."""
    wait_s = first_s
    while True:
        yield wait_s
        wait_s = min(2 * wait_s, longest_s)
