"""Requests to the running poller, on real ledgers and files: what is granted, what is refused, what follows."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from typing import Any

import pytest

from support import factories as make
from support.fakes import REFUSED, UNKNOWN, FakeRunner, FakeSource
from support.fuse import Crash, Fuse
from support.life import Life, files_of, idle, in_virtual_loop, live_item, next_life, no_space
from the_loop import deliveries
from the_loop.authors import read_authors
from the_loop.core.ledger import Phase, Standing
from the_loop.core.model import LoopError
from the_loop.deliveries import Deliveries, claim
from the_loop.durable import to_json_bytes, write_durably
from the_loop.ledgers import Ledgers
from the_loop.overrides import Overrides, carry_out
from the_loop.requests import Requests, UnknownSource, WillNotCycle
from the_loop.state import StateRoot

A = "fake:1"
SPAWN = "fake:1/spawn:1"


class Asked:
    """A life's requests. Sources that are woken are cycled by the test: `woken` has their names."""

    def __init__(self, life: Life, *, can_wake: bool = True, makes_cycles: bool = True) -> None:
        self.woken: list[str | None] = []
        self._can_wake = can_wake
        overrides = Overrides(life.ledgers, life.deliveries, life.dispatcher.running)
        self.verbs = Requests(
            overrides,
            life.root.authors,
            sources=lambda: [one.source for one in life.watched],
            wake=self._wake if makes_cycles else None,
            offer=life.dispatcher.offer,
            tell=life.told.append,
        ).verbs()

    async def __call__(self, verb: str, **request: Any) -> Mapping[str, Any]:
        answer = await self.verbs[verb](request)
        await idle()
        return answer

    def _wake(self, source: str | None) -> bool:
        self.woken.append(source)
        return self._can_wake


async def given_up(root: StateRoot, runner: FakeRunner, source: FakeSource, *numbers: int) -> Life:
    """Item 1, live, of which these comments were given up."""
    life = await live_item(root, runner, source, max_retries=1)
    for number in numbers:
        runner.script[f"{A}/comment:{number}"] = [REFUSED]
        source.write(A, make.entry(number))
    await life.cycle()
    assert [entry.state for entry in life.ledger(A).poll.pending.values()] == [Standing.GAVE_UP] * len(numbers)
    return life


async def running_comment(root: StateRoot, runner: FakeRunner, source: FakeSource) -> Life:
    """Item 1, live, of which comment 1 is being delivered."""
    life = await live_item(root, runner, source)
    runner.script[f"{A}/comment:1"] = [None]
    source.write(A, make.entry(1))
    await life.cycle()
    return life


# --- author ---


@in_virtual_loop
async def test_author_when_decided_then_the_file_says_so_and_the_source_of_its_items_is_polled(root: StateRoot) -> None:
    life = Life(root, FakeRunner(), FakeSource("fake"))
    waiting = {"77": {"since": "2026-01-01T00:00:00Z", "refs": [A]}}
    login = {"id": 1, "since": "2026-01-01T00:00:00Z", "sources": ["fake"], "waiting": waiting}
    tree = {"schema": 1, "hosts": {"api.github.com": {"logins": {"octocat": login}}}}
    write_durably(root.authors, to_json_bytes(tree))
    asked = Asked(life)

    assert await asked("author", login="Octocat", accepts=True) == {"login": "Octocat", "items": [A]}

    assert read_authors(root.authors)["hosts"]["api.github.com"]["logins"]["octocat"]["id"] == 77
    assert asked.woken == ["fake"]
    with pytest.raises(LoopError, match="no other account waits"):
        await asked("author", login="octocat", accepts=False)
    with pytest.raises(LoopError, match="has no 'login'"):
        await asked("author", accepts=True)


# --- wake ---


@in_virtual_loop
async def test_wake_when_it_names_a_source_or_none_then_that_or_all_are_woken(root: StateRoot) -> None:
    asked = Asked(Life(root, FakeRunner(), FakeSource("one"), FakeSource("two")))

    assert await asked("wake", source="two") == {"woken": ["two"]}
    assert await asked("wake", source=None) == {"woken": ["one", "two"]}
    assert await asked("wake") == {"woken": ["one", "two"]}
    assert asked.woken == ["two", None, None]


