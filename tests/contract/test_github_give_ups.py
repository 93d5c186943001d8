"""A give-up is told on its item once, whatever becomes of the poller, of the request, or of its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from support.fuse import Crash, Fuse
from support.github import faults
from support.github.values import Answer
from support.world import REPO, World, in_real_loop, scene
from the_loop.core.model import Outcome, Verdict

POST = r"^POST "
MARKER = "<!-- the-loop -->"
REFUSALS = 12  # looks until three refusals are through


def refused(folder: Path, *, is_pull: bool = False, report_give_ups: bool = True, fuse: Fuse | None = None) -> World:
    """One item with a comment that its session refuses for ever."""
    world = scene(folder, report_give_ups=report_give_ups, fuse=fuse)
    number = world.add_issue(pull_request=is_pull)
    world.sink.answers[f"github:{REPO}#{number}/comment:1001"] = [Outcome(Verdict.REFUSED, "exit 1")] * 50
    return world


async def given_up(folder: Path, *, is_pull: bool = False, report_give_ups: bool = True) -> World:
    world = refused(folder, is_pull=is_pull, report_give_ups=report_give_ups)
    await world.cycle()
    world.github.comment(REPO, 1)
    await world.cycle(times=REFUSALS)
    assert world.told("poll.comment_failed")[-1].fields["willRetry"] is False
    return world


def notices(world: World) -> list[str]:
    """What our token wrote on item 1."""
    rows = world.github.repo(REPO).rows
    bodies = (row.state(0).body or "" for kind in rows.values() for row in kind.values())
    return [body for body in bodies if body.rstrip().endswith(MARKER)]


class TestTelling:
    @pytest.mark.parametrize("is_pull", [False, True])
    @in_real_loop
    async def test_event_when_given_up_then_is_told_once_and_the_notice_is_no_event(
        self, tmp_path: Path, is_pull: bool
    ) -> None:
        world = await given_up(tmp_path, is_pull=is_pull)
        world = world.restart()
        await world.cycle(times=20)

        (notice,) = notices(world)
        assert f"https://github.com/{REPO}/{'pull' if is_pull else 'issues'}/1#issuecomment-1001" in notice
        assert "rejected it 3 times" in notice
        assert f"`the-loop ledger retry 'github:{REPO}#1'`" in notice
        assert world.ids() == ["1/spawn:1", *["1/comment:1001"] * 3]

    @in_real_loop
    async def test_event_when_given_up_and_nobody_asked_for_notices_then_nothing_is_written(
        self, tmp_path: Path
    ) -> None:
        world = await given_up(tmp_path, report_give_ups=False)
        assert notices(world) == []
        world = world.restart(report_give_ups=True)
        await world.cycle(times=5)

        assert notices(world) == []
        assert world.github.requests_matching(POST) == []

    @in_real_loop
    async def test_spawn_when_given_up_again_and_again_then_is_told_once(self, tmp_path: Path) -> None:
        """Each new comment tries it again; that is no reason to write another notice below each."""
        world = scene(tmp_path, report_give_ups=True)
        number = world.add_issue()
        world.sink.answers[f"github:{REPO}#{number}/spawn:1"] = [Outcome(Verdict.REFUSED, "exit 1")] * 50
        await world.cycle(times=REFUSALS)
        world.github.comment(REPO, number)
        await world.cycle(times=REFUSALS + 15)

        assert world.ids() == ["1/spawn:1"] * 6
        assert len(notices(world)) == 1
        assert "deliver this item to the session" in notices(world)[0]

    @in_real_loop
    async def test_close_when_given_up_then_is_not_told(self, tmp_path: Path) -> None:
        """The item is over: nobody looks there any more."""
        world = scene(tmp_path, report_give_ups=True)
        world.sink.answers[f"github:{REPO}#{world.add_issue()}/close:1"] = [Outcome(Verdict.REFUSED, "exit 1")] * 9
        await world.cycle()
        world.github.close(REPO, 1)
        await world.cycle(times=REFUSALS + 5)

        assert world.ids() == ["1/spawn:1", *["1/close:1"] * 3]
        assert notices(world) == []

    @pytest.mark.parametrize("effect", [faults.permission_denied(), faults.reply(404, {}), faults.reply(410, {})])
    @in_real_loop
    async def test_notice_when_the_token_may_not_write_then_is_left_and_nothing_else_suffers(
        self, tmp_path: Path, effect: faults.Effect
    ) -> None:
        world = refused(tmp_path)
        world.github.fail(POST, effect, times=None)
        await world.cycle()
        world.github.comment(REPO, 1)
        await world.cycle(times=REFUSALS)
        world.github.comment(REPO, 1)
        world = world.restart()
        await world.cycle(times=10)

        assert len(world.github.requests_matching(POST)) == 1
        assert world.ids()[-1] == "1/comment:1002"
        assert world.state == "ok"


def lost(genuine: Callable[[], Answer]) -> Answer:
    """It happened, and nobody hears of it."""
    genuine()
    return Answer(502, {}, b"<html>Bad gateway")


class TestOnce:
    @pytest.mark.parametrize("effect", [lost, faults.server_error(), faults.hang(), faults.cut()])
    @in_real_loop
    async def test_notice_when_its_answer_is_lost_then_is_looked_for_before_it_is_written_again(
        self, tmp_path: Path, effect: faults.Effect
    ) -> None:
        world = refused(tmp_path)
        world.github.fail(POST, effect)
        await world.cycle()
        world.github.comment(REPO, 1)
        await world.cycle(times=REFUSALS + 8)

        assert len(notices(world)) == 1

    @in_real_loop
    async def test_notice_when_the_clocks_differ_and_its_answer_is_lost_then_is_there_once(
        self, tmp_path: Path
    ) -> None:
        world = scene(tmp_path, report_give_ups=True)
        world.github.clock = lambda: world.clock() - 600.0
        world.sink.answers[f"github:{REPO}#{world.add_issue()}/comment:1001"] = [Outcome(Verdict.REFUSED, "x")] * 9
        world.github.fail(POST, lost)
        await world.cycle()
        world.github.comment(REPO, 1)
        await world.cycle(times=REFUSALS + 8)

        assert len(notices(world)) == 1

    @in_real_loop
    async def test_notices_when_many_are_due_then_come_some_at_a_time(self, tmp_path: Path) -> None:
        """Writing much in a short time meets limits that hold for reading too."""
        world = scene(tmp_path, report_give_ups=True)
        for number in range(1, 31):
            world.add_issue()
            refusals = [Outcome(Verdict.REFUSED, "exit 1")] * 3
            world.sink.answers[f"github:{REPO}#{number}/spawn:1"] = refusals
        written = []
        for _ in range(REFUSALS):
            before = len(world.github.requests_matching(POST))
            await world.cycle()
            written.append(len(world.github.requests_matching(POST)) - before)

        assert [count for count in written if count] == [10, 10, 10]

    @in_real_loop
    async def test_notice_when_its_source_has_a_fault_of_its_own_then_costs_that_notice(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        world = refused(tmp_path)
        await world.cycle()
        world.github.comment(REPO, 1)

        async def broken(*_: object) -> str:
            raise ValueError("a bug")

        monkeypatch.setattr(world.watched.source, "report", broken)
        await world.cycle(times=REFUSALS)
        world.github.comment(REPO, 1)
        await world.cycle()

        assert world.ids()[-1] == "1/comment:1002"
        assert {note.fields["reason"] for note in world.told("item.failed")} == {"cannot post the notice: a bug"}

    @in_real_loop
    async def test_notice_when_limited_then_comes_after_the_wait(self, tmp_path: Path) -> None:
        world = refused(tmp_path)
        world.github.fail(POST, faults.secondary_limit(600))
        await world.cycle()
        world.github.comment(REPO, 1)
        await world.cycle(times=REFUSALS)
        asked = world.github.requests_matching(POST)
        assert [entry.status for entry in asked] == [403]
        assert notices(world) == []
        await world.cycle(times=12)

        posts = world.github.requests_matching(POST)
        assert [entry.status for entry in posts] == [403, 201]
        silent = [entry.time for entry in world.github.log if asked[0].time < entry.time < asked[0].time + 600]
        assert silent == []

    @in_real_loop
    async def test_notice_when_killed_or_stopped_at_any_step_then_is_there_once(self, tmp_path: Path) -> None:
        async def live(folder: Path, fuse: Fuse | None = None) -> World:
            world = refused(folder)
            await world.cycle()
            world.github.comment(REPO, 1)
            await world.cycle(times=7)
            assert notices(world) == []
            world = world.restart(fuse=fuse or Fuse())
            for _ in range(8):
                try:
                    await world.cycle()
                except Crash:
                    world = world.restart()
                except asyncio.CancelledError:
                    await world.stop()
                    world = world.restart()
            return world

        oracle = await live(tmp_path / "oracle")
        assert len(notices(oracle)) == 1
        steps = oracle.fuse.steps
        assert {"request", "change"} <= set(steps)
        for error in (Crash, asyncio.CancelledError):
            for at in range(1, len(steps) + 1):
                if error is asyncio.CancelledError and steps[at - 1] != "request":
                    continue
                fuse = Fuse(at=at, error=error)
                world = await live(tmp_path / f"{error.__name__}-{at}", fuse)
                assert len(notices(world)) == 1, f"{error.__name__} at step {at}, a {steps[at - 1]}"
                assert world.ids() == oracle.ids()
