"""Atomic, durable writes of files, appends and moves, and reads of regular files only.

A file is written under a temporary name, flushed and renamed, then its directory is flushed: a reader sees the old
file or the new one, and a power cut cannot bring the old one back. Files are 0600, whatever the umask.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
from pathlib import Path
from typing import Any

import msgspec


def write_durably(path: Path, content: bytes, *, flushes_name: bool = True) -> None:
    """Replace `path` with `content`; a power cut at any moment leaves the old file or the new one. Raises OSError.

    Without `flushes_name` it is the new one only once the caller has flushed the directory, for many files at once.
    """
    replace_file(path, content, sync=True)
    if flushes_name:
        fsync_directory(path.parent)


def replace_file(path: Path, content: bytes, *, sync: bool, mode: int = 0o600) -> None:
    """Replace `path` in one rename; `sync` flushes the data first. Raises OSError, with the old file in place."""
    beside = path.with_name(f".{path.name}.tmp")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        try:
            os.fchmod(descriptor, mode)
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


def append_durably(path: Path, content: bytes, *, at: int, head: bytes) -> None:
    """Put `content` at offset `at`, in the place of all that is behind it; a power cut may leave a part of it there.

    Raises FileNotFoundError; IrregularFile if the file does not begin with `head` or is shorter than `at`; OSError.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_size < at or os.pread(descriptor, len(head), 0) != head:
            raise IrregularFile(f"'{path}' is not the file that was written before")
        if found.st_size > at:
            os.ftruncate(descriptor, at)
        view = memoryview(content)
        while view:
            written = os.pwrite(descriptor, view, at)
            view, at = view[written:], at + written
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_directory(path: Path) -> None:
    """Flush the entries of the directory `path`. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folders(path: Path) -> None:
    """Make the directory `path` and those above it that are missing, each 0700 and flushed. Raises OSError."""
    missing = [folder for folder in (path, *path.parents) if not folder.is_dir()]
    for folder in reversed(missing):
        folder.mkdir(mode=0o700, exist_ok=True)
        fsync_directory(folder.parent)


class IrregularFile(OSError):
    """The path is not a regular file of acceptable size; trying again does not help."""


def read_regular(path: Path, limit: int = 64 << 20) -> bytes:
    """The content of a regular file; a symbolic link as the last component is not followed.

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
    """`value` as indented JSON in ASCII, which can be written under any locale."""
    try:
        return msgspec.json.format(json.dumps(value).encode("ascii"), indent=1) + b"\n"  # ten times as fast as `indent`
    except msgspec.DecodeError:  # a number without a form in JSON, in a key that we do not know
        return json.dumps(value, indent=1).encode("ascii") + b"\n"


def to_json_line(value: Any) -> bytes:
    """`value` as JSON in ASCII on one line, for receivers that read line by line."""
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
