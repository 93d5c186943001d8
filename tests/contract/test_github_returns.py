"""Items that come back: their label, or the item itself after it was closed."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.github.stories import LINGER_CYCLES, LISTING, begun, keys, thread_of, without
from support.world import REPO, in_real_loop, scene
from the_loop.core.model import Outcome, Verdict


class TestLabel:
    @pytest.mark.parametrize("restarts", [False, True])
    @in_real_loop
    async def test_item_when_unlabelled_then_what_is_written_meanwhile_comes_when_it_is_back(
        self, tmp_path: Path, restarts: bool
    ) -> None:
        world, number = await begun(tmp_path, pull_request=True)
        world.github.unlabel(REPO, number, "auto")
        for _ in range(3):
            await world.cycle()
            world.github.comment(REPO, number)
            world.github.review_comment(REPO, number)
        await world.cycle(times=5)
        assert world.ids() == ["1/spawn:1"]
        if restarts:
            world = world.restart()
        world.github.label(REPO, number, "auto")
        await world.cycle(times=2)

        written = [f"{kind}:{id_}" for id_ in (1001, 1002, 1003) for kind in ("comment", "review_comment")]
        assert sorted(world.ids(number)) == sorted(["spawn:1", *written])
        assert [key for key in world.ids(number) if key.startswith("comment")] == keys("comment", (1001, 1002, 1003))

    @in_real_loop
    async def test_item_when_closed_while_unlabelled_then_is_closed_within_thirty_cycles(self, tmp_path: Path) -> None:
        world, number = await begun(tmp_path)
        world.github.unlabel(REPO, number, "auto")
        await world.cycle(times=2)
        world.github.close(REPO, number)
        await world.cycle(times=31 + LINGER_CYCLES)

        assert world.ids() == ["1/spawn:1", "1/close:1"]
        assert len(world.github.requests_matching(r"/issues/1$")) <= 4

    @pytest.mark.parametrize("restarts", [False, True])
    @in_real_loop
    async def test_item_when_unlabelled_and_closed_and_back_each_time_then_nothing_old_comes_again(
        self, tmp_path: Path, restarts: bool
    ) -> None:
        """Elsewhere a label off and on, or closing and reopening, replayed old triggers or left the item deaf."""
        world, number = await begun(tmp_path)
        github = world.github

        async def write(count: int) -> None:
            nonlocal world
            for _ in range(count):
                github.comment(REPO, number)
            await world.cycle(times=2)
            world = world.restart() if restarts else world

        await write(3)
        github.unlabel(REPO, number, "auto")
        await write(2)
        github.label(REPO, number, "auto")
        await write(0)
        github.close(REPO, number)
        await world.cycle(times=LINGER_CYCLES)
        await write(1)
        github.reopen(REPO, number)
        await write(0)
        await write(1)

        assert world.ids() == [
            "1/spawn:1",
            *(f"1/comment:{id_}" for id_ in (1001, 1002, 1003, 1004, 1005)),
            "1/close:1",
            "1/spawn:2",
            "1/comment:1007",
        ]
        assert thread_of(world, number) == keys("comment", range(1001, 1007))

    @pytest.mark.parametrize("times", [1, 5])
    @in_real_loop
    async def test_label_when_taken_off_and_put_back_between_two_looks_then_nobody_notices(
        self, tmp_path: Path, times: int
    ) -> None:
        world, number = await begun(tmp_path)
        for _ in range(times):
            world.github.unlabel(REPO, number, "auto")
            world.github.label(REPO, number, "auto")
        world.github.comment(REPO, number)
        await world.cycle(times=2)

        assert world.ids() == ["1/spawn:1", "1/comment:1001"]

    @in_real_loop
    async def test_label_when_renamed_then_all_items_wait_and_go_on_when_it_is_back(self, tmp_path: Path) -> None:
        world = scene(tmp_path)
        numbers = [world.add_issue() for _ in range(20)]
        await world.cycle()
        for number in numbers:
            world.github.unlabel(REPO, number, "auto")
            world.github.label(REPO, number, "automatic")
        await world.cycle(times=3)
        for number in numbers:
            world.github.comment(REPO, number)
        await world.cycle(times=3)
        assert len(world.ids()) == 20
        for number in numbers:
            world.github.label(REPO, number, "AUTO")
        await world.cycle(times=2)

        assert [world.ids(number)[1:] for number in numbers] == [[f"comment:{id_}"] for id_ in range(1001, 1021)]

    @pytest.mark.parametrize(
        "label", ["auto", "AUTO", "a b", "a+b&c=d", "50%", "#1?", "grün/später", "🦉", 'it\'s "x"', "."]
    )
    @in_real_loop
    async def test_label_when_of_any_characters_then_its_items_are_found_and_no_others(
        self, tmp_path: Path, label: str
    ) -> None:
        world = scene(tmp_path, section={"label": label})
        number = world.add_issue(labels=("other", label.title()))
        world.add_issue(labels=("other",))
        world.add_issue(labels=(f"{label}er",))
        await world.cycle()
        world.github.fail(LISTING, without(number))
        await world.cycle()
        assert not world.ledger(number)["poll"]["away"], "asked about by itself, it has its label still"
        world.github.comment(REPO, number)
        await world.cycle(times=2)

        assert world.ids() == [f"{number}/spawn:1", f"{number}/comment:1001"]


class TestReopened:
    @in_real_loop
    async def test_item_when_reopened_within_the_linger_then_goes_on(self, tmp_path: Path) -> None:
        world, number = await begun(tmp_path)
        world.github.close(REPO, number)
        await world.cycle()
        world.github.comment(REPO, number)
        await world.cycle()
        world.github.reopen(REPO, number)
        world.github.comment(REPO, number)
        await world.cycle(times=LINGER_CYCLES)
        world.github.comment(REPO, number)
        await world.cycle()

        assert world.ids() == ["1/spawn:1", "1/comment:1001", "1/comment:1002", "1/comment:1003"]

    @in_real_loop
    async def test_item_when_reopened_later_then_starts_again_with_its_thread(self, tmp_path: Path) -> None:
        world = scene(tmp_path)
        number = world.add_issue()
        world.github.comment(REPO, number)
        await world.cycle()
        world.github.close(REPO, number)
        await world.cycle(times=LINGER_CYCLES)
        world.github.comment(REPO, number, body="While it was closed.")
        await world.cycle()
        world = world.restart()
        world.github.reopen(REPO, number)
        await world.cycle()
        world.github.comment(REPO, number, body="Now it is open.")
        await world.cycle(times=2)

        assert world.ids() == ["1/spawn:1", "1/close:1", "1/spawn:2", "1/comment:1003"]
        assert thread_of(world, number) == ["comment:1001", "comment:1002"]

    @in_real_loop
    async def test_item_when_closed_and_reopened_between_two_looks_then_nobody_notices(self, tmp_path: Path) -> None:
        world, number = await begun(tmp_path)
        world.github.close(REPO, number)
        world.github.comment(REPO, number)
        world.github.reopen(REPO, number)
        await world.cycle(times=LINGER_CYCLES)

        assert world.ids() == ["1/spawn:1", "1/comment:1001"]

    @in_real_loop
    async def test_pull_request_when_reopened_then_carries_its_reviews_and_none_comes_again(
        self, tmp_path: Path
    ) -> None:
        world, number = await begun(tmp_path, pull_request=True)
        world.github.review(REPO, number, body="Before.")
        world.github.review_comment(REPO, number)
        await world.cycle()
        world.github.close(REPO, number)
        await world.cycle(times=LINGER_CYCLES)
        world.github.review(REPO, number, state="APPROVED")
        world.github.reopen(REPO, number)
        await world.cycle(times=2)
        world.github.review(REPO, number, body="After.")
        await world.cycle(times=2)
        (*first, spawn, last) = world.ids(number)

        assert sorted(first) == ["close:1", "review:1001", "review_comment:1001", "spawn:1"]
        assert (first[-1], spawn, last) == ("close:1", "spawn:2", "review:1003")
        assert sorted(thread_of(world, number)) == ["review:1001", "review:1002", "review_comment:1001"]

    @in_real_loop
    async def test_item_when_reopened_while_its_close_is_on_its_way_then_starts_after_it(self, tmp_path: Path) -> None:
        world, number = await begun(tmp_path)
        world.sink.answers[f"github:{REPO}#1/close:1"] = [Outcome(Verdict.LATER)] * 2
        world.github.close(REPO, number)
        await world.cycle(times=LINGER_CYCLES)
        world.github.reopen(REPO, number)
        world.github.comment(REPO, number)
        await world.cycle(times=10)

        assert world.ids() == ["1/spawn:1", "1/close:1", "1/close:1", "1/close:1", "1/spawn:2"]
        assert thread_of(world, number) == ["comment:1001"]

    @in_real_loop
    async def test_item_when_reopened_again_and_again_then_its_starts_are_counted(self, tmp_path: Path) -> None:
        world, number = await begun(tmp_path)
        for _ in range(3):
            world.github.close(REPO, number)
            await world.cycle(times=LINGER_CYCLES)
            world = world.restart()
            world.github.reopen(REPO, number)
            await world.cycle()

        assert world.ids(number) == ["spawn:1", "close:1", "spawn:2", "close:2", "spawn:3", "close:3", "spawn:4"]
