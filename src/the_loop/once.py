"""`the-loop once`: claim an id durably, and run a command for it once.

    local/once/<slug>.lock    held for as long as a call with this id is under way
    local/once/<slug>.json    what the last call left: {"schema": 1, "id", "state", "process", "since"}

`state` is `running` (`process` is the command, "pid:starttime:boot"), `done` (exit status 0), or `cut-off`: how an
earlier run ended is unknown. A run that ended with another status leaves nothing: the next one is like the first.
The record is durable before the command is executed. A record that cannot be read is one of a run that was cut off;
only a missing one means that there was none.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import resource
import shlex
import signal
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from the_loop.core.model import LoopError, explain, printable, timestamp
from the_loop.durable import fsync_directory, read_json_object, to_json_line, write_durably
from the_loop.eventlog import say
from the_loop.processes import boot_id, identity_of, parse_identity
from the_loop.state import StateRoot, slug

BUSY: Final = 75
KEPT_S: Final = 30 * 86_400.0
REDELIVERY: Final = "THE_LOOP_REDELIVERY"
_PRUNE_S: Final = 86_400.0
_STOPS: Final = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})
_CUT_OFF_BY: Final = _STOPS | {signal.SIGKILL}
_HEARD: Final = _STOPS | {signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD}
_BY_TERMINAL: Final = 0x80  # si_code of a signal of the kernel's: the whole foreground group gets it


class NotNow(LoopError):
    """The command was not run, and may be later."""

    exit_code = BUSY


@dataclass(frozen=True, slots=True)
class _Ended:
    """How a command ended: its exit status, or the signal that killed it. `was_told`: after a signal to stop."""

    code: int
    signal: int = 0
    was_told: bool = False

    @property
    def is_cut_off(self) -> bool:
        """True if it did not come to its own end."""
        return self.signal in _CUT_OFF_BY or (self.was_told and (self.signal or self.code) != 0)


def run_once(root: StateRoot, name: str, argv: Sequence[str], environ: Mapping[str, str], *, holds: bool) -> int:
    """Run the command for the id `name`, unless that was done; its exit status, 0 if it was done before.

    Raises NotNow; StateRootError. Ends this process by the signal that killed the command.
    """
    root.prepare_root()
    try:
        with _claimed(_prepared(root), name) as claim:
            return _run(claim, argv, environ, holds=holds)
    except OSError as error:
        raise NotNow(f"cannot claim '{name}' in '{root.once}': {explain(error)}", "nothing was run") from error


@dataclass(frozen=True, slots=True)
class _Claim:
    """An id that is ours while its lock is held."""

    name: str
    record: Path

    def read(self) -> dict[str, Any]:
        """What the last call left; empty if that is nothing, or too old. Raises OSError."""
        try:
            found = read_json_object(self.record)
            is_old = time.time() - self.record.stat().st_mtime > KEPT_S
        except FileNotFoundError:
            return {}
        except ValueError:
            return {"state": "cut-off"}
        return {} if is_old and not _is_alive(found) else found

    def write(self, state: str, process: str = "") -> None:
        """Raises OSError."""
        record = {"schema": 1, "id": self.name, "state": state, "process": process, "since": timestamp(time.time())}
        write_durably(self.record, to_json_line(record))

    def forget(self) -> None:
        """Raises OSError."""
        self.record.unlink(missing_ok=True)
        fsync_directory(self.record.parent)


def _run(claim: _Claim, argv: Sequence[str], environ: Mapping[str, str], *, holds: bool) -> int:
    before = claim.read()
    if before.get("state") == "done":
        say(f"the-loop: '{printable(claim.name)}' was done at {before.get('since')}, it is not run again")
        return 0
    if _is_alive(before):
        raise NotNow(f"'{claim.name}' is still running, as process {before['process'].partition(':')[0]}")
    if before and holds:
        raise NotNow(
            f"an earlier run of '{claim.name}' was cut off, how it ended is unknown",
            f"if it did nothing, run `rm {shlex.quote(str(claim.record))}`",
        )
    ended = _waited_for(claim, argv, {**_without_mark(environ), **({REDELIVERY: "true"} if before else {})}, before)
    _note_end(claim, ended, is_again=bool(before))
    if ended.signal:
        _die_by(ended.signal)
    return ended.code


def _without_mark(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name != REDELIVERY}


def _note_end(claim: _Claim, ended: _Ended, *, is_again: bool) -> None:
    """Record how it ended; if that cannot be written, it counts as cut off."""
    try:
        if (ended.code, ended.signal) == (0, 0):
            claim.write("done")
        elif ended.is_cut_off or is_again:  # what an earlier run did is still unknown
            claim.write("cut-off")
        else:
            claim.forget()
    except OSError as error:
        say(f"the-loop: cannot record the end of '{printable(claim.name)}': {explain(error)}, a repeat runs it again")


def _waited_for(claim: _Claim, argv: Sequence[str], environ: Mapping[str, str], before: Mapping[str, Any]) -> _Ended:
    """Start the command once its record is on disk, pass signals on to it, and wait.

    Raises OSError: nothing was run.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _HEARD)
    waits, go = os.pipe()
    told, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(go)
        _become(argv, environ, waits, tell, mask)
    os.close(waits)
    os.close(tell)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # it is the command's alone: a writer hears when that closes it
    try:
        claim.write("running", f"{identity_of(pid)}:{boot_id()}")
        os.write(go, b".")
    except OSError:
        os.close(go)
        os.waitpid(pid, 0)
        raise
    os.close(go)
    with os.fdopen(told, "rb") as answer:
        number = int(answer.read() or b"0")
    if number:
        os.waitpid(pid, 0)
        return _not_executed(claim, argv[0], number, before)
    return _waited(pid)


