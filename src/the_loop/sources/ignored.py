"""Names in an inbox that are not people's: what editors, downloads, sync tools and systems leave there.

The list is in docs/usage/directory.md. `ignore` in the source's section adds to it, or takes back with `!`, in the form
of a .gitignore that lies in the inbox.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any, Final

# all in lower case, as names are compared
HIDDEN: Final = (".", "~syncthing~")
HIDDEN_FILES: Final = ("#", "~$")
ENDINGS: Final = (
    *("~", ".tmp", ".temp", ".swp", ".swo", ".bak", ".orig", ".rej"),
    *(".part", ".partial", ".filepart", ".crdownload", ".download", ".opdownload", ".aria2", ".!ut", ".!qb"),
    ":zone.identifier",
)
NAMES: Final = frozenset({"desktop.ini", "thumbs.db", "ehthumbs.db", "icon\r", "4913"})
FOLDERS: Final = frozenset(
    {"lost+found", "system volume information", "$recycle.bin", "recycler", "@eadir", "__macosx"}
)
CONFLICTS: Final = (
    *(".sync-conflict-", "conflicted copy", "(case conflict", "(conflict on ", "(sfconflict ", "[conflict]"),
    *("in konflikt stehende kopie", "copie en conflit", "copia en conflicto", "copia in conflitto"),
    *("cópia em conflito", "conflicterende kopie"),
)
_OWNCLOUD: Final = re.compile(r"_conflict-\d{8}-\d{6}")


class Ignored:
    """What of one inbox is not looked at. `patterns` as in a .gitignore; raises ValueError for a bad one."""

    def __init__(self, patterns: Sequence[str] = ()) -> None:
        self._spec = _spec(patterns) if patterns else None

    def folder(self, name: bytes) -> bool:
        """True for a folder of the inbox that is not an item."""
        said = self._said(f"{_text(name)}/")
        return is_left_folder(_text(name)) if said is None else said

    def file(self, folder: bytes, name: bytes) -> bool:
        """True for a file in an item that is neither its text nor a comment."""
        said = self._said(f"{_text(folder)}/{_text(name)}")
        return is_left_file(_text(name)) if said is None else said

    def _said(self, path: str) -> bool | None:
        """What the operator's last pattern for this says, if there is one."""
        return None if self._spec is None else self._spec.check_file(path).include


def is_left_file(name: str) -> bool:
    """True for a file's name on the built-in list, in any case of letters."""
    folded = name.lower()
    return folded.startswith(HIDDEN_FILES) or folded in NAMES or _is_left(folded)


def is_left_folder(name: str) -> bool:
    """The same for a folder's, which may well be `#12` or a number."""
    folded = name.lower()
    return folded in FOLDERS or _is_left(folded)


def _is_left(folded: str) -> bool:
    is_half = folded.startswith(HIDDEN) or folded.endswith(ENDINGS)
    return is_half or any(part in folded for part in CONFLICTS) or _OWNCLOUD.search(folded) is not None


def pattern_fault(pattern: str) -> str:
    """Why this is not a pattern; empty if it is one."""
    if "\0" in pattern or "\n" in pattern or not pattern.strip():
        return "it is empty or has a line break"
    try:
        _spec([pattern])
    except ValueError as error:
        return str(error)
    return ""


def _spec(patterns: Sequence[str]) -> Any:
    from pathspec import GitIgnoreSpec  # noqa: PLC0415 (takes longer than the rest of a start; most need none)

    return GitIgnoreSpec.from_lines(patterns)


def _text(name: bytes) -> str:
    return os.fsdecode(name)
