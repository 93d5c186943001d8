"""Items that are not found: what proves that they are gone, and what does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.github import faults
from support.github.faults import Effect
from support.github.stories import FAILURES, LINGER_CYCLES, LISTING, begun, edited, without
from support.world import REPO, in_real_loop, scene

NOT_FOUND = faults.reply(404, {"message": "Not Found"})


class TestGone:
    @in_real_loop
    async def test_item_when_deleted_then_closes_and_the_others_go_on(self, tmp_path: Path) -> None:
        world = scene(tmp_path)
        number, other = world.add_issue(), world.add_issue()
        await world.cycle()
        world.github.delete_issue(REPO, number)
        world.github.comment(REPO, other)
        await world.cycle(times=LINGER_CYCLES + 1)

        assert world.ids(number) == ["spawn:1", "close:1"]
        assert world.received[-1]["reason"] == "deleted"
        assert world.ids(other) == ["spawn:1", "comment:1001"]
        assert world.told("item.failed") == []

    @pytest.mark.parametrize("status", [404, 410])
    @in_real_loop
    async def test_item_when_closed_and_then_deleted_within_the_linger_then_closes(
        self, tmp_path: Path, status: int
    ) -> None:
        """There is no thread any more for the last look."""
        world, number = await begun(tmp_path)
        world.github.close(REPO, number)
        await world.cycle(times=2)
        world.github.delete_issue(REPO, number)
        if status == 404:
            world.github.fail(r"/issues/1($|/)", NOT_FOUND, times=None)
        await world.cycle(times=LINGER_CYCLES)

        assert world.ids() == ["1/spawn:1", "1/close:1"]
        assert world.told("item.failed") == []

    @in_real_loop
    async def test_item_when_missing_in_two_cycles_then_is_deleted(self, tmp_path: Path) -> None:
        world, number = await begun(tmp_path)
        world.github.delete_issue(REPO, number)
        world.github.fail(r"/issues/1$", NOT_FOUND, times=None)
        await world.cycle()
        assert world.cursor()["position"]["repos"][REPO]["left"] == {}
        await world.cycle(times=LINGER_CYCLES)

        assert world.ids() == ["1/spawn:1", "1/close:1"]
        assert world.received[-1]["reason"] == "deleted"

    @in_real_loop
    async def test_item_when_missing_once_then_nothing_changes(self, tmp_path: Path) -> None:
        """Elsewhere one 404, or one listing without it, was taken for the end."""
        world, number = await begun(tmp_path)
        world.github.fail(LISTING, without(number))
        world.github.fail(r"/issues/1$", NOT_FOUND)
        world.github.comment(REPO, number)  # shown by a list just then, and never again
        await world.cycle(times=10)

        assert world.ids() == ["1/spawn:1", "1/comment:1001"]

    @in_real_loop
    async def test_item_when_missing_while_its_repository_is_too_then_nothing_changes(self, tmp_path: Path) -> None:
        """A token that lost its rights sees 404 for everything; here the list still comes from a cache."""
        world, number = await begun(tmp_path)
        gone = faults.reply(404, {"message": "Not Found"})
        fault = [world.github.fail(LISTING, without(number), times=None)]
        fault += [world.github.fail(pattern, gone, times=None) for pattern in (r"/issues/1$", r"/repos/octo/repo$")]
        await world.cycle(times=10)
        assert (world.ids(), world.state) == (["1/spawn:1"], "failing")

        for one in fault:
            world.github.faults.remove(one)
        world.github.comment(REPO, number)
        world.clock.run(600)
        await world.cycle()
        assert (world.ids(), world.state) == (["1/spawn:1", "1/comment:1001"], "ok")

    @pytest.mark.parametrize("restarts", [False, True])
    @in_real_loop
    async def test_item_when_missing_in_looks_that_do_not_follow_each_other_then_nothing_changes(
        self, tmp_path: Path, restarts: bool
    ) -> None:
        world, number = await begun(tmp_path)
        for _ in range(4):
            world.github.fail(LISTING, without(number))
            world.github.fail(r"/issues/1$", NOT_FOUND)
            await world.cycle(times=2)
            world = world.restart() if restarts else world
        world.github.comment(REPO, number)
        await world.cycle(times=LINGER_CYCLES)

        assert world.ids() == ["1/spawn:1", "1/comment:1001"]

    @pytest.mark.parametrize(
        "effect",
        [
            faults.reply(200, {}),
            faults.reply(200, []),
            faults.reply(200, {"message": "Moved"}),
            edited(lambda repo: {**repo, "id": repo["id"] + 1}),
            faults.reply(410, {"message": "Gone"}),
            *FAILURES.values(),
        ],
    )
    @in_real_loop
    async def test_item_when_missing_and_its_repository_gives_no_proof_then_nothing_changes(
        self, tmp_path: Path, effect: Effect
    ) -> None:
        """What counts is that its own repository answers with this token, not that something answers."""
        world, number = await begun(tmp_path)
        hit = [
            world.github.fail(LISTING, without(number), times=None),
            world.github.fail(r"/issues/1$", NOT_FOUND, times=None),
            world.github.fail(r"/repos/octo/repo$", effect, times=None),
        ]
        await world.cycle(times=8)
        for fault in hit:
            world.github.faults.remove(fault)
        world.github.comment(REPO, number)
        world.clock.run(900)
        await world.cycle(times=LINGER_CYCLES)

        assert (world.ids(), world.state) == (["1/spawn:1", "1/comment:1001"], "ok")

    @pytest.mark.parametrize("status", [410, 404])
    @pytest.mark.parametrize("is_away", [False, True])
    @in_real_loop
    async def test_items_when_issues_are_turned_off_then_nothing_ends(
        self, tmp_path: Path, status: int, is_away: bool
    ) -> None:
        """The list then shows pull requests only, and each issue by itself is gone, until somebody turns them on."""
        world, number = await begun(tmp_path)
        pull = world.add_issue(pull_request=True)
        await world.cycle()
        if is_away:
            world.github.unlabel(REPO, number, "auto")
            await world.cycle()
        message = {"message": "Issues are disabled for this repo" if status == 410 else "Not Found"}
        off = [
            world.github.fail(LISTING, edited(lambda rows: [row for row in rows if "pull_request" in row]), times=None),
            world.github.fail(r"/issues/1$", faults.reply(status, message), times=None),
            world.github.fail(r"/repos/octo/repo$", edited(lambda repo: {**repo, "has_issues": False}), times=None),
        ]
        world.github.comment(REPO, pull)
        await world.cycle(times=40)
        assert world.ids()[2:] == ["2/comment:1001"]

        for fault in off:
            world.github.faults.remove(fault)
        world.github.label(REPO, number, "auto")
        world.github.comment(REPO, number)
        await world.cycle(times=LINGER_CYCLES)
        assert world.ids(number) == ["spawn:1", "comment:1002"]

    @pytest.mark.parametrize("status", [404, 410])
    @in_real_loop
    async def test_item_when_deleted_while_unlabelled_then_closes_within_thirty_cycles(
        self, tmp_path: Path, status: int
    ) -> None:
        world, number = await begun(tmp_path)
        world.github.unlabel(REPO, number, "auto")
        await world.cycle(times=2)
        world.github.delete_issue(REPO, number)
        if status == 404:
            world.github.fail(r"/issues/1$", NOT_FOUND, times=None)
        await world.cycle(times=32 + LINGER_CYCLES)

        assert world.ids() == ["1/spawn:1", "1/close:1"]
        assert world.received[-1]["reason"] == "deleted"

    @pytest.mark.parametrize("effect", [FAILURES["502"], FAILURES["html"], faults.permission_denied()])
    @in_real_loop
    async def test_item_when_it_cannot_be_asked_about_then_nothing_changes(
        self, tmp_path: Path, effect: Effect
    ) -> None:
        world = scene(tmp_path)
        number, other = world.add_issue(), world.add_issue()
        await world.cycle()
        world.github.close(REPO, number)
        world.github.fail(r"/issues/1$", effect, times=5)
        world.github.comment(REPO, other)
        await world.cycle(times=5)
        assert world.ids() == ["1/spawn:1", "2/spawn:1", "2/comment:1001"]

        await world.cycle(times=LINGER_CYCLES)
        assert world.ids(number) == ["spawn:1", "close:1"]

    @in_real_loop
    async def test_item_when_the_listing_lags_then_is_no_departure(self, tmp_path: Path) -> None:
        """Elsewhere a replica that was behind ended what was open all the time."""
        world, number = await begun(tmp_path)
        world.github.fail(LISTING, without(number), times=2)
        world.github.comment(REPO, number, body="Shown by a list that is not behind.")
        await world.cycle(times=2 + LINGER_CYCLES)

        assert world.ids() == ["1/spawn:1", "1/comment:1001"]
