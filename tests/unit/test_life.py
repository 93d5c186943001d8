"""A whole life in virtual time: each source at its own pace, reloads that touch only what changed, a stop at once."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from support import factories as make
from support.clock import LoopClocks
from support.fakes import REFUSED, FakeRunner, FakeSource, comments
from support.life import idle, in_virtual_loop
from support.setups import Notes, setup_of
from the_loop import wiring
from the_loop.config import Config, Polling, Routing, SourceSection
from the_loop.ledgers import Ledgers
from the_loop.poller import Poller
from the_loop.sources.base import Known, Listing, SourceError
from the_loop.state import StateRoot
from the_loop.supervision.notify import Notifier
from the_loop.watched import Watched

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator


class Silent(FakeSource):
    """Accepts a question, and never answers."""

    async def poll(self, cursor: Mapping[str, Any] | None, known: Mapping[str, Known]) -> Listing:
        await asyncio.get_running_loop().create_future()
        raise AssertionError("answered")


class World:
    """A poller on these sources, in a task of its own. `seconds` are those of the loop."""

    def __init__(self, root: StateRoot, monkeypatch: pytest.MonkeyPatch, sources: Mapping[FakeSource, int]) -> None:
        self.notes = Notes()
        self.runner = FakeRunner()
        self.clock = LoopClocks()
        self.sources = {source.name: source for source in sources}
        self.config = self.configured({source.name: seconds for source, seconds in sources.items()})
        self.built: list[str] = []
        monkeypatch.setattr(wiring, "watch", self._watch)
        monkeypatch.setattr(wiring, "runner", lambda *_: self.runner)
        self.poller = Poller(setup_of(root, lambda: self.config, self.notes, self.clock, path="loop.yaml"))

    def configured(self, intervals: Mapping[str, int], **routing: Any) -> Config:
        sections = [SourceSection(provider="fake", name=name, interval_seconds=s) for name, s in intervals.items()]
        return Config(polling=Polling(sources=tuple(sections)), routing=Routing(**routing))

    def _watch(self, _: Config, section: SourceSection, *__: object, **___: object) -> Watched:
        name = section.name or ""
        self.built.append(name)
        return Watched(self.sources[name], make.rules())

    @asynccontextmanager
    async def living(self) -> AsyncIterator[None]:
        life = asyncio.create_task(self.poller.run())
        await asyncio.sleep(0.5)
        yield
        self.poller._wishes.stop("the end of the test")
        assert await asyncio.wait_for(life, 5) == 0


class Slowly:
    """Has a poller's ledgers read as slowly as the test wants it: READY comes first, the last one when it is let."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_ready = asyncio.Event()
        self.may_end = False
        reads = Ledgers.loading
        monkeypatch.setattr(Notifier, "ready", lambda *_: self.is_ready.set())

        def read(ledgers: Ledgers, names: Iterable[str]) -> Iterator[None]:
            while not self.may_end:
                time.sleep(0.005)  # so that it is somebody else's turn
                yield
            yield from reads(ledgers, names)

        monkeypatch.setattr(Ledgers, "loading", read)


