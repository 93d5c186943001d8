"""What is written before a hand-over, and what is handed over at all (contract R5, R6.2, DESIGN 1)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from support import factories as make
from support.fakes import DELIVERED, REFUSED, UNKNOWN, FakeRunner, FakeSource, comments
from support.fuse import Fuse
from support.life import (
    Life,
    files_of,
    idle,
    in_virtual_loop,
    live_item,
    next_life,
    no_space,
)
from the_loop.core.guards import Rules
from the_loop.core.ledger import Phase
from the_loop.core.model import Outcome, Presence, Verdict
from the_loop.state import StateRoot

REF = "fake:1"
SPAWN, ONE, TWO, THREE = (f"{REF}/{key}" for key in ("spawn:1", "comment:1", "comment:2", "comment:3"))


async def left_behind(root: StateRoot, runner: FakeRunner, source: FakeSource, **options: Any) -> Life:
    """A life that ended hard while comment 1 was under way and comment 2 waited behind it."""
    life = await live_item(root, runner, source, **options)
    runner.script = {ONE: [None]}
    source.write(REF, *comments(1, 2))
    await life.cycle()
    assert runner.going() == [ONE]
    await life.die()
    return life


# --- order of writing -------------------------------------------------------------------------------------------------


@in_virtual_loop
async def test_payloads_are_on_disk_before_the_ledger_and_the_ledger_before_the_hand_over(root: StateRoot) -> None:
    source, fuse = FakeSource(), Fuse()
    source.add(1, *comments(1))
    life = Life(root, FakeRunner(), source, fuse=fuse)

    with fuse.watching_files():
        await life.begin()
        await life.cycle()
        source.write(REF, *comments(2, 3))
        await life.cycle()

    ledger = f"write {root.ledger(REF).name}"
    payload = {
        key: f"write {root.delivery(f'{REF}/{key}').name}.payload.json" for key in ("spawn:1", "comment:2", "comment:3")
    }
    steps = [step for step in fuse.log if not step.startswith("remove")]
    of_item = [step for step in steps if step != "write fake.json"]  # the cursor: when, others have a say in
    assert of_item[:4] == [payload["spawn:1"], ledger, f"hand over {SPAWN}", ledger]
    rest = of_item[4:]
    assert rest[:3] == [payload["comment:2"], payload["comment:3"], ledger]
    assert rest[3:] == [f"hand over {TWO}", ledger, f"hand over {THREE}", ledger]
    cursors = [number for number, step in enumerate(steps) if step == "write fake.json"]
    assert next(steps[:number].count(ledger) for number in cursors) >= 1


@in_virtual_loop
async def test_files_of_a_delivery_are_removed_after_its_outcome_is_in_the_ledger(root: StateRoot) -> None:
    source, fuse, runner = FakeSource(), Fuse(), FakeRunner()
    source.add(1)
    life = Life(root, runner, source, fuse=fuse)

    with fuse.watching_files():
        await life.begin()
        await life.cycle()

    removals = [number for number, step in enumerate(fuse.log) if step.startswith("remove")]
    last_ledger = max(number for number, step in enumerate(fuse.log) if step == f"write {root.ledger(REF).name}")
    assert removals
    assert min(removals) > last_ledger
    assert files_of(root) == []


@in_virtual_loop
async def test_ledger_that_cannot_be_written_hands_nothing_over_and_tells_nothing(
    root: StateRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, runner = FakeSource(), FakeRunner()
    life = await live_item(root, runner, source)
    source.write(REF, make.entry(1), make.entry(2, author=make.STRANGER))
    monkeypatch.setattr(life.ledgers, "save", no_space)

    await life.cycle()

    assert runner.ids() == [SPAWN]
    assert life.notes("dispatch.dropped") == []
    monkeypatch.undo()
    await life.cycle()
    assert runner.ids() == [SPAWN, ONE]


@in_virtual_loop
async def test_many_events_when_an_outcome_comes_while_they_are_written_then_both_are_recorded(
    root: StateRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writing them gives others a turn: what was decided before that may not be the last word."""
    source, runner = FakeSource(), FakeRunner()
    life = await live_item(root, runner, source)
    runner.script = {ONE: [None]}
    source.write(REF, *comments(1))
    await life.cycle()
    assert runner.going() == [ONE]
    written = life.deliveries.write

    def writing(stem: Path, payload: Mapping[str, Any]) -> None:
        if runner.going() == [ONE]:
            runner.finish(ONE)
            life.outbox.conclude(life.dispatcher.under_way()[0][0], DELIVERED)
        written(stem, payload)

    monkeypatch.setattr(life.deliveries, "write", writing)
    source.write(REF, *comments(*range(2, 40)))
    await life.cycle()
    await idle()

    assert runner.ids() == [SPAWN, *(f"{REF}/comment:{number}" for number in range(1, 40))]
    assert life.ledger(REF).poll.pending == {}
    assert files_of(root) == []


# --- refusals ---------------------------------------------------------------------------------------------------------


@in_virtual_loop
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


@in_virtual_loop
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


@in_virtual_loop
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


# --- items that are away ----------------------------------------------------------------------------------------------


@in_virtual_loop
async def test_pending_event_when_its_item_goes_away_waits_until_it_is_back(root: StateRoot) -> None:
    runner, source = FakeRunner(), FakeSource()
    life = await live_item(root, runner, source)
    runner.script = {ONE: [None]}
    source.write(REF, *comments(1, 2))
    await life.cycle()
    source.items[REF].presence = Presence.AWAY
    await life.cycle()
    runner.finish(ONE)
    await idle()
    await life.cycle()

    assert runner.ids() == [SPAWN, ONE]
    assert list(life.ledger(REF).poll.pending) == ["comment:2"]

    source.items[REF].presence = Presence.LISTED
    await life.cycle()
    assert runner.ids() == [SPAWN, ONE, TWO]


# --- once -------------------------------------------------------------------------------------------------------------


@in_virtual_loop
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


@in_virtual_loop
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


# --- who may still speak ----------------------------------------------------------------------------------------------


def set_people(life: Life, *people: str) -> None:
    """What a reload does."""
    life.watched[0].rules = Rules(frozenset(people), folds_case=True, words=make.rules().words)


@in_virtual_loop
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
    dropped = [(fields["reason"], fields["author"]) for fields in life.notes("dispatch.dropped")]
    assert dropped == [("unauthorized", "bob")]
    assert "comment:2" in life.ledger(REF).poll.seen_comments


@in_virtual_loop
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


@in_virtual_loop
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


@in_virtual_loop
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


@in_virtual_loop
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
