"""The loop: cycles, signals, reload, and a stop that is a normal state.

One thread, one event loop. A signal sets a flag and wakes the loop; a stop cancels what is being fetched (fetches
have no side effects) and never the bookkeeping of an item. Order of a life: lock, state, what an earlier life left,
READY, cycles, stop.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from the_loop import wiring
from the_loop.config import Config, ConfigError
from the_loop.core.guards import Rules
from the_loop.core.model import LoopError, Note
from the_loop.cycle import Cycle
from the_loop.deliveries import Deliveries
from the_loop.dispatcher import Dispatcher
from the_loop.eventlog import Trail, rotate
from the_loop.heartbeat import Health
from the_loop.ledgers import Ledgers
from the_loop.lock import LockBusy, LockHeld, RunLock
from the_loop.outbox import Outbox
from the_loop.recovery import Recovery
from the_loop.state import PIDFILE, StateRoot
from the_loop.supervision.notify import Notifier
from the_loop.supervision.sockets import drain, own_socket
from the_loop.supervision.unit import record_unit
from the_loop.watched import Watched

HELD_BACK: Final = (signal.SIGHUP, signal.SIGUSR2)  # blocked from the first moment: by default they end a process
_PROBES_GONE_S: Final = 1.0  # a look holds the lock for a moment only
_FOREIGN_GONE_S: Final = 5.0  # systemd-tmpfiles locks a directory while it ages it
_QUEUE_LOOK_S: Final = 0.1
_SAY_WAITING_S: Final = 5.0
_TICK_S: Final = 2.0  # how soon a removed pidfile is put back
_JITTER: Final = 0.05
_SHOW_PROGRESS_S: Final = 5.0
_STEP_LIMIT_S: Final = 900.0  # a cycle that takes longer than this is not progress any more
_UNIT_DRAIN_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Setup:
    """What a poller is started with. `load` reads the configuration again, for a reload."""

    root: StateRoot
    config: Config
    load: Callable[[], Config]
    environ: dict[str, str]
    once: bool
    wait_s: float  # how long to queue for the lock
    trail: Trail
    notifier: Notifier
    wakes: socket.socket | None  # the manager's
    path: str  # of the configuration, for messages
    now: Callable[[], float] = time.time


class Poller:
    """One life of the poller. `run` returns its exit code; `wants_restart` says whether it is to be executed again."""

    def __init__(self, setup: Setup) -> None:
        self.wants_restart = False
        self._setup = setup
        self._config = setup.config
        self._stop = asyncio.Event()
        self._wake = asyncio.Event()
        self._reload = False
        self._is_woken = False
        self._said_waiting_at = -_SAY_WAITING_S
        self._work: asyncio.Task[Any] | None = None
        self._is_displaced = False
        self._cannot_restore = False
        self._delivered = 0
        self._errors = 0
        self._interrupted = False
        self._busy_since: float | None = None
        self._beaten_at = 0.0
        self._watched: list[Watched] = []

    def install_handlers(self) -> None:
        """First of all: no signal ends the process from now on."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_stop, signal.Signals(number).name)
        loop.add_signal_handler(signal.SIGHUP, self._on_reload)
        loop.add_signal_handler(signal.SIGUSR2, self._on_restart)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD_BACK)

    async def run(self) -> int:
        """Hold the lock, do the work, stop in order. Raises LockHeld, LockUnusable, StateRootError."""
        setup = self._setup
        setup.root.prepare_root()
        lock = await self._acquire()
        if lock is None:
            return 0  # told to stop while it waited
        try:
            return await self._run_locked(lock)
        finally:
            lock.close()

    # --- a life ---

    async def _acquire(self) -> RunLock | None:
        obstacle, since = "", 0.0
        began = time.monotonic()
        while not self._stop.is_set():
            try:
                return RunLock.attempt(self._setup.root.path, PIDFILE)
            except LockHeld as held:
                if time.monotonic() - began >= self._setup.wait_s:
                    raise
                obstacle = ""
                self._say_waiting(held)
                await self._sleep(_QUEUE_LOOK_S)
            except LockBusy as busy:
                kind, patience_s = ("look", _PROBES_GONE_S) if busy.shared else ("foreign", _FOREIGN_GONE_S)
                if kind != obstacle:
                    obstacle, since = kind, time.monotonic()
                elif time.monotonic() - since > patience_s:
                    raise
            await self._sleep(0.01 + random.random() / 100)
        return None

    def _say_waiting(self, held: LockHeld) -> None:
        """The manager is told who is waited for, and not to lose patience."""
        now = time.monotonic()
        if now - self._said_waiting_at > _SAY_WAITING_S:
            self._said_waiting_at = now
            self._setup.notifier.status(f"waiting for {held.holder or 'the holder'} to let go of {held.claim}")
            self._setup.notifier.extend_timeout(6 * _SAY_WAITING_S)

    async def _run_locked(self, lock: RunLock) -> int:
        setup = self._setup
        self._lock = lock
        runtime = setup.environ.get("RUNTIME_DIRECTORY", "").partition(":")[0]
        self._health = Health(setup.root, lock.identity, setup.now, Path(runtime) if runtime else None)
        setup.root.prepare_folders()
        fields = {"path": str(lock.claim), "pid": lock.identity.pid, "uid": os.geteuid()}
        self._tell(Note("poller.started", fields))
        self._ledgers = Ledgers(setup.root, self._tell, setup.now, guard=self._is_in_charge)
        self._ledgers.load()
        self._watched = wiring.watch(self._config, setup.root, setup.environ)
        for watched in self._watched:
            watched.last_good_at = self._health.last_good_at(watched.source.name)
        deliveries = Deliveries(setup.root)
        self._outbox = Outbox(
            deliveries,
            self._ledgers,
            wiring.runner(self._config, setup.root, setup.environ, self._tell),
            policy=wiring.policy(self._config),
            rules_of=self._rules_of,
            tell=self._tell,
            now=setup.now,
            offers_once=setup.once,
        )
        self._dispatcher = Dispatcher(
            self._outbox,
            limit=self._config.routing.max_concurrent_dispatches,
            tell=self._tell,
            may_hand_over=self._is_in_charge,
        )
        self._cycle = Cycle(setup.root, self._ledgers, self._outbox, self._dispatcher, tell=self._tell, now=setup.now)
        self._listen()
        for offer in Recovery(deliveries, self._ledgers, self._outbox, self._tell).run():
            self._dispatcher.adopt(offer)
        self._beat()
        setup.notifier.ready(self._status())
        ticking = asyncio.create_task(self._keep_ticking())
        try:
            code = await (self._once() if setup.once else self._loop())
        finally:
            ticking.cancel()
            await self._leave()
        return 1 if self._is_displaced else code

    async def _loop(self) -> int:
        while not self._stop.is_set():
            await self._run_cycle()
            self._report_cycle()
            interval_s = self._config.polling.interval_seconds * random.uniform(1 - _JITTER, 1 + _JITTER)
            self._health.next_cycle_at = self._setup.now() + interval_s
            self._beat()
            if not self._stop.is_set():
                await self._sleep(interval_s)
            if self._reload and not self._stop.is_set():
                await self._do_reload()
        return 0

    async def _once(self) -> int:
        await self._run_cycle()
        if not self._stop.is_set():
            limit_s = _UNIT_DRAIN_S if "INVOCATION_ID" in self._setup.environ else None
            await self._interruptible(asyncio.wait_for(self._dispatcher.drain(), limit_s))
        self._report_cycle()
        self._beat()
        if self._stop.is_set():
            return 0
        return 1 if self._errors or self._dispatcher.is_stuck else 0

    def _listen(self) -> None:
        """Hear wakes on the manager's socket, or on one of our own."""
        setup = self._setup
        given = setup.wakes
        record_unit(setup.root, setup.environ, str(given.getsockname()) if given is not None else "")
        self._wakes = given if given is not None or setup.once else own_socket(setup.root.path)
        if self._wakes is not None:
            asyncio.get_running_loop().add_reader(self._wakes, self._on_wake)

    async def _leave(self) -> None:
        setup = self._setup
        setup.notifier.stopping()
        setup.notifier.extend_timeout(30)
        if self._wakes is not None:
            asyncio.get_running_loop().remove_reader(self._wakes)
            self._wakes.close()
        report = await self._dispatcher.stop(releases=not self._is_displaced)
        for delivery in report.left_running:
            self._tell(Note("dispatch.left_running", {"deliveryId": delivery}))
        for delivery in report.abandoned:
            self._tell(Note("dispatch.abandoned", {"deliveryId": delivery}))
        if report.abandoned:
            self._tell(Note("poll.attempts_released", {"count": len(report.abandoned)}))
        self._health.next_cycle_at = None
        self._beat(is_last=True)
        await self._outbox.close()
        await asyncio.gather(*(watched.source.close() for watched in self._watched), return_exceptions=True)

    # --- one cycle ---

    async def _run_cycle(self) -> None:
        self._health.cycle_begins()
        self._errors = 0
        self._interrupted = False
        self._wake.clear()
        if not self._is_in_charge():
            return
        if self._is_woken:
            self._is_woken = False
            self._dispatcher.resume()
            for watched in self._watched:
                watched.next_look_s = 0.0
        rotate(self._setup.root.logs / "output.log")
        looks = [self._look(watched) for watched in self._watched]
        self._interrupted = not await self._interruptible(_all(looks))

    async def _look(self, watched: Watched) -> None:
        if watched.is_unread:
            self._say_unread(watched)
            self._errors += 1
            return
        is_limited = watched.wait_left_s(time.monotonic()) > 0
        if is_limited or (time.monotonic() < watched.next_look_s and not self._setup.once):
            self._errors += 1  # not read this time either
        else:
            errors = await self._cycle.run(watched, self._config.polling.interval_seconds)
            self._errors += errors  # never `+= await`: others add to it meanwhile
        self._cycle.offer_pending(watched)

    def _report_cycle(self) -> None:
        delivered = self._outbox.delivered - self._delivered
        self._delivered = self._outbox.delivered
        items = sum(watched.items for watched in self._watched)
        summary = self._health.cycle_ends(
            items=items, delivered=delivered, errors=self._errors, interrupted=self._interrupted
        )
        self._tell(Note("poll.cycle", {**summary, "lastGoodCycleAt": self._health.last_good_cycle_at}))

    def _tell(self, note: Note) -> None:
        """Tell an event, with the source that its item is of."""
        fields = dict(note.fields)
        place = fields.get("ref") or fields.get("deliveryId")
        if place and "source" not in fields:
            fields["source"] = next((one.source.name for one in self._watched if one.source.owns(place)), None)
        self._setup.trail.tell(Note(note.name, fields))

    # --- signals ---

    def _on_stop(self, name: str) -> None:
        if not self._stop.is_set():
            self._tell(Note("poller.stopping", {"reason": name}))
            self._halt()

    def _on_restart(self) -> None:
        if not self._stop.is_set():
            self.wants_restart = True
            self._on_stop("SIGUSR2, to start again")

    def _on_reload(self) -> None:
        self._reload = True
        self._wake.set()

    def _on_wake(self) -> None:
        """A full cycle now: back-offs are over, but no moment that a limit named."""
        if self._wakes is not None:
            drain(self._wakes)
        self._is_woken = True
        self._wake.set()

    def _halt(self) -> None:
        self._stop.set()
        self._wake.set()
        if self._work is not None:
            self._work.cancel()

    # --- helpers ---

    async def _do_reload(self) -> None:
        """Take a new configuration as a whole, or keep the old one and say so."""
        self._reload = False
        setup = self._setup
        setup.notifier.reloading()
        try:
            config = setup.load()
            if wiring.state_root(None, config, {}).path != wiring.state_root(None, self._config, {}).path:
                raise LoopError("state.root cannot change under a running poller", "restart it instead")
            watched = wiring.watch(config, setup.root, setup.environ)
        except LoopError as error:
            reason = error.summary if isinstance(error, ConfigError) else str(error)
            self._tell(Note("config.rejected", {"reason": reason}))
            setup.notifier.ready(self._status())
            return
        before = {one.source.name: one for one in self._watched}
        for one in watched:
            if (old := before.get(one.source.name)) is not None:
                one.continue_from(old)
        self._watched, self._config = watched, config
        runner = wiring.runner(config, setup.root, setup.environ, self._tell)
        await self._outbox.reconfigure(wiring.policy(config), runner)
        self._dispatcher.limit = config.routing.max_concurrent_dispatches
        self._dispatcher.resume()
        await asyncio.gather(*(one.source.close() for one in before.values()), return_exceptions=True)
        self._tell(Note("config.reloaded", {"path": setup.path}))
        setup.notifier.ready(self._status())

    def _rules_of(self, ref: str) -> Rules | None:
        return next((one.rules for one in self._watched if one.source.owns(ref) and not one.is_unread), None)

    def _say_unread(self, watched: Watched) -> None:
        reason = "nobody is authorised, so it is not read; set routing.authorizedUsers"
        if watched.error != reason:
            self._tell(Note("source.failed", {"source": watched.source.name, "reason": reason}))
        watched.error = reason

    def _is_in_charge(self) -> bool:
        """True while the lock is ours; puts a removed pidfile back. Once false, nothing more is handed over."""
        if self._is_displaced:
            return False
        if not self._lock.is_intact():
            self._is_displaced = True
            self._setup.trail.detach()
            reason = f"'{self._lock.directory}' is another directory than the one that was locked"
            self._tell(Note("poller.stopping", {"reason": reason}))
            self._halt()
            return False
        try:
            if self._lock.restore_claim():
                self._cannot_restore = False
                self._tell(Note("poller.restored", {"path": str(self._lock.claim)}))
        except OSError as error:
            if not self._cannot_restore:
                fields = {"ref": str(self._lock.claim), "reason": f"cannot put it back: {error.strerror}"}
                self._tell(Note("item.failed", fields))
            self._cannot_restore = True
        return True

    async def _keep_ticking(self) -> None:
        """Looks after the pidfile, and pings the watchdog for as long as the loop makes progress."""
        watchdog_s = self._setup.notifier.watchdog_s
        visited: list[Any] = []
        while True:
            before, visited = visited, [one.visited for one in self._watched]
            if self._busy_since is not None and visited != before:
                self._busy_since = time.monotonic()  # slow, and not stuck
            self._is_in_charge()
            self._setup.trail.check()
            if self._work is not None and time.monotonic() - self._beaten_at > _SHOW_PROGRESS_S:
                self._beat()
            if watchdog_s is not None and not self._is_overdue():
                self._setup.notifier.watchdog()
            await asyncio.sleep(min(_TICK_S, watchdog_s or _TICK_S))

    def _is_overdue(self) -> bool:
        return self._busy_since is not None and time.monotonic() - self._busy_since > _STEP_LIMIT_S

    async def _interruptible(self, work: Coroutine[Any, Any, Any]) -> bool:
        """Run `work`; False if a stop or its own limit cut it short."""
        self._work = asyncio.create_task(work)
        self._busy_since = time.monotonic() if not self._setup.once else None
        if self._stop.is_set():
            self._work.cancel()
        try:
            await self._work
        except (asyncio.CancelledError, TimeoutError):
            return False
        finally:
            self._work = self._busy_since = None
        return True

    async def _sleep(self, seconds: float) -> None:
        """Wait, or be woken."""
        try:
            await asyncio.wait_for(self._wake.wait(), seconds)
        except TimeoutError:
            return

    def _status(self) -> str:
        return self._health.status(self._watched)

    def _beat(self, *, is_last: bool = False) -> None:
        self._beaten_at = time.monotonic()
        if not self._is_displaced:
            self._health.beat(self._ledgers, self._watched, self._dispatcher.pause_reason, is_last=is_last)
        self._setup.notifier.status(self._status())


async def _all(looks: list[Coroutine[Any, Any, None]]) -> None:
    """All of them at once; a stop cancels them all."""
    async with asyncio.TaskGroup() as group:
        for look in looks:
            group.create_task(look)
