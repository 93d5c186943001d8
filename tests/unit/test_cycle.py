"""One look at a source: what is recorded when, what is owed, what one broken thing costs (SPEC R3, R4, R6)."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support import factories as make
from support.fakes import REFUSED, Clock, FakeRunner, FakeSource, Fuse, Life, comments, idle, in_loop, new_root
from the_loop.cycle import FIRST_SIGHTS, Watched
from the_loop.guards import Rules
from the_loop.ledger import Phase
from the_loop.model import Note, Presence
from the_loop.positions import Wait, read_position
from the_loop.sources.base import Limited, Listing, SourceError, Thread
from the_loop.state import StateRoot

REF = "fake:1"


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture
def root(tmp_path: Path) -> StateRoot:
    return new_root(tmp_path)


@pytest.fixture
def runner() -> FakeRunner:
    return FakeRunner()


@pytest.fixture
def source() -> FakeSource:
    return FakeSource()


async def begun(root: StateRoot, runner: FakeRunner, source: FakeSource, *numbers: int, **options: Any) -> Life:
    """A life in which these items have their sessions."""
    for number in numbers:
        source.add(number)
    life = Life(root, runner, source, **options)
    await life.begin()
    await life.cycle()
    return life


def owed(root: StateRoot) -> set[str]:
    """What the position on disk says is owed."""
    return set(read_position(root, "fake").owed)


def failing_for(work: Callable[..., Any], ref: str, error: Exception, *, times: int = 1) -> Callable[..., Any]:
    """`save`, but for this item it raises at first."""
    left = [error] * times

    def save(ledger: Any) -> None:
        if ledger.ref == ref and left:
            raise left.pop()
        work(ledger)

    return save


# --- what is recorded when -----------------------------------------------------------------------------------------


@in_loop
async def test_position_comes_after_all_items_of_the_look(
    root: StateRoot, runner: FakeRunner, source: FakeSource
) -> None:
    fuse = Fuse()
    with fuse.in_files():
        life = await begun(root, runner, source, 1, 2, 3, fuse=fuse)
        life.dispatcher.limit = 0
        fuse.log.clear()
        for number in (1, 2, 3):
            source.write(f"fake:{number}", make.entry(1))
        await life.cycle()

    ledgers = [f"write {root.ledger(f'fake:{number}').name}" for number in (1, 2, 3)]
    assert [step for step in fuse.log if step in (*ledgers, "write fake.json")] == [*ledgers, "write fake.json"]


@in_loop
async def test_item_is_on_disk_before_the_next_one_is_touched(root: StateRoot, source: FakeSource) -> None:
    runner = FakeRunner(default=None)
    source.add(1)
    source.add(2)
    source.gate = asyncio.Event()
    life = Life(root, runner, source)
    looking = asyncio.create_task(life.cycle())
    await let_pass(source, 2)

    assert source.threads == [REF, "fake:2"]
    assert life.archive.get(REF) is not None
    assert life.archive.get("fake:2") is None
    looking.cancel()


async def let_pass(source: FakeSource, count: int) -> None:
    """Let so many answers through."""
    for _ in range(count):
        await idle()
        assert source.gate is not None
        source.gate.set()
        source.gate = asyncio.Event()
    await idle()


@in_loop
async def test_stop_inside_a_look_keeps_what_is_done_and_moves_no_position(root: StateRoot, source: FakeSource) -> None:
    runner = FakeRunner(default=None)
    life = await begun(root, runner, source, 1)
    runner.finish(f"{REF}/spawn:1")
    await idle()
    before = root.position("fake").read_bytes()
    source.write(REF, make.entry(1))
    source.add(2)
    source.gate = asyncio.Event()
    looking = asyncio.create_task(life.cycle())
    await let_pass(source, 1)

    looking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await looking

    assert root.position("fake").read_bytes() == before
    assert life.archive.get("fake:2") is None
    assert "comment:1" in life.ledger(REF).poll.pending
    source.gate = None
    await life.cycle()
    assert runner.ids() == [f"{REF}/spawn:1", f"{REF}/comment:1", "fake:2/spawn:1"]


@in_loop
async def test_stop_inside_a_listing_changes_nothing(root: StateRoot, runner: FakeRunner, source: FakeSource) -> None:
    life = await begun(root, runner, source, 1)
    files = {path: path.read_bytes() for path in root.path.rglob("*.json")}
    source.gate = asyncio.Event()
    source.items[REF].presence = Presence.GONE
    looking = asyncio.create_task(life.cycle())
    await idle()

    looking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await looking

    assert {path: path.read_bytes() for path in root.path.rglob("*.json")} == files


@in_loop
async def test_idle_look_reads_no_thread_and_writes_nothing(
    root: StateRoot, runner: FakeRunner, source: FakeSource
) -> None:
    source.add(100, author=make.STRANGER)
    source.add(101, make.entry(1, "the-loop stop"))
    fuse = Fuse()
    life = await begun(root, runner, source, *range(1, 40), fuse=fuse)
    await life.cycle()
    source.threads.clear()

    with fuse.in_files():
        before = fuse.steps
        assert await life.cycle() == 0

    assert (fuse.steps - before, source.threads) == (0, [])


@in_loop
async def test_rows_that_repeat_are_delivered_once(root: StateRoot, runner: FakeRunner, source: FakeSource) -> None:
    life = await begun(root, runner, source, 1)
    source.write(REF, *comments(1, 2))
    await life.cycle()
    for _ in range(5):
        root.position("fake").unlink(missing_ok=True)
        await life.die()
        life = Life(root, runner, source)
        await life.begin()
        await life.cycle()

    assert runner.ids() == [f"{REF}/spawn:1", f"{REF}/comment:1", f"{REF}/comment:2"]


@in_loop
async def test_outcome_that_comes_while_a_thread_is_read_is_not_overwritten(
    root: StateRoot, source: FakeSource
) -> None:
    """The decision is made of the ledger as it is after the answer, not as it was at the question."""
    runner = FakeRunner(default=None)
    source.add(1)
    life = Life(root, runner, source, limit=0)
    await life.cycle()
    source.write(REF, make.entry(1))
    source.gate = asyncio.Event()
    looking = asyncio.create_task(life.cycle())
    await let_pass(source, 1)
    assert source.threads == [REF, REF]

    life.dispatcher.limit = 4
    life.dispatcher.offer(REF)
    await idle()
    runner.finish(f"{REF}/spawn:1")
    await idle()
    runner.default = REFUSED
    runner.script = {f"{REF}/comment:1": [None]}
    await let_pass(source, 1)
    await looking

    assert runner.ids() == [f"{REF}/spawn:1", f"{REF}/comment:1"]
    assert life.ledger(REF).poll.phase is Phase.LIVE


@in_loop
async def test_notes_of_a_listing_are_told(root: StateRoot, runner: FakeRunner, source: FakeSource) -> None:
    async def look(*_: object) -> Listing:
        return Listing([], {}, 0, notes=[Note("poll.edited", {"ref": REF, "key": "comment:1", "reason": "edited"})])

    source.look = look
    life = Life(root, runner, source)
    await life.cycle()

    assert [fields["reason"] for fields in life.notes("poll.edited")] == ["edited"]


# --- first sights --------------------------------------------------------------------------------------------------


@in_loop
async def test_first_sights_are_capped_and_known_items_are_not_kept_waiting(
    root: StateRoot, runner: FakeRunner, source: FakeSource
) -> None:
    life = await begun(root, runner, source, 1)
    for number in range(2, FIRST_SIGHTS + 12):
        source.add(number)
    source.items[REF] = source.items.pop(REF)  # last in the answer
    source.write(REF, make.entry(1))
    source.threads.clear()
    await life.cycle()

    assert len(source.threads) == FIRST_SIGHTS
    assert f"{REF}/comment:1" in runner.ids()
    assert len(owed(root)) == 10

    source.threads.clear()
    await life.cycle()
    assert (len(source.threads), owed(root)) == (10, set())
    assert len(runner.ids()) == 2 + FIRST_SIGHTS + 10
    assert len(set(runner.ids())) == len(runner.ids())


@in_loop
async def test_what_is_written_before_a_capped_first_sight_is_carried(
    root: StateRoot, runner: FakeRunner, source: FakeSource
) -> None:
    life = await begun(root, runner, source, *range(1, FIRST_SIGHTS + 2))
    last = f"fake:{FIRST_SIGHTS + 1}"
    assert owed(root) == {last}

    source.write(last, make.entry(5))
    await life.cycle()

    assert [entry["id"] for entry in runner.got[-1]["thread"]] == ["5"]


# --- owed ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), ValueError("a bug")])
@in_loop
async def test_item_that_cannot_be_written_is_owed_until_it_is(
    root: StateRoot, runner: FakeRunner, source: FakeSource, error: Exception
) -> None:
    life = await begun(root, runner, source, 1, 2)
    life.archive.save = failing_for(life.archive.save, REF, error)
    source.write(REF, make.entry(1))
    source.write("fake:2", make.entry(1))

    assert await life.cycle() == 1
    assert runner.ids()[2:] == ["fake:2/comment:1"]
    assert owed(root) == {REF}
    assert [fields["ref"] for fields in life.notes("item.failed")] == [REF]

    await life.die()
    life = Life(root, runner, source)
    await life.begin()
    assert await life.cycle() == 0
    assert runner.ids()[2:] == ["fake:2/comment:1", f"{REF}/comment:1"]
    assert owed(root) == set()


@in_loop
async def test_item_whose_thread_cannot_be_read_is_owed_and_costs_itself_only(
    root: StateRoot, runner: FakeRunner, source: FakeSource
) -> None:
    for number in (1, 2, 3):
        source.add(number, make.entry(7))
    source.thread_errors = {REF: [SourceError("502"), KeyError("user")]}
    life = Life(root, runner, source)

    for _ in range(2):
        assert await life.cycle() == 1
        assert owed(root) == {REF}
    await life.cycle()

    assert runner.ids() == ["fake:2/spawn:1", "fake:3/spawn:1", f"{REF}/spawn:1"]
    assert owed(root) == set()


@in_loop
async def test_item_that_is_not_there_any_more_when_its_thread_is_read_is_owed(
    root: StateRoot, runner: FakeRunner, source: FakeSource
) -> None:
    async def thread(_: str) -> Thread:
        return Thread(None, ())

    source.add(1)
    real, source.thread = source.thread, thread
    life = Life(root, runner, source)
    await life.cycle()
    assert (runner.ids(), owed(root), life.archive.get(REF)) == ([], {REF}, None)

    source.thread = real
    await life.cycle()
    assert runner.ids() == [f"{REF}/spawn:1"]


@in_loop
async def test_owed_item_in_a_part_that_could_not_be_read_stays_owed(
    root: StateRoot, runner: FakeRunner, source: FakeSource
) -> None:
    life = await begun(root, runner, source, 1)
    life.archive.save = failing_for(life.archive.save, REF, OSError(28, "full"))
    source.write(REF, make.entry(1))
    await life.cycle()

    source.items[REF].is_hidden = True
    source.faults = [SourceError("octo/repo: 502")]
    assert await life.cycle() == 1
    assert owed(root) == {REF}

    source.items[REF].is_hidden = False
    await life.cycle()
    assert runner.ids() == [f"{REF}/spawn:1", f"{REF}/comment:1"]


@in_loop
async def test_held_item_stays_owed_and_gets_what_it_missed_once_its_ledger_is_back(
    root: StateRoot, runner: FakeRunner, source: FakeSource
) -> None:
    life = await begun(root, runner, source, 1, 2)
    good = root.ledger(REF).read_bytes()
    root.ledger(REF).write_bytes(b"[]")
    source.write(REF, make.entry(1))
    await life.cycle()
    source.write(REF, make.entry(2))
    await life.cycle()
    source.items[REF].is_hidden = True
    await life.cycle()
    source.items[REF].is_hidden = False
    assert (owed(root), len(life.notes("ledger.held"))) == ({REF}, 1)

    await life.die()
    life = Life(root, runner, source)
    await life.cycle()
    assert f"{REF}/comment:1" not in runner.ids()

    root.ledger(REF).write_bytes(good)
    await life.cycle()
    assert [delivery for delivery in runner.ids() if delivery.startswith(REF)] == [
        f"{REF}/spawn:1",
        f"{REF}/comment:1",
        f"{REF}/comment:2",
    ]
    assert owed(root) == set()


@in_loop
async def test_ledger_that_lies_about_the_items_id_is_held(
    root: StateRoot, runner: FakeRunner, source: FakeSource
) -> None:
    life = await begun(root, runner, source, 1)
    tree = json.loads(root.ledger(REF).read_bytes())
    root.ledger(REF).write_text(json.dumps({**tree, "id": "node-of-another"}))
    source.write(REF, make.entry(1))

    for _ in range(2):
        await life.cycle()
        assert runner.ids() == [f"{REF}/spawn:1"]
        held = json.loads(root.ledger(REF).read_bytes())
        assert held["ref"] == REF
        assert "node-of-another" in held["held"]["reason"]
        aside = root.portable / held["held"]["aside"]
        assert json.loads(aside.read_bytes())["id"] == "node-of-another"
        await life.die()
        life = Life(root, runner, source)
    assert len(list(root.portable.glob("*.bad-*"))) == 1


@in_loop
async def test_newer_ledger_is_held_and_left_as_it_is(root: StateRoot, runner: FakeRunner, source: FakeSource) -> None:
    life = await begun(root, runner, source, 1, 2)
    content = b'{"schema": 99, "ref": "fake:1", "future": [1, 2]}'
    root.ledger(REF).write_bytes(content)
    for number in (1, 2):
        source.write(f"fake:{number}", make.entry(1))

    await life.cycle()

    assert runner.ids()[2:] == ["fake:2/comment:1"]
    assert root.ledger(REF).read_bytes() == content
    assert list(root.portable.glob("*.bad-*")) == []


# --- positions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{}",
        b"5",
        b"\0" * 40,
        b'{"schema": 2, "source": "fake", "position": {}, "owed": []}',
        b'{"schema": 1, "source": "fake", "position": [], "owed": []}',
        b'{"schema": 1, "source": "fake", "position": {}, "owed": 5}',
        b'{"schema": 1, "source": "fake", "position": {}, "owed": "fake:1"}',
        b'{"schema": 1, "source": "fake", "position": {}}',
        b'{"schema": 1, "source": "fake", "position": {}, "owed": [], "wait": 5}',
        b'{"schema": 1, "source": "fake", "position": {}, "owed": [], "wait": {}}',
        b'{"schema": 1, "source": "fake", "position": {"shown": 5}, "owed": []}',
        b'{"schema": 1, "source": "fake", "position": {"shown": {"fake:1": "x"}}, "owed": []}',
    ],
    ids=lambda content: content.decode()[:70].replace("\0", "0"),
)
@in_loop
async def test_position_of_another_shape_is_no_position_and_everything_is_owed(
    root: StateRoot, runner: FakeRunner, source: FakeSource, content: bytes
) -> None:
    life = await begun(root, runner, source, 1, 2)
    source.write(REF, make.entry(1))
    await life.cycle()
    await life.die()
    source.write(REF, make.entry(2))
    root.position("fake").write_bytes(content)

    life = Life(root, runner, source)
    await life.begin()
    for _ in range(2):
        await life.cycle()

    expected = [f"{REF}/{key}" for key in ("spawn:1", "comment:1", "comment:2")]
    assert [delivery for delivery in runner.ids() if delivery.startswith(REF)] == expected
    assert runner.ids().count("fake:2/spawn:1") == 1
    assert life.watched[0].error == ""


@in_loop
async def test_position_that_cannot_be_written_costs_questions_and_nothing_else(
    root: StateRoot, runner: FakeRunner, source: FakeSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("the_loop.cycle.write_position", refuse)
        life = await begun(root, runner, source, 1)
        source.write(REF, make.entry(1))
        await life.cycle()
        assert runner.ids() == [f"{REF}/spawn:1", f"{REF}/comment:1"]
        assert "No space" in life.notes("source.failed")[0]["reason"]
        await life.die()

    life = Life(root, runner, source)
    await life.begin()
    source.write(REF, make.entry(2))
    await life.cycle()
    assert source.positions[-1] is None
    assert runner.ids() == [f"{REF}/spawn:1", f"{REF}/comment:1", f"{REF}/comment:2"]


# --- a source that fails -------------------------------------------------------------------------------------------


@in_loop
async def test_look_that_fails_changes_nothing_and_is_told_once(
    root: StateRoot, runner: FakeRunner, source: FakeSource
) -> None:
    life = await begun(root, runner, source, 1)
    files = {path: path.read_bytes() for path in root.path.rglob("*.json")}
    source.look_errors = [SourceError("no route to host")] * 3
    for _ in range(3):
        assert await life.cycle() == 1

    assert [fields["reason"] for fields in life.notes("source.failed")] == ["no route to host"]
    assert {path: path.read_bytes() for path in root.path.rglob("*.json")} == files
    assert life.watched[0].state(life.clock.monotonic_s) == "failing"

    source.write(REF, make.entry(1))
    assert await life.cycle() == 0
    assert len(life.notes("source.recovered")) == 1
    assert (life.watched[0].error, life.watched[0].failures) == ("", 0)
    assert runner.ids() == [f"{REF}/spawn:1", f"{REF}/comment:1"]


@in_loop
async def test_failing_source_backs_off_to_ten_minutes_at_most(
    root: StateRoot, runner: FakeRunner, source: FakeSource
) -> None:
    life = Life(root, runner, source)
    source.look_errors = [SourceError("down")] * 30
    waits = []
    for _ in range(30):
        await life.cycle()
        waits.append(life.watched[0].next_look_s - life.clock.monotonic_s)

    assert waits == sorted(waits)
    assert waits[0] <= 60
    assert waits[1] > waits[0]
    assert 500 < waits[-1] <= 600


@in_loop
async def test_unexpected_error_of_a_source_costs_that_source_only_and_repeats_nothing(
    root: StateRoot, runner: FakeRunner, source: FakeSource
) -> None:
    other = FakeSource("other")
    other.add(1)
    source.add(1)
    life = Life(root, runner, source, other)
    await life.cycle()
    source.write(REF, make.entry(1))
    source.look_errors = [KeyError("number")]
    other.write("other:1", make.entry(1))
    assert await life.cycle() == 1
    assert runner.ids()[2:] == ["other:1/comment:1"]
    assert "KeyError" in life.notes("source.failed")[0]["reason"]

    await life.cycle()
    assert runner.ids()[2:] == ["other:1/comment:1", f"{REF}/comment:1"]


@in_loop
async def test_partial_listing_closes_nothing(root: StateRoot, runner: FakeRunner, source: FakeSource) -> None:
    life = await begun(root, runner, source, 1, 2)
    for fake in source.items.values():
        fake.is_hidden = True
    source.faults = [SourceError("octo/a: 502"), SourceError("octo/b: 404")]

    assert await life.cycle() == 2

    assert {life.ledger(ref).poll.phase for ref in source.items} == {Phase.LIVE}
    assert [fields["reason"] for fields in life.notes("source.failed")] == ["octo/a: 502; octo/b: 404"]
    await life.cycle()
    assert {life.ledger(ref).poll.phase for ref in source.items} == {Phase.LIVE}


@in_loop
async def test_what_is_due_is_handed_over_while_its_source_fails(root: StateRoot, source: FakeSource) -> None:
    runner = FakeRunner()
    life = await begun(root, runner, source, 1)
    life.is_in_charge = False
    source.write(REF, make.entry(1))
    source.add(2, make.entry(3))
    await life.cycle()
    await life.stop()

    life = Life(root, runner, source)
    await life.begin()
    source.look_errors = [SourceError("down")]
    await life.cycle()

    assert sorted(runner.ids()) == [f"{REF}/comment:1", f"{REF}/spawn:1", "fake:2/spawn:1"]
    assert [entry["id"] for entry in runner.got[-1]["thread"] or runner.got[-2]["thread"]] == ["3"]


def test_source_that_nobody_may_speak_on_is_unread() -> None:
    watched = Watched(FakeSource(), Rules(frozenset(), folds_case=True, words={}))

    assert watched.is_unread
    assert watched.state(0.0) == "unread"


# --- limits --------------------------------------------------------------------------------------------------------


@in_loop
async def test_limit_in_a_look_is_waited_for_also_after_a_restart(
    root: StateRoot, runner: FakeRunner, source: FakeSource
) -> None:
    life = await begun(root, runner, source, 1)
    source.look_errors = [Limited("rate limit", 3600)]
    assert await life.cycle() == 1

    watched = life.watched[0]
    assert watched.state(life.clock.monotonic_s) == "waiting"
    assert watched.wait_left_s(life.clock.monotonic_s) == 3600
    assert life.notes("source.waiting")[0]["reason"] == "rate limit"
    assert watched.failures == 0
    stored = read_position(root, "fake").wait
    assert stored == Wait(make.NOON + 3600, 3600, "rate limit")
    assert read_position(root, "fake").value is not None

    life.clock.pass_by(3601)
    assert watched.state(life.clock.monotonic_s) == "failing"
    source.write(REF, make.entry(1))
    assert await life.cycle() == 0
    assert (watched.error, watched.state(life.clock.monotonic_s)) == ("", "ok")
    assert read_position(root, "fake").wait is None
    assert runner.ids() == [f"{REF}/spawn:1", f"{REF}/comment:1"]


@pytest.mark.parametrize("jump", [-365 * 86_400.0, 365 * 86_400.0])
@in_loop
async def test_limit_is_not_made_longer_by_a_clock_that_was_set(
    root: StateRoot, runner: FakeRunner, source: FakeSource, jump: float
) -> None:
    life = await begun(root, runner, source, 1)
    source.look_errors = [Limited("rate limit", 90)]
    await life.cycle()
    watched = life.watched[0]

    life.clock.now += jump
    assert 0 < watched.wait_left_s(life.clock.monotonic_s) <= 90
    life.clock.pass_by(91)
    assert watched.wait_left_s(life.clock.monotonic_s) == 0
    await life.cycle()
    assert read_position(root, "fake").wait is None


@pytest.mark.parametrize(("now", "left"), [(0, 90), (-1e9, 90), (30, 60), (90, 0), (1e9, 0)])
def test_stored_wait_is_never_longer_than_it_was_when_it_was_set(now: float, left: float) -> None:
    wait = Wait(make.NOON + 90, 90, "rate limit")

    assert wait.remaining_s(make.NOON + now) == left


@in_loop
async def test_limit_while_threads_are_read_asks_for_no_more_of_them_and_owes_the_rest(
    root: StateRoot, runner: FakeRunner, source: FakeSource
) -> None:
    life = await begun(root, runner, source, 1)
    for number in (2, 3, 4):
        source.add(number)
    source.items[REF] = source.items.pop(REF)
    source.write(REF, make.entry(1))
    source.thread_errors = {"fake:3": [Limited("secondary limit", 60)]}
    source.threads.clear()

    assert await life.cycle() == 1

    assert source.threads == ["fake:2", "fake:3"]
    assert sorted(runner.ids()) == [f"{REF}/comment:1", f"{REF}/spawn:1", "fake:2/spawn:1"]
    assert owed(root) == {"fake:3", "fake:4"}
    assert read_position(root, "fake").wait == Wait(make.NOON + 60, 60, "secondary limit")

    life.clock.pass_by(61)
    await life.cycle()
    assert sorted(runner.ids())[-2:] == ["fake:3/spawn:1", "fake:4/spawn:1"]
    assert (owed(root), life.watched[0].error) == (set(), "")


@in_loop
async def test_limit_of_one_part_is_waited_for_and_the_other_parts_are_served(
    root: StateRoot, runner: FakeRunner, source: FakeSource
) -> None:
    life = await begun(root, runner, source, 1)
    source.faults = [Limited("rate limit", 120)]
    source.write(REF, make.entry(1))

    await life.cycle()

    assert runner.ids() == [f"{REF}/spawn:1", f"{REF}/comment:1"]
    assert life.watched[0].wait_left_s(life.clock.monotonic_s) == 120


@in_loop
async def test_clock_that_jumps_over_the_whole_story_delivers_each_once(
    root: StateRoot, runner: FakeRunner, source: FakeSource
) -> None:
    clock = Clock()
    life = await begun(root, runner, source, 1, clock=clock)
    runner.script = {f"{REF}/comment:{number}": [REFUSED] for number in (1, 2, 3)}
    for number, now in enumerate((make.NOON - 14 * 86_400, make.NOON + 365 * 86_400, make.NOON), 1):
        clock.now = now
        source.write(REF, make.entry(number))
        for _ in range(4):
            await life.cycle()
            clock.now += 400

    assert runner.ids() == [
        f"{REF}/{key}"
        for key in ("spawn:1", "comment:1", "comment:1", "comment:2", "comment:2", "comment:3", "comment:3")
    ]
