"""What every runner has to do, whatever it starts: `the_loop.runners.base` as tests. One that passes keeps the promise.

A runner comes with a `Bench`: a state root, runners that deliver from it, and a receiver that says what it is told to.

    class TestMine(RunnerSuite):            # LastingRunnerSuite, where a delivery goes on without its runner
        bench_type = MyBench
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any, ClassVar

import pytest

from contract.cancelling import CancelledAt, is_cancelled
from support.processes import command, wait_until
from the_loop.core.model import Entry, Event, Kind, Outcome, Verdict
from the_loop.deliveries import beside, is_locked, remove_all
from the_loop.durable import to_json_line, write_durably
from the_loop.plugins import RUNNERS
from the_loop.runners.base import Offer, Runner, RunnerSite, Status, Trace
from the_loop.state import StateRoot

ITEM = "directory:inbox/item"
PARTS = {"payload.json", "lock", "started.json", "outcome.json"}  # the files that a delivery may have
_LIMIT_S = 30.0
_AWAITS = 20  # at which a delivery is cancelled, one after the other; what comes later is a wait like these
_BUILD = """
import asyncio, json, sys
from pathlib import Path
from the_loop.plugins import RUNNERS
from the_loop.runners.base import Offer, RunnerSite
runner, fields, site, offer = json.loads(sys.argv[1])
provider = RUNNERS.get(runner)
places = {name: Path(site.pop(name)) for name in ("root", "folder")}
built = provider.build(provider.Section(runner=runner, **fields), RunnerSite(**site, **places, tell=lambda _: None))
asyncio.run(built.deliver(Offer(*offer[:2], Path(offer[2]), *offer[3:])))
"""


class Bench(ABC):
    """One state root and a receiver. `says` is how that answers: one of `answers`, each with what becomes of it."""

    runner: ClassVar[str]
    answers: ClassVar[dict[str, Verdict]]

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = StateRoot(folder / "root")
        self._built: list[Runner] = []
        self.root.prepare_root()
        self.root.prepare_folders()
        self.environ = {name: value for name, value in os.environ.items() if name != "XDG_RUNTIME_DIR"}

    @abstractmethod
    def section(self, says: str) -> dict[str, Any]:
        """What the operator would write in `session`, without the runner, for a receiver that answers this."""

    @abstractmethod
    def arrived(self) -> list[str]:
        """The delivery ids that the receiver was started for, in any order, one for each start."""

    @abstractmethod
    def has_whole(self, offer: Offer) -> bool:
        """True if the receiver got all of the payload that is on disk."""

    @abstractmethod
    def close(self) -> None:
        """Let everything that waits go on, and put away what the bench has open."""

    def build(self, says: str = "yes") -> Runner:
        """A runner as a start builds it, by its provider's own hand."""
        provider = RUNNERS.get(self.runner)
        section = provider.Section(runner=self.runner, **self.section(says))
        self._built.append(provider.build(section, RunnerSite(**self._site(), tell=lambda _: None)))
        return self._built[-1]

    async def close_runners(self) -> None:
        while self._built:
            await self._built.pop().close()

    def put(self, number: int = 1, item: str = ITEM, body: str = "please", **more: Any) -> Offer:
        """Have the payload of an offer on disk, as the outbox does; what an earlier one left stays beside it."""
        said = Entry(Kind.COMMENT, "7", "bob", "and this", "file:///x/7", "2026-01-31T12:00:00.000Z")
        event = Event(item, "spawn:1", "file:///x", "A title", "alice", body, said.created_at, thread=(said,), **more)
        payload = {"schema": 1, "offer": number, **event.to_json(attempt=1, redelivery=False)}
        offer = Offer(event.ref, event.key, self.root.delivery(event.delivery_id), number, 1)
        write_durably(beside(offer.stem, "payload.json"), to_json_line(payload))
        return offer

    def payload(self, offer: Offer) -> dict[str, Any]:
        value: dict[str, Any] = json.loads(beside(offer.stem, "payload.json").read_bytes())
        return value

    def files(self) -> dict[str, bytes]:
        """What is in the deliveries' folder."""
        return {path.name: path.read_bytes() for path in self.root.deliveries.iterdir()}

    def starter(self, offer: Offer) -> list[str]:
        """The command line of another process that delivers this."""
        site = {name: str(value) if isinstance(value, Path) else value for name, value in self._site().items()}
        place = [offer.ref, offer.key, str(offer.stem), offer.number, offer.attempt]
        return [sys.executable, "-c", _BUILD, json.dumps([self.runner, self.section("waits"), site, place])]

    def _site(self) -> dict[str, Any]:
        folder = self.root.runner_folder(self.runner)
        return {"root": self.root.path, "folder": folder, "environ": self.environ, "limit_s": 60}


