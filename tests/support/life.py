"""One life of the poller's core between a source and a receiver: on real files, in virtual time.

    life = Life(root, runner, source)
    await life.begin()
    await life.cycle()                       # one look, and whatever ends at once
    await life.die()                         # SIGKILL; the next life finds what is on disk

A `Fuse` ends a life before any of its writes, removals and hand-overs; it does nothing after that.
"""

from __future__ import annotations

import asyncio
import os
import selectors
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from functools import wraps
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Final, ParamSpec

import pytest

from support import factories as make
from support.clock import Clock, Clocks
from support.fakes import FakeRunner, FakeSource
from support.fuse import Fuse
from the_loop.core.guards import Rules
from the_loop.core.ledger import Ledger
from the_loop.core.model import Note, Outcome
from the_loop.core.outcomes import Policy
from the_loop.cursors import recover_cursor
from the_loop.cycle import Cycle
from the_loop.deliveries import Deliveries
from the_loop.dispatcher import Dispatcher, StopReport
from the_loop.ledgers import Ledgers
from the_loop.outbox import Outbox
from the_loop.recovery import Recovery
from the_loop.runners.base import Offer, Status
from the_loop.sources.base import Source
from the_loop.state import StateRoot
from the_loop.watched import Watched

P = ParamSpec("P")
_TURNS: Final = 60  # of the event loop: more than any chain of hand-overs in a test needs


@dataclass
class _Present:
    """The runner as one life has it: dead with it, and a step of its fuse."""

    runner: FakeRunner
    fuse: Fuse

    async def deliver(self, offer: Offer) -> Outcome:
        if self.fuse.is_blown:
            await asyncio.get_running_loop().create_future()
        self.fuse.step("hand-over", f"hand over {offer.delivery_id}")
        return await self.runner.deliver(offer)

    async def adopt(self, offer: Offer) -> Outcome:
        return await self.runner.adopt(offer)

    def inspect(self, offer: Offer) -> Status:
        return self.runner.inspect(offer)

    async def close(self) -> None:
        await self.runner.close()


class Life:
    """Ledgers, outbox, dispatcher and cycle of one poller, as `poller.py` puts them together."""

    lives: ClassVar[list[Life]] = []  # of the test that runs

    def __init__(
        self,
        root: StateRoot,
        runner: FakeRunner,
        *sources: Source,
        clock: Clock | None = None,
        rules: Rules | None = None,
        limit: int = 4,
        once: bool = False,
        fuse: Fuse | None = None,
        **policy: Any,
    ) -> None:
        self.lives.append(self)
        self.root = root
        self.told: list[Note] = []
        self.clock = clock or Clock()
        self.is_in_charge = True  # False: nothing is handed over
        self.is_displaced = False  # True: the root is another poller's, nothing is written
        self.fuse = fuse or Fuse()
        self.ledgers = Ledgers(root, self.told.append, self.clock, guard=lambda: not self.is_displaced)
        self.ledgers.load()
        self.rules = rules or make.rules()
        self.watched = [Watched(source, self.rules, recover_cursor(root, source.name)[0]) for source in sources]
        self.deliveries = Deliveries(root)
        self.outbox = Outbox(
            self.deliveries,
            self.ledgers,
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
            self.ledgers,
            self.outbox,
            self.dispatcher,
            tell=self.told.append,
            clock=Clocks(self.clock),
        )

    async def begin(self) -> None:
        """What a start settles of earlier lives."""
        for offer in chain.from_iterable(Recovery(self.deliveries, self.ledgers, self.outbox, self.told.append).run()):
            self.dispatcher.adopt(offer)

    async def cycle(self) -> int:
        """Look at every source, hand over what is due, let end what ends at once; the errors met."""
        errors = 0
        for watched in self.watched:
            met = await self._cycle.run(watched)
            errors += met
            self._cycle.offer_pending(watched)
        await idle()
        return errors

    async def stop(self) -> StopReport:
        return await self.dispatcher.stop()

    def ledger(self, ref: str) -> Ledger:
        ledger = self.ledgers.get(ref)
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
        self.fuse.is_blown = True
        self.is_in_charge = False
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def in_virtual_loop(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
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


class _VirtualSelector(selectors.EpollSelector):
    """Waits for nothing: where nothing is ready, the time that it was to wait is over."""

    virtual_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(0)
        if timeout is None and not events:
            raise RuntimeError("everything waits, and nothing is to come")
        if not events:
            self.virtual_s += timeout or 0.0
        return events


class _VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer when there is nothing else to do."""

    def __init__(self) -> None:
        self._waiting = _VirtualSelector()
        super().__init__(self._waiting)

    def time(self) -> float:
        return self._waiting.virtual_s


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


async def live_item(root: StateRoot, runner: FakeRunner, source: FakeSource, **options: Any) -> Life:
    """A life in which item 1 has its session already."""
    source.add(1)
    life = Life(root, runner, source, **options)
    await life.begin()
    await life.cycle()
    assert runner.ids() == ["fake:1/spawn:1"]
    return life


async def next_life(life: Life, root: StateRoot, runner: FakeRunner, source: FakeSource, **options: Any) -> Life:
    """SIGKILL, and the next start."""
    await life.die()
    after = Life(root, runner, source, **options)
    await after.begin()
    return after


def quick_root(path: Path, monkeypatch: pytest.MonkeyPatch) -> StateRoot:
    """An empty state root whose files are flushed nowhere: no power cut happens in these tests."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
    return new_root(path)


def no_space(*_: object) -> None:
    """A write on a full disk."""
    raise OSError(28, "No space left on device")
