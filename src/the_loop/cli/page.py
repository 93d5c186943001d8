"""Pages for people: lines within the width of the terminal, colours where there is one, local and relative times."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from the_loop.cli.output import PlainText
from the_loop.core.model import epoch, printable, span

WIDTH: Final = 80  # without a terminal, and at least to be readable
_WIDEST, _NARROWEST = 100, 24
_STYLES: Final = {"bold": "1", "dim": "2", "bad": "31", "good": "32", "warn": "33"}


@dataclass(frozen=True, slots=True)
class Line:
    """`head`, in a style, and `text` behind it. Longer ones are wrapped, and indented by `hang`; a command never is."""

    text: str = ""
    head: str = ""
    style: str = ""  # of the head: one of bold, dim, bad, good, warn
    hang: int = 2
    is_command: bool = False


def put(lines: Iterable[Line]) -> None:
    """Print a page on standard output."""
    is_coloured, columns = has_colour(), width()
    for line in lines:
        for head, style, text in _rows(line, columns):
            _write(head, style if is_coloured else "")
            print(text)


def rows(lines: Iterable[Line], columns: int) -> list[str]:
    """The page without colours, one string for each row of the terminal."""
    return [head + text for line in lines for head, _, text in _rows(line, columns)]


def redraw(lines: Iterable[Line]) -> None:
    """Print a page over the one before it, cut off at the size of the terminal."""
    size = shutil.get_terminal_size((WIDTH, 24))
    everything = [row for line in lines for row in _rows(line, max(size.columns, 1))]
    shown = everything if len(everything) < size.lines else everything[: size.lines - 2]
    _control("\x1b[H")
    for head, style, text in shown:
        _write(head[: size.columns], style if has_colour() else "")
        print(text[: max(0, size.columns - len(head))], end="")
        _control("\x1b[K\r\n")
    if left := len(everything) - len(shown):
        print(f"… {left} more lines"[: size.columns], end="")
    _control("\x1b[J")
    sys.stdout.flush()


def whole_screen(*, is_on: bool) -> None:
    """Switch to a screen of our own, without a cursor, or back to what the terminal showed before."""
    _control("\x1b[?1049h\x1b[?25l\x1b[2J" if is_on else "\x1b[?25h\x1b[?1049l")
    sys.stdout.flush()


def has_colour() -> bool:
    """True on a terminal, unless $NO_COLOR is set (no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def width() -> int:
    """The columns of a page."""
    columns = shutil.get_terminal_size((WIDTH, 24)).columns if sys.stdout.isatty() else WIDTH
    return max(_NARROWEST, min(columns, _WIDEST))


def when(moment: Any, now: float | None = None) -> str:
    """A timestamp as local time and relative to now: `14:03:05 (12 s ago)`; "unknown" for what is none."""
    at = epoch(moment)
    now = time.time() if now is None else now
    return "unknown" if at is None else f"{clock(at, now)} ({age(at, now)})"


def clock(at: float, now: float) -> str:
    """Local time, with its day if that is not today. Both are epoch seconds."""
    moment = time.localtime(at)
    is_today = moment[:3] == time.localtime(now)[:3]
    return time.strftime("%H:%M:%S" if is_today else "%Y-%m-%d %H:%M:%S", moment)


def age(at: float, now: float) -> str:
    """`12 s ago`, `in 4 min`."""
    return f"{span(now - at)} ago" if at <= now else f"in {span(at - now)}"


def _rows(line: Line, columns: int) -> Iterator[tuple[str, str, str]]:
    head, whole = printable(line.head), printable(line.head + line.text)
    if line.is_command or len(whole) <= columns:
        yield head, line.style, whole[len(head) :]
        return
    indent = " " * (len(whole) - len(whole.lstrip()))
    wrapped = textwrap.wrap(
        whole.lstrip(),
        max(columns, _NARROWEST),
        initial_indent=indent,
        subsequent_indent=indent + " " * line.hang,
        break_long_words=False,
        break_on_hyphens=False,
    )
    first, *others = wrapped or [""]
    head = head if first.startswith(head) else ""
    yield head, line.style, first[len(head) :]
    for other in others:
        yield "", "", other


def _write(text: str, style: str) -> None:
    if style and text:
        _control(f"\x1b[{_STYLES[style]}m")
        print(text, end="")
        _control("\x1b[0m")
    else:
        print(text, end="")


def _control(code: str) -> None:
    if isinstance(sys.stdout, PlainText):
        sys.stdout.write_control(code)
