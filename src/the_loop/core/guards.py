"""The guards: authorised authors, our own notices, and control words. Pure functions over text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final
from unicodedata import category

from the_loop.core.markdown import LIMIT, lines_of, shown
from the_loop.core.model import Entry, Kind

OWN_MARKER: Final = "<!-- the-loop -->"
_BLANK_LINES: Final = re.compile(r"\A(?:[^\S\n]*\n)+")  # not the indentation of what follows, which may be code
_SHORT: Final = 2000  # characters that are parsed in a few milliseconds
# besides the format characters of Unicode: fillers, joiners and variation selectors
_UNSEEN: Final = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0") | set(map(chr, range(0xFE00, 0xFE10)))


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
    KIND = "kind"  # the session takes no events of its kind


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
    """The authorised authors and control words of one source, and the kinds of events that its sessions take.

    `pins`: by name, folded as `authorized` is. The source keeps it up to date, and pins a name before it shows
    anything that this name wrote.
    """

    authorized: frozenset[str]  # folded to lower case if `folds_case`
    folds_case: bool  # true for GitHub logins; user names of this machine are case-sensitive
    words: Mapping[str, Word]  # by phrase, folded
    require_start: bool = False
    pins: Mapping[str, Pin] = field(default_factory=dict)
    kinds: frozenset[Kind] = frozenset(Kind)
    receivers: tuple[str, ...] = ()  # labels that have a receiver of their own, in the order of the configuration
    trusts_labels: bool = False  # whoever set them
    holds_uncertain: bool | None = None  # None: as the policy says

    def may_speak(self, author: str | None, author_id: int | None = None) -> bool:
        """True if this author is authorised. None (unknown) never is."""
        return self.speaker(author, author_id) is Speaker.TRUSTED

    def speaker(self, author: str | None, author_id: int | None) -> Speaker:
        """What is known of this author. Without an `author_id` the name alone counts."""
        if author is None:
            return Speaker.STRANGER
        name = self._folded(author)
        if name not in self.authorized:
            return Speaker.STRANGER
        pin = self.pins.get(name)
        if pin is None or author_id in (None, pin.id):
            return Speaker.TRUSTED
        return Speaker.STRANGER if author_id in pin.rejected else Speaker.CHANGED

    def receiver_for(self, labels: Iterable[str]) -> str:
        """The first label of the configuration that is among these; "" for the session's own receiver."""
        there = {self._folded(label) for label in labels}
        return next((name for name in self.receivers if self._folded(name) in there), "")

    def _folded(self, name: str) -> str:
        return name.casefold() if self.folds_case else name

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
    """The control words in `body` and the remaining text. A word counts on a line of its own that is shown as text."""
    lines = lines_of(body)
    said = {number: word for number, line in enumerate(lines) if (word := rules.words.get(_folded(line)))}
    if said:
        text = shown(body).text
        said = {number: word for number, word in said.items() if number in text}
    if not said:
        return Reading(text=body)
    others = [line for number, line in enumerate(lines) if number not in said]
    return Reading(words=frozenset(said.values()), text=_BLANK_LINES.sub("", "\n".join(others)).rstrip())


def is_own_notice(body: str) -> bool:
    """True if the last line that is not blank is our marker, and is not quoted, fenced, or indented by four.

    So it is taken for ours in a text that is too long to be read.
    """
    if OWN_MARKER not in body:
        return False
    lines = lines_of(body)
    number, line = next((number, line) for number, line in reversed([*enumerate(lines)]) if _folded(line))
    if _folded(line) != OWN_MARKER or line.startswith(("    ", "\t")):
        return False
    return len(body) > LIMIT or number in shown(body).html | shown(body).text


def is_slow(body: str, rules: Rules) -> bool:
    """True for a long text that has to be parsed: in a thread, as others wait otherwise."""
    return len(body) > _SHORT and (OWN_MARKER in body or any(_folded(line) in rules.words for line in lines_of(body)))


def phrases(start: str, stop: str, pause: str, resume: str) -> Mapping[str, Word]:
    """The table for `Rules.words` of these four phrases."""
    return {
        _folded(start): Word.START,
        _folded(stop): Word.STOP,
        _folded(pause): Word.PAUSE,
        _folded(resume): Word.RESUME,
    }


def _folded(line: str) -> str:
    """A line without what cannot be seen, as words are compared."""
    if not line.isascii():
        line = "".join(char for char in line if char not in _UNSEEN and category(char) != "Cf")
    return " ".join(line.split()).casefold()
