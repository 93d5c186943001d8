"""What a poller does while it holds the lock: everything here is built whole, with the lock, and ends before it.

    READY -> what an earlier life left -> each source at its own pace, reloads -> stop

READY waits for no ledger: with many of them their reading takes longer than the start of Python.

A stop cancels what is being fetched (fetches have no side effects) and never the bookkeeping of an item.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol

from the_loop import wiring
from the_loop.attention import attention_of
from the_loop.blocks import MeasuredSelector, keep_what_lives
from the_loop.charge import Charge
from the_loop.clocks import Clock
from the_loop.config import Config, ConfigError, SourceSection, source_name
from the_loop.core.guards import Rules
from the_loop.core.model import LoopError, Note, explain
from the_loop.counters import Counters
from the_loop.cycle import Cycle
from the_loop.deliveries import Deliveries, begun_at
from the_loop.dispatcher import Dispatcher
from the_loop.eventlog import Trail, rotate
from the_loop.heartbeat import Health, left_alone
from the_loop.ledgers import HeldItem, Ledgers
from the_loop.lock import RunLock
from the_loop.outbox import Outbox
from the_loop.overrides import Overrides
from the_loop.processes import is_main_of_unit
from the_loop.receivers import Place
from the_loop.recovery import Recovery
from the_loop.requests import Requests
from the_loop.retries import Retries
from the_loop.runners.base import Offer
from the_loop.signals import Wishes
from the_loop.source_loop import SourceLoop
from the_loop.sources.limits import RateLimiters
from the_loop.state import StateRoot
from the_loop.supervision.control import ControlServer, Listening, listen
from the_loop.supervision.notify import Notifier
from the_loop.supervision.sockets import CONTROL_NAME, drain, own_socket
from the_loop.supervision.unit import record_unit, runtime_directory
from the_loop.turns import Turns
from the_loop.vitals import Vitals
from the_loop.watched import Watched
from the_loop.work import UnderWay, work_of

_UNIT_DRAIN_S: Final = 60.0
_NAMED: Final = 200  # events that were not begun; the others are counted: a stop does not wait for their telling
_STATUS_S: Final = 1.0  # between two STATUS= lines


class Progress(Protocol):
    """Where a person looks on while items are read."""

    def show(self, watched: Sequence[Watched], running: int, now: float, uptime_s: float) -> None:
        """Show how far the sources are, and how many deliveries run. `now`: epoch seconds."""


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
    clock: Clock
    blocks: MeasuredSelector | None = None  # of the event loop that it runs in
    progress: Progress | None = None
    takeover: bool = False  # of claims that pollers of other state roots hold


@dataclass(slots=True)
class _Source:
    """A source as it runs. `shape` is what it was built from."""

    loop: SourceLoop
    shape: tuple[object, ...]
    task: asyncio.Task[None] | None = None


class Life:
    """From the lock to its release. Raises LoopError where the configuration cannot be turned into sources."""

    def __init__(self, setup: Setup, lock: RunLock, wishes: Wishes) -> None:
        self._setup = setup
        self._config = setup.config
        self._wishes = wishes
        self._sources: dict[str, _Source] = {}
        self._said_status_s = float("-inf")  # by the loop's clock
        self._status_due: asyncio.TimerHandle | None = None
        setup.root.prepare_folders()
        runtime = runtime_directory(setup.environ)
        self._counters = Counters(setup.clock.now, self.source_of)
        self._health = Health(setup.root, lock.identity, setup.clock, runtime, setup.blocks, counters=self._counters)
        self._health.configuration = setup.path
        self._charge = Charge(lock, self.tell, self._on_lost)
        self.tell(Note("poller.started", {"path": str(lock.claim), "pid": lock.identity.pid, "uid": os.geteuid()}))
        self._ledgers = Ledgers(setup.root, self.tell, setup.clock.now, guard=self._charge.check)
        self._is_taken_up = False
        self._control: ControlServer | None = None
        self._deliveries = Deliveries(setup.root)
        self._outbox = Outbox(
            self._deliveries,
            self._ledgers,
            wiring.runner(self._config, setup.root, setup.environ, self.tell, self._place_of),
            policy=wiring.policy(self._config),
            rules_of=self._rules_of,
            tell=self.tell,
            now=setup.clock.now,
            offers_once=setup.once,
            counters=self._counters,
        )
        self._dispatcher = Dispatcher(
            self._outbox,
            limit=self._config.routing.max_concurrent_dispatches,
            tell=self.tell,
            may_hand_over=self._may_hand_over,
            source_of=self.source_of,
            on_end=self._on_delivery_end,
        )
        self._retries = Retries(self._ledgers, self._dispatcher, setup.clock, self._wake_source_of)
        self._cycle = Cycle(
            setup.root, self._ledgers, self._outbox, self._dispatcher, tell=self.tell, clock=setup.clock
        )
        self._vitals = Vitals(setup.notifier, setup.clock, self._loops, check=self._charge.check, beat=self._beat)
        self._limiters = RateLimiters(setup.clock.uptime)
        for section in self._config.polling.sources:
            self._sources[source_name(section)] = self._source(self._config, section)

    async def run(self) -> int:
        """Live, and leave in order; the exit code."""
        names = self._ledgers.names()
        self._bind()
        self._setup.notifier.ready(self._health.status(self._watched))
        self._vitals.watch(self._setup.root.path)
        vitals = asyncio.create_task(self._vitals.run())
        code = 0
        try:
            if await self._unless_stopped(self._take_up(names)):
                code = await (self._once() if self._setup.once else self._serve())
        finally:
            vitals.cancel()
            self._vitals.close()
            await self._leave()
        return 1 if self._charge.is_lost else code

    async def _take_up(self, names: list[str]) -> bool:
        """Read the ledgers of these names, settle what an earlier life left, and only then answer requests."""
        turns = Turns()
        under_way: list[Offer] = []
        try:
            for _ in self._ledgers.loading(names):
                await turns.are_given()
            for offers in Recovery(self._deliveries, self._ledgers, self._outbox, self.tell).run():
                under_way += offers
                await turns.are_given()
        finally:
            for offer in under_way:
                self._dispatcher.adopt(offer)
        self._health.left_alone = left_alone(self._ledgers, self._watched)
        self._is_taken_up = True
        keep_what_lives()
        self._beat()
        self._answer()
        return True

    def tell(self, note: Note) -> None:
        """Tell an event, with the source that its item is of."""
        if note.name == "dispatch.no_manager" and not self._health.is_news(str(note.fields["reason"])):
            return
        fields = dict(note.fields)
        place = fields.get("ref") or fields.get("deliveryId")
        if place and "source" not in fields:
            fields["source"] = self.source_of(place) or None
        self._setup.trail.tell(Note(note.name, fields))

    def source_of(self, place: str) -> str:
        """The name of the source that owns this ref or delivery id; empty if none does."""
        owners = (name for name, one in self._sources.items() if one.loop.watched.source.owns(place))
        return next(owners, "")

    def _place_of(self, ref: str) -> Place:
        """Where the receiver of this item is written."""
        try:
            ledger = self._ledgers.get(ref)
        except (HeldItem, OSError):
            ledger = None
        return Place(self.source_of(ref), "" if ledger is None else ledger.poll.receiver)

    # --- ways of living ---

    async def _serve(self) -> int:
        """Each source at its own pace, until a stop."""
        retries = asyncio.create_task(self._retries.run())
        try:
            self._start_sources()
            while not self._wishes.is_stop:
                await self._something_happens()
                if self._wishes.wants_reload and not self._wishes.is_stop:
                    self._wishes.wants_reload = False
                    await self._reload()
        finally:
            retries.cancel()
            await self._end(list(self._sources.values()))
        return 0

    async def _something_happens(self) -> None:
        """Return on a wish. A loop that ends by itself has a fault that is ours: it is raised."""
        tasks = [one.task for one in self._sources.values() if one.task is not None]
        wish = asyncio.create_task(self._wishes.changed.wait())
        try:
            done, _ = await asyncio.wait([wish, *tasks], return_when=asyncio.FIRST_COMPLETED)
        finally:
            wish.cancel()
        self._wishes.changed.clear()
        for task in done - {wish}:
            task.result()

    async def _once(self) -> int:
        """One cycle of every source, and all that it started."""
        began_at = self._setup.clock.now()
        polls = [one.loop.poll() for one in self._sources.values()]
        errors = await self._unless_stopped(asyncio.gather(*polls))
        if errors is not None:
            is_unit = is_main_of_unit(self._setup.environ)
            with suppress(TimeoutError):
                async with asyncio.timeout(_UNIT_DRAIN_S if is_unit else None):
                    await self._unless_stopped(self._dispatcher.drain())
        counts = errors or [0] * len(polls)
        for one, count in zip(self._sources.values(), counts, strict=True):
            one.loop.report(began_at, count, interrupted=errors is None, is_single=True)
        if self._wishes.is_stop:
            return 0
        return 1 if any(counts) or self._dispatcher.is_stuck else 0

    async def _unless_stopped(self, work: Any) -> Any:
        """The result of `work`; None if a stop cut it short."""
        task = asyncio.ensure_future(work)
        stop = asyncio.create_task(self._wishes.stopped.wait())
        await asyncio.wait([task, stop], return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if not task.done():
            task.cancel()
        try:
            return await task
        except asyncio.CancelledError:
            return None

    async def _leave(self) -> None:
        setup = self._setup
        setup.notifier.stopping()
        setup.notifier.extend_timeout(30)
        if self._control is not None:
            await self._control.close()
        elif self._listening is not None:
            self._listening.close()
        if self._wakes is not None:
            asyncio.get_running_loop().remove_reader(self._wakes)
            self._wakes.close()
        report = await self._dispatcher.stop(releases=not self._charge.is_lost)
        for delivery in report.left_running:
            self.tell(Note("dispatch.left_running", {"deliveryId": delivery}))
        for delivery in report.abandoned[:_NAMED]:
            self.tell(Note("dispatch.abandoned", {"deliveryId": delivery}))
        if report.abandoned:
            self.tell(Note("poll.attempts_released", {"count": len(report.abandoned)}))
        if self._is_taken_up:
            self._beat(is_last=True)
        await self._outbox.close()
        await asyncio.gather(*(one.source.close() for one in self._watched), return_exceptions=True)

    # --- sources ---

    def _source(self, config: Config, section: SourceSection) -> _Source:
        setup = self._setup
        watched = wiring.watch(
            config,
            section,
            setup.root,
            setup.environ,
            clock=setup.clock,
            limiters=self._limiters,
            tell=self.tell,
            once=setup.once,
            takeover=setup.takeover and not self._is_taken_up,  # said of the start, and not of each reload
        )
        watched.last_good_at = self._health.last_good_at(watched.source.name)
        loop = SourceLoop(
            watched,
            self._cycle,
            self._outbox,
            interval_s=wiring.interval_s(config, section),
            clock=setup.clock,
            tell=self.tell,
            is_in_charge=self._may_poll,
            beat=self._on_progress,
            counters=self._counters,
        )
        return _Source(loop, wiring.shape(config, section))

    def _start_sources(self) -> None:
        for one in self._sources.values():
            if one.task is None:
                one.task = asyncio.create_task(one.loop.run())

    async def _end(self, sources: list[_Source]) -> None:
        tasks = [one.task for one in sources if one.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _reload(self) -> None:
        """Take a new configuration as a whole, or keep the old one and say so."""
        setup = self._setup
        setup.notifier.reloading()
        try:
            config = setup.load()
            if wiring.state_root(None, config, {}).path != wiring.state_root(None, self._config, {}).path:
                raise LoopError("state.root cannot change while a poller is running", "restart it instead")
            runner = wiring.runner(config, setup.root, setup.environ, self.tell, self._place_of)
            sources = self._rebuilt(config)
        except LoopError as error:
            reason = error.summary if isinstance(error, ConfigError) else str(error)
            self.tell(Note("config.rejected", {"reason": reason}))
            setup.notifier.ready(self._health.status(self._watched))
            return
        await self._replace(sources)
        self._config = config
        await self._outbox.reconfigure(wiring.policy(config), runner)
        self._dispatcher.limit = config.routing.max_concurrent_dispatches
        self._dispatcher.resume()
        self._health.left_alone = left_alone(self._ledgers, self._watched)
        self.tell(Note("config.reloaded", {"path": setup.path}))
        setup.notifier.ready(self._health.status(self._watched))
        self._start_sources()
        for one in sources.values():
            one.loop.wake()

    def _rebuilt(self, config: Config) -> dict[str, _Source]:
        """The sources of this configuration: new ones, and the present ones that are not changed. Raises LoopError."""
        sources = {}
        for section in config.polling.sources:
            name = source_name(section)
            before = self._sources.get(name)
            if before is not None and before.shape == wiring.shape(config, section):
                sources[name] = before
                continue
            sources[name] = self._source(config, section)
        for section in config.polling.sources:
            sources[source_name(section)].loop.interval_s = wiring.interval_s(config, section)
        return sources

    async def _replace(self, sources: dict[str, _Source]) -> None:
        """End what is not among these any more: its fetch is cancelled, its cursor untouched."""
        gone = [one for one in self._sources.values() if one not in sources.values()]
        await self._end(gone)
        for one in gone:
            if (after := sources.get(one.loop.watched.source.name)) is not None:
                after.loop.watched.continue_from(one.loop.watched)
        self._sources = sources
        await asyncio.gather(*(one.loop.watched.source.close() for one in gone), return_exceptions=True)

    @property
    def _watched(self) -> list[Watched]:
        return [one.loop.watched for one in self._sources.values()]

    def _loops(self) -> list[SourceLoop]:
        return [one.loop for one in self._sources.values()]

    def _rules_of(self, ref: str) -> Rules | None:
        owner = self._sources.get(self.source_of(ref))
        return None if owner is None or owner.loop.watched.is_unread else owner.loop.watched.rules

    # --- what happens ---

    def _bind(self) -> None:
        """Have a socket for requests, and the manager's for wakes, or one of our own: what comes waits there."""
        setup = self._setup
        given = setup.wakes
        self._listening = self._bound()
        path = self._listening.path if self._listening is not None else setup.root.path
        control = "" if setup.root.path in (path, path.parent) else str(path)
        record_unit(setup.root, setup.environ, str(given.getsockname()) if given is not None else "", control)
        self._wakes = given if given is not None or setup.once else own_socket(setup.root.path)

    def _bound(self) -> Listening | None:
        """None on a file system without sockets: the poller works, but cannot be asked."""
        root = self._setup.root.path
        try:
            return listen(root, runtime_directory(self._setup.environ))
        except OSError as error:
            fields = {"ref": str(root / CONTROL_NAME), "reason": f"commands cannot ask this poller: {explain(error)}"}
            self.tell(Note("item.failed", fields))
            return None

    def _answer(self) -> None:
        """Take requests and hear wakes from now on."""
        if self._wakes is not None:
            asyncio.get_running_loop().add_reader(self._wakes, self._on_wake)
        if self._listening is None:
            return
        requests = Requests(
            Overrides(self._ledgers, self._deliveries, self._dispatcher.running),
            self._setup.root.authors,
            sources=lambda: [one.source for one in self._watched],
            wake=None if self._setup.once else self._wake_for,
            offer=self._dispatcher.offer,
            tell=self.tell,
            sessions=lambda: self._outbox.sessions,
            deferred=self._dispatcher.deferred_key,
        )
        self._control = ControlServer(self._listening, self._setup.root.path, requests.verbs())

    def _wake_for(self, name: str | None) -> bool:
        """A cycle of this source now, of all for None. False if nothing is read from it."""
        chosen = [one for one in self._loops() if name in (None, one.watched.source.name)]
        self._dispatcher.resume()
        for loop in chosen:
            loop.wake()
        return name is None or any(not loop.watched.is_unread for loop in chosen)

    def _on_wake(self) -> None:
        """A cycle of every source now: back-offs are over, but no moment that a limit named."""
        if self._wakes is not None:
            drain(self._wakes)
        self._wake_for(None)

    def _wake_source_of(self, ref: str) -> None:
        owner = self._sources.get(self.source_of(ref))
        if owner is not None:
            owner.loop.wake()

    def _may_hand_over(self) -> bool:
        """Asked before each hand-over: with a stop none is begun any more, also while its sources still end."""
        return not self._wishes.is_stop and self._charge.check()

    def _may_poll(self) -> bool:
        """Asked before each cycle."""
        if not self._charge.check():
            return False
        try:
            rotate(self._setup.root.logs / "output.log")
            self._setup.trail.check()
        except OSError as error:
            self.tell(Note("item.failed", {"ref": "logs", "reason": explain(error)}))
        self._vitals.note_change()
        return True

    def _on_delivery_end(self) -> None:
        self._retries.note_change()

    def _on_progress(self) -> None:
        keep_what_lives()
        self._vitals.note_change()
        self._beat()

    def _on_lost(self) -> None:
        """The root is somebody else's: nothing is written there any more, and we leave."""
        self._setup.trail.detach()
        self._wishes.halt()

    def _beat(self, *, is_last: bool = False) -> None:
        if not self._charge.is_lost:
            under_way = {
                (offer.ref, offer.key): UnderWay(
                    self._outbox.trace(offer), begun_at(offer.stem) or since, self._outbox.place(offer)
                )
                for offer, since in self._dispatcher.under_way()
            }
            deferred = self._dispatcher.deferred()
            work = work_of(self._ledgers, under_way, deferred)
            pause = self._dispatcher.pause_reason
            attention = attention_of(self._ledgers, self._watched, pause, deferred, self._setup.clock.now())
            self._health.beat(self._ledgers, self._watched, pause, work, attention, is_last=is_last)
        self._say_status(is_last=is_last)
        if (progress := self._setup.progress) is not None:
            clock, running = self._setup.clock, len(self._dispatcher.under_way())
            progress.show([] if is_last else self._watched, running, clock.now(), clock.uptime())

    def _say_status(self, *, is_last: bool = False) -> None:
        """At most once a second, but for the last one; what came in between is told at the end of the second."""
        loop = asyncio.get_running_loop()
        left_s = 0.0 if is_last else self._said_status_s + _STATUS_S - loop.time()
        if left_s <= 0:
            self._said_status_s = loop.time()
            self._setup.notifier.status(self._health.status(self._watched))
        elif self._status_due is None or self._status_due.when() <= loop.time():
            self._status_due = loop.call_later(left_s, self._say_status)
