"""Files that are replaced whole, or not at all, and read only where they are regular ones.

A file is written beside its place, flushed, renamed over it, and the directory flushed: a reader sees the old one or
the new one, and a power cut cannot bring the old back. Files are 0600 whatever the umask.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
from pathlib import Path
from typing import Any


def write_durably(path: Path, content: bytes) -> None:
    """Replace `path` by `content` so that a power cut at any moment leaves the old file or the new one."""
    replace_file(path, content, sync=True)
    fsync_directory(path.parent)


def replace_file(path: Path, content: bytes, *, sync: bool) -> None:
    """Replace `path` in one rename; `sync` flushes the data first. Raises OSError and leaves the old file."""
    beside = path.with_name(f".{path.name}.tmp")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        try:
            os.fchmod(descriptor, 0o600)
            view = memoryview(content)
            while view:
                view = view[os.write(descriptor, view) :]
            if sync:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.rename(beside, path)
    except BaseException:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise


def fsync_directory(path: Path) -> None:
    """Flush the names in `path`."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class IrregularFile(OSError):
    """What is there is no file of ours, and will not become one by itself."""


def read_regular(path: Path, limit: int = 64 << 20) -> bytes:
    """The bytes of a regular file that is reached without a link in its last part.

    Raises FileNotFoundError, IrregularFile (a link, a fifo, a directory, over `limit` bytes), or another OSError.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise IrregularFile(f"'{path}' is not a regular file") from error
        raise
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_size > limit:
        os.close(descriptor)
        raise IrregularFile(f"'{path}' is not a regular file of at most {limit} bytes")
    with os.fdopen(descriptor, "rb") as file:
        return file.read()


def to_json_bytes(value: Any) -> bytes:
    """JSON in ASCII, so that neither a locale nor an odd character can make it unwritable."""
    return json.dumps(value, indent=1).encode("ascii") + b"\n"


def to_json_line(value: Any) -> bytes:
    """The same on one line: what receivers read, many of them line by line."""
    return json.dumps(value).encode("ascii") + b"\n"


def read_json_object(path: Path) -> dict[str, Any]:
    """The JSON object in `path`. Raises FileNotFoundError, OSError, or ValueError for anything but an object."""
    try:
        value = json.loads(read_regular(path))
    except RecursionError as error:
        raise ValueError(f"'{path}' is nested too deeply") from error
    if not isinstance(value, dict):
        raise ValueError(f"'{path}' holds {type(value).__name__}, not an object")
    return value
