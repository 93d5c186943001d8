"""How an item ends, and what is no end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.github import faults
from support.github.stories import LINGER_CYCLES, begun
from support.world import REPO, in_real_loop, scene
from the_loop.core.model import Outcome, Verdict

NOT_FOUND = faults.reply(404, {"message": "Not Found"})


class TestClosed:
    @pytest.mark.parametrize(
        ("is_pull", "how", "reason"),
        [
            (False, {"reason": "completed"}, "closed"),
            (False, {"reason": "not_planned"}, "closed"),
            (False, {"reason": "duplicate"}, "closed"),
            (True, {}, "closed"),
            (True, {"merged": True}, "merged"),
        ],
    )
    @pytest.mark.parametrize("restarts", [False, True])
    @in_real_loop
    async def test_item_when_closed_then_close_comes_last(
        self, tmp_path: Path, is_pull: bool, how: dict[str, Any], reason: str, restarts: bool
    ) -> None:
        world, number = await begun(tmp_path, pull_request=is_pull)
        world.github.comment(REPO, number)
        world.github.close(REPO, number, **how)
        for _ in range(LINGER_CYCLES - 1):
            await world.cycle()
            world = world.restart() if restarts else world
        assert world.ids() == ["1/spawn:1", "1/comment:1001"]
        await world.cycle(times=3)

        assert world.ids() == ["1/spawn:1", "1/comment:1001", "1/close:1"]
        assert world.received[-1]["reason"] == reason
        assert world.received[-1].get("stateReason") == how.get("reason")
        assert world.ledger(number)["poll"]["phase"] == "ended"

    @in_real_loop
    async def test_item_when_closed_while_nobody_looked_then_its_last_words_still_come(self, tmp_path: Path) -> None:
        """A stop is no more than a longer interval: when it left is when we see it left."""
        world, number = await begun(tmp_path, pull_request=True)
        world.github.comment(REPO, number)
        world.github.close(REPO, number, merged=True)
        world.clock.run(5000)
        world.github.review(REPO, number, body="Thanks.")
        world.clock.run(5000)
        world = world.restart()
        await world.cycle(times=LINGER_CYCLES)

        assert world.ids() == ["1/spawn:1", "1/comment:1001", "1/review:1001", "1/close:1"]

    @in_real_loop
    async def test_close_when_something_accepted_is_not_through_yet_then_waits_behind_it(self, tmp_path: Path) -> None:
        world, number = await begun(tmp_path)
        later = [Outcome(Verdict.LATER)] * 4
        world.sink.answers[f"github:{REPO}#1/comment:1001"] = [*later, Outcome(Verdict.REFUSED, "no")]
        world.github.comment(REPO, number)
        world.github.close(REPO, number)
        await world.cycle(times=80)

        assert world.ids(number) == ["spawn:1", *["comment:1001"] * 6, "close:1"]

    @in_real_loop
    async def test_item_when_paused_and_closed_then_what_waits_comes_and_then_its_close(self, tmp_path: Path) -> None:
        world, number = await begun(tmp_path)
        world.github.comment(REPO, number, body="the-loop pause")
        await world.cycle()
        world.github.comment(REPO, number)
        await world.cycle(times=2)
        assert world.ids() == ["1/spawn:1"]
        world.github.close(REPO, number)
        await world.cycle(times=LINGER_CYCLES)

        assert world.ids() == ["1/spawn:1", "1/comment:1002", "1/close:1"]

    @pytest.mark.parametrize("then", ["unlabel", "close", "touch"])
    @in_real_loop
    async def test_item_when_changed_again_within_the_linger_then_ends_once(self, tmp_path: Path, then: str) -> None:
        world, number = await begun(tmp_path)
        world.github.close(REPO, number)
        await world.cycle()
        if then == "unlabel":
            world.github.unlabel(REPO, number, "auto")
        elif then == "close":
            world.github.reopen(REPO, number)
            await world.cycle()
            world.github.close(REPO, number)
        else:
            world.github.touch(REPO, number)
        await world.cycle(times=LINGER_CYCLES + 2)

        assert world.ids() == ["1/spawn:1", "1/close:1"]
        assert world.received[-1]["reason"] == "closed"

    @in_real_loop
    async def test_comment_when_written_within_the_linger_then_arrives_before_the_close(self, tmp_path: Path) -> None:
        world, number = await begun(tmp_path, pull_request=True)
        world.github.close(REPO, number)
        await world.cycle()
        world.github.comment(REPO, number, body="Thanks.")
        await world.cycle(times=2)
        # the last look is at the thread: no list of the repository's review comments is asked for without any pull
        world.github.review_comment(REPO, number, body="One more thing.")
        await world.cycle()
        world.github.comment(REPO, number, body="Too late.")
        await world.cycle(times=3)

        assert world.ids() == ["1/spawn:1", "1/comment:1001", "1/review_comment:1001", "1/close:1"]

    @in_real_loop
    async def test_item_when_closed_without_any_linger_then_close_comes_at_once_behind_the_last_comment(
        self, tmp_path: Path
    ) -> None:
        world = scene(tmp_path, linger_s=0)
        number = world.add_issue()
        await world.cycle()
        world.github.comment(REPO, number)
        world.github.close(REPO, number)
        await world.cycle()

        assert world.ids() == ["1/spawn:1", "1/comment:1001", "1/close:1"]

    @in_real_loop
    async def test_item_when_closed_before_it_started_then_gets_nothing(self, tmp_path: Path) -> None:
        world = scene(tmp_path)
        number = world.add_issue(author="stranger")
        await world.cycle()
        world.github.comment(REPO, number, body="the-loop start")
        world.github.close(REPO, number)
        await world.cycle(times=LINGER_CYCLES)

        assert world.received == []


class TestTransferred:
    @pytest.mark.parametrize("can_be_read", [True, False])
    @in_real_loop
    async def test_item_when_transferred_then_closes(self, tmp_path: Path, can_be_read: bool) -> None:
        world = scene(tmp_path)
        world.github.add_repo("octo/other")
        number = world.add_issue()
        await world.cycle()
        world.github.comment(REPO, number)
        await world.cycle()
        world.github.transfer_issue(REPO, number, "octo/other")
        if not can_be_read:
            world.github.remove_repo("octo/other")
        await world.cycle(times=LINGER_CYCLES + 1)

        assert world.ids() == ["1/spawn:1", "1/comment:1001", "1/close:1"]
        assert world.received[-1]["reason"] == "transferred"
        assert world.told("item.failed") == []

    @pytest.mark.parametrize("can_be_read", [True, False])
    @in_real_loop
    async def test_item_when_transferred_after_it_was_closed_then_closes(
        self, tmp_path: Path, can_be_read: bool
    ) -> None:
        """What is written at its new place is on another item."""
        world = scene(tmp_path)
        world.github.add_repo("octo/other")
        number = world.add_issue()
        await world.cycle()
        world.github.close(REPO, number)
        await world.cycle()
        world.github.comment("octo/other", world.github.transfer_issue(REPO, number, "octo/other"))
        if not can_be_read:
            world.github.remove_repo("octo/other")
        await world.cycle(times=LINGER_CYCLES)

        assert world.ids() == ["1/spawn:1", "1/close:1"]

    @in_real_loop
    async def test_item_when_transferred_to_a_repository_that_is_watched_too_then_starts_there_with_its_thread(
        self, tmp_path: Path
    ) -> None:
        """Its comments keep their ids; both items go their own ways."""
        world = scene(tmp_path, repos=(REPO, "octo/other"))
        number = world.add_issue()
        await world.cycle()
        world.github.comment(REPO, number)
        await world.cycle()
        new = world.github.transfer_issue(REPO, number, "octo/other")
        world.github.comment("octo/other", new)
        await world.cycle(times=LINGER_CYCLES + 1)
        world.github.comment("octo/other", new)
        await world.cycle()

        assert world.ids(number) == ["spawn:1", "comment:1001", "close:1"]
        assert world.ids(new, "octo/other") == ["spawn:1", "comment:1003"]
        (spawn,) = [got for got in world.received if got["deliveryId"] == f"github:octo/other#{new}/spawn:1"]
        assert [entry["id"] for entry in spawn["thread"]] == ["1001", "1002"]

    @in_real_loop
    async def test_number_when_it_is_another_items_now_then_nothing_of_that_reaches_the_old_session(
        self, tmp_path: Path
    ) -> None:
        world, number = await begun(tmp_path)
        world.github.add_repo("octo/other")
        world.github.transfer_issue(REPO, number, "octo/other")
        world.github.repo(REPO).moved.clear()
        world.github.add_issue(REPO, number=number, labels=["auto"], title="Another one.")
        world.github.comment(REPO, number)
        await world.cycle(times=LINGER_CYCLES + 1)

        assert world.ids() == ["1/spawn:1"]
        assert [note.fields["ref"] for note in world.told("ledger.held")] == [f"github:{REPO}#{number}"]
