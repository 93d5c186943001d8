"""One look at a source: what is recorded when, and how much of it at once (contract R3, R4, R6.9)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from support import factories as make
from support.fakes import REFUSED, FakeRunner, FakeSource, comments
from support.fuse import Fuse
from support.life import (
    Life,
    idle,
    in_virtual_loop,
    next_life,
)
from the_loop.core.ledger import Phase
from the_loop.core.model import Note, Presence
from the_loop.cursors import read_cursor
from the_loop.sources.base import Listing
from the_loop.state import StateRoot
from the_loop.visits import INITIAL_SYNCS

REF = "fake:1"


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
    return set(read_cursor(root, "fake").owed)


# --- what is recorded when --------------------------------------------------------------------------------------------


@in_virtual_loop
async def test_position_comes_after_all_items_of_the_look(
    root: StateRoot, runner: FakeRunner, source: FakeSource
) -> None:
    fuse = Fuse()
    with fuse.watching_files():
        life = await begun(root, runner, source, 1, 2, 3, fuse=fuse)
        life.dispatcher.limit = 0
        fuse.log.clear()
        for number in (1, 2, 3):
            source.write(f"fake:{number}", make.entry(1))
        await life.cycle()

    ledgers = [f"write {root.ledger(f'fake:{number}').name}" for number in (1, 2, 3)]
    assert [step for step in fuse.log if step in (*ledgers, "write fake.json")] == [*ledgers, "write fake.json"]


@in_virtual_loop
async def test_item_is_on_disk_before_the_next_one_is_touched(root: StateRoot, source: FakeSource) -> None:
    runner = FakeRunner(default=None)
    source.add(1)
    source.add(2)
    source.gate = asyncio.Event()
    life = Life(root, runner, source)
    looking = asyncio.create_task(life.cycle())
    await let_pass(source, 2)

    assert source.threads == [REF, "fake:2"]
    assert life.ledgers.get(REF) is not None
    assert life.ledgers.get("fake:2") is None
    looking.cancel()


async def let_pass(source: FakeSource, count: int) -> None:
    """Let so many answers through."""
    for _ in range(count):
        await idle()
        assert source.gate is not None
        source.gate.set()
        source.gate = asyncio.Event()
    await idle()


@in_virtual_loop
async def test_stop_inside_a_look_keeps_what_is_done_and_moves_no_position(root: StateRoot, source: FakeSource) -> None:
    runner = FakeRunner(default=None)
    life = await begun(root, runner, source, 1)
    runner.finish(f"{REF}/spawn:1")
    await idle()
    before = root.cursor("fake").read_bytes()
    source.write(REF, make.entry(1))
    source.add(2)
    source.gate = asyncio.Event()
    looking = asyncio.create_task(life.cycle())
    await let_pass(source, 1)

    looking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await looking

    assert root.cursor("fake").read_bytes() == before
    assert life.ledgers.get("fake:2") is None
    assert "comment:1" in life.ledger(REF).poll.pending
    source.gate = None
    await life.cycle()
    assert runner.ids() == [f"{REF}/spawn:1", f"{REF}/comment:1", "fake:2/spawn:1"]


@in_virtual_loop
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


@in_virtual_loop
async def test_cursor_when_the_poller_is_displaced_in_a_cycle_stays_as_it_is_on_disk(
    root: StateRoot, runner: FakeRunner, source: FakeSource
) -> None:
    """The root is another poller's from then on: its cursor must not be moved past what this one cannot record."""
    life = await begun(root, runner, source, 1)
    before = root.cursor("fake").read_bytes()
    source.write(REF, make.entry(1))
    source.gate = asyncio.Event()
    looking = asyncio.create_task(life.cycle())
    await idle()

    life.is_displaced = True
    source.gate.set()
    await looking

    assert root.cursor("fake").read_bytes() == before
    source.gate = None
    await (await next_life(life, root, runner, source)).cycle()
    assert runner.ids() == [f"{REF}/spawn:1", f"{REF}/comment:1"]


@in_virtual_loop
async def test_idle_look_reads_no_thread_and_writes_nothing(
    root: StateRoot, runner: FakeRunner, source: FakeSource
) -> None:
    source.add(100, author=make.STRANGER)
    source.add(101, make.entry(1, "the-loop stop"))
    fuse = Fuse()
    life = await begun(root, runner, source, *range(1, 40), fuse=fuse)
    await life.cycle()
    source.threads.clear()

    with fuse.watching_files():
        before = len(fuse.steps)
        assert await life.cycle() == 0

    assert (len(fuse.steps) - before, source.threads) == (0, [])


@in_virtual_loop
async def test_rows_that_repeat_are_delivered_once(root: StateRoot, runner: FakeRunner, source: FakeSource) -> None:
    life = await begun(root, runner, source, 1)
    source.write(REF, *comments(1, 2))
    await life.cycle()
    for _ in range(5):
        root.cursor("fake").unlink(missing_ok=True)
        await life.die()
        life = Life(root, runner, source)
        await life.begin()
        await life.cycle()

    assert runner.ids() == [f"{REF}/spawn:1", f"{REF}/comment:1", f"{REF}/comment:2"]


@in_virtual_loop
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


@in_virtual_loop
async def test_notes_of_a_listing_are_told(
    root: StateRoot, runner: FakeRunner, source: FakeSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def poll(*_: object) -> Listing:
        return Listing([], {}, 0, notes=[Note("poll.edited", {"ref": REF, "key": "comment:1", "reason": "edited"})])

    monkeypatch.setattr(source, "poll", poll)
    life = Life(root, runner, source)
    await life.cycle()

    assert [fields["reason"] for fields in life.notes("poll.edited")] == ["edited"]


# --- first sights -----------------------------------------------------------------------------------------------------


@in_virtual_loop
async def test_first_sights_are_capped_and_known_items_are_not_kept_waiting(
    root: StateRoot, runner: FakeRunner, source: FakeSource
) -> None:
    life = await begun(root, runner, source, 1)
    for number in range(2, INITIAL_SYNCS + 12):
        source.add(number)
    source.items[REF] = source.items.pop(REF)  # last in the answer
    source.write(REF, make.entry(1))
    source.threads.clear()
    await life.cycle()

    assert len(source.threads) == INITIAL_SYNCS
    assert f"{REF}/comment:1" in runner.ids()
    assert len(owed(root)) == 10

    source.threads.clear()
    await life.cycle()
    assert (len(source.threads), owed(root)) == (10, set())
    assert len(runner.ids()) == 2 + INITIAL_SYNCS + 10
    assert len(set(runner.ids())) == len(runner.ids())


@in_virtual_loop
async def test_what_is_written_before_a_capped_first_sight_is_carried(
    root: StateRoot, runner: FakeRunner, source: FakeSource
) -> None:
    life = await begun(root, runner, source, *range(1, INITIAL_SYNCS + 2))
    last = f"fake:{INITIAL_SYNCS + 1}"
    assert owed(root) == {last}

    source.write(last, make.entry(5))
    await life.cycle()

    assert [entry["id"] for entry in runner.got[-1]["thread"]] == ["5"]
