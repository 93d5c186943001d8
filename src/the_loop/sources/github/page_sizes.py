"""How many rows a page of a list is requested with: fewer after responses that say that a page is too much.

A server that cannot collect a hundred rows in its time answers 502 or 504, or not at all, for that list and no other.
After two such responses the list is requested in pages of 50, then 20, then 10.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

SIZES: Final = (100, 50, 20, 10)
_FAILURES: Final = 2  # with whole pages; smaller ones are given up after one
_KEPT_S: Final = 600.0  # then whole pages are tried again
_PAUSE_S: Final = 30.0  # after a list that no size helped: the server itself is in trouble
_LISTS: Final = 1000  # remembered at most


@dataclass(frozen=True, slots=True)
class _Trouble:
    since: float
    failures: int

    @property
    def size(self) -> int:
        return SIZES[min(max(0, self.failures - _FAILURES + 1), len(SIZES) - 1)]


class PageSizes:
    """The page size of each list of one API, by path. `now` returns epoch seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._troubles: dict[str, _Trouble] = {}
        self._in_vain_at = float("-inf")

    def of(self, path: str) -> int:
        """The number of rows to request in one page of the list at `path`."""
        trouble = self._current(path)
        return trouble.size if trouble else SIZES[0]

    def shrink(self, path: str, *, at_once: bool = False) -> bool:
        """Count a page that was too much. True if the list should be requested again at once.

        `at_once`: it is sure that whole pages are too much, and they are not tried again.
        """
        before = self._current(path)
        failures = max(before.failures if before else 0, _FAILURES - 1 if at_once else 0) + 1
        if len(self._troubles) >= _LISTS:
            self._troubles.clear()
        self._troubles[_list_of(path)] = _Trouble(before.since if before else self._now(), failures)
        if before and before.size == SIZES[-1]:
            self._in_vain_at = self._now()
        return not self._is_within(self._in_vain_at, _PAUSE_S)

    def _current(self, path: str) -> _Trouble | None:
        trouble = self._troubles.get(_list_of(path))
        return trouble if trouble and self._is_within(trouble.since, _KEPT_S) else None

    def _is_within(self, since: float, span_s: float) -> bool:
        return 0 <= self._now() - since < span_s


def _list_of(path: str) -> str:
    return path.partition("?")[0]
