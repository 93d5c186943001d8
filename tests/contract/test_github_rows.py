"""What is written on items arrives once, whatever becomes of it later and whatever shape it has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.github.stories import COMMENTS, LISTING, REVIEW_COMMENTS, begun, edited, everything_of, keys
from support.github.values import Rules
from support.world import REPO, in_real_loop, scene
from the_loop.core.model import Outcome, Verdict

NEEDED = {  # by us, of any kind of row
    *("id", "node_id", "number", "full_name", "title", "html_url", "created_at", "updated_at", "submitted_at", "state"),
    *("user", "login", "issue_url", "pull_request_url"),
}


class TestIdentity:
    @in_real_loop
    async def test_streams_when_they_share_numbers_then_all_arrive(self, tmp_path: Path) -> None:
        """Elsewhere one set of seen numbers for all streams swallowed the second and the third."""
        world, number = await begun(tmp_path, pull_request=True)
        other = world.add_issue(pull_request=True)
        await world.cycle()
        for id_, item in ((9001, number), (9002, other)):
            world.github.comment(REPO, item, id=id_)
            world.github.review(REPO, item, id=id_, body="A word.")
            world.github.review_comment(REPO, item, id=id_)
        await world.cycle(times=2)
        world = world.restart()
        await world.cycle(times=2)

        assert sorted(world.ids(number)) == ["comment:9001", "review:9001", "review_comment:9001", "spawn:1"]
        assert sorted(world.ids(other)) == ["comment:9002", "review:9002", "review_comment:9002", "spawn:1"]

    @pytest.mark.parametrize("is_first_sight", [False, True])
    @in_real_loop
    async def test_pull_request_when_written_on_everywhere_then_is_one_item(
        self, tmp_path: Path, is_first_sight: bool
    ) -> None:
        """Elsewhere a pull request, which the list of issues shows as well, was handled twice."""
        world, _ = await begun(tmp_path)
        number = world.add_issue(pull_request=True)
        if not is_first_sight:
            await world.cycle()
        world.github.comment(REPO, number)
        world.github.review(REPO, number, body="Looks good.", state="APPROVED")
        world.github.review_comment(REPO, number, review_id=1001)
        await world.cycle(times=4)

        assert sorted(everything_of(world, number)) == ["comment:1001", "review:1001", "review_comment:1001", "spawn:1"]
        assert [got["ref"] for got in world.received if got["kind"] == "spawn"] == [
            f"github:{REPO}#1",
            f"github:{REPO}#2",
        ]

    @pytest.mark.parametrize("pattern", [LISTING, COMMENTS, REVIEW_COMMENTS, "/reviews", "/issues/2/comments"])
    @in_real_loop
    async def test_rows_when_repeated_in_one_answer_then_come_once(self, tmp_path: Path, pattern: str) -> None:
        world, number = await begun(tmp_path, pull_request=True)
        world.github.fail(pattern, edited(lambda rows: [*rows, *reversed(rows)]), times=None)
        other = world.add_issue(pull_request=True)
        for item in (number, other):
            world.github.comment(REPO, item)
            world.github.review_comment(REPO, item)
            world.github.review(REPO, item, body="A word.")
        await world.cycle(times=3)
        written = ["comment", "review", "review_comment"]

        assert sorted(everything_of(world, number)) == [*(f"{kind}:1001" for kind in written), "spawn:1"]
        assert sorted(everything_of(world, other)) == [*(f"{kind}:1002" for kind in written), "spawn:1"]

    @in_real_loop
    async def test_numbers_when_beyond_what_floats_can_hold_then_are_told_apart(self, tmp_path: Path) -> None:
        ids = [2**53, 2**53 + 1, 2**63 - 1, 2**63, 10**19]
        large = edited(lambda rows: [{**row, "id": ids[row["id"] - 1001]} for row in rows], is_lasting=True)
        world, number = await begun(tmp_path)
        world.github.fail("/comments", large, times=None)
        for _ in ids:
            world.github.comment(REPO, number)
        await world.cycle()
        world = world.restart()
        world.root.cursor("github").unlink()
        await world.cycle(times=2)

        assert world.ids(number) == ["spawn:1", *keys("comment", ids)]

    @in_real_loop
    async def test_comment_when_it_is_seen_on_another_item_then_comes_to_each_at_most_once(
        self, tmp_path: Path
    ) -> None:
        world, number = await begun(tmp_path)
        other = world.add_issue()
        await world.cycle()
        world.github.comment(REPO, number)
        await world.cycle()

        def moved(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
            return [{**row, "issue_url": row["issue_url"].replace(f"/{number}", f"/{other}")} for row in rows]

        world.github.fail(COMMENTS, edited(moved), times=3)
        await world.cycle(times=3)
        world.github.edit_comment(REPO, 1001, "Back.")
        await world.cycle(times=2)

        assert (world.ids(number), world.ids(other)) == (["spawn:1", "comment:1001"], ["spawn:1", "comment:1001"])

    @in_real_loop
    async def test_row_when_missing_from_some_answers_and_back_then_does_not_come_again(self, tmp_path: Path) -> None:
        """Elsewhere an id was forgotten when one answer lacked it, and came back as new."""
        world = scene(tmp_path)
        number = world.add_issue()
        for _ in range(3):
            world.github.comment(REPO, number)
        await world.cycle(times=2)
        lost = edited(lambda rows: [row for row in rows if row.get("id") != 1002])
        for _ in range(2):
            world.root.cursor("github").unlink()  # so that the thread is read
            world.github.fail(COMMENTS, lost)
            world.github.fail(r"/issues/1/comments", lost)
            world = world.restart()
            await world.cycle(times=2)
        world.root.cursor("github").unlink()
        world = world.restart()
        world.github.edit_comment(REPO, 1002, "Back.")
        await world.cycle(times=2)

        assert everything_of(world, number) == ["spawn:1", *keys("comment", (1001, 1002, 1003))]

    @in_real_loop
    async def test_row_when_edited_or_deleted_after_delivery_then_nothing_comes(self, tmp_path: Path) -> None:
        """Elsewhere an edited comment counted as new, and deleting one ran its command again."""
        world = scene(tmp_path)
        number = world.add_issue()
        first = world.github.comment(REPO, number)
        await world.cycle()
        second = world.github.comment(REPO, number)
        await world.cycle()
        for text in ("Once.", "Twice.", "Thrice."):
            world.github.edit_comment(REPO, first, text)
            world.github.edit_comment(REPO, second, text)
            await world.cycle()
        new = world.github.comment(REPO, number, updated=world.clock.now + 1)
        await world.cycle(times=2)
        world.github.delete_comment(REPO, first)
        world.github.delete_comment(REPO, new)
        await world.cycle(times=2)

        assert world.ids() == ["1/spawn:1", f"1/comment:{second}", f"1/comment:{new}"]

    @in_real_loop
    async def test_row_when_deleted_before_it_was_taken_then_is_delivered_as_accepted(self, tmp_path: Path) -> None:
        """Elsewhere it was looked up once more at the hand-over, and what failed there was tried for ever."""
        world, number = await begun(tmp_path)
        id_ = world.github.comment(REPO, number, body="As accepted.")
        world.sink.answers[f"github:{REPO}#1/comment:{id_}"] = [Outcome(Verdict.LATER)]
        await world.cycle()
        world.github.delete_comment(REPO, id_)
        world = world.restart()
        await world.cycle(times=4)

        assert world.ids() == ["1/spawn:1", f"1/comment:{id_}", f"1/comment:{id_}"]
        assert (world.received[-1]["body"], world.received[-1]["attempt"]) == ("As accepted.", 1)

    @in_real_loop
    async def test_comments_when_hundreds_then_each_arrives_once_over_restarts(self, tmp_path: Path) -> None:
        world, number = await begun(tmp_path)
        for _ in range(3):
            for _ in range(250):
                world.github.comment(REPO, number)
            await world.cycle()
        world = world.restart()
        await world.cycle(times=2)
        world.root.cursor(world.watched.source.name).unlink()
        world = world.restart()
        await world.cycle(times=2)

        assert world.ids(number) == ["spawn:1", *keys("comment", range(1001, 1751))]
        assert world.root.ledger("github:octo/repo#1").stat().st_size < 100_000


class TestShapes:
    @in_real_loop
    async def test_author_or_body_when_null_then_the_others_arrive(self, tmp_path: Path) -> None:
        """Elsewhere one comment of a deleted account broke the whole run."""
        world = scene(tmp_path)
        number = world.add_issue(body=None)
        await world.cycle()
        first = world.github.comment(REPO, number)
        world.github.comment(REPO, number, author=None)
        empty = world.github.comment(REPO, number, body=None)
        last = world.github.comment(REPO, number)
        await world.cycle(times=2)

        assert world.ids(number) == ["spawn:1", *keys("comment", (first, empty, last))]
        assert (world.received[0]["body"], world.received[2]["body"]) == ("", "")
        assert [note.fields["reason"] for note in world.told("dispatch.dropped")] == ["unauthorized"]

    @pytest.mark.parametrize("is_absent", [False, True], ids=["null", "absent"])
    @in_real_loop
    async def test_anything_when_null_or_absent_that_we_can_do_without_then_all_arrives(
        self, tmp_path: Path, is_absent: bool
    ) -> None:
        """Elsewhere a field was always there, until it was null: a milestone, a position, the body of a review."""

        def stripped(value: Any) -> Any:
            if isinstance(value, list):
                return [stripped(row) for row in value]
            lacking = (
                {} if is_absent else {key: None for key in value if key not in NEEDED | {"labels", "pull_request"}}
            )
            row = {**lacking, **{key: part for key, part in value.items() if key in NEEDED}}
            if "labels" in value:
                row["labels"] = [{"name": label["name"]} for label in value["labels"]] + [{"name": None}, {}]
            if "pull_request" in value:
                row["pull_request"] = {} if is_absent else {"merged_at": None, "url": None}
            return row

        world = scene(tmp_path)
        world.github.fail(".", edited(stripped, is_lasting=True), times=None)
        issue, pull = world.add_issue(), world.add_issue(pull_request=True)
        world.github.comment(REPO, issue)
        await world.cycle(times=2)
        for item in (issue, pull):
            world.github.comment(REPO, item)
        world.github.review_comment(REPO, pull)
        world.github.review(REPO, pull, state="APPROVED")
        world.github.unlabel(REPO, issue, "auto")
        await world.cycle(times=3)
        world.github.label(REPO, issue, "auto")
        await world.cycle(times=2)

        assert everything_of(world, issue) == ["spawn:1", "comment:1001", "comment:1002"]
        assert sorted(everything_of(world, pull)) == ["comment:1003", "review:1001", "review_comment:1001", "spawn:1"]

    @in_real_loop
    async def test_row_when_malformed_then_costs_itself(self, tmp_path: Path) -> None:
        def broken(rows: list[dict[str, Any]]) -> list[Any]:
            odd: list[Any] = [None, [], "row", 7, {}, {**rows[0], "id": "x"}, {**rows[0], "user": []}]
            odd += [{**rows[0], "issue_url": url, "id": n} for n, url in enumerate(("", "x/²", "x/" + "9" * 5000))]
            odd += [{**rows[0], "id": 88, "updated_at": "9999-12-31T23:59:59Z", "issue_url": "x/77"}] * 60
            return odd + rows

        world, number = await begun(tmp_path)
        world.github.fail(COMMENTS, edited(broken), times=1)
        first = world.github.comment(REPO, number)
        await world.cycle()
        assert world.told("source.failed") == []
        second = world.github.comment(REPO, number)
        await world.cycle(times=2)

        assert world.ids() == ["1/spawn:1", f"1/comment:{first}", f"1/comment:{second}"]

    @in_real_loop
    async def test_item_when_malformed_then_costs_itself(self, tmp_path: Path) -> None:
        """Also where its page is full without it, and where it is asked about by itself."""
        world = scene(tmp_path)
        numbers = [world.add_issue() for _ in range(130)]
        await world.cycle(times=4)
        bad, good = numbers[10], numbers[120]
        before = world.github.requests
        world.github.fail(
            rf"{LISTING}(?!.*page=2)",
            edited(lambda rows: [{**r, "title": None} if r["number"] == bad else r for r in rows], is_lasting=True),
        )
        world.github.fail(rf"/issues/{bad}$", edited(lambda row: {**row, "title": None}), times=None)
        for _ in range(3):
            world.github.comment(REPO, good)
            await world.cycle()

        assert world.ids(good) == ["spawn:1", *keys("comment", (1001, 1002, 1003))]
        assert (world.ids(bad), f"/issues/{bad}:" in world.watched.error) == (["spawn:1"], True)
        asked = [entry for entry in world.github.requests_matching(rf"/issues/{good}$") if entry.number > before]
        assert asked == []

    @in_real_loop
    async def test_item_when_malformed_and_new_then_is_named_and_told_once(self, tmp_path: Path) -> None:
        """It was left out in silence, with the source ok and exit status 0."""
        world = scene(tmp_path)
        bad, good = world.add_issue(), world.add_issue()
        world.github.fail(
            LISTING,
            edited(lambda rows: [{**r, "title": None} if r["number"] == bad else r for r in rows], is_lasting=True),
        )

        await world.cycle(times=4)

        assert world.ids(good) == ["spawn:1"]
        (reason,) = world.watched.overlooked.values()
        assert f"#{bad} is not as expected" in reason
        assert [note.fields["reason"] for note in world.told("item.failed")] == [reason]

    @in_real_loop
    async def test_comment_when_its_item_did_not_change_then_still_has_its_title(self, tmp_path: Path) -> None:
        world = scene(tmp_path, Rules(reviews_move_issue=False))
        number = world.add_issue(title="Broken", pull_request=True)
        await world.cycle(times=2)
        world.github.review_comment(REPO, number)
        await world.cycle()

        assert (world.ids(), world.received[1]["title"]) == (["1/spawn:1", "1/review_comment:1001"], "Broken")
