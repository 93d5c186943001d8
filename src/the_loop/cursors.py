"""The cursor of each source on disk, with the items that need a full re-read and a wait that a limit named.

`local/sources/<slug>.json`: ``{"schema": 1, "source", "position": {…}, "owed": [ref], "wait": {"until", "seconds",
"reason"}}``. `position` is the cursor, `owed` the items that need a full re-read. Both change in one rename, after all
items of the poll are on disk.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from the_loop.durable import IrregularFile, read_json_object, to_json_line, write_durably
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


class UnusableCursor(ValueError):
    """The file does not hold a cursor that this version can use; the message says why."""


def read_cursor(root: StateRoot, source: str) -> Cursor:
    """The stored cursor; an empty one only if there is no file. Raises UnusableCursor; OSError if it cannot be read."""
    path = root.cursor(source)
    try:
        tree = read_json_object(path)
        if tree.get("schema") != _SCHEMA:
            raise UnusableCursor(f"its schema is {tree.get('schema')!r:.50}, not {_SCHEMA}")
        value, owed = tree["position"], tree["owed"]
        if not isinstance(value, dict | None) or not isinstance(owed, list):
            raise UnusableCursor("it has the wrong shape")
        if not all(isinstance(ref, str) for ref in owed):
            raise UnusableCursor("it has the wrong shape")
        return Cursor(value=value, owed=frozenset(owed), wait=_wait(tree.get("wait")))
    except FileNotFoundError:
        return Cursor()
    except IrregularFile as error:
        raise UnusableCursor(str(error)) from error
    except UnusableCursor:
        raise
    except (ValueError, LookupError, TypeError, ArithmeticError) as error:
        raise UnusableCursor(f"it does not hold a cursor: {type(error).__name__}") from error


def recover_cursor(root: StateRoot, source: str) -> tuple[Cursor, str]:
    """The stored cursor, and why it cannot be used, "" if it can. Does not raise.

    Without its cursor a source reads everything again: what is settled is in the ledgers, so nothing is delivered
    twice. So a cursor that cannot be read now is treated as none, not waited for; its file is left for the next write
    to replace. One that is not usable is set aside as `<name>.bad-<n>`.
    """
    try:
        return read_cursor(root, source), ""
    except UnusableCursor as error:
        return Cursor(), f"{error}; {_set_aside(root.cursor(source))}"
    except OSError as error:
        return Cursor(), error.strerror or str(error)


def _set_aside(path: Path) -> str:
    """Rename the file; what was done, in words."""
    names = (path.with_name(f"{path.name}.bad-{number}") for number in range(1, 1000))
    try:
        aside = next((name for name in names if not os.path.lexists(name)), None)
        if aside is None:
            return "a thousand files are set aside already"
        path.rename(aside)
    except OSError as error:
        return f"it cannot be set aside: {error.strerror}"
    return f"it is set aside as '{aside.name}'"


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
    try:
        content = msgspec.json.encode(tree) + b"\n"  # of 20,000 folders in a tenth of the time
    except UnicodeEncodeError:
        content = to_json_line(tree)
    write_durably(root.cursor(source), content)
