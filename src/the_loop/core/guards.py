"""Who may speak, which notices are our own, and which lines are control words. Pure functions over text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from the_loop.core.model import Entry

OWN_MARKER: Final = "<!-- the-loop -->"
_FENCES: Final = ("```", "~~~")


class Word(StrEnum):
    """A control word of an authorised person."""

    START = "start"
    STOP = "stop"
    PAUSE = "pause"
    RESUME = "resume"


class Dropped(StrEnum):
    """Why an entry is not for us."""

    OWN = "own"
    UNAUTHORIZED = "unauthorized"
    RENAMED = "renamed"


@dataclass(frozen=True, slots=True)
class Rules:
    """What the configuration says about one source's people and words."""

    authorized: frozenset[str]  # in lower case where `folds_case`
    folds_case: bool  # logins of GitHub; user names of this machine are told apart by case
    words: Mapping[str, Word]  # by phrase, folded
    require_start: bool = False

    def may_speak(self, author: str | None) -> bool:
        """True if this author is on the list. None, nobody, never is."""
        if author is None:
            return False
        return (author.casefold() if self.folds_case else author) in self.authorized


@dataclass(frozen=True, slots=True)
class Reading:
    """One entry as the guards read it: `dropped`, or the words in it and the `text` beside them."""

    dropped: Dropped | None = None
    words: frozenset[Word] = frozenset()
    text: str = ""
    is_verdict: bool = False  # it says something beside its text

    @property
    def is_word_alone(self) -> bool:
        """True for a control word and nothing else: obeyed, there is nothing left to hand over."""
        return bool(self.words) and not self.text and not self.is_verdict

    @property
    def word(self) -> Word | None:
        """The word to obey; None also where two different ones contradict each other."""
        return next(iter(self.words)) if len(self.words) == 1 else None

    @property
    def is_ambiguous(self) -> bool:
        return len(self.words) > 1


def read(entry: Entry, rules: Rules) -> Reading:
    """Apply the guards in their order (contract R6.3, R6.4): own notices, people, then words."""
    if is_own_notice(entry.body):
        return Reading(Dropped.OWN)
    if not rules.may_speak(entry.author):
        return Reading(Dropped.UNAUTHORIZED)
    return replace(read_text(entry.body, rules), is_verdict=entry.is_verdict)


def read_text(body: str, rules: Rules) -> Reading:
    """The control words in `body` and what stands beside them; both only of lines outside quotation and code."""
    words = set()
    others = []
    for line, is_plain in _lines(body):
        word = rules.words.get(_folded(line)) if is_plain else None
        if word is None:
            others.append(line)
        else:
            words.add(word)
    if not words:
        return Reading(text=body)
    return Reading(words=frozenset(words), text="\n".join(others).strip())


def is_own_notice(body: str) -> bool:
    """True if the last line that is not blank is our marker, standing for itself: not quoted, fenced or indented."""
    last = ("", False)
    for line, is_plain in _lines(body):
        if line.strip():
            last = (line, is_plain)
    return last[1] and last[0].strip() == OWN_MARKER


def phrases(start: str, stop: str, pause: str, resume: str) -> Mapping[str, Word]:
    """The table that `Rules.words` wants."""
    return {
        _folded(start): Word.START,
        _folded(stop): Word.STOP,
        _folded(pause): Word.PAUSE,
        _folded(resume): Word.RESUME,
    }


def _lines(body: str) -> Iterator[tuple[str, bool]]:
    """Each line, and whether it is plain: not quoted, not in a code fence, not indented by four."""
    fence = ""
    for line in body.replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        stripped = line.lstrip(" ")
        indent = len(line) - len(stripped)
        mark = _fence(stripped) if indent < 4 else ""
        if fence:
            if mark.startswith(fence) and not stripped.strip(mark[0] + " \t"):
                fence = ""
            yield line, False
        elif mark:
            fence = mark
            yield line, False
        else:
            yield line, indent < 4 and not stripped.startswith((">", "\t"))


def _fence(text: str) -> str:
    """The run of fence characters that `text` opens with, or nothing."""
    if not text.startswith(_FENCES):
        return ""
    return text[: len(text) - len(text.lstrip(text[0]))]


def _folded(line: str) -> str:
    return " ".join(line.split()).casefold()