@pytest.mark.parametrize("source", ["three", "", 5, ["one"], {"one": 1}, True])
@in_virtual_loop
async def test_wake_when_there_is_no_such_source_then_2_and_the_names_and_none_is_woken(
    root: StateRoot, source: Any
) -> None:
    asked = Asked(Life(root, FakeRunner(), FakeSource("one"), FakeSource("two")))

    with pytest.raises(UnknownSource) as caught:
        await asked("wake", source=source)

    assert caught.value.exit_code == 2
    assert "'one', 'two'" in caught.value.hint
    assert asked.woken == []


@in_virtual_loop
async def test_wake_when_the_poller_makes_one_cycle_only_then_3(root: StateRoot) -> None:
    asked = Asked(Life(root, FakeRunner(), FakeSource("one")), makes_cycles=False)

    with pytest.raises(WillNotCycle) as caught:
        await asked("wake")

    assert caught.value.exit_code == 3


@in_virtual_loop
async def test_wake_when_the_source_is_not_polled_then_is_refused(root: StateRoot) -> None:
    with pytest.raises(LoopError, match="not polled"):
        await Asked(Life(root, FakeRunner(), FakeSource("one")), can_wake=False)("wake", source="one")


# --- retry ---


@in_virtual_loop
async def test_retry_when_an_event_was_given_up_then_is_delivered_at_once_from_attempt_1_on(
    root: StateRoot, runner: FakeRunner, source: FakeSource
) -> None:
    life = await given_up(root, runner, source, 1)
    asked = Asked(life)

    answer = await asked("retry", ref=A)

    assert answer == {"ref": A, "retried": ["comment:1"], "already": []}
    assert runner.ids() == [SPAWN, f"{A}/comment:1", f"{A}/comment:1"]
    assert runner.got[-1]["attempt"] == 1
    assert life.ledger(A).poll.pending == {}
    assert files_of(root) == []
    (note,) = life.notes("poll.rearmed")
    assert (note["ref"], note["key"]) == (A, "comment:1")
    assert asked.woken == ["fake"]


@in_virtual_loop
async def test_retry_when_it_names_an_event_then_only_that_one_is_retried(
    root: StateRoot, runner: FakeRunner, source: FakeSource
) -> None:
    life = await given_up(root, runner, source, 1, 2)

    await Asked(life)("retry", ref=A, key=f"{A}/comment:2")

    assert list(life.ledger(A).poll.pending) == ["comment:1"]
    assert runner.ids()[-1] == f"{A}/comment:2"


@in_virtual_loop
async def test_retry_when_an_event_is_held_then_is_offered_once_more_with_the_mark(
    root: StateRoot, runner: FakeRunner, source: FakeSource
) -> None:
    life = await live_item(root, runner, source, holds_uncertain=True)
    runner.script[f"{A}/comment:1"] = [UNKNOWN]
    source.write(A, make.entry(1))
    await life.cycle()
    assert life.ledger(A).poll.pending["comment:1"].state is Standing.HELD

    await Asked(life)("retry", ref=A, key="comment:1")

    assert [got["redelivery"] for got in runner.got] == [False, False, True]
    assert life.ledger(A).poll.pending == {}


@in_virtual_loop
async def test_retry_when_a_spawn_was_given_up_then_the_next_cycle_builds_it_from_the_thread_as_it_is(
    root: StateRoot, runner: FakeRunner, source: FakeSource
) -> None:
    runner.script[SPAWN] = [REFUSED]
    source.add(1)
    life = Life(root, runner, source, max_retries=1)
    await life.cycle()
    asked = Asked(life)

    await asked("retry", ref=A)
    assert asked.woken == ["fake"]
    await life.cycle()

    assert runner.ids() == [SPAWN, SPAWN]
    assert life.ledger(A).poll.phase is Phase.LIVE


@in_virtual_loop
async def test_retry_when_it_is_repeated_then_changes_nothing_more(
    root: StateRoot, runner: FakeRunner, source: FakeSource
) -> None:
    life = await given_up(root, runner, source, 1, 2)
    runner.script[f"{A}/comment:1"] = [None]
    asked = Asked(life)
    await asked("retry", ref=A)
    before = life.ledger(A)

    for request in ({"ref": A}, {"ref": A, "key": "comment:1"}):
        answer = await asked("retry", **request)
        assert answer["retried"] == []
        assert "comment:1" in answer["already"]

    assert life.ledger(A) == before
    assert runner.going() == [f"{A}/comment:1"]
    assert len(life.notes("poll.rearmed")) == 2


