"""What a position says, what is owed, and what is held (contract R6.8)."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from support import factories as make
from support.fakes import FakeRunner, FakeSource
from support.life import (
    Life,
    in_virtual_loop,
)
from the_loop.cursors import read_cursor
from the_loop.sources.base import SourceError, Thread
from the_loop.state import StateRoot

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


def failing_for(work: Callable[..., Any], ref: str, error: Exception, *, times: int = 1) -> Callable[..., Any]:
    """`save`, but for this item it raises at first."""
    left = [error] * times

    def save(ledger: Any) -> None:
        if ledger.ref == ref and left:
            raise left.pop()
        work(ledger)

    return save


# --- owed -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), ValueError("a bug")])
@in_virtual_loop
async def test_item_that_cannot_be_written_is_owed_until_it_is(
    root: StateRoot, runner: FakeRunner, source: FakeSource, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    life = await begun(root, runner, source, 1, 2)
    monkeypatch.setattr(life.ledgers, "save", failing_for(life.ledgers.save, REF, error))
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


@in_virtual_loop
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


@in_virtual_loop
async def test_item_that_is_not_there_any_more_when_its_thread_is_read_is_owed(
    root: StateRoot, runner: FakeRunner, source: FakeSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def thread(_: str) -> Thread:
        return Thread(None, ())

    source.add(1)
    real = source.thread
    monkeypatch.setattr(source, "thread", thread)
    life = Life(root, runner, source)
    await life.cycle()
    assert (runner.ids(), owed(root), life.ledgers.get(REF)) == ([], {REF}, None)

    monkeypatch.setattr(source, "thread", real)
    await life.cycle()
    assert runner.ids() == [f"{REF}/spawn:1"]


@in_virtual_loop
async def test_owed_item_in_a_part_that_could_not_be_read_stays_owed(
    root: StateRoot, runner: FakeRunner, source: FakeSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    life = await begun(root, runner, source, 1)
    monkeypatch.setattr(life.ledgers, "save", failing_for(life.ledgers.save, REF, OSError(28, "full")))
    source.write(REF, make.entry(1))
    await life.cycle()

    source.items[REF].is_hidden = True
    source.faults = [SourceError("octo/repo: 502")]
    assert await life.cycle() == 1
    assert owed(root) == {REF}

    source.items[REF].is_hidden = False
    await life.cycle()
    assert runner.ids() == [f"{REF}/spawn:1", f"{REF}/comment:1"]


@in_virtual_loop
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


@in_virtual_loop
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


@in_virtual_loop
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


# --- positions --------------------------------------------------------------------------------------------------------


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
@in_virtual_loop
async def test_position_of_another_shape_is_no_position_and_everything_is_owed(
    root: StateRoot, runner: FakeRunner, source: FakeSource, content: bytes
) -> None:
    life = await begun(root, runner, source, 1, 2)
    source.write(REF, make.entry(1))
    await life.cycle()
    await life.die()
    source.write(REF, make.entry(2))
    root.cursor("fake").write_bytes(content)

    life = Life(root, runner, source)
    await life.begin()
    for _ in range(2):
        await life.cycle()

    expected = [f"{REF}/{key}" for key in ("spawn:1", "comment:1", "comment:2")]
    assert [delivery for delivery in runner.ids() if delivery.startswith(REF)] == expected
    assert runner.ids().count("fake:2/spawn:1") == 1
    assert life.watched[0].error == ""


@in_virtual_loop
async def test_position_that_cannot_be_written_costs_questions_and_nothing_else(
    root: StateRoot, runner: FakeRunner, source: FakeSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("the_loop.cycle.write_cursor", refuse)
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
    assert source.cursors[-1] is None
    assert runner.ids() == [f"{REF}/spawn:1", f"{REF}/comment:1", f"{REF}/comment:2"]