def _become(argv: Sequence[str], environ: Mapping[str, str], waits: int, tell: int, mask: set[Any]) -> None:
    """In the child: execute the command once the other side says so. Does not return."""
    try:
        if os.read(waits, 1):
            for ignored in (signal.SIGPIPE, signal.SIGXFSZ):
                signal.signal(ignored, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            os.execvpe(argv[0], list(argv), environ)
    except OSError as error:
        os.write(tell, str(error.errno).encode())
    finally:
        os._exit(127)


def _not_executed(claim: _Claim, program: str, number: int, before: Mapping[str, Any]) -> _Ended:
    say(f"the-loop: cannot run '{printable(program)}': {os.strerror(number)}")
    if before:
        claim.write("cut-off")
    else:
        claim.forget()
    return _Ended(127 if number == errno.ENOENT else 126)


def _waited(pid: int) -> _Ended:
    was_told = False
    while True:
        heard = signal.sigwaitinfo(_HEARD)
        if heard.si_signo == signal.SIGCHLD:
            found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG)
            if found is not None:
                is_exit = found.si_code == os.CLD_EXITED
                return _Ended(found.si_status if is_exit else 0, 0 if is_exit else found.si_status, was_told)
            continue
        was_told |= heard.si_signo in _STOPS
        if heard.si_code != _BY_TERMINAL:
            os.kill(pid, heard.si_signo)


def _die_by(number: int) -> None:
    """End as the command did: whoever watches us sees the same."""
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)
    os._exit(128 + number)


def _is_alive(record: Mapping[str, Any]) -> bool:
    """True if the command that a record names still runs, though the call that started it is gone."""
    process, _, boot = str(record.get("process", "")).rpartition(":")
    identity = parse_identity(process)
    if identity is None or boot != boot_id() or identity_of(identity.pid) != identity:
        return False
    with contextlib.suppress(OSError):
        content = Path(f"/proc/{identity.pid}/stat").read_bytes()
        return content[content.rindex(b")") + 2 :][:1] not in (b"Z", b"X")  # ended, and not taken by its parent
    return False


def _prepared(root: StateRoot) -> Path:
    """The folder of records, without those that are too old. Raises OSError."""
    for folder in (root.once.parent, root.once):
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
            folder.chmod(0o700)
            fsync_directory(folder.parent)
    with contextlib.suppress(OSError):
        _prune(root.once)
    return root.once


def _prune(folder: Path) -> None:
    """Once a day: forget what is older than 30 days, and what a write that was cut off left. Raises OSError."""
    mark, now = folder / ".pruned", time.time()
    with contextlib.suppress(FileNotFoundError):
        if abs(now - mark.stat().st_mtime) < _PRUNE_S:
            return
    os.close(os.open(mark, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    os.utime(mark)
    for path in folder.iterdir():
        age_s = now - path.lstat().st_mtime
        if path.suffix == ".tmp" and age_s > _PRUNE_S:
            path.unlink(missing_ok=True)
        elif path.suffix == ".lock" and age_s > KEPT_S:
            _forget_old(path, now)


def _forget_old(lock: Path, now: float) -> None:
    """Remove an id's files if its record is old, or missing, and no call with it is under way. Raises OSError."""
    record = lock.with_suffix(".json")
    with contextlib.suppress(NotNow), _locked(lock, ""):
        with contextlib.suppress(FileNotFoundError):
            if now - record.stat().st_mtime <= KEPT_S:
                return
        record.unlink(missing_ok=True)
        lock.unlink()


@contextlib.contextmanager
def _claimed(folder: Path, name: str) -> Iterator[_Claim]:
    """Raises NotNow if a call with this id is under way; OSError."""
    stem = folder / slug(name)
    with _locked(stem.with_name(f"{stem.name}.lock"), name):
        yield _Claim(name, stem.with_name(f"{stem.name}.json"))


@contextlib.contextmanager
def _locked(path: Path, name: str) -> Iterator[None]:
    descriptor = _lock(path, name)
    try:
        yield
    finally:
        os.close(descriptor)


def _lock(path: Path, name: str) -> int:
    """The lock's descriptor; one that was removed while it was opened does not count. Raises NotNow, OSError."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            held = os.fstat(descriptor)
            if not stat.S_ISREG(held.st_mode):
                raise OSError(errno.EINVAL, f"'{path}' is not a regular file")
            with contextlib.suppress(FileNotFoundError):
                there = path.lstat()
                if (held.st_dev, held.st_ino) == (there.st_dev, there.st_ino):
                    return descriptor
        except BlockingIOError:
            os.close(descriptor)
            raise NotNow(f"'{name}' is still running") from None
        except OSError:
            os.close(descriptor)
            raise
        os.close(descriptor)
