"""The model's steps, driven through the real code: outbox, dispatcher, recovery, exec runner, and the keeper's files.

A way through the model is a list of names. What the poller does is the real code, stopped before each of its durable
effects and each look at a lock or a mark: there the names up to the poller's next step are carried out, and that step
has to be the one that the model names. The manager takes a duplicate of the descriptor, as systemd does; the keeper
calls the functions of keeper.py one by one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final
from unittest import mock

from model.state import DELIVERED, OPEN, REFUSED, UNKNOWN, Receipt
from support import factories as make
from support.clock import NOON, Clock
from support.fuse import Crash
from the_loop import dispatcher as dispatcher_module
from the_loop import handover as handover_module
from the_loop.core.decide import View, decide, wants_thread
from the_loop.core.ledger import Ledger
from the_loop.core.model import Entry, Outcome, Presence
from the_loop.deliveries import Deliveries, DeliveryRuns, beside
from the_loop.dispatcher import Dispatcher
from the_loop.handover import HandOver
from the_loop.ledgers import Ledgers
from the_loop.manager import UNIT_EXISTS, NoAnswer, Refused
from the_loop.outbox import Outbox
from the_loop.recovery import Recovery
from the_loop.runners import exec as exec_module
from the_loop.runners import keeper as keeper_module
from the_loop.runners.base import Offer, Status
from the_loop.runners.endings import Changes
from the_loop.runners.exec import Command, ExecRunner
from the_loop.state import StateRoot

REF: Final = "fake:1"
_ITEM: Final = make.item(ref=REF, id="node-1")
_COMMENT: Final = make.entry(1, "do not deploy")
_RULES: Final = make.rules()
_TURNS: Final = 12  # of the event loop: more than lie between two places where a task can stop
_RUN_BY_COMMAND: Final = Command(("true",), Path("/"), 60, {}, None)


class Differs(BaseException):
    """The real code does something else than the model."""


@dataclass
class _Keeper:
    """A keeper's process: its descriptor 0, later the one that it keeps."""

    key: str
    number: int
    stem: Path
    lock: int
    is_running: bool = False  # its command

    @property
    def mark(self) -> dict[str, object]:
        # of another boot, so that its process is not waited for: the lock tells
        return {"schema": 1, "offer": self.number, "attempt": 1, "keeper": "1:1:another-boot"}

    def end(self) -> None:
        os.close(self.lock)


