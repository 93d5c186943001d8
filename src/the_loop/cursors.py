"""The cursor of each source on disk, with the items that need a full re-read and a wait that a limit named.

`local/sources/<slug>.json`: ``{"schema": 1, "source", "position": {…}, "owed": [ref], "wait": {"until", "seconds",
"reason"}}``. `position` is the cursor, `owed` the items that need a full re-read. Both change in one rename, after all
items of the poll are on disk.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from the_loop.durable import read_json_object, to_json_line, write_durably
from the_loop.state import StateRoot

_SCHEMA: Final = 1
_LATEST: Final = 1e11  # epoch seconds; NaN and infinity are not below it


@dataclass(frozen=True, slots=True)
class Wait:
    """The source is not polled before `until` (epoch seconds), which was `seconds` away when it was set."""

    until: float
    seconds: float
    reason: str

    def remaining_s(self, now: float) -> float:
        """Seconds left; at most as many as were set, even if the clock was changed. `now` is epoch seconds."""
        return min(max(0.0, self.until - now), self.seconds)


@dataclass(frozen=True, slots=True)
class Cursor:
    """`value` is in the source's own format. None if there is none: then all its items need a full re-read."""

    value: Mapping[str, Any] | None = None
    owed: frozenset[str] = frozenset()
    wait: Wait | None = None


def read_cursor(root: StateRoot, source: str) -> Cursor:
    """The stored cursor; an empty one if the file is missing, unreadable, malformed or of a newer schema."""
    try:
        tree = read_json_object(root.cursor(source))
        if tree["schema"] != _SCHEMA or not isinstance(tree["position"], dict | None):
            return Cursor()
        owed = tree["owed"]
        if not isinstance(owed, list) or not all(isinstance(ref, str) for ref in owed):
            return Cursor()
        return Cursor(value=tree["position"], owed=frozenset(owed), wait=_wait(tree.get("wait")))
    except (OSError, ValueError, LookupError, TypeError):
        return Cursor()


def _wait(tree: Any) -> Wait | None:
    if tree is None:
        return None
    wait = Wait(float(tree["until"]), float(tree["seconds"]), str(tree["reason"]))
    if not (0 <= wait.until < _LATEST and 0 <= wait.seconds < _LATEST):
        raise ValueError("not a time")
    return wait


def write_cursor(root: StateRoot, source: str, cursor: Cursor) -> None:
    """Store the cursor durably. Raises OSError, with the old one in place."""
    wait = cursor.wait
    tree = {
        "schema": _SCHEMA,
        "source": source,
        "position": cursor.value,
        "owed": sorted(cursor.owed),
        "wait": {"until": wait.until, "seconds": wait.seconds, "reason": wait.reason} if wait else None,
    }
    write_durably(root.cursor(source), to_json_line(tree))
