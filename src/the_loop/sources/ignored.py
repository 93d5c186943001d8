"""Names in an inbox that are not people's: what editors, downloads, sync tools and systems leave there.

The list is in docs/usage/directory.md. `ignore` in the source's section adds to it, or takes back with `!`, in the form
of a .gitignore that lies in the inbox.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any, Final
from unicodedata import normalize

# all in lower case and composed, as names are compared
HIDDEN: Final = (".", "~syncthing~")
HIDDEN_FILES: Final = ("#", "~$")
UNFINISHED: Final = ("~", ".tmp", ".temp")
UNFINISHED_FILES: Final = (
    *(".swp", ".swo", ".bak", ".orig", ".rej", ":zone.identifier"),
    *(".part", ".partial", ".filepart", ".crdownload", ".download", ".opdownload", ".aria2", ".!ut", ".!qb"),
)
NAMES: Final = frozenset({"desktop.ini", "thumbs.db", "ehthumbs.db", "icon\r", "4913"})
FOLDERS: Final = frozenset(
    {
        *("lost+found", "system volume information", "$recycle.bin", "__macosx", "network trash folder"),
        *("@eadir", "@tmp", "@recycle", "@recently-snapshot", "#recycle", "#snapshot"),
    }
)
# in the tools' own forms: people write of conflicts, too
CONFLICTS: Final = re.compile(
    r"\.sync-conflict-\d{8}-\d{6}|_conflict-\d{8}-\d{6}|\[conflict\](?:\.[^.]*)?\Z"
    r"|\([^()]*(?:conflicted copy|case conflict|conflict on \d|sfconflict |in konflikt stehende kopie|copie en conflit"
    r"|copia en conflicto|copia in conflitto|c\u00f3pia em conflito|conflicterende kopie)[^()]*\)"
)


class Ignored:
    """What of one inbox is not looked at. `patterns` as in a .gitignore; see `pattern_fault`."""

    def __init__(self, patterns: Sequence[str] = ()) -> None:
        self._spec = _spec(patterns) if patterns else None

    def folder(self, name: bytes) -> bool:
        """True for a folder of the inbox that is not an item."""
        said = self._said_of_folder(f"{_text(name)}/")
        return is_left_folder(_text(name)) if said is None else said

    def file(self, folder: bytes, name: bytes) -> bool:
        """True for a file in an item that is neither its text nor a comment."""
        said = self._said(f"{_text(folder)}/{_text(name)}")
        return is_left_file(_text(name)) if said is None else said

    def _said(self, path: str) -> bool | None:
        """What the operator's last pattern for this says, if there is one."""
        return None if self._spec is None else self._spec.check_file(path).include

    def _said_of_folder(self, path: str) -> bool | None:
        """The same, by the last pattern that matches the folder itself: `!*/` takes folders back, as in git."""
        patterns = () if self._spec is None else reversed(self._spec.patterns)
        return next((one.include for one in patterns if one.include is not None and one.match_file(path)), None)


def is_left_file(name: str) -> bool:
    """True for a file's name on the built-in list, in any case of letters."""
    folded = _folded(name)
    is_half = folded.startswith(HIDDEN_FILES) or folded.endswith(UNFINISHED_FILES)
    return is_half or folded in NAMES or _is_left(folded)


def is_left_folder(name: str) -> bool:
    """The same for a folder's, which may well be `#12`, a number, or `v1.part`."""
    folded = _folded(name)
    return folded in FOLDERS or _is_left(folded)


def _is_left(folded: str) -> bool:
    return folded.startswith(HIDDEN) or folded.endswith(UNFINISHED) or CONFLICTS.search(folded) is not None


def _folded(name: str) -> str:
    """Some file systems keep accents apart from their letters."""
    return name.lower() if name.isascii() else normalize("NFC", name).lower()


def pattern_fault(pattern: str) -> str:
    """Why this is not a pattern; empty if it is one."""
    if "\0" in pattern or "\n" in pattern or not pattern.strip():
        return "it is empty or has a line break"
    try:
        _spec([pattern])
    except (ValueError, re.error) as error:
        return f"{pattern!r}: {error}"
    return ""


def _spec(patterns: Sequence[str]) -> Any:
    from pathspec import GitIgnoreSpec  # noqa: PLC0415 (takes longer than the rest of a start; most need none)

    return GitIgnoreSpec.from_lines(patterns)


def _text(name: bytes) -> str:
    return os.fsdecode(name)
