"""The `exec` runner: the operator's command, once per event, under a keeper that outlives the poller.

The delivery's lock is the keeper's standard input. It is taken before the keeper is asked for, and held from then on
until the keeper has ended, whatever starts it and whatever becomes of the poller: a lock that is held means accepted
or running, a free one without a start mark means never begun, and never to begin.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from the_loop.backoff import growing
from the_loop.core.guards import OWN_MARKER
from the_loop.core.model import Note, Outcome, Verdict, explain
from the_loop.deliveries import (
    DeliveryRuns,
    beside,
    claim,
    is_locked,
    is_started,
    keeper_of,
    outcome_of,
    remove_old_marks,
)
from the_loop.durable import read_json_object, replace_file
from the_loop.manager import UNIT_EXISTS, ManagerError, NoAnswer, NoManager, Refused
from the_loop.processes import control_group
from the_loop.runners.base import Offer, Status, Trace
from the_loop.runners.endings import Endings
from the_loop.runners.given import NO_EXTRAS, Extras
from the_loop.runners.keeper import GIVEN, passed_on, to_bytes
from the_loop.runners.units import Units

KEEPER: Final = Path(__file__).with_name("keep.py")  # which runs `keeper`
_WAITS_S: Final = (0.002, 0.25)  # until the keeper of an earlier offer has ended
_VARIABLES: Final = (
    *(("ID", "deliveryId"), ("KIND", "kind"), ("REF", "ref")),
    *(("URL", "url"), ("AUTHOR", "author"), ("ATTEMPT", "attempt")),
)
_VALUE_LIMIT: Final = 4096  # characters of one variable


@dataclass(frozen=True, slots=True)
class Command:
    """What to run, and how: `limit_s` seconds at most, output appended to `output` (None: the poller's own)."""

    argv: tuple[str, ...]
    workdir: Path
    limit_s: int
    environment: Mapping[str, str]
    output: Path | None
    extras: Extras = NO_EXTRAS


class CannotStart(Exception):
    """Nothing was started; the message says why."""


class NameTaken(Exception):
    """A unit of this offer's name is loaded, and does not have its lock."""


class ExecRunner:
    """Runs `command` for every offer, in a unit of its own where there are `units`. Satisfies `runners.base.Runner`."""

    def __init__(
        self, command: Command, units: Units | None = None, tell: Callable[[Note], object] = lambda _: None
    ) -> None:
        self._command = command
        self._units = units
        self._tell = tell
        self._said_no_manager = False
        self._endings = Endings()

    async def deliver(self, offer: Offer) -> Outcome:
        keeper = _Started()
        lock_fd = await _claimed(offer.stem)
        try:
            if _by_marks(offer).trace is Trace.NEVER_BEGUN:
                remove_old_marks(offer.stem, offer.number)
                keeper = await self._start(offer, lock_fd)
        except NameTaken:  # of an earlier version, or somebody else's: the next number has another name
            _take_back(offer)
            return Outcome(Verdict.NEVER_BEGUN, "the name of its unit is taken")
        except CannotStart as error:
            _take_back(offer)
            return Outcome(Verdict.UNSTARTABLE, str(error))
        finally:
            os.close(lock_fd)
        outcome = await self.adopt(offer)
        if outcome.verdict is Verdict.NEVER_BEGUN:
            return Outcome(Verdict.UNSTARTABLE, f"the keeper ended before it began, see {await keeper.last_words()}")
        return outcome

    async def adopt(self, offer: Offer) -> Outcome:
        with self._endings.of(offer.stem) as changes:
            while (status := self.inspect(offer)).trace.is_under_way:
                await changes.wait()
        if (keeper := keeper_of(offer.stem)) is not None:
            _reap_later(keeper.pid)  # a poller that was executed again is its parent still
        if status.outcome is not None:
            return status.outcome
        if status.trace is Trace.NEVER_BEGUN:
            return Outcome(Verdict.NEVER_BEGUN)
        return Outcome(Verdict.UNKNOWN, "it was begun, and its keeper is gone without an outcome")

    def inspect(self, offer: Offer) -> Status:
        # NB: the lock is asked before the marks are read, else a keeper could begin, or write and end, in between
        is_held = is_locked(offer.stem)
        status = _by_marks(offer)
        if not is_held or status.trace is Trace.DONE:
            return status
        return Status(Trace.ACCEPTED if status.trace is Trace.NEVER_BEGUN else Trace.RUNNING)

    def place(self, offer: Offer) -> str:
        """The unit that the offer runs in; "" if it runs in none, or that cannot be found out."""
        try:
            keeper = keeper_of(offer.stem)
            unit = "" if keeper is None else control_group(keeper.pid).rpartition("/")[2]
        except OSError:
            return ""
        return unit if self._units is not None and unit == self._units.name(offer) else ""

    async def close(self) -> None:
        if self._units is not None:
            self._units.close()

    async def _start(self, offer: Offer, lock_fd: int) -> _Started:
        """Ask for a keeper. Raises CannotStart where it is certain that none was started."""
        if self._units is not None:
            try:
                return await self._start_unit(self._units, offer, lock_fd)
            except NoManager as error:
                if self._units.is_only_way:
                    raise CannotStart(str(error)) from error
                self._say_no_manager(error)
            except ManagerError as error:
                raise CannotStart(str(error)) from error
        try:
            return _Started(exit_code=_reap_later(_spawn(self._command, offer, lock_fd)))
        except (OSError, ValueError) as error:  # ValueError: a NUL in an argument
            raise CannotStart(f"cannot start a keeper: {error}") from error

    async def _start_unit(self, units: Units, offer: Offer, lock_fd: int) -> _Started:
        argv, about = keeper_argv(self._command, offer), _prepared(self._command, offer)
        started = _Started(unit=units.name(offer))
        try:
            await units.start(offer, argv, about, limit_s=self._command.limit_s, lock_fd=lock_fd)
        except NoAnswer:
            return started  # accepted or not: the lock tells
        except Refused as error:
            if error.name != UNIT_EXISTS:
                raise
            raise NameTaken from error
        self._said_no_manager = False
        return started

    def _say_no_manager(self, error: NoManager) -> None:
        if not self._said_no_manager:
            self._said_no_manager = True
            self._tell(Note("dispatch.no_manager", {"reason": error.problem}))


@dataclass(frozen=True, slots=True)
class _Started:
    """A keeper that was asked for: in a unit, as our child, or already before."""

    exit_code: asyncio.Future[int] | None = None
    unit: str = ""

    async def last_words(self) -> str:
        """Where to read why a keeper ended that left no mark."""
        if self.exit_code is not None:
            return f"logs/output.log (exit status {await self.exit_code})"
        return f"`journalctl --user -u {self.unit}`" if self.unit else "the log"


def keeper_argv(command: Command, offer: Offer) -> list[str]:
    """The keeper's command line: numbers, derived paths, and what the operator wrote. Nothing from outside."""
    place = (str(offer.stem), str(offer.number), str(offer.attempt), str(command.limit_s), str(command.workdir))
    return [sys.executable, "-I", "-S", "-X", "utf8", str(KEEPER), *place, *command.argv]


def variables(payload: Mapping[str, object]) -> dict[str, str]:
    """What the environment of the command says of the delivery: text from outside, without control characters."""
    about = {f"THE_LOOP_DELIVERY_{name}": _plain(payload.get(field)) for name, field in _VARIABLES}
    redelivery = "true" if payload.get("redelivery") else "false"
    return {**about, "THE_LOOP_DELIVERY_REDELIVERY": redelivery, "THE_LOOP_MARK": OWN_MARKER}


def _prepared(command: Command, offer: Offer) -> dict[str, str]:
    """What the keeper's environment says of the offer, once all that it must not say is in a file beside the payload.

    The caller has the delivery's lock. Raises CannotStart.
    """
    try:
        payload = read_json_object(beside(offer.stem, "payload.json"))
    except (OSError, ValueError) as error:
        raise CannotStart(f"cannot read its payload: {explain(error)}") from error
    about = variables(payload)
    try:
        if given := command.extras.given(command.argv, payload):
            replace_file(beside(offer.stem, "given"), given, sync=False)
            about[GIVEN] = "1"
    except (OSError, ValueError) as error:
        file = command.extras.file
        what = "write what its command is given" if file is None else f"use session.environmentFile '{file}'"
        raise CannotStart(f"cannot {what}: {explain(error)}") from error
    return about


def _take_back(offer: Offer) -> None:
    """There may be secrets in what was given."""
    with contextlib.suppress(OSError):
        beside(offer.stem, "given").unlink()


def _plain(value: object) -> str:
    text = "" if value is None else str(value)
    return "".join(char if char.isprintable() else "?" for char in text)[:_VALUE_LIMIT]


def _by_marks(offer: Offer) -> Status:
    """What the keeper of this offer wrote. Raises OSError."""
    outcome = outcome_of(offer.stem, offer.number)
    if outcome is not None:
        return Status(Trace.DONE, outcome)
    return Status(Trace.UNKNOWN if is_started(offer.stem, offer.number) else Trace.NEVER_BEGUN)


async def _claimed(stem: Path) -> int:
    """The delivery's lock, once it is free: the unit of an earlier offer may still be ending."""
    waits_s = growing(*_WAITS_S)
    while True:
        with contextlib.suppress(DeliveryRuns), claim(stem) as descriptor:
            return os.dup(descriptor)
        await asyncio.sleep(next(waits_s))


def _spawn(command: Command, offer: Offer, lock_fd: int) -> int:
    """Execute a keeper that leads a session of its own and has the lock as standard input; its pid."""
    environ = {**passed_on(command.environment), **_prepared(command, offer)}
    with contextlib.ExitStack() as stack:
        actions: list[tuple[Any, ...]] = [(os.POSIX_SPAWN_DUP2, lock_fd, 0)]
        if command.output is not None:
            output = stack.enter_context(command.output.open("ab")).fileno()
            os.fchmod(output, 0o600)
            actions += [(os.POSIX_SPAWN_DUP2, output, 1), (os.POSIX_SPAWN_DUP2, output, 2)]
        return os.posix_spawn(
            sys.executable,
            keeper_argv(command, offer),
            {to_bytes(name): to_bytes(value) for name, value in environ.items()},
            file_actions=actions,
            setsid=True,
            setsigmask=(),
            setsigdef=(signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD),
        )


def _reap_later(pid: int) -> asyncio.Future[int] | None:
    """Take a child's exit code once it has ended, without a thread; None if there is no such child to be watched.

    Does not raise: the child was started, and whatever is wrong with watching it says nothing of its start.
    """
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[int] = loop.create_future()
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        pidfd = os.pidfd_open(pid)
    except OSError:
        return None

    def reap() -> None:
        loop.remove_reader(pidfd)
        os.close(pidfd)
        with contextlib.suppress(ChildProcessError):
            ended.set_result(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

    loop.add_reader(pidfd, reap)
    return ended
