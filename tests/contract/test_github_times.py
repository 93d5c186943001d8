"""Seconds that many rows share, answers that lag, and rows that come to light late."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from support.github.rows import iso
from support.github.stories import COMMENTS, begun, edited, everything_of, keys
from support.github.values import Rules, View
from support.world import REPO, in_real_loop, scene


class TestTimes:
    @pytest.mark.parametrize("inclusive", [True, False])
    @in_real_loop
    async def test_rows_when_seconds_are_shared_then_all_arrive_whatever_since_means(
        self, tmp_path: Path, inclusive: bool
    ) -> None:
        """Bursts within one second, on both sides of a look, at odd fractions of it."""
        world = scene(tmp_path, Rules(since_inclusive=inclusive), interval_s=7)
        number = world.add_issue()
        await world.cycle()
        written = []
        for _ in range(60):
            world.clock.run(0.4)
            written += [world.github.comment(REPO, number) for _ in range(3)]
            await world.cycle()
            written += [world.github.comment(REPO, number, created=world.clock.now - 6.9) for _ in range(2)]
        await world.cycle(times=2)

        assert sorted(world.ids(number)) == sorted(["spawn:1", *keys("comment", written)])

    @pytest.mark.parametrize("inclusive", [True, False])
    @in_real_loop
    async def test_rows_when_all_of_one_second_then_none_is_lost_or_doubled(
        self, tmp_path: Path, inclusive: bool
    ) -> None:
        """Elsewhere the cursor was a second, and what came later within it was before the cursor."""
        world = scene(tmp_path, Rules(since_inclusive=inclusive), interval_s=1)
        number = world.add_issue(pull_request=True)
        await world.cycle(times=5)
        world.clock.now = float(int(world.clock.now))
        written = []
        for _ in range(4):
            written += [world.github.comment(REPO, number) for _ in range(22)]
            world.clock.now += 0.2
            await world.cycle()
            world.clock.now -= 1
        await world.cycle(times=3)

        assert world.ids(number) == ["spawn:1", *keys("comment", written)]

    @pytest.mark.parametrize("seconds", [-1, -100, 0, 1, 100])
    @in_real_loop
    async def test_row_when_its_two_times_differ_then_comes_once(self, tmp_path: Path, seconds: int) -> None:
        """Elsewhere "edited" was told by two times that differ, which those of a fresh comment may."""

        def shifted(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
            return [{**row, "updated_at": iso(int(world.clock.now) + seconds)} for row in rows]

        world, number = await begun(tmp_path)
        world.github.fail(COMMENTS, edited(shifted, is_lasting=True), times=None)
        written = []
        for _ in range(5):
            written.append(world.github.comment(REPO, number))
            await world.cycle()
        world = world.restart()
        await world.cycle(times=2)

        assert world.ids(number) == ["spawn:1", *keys("comment", written)]

    @in_real_loop
    async def test_pending_review_when_submitted_late_then_its_comments_arrive(self, tmp_path: Path) -> None:
        world = scene(tmp_path)
        number = world.add_issue(pull_request=True)
        await world.cycle(times=2)
        late = world.github.review_comment(REPO, number, created=world.clock.now, visible=world.clock.now + 7200)
        for _ in range(60):
            world.github.comment(REPO, number, "stranger")
            world.github.review_comment(REPO, number, "stranger")
            await world.cycle(times=2)
        await world.cycle()

        assert world.ids() == ["1/spawn:1", f"1/review_comment:{late}"]


class TestLag:
    @pytest.mark.parametrize("late", [*View, None])
    @in_real_loop
    async def test_rows_when_answers_lag_then_all_arrive_once(self, tmp_path: Path, late: View | None) -> None:
        """Each kind of answer in turn is 20 s behind all others, then each answer by up to 20 s, at random."""
        seed = 20
        print("seed", seed)
        random = Random(seed)

        def lag_s(view: View) -> float:
            return random.uniform(0, 20) if late is None else 20.0 * (view is late)

        world = scene(tmp_path, Rules(lag_s=lag_s), interval_s=25)
        github = world.github
        numbers = [world.add_issue(pull_request=bool(n % 2)) for n in range(4)]
        away, written = set[int](), []
        for _ in range(150):
            world.clock.run(random.uniform(0, 6))
            number = random.choice(numbers)
            if random.random() < 0.2:
                (github.label if number in away else github.unlabel)(REPO, number, "auto")
                away ^= {number}
            elif number % 2 == 0 and random.random() < 0.5:
                written.append((number, f"review_comment:{github.review_comment(REPO, number)}"))
            else:
                written.append((number, f"comment:{github.comment(REPO, number)}"))
            if random.random() < 0.3:
                await world.cycle()
        for number in away:
            github.label(REPO, number, "auto")
        await world.cycle(times=5)

        for number in numbers:
            arrived = everything_of(world, number)
            for kind in ("comment", "review_comment"):
                mine = [key for at, key in written if at == number and key.startswith(f"{kind}:")]
                assert [key for key in arrived if key.startswith(f"{kind}:")] == mine
            assert [key for key in arrived if key.startswith("spawn")] == ["spawn:1"]

    @pytest.mark.parametrize("is_known", [False, True])
    @in_real_loop
    async def test_row_when_its_thread_lags_behind_the_list_of_all_then_arrives(
        self, tmp_path: Path, is_known: bool
    ) -> None:
        """The one look that shows it reads the thread as well, which does not have it yet; then all is quiet."""
        world = scene(tmp_path)
        number = world.add_issue()
        world.github.unlabel(REPO, number, "auto")
        if is_known:
            world.github.label(REPO, number, "auto")
            await world.cycle()
            world.github.unlabel(REPO, number, "auto")
        await world.cycle(times=2)
        world.github.rules = Rules(lag_s=lambda view: 20.0 * (view is View.THREAD))
        world.github.label(REPO, number, "auto")
        world.clock.run(30)
        world.github.comment(REPO, number)
        world.clock.run(5)
        await world.cycle(times=5)

        assert everything_of(world, number) == ["spawn:1", "comment:1001"]
