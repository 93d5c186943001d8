"""The guards: authorised authors, our own notices, and control words. Pure functions over text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
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
    """Why an entry is not delivered."""

    OWN = "own"
    UNAUTHORIZED = "unauthorized"
    RENAMED = "renamed"


@dataclass(frozen=True, slots=True)
class Pin:
    """The account that an authorised name belongs to, by its number, and other accounts that were rejected."""

    id: int
    rejected: frozenset[int] = frozenset()


class Speaker(StrEnum):
    """What the rules say of an author."""

    TRUSTED = "trusted"
    STRANGER = "stranger"
    CHANGED = "changed"  # an authorised name that another account has now: the operator decides


@dataclass(frozen=True, slots=True)
class Rules:
    """The authorised authors and control words of one source, from the configuration.

    `pins`: by name, folded as `authorized` is. The source keeps it up to date, and pins a name before it shows
    anything that this name wrote.
    """

    authorized: frozenset[str]  # folded to lower case if `folds_case`
    folds_case: bool  # true for GitHub logins; user names of this machine are case-sensitive
    words: Mapping[str, Word]  # by phrase, folded
    require_start: bool = False
    pins: Mapping[str, Pin] = field(default_factory=dict)

    def may_speak(self, author: str | None, author_id: int | None = None) -> bool:
        """True if this author is authorised. None (unknown) never is."""
        return self.speaker(author, author_id) is Speaker.TRUSTED

    def speaker(self, author: str | None, author_id: int | None) -> Speaker:
        """What is known of this author. Without an `author_id` the name alone counts."""
        if author is None:
            return Speaker.STRANGER
        name = author.casefold() if self.folds_case else author
        if name not in self.authorized:
            return Speaker.STRANGER
        pin = self.pins.get(name)
        if pin is None or author_id in (None, pin.id):
            return Speaker.TRUSTED
        return Speaker.STRANGER if author_id in pin.rejected else Speaker.CHANGED

    def waits(self, entry: Entry) -> bool:
        """True if the operator has to decide about the entry's author before anything is decided about the entry."""
        return self.speaker(entry.author, entry.author_id) is Speaker.CHANGED


@dataclass(frozen=True, slots=True)
class Reading:
    """The guards' result for one entry: `dropped`, or its control words and the remaining `text`."""

    dropped: Dropped | None = None
    words: frozenset[Word] = frozenset()
    text: str = ""
    is_verdict: bool = False  # a review that counts even without a text

    @property
    def is_word_alone(self) -> bool:
        """True for control words only: once they are applied there is nothing left to deliver."""
        return bool(self.words) and not self.text and not self.is_verdict

    @property
    def word(self) -> Word | None:
        """The control word to apply; None also if there are different ones, which contradict each other."""
        return next(iter(self.words)) if len(self.words) == 1 else None


def read(entry: Entry, rules: Rules) -> Reading:
    """Apply the guards in their order (contract R6.3, R6.4): own notices, authors, then control words."""
    if is_own_notice(entry.body):
        return Reading(Dropped.OWN)
    if not rules.may_speak(entry.author, entry.author_id):
        return Reading(Dropped.UNAUTHORIZED)
    return replace(read_text(entry.body, rules), is_verdict=entry.is_verdict)


def read_text(body: str, rules: Rules) -> Reading:
    """The control words in `body` and the remaining text. Words in quotations and code do not count."""
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
    """True if the last line that is not blank is our marker, and is not quoted, fenced or indented."""
    if OWN_MARKER not in body:
        return False
    last = ("", False)
    for line, is_plain in _lines(body):
        if line.strip():
            last = (line, is_plain)
    return last[1] and last[0].strip() == OWN_MARKER


def phrases(start: str, stop: str, pause: str, resume: str) -> Mapping[str, Word]:
    """The table for `Rules.words` of these four phrases."""
    return {
        _folded(start): Word.START,
        _folded(stop): Word.STOP,
        _folded(pause): Word.PAUSE,
        _folded(resume): Word.RESUME,
    }


def _lines(body: str) -> Iterator[tuple[str, bool]]:
    """Each line, and whether it is plain: not quoted, in a code fence, or indented by four."""
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
    """The run of fence characters at the start of `text`, or ""."""
    if not text.startswith(_FENCES):
        return ""
    return text[: len(text) - len(text.lstrip(text[0]))]


def _folded(line: str) -> str:
    return " ".join(line.split()).casefold()
