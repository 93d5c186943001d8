"""Files that cannot be used, kept under a second name, `<name>.bad-<n>`, when something else takes their place."""

from __future__ import annotations

import json
import os
from pathlib import Path

from the_loop.durable import IrregularFile, fsync_directory, read_regular


def set_aside(path: Path) -> Path:
    """Give the file a second name; its path. Raises OSError."""
    for number in range(1, 1000):
        aside = path.with_name(f"{path.name}.bad-{number}")
        try:
            os.link(path, aside, follow_symlinks=False)
        except FileExistsError:
            continue
        fsync_directory(path.parent)
        return aside
    raise OSError(28, "a thousand files are set aside already")


def held_reason(content: bytes, ref: str) -> str:
    """Why this record is held; empty for anything but a held record of this item."""
    if b'"held"' not in content:
        return ""
    try:
        tree = json.loads(content)
        return str(tree["held"]["reason"]) if tree["ref"] == ref else ""
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""


def starts_in(path: Path) -> int:
    """The count of starts in a file that may be anything, 0 if it does not tell. Raises OSError."""
    try:
        starts = json.loads(read_regular(path))["g"]
    except (FileNotFoundError, IrregularFile, ValueError, LookupError, TypeError, RecursionError):
        return 0
    return starts if isinstance(starts, int) and starts > 0 else 0
