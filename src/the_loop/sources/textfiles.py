"""Files as the directory source takes them: their names as plain text, who wrote them, and what they say."""

from __future__ import annotations

import hashlib
import os
import pwd
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final
from urllib.parse import quote_from_bytes, unquote_to_bytes

from the_loop.core.model import ENTRY_LIMIT, clean

_PLAIN: Final = " !$&'()*+,;=@[]{}^"  # readable, and harmless in a ref
_TEMPORARY: Final = (b"~", b".tmp", b".temp", b".swp", b".part", b".partial", b".crdownload", b".bak")


@dataclass(frozen=True, slots=True)
class File:
    """A complete regular file as it was seen."""

    path: Path
    name: str  # encoded
    signature: tuple[int, int, int, int]  # size, inode, time of data, time of anything, in nanoseconds
    author: str | None
    modified_s: float


@dataclass(frozen=True, slots=True)
class Text:
    body: str
    digest: str
    truncated: bool


NO_TEXT: Final = Text("", "", truncated=False)


def encode_name(name: bytes) -> str:
    """A file's name as plain text, injective: everything odd (and `%`, `/`, `#`) is percent-encoded."""
    try:
        text = name.decode("utf-8")
    except UnicodeDecodeError:
        return quote_from_bytes(name, safe=_PLAIN)
    return "".join(
        char if char.isprintable() and char not in "%/#" else quote_from_bytes(char.encode()) for char in text
    )


def unquote_name(name: str) -> str:
    """The file name that `encode_name` was given, as the file system wants it."""
    return os.fsdecode(unquote_to_bytes(name.encode("utf-8", "surrogatepass")))


def is_temporary(name: bytes) -> bool:
    return name.startswith((b".", b"#")) or name.endswith(_TEMPORARY)


def read_text(file: File | None) -> Text | None:
    """What a file says; None if it is not the file that was seen any more."""
    if file is None:
        return None
    try:
        descriptor = os.open(file.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as opened:
        content = opened.read(ENTRY_LIMIT + 1)
        found = os.fstat(descriptor)
    if (found.st_size, found.st_ino, found.st_mtime_ns, found.st_ctime_ns) != file.signature:
        return None
    digest = hashlib.sha256(content).hexdigest()
    if len(content) > ENTRY_LIMIT:
        return Text("", f"{digest}+{found.st_size}", truncated=True)
    return Text(clean(content.decode("utf-8", "replace")), digest, truncated=False)


def owner(found: os.stat_result) -> str:
    return _user_name(found.st_uid)


@lru_cache
def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
