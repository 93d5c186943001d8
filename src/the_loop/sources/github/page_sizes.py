"""How many rows a page of a list is requested with: fewer after responses that say that a page is too much.

A server that cannot collect a hundred rows in its time answers 502 or 504, or not at all, for that list and no other.
After two such responses the list is requested in pages of 50, then 20, then 10. One that lets its time pass costs the
whole poll, and a run of `--once` has only one: so what was found out is kept in a file.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from the_loop.durable import read_json_object, replace_file, to_json_bytes

SIZES: Final = (100, 50, 20, 10)
_FAILURES: Final = 2  # with whole pages; smaller ones are given up after one
_KEPT_S: Final = 600.0  # after the last failure; then whole pages are tried again
_SLOW_KEPT_S: Final = 21_600.0  # the same where each try takes a whole time limit
_PAUSE_S: Final = 30.0  # after a list that no size helped: the server itself is in trouble
_LISTS: Final = 1000  # remembered at most


@dataclass(frozen=True, slots=True)
class _Trouble:
    """`at`: the last failure, epoch seconds."""

    at: float
    failures: int
    is_slow: bool = False

    @property
    def kept_s(self) -> float:
        return _SLOW_KEPT_S if self.is_slow else _KEPT_S

    @property
    def size(self) -> int:
        return SIZES[min(max(0, self.failures - _FAILURES + 1), len(SIZES) - 1)]


class PageSizes:
    """The page size of each list of one API, by path. `now` returns epoch seconds; `file` is for the next process."""

    def __init__(self, now: Callable[[], float], file: Path | None = None) -> None:
        self._now = now
        self._file = file
        self._troubles = _read(file)
        self._in_vain_at = float("-inf")

    def of(self, path: str) -> int:
        """The number of rows to request in one page of the list at `path`."""
        trouble = self._current(path)
        return trouble.size if trouble else SIZES[0]

    def shrink(self, path: str, *, at_once: bool = False, is_slow: bool = False) -> bool:
        """Count a page that was too much. True if the list should be requested again at once.

        `at_once`: it is sure that whole pages are too much, and they are not tried again. `is_slow`: no response came.
        """
        before = self._current(path)
        failures = max(before.failures if before else 0, _FAILURES - 1 if at_once else 0) + 1
        if len(self._troubles) >= _LISTS:
            self._troubles.clear()
        is_slow = is_slow or (before is not None and before.is_slow)
        self._troubles[_list_of(path)] = _Trouble(self._now(), failures, is_slow)
        self._write()
        if before and before.size == SIZES[-1]:
            self._in_vain_at = self._now()
        return not self._is_within(self._in_vain_at, _PAUSE_S)

    def _write(self) -> None:
        """Without a disk the next process finds it out again."""
        if self._file is None:
            return
        kept = {path: [one.at, one.failures, one.is_slow] for path, one in self._troubles.items()}
        with suppress(OSError):
            self._file.parent.mkdir(mode=0o700, exist_ok=True)
            replace_file(self._file, to_json_bytes(kept), sync=False)

    def _current(self, path: str) -> _Trouble | None:
        trouble = self._troubles.get(_list_of(path))
        return trouble if trouble and self._is_within(trouble.at, trouble.kept_s) else None

    def _is_within(self, since: float, span_s: float) -> bool:
        return 0 <= self._now() - since < span_s


def _list_of(path: str) -> str:
    return path.partition("?")[0]


def _read(file: Path | None) -> dict[str, _Trouble]:
    """What an earlier process kept; nothing if that cannot be read."""
    if file is None:
        return {}
    try:
        kept = msgspec.convert(read_json_object(file), dict[str, tuple[float, Annotated[int, Meta(ge=0)], bool]])
    except (OSError, ValueError):
        return {}
    return {path: _Trouble(*one) for path, one in kept.items()}
