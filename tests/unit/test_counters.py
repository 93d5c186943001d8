"""What a run counts for metrics: each thing once, nothing that is not known, and from 0 after a start."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from support import factories as make
from support.clock import NOON, LoopClocks
from support.fakes import LATER, REFUSED, UNKNOWN, UNSTARTABLE, FakeRunner, FakeSource, comments
from support.life import Life, idle, in_virtual_loop, live_item, next_life
from support.setups import Notes, setup_of
from the_loop import counters as module
from the_loop import wiring
from the_loop.config import Config, Polling, SourceSection
from the_loop.core.ledger import Standing
from the_loop.core.model import Event, Kind, Outcome, Verdict, timestamp
from the_loop.counters import LIMITS_S, Counters
from the_loop.poller import Poller
from the_loop.sources.base import SourceError, Usage
from the_loop.watched import Watched

if TYPE_CHECKING:
    from the_loop.state import StateRoot

REF = "fake:1"
ONE = f"{REF}/comment:1"


def counted(life: Life) -> dict[str, Any]:
    return life.outbox._counters.to_json(one.source for one in life.watched)


def outcomes(counters: dict[str, Any]) -> dict[tuple[str, str], int]:
    return {(one["kind"], one["outcome"]): one["count"] for one in counters["deliveries"]}


def waits(counters: dict[str, Any]) -> dict[tuple[str, str], tuple[int, float]]:
    """Number and sum, by what they count from and by kind."""
    return {(one["since"], one["kind"]): (sum(one["counts"]), one["seconds"]) for one in counters["waits"]}


# --- deliveries ---


@pytest.mark.parametrize("outcome", [REFUSED, LATER, UNKNOWN, UNSTARTABLE])
@in_virtual_loop
async def test_outcome_when_a_delivery_ends_then_is_counted_once_by_kind(
    root: StateRoot, runner: FakeRunner, source: FakeSource, outcome: Outcome
) -> None:
    life = await live_item(root, runner, source)
    runner.script = {ONE: [outcome, None]}
    source.write(REF, *comments(1))
    await life.cycle()

    assert outcomes(counted(life)) == {("spawn", "delivered"): 1, ("comment", str(outcome.verdict)): 1}


def test_outcome_when_it_never_began_then_is_not_a_delivery() -> None:
    counters = Counters()
    counters.note_outcome(REF, Kind.COMMENT, Verdict.NEVER_BEGUN)

    assert counters.to_json([])["deliveries"] == []


@in_virtual_loop
async def test_waits_when_an_event_is_rejected_and_built_anew_then_only_its_first_hand_over_counts(
    root: StateRoot, source: FakeSource
) -> None:
    """A spawn is built from its thread before each attempt: it was counted with each of them."""
    source.add(1, created_at=timestamp(NOON - 30))
    life = Life(root, FakeRunner(default=REFUSED), source)
    await life.begin()
    await life.cycle()
    life.clock.run(3600)
    await life.cycle()

    assert outcomes(counted(life)) == {("spawn", "refused"): 2}
    assert waits(counted(life)) == {("created", "spawn"): (1, 30.0), ("accepted", "spawn"): (1, 0.0)}


@in_virtual_loop
async def test_waits_when_another_event_runs_then_has_the_time_behind_it(
    root: StateRoot, runner: FakeRunner, source: FakeSource
) -> None:
    life = await live_item(root, runner, source)
    runner.script = {ONE: [None]}
    source.write(REF, make.entry(1, created_at=timestamp(NOON)), make.entry(2, created_at=timestamp(NOON)))
    life.clock.run(10)
    await life.cycle()
    life.clock.run(100)
    runner.finish(ONE)
    await idle()

    found = {place: value for place, value in waits(counted(life)).items() if place[1] == "comment"}
    assert found == {("created", "comment"): (2, 120.0), ("accepted", "comment"): (2, 100.0)}


@in_virtual_loop
async def test_waits_when_an_earlier_life_accepted_the_event_then_since_when_is_left_out(
    root: StateRoot, runner: FakeRunner, source: FakeSource
) -> None:
    life = await live_item(root, runner, source)
    life.is_in_charge = False
    source.write(REF, make.entry(1, created_at=timestamp(NOON)))
    await life.cycle()
    assert runner.ids() == [f"{REF}/spawn:1"]
    life.clock.run(50)

    after = await next_life(life, root, runner, source, clock=life.clock)
    await after.cycle()

    assert runner.ids() == [f"{REF}/spawn:1", ONE]
    assert waits(counted(after)) == {("created", "comment"): (1, 50.0)}


def test_waits_when_an_event_is_from_the_future_then_are_nothing() -> None:
    counters = Counters(lambda: NOON)
    entry = make.pending("comment:1", created=NOON + 900)
    counters.note_handed_over(REF, "comment:1", entry)

    assert waits(counters.to_json([])) == {("created", "comment"): (1, 0.0)}


@pytest.mark.parametrize(
    ("seconds", "bucket"), [(0, 0), (1, 0), (1.5, 1), (86_400, len(LIMITS_S) - 1), (86_401, len(LIMITS_S))]
)
def test_wait_when_noted_then_is_in_the_bucket_whose_limit_it_does_not_exceed(seconds: float, bucket: int) -> None:
    found = module.Waits()
    found.note(seconds)

    assert [number for number, count in enumerate(found.counts) if count] == [bucket]


def test_waits_when_events_are_never_handed_over_then_do_not_grow_without_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_REMEMBERED", 3)
    counters = Counters(lambda: NOON)
    for number in range(10):
        event = Event(REF, f"comment:{number}", "", "", None, "", "")
        counters.note_accepted(event, make.pending(event.key))

    assert list(counters._accepted) == [f"{REF}/comment:{number}" for number in (7, 8, 9)]


def test_waits_when_an_offer_is_not_the_first_and_nothing_is_remembered_then_are_left_out() -> None:
    counters = Counters(lambda: NOON)
    counters.note_handed_over(REF, "comment:1", make.pending("comment:1", Standing.UNCERTAIN, offer=2, created=NOON))

    assert counters.to_json([])["waits"] == []


# --- sources ---


class Meter(FakeSource):
    def __init__(self, *requests: int) -> None:
        super().__init__("meter")
        self._requests = list(requests)

    def usage(self) -> Usage:
        if not self._requests:
            raise RuntimeError("broken")
        return Usage(self._requests.pop(0), float("inf"), 5000.0)


def test_requests_when_a_source_is_made_anew_then_go_on() -> None:
    counters = Counters()
    seen = [counters.to_json([Meter(count)])["sources"]["meter"]["requests"] for count in (7, 9, 2, 2, 3)]

    assert seen == [7, 9, 11, 11, 12]


def test_points_when_they_are_not_a_number_of_json_then_are_null() -> None:
    found = Counters().to_json([Meter(1)])["sources"]["meter"]

    assert (found["pointsLeft"], found["pointsLimit"]) == (None, 5000.0)


def test_requests_when_a_source_cannot_tell_then_are_left_out() -> None:
    assert "requests" not in Counters().to_json([Meter(), FakeSource("fake")])["sources"]["meter"]


async def of_a_run(
    root: StateRoot, monkeypatch: pytest.MonkeyPatch, source: FakeSource, seconds: float
) -> dict[str, Any]:
    """The counters that a whole poller leaves in the heartbeat: a cycle each 10 s, for so long."""
    section = SourceSection(provider="fake", name=source.name, interval_seconds=10)
    config = Config(polling=Polling(sources=(section,)))
    monkeypatch.setattr(wiring, "watch", lambda *_, **__: Watched(source, make.rules()))
    monkeypatch.setattr(wiring, "runner", lambda *_: FakeRunner())
    poller = Poller(setup_of(root, lambda: config, Notes(), LoopClocks()))
    life = asyncio.create_task(poller.run())
    await asyncio.sleep(seconds)
    poller._wishes.stop("the end of the test")
    assert await life == 0
    found: dict[str, Any] = json.loads(root.heartbeat.read_text())["counters"]
    return found


@in_virtual_loop
async def test_cycles_when_a_source_fails_and_recovers_then_are_in_the_heartbeat_by_result(
    root: StateRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = FakeSource("source")
    source.poll_errors = [SourceError("down")]
    found = (await of_a_run(root, monkeypatch, source, 25))["sources"]["source"]

    assert found["cycles"] == {"failed": 1, "good": 2}
    assert found["errors"] == 1


@in_virtual_loop
async def test_counts_when_the_poller_starts_again_then_start_from_nothing(
    root: StateRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = FakeSource("source")
    source.add(1)
    assert (await of_a_run(root, monkeypatch, source, 5))["deliveries"] != []

    found = await of_a_run(root, monkeypatch, source, 5)

    assert found["deliveries"] == []
    assert found["sources"]["source"]["cycles"] == {"good": 1}


@in_virtual_loop
async def test_counts_when_an_item_is_delivered_then_name_its_source(
    root: StateRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = FakeSource("source")
    source.add(1)

    (found,) = (await of_a_run(root, monkeypatch, source, 5))["deliveries"]

    assert found == {"source": "source", "kind": "spawn", "outcome": "delivered", "count": 1}
