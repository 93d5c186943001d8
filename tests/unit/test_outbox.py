"""The commit order, and what a start finds: every write of a life is once its last one (SPEC R3, R4, DESIGN 1)."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from support import factories as make
from support.fakes import (
    DELIVERED,
    LATER,
    REFUSED,
    UNKNOWN,
    Clock,
    Crash,
    FakeRunner,
    FakeSource,
    Fuse,
    Life,
    comments,
    files_of,
    idle,
    in_loop,
    new_root,
)
from the_loop import deliveries
from the_loop.decide import Decision
from the_loop.guards import Rules
from the_loop.ledger import Phase, Standing, rearm
from the_loop.model import Event, Outcome, Presence, Verdict
from the_loop.runners.base import Offer, Trace
from the_loop.state import StateRoot

REF = "fake:1"
SPAWN, ONE, TWO, THREE = (f"{REF}/{key}" for key in ("spawn:1", "comment:1", "comment:2", "comment:3"))


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No power cut happens here: what is flushed when is seen elsewhere."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture
def root(tmp_path: Path) -> StateRoot:
    return new_root(tmp_path)


def payload_of(root: StateRoot, delivery_id: str) -> dict[str, Any]:
    return json.loads(deliveries.beside(root.delivery(delivery_id), "payload.json").read_bytes())


async def live_item(root: StateRoot, runner: FakeRunner, source: FakeSource, **options: Any) -> Life:
    """A life in which item 1 has its session already."""
    source.add(1)
    life = Life(root, runner, source, **options)
    await life.begin()
    await life.cycle()
    assert runner.ids() == [SPAWN]
    return life


async def next_life(life: Life, root: StateRoot, runner: FakeRunner, source: FakeSource, **options: Any) -> Life:
    """SIGKILL, and the next start."""
    await life.die()
    after = Life(root, runner, source, **options)
    await after.begin()
    return after


# --- order of writing ----------------------------------------------------------------------------------------------


@in_loop
async def test_payloads_are_on_disk_before_the_ledger_and_the_ledger_before_the_hand_over(root: StateRoot) -> None:
    source, fuse = FakeSource(), Fuse()
    source.add(1, *comments(1))
    life = Life(root, FakeRunner(), source, fuse=fuse)

    with fuse.in_files():
        await life.begin()
        await life.cycle()
        source.write(REF, *comments(2, 3))
        await life.cycle()

    ledger = f"write {root.ledger(REF).name}"
    payload = {
        key: f"write {root.delivery(f'{REF}/{key}').name}.payload.json" for key in ("spawn:1", "comment:2", "comment:3")
    }
    steps = [step for step in fuse.log if not step.startswith("remove")]
    assert steps[:3] == [payload["spawn:1"], ledger, "write fake.json"]
    assert steps[3:5] == [f"hand over {SPAWN}", ledger]
    rest = steps[5:]
    assert rest[:4] == [payload["comment:2"], payload["comment:3"], ledger, "write fake.json"]
    assert rest[4:] == [f"hand over {TWO}", ledger, f"hand over {THREE}", ledger]


@in_loop
async def test_files_of_a_delivery_are_removed_after_its_outcome_is_in_the_ledger(root: StateRoot) -> None:
    source, fuse, runner = FakeSource(), Fuse(), FakeRunner()
    source.add(1)
    life = Life(root, runner, source, fuse=fuse)

    with fuse.in_files():
        await life.begin()
        await life.cycle()

    removals = [number for number, step in enumerate(fuse.log) if step.startswith("remove")]
    last_ledger = max(number for number, step in enumerate(fuse.log) if step == f"write {root.ledger(REF).name}")
    assert removals
    assert min(removals) > last_ledger
    assert files_of(root) == []


@in_loop
async def test_ledger_that_cannot_be_written_hands_nothing_over_and_tells_nothing(
    root: StateRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, runner = FakeSource(), FakeRunner()
    life = await live_item(root, runner, source)
    source.write(REF, make.entry(1), make.entry(2, author=make.STRANGER))
    monkeypatch.setattr(life.archive, "save", no_space)

    await life.cycle()

    assert runner.ids() == [SPAWN]
    assert life.notes("dispatch.dropped") == []
    monkeypatch.undo()
    await life.cycle()
    assert runner.ids() == [SPAWN, ONE]


def no_space(*_: object) -> None:
    raise OSError(28, "No space left on device")


# --- a crash at every step -----------------------------------------------------------------------------------------


async def story(root: StateRoot, runner: FakeRunner, source: FakeSource, fuse: Fuse, clock: Clock) -> None:
    """A life with first sight, comments, a stranger, refusals and an end; cut off where the fuse says so."""
    life = Life(root, runner, source, fuse=fuse, clock=clock)
    try:
        with fuse.in_files():
            try:
                await life.begin()
                for _ in range(8):
                    await life.cycle()
                    clock.now += 1000.0
                    if fuse.is_blown:
                        break
            finally:
                await life.die()
    except Crash:
        pass


def world() -> tuple[FakeRunner, FakeSource]:
    runner, source = FakeRunner(), FakeSource()
    runner.script = {ONE: [REFUSED, LATER], "fake:2/spawn:1": [REFUSED]}
    source.add(1, *comments(5))
    source.add(2)
    source.add(3, author=make.STRANGER)
    return runner, source


def grow(source: FakeSource) -> None:
    """What happens while the poller is about."""
    source.write(REF, make.entry(1), make.entry(2, author=make.STRANGER), make.entry(3))
    source.write("fake:3", make.entry(4, "the-loop start"))


EXPECTED = {
    "fake:1": ["spawn:1", "comment:1", "comment:1", "comment:1", "comment:3", "close:1"],
    "fake:2": ["spawn:1", "spawn:1"],
    "fake:3": ["spawn:1"],
}


def arrived(runner: FakeRunner) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for delivery_id in runner.ids():
        ref, _, key = delivery_id.partition("/")
        found.setdefault(ref, []).append(key)
    return found


async def chapters(root: StateRoot, fuses: Sequence[Fuse]) -> FakeRunner:
    """The story in three lives, each with its own fuse; one that blew is followed by a life that goes on."""
    (runner, source), clock = world(), Clock()
    for number, fuse in enumerate(fuses):
        if number == 1:
            grow(source)
        if number == 2:
            source.items[REF].presence = Presence.GONE
        await story(root, runner, source, fuse, clock)
        if fuse.at:
            await story(root, runner, source, Fuse(), clock)
    return runner


@in_loop
async def test_story_without_a_crash(root: StateRoot) -> None:
    runner = await chapters(root, [Fuse(), Fuse(), Fuse()])

    assert arrived(runner) == EXPECTED
    assert files_of(root) == []


def count_steps(tmp_path: Path, chapter: int) -> int:
    """How many steps the lives of this chapter take."""

    async def run() -> int:
        fuses = [Fuse(), Fuse(), Fuse()]
        await chapters(new_root(tmp_path), fuses)
        Life.lives.clear()
        return fuses[chapter].steps

    return asyncio.run(run())


@pytest.mark.parametrize("chapter", [0, 1, 2], ids=["first sight", "comments", "end"])
def test_crash_before_any_step_loses_repeats_and_charges_nothing(tmp_path: Path, chapter: int) -> None:
    steps = count_steps(tmp_path, chapter)
    assert steps > 5

    for at in range(1, steps + 1):
        root = new_root(tmp_path / f"at-{at}")
        fuses = [Fuse(), Fuse(), Fuse()]
        fuses[chapter] = Fuse(at)

        runner = asyncio.run(chapters(root, fuses))
        Life.lives.clear()

        assert arrived(runner) == EXPECTED, f"cut off at step {at}, after {fuses[chapter].log[-3:]}"
        attempts = [payload["attempt"] for payload in runner.got if payload["deliveryId"] == ONE]
        assert attempts == [1, 2, 2]
        assert not any(payload["redelivery"] for payload in runner.got)
        assert files_of(root) == []


# --- what a start finds --------------------------------------------------------------------------------------------


async def left_behind(root: StateRoot, runner: FakeRunner, source: FakeSource, **options: Any) -> Life:
    """A life that ended hard while comment 1 was under way and comment 2 waited behind it."""
    life = await live_item(root, runner, source, **options)
    runner.script = {ONE: [None]}
    source.write(REF, *comments(1, 2))
    await life.cycle()
    assert runner.going() == [ONE]
    await life.die()
    return life


@in_loop
async def test_start_when_a_delivery_still_runs_adopts_it_and_waits(root: StateRoot) -> None:
    runner, source = FakeRunner(), FakeSource()
    await left_behind(root, runner, source)

    life = Life(root, runner, source)
    await life.begin()
    await life.cycle()
    assert (life.dispatcher.running(REF), runner.ids()) == ("comment:1", [SPAWN, ONE])
    assert len(life.notes("dispatch.adopted")) == 1

    runner.finish(ONE)
    await idle()
    assert runner.ids() == [SPAWN, ONE, TWO]
    assert life.ledger(REF).poll.pending == {}


@pytest.mark.parametrize("outcome", [DELIVERED, REFUSED, LATER], ids=lambda outcome: str(outcome.verdict))
@in_loop
async def test_start_when_a_delivery_ended_meanwhile_records_its_outcome(root: StateRoot, outcome: Outcome) -> None:
    runner, source = FakeRunner(), FakeSource()
    await left_behind(root, runner, source)
    runner.finish(ONE, outcome)

    life = Life(root, runner, source)
    await life.begin()

    poll = life.ledger(REF).poll
    assert ("comment:1" in poll.seen_comments) is (outcome is DELIVERED)
    assert poll.comment_attempts == ({"comment:1": 1} if outcome is REFUSED else {})
    life.clock.now += 1000
    await life.cycle()
    assert runner.ids().count(ONE) == (1 if outcome is DELIVERED else 2)
    assert runner.ids()[-1] == TWO
    assert files_of(root) == []


@in_loop
async def test_start_when_a_delivery_was_killed_too_offers_it_again_marked(root: StateRoot) -> None:
    runner, source = FakeRunner(), FakeSource()
    await left_behind(root, runner, source)
    runner.kill(ONE)

    life = Life(root, runner, source)
    await life.begin()
    await life.cycle()

    offers = [(payload["redelivery"], payload["attempt"]) for payload in runner.got if payload["deliveryId"] == ONE]
    assert offers == [(False, 1), (True, 1)]
    assert runner.ids() == [SPAWN, ONE, ONE, TWO]
    assert [fields["key"] for fields in life.notes("dispatch.uncertain")] == ["comment:1"]


@in_loop
async def test_start_when_a_delivery_was_killed_too_holds_it_where_that_is_configured(root: StateRoot) -> None:
    runner, source = FakeRunner(), FakeSource()
    await left_behind(root, runner, source)
    runner.kill(ONE)

    life = Life(root, runner, source, holds_uncertain=True)
    await life.begin()
    await life.cycle()
    life = await next_life(life, root, runner, source, holds_uncertain=True)
    await life.cycle()

    assert runner.ids() == [SPAWN, ONE]
    assert life.ledger(REF).poll.pending["comment:1"].state is Standing.HELD
    assert life.ledger(REF).poll.pending["comment:2"].state is Standing.RELEASED


@in_loop
async def test_start_when_nothing_had_begun_offers_it_with_the_budget_it_had(root: StateRoot) -> None:
    runner, source = FakeRunner(), FakeSource()
    life = await live_item(root, runner, source)
    life.is_in_charge = False
    source.write(REF, *comments(1, 2))
    await life.cycle()

    life = await next_life(life, root, runner, source)
    assert {entry.state for entry in life.ledger(REF).poll.pending.values()} == {Standing.RELEASED}
    await life.cycle()

    assert runner.ids() == [SPAWN, ONE, TWO]
    assert {payload["attempt"] for payload in runner.got} == {1}


@in_loop
async def test_killed_again_and_again_is_held_and_never_given_up(root: StateRoot) -> None:
    runner, source = FakeRunner(), FakeSource()
    life = await live_item(root, runner, source)
    runner.script = {ONE: [None] * 10}
    source.write(REF, *comments(1))
    await life.cycle()

    for _ in range(10):
        if ONE in runner.going():
            runner.kill(ONE)
        life = await next_life(life, root, runner, source)
        await life.cycle()

    assert runner.ids() == [SPAWN, ONE, ONE, ONE]
    assert life.ledger(REF).poll.pending["comment:1"].state is Standing.HELD
    assert life.ledger(REF).poll.comment_attempts == {}


@in_loop
async def test_ten_restarts_during_one_delivery_hand_it_over_once_and_charge_nothing(root: StateRoot) -> None:
    runner, source = FakeRunner(), FakeSource()
    life = await live_item(root, runner, source)
    runner.script = {ONE: [None]}
    source.write(REF, *comments(1))
    await life.cycle()

    for number in range(10):
        if number % 2:
            report = await life.stop()
            assert report.left_running == (ONE,)
        life = await next_life(life, root, runner, source)
        await life.cycle()
    runner.finish(ONE)
    await idle()

    assert runner.ids() == [SPAWN, ONE]
    assert life.ledger(REF).poll.seen_comments == {"spawn:1", "comment:1"}


@in_loop
async def test_spawn_that_was_not_begun_is_rebuilt_with_what_came_meanwhile(root: StateRoot) -> None:
    runner, source = FakeRunner(), FakeSource()
    source.add(1, *comments(1))
    life = Life(root, runner, source)
    life.is_in_charge = False
    await life.begin()
    await life.cycle()
    assert (await life.stop()).abandoned == (SPAWN,)
    source.write(REF, *comments(2))

    life = Life(root, runner, source)
    await life.begin()
    await life.cycle()

    assert [[entry["id"] for entry in payload["thread"]] for payload in runner.got] == [["1", "2"]]
    assert life.ledger(REF).poll.seen_comments == {"spawn:1", "comment:1", "comment:2"}


@in_loop
async def test_uncertain_spawn_is_offered_with_the_same_bytes_and_what_came_since_follows(root: StateRoot) -> None:
    runner, source = FakeRunner(), FakeSource()
    runner.script = {SPAWN: [UNKNOWN]}
    source.add(1, *comments(1))
    life = Life(root, runner, source)
    life.dispatcher.limit = 0
    await life.begin()
    await life.cycle()
    life.dispatcher.limit = 4
    life.dispatcher.resume()
    await idle()
    source.write(REF, *comments(2))
    await life.cycle()
    await life.cycle()

    assert runner.ids() == [SPAWN, SPAWN, TWO]
    first, second = ({**payload, "offer": 0, "redelivery": None} for payload in runner.got[:2])
    assert first == second
    assert [payload["redelivery"] for payload in runner.got] == [False, True, False]


# --- files nobody stands behind ------------------------------------------------------------------------------------


@in_loop
async def test_orphans_are_removed_at_the_start(root: StateRoot) -> None:
    runner, source = FakeRunner(), FakeSource()
    life = await live_item(root, runner, source)
    life.outbox.commit(Decision(None, (an_event("comment:77"),)))
    stem = root.delivery(f"{REF}/comment:78")
    for part in ("started.json", "outcome.json", "lock"):
        deliveries.beside(stem, part).write_text("{}")
    deliveries.beside(stem, "outcome.json.tmp").write_text("")
    assert len(files_of(root)) == 5

    await next_life(life, root, runner, source)

    assert files_of(root) == []


def an_event(key: str, ref: str = REF) -> Event:
    return Event(ref=ref, key=key, url="", title="", author=make.PERSON, body="", created_at="")


@in_loop
async def test_files_of_a_held_item_are_kept_and_used_once_its_ledger_is_back(root: StateRoot) -> None:
    runner, source = FakeRunner(), FakeSource()
    await left_behind(root, runner, source)
    runner.finish(ONE)
    good = root.ledger(REF).read_bytes()
    root.ledger(REF).write_bytes(b"\0" * len(good))
    before = files_of(root)

    for _ in range(2):
        life = Life(root, runner, source)
        await life.begin()
        await life.cycle()
        assert runner.ids() == [SPAWN, ONE]
        assert files_of(root) == before
        await life.die()

    root.ledger(REF).write_bytes(good)
    life = Life(root, runner, source)
    await life.begin()
    await life.cycle()
    assert runner.ids() == [SPAWN, ONE, TWO]
    assert files_of(root) == []


@in_loop
async def test_files_of_a_delivery_that_still_runs_are_left_alone_though_nothing_is_pending(root: StateRoot) -> None:
    runner, source = FakeRunner(), FakeSource()
    await left_behind(root, runner, source)
    root.ledger(REF).unlink()

    life = Life(root, runner, FakeSource("other"))
    await life.begin()

    assert life.outbox.runner.look(offer_of(root, ONE)).trace is Trace.RUNNING
    assert any(name.endswith("comment,1.payload.json") for name in files_of(root))


def offer_of(root: StateRoot, delivery_id: str, number: int = 1) -> Offer:
    return Offer(delivery_id, root.delivery(delivery_id), number, 1)


@in_loop
async def test_nothing_is_left_when_an_item_ended_with_something_given_up(root: StateRoot) -> None:
    runner, source = FakeRunner(), FakeSource()
    life = await live_item(root, runner, source, max_retries=1)
    runner.script = {ONE: [REFUSED]}
    source.write(REF, *comments(1))
    await life.cycle()
    source.items[REF].presence = Presence.GONE
    await life.cycle()

    assert runner.ids() == [SPAWN, ONE, f"{REF}/close:1"]
    assert life.ledger(REF).poll.phase is Phase.ENDED
    assert files_of(root) == []


# --- moved to another machine --------------------------------------------------------------------------------------


def move_portable(root: StateRoot, path: Path) -> StateRoot:
    """A new root that `portable/` alone was brought to."""
    other = new_root(path)
    shutil.rmtree(other.portable)
    shutil.copytree(root.portable, other.portable)
    return other


@in_loop
async def test_moved_ledgers_read_what_was_pending_again(root: StateRoot, tmp_path: Path) -> None:
    runner, source = FakeRunner(), FakeSource()
    life = await live_item(root, runner, source)
    life.is_in_charge = False
    source.write(REF, *comments(1, 2))
    source.add(2, *comments(3))
    await life.cycle()
    await life.stop()

    life = Life(move_portable(root, tmp_path / "other"), runner, source)
    await life.begin()
    await life.cycle()

    assert arrived(runner) == {REF: ["spawn:1", "comment:1", "comment:2"], "fake:2": ["spawn:1"]}
    assert not any(payload["redelivery"] for payload in runner.got)


@in_loop
async def test_moved_ledger_marks_what_was_left_running_and_that_alone(root: StateRoot, tmp_path: Path) -> None:
    runner, source = FakeRunner(), FakeSource()
    life = await live_item(root, runner, source)
    runner.script = {ONE: [None]}
    source.write(REF, *comments(1, 2))
    await life.cycle()
    assert (await life.stop()).left_running == (ONE,)
    runner.kill(ONE)

    life = Life(move_portable(root, tmp_path / "other"), runner, source)
    await life.begin()
    await life.cycle()

    assert [(payload["deliveryId"], payload["redelivery"]) for payload in runner.got[1:]] == [
        (ONE, False),
        (ONE, True),
        (TWO, False),
    ]


@in_loop
async def test_moved_ledger_drops_what_was_deleted_meanwhile(root: StateRoot, tmp_path: Path) -> None:
    runner, source = FakeRunner(), FakeSource()
    life = await live_item(root, runner, source)
    life.is_in_charge = False
    source.write(REF, *comments(1, 2))
    await life.cycle()
    await life.stop()
    del source.items[REF].entries[0]

    life = Life(move_portable(root, tmp_path / "other"), runner, source)
    await life.begin()
    await life.cycle()

    assert runner.ids() == [SPAWN, TWO]
    assert [fields["reason"] for fields in life.notes("dispatch.dropped")] == ["deleted"]


@pytest.mark.parametrize("state", [Standing.HELD, Standing.GAVE_UP])
@in_loop
async def test_moved_ledger_hands_nothing_over_that_an_operator_decides_about(
    root: StateRoot, tmp_path: Path, state: Standing
) -> None:
    runner, source = FakeRunner(), FakeSource()
    options = {"max_retries": 1, "holds_uncertain": True}
    life = await live_item(root, runner, source, **options)
    runner.script = {ONE: [UNKNOWN if state is Standing.HELD else REFUSED]}
    source.write(REF, *comments(1))
    await life.cycle()
    assert life.ledger(REF).poll.pending["comment:1"].state is state
    await life.stop()

    other = move_portable(root, tmp_path / "other")
    for _ in range(2):
        life = Life(other, runner, source, **options)
        await life.begin()
        await life.cycle()
        assert life.ledger(REF).poll.pending["comment:1"].state is state
        await life.stop()
    assert runner.ids() == [SPAWN, ONE]

    ledger = life.ledger(REF)
    if state is Standing.GAVE_UP:
        life.archive.save(rearm(ledger, "comment:1"))
        life = Life(other, runner, source, **options)
        await life.begin()
        await life.cycle()
        await life.cycle()
        assert runner.ids() == [SPAWN, ONE, ONE]


@in_loop
async def test_moved_ledger_of_an_item_that_ends_comes_to_its_end(root: StateRoot, tmp_path: Path) -> None:
    runner, source = FakeRunner(), FakeSource()
    life = await live_item(root, runner, source)
    life.is_in_charge = False
    source.write(REF, *comments(1))
    source.items[REF].presence = Presence.GONE
    await life.cycle()
    assert list(life.ledger(REF).poll.pending) == ["comment:1", "close:1"]
    await life.stop()

    other = move_portable(root, tmp_path / "other")
    life = Life(other, runner, source)
    await life.begin()
    for _ in range(3):
        await life.cycle()
    assert runner.ids()[-1] == f"{REF}/close:1"
    assert life.ledger(REF).poll.phase is Phase.ENDED

    source.items[REF].presence = Presence.LISTED
    await life.cycle()
    spawn = runner.got[-1]
    assert spawn["deliveryId"] == f"{REF}/spawn:2"
    assert [entry["id"] for entry in spawn["thread"]] == ["1"]
    assert ONE in runner.ids() or "comment:1" in life.ledger(REF).poll.seen_comments


@in_loop
async def test_payload_that_was_garbled_is_read_again(root: StateRoot) -> None:
    runner, source = FakeRunner(), FakeSource()
    life = await live_item(root, runner, source)
    life.is_in_charge = False
    source.write(REF, *comments(1, 2))
    await life.cycle()
    deliveries.beside(root.delivery(ONE), "payload.json").write_bytes(b"{")

    life.is_in_charge = True
    life = await next_life(life, root, runner, source)
    await life.cycle()

    assert [(payload["deliveryId"], payload["body"]) for payload in runner.got[1:]] == [
        (ONE, "text 1"),
        (TWO, "text 2"),
    ]


# --- refusals ------------------------------------------------------------------------------------------------------


@in_loop
async def test_payload_says_which_attempt_it_is(root: StateRoot) -> None:
    runner, source = FakeRunner(), FakeSource()
    life = await live_item(root, runner, source)
    runner.script = {ONE: [REFUSED, UNKNOWN, REFUSED]}
    source.write(REF, *comments(1))
    for _ in range(6):
        await life.cycle()
        life.clock.now += 1000

    offers = [(payload["attempt"], payload["redelivery"]) for payload in runner.got[1:]]
    assert offers == [(1, False), (2, False), (2, True), (3, True)]


@in_loop
async def test_refused_comment_holds_back_those_behind_it_and_a_given_up_one_no_longer(root: StateRoot) -> None:
    runner, source = FakeRunner(), FakeSource()
    life = await live_item(root, runner, source, max_retries=2)
    runner.script = {ONE: [REFUSED, REFUSED]}
    source.write(REF, *comments(1, 2))

    await life.cycle()
    await life.cycle()
    assert runner.ids() == [SPAWN, ONE]

    life.clock.now += 1000
    await life.cycle()
    assert runner.ids() == [SPAWN, ONE, ONE, TWO]
    assert [fields["willRetry"] for fields in life.notes("poll.comment_failed")] == [True, False]


@in_loop
async def test_new_version_tries_what_an_older_one_gave_up_once(root: StateRoot) -> None:
    runner, source = FakeRunner(), FakeSource()
    life = await live_item(root, runner, source, max_retries=1)
    runner.script = {ONE: [REFUSED, REFUSED]}
    source.write(REF, *comments(1))
    await life.cycle()

    for version in ("1.0", "2.0", "2.0"):
        life = await next_life(life, root, runner, source, max_retries=1, version=version)
        await life.cycle()
        life.clock.now += 1000
        await life.cycle()

    assert runner.ids() == [SPAWN, ONE, ONE]
    assert life.ledger(REF).poll.gave_up == {"comment:1": ("1.0", "2.0")}


# --- once ----------------------------------------------------------------------------------------------------------


@in_loop
async def test_single_run_offers_nothing_twice_and_the_next_one_does_at_once(root: StateRoot) -> None:
    runner, source = FakeRunner(), FakeSource()
    life = await live_item(root, runner, source, once=True)
    runner.script = {ONE: [REFUSED, REFUSED]}
    source.write(REF, *comments(1, 2))
    for _ in range(3):
        await life.cycle()
    assert runner.ids() == [SPAWN, ONE]

    life = await next_life(life, root, runner, source, once=True)
    for _ in range(3):
        await life.cycle()
    assert runner.ids() == [SPAWN, ONE, ONE]


@in_loop
async def test_single_run_offers_a_refused_spawn_again_in_the_next_run(root: StateRoot) -> None:
    runner, source = FakeRunner(), FakeSource()
    runner.script = {SPAWN: [REFUSED]}
    source.add(1)
    for expected in ([SPAWN], [SPAWN, SPAWN]):
        life = Life(root, runner, source, once=True)
        await life.begin()
        await life.cycle()
        await life.cycle()
        assert runner.ids() == expected
        await life.die()


# --- who may still speak -------------------------------------------------------------------------------------------


def set_people(life: Life, *people: str) -> None:
    """What a reload does."""
    life.watched[0].rules = Rules(frozenset(people), folds_case=True, words=make.rules().words)


@in_loop
async def test_author_who_is_not_authorised_any_more_at_hand_over_is_dropped(root: StateRoot) -> None:
    runner, source = FakeRunner(), FakeSource()
    life = await live_item(root, runner, source, rules=make.rules("alice", "bob"))
    runner.script = {ONE: [None]}
    source.write(REF, make.entry(1), make.entry(2, author="bob"), make.entry(3))
    await life.cycle()
    set_people(life, "alice")
    runner.finish(ONE)
    await idle()

    assert runner.ids() == [SPAWN, ONE, THREE]
    assert [fields["reason"] for fields in life.notes("dispatch.dropped")] == ["unauthorized"]
    assert "comment:2" in life.ledger(REF).poll.seen_comments


@in_loop
async def test_spawn_that_carries_words_of_somebody_taken_off_the_list_is_built_anew(root: StateRoot) -> None:
    runner, source = FakeRunner(), FakeSource()
    source.add(1, make.entry(1), make.entry(2, author="bob"))
    life = Life(root, runner, source, rules=make.rules("alice", "bob"))
    life.dispatcher.limit = 0
    await life.begin()
    await life.cycle()
    set_people(life, "alice")
    life.dispatcher.limit = 4
    for _ in range(3):
        life.dispatcher.resume()
        await life.cycle()

    (spawn,) = runner.got
    assert [entry["author"] for entry in spawn["thread"]] == ["alice"]


@in_loop
async def test_spawn_of_an_author_taken_off_the_list_is_not_handed_over(root: StateRoot) -> None:
    runner, source = FakeRunner(), FakeSource()
    source.add(1, author="bob")
    life = Life(root, runner, source, rules=make.rules("alice", "bob"))
    life.dispatcher.limit = 0
    await life.begin()
    await life.cycle()
    set_people(life, "alice")
    life.dispatcher.limit = 4
    for _ in range(3):
        life.dispatcher.resume()
        await life.cycle()

    assert runner.got == []
    assert life.ledger(REF).poll.phase is Phase.WAITING


@in_loop
async def test_uncertain_spawn_of_an_author_taken_off_the_list_does_not_keep_its_item_from_ending(
    root: StateRoot,
) -> None:
    runner, source = FakeRunner(), FakeSource()
    runner.script = {SPAWN: [None]}
    source.add(1, author="bob")
    life = Life(root, runner, source, rules=make.rules("alice", "bob"))
    await life.begin()
    await life.cycle()
    set_people(life, "alice")
    source.write(REF, make.entry(1, "the-loop stop"))
    await life.cycle()
    runner.finish(SPAWN, UNKNOWN)
    for _ in range(3):
        await idle()
        await life.cycle()

    assert life.ledger(REF).poll.phase is Phase.ENDED


@in_loop
async def test_item_of_a_source_that_is_not_configured_any_more_is_left_alone(root: StateRoot) -> None:
    runner, source = FakeRunner(), FakeSource()
    await left_behind(root, runner, source)
    runner.finish(ONE, Outcome(Verdict.DELIVERED))

    life = Life(root, runner, FakeSource("other"))
    await life.begin()
    await life.cycle()
    life.dispatcher.offer(REF)
    await idle()

    assert runner.ids() == [SPAWN, ONE]
    assert list(life.ledger(REF).poll.pending) == ["comment:2"]