@dataclass
class Script:
    """The steps of one way, carried out in their order. `got` is what arrived."""

    names: Sequence[str]
    root: StateRoot
    got: list[Receipt] = field(default_factory=list)
    thread: list[Entry] = field(default_factory=list)
    at: int = 0
    is_muted: bool = False
    is_dead: bool = False
    problem: str = ""
    gate: asyncio.Future[None] | None = None
    message: tuple[Offer, int] | None = None
    asked: asyncio.Future[None] | None = None
    answer: str = ""
    jobs: list[tuple[Offer, int]] = field(default_factory=list)
    keepers: list[_Keeper] = field(default_factory=list)
    life: _Life | None = None
    clock: Clock = field(default_factory=Clock)

    async def run(self) -> None:
        """Raises Differs."""
        while self.at < len(self.names):
            name = self.names[self.at]
            if name.startswith("poller.") or name in ("fault.crash", "fault.no answer"):
                await self._poller(name)
            else:
                self.at += 1
                self._outside(name)
        await self.die()

    async def die(self) -> None:
        """SIGKILL of the poller."""
        if self.life is not None:
            self.is_dead = True
            await self.life.end()
        self.life, self.is_dead, self.gate, self.asked, self.answer = None, False, None, None, ""

    def close(self) -> None:
        """Let go of every descriptor."""
        for keeper in self.keepers:
            keeper.end()
        for _, lock in [*self.jobs, *([self.message] if self.message else [])]:
            os.close(lock)

    def step(self, name: str) -> None:
        """The poller is about to do this; what comes before it happens first. Raises Crash, Differs."""
        if self.is_muted:
            return
        while not self.is_dead:
            if self.at >= len(self.names):
                self._differ(f"{name}, after all was over")
            wanted = self.names[self.at]
            self.at += 1
            if wanted == "fault.crash":
                self.is_dead = True
            elif not wanted.startswith("poller."):
                self._outside(wanted)
            elif wanted.partition(" ")[0] == name:
                return
            else:
                self._differ(f"{name}, where the model does {wanted}")
        raise Crash

    async def wait(self, *_: object) -> None:
        """A task of the poller waits: for its next try, or for its turn."""
        self.gate = asyncio.get_running_loop().create_future()
        await self.gate

    @contextlib.contextmanager
    def muted(self) -> Iterator[None]:
        before, self.is_muted = self.is_muted, True
        try:
            yield
        finally:
            self.is_muted = before

    def _differ(self, does: str) -> None:
        self.problem = self.problem or f"step {self.at}: the code does {does}"
        raise Differs(self.problem)

    # --- the poller ---

    async def _poller(self, name: str) -> None:
        before = self.at
        match name:
            case "poller.start":
                self.at += 1
                self._in_one_go(self._start)
            case "poller.look":
                self.at += 1
                self._in_one_go(self._running().look)
            case "poller.answer" | "fault.no answer":
                self.at += 1
                self._answered(name)
                await _turn()
            case "fault.crash":
                self.at += 1
                self.is_dead = True
            case _:
                await self._go_on()
        if self.problem:
            raise Differs(self.problem)
        if self.is_dead:
            await self.die()
        if self.at == before:
            raise Differs(f"step {self.at}: the model does {name}, and the code waits")

    def _in_one_go(self, work: Any) -> None:
        with contextlib.suppress(Crash):
            work()

    async def _go_on(self) -> None:
        """Let the task that waits, or is about to, run to where it waits again."""
        before = self.at
        await _turn()
        if self.at == before and self.gate is not None and not self.gate.done():
            self.gate.set_result(None)
            await _turn()

    def _start(self) -> None:
        self.life = _Life(self)
        self.life.begin()

    def _running(self) -> _Life:
        assert self.life is not None
        return self.life

    def _answered(self, name: str) -> None:
        assert self.asked is not None
        if name == "fault.no answer":
            self.asked.set_exception(NoAnswer("the connection ended"))
        elif self.answer == "refused":
            self.asked.set_exception(Refused("org.example.Error", "no"))
        elif self.answer == "name":
            self.asked.set_exception(Refused(UNIT_EXISTS, "it is loaded"))
        else:
            self.asked.set_result(None)
        self.asked, self.answer = None, ""

    # --- everything else ---

    def _outside(self, name: str) -> None:
        match name.split():
            case ["world.comment"]:
                self.thread.append(_COMMENT)
            case ["world.again"]:
                self._running().dispatcher.offer(REF)
            case ["world.resume"]:
                self._running().dispatcher.resume()
            case ["manager.accept"]:
                self.jobs.append(self._message())
                self.answer = "accepted"
            case ["fault.refuse" | "fault.lose" | "fault.taken"]:
                os.close(self._message()[1])
                self.answer = "refused" if name == "fault.refuse" else "name"
            case ["manager.start", what]:
                offer, lock = self._job(what)
                self.keepers.append(_Keeper(offer.key, offer.number, offer.stem, lock))
            case ["fault.drop", what]:
                os.close(self._job(what)[1])
            case ["fault.kill", what, number]:
                keeper = self._keeper(what, int(number))
                self._close(keeper, UNKNOWN)
                self._gone(keeper)
            case [step, what, number, *_]:
                self._keeper_step(step.removeprefix("keeper."), self._keeper(what, int(number)))

    def _message(self) -> tuple[Offer, int]:
        assert self.message is not None
        message, self.message = self.message, None
        return message

    def _job(self, what: str) -> tuple[Offer, int]:
        job = next(job for job in self.jobs if job[0].key.startswith(f"{what}:"))
        self.jobs.remove(job)
        return job

    def _keeper(self, what: str, number: int) -> _Keeper:
        for keeper in self.keepers:
            if keeper.key.startswith(f"{what}:") and keeper.number == number:
                return keeper
        raise Differs(f"step {self.at}: there is no keeper of number {number} of the {what} any more")

    def _gone(self, keeper: _Keeper) -> None:
        keeper.end()
        self.keepers.remove(keeper)

    def _close(self, keeper: _Keeper, end: str) -> None:
        if keeper.is_running:
            what = keeper.key.partition(":")[0]
            self.got = [
                one._replace(end=end) if (one.what, one.number, one.end) == (what, keeper.number, OPEN) else one
                for one in self.got
            ]
            keeper.is_running = False

    def _keeper_step(self, step: str, keeper: _Keeper) -> None:
        stem = str(keeper.stem)
        started = f"{stem}.started.json"
        try:
            match step:
                case "hold":
                    _hold(keeper)
                case "check":
                    keeper_module.check_offer(stem, keeper.number)
                case "mark":
                    keeper_module.create(started, keeper.mark)
                case "recheck":
                    keeper_module.check_offer(stem, keeper.number, mark=started)
                case "run":
                    self._command(keeper)
                case "write" | "fault.refused":
                    how = DELIVERED if step == "write" else REFUSED
                    self._close(keeper, how)
                    keeper_module.write(f"{stem}.outcome.json", {**keeper.mark, "outcome": how, "reason": "it ended"})
                case "end":
                    self._gone(keeper)
        except (keeper_module.LateKeeper, OSError, ValueError):
            self._gone(keeper)

    def _command(self, keeper: _Keeper) -> None:
        payload = json.loads(beside(keeper.stem, "payload.json").read_bytes())
        what = payload["kind"]
        has_comment = what == "comment" or any(said["id"] == _COMMENT.id for said in payload["thread"])
        keeper.is_running = True
        self.got.append(Receipt(what, keeper.number, has_comment, payload["redelivery"], OPEN))


