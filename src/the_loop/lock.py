"""RunLock: at most one holder per directory, released by the kernel whatever ends the holder.

The holder has `LOCK_EX`, first on the directory itself, then on the claim file in it. The claim contains one line,
`<pid>:<starttime>`, for people to read; it never decides anything. Because the directory is locked too, removing,
renaming or replacing the claim does not let a second holder in. A probe takes `LOCK_SH` for a moment; a start that
is blocked by probes only can try again. This module does not depend on the poller: any daemon can use it.

Errors: `LockHeld` (there is another holder), `LockBusy` (locked by something that is not a holder: the caller decides
how often to try again), `LockUnusable` (the directory cannot be locked at all).
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

from the_loop.core.model import LoopError, explain
from the_loop.processes import Identity, identity_of, own_identity, parse_identity

_CALL_LIMIT_S: Final = 5.0  # a non-blocking flock can still hang, on a broken network file system
_NOTE_LIMIT: Final = 64
_LOCAL: Final = frozenset(
    {"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "overlay", "ramfs", "reiserfs", "tmpfs", "xfs", "zfs"}
)


class LockHeld(LoopError):
    """Another process holds the directory. `holder` is None if the kernel does not show it here."""

    exit_code = 75

    def __init__(self, claim: Path, holder: Identity | None) -> None:
        who = f"pid {holder.pid}" if holder else "a process that is not visible here"
        super().__init__(
            f"cannot lock '{claim.parent}': another poller holds it, {who}, pidfile '{claim}'",
            "stop it with `the-loop poll stop`, or use another --state-root",
        )
        self.claim = claim
        self.holder = holder


class LockBusy(LoopError):
    """The directory is locked, but not by a holder: by a probe (`shared`), or by an unrelated program."""

    def __init__(self, directory: Path, holder: Identity | None, *, shared: bool) -> None:
        who = f"pid {holder.pid}" if holder else "an unknown process"
        super().__init__(
            f"cannot lock '{directory}': it is locked by {who}, which is not a poller",
            "find the program with `lslocks`, or use another --state-root",
        )
        self.shared = shared


class LockUnusable(LoopError):
    """The directory or its claim cannot be locked: read-only, a file system without locks, a link in its place."""

    def __init__(self, path: Path, cause: str) -> None:
        super().__init__(f"cannot lock '{path}': {cause}", "use a --state-root on a local, writable file system")


class Probe(StrEnum):
    """The result of a probe. `UNKNOWN`: could not be found out, which is neither of the others."""

    FREE = "free"
    HELD = "held"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Sight:
    """One probe: `holder` according to the kernel, `note` according to the claim file, `verified` if both agree."""

    probe: Probe
    holder: Identity | None = None
    note: Identity | None = None
    verified: bool = False
    cause: str = ""


class RunLock:
    """A held lock, made by `RunLock.attempt`. `close` releases it and leaves the claim file in place."""

    def __init__(self, directory: Path, claim: Path, directory_fd: int, claim_fd: int) -> None:
        self.directory = directory
        self.claim = claim
        self.identity = own_identity()
        self._directory_fd = directory_fd
        self._claim_fd = claim_fd

    @classmethod
    def attempt(cls, directory: Path, claim_name: str) -> RunLock:
        """Take the lock without waiting. Raises LockHeld, LockBusy or LockUnusable, with `directory` unchanged."""
        claim = directory / claim_name
        directory_fd = _open_directory(directory)
        try:
            if not _flock(directory_fd, fcntl.LOCK_EX, directory):
                raise _conflict(directory, claim, directory_fd)
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
        """True while the path still leads to the directory that is locked. Raises OSError if that is unknown."""
        return _same_file(self.directory, self._directory_fd, follow=True)

    def restore_claim(self) -> bool:
        """Restore the claim if it was removed or replaced; return True if it was. Raises OSError."""
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
        """Release the lock. The claim goes first, so that a held claim in a free directory is never seen."""
        os.close(self._claim_fd)
        os.close(self._directory_fd)

    def _write_note(self, descriptor: int) -> None:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{self.identity}\n".encode(), 0)
        os.fchmod(descriptor, 0o600)


def look(directory: Path, claim_name: str) -> Sight:
    """Probe who holds `directory`. Takes shared locks for a moment, which do not make a start fail. Never raises."""
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
        return Sight(Probe.UNKNOWN, cause=f"cannot read '{claim}': {error.strerror}")
    finally:
        os.close(directory_fd)


def remove_stale_claim(directory: Path, claim_name: str) -> Sight | None:
    """Remove a claim that is not held. None if it was removed or missing, else what was found instead.

    Holds shared locks on directory and claim meanwhile, and removes only the file that it has locked.
    Raises LockUnusable and OSError.
    """
    claim = directory / claim_name
    directory_fd = _open_directory(directory)
    try:
        if not _flock(directory_fd, fcntl.LOCK_SH, directory):
            return look(directory, claim_name)
        with suppress(FileNotFoundError):
            if not stat.S_ISREG(claim.lstat().st_mode):
                return Sight(Probe.FREE, cause=f"'{claim}' is not a regular file, leaving it alone")
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
    """Open, lock and check the claim. The directory is held already, so only probes can have locked it."""
    while True:
        try:
            descriptor = os.open(claim, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
        except OSError as error:
            cause = "it is a symbolic link" if error.errno == errno.ELOOP else error.strerror or str(error)
            raise LockUnusable(claim, cause) from error
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise LockUnusable(claim, "it is not a regular file")
            if not _flock(descriptor, fcntl.LOCK_EX, claim):
                if _is_exclusively_locked(descriptor, claim):
                    raise LockHeld(claim, _kernel_holder(descriptor))
                raise LockBusy(claim.parent, None, shared=True)
            if _same_file(claim, descriptor, follow=False):
                return descriptor
        except OSError as error:
            os.close(descriptor)
            raise LockUnusable(claim, error.strerror or str(error)) from error
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _conflict(directory: Path, claim: Path, directory_fd: int) -> LoopError:
    if not _is_exclusively_locked(directory_fd, directory):
        return LockBusy(directory, None, shared=True)
    holder = _kernel_holder(directory_fd)
    try:
        with _peek(claim) as (_, claim_held, _claim_fd):
            if claim_held or (holder and _has_claim_open(holder, claim)):
                return LockHeld(claim, holder)
    except OSError as error:
        return LockUnusable(claim, explain(error))
    return LockBusy(directory, holder, shared=False)


@contextmanager
def _peek(claim: Path) -> Iterator[tuple[str, bool, int | None]]:
    """Yield the claim's text, whether it is held exclusively, and its descriptor.

    "", False, None if it is missing or not a regular file. Raises OSError if it cannot be opened.
    """
    try:
        descriptor = os.open(claim, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ELOOP, errno.ENXIO):
            raise
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
        return Sight(Probe.HELD, holder, note, cause=f"'{claim}' is from an older build and has no start time to check")
    if holder == note or _has_claim_open(holder, claim):
        return Sight(Probe.HELD, holder, note, verified=True)
    return Sight(Probe.HELD, holder, note, cause=f"pid {holder.pid} locks the directory but not '{claim}'")


def _flock(descriptor: int, operation: int, path: Path, *, gives_back: bool = False) -> bool:
    """Take the lock without waiting; False if it is held. Returns in bounded time even if the system call hangs.

    With `gives_back` it is released at once, in the same thread: a thread switch in between would hold it for
    milliseconds, and four probes in a loop would keep a start out. Raises LockUnusable.
    """

    def call() -> bool:
        try:
            fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        if gives_back:
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        return True

    try:
        return call() if _is_local(descriptor) else _bounded(call)
    except OSError as error:
        raise LockUnusable(path, error.strerror or str(error)) from error
    except RuntimeError as error:  # a process limit
        raise LockUnusable(path, f"it is not on a local file system, and a lock call there {error}") from error


def _bounded(call: Callable[[], bool]) -> bool:
    """Make the call in a thread, for _CALL_LIMIT_S seconds at most: no signal but a deadly one interrupts it on NFS.

    Raises OSError, and RuntimeError if there cannot be a thread.
    """
    result: list[bool | OSError] = []

    def record() -> None:
        try:
            result.append(call())
        except OSError as error:
            result.append(error)

    thread = threading.Thread(target=record, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        raise RuntimeError("needs a thread, which cannot be started (a limit on processes?)") from error
    thread.join(_CALL_LIMIT_S)
    if not result:
        raise TimeoutError(errno.ETIMEDOUT, f"the lock call did not return within {_CALL_LIMIT_S:.0f} s")
    if isinstance(result[0], OSError):
        raise result[0]
    return result[0]


def _is_local(descriptor: int) -> bool:
    """True if the file is on a file system where the kernel itself answers: such a call needs no thread, no limit."""
    try:
        info = Path(f"/proc/self/fdinfo/{descriptor}").read_text("ascii")
        mount = info.partition("mnt_id:")[2].split()[0]
        with Path("/proc/self/mountinfo").open("rb") as table:
            row = next(row for row in table if row.startswith(mount.encode("ascii") + b" "))
    except (OSError, LookupError, StopIteration, ValueError):
        return False
    return row.partition(b" - ")[2].split(b" ")[0].decode("ascii", "replace") in _LOCAL


def _is_exclusively_locked(descriptor: int, path: Path) -> bool:
    """True if another open file has LOCK_EX on it. Takes LOCK_SH for a moment. Raises LockUnusable."""
    return not _flock(descriptor, fcntl.LOCK_SH, path, gives_back=True)


_PROC_LOCK: Final = re.compile(r"^\d+: FLOCK +\w+ +WRITE +(-?\d+) ([0-9a-f]+):([0-9a-f]+):(\d+) ", re.MULTILINE)


def _kernel_holder(descriptor: int) -> Identity | None:
    """The process that /proc/locks names as exclusive holder of this file; None if it is not visible or not alive."""
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
    # NB: some file systems (btrfs) show another device here than stat does: accept an inode that is listed once
    exact = [pid for pid, device in rows if device == found.st_dev]
    pids = exact or ([rows[0][0]] if len(rows) == 1 else [])
    return identity_of(pids[0]) if pids else None


def _has_claim_open(holder: Identity, claim: Path) -> bool:
    """True if the holder has the claim of this directory open, also one that was replaced or removed."""
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
    """Raises OSError if it cannot be found out."""
    try:
        there = path.stat() if follow else path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    held = os.fstat(descriptor)
    return (there.st_dev, there.st_ino) == (held.st_dev, held.st_ino)
