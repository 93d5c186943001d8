"""The `exec` runner: the operator's command, once per event, under a keeper in a session of its own.

The poller takes `<stem>.lock` and hands the descriptor to the keeper as it starts it: there is no moment at which a
delivery that will begin looks as if it never had. What became of it is read from the keeper's files, by whoever asks.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from the_loop.model import Outcome, Verdict
from the_loop.runners.base import Look, Offer, Trace
from the_loop.state import read_json_object

KEEPER: Final = Path(__file__).with_name("keeper.py")
PASSED_ON: Final = frozenset(
    {
        *("HOME", "USER", "LOGNAME", "SHELL", "PATH", "LANG", "LANGUAGE", "TZ", "TERM", "TMPDIR"),
        *("SSH_AUTH_SOCK", "DBUS_SESSION_BUS_ADDRESS", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "XDG_CONFIG_DIRS"),
        *("XDG_DATA_HOME", "XDG_DATA_DIRS", "XDG_CACHE_HOME", "XDG_STATE_HOME"),
    }
)
_LOOK_AGAIN_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class Command:
    """What to run, and how: `limit_s` seconds at most, output appended to `output` (None: the poller's own)."""

    argv: tuple[str, ...]
    workdir: Path
    limit_s: int
    environment: Mapping[str, str]
    output: Path | None


class ExecRunner:
    """Runs `command` for every offer. Satisfies `runners.base.Runner`."""

    def __init__(self, command: Command) -> None:
        self._command = command

    async def deliver(self, offer: Offer) -> Outcome:
        with _locked(offer.stem) as lock_fd:
            if lock_fd is None:
                return await self.adopt(offer)
            try:
                keeper = _start(self._command, offer, lock_fd)
            except OSError as error:
                return Outcome(Verdict.UNSTARTABLE, f"cannot start a keeper: {error.strerror}")
        code = await _exit_code(keeper)
        look = self.look(offer)
        if look.trace is Trace.NEVER_BEGUN:
            return Outcome(Verdict.UNSTARTABLE, f"the keeper ended with {code} before it began, see logs/output.log")
        return look.outcome or (await self.adopt(offer))

    async def adopt(self, offer: Offer) -> Outcome:
        while (look := self.look(offer)).trace is Trace.RUNNING:  # noqa: ASYNC110 (another process's lock tells nobody)
            await asyncio.sleep(_LOOK_AGAIN_S)
        if look.outcome is not None:
            return look.outcome
        if look.trace is Trace.NEVER_BEGUN:
            return Outcome(Verdict.NEVER_BEGUN)
        return Outcome(Verdict.UNKNOWN, "it was begun, and its keeper is gone without an outcome")

    def look(self, offer: Offer) -> Look:
        # NB: the lock is asked before the outcome is read, else a keeper could write and end in between
        running = is_locked(offer.stem)
        outcome = _outcome(offer)
        if outcome is not None:
            return Look(Trace.DONE, outcome)
        if running:
            return Look(Trace.RUNNING)
        return Look(Trace.UNKNOWN if _is_started(offer) else Trace.NEVER_BEGUN)


def passed_on(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of a command: from a list, so that no secret and no service variable of ours leaks into it."""
    return {name: value for name, value in environ.items() if name in PASSED_ON or name.startswith("LC_")}


def keeper_argv(command: Command, offer: Offer, lock_fd: int) -> list[str]:
    """The keeper's command line: numbers, derived paths, and what the operator wrote. Nothing from outside."""
    place: Sequence[str] = (str(offer.stem), str(offer.number), str(offer.attempt), str(command.limit_s), str(lock_fd))
    return [sys.executable, "-I", "-S", str(KEEPER), *place, str(command.workdir), *command.argv]


def is_locked(stem: Path) -> bool:
    """True while a keeper lives that has this delivery. Takes a shared lock for a moment."""
    try:
        descriptor = os.open(_beside(stem, "lock"), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def remove_marks(stem: Path) -> None:
    """Forget start mark and outcome, after what they say is on disk elsewhere."""
    for part in ("started.json", "outcome.json", "outcome.json.tmp"):
        _beside(stem, part).unlink(missing_ok=True)


def remove_all(stem: Path) -> None:
    """Forget a delivery whole."""
    remove_marks(stem)
    for part in ("payload.json", "lock"):
        _beside(stem, part).unlink(missing_ok=True)


def _beside(stem: Path, part: str) -> Path:
    return stem.with_name(f"{stem.name}.{part}")


@contextlib.contextmanager
def _locked(stem: Path) -> Iterator[int | None]:
    """The delivery's lock as a descriptor that a child may be given, or None where a keeper has it."""
    descriptor = os.open(_beside(stem, "lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(descriptor, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
            return
        yield descriptor
    finally:
        os.close(descriptor)


def _start(command: Command, offer: Offer, lock_fd: int) -> int:
    """Execute a keeper that leads a session of its own and has the lock; its pid."""
    with contextlib.ExitStack() as stack:
        actions: list[tuple[Any, ...]] = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)]
        if command.output is not None:
            output = stack.enter_context(command.output.open("ab")).fileno()
            os.fchmod(output, 0o600)
            actions += [(os.POSIX_SPAWN_DUP2, output, 1), (os.POSIX_SPAWN_DUP2, output, 2)]
        os.set_inheritable(lock_fd, True)
        return os.posix_spawn(
            sys.executable,
            keeper_argv(command, offer, lock_fd),
            command.environment,
            file_actions=actions,
            setsid=True,
            setsigmask=(),
            setsigdef=(signal.SIGPIPE, signal.SIGXFSZ),
        )


async def _exit_code(pid: int) -> int:
    """Wait for a child without a thread: its pidfd becomes readable. Reaps it, unless the wait is cancelled."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    pidfd = os.pidfd_open(pid)
    loop.add_reader(pidfd, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(pidfd)
        os.close(pidfd)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])  # noqa: ASYNC222 (it has ended)


def _outcome(offer: Offer) -> Outcome | None:
    """What the keeper wrote of this very offer."""
    mark = _mark(offer.stem, "outcome.json")
    if mark is None or mark.get("offer") != offer.number:
        return None
    try:
        return Outcome(Verdict(mark["outcome"]), str(mark.get("reason", "")))
    except (KeyError, ValueError):
        return None  # of a version that knew more: nobody here can tell


def _is_started(offer: Offer) -> bool:
    """True if this offer was begun. A mark that says nothing (power cut) stands for the present offer."""
    mark = _mark(offer.stem, "started.json")
    return mark is not None and mark.get("offer", offer.number) == offer.number


def _mark(stem: Path, part: str) -> dict[str, Any] | None:
    try:
        return read_json_object(_beside(stem, part))
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        return {}
