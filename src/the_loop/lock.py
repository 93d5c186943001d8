"""RunLock: at most one holder per directory, released by the kernel whatever ends the holder.

The holder has `LOCK_EX`, first on the directory itself, then on the claim file in it; the claim's one line
`<pid>:<starttime>` is a note for people and never decides anything. Locking the directory means that removing,
renaming or replacing the claim lets nobody in. Who looks without wanting the lock takes `LOCK_SH` for a moment, and
a start that met only such a look tries again. Nothing here knows what the holder is for: any daemon can use it.

Errors: `LockHeld` (another holder), `LockBusy` (in the way, but no holder: try again, the policy is the caller's),
`LockUnusable` (this directory cannot be locked at all).
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from the_loop.core.model import LoopError
from the_loop.processes import Identity, identity_of, own_identity, parse_identity

_CALL_LIMIT_S: Final = 5.0  # a non-blocking flock that blocks (a broken network file system) is given up after this
_NOTE_LIMIT: Final = 64


class LockHeld(LoopError):
    """Another process holds the directory. `holder` is None when the kernel does not show it to us."""

    exit_code = 75

    def __init__(self, claim: Path, holder: Identity | None) -> None:
        who = f"pid {holder.pid}" if holder else "a process that cannot be seen from here"
        super().__init__(
            f"another poller holds '{claim.parent}': {who}, pidfile '{claim}'",
            "end it with `the-loop poll stop`, or use another --state-root",
        )
        self.claim = claim
        self.holder = holder


class LockBusy(LoopError):
    """Something that holds no claim is in the way for now: a look (`shared`), or a foreign lock on the directory."""

    def __init__(self, directory: Path, holder: Identity | None, *, shared: bool) -> None:
        who = f"pid {holder.pid}" if holder else "an unknown process"
        super().__init__(
            f"cannot lock '{directory}': it is locked by {who}, which is no poller",
            "find out what it is with `lslocks`, or use another --state-root",
        )
        self.shared = shared


class LockUnusable(LoopError):
    """The directory or its claim cannot be locked: read-only, no locks on this file system, a link in the way."""

    def __init__(self, path: Path, cause: str) -> None:
        super().__init__(
            f"cannot lock '{path}': {cause}", "no lock, no run: use a --state-root on a local, writable file system"
        )


class Probe(StrEnum):
    """What a look found. `UNKNOWN` is neither of the others."""

    FREE = "free"
    HELD = "held"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Sight:
    """One look: `holder` as the kernel tells, `note` as the claim file says, `verified` if both agree."""

    probe: Probe
    holder: Identity | None = None
    note: Identity | None = None
    verified: bool = False
    cause: str = ""


class RunLock:
    """A held lock. Obtained by `RunLock.attempt`; `close` releases it and leaves the claim file in place."""

    def __init__(self, directory: Path, claim: Path, directory_fd: int, claim_fd: int) -> None:
        self.directory = directory
        self.claim = claim
        self.identity = own_identity()
        self._directory_fd = directory_fd
        self._claim_fd = claim_fd

    @classmethod
    def attempt(cls, directory: Path, claim_name: str) -> RunLock:
        """Take the lock now. Raises LockHeld, LockBusy or LockUnusable, with nothing changed in `directory`."""
        claim = directory / claim_name
        directory_fd = _open_directory(directory)
        try:
            if not _flock(directory_fd, fcntl.LOCK_EX, directory):
                raise _who_is_in_the_way(directory, claim, directory_fd)
            claim_fd = _take_claim(claim)
        except BaseException:
            os.close(directory_fd)
            raise
        lock = cls(directory, claim, directory_fd, claim_fd)
        try:
            lock._write_note(claim_fd)
        except OSError as error:
            lock.close()
            raise LockUnusable(claim, error.strerror or str(error)) from error
        return lock

    def is_intact(self) -> bool:
        """True while the directory's path still leads to the directory that is locked."""
        return _same_file(self.directory, self._directory_fd, follow=True)

    def restore_claim(self) -> bool:
        """Put the claim back if it was removed or replaced; True if that was needed. Raises OSError."""
        if _same_file(self.claim, self._claim_fd, follow=False):
            return False
        beside = self.claim.with_name(f".{self.claim.name}.{os.getpid()}")
        with suppress(FileNotFoundError):
            beside.unlink()
        descriptor = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._write_note(descriptor)
            os.rename(beside, self.claim)
        except BaseException:
            os.close(descriptor)
            raise
        os.close(self._claim_fd)
        self._claim_fd = descriptor
        return True

    def close(self) -> None:
        """Release. The claim first, so that nobody sees a held claim in a free directory."""
        os.close(self._claim_fd)
        os.close(self._directory_fd)

    def _write_note(self, descriptor: int) -> None:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{self.identity}\n".encode(), 0)
        os.fchmod(descriptor, 0o600)


