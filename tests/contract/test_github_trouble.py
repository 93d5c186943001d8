"""A server that limits, hangs or talks nonsense within a look: what was read counts, what was not comes later."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.github import faults
from support.github.values import Rules
from support.world import REPO, World, in_real_loop, scene
from the_loop.sources.github import poll as poll_module
from the_loop.sources.github.section import Monitor

HOUR = 60  # looks


async def started(folder: Path, count: int, rules: Rules | None = None, **options: Any) -> World:
    """So many pull requests, all of them started and their reviews read once."""
    world = scene(folder, rules, **options)
    for _ in range(count):
        world.add_issue(pull_request=True)
    await world.cycle(times=2 + count // 50)
    assert len(world.ids()) == count
    return world


def limit(world: World, points: int) -> None:
    """From the next hour on there are so many."""
    world.clock.run(3600)
    world.github.rules = replace(world.github.rules, rate_limit=points)


class TestLimited:
    @in_real_loop
    async def test_reviews_when_there_are_more_than_points_then_arrive_over_the_hours(self, tmp_path: Path) -> None:
        """The look that meets the limit must keep what it read, or the next one spends its hour on the same."""
        world = await started(tmp_path, 80)
        limit(world, 60)
        for number in range(1, 81):
            world.github.review(REPO, number, body="Well done.", state="APPROVED")
        await world.cycle(times=HOUR)
        first = sum("review" in name for name in world.ids())
        await world.cycle(times=HOUR)

        assert 40 < first < 80
        assert sum("review" in name for name in world.ids()) == 80
        assert world.state == "ok"

    @pytest.mark.parametrize("how", ["close", "unlabel"])
    @in_real_loop
    async def test_departures_when_there_are_more_than_points_then_are_noticed_over_the_hours(
        self, tmp_path: Path, how: str
    ) -> None:
        world = await started(tmp_path, 80, linger_s=0)
        limit(world, 60)
        for number in range(1, 81):
            if how == "close":
                world.github.close(REPO, number)
            else:
                world.github.unlabel(REPO, number, "auto")
        await world.cycle(times=9 * HOUR if how == "close" else 2 * HOUR)

        if how == "close":
            assert sum("close" in name for name in world.ids()) == 80
        else:
            assert all(world.ledger(number)["poll"]["away"] for number in range(1, 81))

    @in_real_loop
    async def test_limit_when_met_among_single_questions_then_nobody_asks_before_its_moment(
        self, tmp_path: Path
    ) -> None:
        world = await started(tmp_path, 10)
        world.github.fail(r"/pulls/5/reviews", faults.secondary_limit(600))
        for number in range(1, 11):
            world.github.comment(REPO, number)
        await world.cycle(times=15)

        (met,) = [entry for entry in world.github.log if entry.status == 403]
        assert [entry for entry in world.github.log if met.time < entry.time < met.time + 600] == []
        assert sum("comment" in name for name in world.ids()) == 10


class TestUnanswered:
    @pytest.mark.parametrize("effect", [faults.server_error(), faults.hang()])
    @in_real_loop
    async def test_reviews_when_the_server_gives_none_then_few_are_asked_for_and_all_come_in_the_end(
        self, tmp_path: Path, effect: faults.Effect
    ) -> None:
        """One after the other would wait for its time-out, and nothing else is done meanwhile."""
        world = await started(tmp_path, 60)
        fault = world.github.fail(r"/pulls/\d+/reviews", effect, times=None)
        for number in range(1, 61):
            world.github.review(REPO, number, body="Well done.")
        asked = []
        for _ in range(10):
            before = world.github.requests
            await world.cycle()
            asked.append(world.github.requests - before)
        assert max(asked) <= 3 + 3 + 4  # of one of them, smaller pages too
        assert world.state == "failing"
        world.github.faults.remove(fault)
        await world.cycle(times=4)

        assert sum("review" in name for name in world.ids()) == 60
        assert world.state == "ok"

    @in_real_loop
    async def test_reviews_when_three_are_broken_for_good_then_the_others_arrive(self, tmp_path: Path) -> None:
        world = await started(tmp_path, 12)
        world.github.fail(r"/pulls/[123]/reviews", faults.server_error(), times=None)
        for number in range(1, 13):
            world.github.review(REPO, number, body="Well done.")
        await world.cycle(times=12)

        assert sum("review" in name for name in world.ids()) == 9

    @in_real_loop
    async def test_departures_when_the_server_tells_of_none_then_few_are_asked_about(self, tmp_path: Path) -> None:
        world = await started(tmp_path, 40, linger_s=0)
        fault = world.github.fail(r"/issues/\d+$", faults.server_error(), times=None)
        for number in range(1, 41):
            world.github.close(REPO, number)
        before = len(world.github.log)
        await world.cycle()
        assert sum(entry.status >= 500 for entry in world.github.log[before:]) == 3
        world.github.faults.remove(fault)
        await world.cycle(times=2)

        assert sum("close" in name for name in world.ids()) == 40


class TestMany:
    @pytest.mark.parametrize("what", ["reviews", "departures"])
    @in_real_loop
    async def test_questions_when_there_are_more_than_one_look_may_ask_then_come_in_several(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
    ) -> None:
        """A look that asks about thousands of items one by one takes so long that it is taken for stuck."""
        monkeypatch.setattr(poll_module, "QUESTIONS", 20)
        world = await started(tmp_path, 90, linger_s=0)
        await world.cycle(times=10)
        for number in range(1, 91):
            if what == "reviews":
                world.github.review(REPO, number, body="Well done.")
            else:
                world.github.close(REPO, number)
        asked = []
        for _ in range(24):
            before = world.github.requests
            await world.cycle()
            asked.append(world.github.requests - before)

        # three lists and the questions; whatever ended is read as a whole as well, that is four requests
        assert max(asked) <= 3 + 20 + (20 * 4 if what == "departures" else 0)
        word = "review" if what == "reviews" else "close"
        assert sum(word in name for name in world.ids()) == 90


class TestNonsense:
    @pytest.mark.parametrize(
        "effect",
        [
            faults.reply(500, {}, {"Date": "Mon, 1 Jan 99999999999999999999 00:00:00 GMT"}),
            faults.reply(403, b'{"message": "x", "errors": ' + b"[" * 969 + b"]" * 969 + b"}"),
            faults.reply(403, b'{"message": {"a": ["x"]}, "errors": 1}'),
        ],
        ids=["date", "nested", "message"],
    )
    @in_real_loop
    async def test_answer_when_odd_then_costs_its_repository_and_no_position(
        self, tmp_path: Path, effect: faults.Effect
    ) -> None:
        world = scene(tmp_path, repos=(REPO, "octo/other"))
        for repo in (REPO, "octo/other"):
            world.add_issue(repo=repo)
        await world.cycle(times=2)
        world.github.fail(r"octo/other", effect, times=None)
        world.github.comment(REPO, 1)
        await world.cycle()

        assert "1/comment:1001" in world.ids()
        assert "unexpected" not in world.watched.error
        assert world.cursor()["position"]["repos"].keys() == {REPO, "octo/other"}


class TestCost:
    @pytest.mark.parametrize("monitor", [Monitor(pull_requests=False), Monitor(issues=False)])
    @in_real_loop
    async def test_look_when_a_kind_is_not_monitored_then_costs_no_point_for_it(
        self, tmp_path: Path, monitor: Monitor
    ) -> None:
        world = scene(tmp_path, section={"monitor": monitor})
        world.add_issue()
        world.add_issue(pull_request=True)
        await world.cycle(times=3)
        spent = world.github.points
        await world.cycle(times=10)

        assert world.github.points == spent
        assert len(world.ids()) == 1

    @in_real_loop
    async def test_item_without_label_when_closed_then_its_validator_does_not_hide_that(self, tmp_path: Path) -> None:
        world = await started(tmp_path, 3)
        world.github.unlabel(REPO, 2, "auto")
        await world.cycle(times=35)
        spent = world.github.points
        await world.cycle(times=60)
        assert world.github.points == spent
        world.github.close(REPO, 2)
        await world.cycle(times=40)

        assert world.ids()[-1] == "2/close:1"


class TestTurns:
    @pytest.mark.parametrize("looks", [1, 5, 13, 100])
    @in_real_loop
    async def test_review_when_it_moves_nothing_else_then_is_found_within_its_turn_whatever_restarts(
        self, tmp_path: Path, looks: int
    ) -> None:
        """Lives that all began at the same turn would never come to the others."""
        world = await started(tmp_path, 30, Rules(reviews_move_issue=False))
        await world.cycle(times=33)
        for number in range(1, 31):
            world.github.review(REPO, number, body="Well done.")
        for look in range(36):
            if look % looks == 0:
                world = world.restart()
            await world.cycle()

        assert sum("review" in name for name in world.ids()) == 30

    @in_real_loop
    async def test_review_when_its_look_failed_then_keeps_its_turn(self, tmp_path: Path) -> None:
        world = await started(tmp_path, 10, Rules(reviews_move_issue=False))
        world.github.fail(r"/issues\?", faults.server_error(), times=3)
        for number in range(1, 11):
            world.github.review(REPO, number, body="Well done.")
        await world.cycle(times=3)
        while world.state != "ok":
            await world.cycle()
        await world.cycle(times=29)

        assert sum("review" in name for name in world.ids()) == 10
