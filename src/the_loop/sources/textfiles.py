"""Files of the directory source: their names as plain text, their authors and their content."""

from __future__ import annotations

import errno
import hashlib
import os
import pwd
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote_from_bytes, unquote_to_bytes

from the_loop.core.model import ENTRY_LIMIT, clean

_PLAIN: Final = " !$&'()*+,;=@[]{}^"  # readable, and without a meaning in a ref
# the longer one first: UTF-32 in little endian begins like UTF-16
_MARKS: Final = (
    *((b"\xff\xfe\x00\x00", "utf-32-le"), (b"\x00\x00\xfe\xff", "utf-32-be"), (b"\xef\xbb\xbf", "utf-8")),
    *((b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be")),
)


@dataclass(frozen=True, slots=True)
class File:
    """A complete regular file, as of one scan."""

    path: Path
    name: str  # as `encode_name` returns it
    signature: tuple[int, int, int, int]  # size, inode, mtime and ctime in nanoseconds
    author: str | None  # None: another user could have written it
    modified_s: float  # epoch seconds
    doubt: str = ""  # why there is no author


@dataclass(frozen=True, slots=True)
class Text:
    """The content of a file. `body` is "" if it is `truncated`; `digest` identifies the content."""

    body: str
    digest: str
    truncated: bool


NO_TEXT: Final = Text("", "", truncated=False)


def encode_name(name: bytes) -> str:
    """A file name as plain text, injective: `%`, `/`, `#` and all that is not printable are percent-encoded."""
    try:
        text = name.decode("utf-8")
    except UnicodeDecodeError:
        return quote_from_bytes(name, safe=_PLAIN)
    return "".join(
        char if char.isprintable() and char not in "%/#" else quote_from_bytes(char.encode()) for char in text
    )


def unquote_name(name: str) -> str:
    """The inverse of `encode_name`: the name in the form that the file system uses."""
    return os.fsdecode(unquote_to_bytes(name.encode("utf-8", "surrogatepass")))


def signature_of(found: os.stat_result) -> tuple[int, int, int, int]:
    """What tells one content of a file from another: as `File.signature`."""
    return (found.st_size, found.st_ino, found.st_mtime_ns, found.st_ctime_ns)


def read_text(file: File | None) -> Text | None:
    """The content of a file; None if it has changed since the scan or is gone, or `file` is None. Raises OSError."""
    if file is None:
        return None
    try:
        descriptor = os.open(file.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.ELOOP:  # a link took its place
            return None
        raise
    with os.fdopen(descriptor, "rb") as opened:
        content = opened.read(ENTRY_LIMIT + 1)
        found = os.fstat(descriptor)
    if signature_of(found) != file.signature:
        return None
    digest = hashlib.sha256(content).hexdigest()
    if len(content) > ENTRY_LIMIT:
        return Text("", f"{digest}+{found.st_size}", truncated=True)
    return Text(clean(decoded(content)), digest, truncated=False)


def decoded(content: bytes) -> str:
    """The text of a file: as its byte order mark says, which is no part of it, else UTF-8.

    What is neither becomes U+FFFD.
    """
    for mark, encoding in _MARKS:
        if content.startswith(mark):
            return content[len(mark) :].decode(encoding, "replace")
    return content.decode("utf-8", "replace")


class Owners:
    """The user names of files' owners, each uid looked up once: to be made anew for every poll.

    A look-up that fails does not tell "has no name" from "the name service does not answer", so neither a name nor a
    failure may be kept: a uid can be given to another account, and the service comes back.
    """

    def __init__(self, authorized: frozenset[str]) -> None:
        """`authorized` may name a user by the uid."""
        self._authorized = authorized
        self._names: dict[int, str | None] = {}

    def name(self, uid: int) -> str | None:
        """The user name; the uid as text if that is what is authorised; None if it cannot be found out now."""
        if uid not in self._names:
            self._names[uid] = self._look_up(uid)
        return self._names[uid]

    def _look_up(self, uid: int) -> str | None:
        try:
            name = pwd.getpwuid(uid).pw_name
        except (KeyError, OSError):
            name = None
        if name not in self._authorized and str(uid) in self._authorized:
            return str(uid)
        return name
