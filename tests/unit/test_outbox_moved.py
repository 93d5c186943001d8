"""`portable/` was moved to another machine: what was pending is read again (contract section 3)."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from support import factories as make
from support.fakes import REFUSED, UNKNOWN, FakeRunner, FakeSource, comments
from support.life import (
    Life,
    in_virtual_loop,
    live_item,
    new_root,
    next_life,
)
from the_loop import deliveries
from the_loop.core.ledger import Phase, Standing, move, rearm
from the_loop.core.model import Presence
from the_loop.state import StateRoot

REF = "fake:1"
SPAWN, ONE, TWO = (f"{REF}/{key}" for key in ("spawn:1", "comment:1", "comment:2"))


def arrived(runner: FakeRunner) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for delivery_id in runner.ids():
        ref, _, key = delivery_id.partition("/")
        found.setdefault(ref, []).append(key)
    return found


def move_portable(root: StateRoot, path: Path) -> StateRoot:
    """A new root that `portable/` alone was brought to."""
    other = new_root(path)
    shutil.rmtree(other.portable)
    shutil.copytree(root.portable, other.portable)
    return other


@in_virtual_loop
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


@in_virtual_loop
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


@in_virtual_loop
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
@in_virtual_loop
async def test_moved_ledger_hands_nothing_over_that_an_operator_decides_about(
    root: StateRoot, tmp_path: Path, state: Standing
) -> None:
    runner, source = FakeRunner(), FakeSource()
    options: dict[str, Any] = {"max_retries": 1, "holds_uncertain": True}
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
        life.ledgers.save(rearm(ledger, "comment:1"))
        life = Life(other, runner, source, **options)
        await life.begin()
        await life.cycle()
        await life.cycle()
        assert runner.ids() == [SPAWN, ONE, ONE]


@in_virtual_loop
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


@in_virtual_loop
async def test_moved_ledger_of_an_ending_item_whose_spawn_was_held_comes_to_its_end(
    root: StateRoot, tmp_path: Path
) -> None:
    """ "Try again" where nothing is left to be handed over: a session may exist, so it is closed."""
    runner, source = FakeRunner(), FakeSource()
    runner.script = {SPAWN: [UNKNOWN]}
    source.add(1)
    life = Life(root, runner, source, holds_uncertain=True)
    await life.begin()
    await life.cycle()
    source.write(REF, make.entry(1, "the-loop stop"))
    await life.cycle()
    assert list(life.ledger(REF).poll.pending) == ["spawn:1", "close:1"]
    await life.stop()

    life = Life(move_portable(root, tmp_path / "other"), runner, source, holds_uncertain=True)
    await life.begin()
    await life.cycle()
    assert life.ledger(REF).poll.pending["spawn:1"].state is Standing.HELD
    life.ledgers.save(move(life.ledger(REF), "spawn:1", Standing.UNCERTAIN, unknown=0))
    for _ in range(3):
        await life.cycle()

    assert runner.ids()[-1] == f"{REF}/close:1"
    assert life.ledger(REF).poll.phase is Phase.ENDED


@in_virtual_loop
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