@in_virtual_loop
async def test_stop_while_ledgers_are_read_then_leaves_at_once_and_tells_no_counts_that_it_does_not_know(
    root: StateRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 10,000 ledgers READY came after 0.9 s, and a stop had to wait for it."""
    source = FakeSource("source")
    world, slowly = World(root, monkeypatch, {source: 60}), Slowly(monkeypatch)
    life = asyncio.create_task(world.poller.run())
    await slowly.is_ready.wait()

    world.poller._wishes.stop("the test")

    assert await life == 0
    assert source.cursors == []
    assert not root.heartbeat.exists()
    assert list(root.path.glob("*.sock")) == []


@in_virtual_loop
async def test_request_while_ledgers_are_read_then_is_answered_after_that(
    root: StateRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = FakeSource("source")
    world, slowly = World(root, monkeypatch, {source: 60}), Slowly(monkeypatch)
    life = asyncio.create_task(world.poller.run())
    await slowly.is_ready.wait()
    reader, writer = await asyncio.open_unix_connection(root.path / "control.sock")
    writer.write(b'{"verb": "wake"}\n')
    answer = asyncio.create_task(reader.readline())
    for _ in range(20):
        await asyncio.sleep(0)
    assert not answer.done()

    slowly.may_end = True

    assert json.loads(await answer) == {"woken": ["source"]}
    writer.close()
    world.poller._wishes.stop("the end of the test")
    assert await life == 0
    assert root.heartbeat.exists()


@in_virtual_loop
async def test_comment_when_another_source_never_answers_then_comes_within_its_own_interval(
    root: StateRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One repository that did not answer delayed a folder's comment by 30 s, six of them by three minutes."""
    quick = FakeSource("quick")
    ref = quick.add(1)
    world = World(root, monkeypatch, {Silent("silent"): 5, quick: 5})

    async with world.living():
        await asyncio.sleep(20)
        assert world.runner.ids() == [f"{ref}/spawn:1"]
        quick.write(ref, *comments(1))
        await asyncio.sleep(6)

        assert world.runner.ids() == [f"{ref}/spawn:1", f"{ref}/comment:1"]


@in_virtual_loop
async def test_sources_with_other_intervals_are_polled_each_at_its_own(
    root: StateRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    often, seldom = FakeSource("often"), FakeSource("seldom")
    world = World(root, monkeypatch, {often: 10, seldom: 100})

    async with world.living():
        await asyncio.sleep(600)

        assert 55 <= len(often.cursors) <= 65
        assert 6 <= len(seldom.cursors) <= 8


@in_virtual_loop
async def test_quiet_cycles_are_told_together_once_an_hour(root: StateRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(root, monkeypatch, {FakeSource("quiet"): 60})

    async with world.living():
        await asyncio.sleep(2 * 3600 + 120)

        told = world.notes.of("poll.cycle")
        assert [fields["source"] for fields in told] == ["quiet", "quiet"]
        assert all(50 <= fields["cycles"] <= 70 for fields in told)


@in_virtual_loop
async def test_failing_source_backs_off_by_itself(root: StateRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    broken, fine = FakeSource("broken"), FakeSource("fine")
    broken.poll_errors = [SourceError("down")] * 100
    world = World(root, monkeypatch, {broken: 10, fine: 10})

    async with world.living():
        await asyncio.sleep(600)

        assert 55 <= len(fine.cursors) <= 65
        assert len(broken.cursors) <= 8


@in_virtual_loop
async def test_machine_that_slept_through_an_interval_polls_at_once(
    root: StateRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = FakeSource("source")
    world = World(root, monkeypatch, {source: 3600})

    async with world.living():
        assert len(source.cursors) == 1
        world.clock.sleep(8 * 3600)
        await idle()

        assert len(source.cursors) == 2


@in_virtual_loop
async def test_refused_event_is_offered_again_at_its_moment_whatever_the_pace_of_its_source(
    root: StateRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = FakeSource("source")
    ref = source.add(1)
    world = World(root, monkeypatch, {source: 3600})
    world.runner.script = {f"{ref}/spawn:1": [REFUSED]}

    async with world.living():
        assert world.runner.ids() == [f"{ref}/spawn:1"]
        await asyncio.sleep(62)  # polling.intervalSeconds, which is 60

        assert world.runner.ids() == [f"{ref}/spawn:1"] * 2


@in_virtual_loop
async def test_reload_when_one_source_changed_then_the_others_are_left_as_they_are(
    root: StateRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two, three = FakeSource("one"), FakeSource("two"), FakeSource("three")
    world = World(root, monkeypatch, {one: 60, two: 60, three: 60})

    async with world.living():
        world.config = world.configured({"one": 60, "two": 7})
        world.poller._wishes.reload()
        await asyncio.sleep(60)

        assert world.built == ["one", "two", "three"], "an interval is no reason to build a source anew"
        assert len(two.cursors) >= 8
        assert len(three.cursors) == 1, "a source that is gone is not polled any more"
        world.config = world.configured({"one": 60, "two": 7}, authorized_users=("bob",))
        world.poller._wishes.reload()
        await asyncio.sleep(1)

        assert world.built == ["one", "two", "three", "one", "two"]


@in_virtual_loop
async def test_stop_in_the_middle_of_a_poll_is_an_interrupted_cycle_and_takes_no_time(
    root: StateRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(root, monkeypatch, {Silent("silent"): 5})
    began = asyncio.get_running_loop().time()

    async with world.living():
        pass

    assert asyncio.get_running_loop().time() - began < 1
    (told,) = world.notes.of("poll.cycle")
    assert told["interrupted"] is True
