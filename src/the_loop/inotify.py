"""To be told when names in a directory change, instead of looking at it again and again."""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

IN_CLOSE_WRITE: Final = 0x008
IN_MOVED: Final = 0x0C0
IN_MOVED_TO: Final = 0x080
IN_CREATE: Final = 0x100
IN_DELETE: Final = 0x200
IN_SELF: Final = 0xC00  # the directory itself was deleted or moved
_FLAGS: Final = os.O_NONBLOCK | os.O_CLOEXEC
_CHUNK: Final = 1 << 16
_HEAD: Final = struct.Struct("iIII")  # watch, mask, cookie, length of the name


def watch_names(directory: Path) -> int:
    """A descriptor that is readable once a name in `directory` came or went, or the directory itself went.

    Raises OSError where the kernel gives none (a limit of the user's, or of the machine).
    """
    return watch(directory, IN_MOVED | IN_CREATE | IN_DELETE | IN_SELF)


def watch(directory: Path, mask: int) -> int:
    """The same for the changes in `mask`. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = libc.inotify_init1(_FLAGS)
    if descriptor < 0 or libc.inotify_add_watch(descriptor, os.fsencode(directory), mask) < 0:
        number = ctypes.get_errno()
        if descriptor >= 0:
            os.close(descriptor)
        raise OSError(number, os.strerror(number), str(directory))
    return int(descriptor)


def names_in(content: bytes) -> Iterator[bytes]:
    """The names that a read of such a descriptor tells, "" for the directory itself (inotify(7))."""
    at = 0
    while at + _HEAD.size <= len(content):
        length = _HEAD.unpack_from(content, at)[3]
        at += _HEAD.size
        yield content[at : at + length].rstrip(b"\0")
        at += length


def drain(descriptor: int) -> None:
    """Take what was told; which names it was does not matter."""
    with contextlib.suppress(BlockingIOError):
        while os.read(descriptor, _CHUNK):
            pass
