"""The claim of a token: of all pollers of one user, one asks for the updates of a bot.

`<state of the user>/claims/<hash of the token>/` is locked while a source is polled, and has the inbox of the bot in
it. Its place comes from the uid alone: pollers with another $HOME or $XDG_STATE_HOME have to meet there. The kernel
releases the lock whatever ends its holder.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Final

from the_loop.core.model import Note, explain
from the_loop.durable import make_folders
from the_loop.lock import LockBusy, LockHeld, LockUnusable, RunLock
from the_loop.processes import Identity
from the_loop.sources.base import SourceError

CLAIM: Final = "claim.pid"
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


class Claim:
    """The claim of one source, on whatever token it has now. `tell` gets its events."""

    def __init__(self, source: str, tell: Callable[[Note], None]) -> None:
        self._source = source
        self._tell = tell
        self._lock: RunLock | None = None
        self.turn = 0  # counts the times that it was taken
        self._refused_by = ""  # as it was told

    def take(self, token: str) -> tuple[Path, str]:
        """The folder of this token, and who holds it: nothing if that is us now. Raises SourceError."""
        folder = claims_folder() / sha256(token.encode()).hexdigest()[:32]
        if self._is_held(folder):
            return folder, ""
        try:
            make_folders(folder)
            self._lock = RunLock.attempt(folder, CLAIM)
        except LockHeld as held:
            return folder, self._refused(folder, _shown(held.holder))
        except LockBusy as busy:
            return folder, self._refused(folder, "a probe" if busy.shared else busy.problem)
        except LockUnusable as error:
            raise SourceError(f"cannot claim the token: {error.problem}") from error
        except OSError as error:
            raise SourceError(f"cannot claim the token: cannot make '{folder}': {explain(error)}") from error
        self._refused_by = ""
        self.turn += 1
        fields = {"source": self._source, "path": str(self._lock.claim), "owner": str(self._lock.identity)}
        self._tell(Note("claim.taken", fields))
        return folder, ""

    def release(self) -> None:
        """Let others have it."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

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
        reason = "its folder was removed or replaced"
        fields = {"source": self._source, "path": str(self._lock.claim), "owner": str(self._lock.identity)}
        self._tell(Note("claim.lost", {**fields, "reason": reason}))
        self.release()
        return False

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
