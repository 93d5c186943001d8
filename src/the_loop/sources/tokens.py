"""Files that hold a token."""

from __future__ import annotations

import shlex
import stat
from pathlib import Path


def exposure(path: Path) -> str:
    """Why others may read or replace the token in this file, and what mends it; "" if they may not, or it is missing.

    Not for files below `$CREDENTIALS_DIRECTORY`: their group bits are the mask of an access list.
    """
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError:
        return ""  # it cannot be used either, which is said where it is read
    if not mode & 0o077:
        return ""
    return (
        f"other users may use the token in '{path}', its mode is {mode:04o} (run `chmod 600 {shlex.quote(str(path))}`)"
    )
