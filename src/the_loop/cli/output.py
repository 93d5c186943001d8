"""Standard output and error of our commands: no control character that comes from outside reaches a terminal.

Names, titles and error texts are other people's. They are escaped where they are written, so that no command can
forget it. What is one line is made so by `model.printable` before, as a line break could let a text pass for ours.
"""

from __future__ import annotations

import io
import sys
from typing import Final

from the_loop.core.model import printable

_OURS: Final = ("\n", "\t")


class PlainText(io.TextIOWrapper):
    """A text stream in which every character that is not printable is escaped, except line breaks and tabs."""

    def write(self, text: str, /) -> int:
        super().write(text if text.isprintable() else "".join(map(_plain, text)))
        return len(text)

    def write_control(self, code: str) -> None:
        """Write a control sequence of our own, as it is."""
        super().write(code)


def _plain(char: str) -> str:
    return char if char in _OURS else printable(char)


def protect_streams() -> None:
    """Let `sys.stdout` and `sys.stderr` escape what is not printable. Both are UTF-8 from then on."""
    sys.stdout = _protected(sys.stdout)
    sys.stderr = _protected(sys.stderr)


def _protected(stream: object) -> PlainText:
    """The same stream, escaping; the given one stays open. A missing one (closed at the start) is returned as it is."""
    if not isinstance(stream, io.TextIOWrapper) or isinstance(stream, PlainText):
        return stream  # type: ignore[return-value]
    stream.flush()
    return PlainText(
        stream.buffer,
        encoding="utf-8",
        errors="backslashreplace",
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )
