"""Faults that other pollers of GitHub were seen with, as stories; more of each family stand in the files beside."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from support.clock import NOON
from support.github import faults
from support.github.faults import Effect
from support.github.stories import COMMENTS, LINGER_CYCLES, LISTING, begun, everything_of, keys, thread_of, without
from support.github.values import Answer, Rules, View
from support.world import REPO, World, in_real_loop, scene

NOT_FOUND = faults.reply(404, {"message": "Not Found"})
SEVERAL_DOCUMENTS = {
    "back to back": lambda rows: b"".join(json.dumps([row]).encode() for row in rows),
    "a line each": lambda rows: b"\n".join(json.dumps(row).encode() for row in rows),
}


def entries_of(world: World, number: int) -> list[str]:
    """What was written on an item and arrived, however, in the order of its ids."""
    return sorted(key for key in everything_of(world, number) if not key.startswith("spawn"))


class TestWholeLists:
    @pytest.mark.parametrize("page", [1, 2, 3])
    @pytest.mark.parametrize("is_first_sight", [True, False], ids=["thread", "list of all"])
    @in_real_loop
    async def test_comments_when_one_of_their_pages_fails_once_then_none_is_lost_or_doubled(
        self, tmp_path: Path, is_first_sight: bool, page: int
    ) -> None:
        """Elsewhere the cursor had moved before the fetch was through, and the failed round's window was lost."""
        world, _ = await begun(tmp_path)
        number = world.add_issue()
        if not is_first_sight:
            await world.cycle()
        written = [world.github.comment(REPO, number, created=world.clock.now + n / 10) for n in range(250)]
        world.clock.run(60)
        path = rf"/issues/{number}/comments" if is_first_sight else COMMENTS
        fault = world.github.fail(path, faults.server_error(), after=page - 1)
        await world.cycle(times=4)

        assert fault.hits == 1
        assert entries_of(world, number) == sorted(keys("comment", written))
        assert world.cursor()["owed"] == []

    @pytest.mark.parametrize("asked_again", [1, 2])
    @in_real_loop
    async def test_comments_when_the_second_question_for_a_page_fails_then_none_is_lost_or_doubled(
        self, tmp_path: Path, asked_again: int
    ) -> None:
        """The same, in the questions that make sure that nothing moved meanwhile."""
        world, number = await begun(tmp_path)
        written = [world.github.comment(REPO, number) for _ in range(250)]
        world.github.fail(COMMENTS, faults.server_error(503), after=2 + asked_again)
        await world.cycle(times=3)

        assert world.ids(number) == ["spawn:1", *keys("comment", written)]

    @pytest.mark.parametrize("style", SEVERAL_DOCUMENTS)
    @pytest.mark.parametrize("pattern", [LISTING, COMMENTS, r"/issues/2/comments"])
    @in_real_loop
    async def test_answer_when_it_is_several_documents_then_is_no_answer(
        self, tmp_path: Path, pattern: str, style: str
    ) -> None:
        """Elsewhere pages came as JSON documents back to back, and parsing worked until there were two of them."""

        def in_parts(genuine: object) -> Answer:
            answer: Answer = genuine()  # type: ignore[operator]
            rows = json.loads(answer.body)
            return replace(answer, body=SEVERAL_DOCUMENTS[style](rows * 2))

        world, number = await begun(tmp_path)
        other = world.add_issue()
        world.github.comment(REPO, number)
        world.github.comment(REPO, other)
        world.github.fail(pattern, in_parts)
        await world.cycle(times=3)

        assert entries_of(world, number) == ["comment:1001"]
        assert (world.ids(other), thread_of(world, other)) == (["spawn:1"], ["comment:1002"])

    @in_real_loop
    async def test_thread_when_it_has_five_thousand_comments_then_each_comes_once_whatever_happens(
        self, tmp_path: Path
    ) -> None:
        """Elsewhere a cap on remembered ids turned a long thread into an endless redelivery."""
        world = scene(tmp_path)
        number = world.add_issue(created=NOON - 9000)
        old = [world.github.comment(REPO, number, created=NOON - 8000 + n) for n in range(5000)]
        await world.cycle()
        for look in range(10):
            if look == 3:
                world.root.cursor("github").unlink()
            if look in (3, 6):
                world = world.restart()
            world.github.comment(REPO, number)
            await world.cycle()

        assert thread_of(world, number) == keys("comment", old)
        assert world.ids(number) == ["spawn:1", *keys("comment", range(6001, 6011))]
        assert world.root.ledger(f"github:{REPO}#{number}").stat().st_size < 200_000


