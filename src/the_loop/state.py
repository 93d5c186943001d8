"""The state root: the paths in it, and its directories.

    poll.pid, poll-status.json      the lock and the heartbeat
    portable/<slug>.json            the record of one item
    portable/<slug>.settled         its log of settled ids
    portable/ended/<slug>.json      the record of an item that ended
    portable/repositories.json      numeric id and filed name of each repository
    portable/authors.json           which account an authorised login belongs to
    local/deliveries/<slug>.*       one pending delivery: payload, lock, start mark, outcome
    local/once/<slug>.*             an id that `the-loop once` claimed
    local/sources/<slug>.json       cursor of a source
    local/sources/<slug>.d/         what a source keeps of its own; made by it
    local/runners/<slug>/           the same of a runner
    logs/events.jsonl, output.log   the event log, and the output of the commands
    claims/                         in the default root of a user only: which poller polls which bot, for all roots

Directories are 0700 and files 0600, whatever the umask. For how files are written see `durable`.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
import shlex
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from the_loop.core.model import LoopError, printable
from the_loop.durable import fsync_directory

PIDFILE: Final = "poll.pid"
NO_LEDGERS: Final = frozenset({"repositories.json", "authors.json"})  # other files in `portable/`
_SLUG_LIMIT: Final = 200
_PUNCTUATION: Final = {":": ",", "/": "+", "#": "@"}
_PUNCTUATION_BACK: Final = {b: a for a, b in _PUNCTUATION.items()}
_LITERAL: Final = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
OWN_NAMES: Final = frozenset(
    {PIDFILE, "poll-status.json", "poll.wake", "control.sock", "portable", "local", "logs", "claims"}
)
_GUESTS: Final = frozenset({"inbox", "lost+found"})
_NOT_ITEMS: Final = frozenset({"authors", "repositories"})  # beside the ledgers; a ref always has a colon
_FOLDERS: Final = ("portable", "local", "local/deliveries", "local/sources", "local/sessions", "logs")


@functools.lru_cache(maxsize=1 << 16)
def slug(name: str) -> str:
    """A file name for `name`: readable, injective, at most 200 bytes, and without `/`.

    `:`, `/` and `#` become `,`, `+` and `@`; every other byte outside letters, digits, `.`, `_` and `-` becomes
    `%XX`. A longer result is cut and ends in `~` and a hash of the whole name (`~` itself is never literal).
    """
    parts = []
    for char in name:
        if char in _PUNCTUATION:
            parts.append(_PUNCTUATION[char])
        else:
            raw = char.encode("utf-8", "surrogatepass")
            parts.append(char if raw[0] in _LITERAL else "".join(f"%{byte:02X}" for byte in raw))
    whole = "".join(parts)
    if whole.startswith("."):
        whole = "%2E" + whole[1:]
    if len(whole) <= _SLUG_LIMIT:
        return whole
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return f"{whole[: _SLUG_LIMIT - 33]}~{digest}"


def unslug(text: str) -> str | None:
    """The name for which `slug` returned `text`; None if it was cut, is not a slug, or is a file of another kind."""
    if "~" in text or text in _NOT_ITEMS:
        return None
    try:
        raw = re.sub(rb"%([0-9A-F]{2})", lambda m: bytes([int(m[1], 16)]), _unpunctuated(text))
        name = raw.decode("utf-8", "surrogatepass")
    except UnicodeError:
        return None
    return name if slug(name) == text else None


def _unpunctuated(text: str) -> bytes:
    return "".join(_PUNCTUATION_BACK.get(char, char) for char in text).encode()


class StateRootError(LoopError):
    """The state root cannot be used as it is; nothing in it was changed."""


@dataclass(frozen=True, slots=True)
class StateRoot:
    """Paths below one state root. Constructing it does not access the disk.

    `guests`: what else may be in the directory when it becomes a state root, as the configuration puts it there.
    """

    path: Path
    guests: frozenset[str] = _GUESTS

    @property
    def pidfile(self) -> Path:
        return self.path / PIDFILE

    @property
    def heartbeat(self) -> Path:
        return self.path / "poll-status.json"

    @property
    def portable(self) -> Path:
        return self.path / "portable"

    @property
    def unit_record(self) -> Path:
        return self.path / "local" / "unit.json"

    @property
    def deliveries(self) -> Path:
        return self.path / "local" / "deliveries"

    @property
    def once(self) -> Path:
        return self.path / "local" / "once"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def repositories(self) -> Path:
        return self.portable / "repositories.json"

    @property
    def ended(self) -> Path:
        return self.portable / "ended"

    @property
    def authors(self) -> Path:
        return self.portable / "authors.json"

    def ledger(self, ref: str) -> Path:
        return self.portable / f"{slug(ref)}.json"

    def settled(self, ref: str) -> Path:
        return self.portable / f"{slug(ref)}.settled"

    def ended_ledger(self, ref: str) -> Path:
        return self.ended / f"{slug(ref)}.json"

    def cursor(self, source: str) -> Path:
        return self.path / "local" / "sources" / f"{slug(source)}.json"

    def source_folder(self, source: str) -> Path:
        """Where a source may keep files of its own. No cursor is ever called like that."""
        return self.path / "local" / "sources" / f"{slug(source)}.d"

    def runner_folder(self, runner: str) -> Path:
        return self.path / "local" / "runners" / slug(runner)

    def delivery(self, delivery_id: str) -> Path:
        """The stem of a delivery's files; `.payload.json` and so on are appended to its name."""
        return self.deliveries / slug(delivery_id)

    def prepare_root(self) -> None:
        """Create the root directory, 0700. Raises StateRootError, with nothing changed, if `check_owner` does."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                self.path.mkdir(mode=0o700)
            self.check_owner()
            if stat.S_IMODE(self.path.stat().st_mode) != 0o700:
                self.path.chmod(0o700)
        except OSError as error:
            raise StateRootError(
                f"cannot use state root '{self.path}': {error.strerror}", "use another --state-root"
            ) from error

    def check_owner(self) -> None:
        """Raise StateRootError unless the root is missing, or a directory of the invoking user that is ours alone.

        Raises OSError.
        """
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return
        if not stat.S_ISDIR(found.st_mode):
            raise StateRootError(f"cannot use state root '{self.path}': not a directory", "use another --state-root")
        if found.st_uid != os.geteuid():
            raise StateRootError(
                f"cannot use state root '{self.path}': it belongs to uid {found.st_uid}, you are uid {os.geteuid()}",
                "run the command as its owner, or use another --state-root",
            )
        if found.st_mode & stat.S_ISVTX or self.path == Path("/"):
            problem = f"cannot use state root '{self.path}': it is a shared directory"
            raise StateRootError(problem, "use a directory of its own as --state-root")
        if stat.S_IMODE(found.st_mode) != 0o700:
            self._check_contents()

    def _check_contents(self) -> None:
        """Raise StateRootError if the directory, which would become private, holds anything of others'."""
        with os.scandir(self.path) as entries:
            others = sorted(entry.name for entry in entries if not self._may_be_there(entry.name))
        if others:
            named = ", ".join(f"'{printable(name)}'" for name in others[:3]) + (", …" if len(others) > 3 else "")
            place = shlex.quote(str(self.path))
            raise StateRootError(
                f"cannot use state root '{self.path}': it would become private, and it has other files in it: {named}",
                f"use a directory of its own, as in `--state-root {shlex.quote(str(self.path / 'the-loop'))}`, "
                f"or, if all of it is the poller's, run `chmod 700 {place}`",
            )

    def _may_be_there(self, name: str) -> bool:
        is_half_written = name.startswith(".") and any(name.startswith(f".{own}.") for own in OWN_NAMES)
        return name in OWN_NAMES or name in self.guests or is_half_written

    def prepare_folders(self) -> None:
        """Create the directories below the root, and remove temporary files that interrupted writes left there.

        Raises StateRootError.
        """
        folder = self.path
        try:
            for name in _FOLDERS:
                folder = self.path / name
                with contextlib.suppress(FileExistsError):
                    folder.mkdir(mode=0o700)
                folder.chmod(0o700)
                for leftover in folder.glob(".*.tmp"):
                    leftover.unlink(missing_ok=True)
            for folder in (self.path / "local", self.path):  # what is flushed in a directory needs its name
                fsync_directory(folder)
            with contextlib.suppress(OSError):  # not ours, and perhaps not to be read
                fsync_directory(self.path.parent)
        except OSError as error:
            raise StateRootError(
                f"cannot use '{folder}': {error.strerror}", f"check it with `ls -ld {folder}` and `df {folder}`"
            ) from error
