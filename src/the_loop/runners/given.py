"""What a command gets beside the payload: the event as plain text, the values of placeholders, more variables.

`<stem>.given` has it for one start: `NAME=value`, each ended by a NUL. Names in braces are `keeper.PLACEHOLDERS` and
`keeper.INPUT`, all others are variables. It is a file, and not the keeper's environment or command line, as variables
may be secrets, which a unit would show, and as texts are too long for that. The keeper removes it.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from the_loop.core.model import clean, printable
from the_loop.runners.keeper import INPUT, PLACEHOLDERS, to_bytes

_FILE_LIMIT: Final = 1 << 20  # bytes
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_RESERVED: Final = re.compile(
    r"NOTIFY_SOCKET|WATCHDOG_\w+|LISTEN_\w+|\w*CREDENTIALS_DIRECTORY|(RUNTIME|STATE|CACHE|LOGS|CONFIGURATION)_DIRECTORY"
    r"|INVOCATION_ID|JOURNAL_STREAM|MAINPID|MANAGERPID\w*|SYSTEMD_\w+|FDSTORE|MEMORY_PRESSURE_\w+"
    r"|THE_LOOP_(?!CONFIG$)\w*"
)
_DOUBLE: Final = re.compile(r'\\(["\\$`])')


@dataclass(frozen=True, slots=True)
class Extras:
    """What a session adds: text in place of JSON, variables, and a file of variables that is read for each start."""

    is_text: bool = False
    variables: Mapping[str, str] = field(default_factory=dict)
    file: Path | None = None

    def given(self, argv: Sequence[str], payload: Mapping[str, Any]) -> bytes:
        """What this start of `argv` is given; empty if it needs nothing. Raises OSError, ValueError."""
        used = [name for name in PLACEHOLDERS if name in argv]
        text = text_of(payload) if self.is_text or "{text}" in used else ""
        values = {"{text}": text, "{title}": _argument(payload.get("title")), "{url}": _argument(payload.get("url"))}
        values["{ref}"] = _argument(payload.get("ref"))
        entries = {name: values[name] for name in used}
        if self.is_text:
            entries[INPUT] = text
        entries |= self.variables
        if self.file is not None:
            entries |= read_environment(self.file, os.geteuid())
        return b"".join(to_bytes(f"{name}={value}\0") for name, value in entries.items())


NO_EXTRAS: Final = Extras()


def name_problem(name: str) -> str:
    """Why a receiver cannot be given a variable of this name, or nothing."""
    if not _NAME.fullmatch(name):
        return "is not the name of a variable: letters, digits and _"
    if _RESERVED.fullmatch(name):
        return "belongs to the service manager or to the-loop and is never passed on"
    return ""


def read_environment(path: Path, uid: int | None) -> dict[str, str]:
    """The variables of a file that only `uid` (None: any user) can read.

    One `NAME=value` a line; blank lines and lines that begin with # or ; are comments. A value may be in quotes.
    Raises OSError; ValueError, whose sentence shows nothing of the content.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_size > _FILE_LIMIT:
            raise ValueError(f"it is not a regular file of at most {_FILE_LIMIT} bytes")
        if uid not in (None, found.st_uid):
            raise ValueError(f"it belongs to uid {found.st_uid}, not to uid {uid}")
        if mode := stat.S_IMODE(found.st_mode) & 0o077:
            raise ValueError(f"others have access to it (mode {mode | 0o600:04o}); run `chmod 600 {path}`")
        content = file.read()
    try:
        lines = content.decode().split("\n")
    except UnicodeDecodeError as error:
        raise ValueError("it is not UTF-8") from error
    return dict(_variables(lines))


def _variables(lines: Sequence[str]) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(map(str.strip, lines), 1):
        if not line or line[0] in "#;":
            continue
        name, equals, value = line.removeprefix("export ").partition("=")
        if not equals:
            raise ValueError(f"line {number}: expected NAME=value")
        if problem := name_problem(name):
            raise ValueError(f"line {number}: its name {problem}")
        if "\0" in value:
            raise ValueError(f"line {number}: it has a NUL character in it")
        yield name, _unquoted(value.strip())


def _unquoted(value: str) -> str:
    quote = value[:1]
    if len(value) < 2 or quote not in ("'", '"') or value[-1] != quote:
        return value
    return value[1:-1] if quote == "'" else _DOUBLE.sub(r"\1", value[1:-1])


def _argument(value: object) -> str:
    """As one argument: it is never taken for an option."""
    text = clean(str(value or ""))
    return f" {text}" if text.startswith("-") else text


def text_of(payload: Mapping[str, Any]) -> str:
    """An event as plain text: a header of ours, its text, and for a spawn the thread, each part below a line of ours.

    That line has a mark which depends on all of the texts, so that none of them can have a false one in it.
    """
    thread = payload.get("thread") or ()
    mark = f"[the-loop {_digest(payload)}]"
    parts = [
        f"{mark} {payload.get('kind')} of {_line(payload.get('ref'))}\n{''.join(_facts(payload))}\n{_body(payload)}"
    ]
    for entry in thread:
        facts = "".join(f"{name}: {_line(entry[name])}\n" for name in ("verdict", "path", "line") if name in entry)
        about = f"{entry.get('kind')} by {_line(entry.get('author') or 'unknown')}, {_line(entry.get('createdAt', ''))}"
        parts.append(f"{mark} {about}\nurl: {_line(entry.get('url'))}\n{facts}\n{_body(entry)}")
    if omitted := payload.get("omitted"):
        parts.append(f"{mark} {omitted} more by people who are not authorised, left out\n")
    return clean("\n".join(parts))


def _facts(payload: Mapping[str, Any]) -> Iterator[str]:
    for name in ("title", "url", "author", "verdict", "path", "line", "reason", "stateReason"):
        if payload.get(name) not in (None, ""):
            yield f"{name}: {_line(payload[name])}\n"
    if payload.get("redelivery"):
        yield "redelivery: an earlier offer of this may have arrived\n"


def _body(entry: Mapping[str, Any]) -> str:
    if entry.get("truncated"):
        return "(left out for its size, see its url)\n"
    body = str(entry.get("body") or "")
    return body if not body or body.endswith("\n") else f"{body}\n"


def _line(value: object) -> str:
    return printable(str(value))


def _digest(payload: Mapping[str, Any]) -> str:
    texts = [
        str(payload.get("deliveryId")),
        *(str(one.get("body")) for one in (payload, *(payload.get("thread") or ()))),
    ]
    return hashlib.sha256("\0".join(texts).encode("utf-8", "surrogatepass")).hexdigest()[:8]