async def _turn() -> None:
    for _ in range(_TURNS):
        await asyncio.sleep(0)


def _hold(keeper: _Keeper) -> None:
    """The keeper's own `hold`, with its descriptor as standard input of this process for a moment."""
    kept: list[int] = []
    before = os.dup(0)
    os.dup2(keeper.lock, 0)
    os.close(keeper.lock)
    try:
        with mock.patch.object(keeper_module, "close_all_but", kept.append):
            keeper_module.hold(str(keeper.stem))
    finally:
        os.dup2(before, 0)
        os.close(before)
        keeper.lock = kept[0] if kept else os.open("/dev/null", os.O_RDONLY)


class _Life:
    """One life of the poller's part in a hand-over, as poller.py puts it together."""

    def __init__(self, script: Script) -> None:
        self._script = script
        root = script.root
        self.ledgers = _Ledgers(script)
        self.ledgers.load()
        self.outbox = _Outbox(script, self.ledgers)
        self.dispatcher = Dispatcher(self.outbox, limit=4, tell=_ignore, may_hand_over=lambda: not script.is_dead)
        self.recovery = Recovery(Deliveries(root), self.ledgers, self.outbox, _ignore)

    def begin(self) -> None:
        for offer in chain.from_iterable(self.recovery.run()):
            self.dispatcher.adopt(offer)

    def look(self) -> None:
        """One visit of cycle.py."""
        self._script.clock.run(1000)
        ledger = self.ledgers.get(REF)
        view = self._view(ledger)
        if wants_thread(ledger, view, _RULES, owed=False):
            view = replace(view, thread=tuple(self._script.thread))
        with contextlib.suppress(DeliveryRuns):  # it is looked at again
            self.outbox.commit(decide(ledger, view, _RULES))
        self.dispatcher.offer(REF)

    def _view(self, ledger: Ledger | None) -> View:
        spawn = None if ledger is None else ledger.poll.pending.get(ledger.spawn_key)
        return View(
            ref=REF,
            presence=Presence.LISTED,
            item=_ITEM,
            rows=tuple(self._script.thread),
            running=self.dispatcher.running(REF),
            due=spawn is not None and self.outbox.is_due(spawn),
        )

    async def end(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        for problem in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(problem, Differs):
                raise problem


def _ignore(_: object) -> None:
    """What is told is not compared."""


class _Ledgers(Ledgers):
    def __init__(self, script: Script) -> None:
        super().__init__(script.root, _ignore, lambda: NOON)
        self._script = script

    def save(self, ledger: Ledger) -> None:
        self._script.step("poller.save")
        super().save(ledger)


class SteppedDeliveries(Deliveries):
    def __init__(self, script: Script) -> None:
        super().__init__(script.root)
        self._script = script

    def write(self, stem: Path, payload: Any) -> None:
        self._script.step("poller.write")
        super().write(stem, payload)

    def withdraw_offer(self, stem: Path, number: int) -> int:
        self._script.step("poller.withdraw")
        return super().withdraw_offer(stem, number)

    def remove_marks(self, stem: Path) -> None:
        self._script.step("poller.forget")
        super().remove_marks(stem)

    def remove(self, stem: Path) -> None:
        self._script.step("poller.remove")
        super().remove(stem)


class _Runner(ExecRunner):
    def __init__(self, script: Script) -> None:
        super().__init__(_RUN_BY_COMMAND, _Manager(script))  # type: ignore[arg-type]
        self._script = script

    def inspect(self, offer: Offer) -> Status:
        with contextlib.nullcontext() if offer.ref else self._script.muted():  # without a ref: an orphan
            return super().inspect(offer)


class _Outbox(Outbox):
    def __init__(self, script: Script, ledgers: Ledgers) -> None:
        super().__init__(
            SteppedDeliveries(script),
            ledgers,
            _Runner(script),
            policy=make.policy(max_retries=100),
            rules_of=lambda _: _RULES,
            tell=_ignore,
            now=script.clock,
        )
        self._script = script

    def prepare(self, offer: Offer) -> bool:
        self._script.step("poller.ready")
        return super().prepare(offer)


class _Manager:
    """Stands for `Units`: it has a duplicate of the descriptor from the moment the call was sent."""

    is_only_way = True

    def __init__(self, script: Script) -> None:
        self._script = script

    def name(self, offer: Offer) -> str:
        return f"{offer.number}.service"

    async def start(
        self, offer: Offer, argv: Sequence[str], about: Mapping[str, str], *, limit_s: int, lock_fd: int
    ) -> None:
        script = self._script
        script.step("poller.ask")
        script.message, script.answer = (offer, os.dup(lock_fd)), ""
        script.asked = asyncio.get_running_loop().create_future()
        await script.asked

    def close(self) -> None:
        """There is no connection."""


def replay(names: Sequence[str], root: StateRoot) -> tuple[Script, Ledger | None]:
    """Carry these steps out: what came of them, and the ledger at the end. Raises Differs."""
    script = Script(names, root)

    class Waiting(HandOver):
        async def run(self) -> Outcome | None:
            await script.wait()
            try:
                return await super().run()
            except Crash:  # a process that was killed does nothing more
                await asyncio.get_running_loop().create_future()
                raise

    def stepping(name: str, function: Any) -> Any:
        def stepped(*arguments: Any) -> Any:
            script.step(name)
            return function(*arguments)

        return stepped

    loop = SimpleNamespace(**{**vars(asyncio), "sleep": script.wait})
    names_in_exec = {
        "poller.probe": "is_locked",
        "poller.marks": "outcome_of",
        "poller.claim": "claim",
        "poller.clear": "remove_old_marks",
    }
    with contextlib.ExitStack() as stack:
        stack.callback(script.close)
        stack.enter_context(mock.patch.object(exec_module, "asyncio", loop))
        stack.enter_context(mock.patch.object(Changes, "wait", script.wait))
        stack.enter_context(mock.patch.object(handover_module, "asyncio", loop))
        stack.enter_context(mock.patch.object(dispatcher_module, "HandOver", Waiting))
        stack.enter_context(mock.patch.object(dispatcher_module, "_AGAIN_S", 1e6))  # the model says when
        for name, function in names_in_exec.items():
            stepped = stepping(name, getattr(exec_module, function))
            stack.enter_context(mock.patch.object(exec_module, function, stepped))
        asyncio.run(script.run())
        ledger = Ledgers(root, _ignore, lambda: NOON).get(REF)
    return script, ledger