class TestSilence:
    @in_real_loop
    async def test_limits_when_they_follow_each_other_then_each_moment_is_waited_for_over_restarts_too(
        self, tmp_path: Path
    ) -> None:
        """Elsewhere asking inside the cool-down stretched the ban, and a limit told in a 200 was not even seen."""
        world, number = await begun(tmp_path, interval_s=5)
        began = world.clock.now
        world.github.comment(REPO, number)
        world.github.fail(".", faults.secondary_limit(90))
        world.github.fail(".", faults.primary_limit(began + 91 + 120))
        world.github.fail(".", faults.limit_in_200())
        while world.clock.now < began + 400:
            await world.cycle()
            world = world.restart()

        moments = sorted({entry.time - began for entry in world.github.log if entry.time >= began})
        assert moments[0] == 0
        assert 90 <= moments[1] <= 96
        assert 211 <= moments[2] <= 217
        assert moments[2] + 60 <= moments[3] <= moments[2] + 66
        assert world.ids(number) == ["spawn:1", "comment:1001"]

    @in_real_loop
    async def test_token_when_revoked_for_twenty_rounds_then_everybody_can_see_since_when(self, tmp_path: Path) -> None:
        """Elsewhere polling had failed for hours while everything looked fine."""
        world, number = await begun(tmp_path)
        good = world.watched.last_good_at
        fault = world.github.fail(".", faults.bad_credentials(), times=None)
        while fault.hits < 20:
            await world.cycle()
            assert (world.watched.last_good_at, world.state) == (good, "failing")
            assert "rejected (401)" in world.watched.error

        pauses = [later.time - earlier.time for earlier, later in pairwise(world.github.log[-20:])]
        assert (pauses[0], pauses[-1], pauses) == (60, 600, sorted(pauses))
        world.github.faults.remove(fault)
        world.github.comment(REPO, number)
        world.clock.run(600)
        await world.cycle()
        assert world.watched.last_good_at == world.clock.now - 60
        assert world.ids(number) == ["spawn:1", "comment:1001"]

    @in_real_loop
    async def test_token_when_its_file_is_gone_for_a_while_then_nothing_is_asked_and_nothing_changes(
        self, tmp_path: Path
    ) -> None:
        """Elsewhere, where credentials were out of reach, bots asked without, and believed the empty list they got."""
        token = tmp_path / "token"
        token.write_text("secret\n")
        world = scene(tmp_path, section={"token_file": str(token)})
        number = world.add_issue()
        await world.cycle()
        before, asked = world.ledger(number), world.github.requests
        token.rename(tmp_path / "elsewhere")
        world.github.comment(REPO, number)
        await world.cycle(times=3)
        assert (world.github.requests, world.ledger(number), world.state) == (asked, before, "failing")
        assert f"cannot read the token in '{token}'" in world.watched.error

        (tmp_path / "elsewhere").rename(token)
        await world.cycle(times=4)
        assert (world.ids(number), world.state) == (["spawn:1", "comment:1001"], "ok")


class TestRepositories:
    @pytest.mark.parametrize("restarts", [False, True])
    @in_real_loop
    async def test_repository_when_it_is_gone_odd_and_limited_in_turn_then_the_others_are_served_each_round(
        self, tmp_path: Path, restarts: bool
    ) -> None:
        """Elsewhere one removed repository, or one odd answer, stopped the loop over all the others."""
        repos = ("octo/one", "octo/two", "octo/three")
        world = scene(tmp_path, repos=repos)
        for repo in repos:
            world.add_issue(repo=repo)
        await world.cycle()
        effects: list[Effect] = [NOT_FOUND, faults.html(), faults.half_json(), faults.cut(), faults.hang()]
        for round_, effect in enumerate(effects, 2):
            fault = world.github.fail("octo/two", effect, times=None)
            for repo in repos:
                world.github.comment(repo, 1)
            if restarts:
                world = world.restart()
            await world.cycle()
            assert [len(world.ids(1, repo)) for repo in repos] == [round_, 1, round_]
            assert (world.watched.error.startswith("octo/two: "), world.state) == (True, "failing")
            world.github.faults.remove(fault)
        world.github.fail("octo/two", faults.secondary_limit(100))
        limited_at = world.clock.now
        await world.cycle(times=4)

        assert [moment for moment in {entry.time for entry in world.github.log} if 0 < moment - limited_at < 100] == []
        assert [len(world.ids(1, repo)) for repo in repos] == [len(effects) + 1] * 3
        assert world.state == "ok"

    @in_real_loop
    async def test_work_then_never_depends_on_the_search_index(self, tmp_path: Path) -> None:
        """Elsewhere the index lagged by minutes: new labels went unseen, and what was just there was missing."""
        world, number = await begun(tmp_path)
        pull = world.add_issue(pull_request=True)
        await world.cycle()
        world.github.close(REPO, number)
        world.github.comment(REPO, pull)
        await world.cycle(times=LINGER_CYCLES)

        assert world.ids(pull) == ["spawn:1", "comment:1001"]
        assert {entry.target.split("/")[1] for entry in world.github.log} == {"repos"}

    @in_real_loop
    async def test_listing_when_two_looks_behind_both_ways_then_starts_and_ends_nothing_wrongly(
        self, tmp_path: Path
    ) -> None:
        """The same for the plain list, whose replicas lag as well: an item missing there is asked about by itself."""
        world, number = await begun(tmp_path, Rules(lag_s=lambda view: 120.0 * (view is View.ISSUES)))
        world.clock.run(120)
        await world.cycle()
        assert world.ids() == ["1/spawn:1"]
        world.github.unlabel(REPO, number, "auto")
        world.github.label(REPO, number, "auto")
        world.github.fail(LISTING, without(number), times=2)
        new = world.add_issue()
        world.github.comment(REPO, number)
        world.github.comment(REPO, new)
        await world.cycle(times=LINGER_CYCLES + 1)

        assert world.ids(number) == ["spawn:1", "comment:1001"]
        assert everything_of(world, new) == ["spawn:1", "comment:1002"]


class TestRestarts:
    @in_real_loop
    async def test_items_when_all_is_delivered_then_no_restart_of_any_kind_delivers_again(self, tmp_path: Path) -> None:
        """Elsewhere everything open, and even what was closed, was scheduled again after a restart."""
        world = scene(tmp_path)
        numbers = [world.add_issue() for _ in range(200)]
        await world.cycle(times=4)
        for number in numbers * 3:
            world.github.comment(REPO, number)
        await world.cycle()
        for number in numbers[:20]:
            world.github.close(REPO, number)
        await world.cycle(times=LINGER_CYCLES)
        before = world.ids()
        assert len(before) == 200 + 600 + 20
        for kind in ("killed", "stopped", "position lost", "stopped", "killed"):
            if kind == "stopped":
                await world.stop()
            if kind == "position lost":
                world.root.cursor("github").unlink()
            world = world.restart()
            await world.cycle(times=2)

        assert world.ids() == before

    @in_real_loop
    async def test_history_when_first_seen_then_comes_as_one_spawn_and_no_flood(self, tmp_path: Path) -> None:
        """Elsewhere, with no state, the bot poured the whole history into the channel."""
        world = scene(tmp_path)
        number = world.add_issue(created=NOON - 9000)
        ours = [world.github.comment(REPO, number, created=NOON - 8000 + n) for n in range(40)]
        for n in range(7):
            world.github.comment(REPO, number, "stranger", created=NOON - 7000 + n)
        await world.cycle(times=5)

        (spawn,) = world.received
        assert (thread_of(world, number), spawn["omitted"]) == (keys("comment", ours), 7)
