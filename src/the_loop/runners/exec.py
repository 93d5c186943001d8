"""The `exec` runner: the operator's command, once per event, under a keeper that outlives the poller.

The poller takes the delivery's lock and hands the descriptor to the keeper as it starts it: there is no moment at
which a delivery that will begin looks as if it never had. What became of it is read from the keeper's files, by
whoever asks.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from the_loop.core.model import Note, Outcome, Verdict
from the_loop.deliveries import is_locked, is_started, keeper_of, locked, outcome_of, remove_old_marks
from the_loop.processes import pinned
from the_loop.runners.base import Offer, Status, Trace
from the_loop.runners.keeper import passed_on
from the_loop.runners.units import Units, is_name_taken, is_no_manager

KEEPER: Final = Path(__file__).with_name("keeper.py")
_LOOK_AGAIN_S: Final = 0.1
_LOOK_SOON_S: Final = 0.01
_BEGINS_WITHIN_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Command:
    """What to run, and how: `limit_s` seconds at most, output appended to `output` (None: the poller's own)."""

    argv: tuple[str, ...]
    workdir: Path
    limit_s: int
    environment: Mapping[str, str]
    output: Path | None


class ExecRunner:
    """Runs `command` for every offer, in a unit of its own where there are `units`. Satisfies `runners.base.Runner`."""

    def __init__(
        self, command: Command, units: Units | None = None, tell: Callable[[Note], object] = lambda _: None
    ) -> None:
        self._command = command
        self._units = units
        self._tell = tell

    async def deliver(self, offer: Offer) -> Outcome:
        with locked(offer.stem) as lock_fd:
            if lock_fd is None:
                return await self.adopt(offer)
            remove_old_marks(offer.stem, offer.number)
            problem = await self._start_unit(offer, lock_fd)
            keeper = 0
            if problem is None:
                try:
                    keeper = _start(self._command, offer, lock_fd)
                except (OSError, ValueError) as error:
                    return Outcome(Verdict.UNSTARTABLE, f"cannot start a keeper: {error}")
        if problem is None:
            problem = f"the keeper ended with {await _exit_code(keeper)} before it began, see logs/output.log"
        return await self._watch(offer, problem)

    async def _start_unit(self, offer: Offer, lock_fd: int) -> str | None:
        """Ask the manager for a unit: what it complains of, or nothing. None where there is no manager (any more)."""
        if self._units is None:
            return None
        argv = keeper_argv(self._command, offer, None)
        finished = await self._units.start(offer, argv, limit_s=self._command.limit_s, lock_fd=lock_fd)
        if finished.is_good or is_name_taken(finished):
            return ""
        if not is_no_manager(finished):
            return finished.problem
        if self._units is not None:
            if self._units.is_only_way:
                return f"the user's service manager does not answer: {finished.problem}"
            self._units = None
            self._tell(Note("dispatch.no_manager", {"reason": finished.problem}))
        return None

    async def _watch(self, offer: Offer, problem: str) -> Outcome:
        """What becomes of an offer that was just started; `problem` is why it may not have been."""
        until = time.monotonic() + (0 if problem else _BEGINS_WITHIN_S)
        while self.inspect(offer).trace is Trace.NEVER_BEGUN and time.monotonic() < until:  # noqa: ASYNC110 (as in adopt)
            await asyncio.sleep(_LOOK_SOON_S)  # a unit's keeper is about to take the lock
        outcome = await self.adopt(offer)
        if outcome.verdict is Verdict.NEVER_BEGUN:
            return Outcome(Verdict.UNSTARTABLE, problem or "its unit ended before it began, see the journal")
        return outcome

    async def adopt(self, offer: Offer) -> Outcome:
        while (inspect := self.inspect(offer)).trace is Trace.RUNNING:
            await _keeper_ends(offer.stem)
        if inspect.outcome is not None:
            return inspect.outcome
        if inspect.trace is Trace.NEVER_BEGUN:
            return Outcome(Verdict.NEVER_BEGUN)
        return Outcome(Verdict.UNKNOWN, "it was begun, and its keeper is gone without an outcome")

    def inspect(self, offer: Offer) -> Status:
        # NB: the lock is asked before the outcome is read, else a keeper could write and end in between
        running = is_locked(offer.stem)
        outcome = outcome_of(offer.stem, offer.number)
        if outcome is not None:
            return Status(Trace.DONE, outcome)
        if running:
            return Status(Trace.RUNNING)
        return Status(Trace.UNKNOWN if is_started(offer.stem, offer.number) else Trace.NEVER_BEGUN)


def keeper_argv(command: Command, offer: Offer, lock_fd: int | None) -> list[str]:
    """The keeper's command line: numbers, derived paths, and what the operator wrote. Nothing from outside."""
    lock = "-" if lock_fd is None else str(lock_fd)
    place = (str(offer.stem), str(offer.number), str(offer.attempt), str(command.limit_s), lock, str(command.workdir))
    return [sys.executable, "-I", "-S", "-X", "utf8", str(KEEPER), *place, *command.argv]


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
            passed_on(command.environment),
            file_actions=actions,
            setsid=True,
            setsigmask=(),
            setsigdef=(signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD),
        )


async def _exit_code(pid: int) -> int:
    """Wait for a child without a thread: its pidfd becomes readable. Reaps it, unless the wait is cancelled."""
    with contextlib.closing(_Pidfd(os.pidfd_open(pid))) as pidfd:
        await pidfd.is_readable()
    try:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])  # noqa: ASYNC222 (it has ended)
    except ChildProcessError:
        return 0  # reaped by whoever had SIGCHLD ignored; its files tell what matters


async def _keeper_ends(stem: Path) -> None:
    """Return when the keeper of this delivery has ended, or soon, where it cannot be seen yet."""
    keeper = keeper_of(stem)
    if keeper is not None:
        with pinned(keeper) as descriptor:
            if descriptor is not None:
                with contextlib.closing(_Pidfd(os.dup(descriptor))) as pidfd:
                    await pidfd.is_readable()
                    return
    await asyncio.sleep(_LOOK_AGAIN_S)


class _Pidfd:
    """A process's descriptor in the event loop."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self._loop.add_reader(descriptor, self._ended.set)

    async def is_readable(self) -> None:
        """Return once the process has ended."""
        await self._ended.wait()

    def close(self) -> None:
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)