@pytest.mark.parametrize(
    ("request_", "problem"),
    [
        ({"ref": A}, "none of its events"),
        ({"ref": A, "key": "spawn:1"}, "it is settled"),
        ({"ref": A, "key": "comment:9"}, "no such event"),
        ({"ref": "fake:9"}, "no such item"),
        ({"ref": "../../etc/passwd"}, "no such item"),
        ({"ref": "\ud800\0"}, "no such item"),
        ({}, "no 'ref'"),
        ({"ref": ""}, "no 'ref'"),
        ({"ref": 5}, "no 'ref'"),
        ({"ref": A, "key": ["a"]}, "no 'key'"),
    ],
)
@in_virtual_loop
async def test_retry_when_there_is_nothing_to_retry_then_is_refused_and_nothing_is_written(
    root: StateRoot, runner: FakeRunner, source: FakeSource, request_: dict[str, Any], problem: str
) -> None:
    life = await live_item(root, runner, source)
    before = {path.name: path.stat().st_ino for path in root.portable.iterdir()}

    with pytest.raises(LoopError, match=problem):
        await Asked(life)("retry", **request_)

    assert {path.name: path.stat().st_ino for path in root.portable.iterdir()} == before


@in_virtual_loop
async def test_retry_when_very_many_events_are_retried_then_the_answer_names_some_and_counts_the_rest(
    root: StateRoot, runner: FakeRunner, source: FakeSource
) -> None:
    life = await given_up(root, runner, source, *range(1, 61))

    answer = await Asked(life)("retry", ref=A)

    assert (len(answer["retried"]), answer["more"]) == (50, 10)
    assert len(runner.ids()) == 1 + 60 + 60


# --- settle ---


@in_virtual_loop
async def test_settle_when_an_event_was_given_up_then_is_never_offered_again_and_its_files_are_gone(
    root: StateRoot, runner: FakeRunner, source: FakeSource
) -> None:
    life = await given_up(root, runner, source, 1)

    answer = await Asked(life)("settle", ref=A, key="comment:1")

    assert answer == {"ref": A, "settled": "comment:1"}
    assert life.ledger(A).poll.pending == {}
    assert "comment:1" in life.ledger(A).poll.seen_comments
    assert files_of(root) == []
    (note,) = life.notes("dispatch.dropped")
    assert note["reason"] == "settled"
    await life.cycle()
    assert len(runner.ids()) == 2


@in_virtual_loop
async def test_settle_when_an_event_held_back_those_behind_it_then_they_go_at_once(
    root: StateRoot, runner: FakeRunner, source: FakeSource
) -> None:
    life = await live_item(root, runner, source)
    runner.script[f"{A}/comment:1"] = [REFUSED]
    source.write(A, make.entry(1), make.entry(2))
    await life.cycle()
    assert runner.ids()[-1] == f"{A}/comment:1"

    await Asked(life)("settle", ref=A, key="comment:1")

    assert runner.ids()[-1] == f"{A}/comment:2"
    assert life.ledger(A).poll.pending == {}


@in_virtual_loop
async def test_settle_when_it_is_repeated_then_says_the_same(
    root: StateRoot, runner: FakeRunner, source: FakeSource
) -> None:
    life = await given_up(root, runner, source, 1)
    asked = Asked(life)

    answers = [await asked("settle", ref=A, key=f"{A}/comment:1") for _ in range(3)]

    assert answers == [{"ref": A, "settled": "comment:1"}] * 3


@in_virtual_loop
async def test_settle_when_the_event_runs_then_is_refused_and_its_outcome_counts(
    root: StateRoot, runner: FakeRunner, source: FakeSource
) -> None:
    life = await running_comment(root, runner, source)
    before = life.ledger(A)

    with pytest.raises(LoopError, match="runs right now"):
        await Asked(life)("settle", ref=A, key="comment:1")

    assert life.ledger(A) == before
    runner.finish(f"{A}/comment:1", REFUSED)
    await idle()
    assert life.ledger(A).attempts("comment:1") == 1


@in_virtual_loop
async def test_settle_when_it_would_withdraw_an_event_that_runs_then_is_refused(
    root: StateRoot, runner: FakeRunner, source: FakeSource
) -> None:
    life = await running_comment(root, runner, source)
    source.write(A, make.entry(2, "the-loop stop"))
    await life.cycle()
    assert list(life.ledger(A).poll.pending) == ["comment:1", "close:1"]

    with pytest.raises(LoopError, match="'comment:1' runs right now"):
        await Asked(life)("settle", ref=A, key="close:1")

    assert list(life.ledger(A).poll.pending) == ["comment:1", "close:1"]


