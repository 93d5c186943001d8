"""Reviews: their texts and verdicts arrive once, though no list shows those of a whole repository."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.clock import NOON
from support.github import faults
from support.github.stories import FAILURES, LINGER_CYCLES, begun, edited, everything_of, keys, thread_of
from support.github.values import Kind, Rules, View
from support.world import REPO, World, in_real_loop, scene
from the_loop.sources.github.section import Monitor

SWEEP = 30  # looks
LISTS = r"/pulls/\d+/reviews"


def asked_for(world: World, since: int) -> list[int]:
    """The pull requests whose reviews were asked for by the requests after number `since`."""
    asked = [entry.target for entry in world.github.requests_matching(LISTS) if entry.number > since]
    return [int(target.partition("/pulls/")[2].partition("/")[0]) for target in asked]


class TestWhat:
    @pytest.mark.parametrize("is_first_sight", [True, False])
    @pytest.mark.parametrize(
        ("state", "body", "verdict"),
        [
            ("APPROVED", "", "approved"),
            ("APPROVED", None, "approved"),
            ("APPROVED", "Fine.", "approved"),
            ("CHANGES_REQUESTED", "", "changes_requested"),
            ("CHANGES_REQUESTED", "No.", "changes_requested"),
            ("DISMISSED", "", "dismissed"),
            ("COMMENTED", "A word.", "commented"),
            ("COMMENTED", "", None),
            ("COMMENTED", None, None),
            ("COMMENTED", " \r\n\n ", None),
            ("PENDING", "A draft.", None),
        ],
    )
    @in_real_loop
    async def test_review_when_it_has_a_text_or_a_verdict_then_arrives_with_both(
        self, tmp_path: Path, state: str, body: str | None, verdict: str | None, is_first_sight: bool
    ) -> None:
        """An empty one only holds together its comments on lines, which arrive by themselves."""
        world, _ = await begun(tmp_path)
        number = world.add_issue(pull_request=True)
        if not is_first_sight:
            await world.cycle()
        world.github.review(REPO, number, body=body, state=state)
        await world.cycle(times=3)

        (spawn, *others) = [got for got in world.received if got["ref"].endswith(f"#{number}")]
        shown = spawn["thread"] if is_first_sight else others
        assert len(others) == (0 if is_first_sight else len(shown))
        assert [(one["kind"], one["verdict"], one["body"]) for one in shown] == (
            [] if verdict is None else [("review", verdict, body or "")]
        )

    @pytest.mark.parametrize("is_first_sight", [True, False])
    @in_real_loop
    async def test_comment_on_a_line_then_says_where_it_stands(self, tmp_path: Path, is_first_sight: bool) -> None:
        world, _ = await begun(tmp_path)
        number = world.add_issue(pull_request=True)
        if not is_first_sight:
            await world.cycle()
        world.github.review_comment(REPO, number, path="src/ä b.py", line=17)
        world.github.review_comment(REPO, number, path="outdated.py", line=None)
        await world.cycle(times=2)

        (spawn, *others) = [got for got in world.received if got["ref"].endswith(f"#{number}")]
        shown = spawn["thread"] if is_first_sight else others
        assert [(one["path"], one.get("line")) for one in shown] == [("src/ä b.py", 17), ("outdated.py", None)]

    @in_real_loop
    async def test_review_when_edited_dismissed_or_deleted_then_does_not_come_again(self, tmp_path: Path) -> None:
        world, number = await begun(tmp_path, pull_request=True)
        world.github.review(REPO, number, body="Fine.", state="APPROVED")
        await world.cycle()
        world.github.fail(LISTS, edited(lambda rows: [{**row, "state": "DISMISSED"} for row in rows]), times=2)
        world.github.edit_comment(REPO, 1001, "Not so fine.", kind=Kind.REVIEW)
        await world.cycle(times=4)
        world.github.delete_comment(REPO, 1001, kind=Kind.REVIEW)
        await world.cycle(times=4)
        world.root.cursor("github").unlink()
        world = world.restart()
        await world.cycle(times=2)

        assert world.ids(number) == ["spawn:1", "review:1001"]

    @in_real_loop
    async def test_rows_of_all_lists_then_arrive_in_the_order_they_were_written(self, tmp_path: Path) -> None:
        world, number = await begun(tmp_path, pull_request=True)
        written = []
        for kind in ("review", "comment", "review_comment", "review", "comment"):
            world.clock.run(3)
            written.append(f"{kind}:{getattr(world.github, kind)(REPO, number, body='A word.')}")
        await world.cycle(times=2)

        assert world.ids(number) == ["spawn:1", *written]

    @in_real_loop
    async def test_review_when_its_fields_are_odd_then_costs_itself(self, tmp_path: Path) -> None:
        def broken(rows: list[dict[str, Any]]) -> list[Any]:
            odd = [{**rows[0], "id": n, key: value} for n, (key, value) in enumerate(oddities)]
            return [None, 7, {}, *odd, *rows]

        odd_values: dict[str, list[Any]] = {
            "state": [None, 7, []],
            "user": [None, "octocat", {"login": None}],
            "id": [None, "1001", 1.5],
            "body": [7, []],
            "submitted_at": [7],
        }
        oddities = [(key, value) for key, values in odd_values.items() for value in values]
        world, number = await begun(tmp_path, pull_request=True)
        world.github.fail(LISTS, edited(broken), times=2)
        world.github.review(REPO, number, body="Fine.")
        await world.cycle(times=3)

        assert world.ids(number) == ["spawn:1", "review:1001"]


class TestWhen:
    @pytest.mark.parametrize("kind", ["review", "review_comment"])
    @in_real_loop
    async def test_review_when_anything_moves_with_it_then_arrives_with_the_next_look(
        self, tmp_path: Path, kind: str
    ) -> None:
        """The row of the item moves, or a comment on a line comes with it."""
        rules = Rules(reviews_move_issue=kind == "review")
        world = scene(tmp_path, rules)
        numbers = [world.add_issue(pull_request=True) for _ in range(40)]
        await world.cycle(times=2)
        for number in numbers[::7]:
            world.github.review(REPO, number, state="APPROVED")
            if kind == "review_comment":
                world.github.review_comment(REPO, number)
        await world.cycle()

        for number in numbers[::7]:
            assert [key for key in world.ids(number) if key.startswith("review:")] != []

    @pytest.mark.parametrize("restarts", [False, True])
    @in_real_loop
    async def test_reviews_when_nothing_moves_with_them_then_all_arrive_within_thirty_looks(
        self, tmp_path: Path, restarts: bool
    ) -> None:
        """Each look asks equally many, also where every look is a process of its own."""
        world = scene(tmp_path, Rules(reviews_move_issue=False))
        numbers = [world.add_issue(pull_request=True, created=NOON - 9000) for _ in range(45)]
        await world.cycle(times=2)
        world.clock.run(600)
        for number in numbers:
            world.github.review(REPO, number, state="APPROVED")
        costs = []
        for _ in range(
            SWEEP + restarts
        ):  # one more: the first life counts its looks, later ones take them from the clock
            before = world.github.requests
            await world.cycle()
            costs.append(len(asked_for(world, before)))
            world = world.restart() if restarts else world

        assert [len(world.ids(number)) for number in numbers] == [2] * 45
        assert set(costs) == {1, 2}

    @pytest.mark.parametrize("view", [View.REVIEWS, View.ISSUES, View.REVIEW_COMMENTS])
    @in_real_loop
    async def test_review_when_one_answer_lags_behind_the_others_then_is_asked_for_again(
        self, tmp_path: Path, view: View
    ) -> None:
        """What moved shows that something came; its own list may not have it yet."""
        world = scene(tmp_path, Rules(lag_s=lambda asked: 100.0 * (asked is view)))
        number = world.add_issue(pull_request=True)
        world.clock.run(120)
        await world.cycle(times=2)
        world.github.review(REPO, number, body="Fine.")
        world.github.review_comment(REPO, number)
        await world.cycle(times=4)

        assert sorted(world.ids(number)) == ["review:1001", "review_comment:1001", "spawn:1"]

    @pytest.mark.parametrize("count", [1, 99, 100, 130])
    @in_real_loop
    async def test_review_when_pending_for_long_then_arrives_once_submitted_on_whichever_page(
        self, tmp_path: Path, count: int
    ) -> None:
        """Its id is older than those of all that were submitted meanwhile: it appears among them."""
        world, number = await begun(tmp_path, pull_request=True)
        late = world.github.review(REPO, number, body="Late.", visible=world.clock.now + 7200)
        shown = [world.github.review(REPO, number, body="A word.") for _ in range(count)]
        await world.cycle(times=10)
        assert world.ids(number) == ["spawn:1", *keys("review", shown)]
        world.clock.run(7200 - 600)
        world = world.restart()
        await world.cycle(times=SWEEP + 1)

        assert world.ids(number) == ["spawn:1", *keys("review", shown), f"review:{late}"]

    @in_real_loop
    async def test_review_when_written_after_its_pull_request_was_merged_then_comes_before_the_close(
        self, tmp_path: Path
    ) -> None:
        world, number = await begun(tmp_path, pull_request=True)
        world.github.close(REPO, number, merged=True)
        await world.cycle(times=2)
        world.github.review(REPO, number, body="Thanks.")
        await world.cycle(times=LINGER_CYCLES)

        assert world.ids(number) == ["spawn:1", "review:1001", "close:1"]

    @in_real_loop
    async def test_reviews_when_the_label_is_gone_then_come_when_it_is_back(self, tmp_path: Path) -> None:
        world, number = await begun(tmp_path, pull_request=True)
        world.github.unlabel(REPO, number, "auto")
        await world.cycle(times=2)
        world.github.review(REPO, number, body="Meanwhile.")
        await world.cycle(times=SWEEP + 1)
        assert world.ids(number) == ["spawn:1"]
        world.github.label(REPO, number, "auto")
        await world.cycle(times=2)

        assert world.ids(number) == ["spawn:1", "review:1001"]


class TestCost:
    @in_real_loop
    async def test_reviews_then_are_asked_for_pull_requests_that_are_watched_only(self, tmp_path: Path) -> None:
        world = scene(tmp_path, section={"monitor": Monitor(pull_requests=False)})
        world.add_issue()
        world.add_issue(pull_request=True)
        await world.cycle(times=SWEEP + 1)
        assert world.github.requests_matching("/pulls/") == []

        world = world.restart(section={})
        await world.cycle(times=SWEEP + 1)
        assert set(asked_for(world, 0)) == {2}

    @in_real_loop
    async def test_reviews_when_nothing_is_new_then_cost_no_point(self, tmp_path: Path) -> None:
        world, number = await begun(tmp_path, pull_request=True)
        for _ in range(130):
            world.github.review(REPO, number, body="A word.")
        await world.cycle(times=5)
        world.clock.run(600)
        await world.cycle(times=SWEEP)
        before, points = world.github.requests, world.github.points
        await world.cycle(times=SWEEP)

        assert (asked_for(world, before), world.github.points - points) == ([number] * 2, 0)

    @pytest.mark.parametrize("effect", [*FAILURES.values(), faults.permission_denied()])
    @in_real_loop
    async def test_reviews_when_one_list_of_them_fails_then_the_others_arrive_and_these_later(
        self, tmp_path: Path, effect: faults.Effect
    ) -> None:
        world = scene(tmp_path)
        numbers = [world.add_issue(pull_request=True) for _ in range(3)]
        await world.cycle()
        world.github.fail(rf"/pulls/{numbers[1]}/reviews", effect)
        for number in numbers:
            world.github.review(REPO, number, body="A word.")
            world.github.comment(REPO, number)
        await world.cycle(times=3)

        for number, id_ in zip(numbers, (1001, 1002, 1003), strict=True):
            assert sorted(everything_of(world, number)) == [f"comment:{id_}", f"review:{id_}", "spawn:1"]
        assert world.state == "ok"

    @in_real_loop
    async def test_reviews_when_their_list_fails_in_its_turn_then_it_is_asked_for_in_the_next_look(
        self, tmp_path: Path
    ) -> None:
        """Nothing moves with the review, so its next turn would be thirty looks away."""
        world = scene(tmp_path, Rules(reviews_move_issue=False))
        number = world.add_issue(pull_request=True, created=NOON - 9000)
        await world.cycle(times=2)
        world.github.review(REPO, number, body="A word.")
        fault = world.github.fail(LISTS, faults.server_error(500))
        while not fault.hits:
            await world.cycle()
        assert world.ids(number) == ["spawn:1"]
        await world.cycle()

        assert world.ids(number) == ["spawn:1", "review:1001"]

    @in_real_loop
    async def test_thread_when_it_has_many_reviews_then_all_are_carried(self, tmp_path: Path) -> None:
        world = scene(tmp_path)
        number = world.add_issue(pull_request=True, created=NOON - 9000)
        written = [world.github.review(REPO, number, body="A word.", created=NOON - 8000 + n) for n in range(230)]
        await world.cycle(times=3)

        assert (thread_of(world, number), world.ids()) == (keys("review", written), ["1/spawn:1"])
