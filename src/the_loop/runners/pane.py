"""What a terminal shows, and what may be typed into it. Pure: no clock, disk or process.

`why_busy` judges a look at a pane: text is typed only where the program waits for it. `harmless` makes a text safe to
be pasted: no byte of it can end the paste, or be a key. Both are the one place for what they do.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final

LINE_LIMIT: Final = 4000  # bytes that a terminal takes as one line for a program that reads lines (the kernel has 4095)
TYPING_S: Final = 3.0  # since the last key of a person who is attached
_BOTTOM: Final = 15  # lines of the screen that can be a question
_SHELLS: Final = frozenset(
    {
        "sh",
        "bash",
        "dash",
        "zsh",
        "ksh",
        "mksh",
        "fish",
        "csh",
        "tcsh",
        "ash",
        "busybox",
        "nu",
        "pwsh",
        "xonsh",
        "elvish",
    }
)
_WITH_VALUE: Final = frozenset({"--rcfile", "--init-file", "-o", "+o", "-O", "+O"})
_EDGE: Final = "^\\s*[│┃|▌]?\\s*"  # a box may be drawn around it
_POINTER: Final = "[>●▶◉»\u276f\u203a]"
_ANSWERS: Final = "Yes|No|Allow|Approve|Accept|Deny|Reject|Trust|Proceed|Continue|Cancel"
_INPUT_LINE: Final = re.compile(rf"{_EDGE}[>»\u276f\u203a]\s+\S")
# Questions that a line of text and Enter would answer: menus of Claude Code, Codex and Gemini CLI (a pointer before
# "1. Yes"), aider's "(Y)es/(N)o", and what asks for y/n, a password or a key.
_QUESTIONS: Final = (
    rf"{_EDGE}{_POINTER}\s*\d+[.)]\s+(?:{_ANSWERS})\b",
    rf"{_EDGE}(?:Do you want to|Would you like to|Allow command)[^\n]*\?\s*[│┃|▌]?\s*\n{_EDGE[1:]}{_POINTER}",
    r"[\[(](?:y/n|Y/n|y/N|yes/no)\b[^\n]{0,40}[\])]\s*[:?]?\s*\Z",
    r"\(Y\)es/\(N\)o[^\n]*\Z",
    r"(?:^|\s)(?:[Pp]assword|[Pp]assphrase|PIN|Verification code)[^\n]{0,80}:\s*\Z",
    r"(?:[Pp]ress|[Hh]it) (?:any key|Enter|RETURN|\[?ENTER\]?)[^\n]*\Z",
    r"^\s*--\s?(?:More|more)\s?--",
    r"\(END\)\s*\Z",
)
DEFAULT_BUSY: Final = "|".join(_QUESTIONS)


@dataclass(frozen=True, slots=True)
class Look:
    """What was seen of a pane at one moment."""

    is_dead: bool
    mode: str  # "copy-mode", "tree-mode" and so on; empty if there is none
    foreground: tuple[str, ...]  # the command line of the foreground process group's leader; empty if not known
    reads_lines: bool  # the terminal is in line mode
    screen: tuple[str, ...]  # lines from the top
    cursor: tuple[int, int]  # column and line, from 0
    prompt: str = ""  # what was left of the cursor when the program was ready first
    ready: str = ""  # names the program, and the mode of its terminal
    idle_s: float | None = None  # since the last key of a person; None if nobody is attached

    @property
    def left(self) -> str:
        """The text from the beginning of the cursor's line to the cursor."""
        column, line = self.cursor
        text = self.screen[line] if line < len(self.screen) else ""
        return _cells(text, column)


def why_busy(look: Look, pattern: re.Pattern[str] | None) -> str:
    """Why nothing should be typed now; empty if the program waits for a text."""
    if look.mode:
        return f"the terminal is in {look.mode}"
    if is_bare_shell(look.foreground):
        return f"a shell ({look.foreground[0]}) is where the program was"
    if look.idle_s is not None and look.idle_s < TYPING_S:
        return "a person is typing"
    if question := asked(look.screen, pattern):
        return f"it asks: {question}"
    if is_half_typed(look):
        return "there is a half-typed line"
    return ""


def asked(screen: Sequence[str], pattern: re.Pattern[str] | None) -> str:
    """The line of the question at the bottom of the screen, shortened; empty if there is none."""
    lines = [line.rstrip() for line in screen]
    while lines and not lines[-1]:
        lines.pop()
    found = pattern.search("\n".join(lines[-_BOTTOM:])) if pattern is not None else None
    return "" if found is None else " ".join(found[0].split())[:60] or "a menu"


def is_bare_shell(argv: Sequence[str]) -> bool:
    """True for a shell that takes commands from its terminal: without a script or `-c`."""
    if not argv:
        return False
    name = PurePath(argv[0]).name.removeprefix("-")
    rest = list(argv[1:])
    if name == "busybox" and rest:
        name = rest.pop(0)
    if name not in _SHELLS:
        return False
    while rest:
        word = rest.pop(0)
        if word in {"-s", "--"}:
            return word == "-s" or not rest
        if not word.startswith(("-", "+")) or _is_command(word):
            return False
        if word in _WITH_VALUE and rest:
            rest.pop(0)
    return True


def _is_command(word: str) -> bool:
    """True for the option of a shell that is followed by its commands: `-c`, also among others in one word."""
    return word == "--command" or (not word.startswith("--") and "c" in word[1:])


def is_half_typed(look: Look) -> bool:
    """True if there is text between the program's prompt and the cursor."""
    left = look.left
    if look.prompt.strip() and left.startswith(look.prompt):
        return bool(left[len(look.prompt) :].strip())
    return _INPUT_LINE.match(left) is not None


def harmless(text: str) -> str:
    """`text` without control characters, each of which is shown by its picture; tabs and line breaks stay.

    What is left cannot end a bracketed paste, be a key, or be a signal of the terminal.
    """
    return text.translate(_PICTURES)


def one_line(text: str) -> str | None:
    """`text` for a program that reads lines: without line breaks at its end; None if it is not one line of it."""
    line = text.rstrip("\r\n")
    return None if "\n" in line or "\r" in line or len(line.encode()) > LINE_LIMIT else line


def unframed(text: str) -> str:
    """`text` for a program that does not take pastes as such: in it a carriage return would be Enter."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _picture(code: int) -> str:
    if code < 0x20:
        return chr(0x2400 + code)
    return "\u2421" if code == 0x7F else "\ufffd"  # DEL, and the controls of eight bits


_PICTURES: Final = {
    code: _picture(code)
    for code in (*range(0x20), *range(0x7F, 0xA0), *range(0xD800, 0xE000))
    if chr(code) not in "\t\n\r"
}


def _cells(text: str, count: int) -> str:
    """The beginning of `text` that takes `count` columns."""
    taken, used = 0, 0
    for char in text:
        if used >= count:
            break
        used += _width(char)
        taken += 1
    return text[:taken].ljust(taken + max(0, count - used))


def _width(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1