@pytest.mark.parametrize(
    ("key", "problem"),
    [("comment:9", "no such event"), ("17", "not an event id"), ("", "no 'key'"), (None, "no 'key'"), (5, "no 'key'")],
)
@in_virtual_loop
async def test_settle_when_there_is_no_such_event_then_is_refused(
    root: StateRoot, runner: FakeRunner, source: FakeSource, key: Any, problem: str
) -> None:
    life = await live_item(root, runner, source)

    with pytest.raises(LoopError, match=problem):
        await Asked(life)("settle", ref=A, key=key)


# --- reset ---


@in_virtual_loop
async def test_reset_when_an_item_is_live_then_the_next_cycle_starts_it_with_its_whole_thread(
    root: StateRoot, runner: FakeRunner, source: FakeSource
) -> None:
    life = await given_up(root, runner, source, 1)
    asked = Asked(life)

    assert await asked("reset", ref=A) == {"ref": A, "reset": True}

    assert files_of(root) == []
    assert asked.woken == ["fake"]
    await life.cycle()
    assert runner.ids()[-1] == f"{A}/spawn:2"
    assert [entry["id"] for entry in runner.got[-1]["thread"]] == ["1"]


@in_virtual_loop
async def test_reset_when_it_is_repeated_before_the_next_start_then_changes_nothing_more(
    root: StateRoot, runner: FakeRunner, source: FakeSource
) -> None:
    life = await live_item(root, runner, source)
    asked = Asked(life)
    await asked("reset", ref=A)
    before = root.ledger(A).stat().st_ino

    assert await asked("reset", ref=A) == {"ref": A, "reset": True}

    assert root.ledger(A).stat().st_ino == before
    await life.cycle()
    assert runner.ids() == [SPAWN, f"{A}/spawn:2"]


@in_virtual_loop
async def test_reset_when_a_delivery_runs_then_is_refused_and_the_delivery_goes_on(
    root: StateRoot, runner: FakeRunner, source: FakeSource
) -> None:
    life = await running_comment(root, runner, source)
    files = files_of(root)

    with pytest.raises(LoopError, match="'comment:1' runs right now"):
        await Asked(life)("reset", ref=A)

    assert files_of(root) == files
    runner.finish(f"{A}/comment:1")
    await idle()
    assert life.ledger(A).poll.pending == {}


@in_virtual_loop
async def test_reset_when_the_item_is_held_then_it_starts_over(
    root: StateRoot, runner: FakeRunner, source: FakeSource
) -> None:
    life = await live_item(root, runner, source)
    root.ledger(A).write_bytes(b"{")
    await life.cycle()
    assert list(life.ledgers.held()) == [A]
    asked = Asked(life)
    for verb, more in (("retry", {}), ("settle", {"key": "spawn:1"})):
        with pytest.raises(LoopError, match="is held"):
            await asked(verb, ref=A, **more)

    await asked("reset", ref=A)

    await life.cycle()
    assert life.ledgers.held() == {}
    assert life.ledger(A).poll.phase is Phase.LIVE


@in_virtual_loop
async def test_reset_when_a_held_item_has_an_outcome_of_its_old_spawn_then_that_does_not_settle_the_new_one(
    root: StateRoot, runner: FakeRunner, source: FakeSource
) -> None:
    runner.script[SPAWN] = [None]
    source.add(1)
    life = Life(root, runner, source)
    await life.cycle()
    await life.die()
    root.ledger(A).write_bytes(b"{")  # nothing tells its count of starts
    runner.finish(SPAWN)
    after = await next_life(life, root, runner, source)
    await after.cycle()
    assert files_of(root) != []

    await Asked(after)("reset", ref=A)
    assert files_of(root) == []
    await after.cycle()

    assert runner.ids() == [SPAWN, SPAWN]


@pytest.mark.parametrize("is_held", [True, False])
@in_virtual_loop
async def test_reset_when_a_delivery_runs_on_without_a_poller_then_is_refused_until_it_has_ended(
    root: StateRoot, runner: FakeRunner, source: FakeSource, is_held: bool
) -> None:
    runner.script[SPAWN] = [None]
    source.add(1)
    life = Life(root, runner, source)
    await life.cycle()
    await life.die()
    if is_held:
        root.ledger(A).write_bytes(b"{")
    alone = Overrides(Ledgers(root, life.told.append, life.clock), Deliveries(root))

    with claim(root.delivery(SPAWN)):  # as its keeper does
        with pytest.raises(LoopError, match="runs right now"):
            alone.reset(A)
        if not is_held:
            with pytest.raises(LoopError, match="runs right now"):
                alone.settle(A, "spawn:1")
    assert deliveries.beside(root.delivery(SPAWN), "payload.json").exists()

    alone.reset(A)

    assert files_of(root) == []


