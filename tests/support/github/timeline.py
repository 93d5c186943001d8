"""States over time: what a thing was, is and will be, so that a moment (with its lag) picks what is shown."""

from __future__ import annotations

from bisect import bisect_right, insort
from math import inf
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class Timeline(Generic[T]):
    """A first state and the patches that come after it, in order of their moments.

    States are folded when they are first asked for, and so is their JSON; a patch put in between drops what follows it.
    """

    __slots__ = ("_json", "_moments", "_patches", "_states")

    def __init__(self, born: float, first: T) -> None:
        self._moments = [born]
        self._patches: list[Callable[[T], T]] = []
        self._states = [first]
        self._json: dict[int, bytes] = {}

    def patch(self, at: float, patch: Callable[[T], T]) -> float:
        """The moment from which `patch` applies: `at`, or the birth if that is later."""
        at = max(at, self._moments[0])
        index = bisect_right(self._moments, at)
        self._moments.insert(index, at)
        self._patches.insert(index - 1, patch)
        self._forget(index)
        return at

    def index(self, moment: float) -> int:
        """Which state holds at `moment`; -1 before the birth."""
        return bisect_right(self._moments, moment) - 1

    def state(self, index: int) -> T:
        """The state with this index, 0 or more."""
        while len(self._states) <= index:
            self._states.append(self._patches[len(self._states) - 1](self._states[-1]))
        return self._states[index]

    def at(self, moment: float) -> T | None:
        """The state at `moment`, None before the birth."""
        index = self.index(moment)
        return None if index < 0 else self.state(index)

    def json(self, index: int, render: Callable[[T], bytes]) -> bytes:
        """What `render` made of the state with this index, made once."""
        text = self._json.get(index)
        if text is None:
            text = self._json[index] = render(self.state(index))
        return text

    def refold(self) -> None:
        """Forget every derived state and JSON, after a change of the rules or names they were made by."""
        self._forget(1)
        self._json.clear()

    def _forget(self, index: int) -> None:
        del self._states[index:]
        self._json = {i: text for i, text in self._json.items() if i < index}


class Moments:
    """The sorted moments at which one answer may change."""

    __slots__ = ("_sorted",)

    def __init__(self) -> None:
        self._sorted: list[float] = []

    def add(self, at: float) -> None:
        """Note that the answer may change at `at`."""
        insort(self._sorted, at)

    def window(self, moment: float) -> tuple[float, float]:
        """`(from, until)`, until excluded: the time around `moment` in which nothing changes."""
        index = bisect_right(self._sorted, moment)
        start = self._sorted[index - 1] if index else -inf
        return start, self._sorted[index] if index < len(self._sorted) else inf
