"""Lists that GitHub does not give as a whole: too long, too heavy, too busy, or with rows that come to light late."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.clock import NOON
from support.github import faults
from support.github.fake import FakeGitHub
from support.github.stories import COMMENTS, LINGER_CYCLES, LISTING, begun, edited
from support.github.values import Answer, Kind, Rules
from support.world import REPO, World, in_real_loop, scene
from the_loop.core.model import Outcome, Verdict
from the_loop.sources.github.page_sizes import PageSizes

BEHIND = faults.reply(422, {"message": "In order to keep the API fast for everyone, pagination is limited"})
WHOLE_PAGES = r"per_page=100"


def too_heavy(world: World, effect: faults.Effect, pattern: str = "") -> faults.Fault:
    return world.github.fail(pattern + ".*" + WHOLE_PAGES, effect, times=None)


class TestTooLong:
    @pytest.mark.parametrize("restarts", [False, True])
    @in_real_loop
    async def test_comments_when_the_server_pages_no_further_then_all_arrive_and_the_list_begins_anew(
        self, tmp_path: Path, restarts: bool
    ) -> None:
        world = scene(tmp_path)
        numbers = [world.add_issue() for _ in range(6)]
        await world.cycle()
        for place in range(600):
            world.github.comment(REPO, numbers[place % 6])
        world.github.fail(COMMENTS + r".*&page=5", BEHIND, times=None)
        await world.cycle()
        world = world.restart() if restarts else world
        await world.cycle(times=4)
        assert (world.state, len(world.ids())) == ("ok", 6 + 600)
        requests = world.github.requests
        await world.cycle()

        assert world.github.requests - requests == 2, "the list of comments is short again"

    @in_real_loop
    async def test_items_when_the_server_pages_no_further_then_those_that_it_lists_are_served(
        self, tmp_path: Path
    ) -> None:
        world = scene(tmp_path)
        for _ in range(120):
            world.add_issue()
        await world.cycle(times=4)
        world.github.fail(LISTING + r".*&page=2", BEHIND, times=None)
        world.github.comment(REPO, 1)
        await world.cycle(times=LINGER_CYCLES)
        world.github.comment(REPO, 120)
        await world.cycle(times=2)

        assert world.ids(1) == ["spawn:1", "comment:1001"]
        assert world.ids(120) == ["spawn:1", "comment:1002"], "what is not listed has not ended"
        assert "no more than 1 pages" in world.watched.error

    @in_real_loop
    async def test_page_1_when_rejected_then_fails(self, tmp_path: Path) -> None:
        world, _ = await begun(tmp_path)
        world.github.fail(COMMENTS, BEHIND, times=None)
        await world.cycle()

        assert world.state == "failing"

    @pytest.mark.parametrize("page", [1, 2])  # where the second one leads to
    @in_real_loop
    async def test_comments_when_the_links_form_a_loop_then_all_arrive(self, tmp_path: Path, page: int) -> None:
        world = scene(tmp_path)
        numbers = [world.add_issue() for _ in range(4)]
        await world.cycle()
        for place in range(250):
            world.github.comment(REPO, numbers[place % 4])
        world.github.fail(COMMENTS + r".*&page=2", linked_to(page), times=None)
        await world.cycle(times=4)

        assert (world.state, len(world.ids())) == ("ok", 4 + 250)

    @pytest.mark.parametrize("kind", [Kind.COMMENT, Kind.REVIEW_COMMENT])
    @in_real_loop
    async def test_thread_when_the_server_pages_no_further_then_is_read_on_from_its_last_row(
        self, tmp_path: Path, kind: Kind
    ) -> None:
        world, number = await begun(tmp_path, pull_request=True)
        for place in range(250):
            world.clock.run(place % 2)
            write_row(world.github, number, kind)
        world.github.fail("page=2", BEHIND, times=None)
        await world.cycle(times=2)

        assert world.ids(number) == ["spawn:1", *(f"{kind}:{1001 + place}" for place in range(250))]
        assert world.state == "ok"

    @in_real_loop
    async def test_thread_when_no_time_leads_on_then_what_was_read_counts_and_the_item_is_named(
        self, tmp_path: Path
    ) -> None:
        world, number = await begun(tmp_path)
        for _ in range(250):
            world.github.comment(REPO, number)  # all within one second
        world.github.fail("page=2", BEHIND, times=None)
        await world.cycle()
        assert len(world.ids(number)) == 1 + 200, "the first hundred of the thread, the last hundred of the list"
        assert "thread cannot be read as a whole" in world.watched.item_errors[f"github:{REPO}#{number}"]
        world.github.comment(REPO, number)
        world = world.restart()
        await world.cycle()
        assert world.ids(number)[-1] == "comment:1251"
        world.github.faults.clear()
        await world.cycle()

        assert sorted(world.ids(number)) == sorted(["spawn:1", *(f"comment:{1001 + place}" for place in range(251))])
        assert world.watched.item_errors == {}

    @pytest.mark.slow
    @in_real_loop
    async def test_comments_when_never_whole_then_no_item_waits_for_ever(self, tmp_path: Path) -> None:
        """Each poll asks for a full re-read of more items than one may read."""
        world = scene(tmp_path)
        for _ in range(250):
            world.add_issue()
        await world.cycle(times=6)
        world.github.fail(COMMENTS + r".*&page=2", BEHIND, times=None)
        for number in range(1, 251):
            world.github.comment(REPO, number)
        for _ in range(3):
            for _ in range(101):
                world.github.comment(REPO, 1)
            await world.cycle()

        first = {f"{number}/comment:{1000 + number}" for number in range(1, 251)}
        assert first <= set(world.ids())


class TestTooHeavy:
    @pytest.mark.parametrize("status", [502, 504])
    @in_real_loop
    async def test_list_when_whole_pages_are_too_much_then_is_read_in_smaller_ones(
        self, tmp_path: Path, status: int
    ) -> None:
        world = scene(tmp_path)
        fault = too_heavy(world, faults.server_error(status))
        numbers = [world.add_issue() for _ in range(130)]
        await world.cycle(times=4)
        world.github.comment(REPO, 130)
        await world.cycle()

        assert sorted(world.ids()) == sorted([*(f"{number}/spawn:1" for number in numbers), "130/comment:1001"])
        assert world.state == "ok"
        world.github.faults.remove(fault)
        world.clock.run(600)
        await world.cycle(times=2)
        assert any(WHOLE_PAGES in request.target for request in world.github.log[-4:]), "whole pages again"

    @in_real_loop
    async def test_list_when_only_ten_rows_are_possible_then_is_read_in_one_cycle(self, tmp_path: Path) -> None:
        """A run of `--once` has one cycle only."""
        world = scene(tmp_path)
        for size in (100, 50, 20):
            world.github.fail(rf"/issues\?.*per_page={size}", faults.server_error(), times=None)
        world.add_issue()
        await world.cycle()

        assert world.ids() == ["1/spawn:1"]

    @in_real_loop
    async def test_list_when_whole_pages_time_out_then_is_read_in_smaller_ones_in_the_third_cycle(
        self, tmp_path: Path
    ) -> None:
        world, number = await begun(tmp_path)
        fault = too_heavy(world, faults.hang(), "/issues/comments")
        world.github.comment(REPO, number)
        for _ in range(2):
            await world.cycle()
            assert world.state == "failing"
        await world.cycle(times=8)

        assert world.ids(number) == ["spawn:1", "comment:1001"]
        assert fault.hits == 2

    @pytest.mark.parametrize("interval_s", [60, 900])
    @in_real_loop
    async def test_list_when_whole_pages_time_out_then_is_read_also_if_each_cycle_is_a_process(
        self, tmp_path: Path, interval_s: int
    ) -> None:
        world, number = await begun(tmp_path, interval_s=interval_s)
        fault = too_heavy(world, faults.hang(), "/issues/comments")
        world.github.comment(REPO, number)
        for _ in range(3):
            world = world.restart()
            world.client.page_sizes = PageSizes(world.clock, tmp_path / "root" / "sizes.d" / "page-sizes.json")
            await world.cycle()

        assert (world.ids(number), fault.hits) == (["spawn:1", "comment:1001"], 2)

    @pytest.mark.parametrize("content", ["", "[]", '{"/repos": 1}', '{"/repos": [1e400, -1, true]}'])
    def test_file_when_it_is_damaged_then_pages_are_whole(self, tmp_path: Path, content: str) -> None:
        file = tmp_path / "page-sizes.json"
        file.write_text(content)

        assert PageSizes(lambda: 1e9, file).of("/repos") == 100

    @in_real_loop
    async def test_list_when_a_page_is_larger_than_we_read_then_is_read_in_smaller_ones(self, tmp_path: Path) -> None:
        world, number = await begun(tmp_path)
        fault = too_heavy(world, edited(lambda rows: [*rows, [0] * 300_000]), "/issues/comments")
        world.github.comment(REPO, number)
        await world.cycle()

        assert world.ids(number) == ["spawn:1", "comment:1001"]
        assert fault.hits == 1, "it is certain"

    @in_real_loop
    async def test_server_when_all_is_too_much_then_one_list_is_tried_smaller_and_few_are_asked(
        self, tmp_path: Path
    ) -> None:
        world, _ = await begun(tmp_path)
        world.github.fail(".", faults.server_error(), times=None)
        asked = []
        for _ in range(6):
            before = world.github.requests
            await world.cycle()
            asked.append(world.github.requests - before)

        assert asked[0] == 5  # twice a hundred, 50, 20, 10
        assert max(asked[1:]) == 1


class TestLate:
    """`created` and `updated` are old: the list of comments since a moment never shows such a row."""

    @pytest.mark.parametrize("late_s", [200, 3600])
    @pytest.mark.parametrize("pull_request", [False, True])
    @in_real_loop
    async def test_comment_when_it_comes_to_light_late_then_is_delivered(
        self, tmp_path: Path, late_s: int, pull_request: bool
    ) -> None:
        world, number = await begun(tmp_path, pull_request=pull_request)
        await world.cycle(times=60)
        written = world.clock() - late_s
        world.github.comment(REPO, number, created=written, updated=written, visible=world.clock())
        await world.cycle()

        assert world.ids(number) == ["spawn:1", "comment:1001"]

    @in_real_loop
    async def test_comment_when_it_comes_to_light_with_others_then_all_are_delivered(self, tmp_path: Path) -> None:
        world, number = await begun(tmp_path)
        await world.cycle(times=10)
        written = world.clock() - 3600
        world.github.comment(REPO, number)
        world.github.comment(REPO, number, created=written, updated=written, visible=world.clock())
        await world.cycle(times=2)

        assert sorted(world.ids(number)) == ["comment:1001", "comment:1002", "spawn:1"]

    @in_real_loop
    async def test_comment_when_the_poller_was_restarted_before_it_came_then_is_delivered(self, tmp_path: Path) -> None:
        world, number = await begun(tmp_path)
        await world.cycle(times=2)
        written = world.clock() - 3600
        world.github.comment(REPO, number, created=written, updated=written, visible=world.clock())
        world = world.restart()
        await world.cycle()

        assert world.ids(number) == ["spawn:1", "comment:1001"]

    @in_real_loop
    async def test_review_comment_when_it_comes_to_light_late_then_is_delivered_within_a_sweep(
        self, tmp_path: Path
    ) -> None:
        world, number = await begun(tmp_path, Rules(reviews_move_issue=False), pull_request=True)
        world.github.review(REPO, number, body="First.")
        await world.cycle(times=40)
        written = world.clock() - 3600
        review = world.github.review(REPO, number, created=written, visible=world.clock())
        world.github.review_comment(
            REPO, number, review_id=review, created=written, updated=written, visible=world.clock()
        )
        await world.cycle(times=31)

        assert world.ids(number) == ["spawn:1", "review:1001", "review_comment:1001"]

    @in_real_loop
    async def test_review_comment_when_it_comes_late_among_others_then_is_delivered_within_a_sweep(
        self, tmp_path: Path
    ) -> None:
        """The list has a comment of an earlier review, again and again: it accounts for no new one."""
        world, number = await begun(tmp_path, Rules(reviews_move_issue=False), pull_request=True)
        other = world.add_issue(pull_request=True)
        await world.cycle()
        write(world.github, number, Kind.REVIEW_COMMENT)
        await world.cycle(times=40)
        written = world.clock() - 7200
        review = world.github.review(REPO, number, created=written, visible=world.clock())
        world.github.review_comment(
            REPO, number, review_id=review, created=written, updated=written, visible=world.clock()
        )
        for _ in range(31):
            write(world.github, other, Kind.REVIEW_COMMENT)
            await world.cycle()

        assert world.ids(number) == ["spawn:1", "review_comment:1001", "review_comment:1002"]

    @in_real_loop
    async def test_review_with_a_text_when_it_comes_late_then_its_comments_on_lines_are_delivered(
        self, tmp_path: Path
    ) -> None:
        world = scene(tmp_path, Rules(reviews_move_issue=False))
        number, written = world.add_issue(pull_request=True), world.clock() - 3600
        review = world.github.review(REPO, number, body="Some notes.", created=written)
        shown = world.clock() + 40 * 60
        world.github.review_comment(REPO, number, review_id=review, created=written, updated=written, visible=shown)
        hidden = world.github.fail(r"/reviews", edited(lambda _: []), times=None)
        await world.cycle(times=41)
        world.github.faults.remove(hidden)
        await world.cycle(times=31)

        assert sorted(world.ids(number)) == ["review:1001", "review_comment:1001", "spawn:1"]

    @pytest.mark.parametrize("pull_request", [False, True])
    @in_real_loop
    async def test_row_when_an_earlier_version_wrote_the_cursor_then_is_delivered(
        self, tmp_path: Path, pull_request: bool
    ) -> None:
        world, number = await begun(tmp_path, Rules(reviews_move_issue=False), pull_request=pull_request)
        await world.cycle(times=40)
        as_before_counting(world)
        world = world.restart()
        await world.cycle(times=31)
        written, shown = world.clock() - 7200, world.clock()
        if pull_request:
            review = world.github.review(REPO, number, created=written, visible=shown)
            world.github.review_comment(REPO, number, review_id=review, created=written, updated=written, visible=shown)
        else:
            world.github.comment(REPO, number, created=written, updated=written, visible=shown)
        await world.cycle(times=31)

        assert len(world.ids(number)) == 2

    @pytest.mark.parametrize("kind", list(Kind))
    @in_real_loop
    async def test_what_people_write_when_it_comes_at_once_then_costs_no_full_re_read(
        self, tmp_path: Path, kind: Kind
    ) -> None:
        world, number = await begun(tmp_path, pull_request=True)
        await world.cycle(times=35)
        write(world.github, number, kind)
        seen = len(world.github.log)
        await world.cycle(times=5)

        assert not [one.target for one in world.github.log[seen:] if f"/issues/{number}/comments" in one.target]
        assert len(world.ids(number)) == 2


def as_before_counting(world: World) -> None:
    """Make the cursor one of a version that kept neither the number of comments nor the ids of reviews."""
    path, cursor = world.root.cursor("github"), world.cursor()
    record = cursor["position"]["repos"][REPO]
    for page in record["pages"]:
        del page["is_counted"]
        page["rows"] = [row[:6] for row in page["rows"]]
    for pages in record["reviews"].values():
        for page in pages:
            del page["ids"]
    path.write_text(json.dumps(cursor))


def linked_to(page: int) -> faults.Effect:
    """A page whose link to the next one leads back."""

    def effect(genuine: Callable[[], Answer]) -> Answer:
        answer = genuine()
        link = re.sub(r"([?&]page=)\d+(>; rel=\"next\")", rf"\g<1>{page}\2", answer.headers["Link"])
        return replace(answer, headers={**answer.headers, "Link": link})

    return effect


def write_row(github: FakeGitHub, number: int, kind: Kind) -> int:
    return github.comment(REPO, number) if kind is Kind.COMMENT else github.review_comment(REPO, number)


def write(github: FakeGitHub, number: int, kind: Kind) -> Any:
    if kind is Kind.COMMENT:
        return github.comment(REPO, number)
    if kind is Kind.REVIEW:
        return github.review(REPO, number, body="Well done.")
    return github.review_comment(REPO, number, review_id=github.review(REPO, number))


class TestLabel:
    @pytest.mark.parametrize("label", ["atuo", "good first/issue?", "étiquette"])
    @in_real_loop
    async def test_label_when_it_does_not_exist_then_is_named(self, tmp_path: Path, label: str) -> None:
        world = scene(tmp_path, section={"label": label})
        world.add_issue()
        await world.cycle(times=3)

        assert world.state == "ok"
        assert world.watched.overlooked == {REPO: f"it has no label '{label}'"}
        assert len(world.told("item.failed")) == 1
        assert sum("/labels/" in one.target for one in world.github.log) == 1

        world.github.label(REPO, 1, label)
        await world.cycle()
        assert (world.ids(), world.watched.overlooked) == (["1/spawn:1"], {})

    @in_real_loop
    async def test_label_when_it_exists_then_is_asked_about_once_over_restarts(self, tmp_path: Path) -> None:
        world = scene(tmp_path)
        for _ in range(3):
            await world.cycle(times=40)
            world = world.restart()

        assert sum("/labels/" in one.target for one in world.github.log) == 1
        assert world.watched.overlooked == {}

    @in_real_loop
    async def test_label_when_it_is_deleted_with_all_that_had_it_then_is_named_also_after_a_restart(
        self, tmp_path: Path
    ) -> None:
        world, number = await begun(tmp_path)
        world.github.unlabel(REPO, number, "auto")
        world.github.fail("/labels/", faults.reply(404, {"message": "Not Found"}), times=None)
        for _ in range(2):
            await world.cycle(times=2)
            assert (world.state, world.watched.overlooked) == ("ok", {REPO: "it has no label 'auto'"})
            world = world.restart()

    @in_real_loop
    async def test_label_when_it_cannot_be_asked_about_then_nothing_is_said_of_it(self, tmp_path: Path) -> None:
        world = scene(tmp_path)
        world.github.fail("/labels/", faults.server_error(500), times=1)
        await world.cycle()
        assert (world.state, world.watched.overlooked) == ("failing", {})
        await world.cycle()

        assert (world.state, world.watched.overlooked) == ("ok", {})


class TestMissing:
    @in_real_loop
    async def test_item_when_not_found_twice_within_a_minute_then_is_not_deleted(self, tmp_path: Path) -> None:
        world, number = await begun(tmp_path, interval_s=5)
        fault = [world.github.fail(LISTING, edited(lambda _: []), times=None)]
        fault += [world.github.fail(r"/issues/1$", faults.reply(404, {"message": "Not Found"}), times=None)]
        await world.cycle(times=12)
        assert world.cursor()["position"]["repos"][REPO]["left"] == {}
        for one in fault:
            world.github.faults.remove(one)
        world.github.comment(REPO, number)
        await world.cycle(times=60)

        assert world.ids() == ["1/spawn:1", "1/comment:1001"]

    @in_real_loop
    async def test_item_when_not_found_for_a_minute_then_is_deleted(self, tmp_path: Path) -> None:
        world, _ = await begun(tmp_path, interval_s=5)
        world.github.delete_issue(REPO, 1)
        world.github.fail(r"/issues/1$", faults.reply(404, {"message": "Not Found"}), times=None)
        await world.cycle(times=13 + 180 // 5)

        assert world.ids() == ["1/spawn:1", "1/close:1"]

    @in_real_loop
    async def test_cursor_when_its_missing_items_have_no_times_then_is_read(self, tmp_path: Path) -> None:
        world, _ = await begun(tmp_path)
        path = world.root.cursor("github")
        path.write_text(path.read_text().replace('"missing": {}', '"missing": [1]'))
        world = world.restart()
        requests = world.github.requests
        await world.cycle()

        assert "[1]" not in path.read_text() or world.ids() == ["1/spawn:1"]
        assert world.github.requests - requests == 2, "the cursor was used"


class TestLost:
    @in_real_loop
    async def test_event_when_its_payload_is_lost_and_its_thread_is_cut_off_then_it_is_not_taken_for_deleted(
        self, tmp_path: Path
    ) -> None:
        world, number = await begun(tmp_path)
        for _ in range(150):
            world.github.comment(REPO, number, created=NOON)  # all of one second: reading on leads nowhere
        await world.cycle()
        last = world.github.comment(REPO, number)
        world.sink.answers[f"github:{REPO}#{number}/comment:{last}"] = [Outcome(Verdict.LATER)]
        await world.cycle()
        for path in world.root.deliveries.glob("*.payload.json"):
            path.unlink()
        fault = world.github.fail(rf"/issues/{number}/comments.*&page=2", BEHIND, times=None)
        await world.cycle(times=4)
        assert f"comment:{last}" in world.ledger(number)["poll"]["pending"]
        world.github.faults.remove(fault)
        await world.cycle(times=4)

        assert world.ids(number).count(f"comment:{last}") == 2  # deferred, and then delivered
        assert world.told("dispatch.dropped") == []