def look(directory: Path, claim_name: str) -> Sight:
    """Who holds `directory`, without disturbing a start: shared locks, held for a moment."""
    claim = directory / claim_name
    try:
        directory_fd = _open_directory(directory)
    except LockUnusable as error:
        missing = isinstance(error.__cause__, FileNotFoundError)
        return Sight(Probe.FREE if missing else Probe.UNKNOWN, cause=error.problem)
    try:
        with _peek(claim) as (note, claim_held, claim_fd):
            if not _is_exclusively_locked(directory_fd, directory) and not claim_held:
                return Sight(Probe.FREE, note=parse_identity(note))
            return _sight_of_holder(directory_fd, claim, claim_fd, note)
    except LockUnusable as error:
        return Sight(Probe.UNKNOWN, cause=error.problem)
    except OSError as error:
        return Sight(Probe.UNKNOWN, cause=f"cannot look at '{claim}': {error.strerror}")
    finally:
        os.close(directory_fd)


def remove_stale_claim(directory: Path, claim_name: str) -> Sight | None:
    """Remove a claim that nobody holds. None if that was done or there was none, else what was found instead.

    Shared locks on directory and claim are held meanwhile, and the path must still be the file that was read.
    """
    claim = directory / claim_name
    directory_fd = _open_directory(directory)
    try:
        if not _flock(directory_fd, fcntl.LOCK_SH, directory):
            return look(directory, claim_name)
        with suppress(FileNotFoundError):
            if not stat.S_ISREG(claim.lstat().st_mode):
                return Sight(Probe.FREE, cause=f"'{claim}' is no regular file, left alone")
            descriptor = os.open(claim, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                if not _flock(descriptor, fcntl.LOCK_SH, claim):
                    return Sight(Probe.HELD)
                if _same_file(claim, descriptor, follow=False):
                    claim.unlink()
            finally:
                os.close(descriptor)
        return None
    finally:
        os.close(directory_fd)


def _open_directory(directory: Path) -> int:
    try:
        return os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise LockUnusable(directory, error.strerror or str(error)) from error


def _take_claim(claim: Path) -> int:
    """Open, lock and re-check the claim; the directory is held, so only looks can be in the way."""
    while True:
        try:
            descriptor = os.open(claim, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
        except OSError as error:
            cause = "it is a symbolic link" if error.errno == errno.ELOOP else error.strerror or str(error)
            raise LockUnusable(claim, cause) from error
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise LockUnusable(claim, "it is no regular file")
            if not _flock(descriptor, fcntl.LOCK_EX, claim):
                if _is_exclusively_locked(descriptor, claim):
                    raise LockHeld(claim, _kernel_holder(descriptor))
                raise LockBusy(claim.parent, None, shared=True)
            if _same_file(claim, descriptor, follow=False):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _who_is_in_the_way(directory: Path, claim: Path, directory_fd: int) -> LoopError:
    if not _is_exclusively_locked(directory_fd, directory):
        return LockBusy(directory, None, shared=True)
    holder = _kernel_holder(directory_fd)
    with _peek(claim) as (_, claim_held, _claim_fd):
        if claim_held or (holder and _has_claim_open(holder, claim)):
            return LockHeld(claim, holder)
    return LockBusy(directory, holder, shared=False)


@contextmanager
def _peek(claim: Path) -> Iterator[tuple[str, bool, int | None]]:
    """What the claim says, whether it is held exclusively, and its descriptor; odd files say nothing."""
    try:
        descriptor = os.open(claim, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        yield "", False, None
        return
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            yield "", False, None
            return
        held = _is_exclusively_locked(descriptor, claim)
        note = os.pread(descriptor, _NOTE_LIMIT, 0).decode("ascii", "replace")
        yield note, held, descriptor
    finally:
        os.close(descriptor)


def _sight_of_holder(directory_fd: int, claim: Path, claim_fd: int | None, text: str) -> Sight:
    note = parse_identity(text)
    holder = _kernel_holder(directory_fd) or (_kernel_holder(claim_fd) if claim_fd is not None else None)
    if holder is None:
        return Sight(Probe.HELD, note=note, cause="the kernel does not show its holder here (another pid namespace?)")
    if text.strip().isdigit():
        return Sight(Probe.HELD, holder, note, cause=f"'{claim}' is of an older build and has no start time to check")
    if holder == note or _has_claim_open(holder, claim):
        return Sight(Probe.HELD, holder, note, verified=True)
    return Sight(Probe.HELD, holder, note, cause=f"pid {holder.pid} locks the directory but not '{claim}'")


def _flock(descriptor: int, operation: int, path: Path, *, gives_back: bool = False) -> bool:
    """Take the lock without waiting; False when it is held. Bounded even where the call itself hangs.

    With `gives_back` it is let go at once, by the thread that took it: a switch in between would keep it for
    milliseconds, and four looks in a loop would keep a start out.
    """
    result: list[bool | OSError] = []

    def call() -> None:
        try:
            fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
            if gives_back:
                fcntl.flock(descriptor, fcntl.LOCK_UN)
            result.append(True)
        except BlockingIOError:
            result.append(False)
        except OSError as error:
            result.append(error)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(_CALL_LIMIT_S)
    if not result:
        raise LockUnusable(path, f"the lock call did not return within {_CALL_LIMIT_S:.0f} s")
    if isinstance(result[0], OSError):
        raise LockUnusable(path, result[0].strerror or str(result[0])) from result[0]
    return result[0]


def _is_exclusively_locked(descriptor: int, path: Path) -> bool:
    """True if another open file has LOCK_EX on it. Takes LOCK_SH for a moment."""
    return not _flock(descriptor, fcntl.LOCK_SH, path, gives_back=True)


_PROC_LOCK: Final = re.compile(r"^\d+: FLOCK +\w+ +WRITE +(-?\d+) ([0-9a-f]+):([0-9a-f]+):(\d+) ", re.MULTILINE)


def _kernel_holder(descriptor: int) -> Identity | None:
    """The process that /proc/locks names as exclusive holder of this file, seen and alive; else None."""
    found = os.fstat(descriptor)
    try:
        table = Path("/proc/locks").read_text("ascii")
    except OSError:
        return None
    rows = [
        (int(pid), os.makedev(int(major, 16), int(minor, 16)))
        for pid, major, minor, inode in _PROC_LOCK.findall(table)
        if int(inode) == found.st_ino and int(pid) > 0
    ]
    # NB: some file systems (btrfs) show another device here than stat does: an inode that is there once will do
    exact = [pid for pid, device in rows if device == found.st_dev]
    pids = exact or ([rows[0][0]] if len(rows) == 1 else [])
    return identity_of(pids[0]) if pids else None


def _has_claim_open(holder: Identity, claim: Path) -> bool:
    """True if the holder has a claim of this directory open, also one that was renamed over or removed."""
    names = {str(claim.resolve()), f"{claim.resolve()} (deleted)"}
    return _any(Path(f"/proc/{holder.pid}/fd"), lambda link: os.readlink(link) in names)


def _any(folder: Path, test: Callable[[Path], bool]) -> bool:
    with suppress(OSError):
        for link in folder.iterdir():
            with suppress(OSError):
                if test(link):
                    return True
    return False


def _same_file(path: Path, descriptor: int, *, follow: bool) -> bool:
    try:
        there = path.stat() if follow else path.lstat()
    except OSError:
        return False
    held = os.fstat(descriptor)
    return (there.st_dev, there.st_ino) == (held.st_dev, held.st_ino)
