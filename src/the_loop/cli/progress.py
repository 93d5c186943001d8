"""What `poll start` shows on a terminal beside its events: a bar while items are read, and what is waited for.

Nothing of it is written to a pipe, a file or the journal; under systemd the STATUS= line says the same.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Final

import click

from the_loop.cli.output import PlainText
from the_loop.cli.page import clock
from the_loop.core.model import printable
from the_loop.sources.base import Metered
from the_loop.watched import Watched

_FEW: Final = 20  # items that are read in an instant: a bar would only flash
_LABEL: Final = 46  # columns
_BAR: Final = 12
_HIDE_CURSOR: Final = "\x1b[?25l"  # which a kill would leave hidden


class Progress:
    """A line on the terminal, drawn again at each beat of the poller. `clear` makes room for an event."""

    def __init__(self, stream: Any = None) -> None:
        self._stream: Any = _Raw(stream or sys.stderr)
        self._bar: Any = None
        self._is_shown = False

    def show(self, watched: Sequence[Watched], running: int, now: float, uptime_s: float) -> None:
        """Draw how far the sources are, and how many deliveries run. `now`: epoch seconds."""
        done, total = _position(watched)
        if total - done <= 0 or total < _FEW:
            self._end()
            return
        if self._bar is None:
            self._bar = click.progressbar(length=total, file=self._stream, show_pos=True, show_eta=True, width=_BAR)
        self._bar.length = total
        self._bar.label = _label(watched, running, now, uptime_s)
        self._bar.update(done - self._bar.pos)
        self._bar.render_progress()
        self._is_shown = True

    def clear(self) -> None:
        """Wipe the line, if there is one: it comes back with the next beat."""
        if self._is_shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._is_shown = False

    def _end(self) -> None:
        self.clear()
        self._bar = None


class _Raw:
    """Lets the control characters of the bar through; what it is labelled with was made printable before."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        text = text.replace(_HIDE_CURSOR, "")
        if isinstance(self._stream, PlainText):
            self._stream.write_control(text)
        else:
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        self._stream.flush()

    def isatty(self) -> bool:
        return bool(self._stream.isatty())


def _position(watched: Sequence[Watched]) -> tuple[int, int]:
    """How many items are read, and of how many: over the cycles of an initial sync, else within the present cycle."""
    if owed := sum(len(one.cursor.owed) for one in watched):
        total = sum(one.items for one in watched)
        return max(0, total - owed), total
    visited = [one.visited for one in watched if one.visited is not None]
    return sum(done for done, _ in visited), sum(total for _, total in visited)


def _label(watched: Sequence[Watched], running: int, now: float, uptime_s: float) -> str:
    parts = ["reading items"]
    if running:
        parts.append(f"{running} deliveries run" if running > 1 else "1 delivery runs")
    for one in watched:
        if (wait_s := one.wait_left_s(uptime_s)) > 0:
            parts.append(f"{one.source.name} waits until {clock(now + wait_s, now)}")
        elif one.cursor.owed and isinstance(one.source, Metered) and (left := one.source.usage().points_left):
            parts.append(f"{left:.0f} points left")
    return printable(", ".join(parts))[:_LABEL].ljust(_LABEL)