@in_virtual_loop
async def test_reset_when_another_items_name_begins_alike_then_its_files_stay(
    root: StateRoot, runner: FakeRunner, source: FakeSource
) -> None:
    long = "x" * 300
    for number in ("1", "11", long, f"{long}1"):
        source.add(number)  # type: ignore[arg-type]
    runner.default = REFUSED
    life = Life(root, runner, source)
    await life.cycle()
    asked = Asked(life)

    for ref in (A, f"fake:{long}"):
        before = {stem.name for stem in life.deliveries.stems()}
        own = life.deliveries.stems_of(ref)
        assert own == {life.deliveries.stem(ref, "spawn:1")}
        await asked("reset", ref=ref)
        assert {stem.name for stem in life.deliveries.stems()} == before - {stem.name for stem in own}


# --- faults ---


@pytest.mark.parametrize(("verb", "more"), [("retry", {}), ("settle", {"key": "comment:1"}), ("reset", {})])
@in_virtual_loop
async def test_request_when_the_disk_is_full_then_is_refused_and_nothing_has_changed(
    root: StateRoot,
    runner: FakeRunner,
    source: FakeSource,
    monkeypatch: pytest.MonkeyPatch,
    verb: str,
    more: dict[str, Any],
) -> None:
    life = await given_up(root, runner, source, 1)
    before, files = life.ledger(A), files_of(root)
    asked = Asked(life)
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", no_space)

        with pytest.raises(LoopError, match=f"cannot {verb} '{A}': No space left on device"):
            await asked(verb, ref=A, **more)

    assert (life.ledger(A), files_of(root)) == (before, files)
    await asked(verb, ref=A, **more)
    assert life.ledger(A) != before


@pytest.mark.parametrize(("verb", "more"), [("retry", {}), ("settle", {"key": "comment:1"}), ("reset", {})])
@in_virtual_loop
async def test_request_when_the_root_is_another_pollers_then_nothing_is_written(
    root: StateRoot, runner: FakeRunner, source: FakeSource, verb: str, more: dict[str, Any]
) -> None:
    life = await given_up(root, runner, source, 1)
    life.is_displaced = True

    with pytest.raises(LoopError, match="not ours"):
        await Asked(life)(verb, ref=A, **more)


@pytest.mark.parametrize("steps", range(1, 6))
@in_virtual_loop
async def test_reset_when_killed_at_any_write_then_it_happened_or_not_and_can_be_repeated(
    root: StateRoot, runner: FakeRunner, source: FakeSource, steps: int
) -> None:
    life = await given_up(root, runner, source, 1)
    runner.script[f"{A}/comment:2"] = [REFUSED]
    source.write(A, make.entry(2))
    await life.cycle()
    delivered = len(runner.ids())
    fuse = Fuse(at=steps)
    with fuse.watching_files(), contextlib.suppress(Crash):
        carry_out(Overrides(life.ledgers, life.deliveries), "reset", {"ref": A})
    after = await next_life(life, root, runner, source, max_retries=1)

    carry_out(Overrides(after.ledgers, after.deliveries), "reset", {"ref": A})
    await after.cycle()

    assert runner.ids()[delivered:] == [f"{A}/spawn:2"]
    assert [entry["id"] for entry in runner.got[-1]["thread"]] == ["1", "2"]


@pytest.mark.parametrize("steps", range(1, 5))
@in_virtual_loop
async def test_settle_when_killed_at_any_write_then_the_event_is_settled_or_offered_again_as_before(
    root: StateRoot, runner: FakeRunner, source: FakeSource, steps: int
) -> None:
    life = await live_item(root, runner, source)
    runner.script[f"{A}/comment:1"] = [REFUSED]
    source.write(A, make.entry(1))
    await life.cycle()
    fuse = Fuse(at=steps)
    with fuse.watching_files(), contextlib.suppress(Crash):
        carry_out(Overrides(life.ledgers, life.deliveries), "settle", {"ref": A, "key": "comment:1"})
    assert fuse.is_blown

    after = await next_life(life, root, runner, source, clock=life.clock)
    after.clock.run(900)
    await after.cycle()

    is_settled = steps > 2  # before: the withdrawal of the offer, and the ledger
    assert [(got["attempt"], got["redelivery"]) for got in runner.got[1:]] == [(1, False), (2, False)][: 2 - is_settled]
    assert after.ledger(A).poll.pending == {}
    assert files_of(root) == []