class LastingBench(Bench):
    """Of a runner whose deliveries go on by themselves: `waits` is an answer, too, and is `yes` once it may go on."""

    @abstractmethod
    def let_go(self) -> None:
        """Let what waits go on."""


def in_limited_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test in an event loop, within a time that nothing needs."""

    @wraps(test)
    def running(*arguments: Any, **named: Any) -> None:
        async def whole() -> None:
            try:
                async with asyncio.timeout(2 * _LIMIT_S):
                    await test(*arguments, **named)
            finally:
                for bench in named.values():
                    if isinstance(bench, Bench):
                        await bench.close_runners()

        asyncio.run(whole())

    return running


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def until(condition: Callable[[], object], what: str) -> None:
    """Return once this holds; the loop goes on meanwhile."""
    await asyncio.to_thread(wait_until, condition, what)


class RunnerSuite:
    """The tests for every runner."""

    bench_type: ClassVar[type[Bench]]

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "says" in metafunc.fixturenames:
            metafunc.parametrize("says", self.bench_type.answers)

    @pytest.fixture
    def bench(self, tmp_path: Path) -> Iterator[Bench]:
        bench = self.bench_type(tmp_path)
        try:
            yield bench
        finally:
            bench.close()

    # --- one delivery ---

    @in_limited_loop
    async def test_deliver_gives_what_the_receiver_said_and_later_ones_are_told_so(
        self, bench: Bench, says: str
    ) -> None:
        offer = bench.put()

        outcome = await bench.build(says).deliver(offer)

        assert outcome.verdict is bench.answers[says]
        assert outcome.reason or outcome.verdict is Verdict.DELIVERED
        found = bench.build(says).inspect(offer)
        if outcome.verdict is Verdict.UNSTARTABLE and found.trace is Trace.NEVER_BEGUN:
            return
        assert found == Status(Trace.DONE, outcome)
        assert await bench.build(says).adopt(offer) == outcome

    @pytest.mark.parametrize(
        "body", ["please", "", "$HOME `id` $(id) %h\n-x\n'\"\\\n", "\u00fc \u202e \U0001f4a9\n", "x" * 20_000]
    )
    @in_limited_loop
    async def test_payload_arrives_whole_and_is_left_as_it_was(self, bench: Bench, body: str) -> None:
        offer = bench.put(body=body)
        before = beside(offer.stem, "payload.json").read_bytes()

        outcome = await bench.build().deliver(offer)

        assert outcome.verdict is Verdict.DELIVERED
        assert bench.has_whole(offer)
        assert bench.arrived() == [offer.delivery_id]
        assert beside(offer.stem, "payload.json").read_bytes() == before

    @in_limited_loop
    async def test_delivery_keeps_no_files_but_those_that_are_removed_with_it(self, bench: Bench, says: str) -> None:
        offer = bench.put()
        await bench.build(says).deliver(offer)

        assert {name.removeprefix(f"{offer.stem.name}.") for name in bench.files()} <= PARTS
        remove_all(offer.stem)
        assert bench.files() == {}
        assert bench.build().inspect(offer).trace is Trace.NEVER_BEGUN

    @in_limited_loop
    async def test_deliveries_of_several_items_at_the_same_time_do_not_meet(self, bench: Bench) -> None:
        runner = bench.build()
        offers = [bench.put(item=f"{ITEM}-{number}") for number in range(6)]
        before = open_files()

        outcomes = await asyncio.gather(*(runner.deliver(offer) for offer in offers))

        assert {outcome.verdict for outcome in outcomes} == {Verdict.DELIVERED}
        assert sorted(bench.arrived()) == [offer.delivery_id for offer in offers]
        await bench.close_runners()
        await until(lambda: open_files() <= before, "descriptors are given back")

    # --- nothing begun ---

    @in_limited_loop
    async def test_inspect_before_anything_is_never_begun_and_leaves_no_trace(self, bench: Bench) -> None:
        nothing = Offer("x", "spawn:1", bench.root.delivery("x/spawn:1"), 1, 1)
        offer = bench.put()
        before = bench.files()

        for one in (nothing, offer, Offer("", offer.stem.name, offer.stem, 0, 0)):
            assert bench.build().inspect(one) == Status(Trace.NEVER_BEGUN)
            assert (await bench.build().adopt(one)).verdict is Verdict.NEVER_BEGUN

        assert (bench.files(), bench.arrived()) == (before, [])

    @pytest.mark.parametrize("payload", [None, b"", b'{"offer": 1', b"[1]", b'{"offer": 2}'])
    @in_limited_loop
    async def test_payload_that_is_not_of_this_offer_begins_nothing(self, bench: Bench, payload: bytes | None) -> None:
        offer = bench.put()
        if payload is None:
            beside(offer.stem, "payload.json").unlink()
        else:
            write_durably(beside(offer.stem, "payload.json"), payload)

        outcome = await bench.build().deliver(offer)

        assert outcome.verdict is Verdict.UNSTARTABLE
        assert outcome.reason
        assert bench.arrived() == []
        bench.put()
        assert bench.build().inspect(offer).trace is Trace.NEVER_BEGUN
        assert (await bench.build().deliver(offer)).verdict is Verdict.DELIVERED

    @in_limited_loop
    async def test_offer_that_comes_after_the_next_one_begins_nothing(self, bench: Bench) -> None:
        late = bench.put(1)
        offer = bench.put(2)

        assert (await bench.build().deliver(late)).verdict is Verdict.UNSTARTABLE

        assert bench.arrived() == []
        assert bench.build().inspect(offer).trace is Trace.NEVER_BEGUN
        assert (await bench.build().deliver(offer)).verdict is Verdict.DELIVERED

    # --- once ---

    @in_limited_loop
    async def test_same_offer_twice_at_once_starts_once(self, bench: Bench) -> None:
        offer = bench.put()
        runner = bench.build()

        outcomes = await asyncio.gather(runner.deliver(offer), runner.deliver(offer), bench.build().deliver(offer))

        assert {outcome.verdict for outcome in outcomes} == {Verdict.DELIVERED}
        assert bench.arrived() == [offer.delivery_id]

    @in_limited_loop
    async def test_same_offer_again_starts_nothing_and_gives_the_outcome_of_then(self, bench: Bench) -> None:
        offer = bench.put()
        first = await bench.build().deliver(offer)

        for says in bench.answers:
            assert await bench.build(says).deliver(offer) == first

        assert bench.arrived() == [offer.delivery_id]

    @in_limited_loop
    async def test_next_number_starts_again_whatever_the_last_one_left(self, bench: Bench, says: str) -> None:
        await bench.build(says).deliver(bench.put(1))
        before = bench.arrived()
        offer = bench.put(2)
        assert (await bench.build().adopt(offer)).verdict is Verdict.NEVER_BEGUN  # once the last one has ended
        assert bench.build().inspect(offer) == Status(Trace.NEVER_BEGUN)

        outcome = await bench.build().deliver(offer)

        assert outcome.verdict is Verdict.DELIVERED
        assert len(bench.arrived()) == len(before) + 1
        assert bench.build().inspect(offer) == Status(Trace.DONE, outcome)

    @in_limited_loop
    async def test_delivery_whose_marks_a_power_cut_emptied_is_never_taken_for_not_begun(self, bench: Bench) -> None:
        offer = bench.put()
        outcome = await bench.build().deliver(offer)
        empty_marks(offer)

        with suppress(OSError):
            assert bench.build().inspect(offer) in (Status(Trace.UNKNOWN), Status(Trace.DONE, outcome))
        with suppress(OSError):
            adopted = await bench.build().adopt(offer)
            assert adopted == outcome or adopted.verdict is Verdict.UNKNOWN

    @in_limited_loop
    async def test_delivery_whose_marks_a_power_cut_emptied_is_not_started_again(self, bench: Bench) -> None:
        offer = bench.put()
        outcome = await bench.build().deliver(offer)
        empty_marks(offer)

        with suppress(OSError):
            again = await bench.build().deliver(offer)
            assert again == outcome or again.verdict is Verdict.UNKNOWN

        assert bench.arrived() == [offer.delivery_id]

    # --- cut short ---

    @in_limited_loop
    async def test_delivery_that_is_cancelled_at_any_await_was_begun_once_or_not_at_all(self, bench: Bench) -> None:
        for number in range(1, _AWAITS):
            offer = bench.put(item=f"{ITEM}-{number}")
            is_cut = await is_cancelled(CancelledAt(bench.build().deliver(offer), number))
            trace = bench.build().inspect(offer).trace
            if not is_cut:
                break

            assert trace is not Trace.UNKNOWN
            outcome = await (bench.build().deliver if trace is Trace.NEVER_BEGUN else bench.build().adopt)(offer)
            assert outcome.verdict is Verdict.DELIVERED
            assert bench.arrived().count(offer.delivery_id) == 1


class LastingRunnerSuite(RunnerSuite):
    """The tests for runners whose deliveries go on without them."""

    bench_type: ClassVar[type[LastingBench]]

    @pytest.fixture
    def lasting(self, bench: Bench) -> LastingBench:
        assert isinstance(bench, LastingBench)
        return bench

    @in_limited_loop
    async def test_delivery_that_runs_is_running_for_everybody_until_it_is_done(self, lasting: LastingBench) -> None:
        offer = lasting.put()
        delivery = await begun(lasting, offer)
        for _ in range(3):
            assert lasting.build().inspect(offer) == Status(Trace.RUNNING)
        assert lasting.build().inspect(Offer("", offer.stem.name, offer.stem, 0, 0)).trace.is_under_way

        lasting.let_go()

        outcome = await delivery
        assert outcome.verdict is Verdict.DELIVERED
        assert lasting.build().inspect(offer) == Status(Trace.DONE, outcome)

    @pytest.mark.parametrize("how", ["adopt", "deliver"])
    @in_limited_loop
    async def test_delivery_that_runs_is_waited_for_and_not_started_again(
        self, lasting: LastingBench, how: str
    ) -> None:
        offer = lasting.put()
        first = await begun(lasting, offer)
        second = asyncio.create_task(getattr(lasting.build(), how)(offer))
        _, waiting = await asyncio.wait({first, second}, timeout=0.05)
        assert waiting == {first, second}

        lasting.let_go()

        assert await second == await first
        assert lasting.arrived() == [offer.delivery_id]

    @pytest.mark.parametrize("how", ["deliver", "adopt"])
    @in_limited_loop
    async def test_wait_that_is_cancelled_leaves_the_delivery_alone(self, lasting: LastingBench, how: str) -> None:
        offer = lasting.put()
        wait = await begun(lasting, offer)
        if how == "adopt":
            await ended(wait)
            wait = asyncio.create_task(lasting.build().adopt(offer))
            await asyncio.sleep(0)
        await ended(wait)

        assert lasting.build().inspect(offer) == Status(Trace.RUNNING)
        lasting.let_go()
        assert (await lasting.build().adopt(offer)).verdict is Verdict.DELIVERED
        assert lasting.arrived() == [offer.delivery_id]

    @in_limited_loop
    async def test_delivery_outlives_the_process_that_started_it(self, lasting: LastingBench) -> None:
        offer = lasting.put()
        with command(lasting.starter(offer), stdout=None, env=lasting.environ) as poller:
            await until(lambda: lasting.build().inspect(offer).trace is Trace.RUNNING, "it runs")
            poller.kill()
        assert lasting.build().inspect(offer) == Status(Trace.RUNNING)

        lasting.let_go()

        assert (await lasting.build().adopt(offer)).verdict is Verdict.DELIVERED
        assert lasting.arrived() == [offer.delivery_id]


def empty_marks(offer: Offer) -> None:
    """What a power cut may leave of files that were not flushed yet; it ends the keeper, too."""
    wait_until(lambda: not is_locked(offer.stem), "the keeper ends")
    for part in ("started.json", "outcome.json"):
        if beside(offer.stem, part).exists():
            beside(offer.stem, part).write_bytes(b"")


async def begun(bench: LastingBench, offer: Offer) -> asyncio.Task[Outcome]:
    """A delivery that runs and waits."""
    delivery = asyncio.create_task(bench.build("waits").deliver(offer))
    while bench.build().inspect(offer).trace is not Trace.RUNNING:
        assert not delivery.done(), delivery
        await asyncio.sleep(0.01)
    return delivery


async def ended(wait: asyncio.Task[Outcome]) -> None:
    wait.cancel()
    with suppress(asyncio.CancelledError):
        await wait
    assert wait.cancelled()
