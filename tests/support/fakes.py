"""A receiver, a source, and one life of the poller's core between them, on real files and in virtual time.

    runner, source = FakeRunner(), FakeSource()
    source.add(15)
    life = Life(root, runner, source)
    await life.begin()
    await life.cycle()                       # one look, and whatever ends at once
    assert runner.ids() == ["fake:15/spawn:1"]

The runner plays keepers and receivers alike: it outlives the lives, writes the keepers' files, and refuses what a
keeper refuses. A `Fuse` ends a life before any of its writes, removals and hand-overs; it does nothing after that.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import wraps
from pathlib import Path
from typing import Any, ClassVar, Final, ParamSpec
from unittest import mock

from support import factories as make
from the_loop import deliveries, state
from the_loop.archive import Archive
from the_loop.cycle import Cycle, Watched
from the_loop.dispatcher import Dispatcher, StopReport
from the_loop.guards import Rules
from the_loop.ledger import Ledger
from the_loop.model import Entry, Note, Outcome, Presence, Verdict, WorkItem
from the_loop.outbox import Outbox
from the_loop.positions import read_position
from the_loop.runners.base import Look, Offer, Trace
from the_loop.sources.base import Known, Listing, Sighting, SourceError, Thread
from the_loop.state import StateRoot
from the_loop.verdicts import Policy

DELIVERED: Final = Outcome(Verdict.DELIVERED)
REFUSED: Final = Outcome(Verdict.REFUSED, "exit status 1")
LATER: Final = Outcome(Verdict.LATER, "exit status 75")
UNSTARTABLE: Final = Outcome(Verdict.UNSTARTABLE, "no such command")
UNKNOWN: Final = Outcome(Verdict.UNKNOWN, "killed by SIGKILL")
P = ParamSpec("P")
_TURNS: Final = 60  # of the event loop: more than any chain of hand-overs in a test needs


@dataclass
class Clock:
    """Epoch seconds that pass when a test says so; `monotonic_s` is not moved when the clock is set."""

    now: float = make.NOON
    monotonic_s: float = 1000.0

    def __call__(self) -> float:
        return self.now

    def pass_by(self, seconds: float) -> None:
        self.now += seconds
        self.monotonic_s += seconds


class Crash(BaseException):
    """The process ended here."""


@dataclass
class Fuse:
    """Blows before the `at`-th step (0: never), and then before every further one."""

    at: int = 0
    steps: int = 0
    log: list[str] = field(default_factory=list)

    @property
    def is_blown(self) -> bool:
        return 0 < self.at <= self.steps

    def blow(self) -> None:
        """The end, right now."""
        self.at, self.steps = 1, max(self.steps, 1)

    def step(self, what: str) -> None:
        if self.is_blown:
            raise Crash
        self.steps += 1
        if self.is_blown:
            raise Crash
        self.log.append(what)

    @contextmanager
    def in_files(self) -> Iterator[None]:
        """Every write and removal of the core is a step."""
        write, unlink = state.replace_file, Path.unlink

        def guarded_write(path: Path, content: bytes, *, sync: bool) -> None:
            self.step(f"write {path.name}")
            write(path, content, sync=sync)

        def guarded_unlink(path: Path, missing_ok: bool = False) -> None:
            if path.exists():
                self.step(f"remove {path.name}")
            unlink(path, missing_ok)

        with mock.patch.object(state, "replace_file", guarded_write), mock.patch.object(Path, "unlink", guarded_unlink):
            yield


@dataclass
class _Going:
    """A delivery under way."""

    offer: Offer
    waiters: list[asyncio.Future[None]] = field(default_factory=list)


class FakeRunner:
    """Satisfies `runners.base.Runner`. `script` has outcomes by delivery id, used up one by one; then `default`.

    None stands for a delivery that goes on until the test says `finish` or `kill`.
    """

    def __init__(self, default: Outcome | None = DELIVERED) -> None:
        self.default = default
        self.script: dict[str, list[Outcome | None]] = {}
        self.got: list[dict[str, Any]] = []  # payloads as they arrived
        self.most_at_once = 0
        self._going: dict[str, _Going] = {}

    # --- what the core asks ---

    async def deliver(self, offer: Offer) -> Outcome:
        if offer.delivery_id in self._going:
            return await self.adopt(offer)
        problem = self._begin(offer)
        outcome = await self.adopt(offer)
        return Outcome(Verdict.UNSTARTABLE, problem) if outcome.verdict is Verdict.NEVER_BEGUN else outcome

    async def adopt(self, offer: Offer) -> Outcome:
        while self.look(offer).trace is Trace.RUNNING:
            waiter = asyncio.get_running_loop().create_future()
            self._going[offer.delivery_id].waiters.append(waiter)
            await waiter
        look = self.look(offer)
        if look.outcome is not None:
            return look.outcome
        return Outcome(Verdict.NEVER_BEGUN if look.trace is Trace.NEVER_BEGUN else Verdict.UNKNOWN)

    def look(self, offer: Offer) -> Look:
        outcome = deliveries.outcome_of(offer.stem, offer.number)
        if outcome is not None:
            return Look(Trace.DONE, outcome)
        if any(going.offer.stem == offer.stem for going in self._going.values()):
            return Look(Trace.RUNNING)
        return Look(Trace.UNKNOWN if deliveries.is_started(offer.stem, offer.number) else Trace.NEVER_BEGUN)

    # --- what a test asks ---

    def ids(self) -> list[str]:
        """The delivery ids that arrived, in order."""
        return [payload["deliveryId"] for payload in self.got]

    def going(self) -> list[str]:
        """What is under way."""
        return list(self._going)

    def finish(self, delivery_id: str, outcome: Outcome = DELIVERED) -> None:
        """The command ended, and its keeper wrote that down."""
        offer = self._going[delivery_id].offer
        mark = {"schema": 1, "offer": offer.number, "outcome": str(outcome.verdict), "reason": outcome.reason}
        deliveries.beside(offer.stem, "outcome.json").write_text(json.dumps(mark))
        self.kill(delivery_id)

    def kill(self, delivery_id: str) -> None:
        """The keeper is gone, whatever it has written."""
        for waiter in self._going.pop(delivery_id).waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _begin(self, offer: Offer) -> str:
        """What keeper and receiver do first; why not, where it does not begin."""
        started = deliveries.beside(offer.stem, "started.json")
        payload = json.loads(deliveries.beside(offer.stem, "payload.json").read_bytes())
        if started.exists() or payload.get("offer", offer.number) != offer.number:
            return "a second keeper refuses"
        started.write_text(json.dumps({"schema": 1, "offer": offer.number, "attempt": offer.attempt}))
        self.got.append(payload)
        self._going[offer.delivery_id] = _Going(offer)
        self.most_at_once = max(self.most_at_once, len(self._going))
        left = self.script.get(offer.delivery_id, [])
        outcome = left.pop(0) if left else self.default
        if outcome is not None:
            self.finish(offer.delivery_id, outcome)
        return ""


@dataclass
class _Present:
    """The runner as one life has it: dead with it, and a step of its fuse."""

    runner: FakeRunner
    fuse: Fuse

    async def deliver(self, offer: Offer) -> Outcome:
        if self.fuse.is_blown:
            await asyncio.get_running_loop().create_future()
        self.fuse.step(f"hand over {offer.delivery_id}")
        return await self.runner.deliver(offer)

    async def adopt(self, offer: Offer) -> Outcome:
        return await self.runner.adopt(offer)

    def look(self, offer: Offer) -> Look:
        return self.runner.look(offer)


@dataclass
class FakeItem:
    item: WorkItem
    entries: list[Entry] = field(default_factory=list)
    presence: Presence = Presence.LISTED
    reason: str = "closed"
    is_hidden: bool = False  # in no answer: of a part that could not be read


class FakeSource:
    """Satisfies `sources.base.Source`. Rows are what was added since the position; without one there are none."""

    provider = "fake"
    folds_case = True

    def __init__(self, name: str = "fake") -> None:
        self.name = name
        self.items: dict[str, FakeItem] = {}
        self.look_errors: list[BaseException | None] = []  # for the next looks, used up one by one
        self.thread_errors: dict[str, list[BaseException]] = {}  # by ref, used up one by one
        self.faults: list[SourceError] = []  # of the next look
        self.threads: list[str] = []  # refs asked for by themselves
        self.positions: list[Mapping[str, Any] | None] = []  # that looks were given
        self.gate: asyncio.Event | None = None  # what looks and threads wait for
        self.is_closed = False

    # --- what a test does ---

    def add(self, number: int, *entries: Entry, **changes: Any) -> str:
        """A new item; its ref."""
        ref = f"{self.name}:{number}"
        self.items[ref] = FakeItem(make.item(ref=ref, id=f"node-{number}", **changes), list(entries))
        return ref

    def write(self, ref: str, *entries: Entry) -> None:
        self.items[ref].entries += entries

    # --- what the core asks ---

    def owns(self, ref: str) -> bool:
        return ref.startswith(f"{self.name}:")

    async def look(self, position: Mapping[str, Any] | None, known: Mapping[str, Known]) -> Listing:
        self.positions.append(position)
        if self.gate is not None:
            await self.gate.wait()
        error = self.look_errors.pop(0) if self.look_errors else None
        if error is not None:
            raise error
        shown = dict(position["shown"]) if position is not None else {}
        sightings = []
        for ref, fake in self.items.items():
            if fake.is_hidden:
                continue
            rows = fake.entries[shown.get(ref, 0) :] if position is not None else []
            shown[ref] = len(fake.entries)
            sighting = self._sighting(ref, fake, rows, known.get(ref))
            if sighting is not None:
                sightings.append(sighting)
        faults, self.faults = self.faults, []
        listed = sum(sighting.presence is Presence.LISTED for sighting in sightings)
        return Listing(sightings, {"shown": shown}, listed, faults)

    async def thread(self, ref: str) -> Thread:
        self.threads.append(ref)
        if self.gate is not None:
            await self.gate.wait()
        errors = self.thread_errors.get(ref)
        if errors:
            raise errors.pop(0)
        fake = self.items[ref]
        is_there = fake.presence is Presence.LISTED
        return Thread(fake.item if is_there else None, list(fake.entries))

    async def close(self) -> None:
        self.is_closed = True

    def _sighting(self, ref: str, fake: FakeItem, rows: list[Entry], known: Known | None) -> Sighting | None:
        if fake.presence is Presence.LISTED:
            return Sighting(ref, Presence.LISTED, fake.item, rows=rows)
        if known is None or not known.is_open:
            return None
        return Sighting(ref, fake.presence, reason=fake.reason, rows=() if fake.presence is Presence.AWAY else rows)


class Life:
    """Archive, outbox, dispatcher and cycle of one poller, as `poller.py` puts them together."""

    lives: ClassVar[list[Life]] = []  # of the test that runs

    def __init__(
        self,
        root: StateRoot,
        runner: FakeRunner,
        *sources: FakeSource,
        clock: Clock | None = None,
        rules: Rules | None = None,
        limit: int = 4,
        once: bool = False,
        fuse: Fuse | None = None,
        **policy: Any,
    ) -> None:
        self.lives.append(self)
        self.told: list[Note] = []
        self.clock = clock or Clock()
        self.is_in_charge = True
        self.fuse = fuse or Fuse()
        self.archive = Archive(root, self.told.append, self.clock)
        self.archive.load()
        self.rules = rules or make.rules()
        self.watched = [Watched(source, self.rules, read_position(root, source.name)) for source in sources]
        self.outbox = Outbox(
            root,
            self.archive,
            _Present(runner, self.fuse),
            policy=make.policy(**policy),
            rules_of=self._rules_of,
            tell=self.told.append,
            now=self.clock,
            offers_once=once,
        )
        self.dispatcher = Dispatcher(
            self.outbox, limit=limit, tell=self.told.append, may_hand_over=lambda: self.is_in_charge
        )
        self._cycle = Cycle(
            root,
            self.archive,
            self.outbox,
            self.dispatcher,
            tell=self.told.append,
            now=self.clock,
            monotonic=lambda: self.clock.monotonic_s,
        )

    async def begin(self) -> None:
        """What a start settles of earlier lives."""
        for handover in self.outbox.recover():
            self.dispatcher.adopt(handover)

    async def cycle(self) -> int:
        """Look at every source, hand over what is due, let end what ends at once; the errors met."""
        errors = 0
        for watched in self.watched:
            errors += await self._cycle.run(watched, 60.0)
            self._cycle.offer_pending(watched)
        await idle()
        return errors

    async def stop(self) -> StopReport:
        return await self.dispatcher.stop()

    def ledger(self, ref: str) -> Ledger:
        ledger = self.archive.get(ref)
        assert ledger is not None
        return ledger

    def notes(self, name: str) -> list[Mapping[str, Any]]:
        """The fields of every event of this name so far."""
        return [note.fields for note in self.told if note.name == name]

    def set_policy(self, **changes: Any) -> Policy:
        self.outbox.policy = replace(self.outbox.policy, **changes)
        return self.outbox.policy

    def _rules_of(self, ref: str) -> Rules | None:
        return next((one.rules for one in self.watched if one.source.owns(ref) and not one.is_unread), None)

    async def die(self) -> None:
        """SIGKILL: nothing is put back, and whatever still runs here does nothing more."""
        self.fuse.blow()
        self.is_in_charge = False
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def in_loop(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run a test that is a coroutine, in virtual time; the lives that it leaves end with it."""

    @wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        async def whole() -> None:
            try:
                await test(*args, **kwargs)
            finally:
                while Life.lives:
                    await Life.lives.pop().die()

        with asyncio.Runner(loop_factory=_VirtualLoop) as loop:
            loop.run(whole())

    return run


class _VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer when there is nothing else to do."""

    def __init__(self) -> None:
        super().__init__()
        self._virtual_s = 0.0
        self._look: Callable[[float | None], list[Any]] = self._selector.select
        self._selector.select = self._select

    def time(self) -> float:
        return self._virtual_s

    def _select(self, timeout: float | None) -> list[Any]:
        events = self._look(0)
        if timeout is None and not events:
            raise RuntimeError("everything waits, and nothing is to come")
        if not events:
            self._virtual_s += timeout or 0.0
        return events


async def idle() -> None:
    """Let everything run that waits for nothing outside."""
    for _ in range(_TURNS):
        await asyncio.sleep(0)


def new_root(path: Path) -> StateRoot:
    """An empty state root."""
    root = StateRoot(path / "root")
    root.prepare_root()
    root.prepare_folders()
    return root


def files_of(root: StateRoot) -> list[str]:
    """The names in `local/deliveries/`."""
    return sorted(path.name for path in root.deliveries.iterdir())


def comments(*numbers: int) -> Iterable[Entry]:
    return [make.entry(number) for number in numbers]
