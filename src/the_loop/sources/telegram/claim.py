"""The claim of a token: of all pollers of one user, one asks for the updates of a bot.

`<state of the user>/claims/<hash of the token>/` is locked while a source is polled, and has the inbox of the bot in
it. Its place comes from the uid alone: pollers with another $HOME or $XDG_STATE_HOME have to meet there. The kernel
releases the lock whatever ends its holder.

A poller that is told to take over asks for it by `wanted` in that folder, with its `<pid>:<starttime>`. The holder lets
go at its next step, and leaves it alone as long as that process lives and still wants it; nothing is taken by force.
"""

from __future__ import annotations

import asyncio
import os
import pwd
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Final

from the_loop.core.model import Note, explain
from the_loop.durable import make_folders, read_regular, replace_file
from the_loop.inotify import drain, watch_names
from the_loop.lock import LockBusy, LockHeld, LockUnusable, RunLock
from the_loop.processes import Identity, identity_of, own_identity, parse_identity
from the_loop.sources.base import SourceError

CLAIM: Final = "claim.pid"
WANTED: Final = "wanted"
_SHARED: Final = Path("/var/lib/the-loop")
_UNSEEN: Final = "a process that is not visible here"


def claims_folder() -> Path:
    """Where the claims of this user are. Raises SourceError."""
    uid = os.geteuid()
    if uid == 0 or _owns(_SHARED, uid):
        return _SHARED / "claims"
    try:
        return Path(pwd.getpwuid(uid).pw_dir) / ".local" / "state" / "the-loop" / "claims"
    except KeyError as error:
        raise SourceError(f"cannot claim the token: uid {uid} has no home directory in the user database") from error


def claim_of(token: str) -> Path:
    """The folder of this token. Raises SourceError."""
    return claims_folder() / sha256(token.encode()).hexdigest()[:32]


class Claim:
    """The claim of one source, on whatever token it has now. `tell` gets its events.

    `takes_over`: asks the holder, once, to let go. `on_wish` is called when somebody asks us.
    """

    def __init__(
        self,
        source: str,
        tell: Callable[[Note], None],
        *,
        takes_over: bool = False,
        on_wish: Callable[[], None] = lambda: None,
    ) -> None:
        self._source = source
        self._tell = tell
        self._takes_over = takes_over
        self._on_wish = on_wish
        self._watch: int | None = None
        self._lock: RunLock | None = None
        self.turn = 0  # counts the times that it was taken
        self._refused_by = ""  # as it was told

    def take(self, token: str) -> tuple[Path, str]:
        """The folder of this token, and who holds it: nothing if that is us now. Raises SourceError."""
        folder = claim_of(token)
        if self._is_held(folder):
            return folder, ""
        if (wanted := _wanted(folder)) is not None:
            return folder, self._refused(folder, str(wanted))
        try:
            make_folders(folder)
            self._lock = RunLock.attempt(folder, CLAIM)
        except LockHeld as held:
            self._ask(folder)
            return folder, self._refused(folder, _shown(held.holder))
        except LockBusy as busy:
            return folder, self._refused(folder, "a probe" if busy.shared else busy.problem)
        except LockUnusable as error:
            raise SourceError(f"cannot claim the token: {error.problem}") from error
        except OSError as error:
            raise SourceError(f"cannot claim the token: cannot make '{folder}': {explain(error)}") from error
        self._refused_by = ""
        self.turn += 1
        self._settle(folder)
        fields = {"source": self._source, "path": str(self._lock.claim), "owner": str(self._lock.identity)}
        self._tell(Note("claim.taken", fields))
        return folder, ""

    def is_wanted(self) -> bool:
        """True if it is ours, and a poller that was told to take over asks for it."""
        return self._lock is not None and _wanted(self._lock.directory) is not None

    def give_up(self) -> str:
        """Let the poller have it that asks for it; which one that is."""
        if self._lock is None:
            return ""
        wanted = _wanted(self._lock.directory)
        self._say_lost(self._lock, f"{wanted} takes it over")
        folder = self._lock.directory
        self.release()
        return self._refused(folder, str(wanted))

    def release(self) -> None:
        """Let others have it."""
        if self._watch is not None:
            asyncio.get_running_loop().remove_reader(self._watch)
            os.close(self._watch)
            self._watch = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _ask(self, folder: Path) -> None:
        """Ask the holder to let go, if that is what we were told to. Raises OSError."""
        if self._takes_over:
            replace_file(folder / WANTED, f"{own_identity()}\n".encode(), sync=False)

    def _settle(self, folder: Path) -> None:
        """It is ours: nothing is wanted any more, and from now on others may ask."""
        self._takes_over = False
        with suppress(OSError):
            (folder / WANTED).unlink(missing_ok=True)
        with suppress(OSError):  # without a watch it is looked for in each poll
            self._watch = watch_names(folder)
            asyncio.get_running_loop().add_reader(self._watch, self._on_names)

    def _on_names(self) -> None:
        if self._watch is not None:
            drain(self._watch)
        if self.is_wanted():
            self._on_wish()

    def _is_held(self, folder: Path) -> bool:
        """True if it is ours, and where others look for it. Raises SourceError."""
        if self._lock is None:
            return False
        if self._lock.directory != folder:  # another token
            self.release()
            return False
        try:
            if self._lock.is_intact():
                self._lock.restore_claim()
                return True
        except OSError as error:
            raise SourceError(f"cannot look after the claim '{self._lock.claim}': {explain(error)}") from error
        self._say_lost(self._lock, "its folder was removed or replaced")
        self.release()
        return False

    def _say_lost(self, lock: RunLock, reason: str) -> None:
        fields = {"source": self._source, "path": str(lock.claim), "owner": str(lock.identity), "reason": reason}
        self._tell(Note("claim.lost", fields))

    def _refused(self, folder: Path, owner: str) -> str:
        if owner != self._refused_by:
            self._refused_by = owner
            fields = {"source": self._source, "path": str(folder / CLAIM), "owner": owner}
            self._tell(Note("claim.refused", fields))
        return owner


def _shown(holder: Identity | None) -> str:
    if holder is None:
        return _UNSEEN
    return f"{holder} (stopped by a signal)" if _is_stopped(holder.pid) else str(holder)


def _wanted(folder: Path) -> Identity | None:
    """Another process that lives and wants the claim; None also if that cannot be found out: then it is not given."""
    try:
        wanted = parse_identity(read_regular(folder / WANTED, 100).decode("ascii", "replace"))
    except OSError:
        return None
    is_there = wanted is not None and wanted.pid != os.getpid() and identity_of(wanted.pid) == wanted
    return wanted if is_there else None


def _is_stopped(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
    return stat[stat.rindex(b")") + 2 :][:1] in (b"T", b"t")


def _owns(path: Path, uid: int) -> bool:
    try:
        return path.stat().st_uid == uid
    except OSError:
        return False
