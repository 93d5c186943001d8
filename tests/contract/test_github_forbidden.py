"""What a 403 may mean: a limit that only a sentence tells, or a right that is missing; and rights of one kind only."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.github import faults
from support.github.stories import LINGER_CYCLES, begun, everything_of
from support.world import REPO, in_real_loop
from the_loop.core.model import Outcome, Verdict

LIMIT_SENTENCES = [
    "You have exceeded a secondary rate limit. Please wait a few minutes before you try again.",
    "You have exceeded a secondary rate limit and have been temporarily blocked from content creation.",
    "You have triggered an abuse detection mechanism. Please wait a few minutes before you try again.",
    "API rate limit exceeded for user ID 1.",
    "API rate limit exceeded for installation ID 1.",
    "API rate limit exceeded for 203.0.113.7. (But here's the good news: Authenticated requests get a higher limit.)",
]
RIGHTS = {
    "token": ({"message": "Resource not accessible by personal access token"}, {}),
    "app": ({"message": "Resource not accessible by integration"}, {}),
    "single sign-on": (
        {"message": "Resource protected by organization SAML enforcement. You must grant your Personal Access token."},
        {"X-GitHub-SSO": "required; url=https://github.com/orgs/octo/sso"},
    ),
    "address": (
        {"message": "The `octo` organization has an IP allow list enabled, and your IP address is not on it."},
        {},
    ),
    "suspended": ({"message": "Sorry. Your account was suspended."}, {}),
    "blocked": ({"message": "Repository access blocked", "block": {"reason": "tos", "created_at": "2023-01-01"}}, {}),
    "page": (b"<html><body>Access denied</body></html>", {"Content-Type": "text/html"}),
    "nothing": (b"", {}),
}


class TestForbidden:
    @pytest.mark.parametrize("sentence", LIMIT_SENTENCES)
    @pytest.mark.parametrize("status", [403, 429])
    @in_real_loop
    async def test_limit_when_only_a_sentence_says_so_then_pauses_for_a_growing_while(
        self, tmp_path: Path, sentence: str, status: int
    ) -> None:
        """Elsewhere a secondary limit without any header was taken for missing rights, and asked against."""
        world, number = await begun(tmp_path, interval_s=5)
        world.sink.answers[f"github:{REPO}#1/comment:1001"] = [Outcome(Verdict.REFUSED, "no")]
        world.github.comment(REPO, number)
        await world.cycle()
        before, limited_at = world.ledger(number), world.clock.now
        world.github.fail(".", faults.reply(status, {"message": sentence}), times=2)
        while world.clock.now < limited_at + 200:
            await world.cycle()
        asked = sorted({entry.time - limited_at for entry in world.github.log if entry.time >= limited_at})

        assert asked[:3] == [0, 60, 180]
        assert len(world.told("source.waiting")) == 2
        assert world.ids(number) == ["spawn:1", "comment:1001", "comment:1001"]
        assert before["poll"]["commentAttempts"] == {"comment:1001": 1}
        assert world.told("source.failed") == []

    @pytest.mark.parametrize(("body", "headers"), RIGHTS.values(), ids=RIGHTS)
    @in_real_loop
    async def test_forbidden_when_it_is_about_rights_then_is_told_as_that_and_changes_nothing(
        self, tmp_path: Path, body: object, headers: dict[str, str]
    ) -> None:
        """Elsewhere every 403 was one and the same: a ban was obeyed that nobody had spoken, or items were given up."""
        world, number = await begun(tmp_path)
        before = world.ledger(number)
        fault = world.github.fail(".", faults.reply(403, body, headers), times=None)
        world.github.close(REPO, number)
        await world.cycle(times=20)
        assert (world.state, "forbidden (403)" in world.watched.error) == ("failing", True)
        assert (world.told("source.waiting"), world.ledger(number)) == ([], before)

        world.github.faults.remove(fault)
        world.clock.run(600)
        await world.cycle(times=LINGER_CYCLES)
        assert (world.ids(), world.state) == (["1/spawn:1", "1/close:1"], "ok")

    @pytest.mark.parametrize(
        "pattern", [r"/issues/1$", r"/issues/comments\?", r"/pulls/comments\?", r"/issues/3/comments", "."]
    )
    @pytest.mark.parametrize("status", [403, 451, 404])
    @in_real_loop
    async def test_token_when_it_may_not_read_one_kind_of_list_then_nothing_ends_and_all_comes_when_it_may(
        self, tmp_path: Path, pattern: str, status: int
    ) -> None:
        """A fine-grained token has some rights and lacks others; a 404 from it is no evidence of anything."""
        world, number = await begun(tmp_path)
        other = world.add_issue(pull_request=True)
        await world.cycle()
        message = {"message": "Resource not accessible by personal access token"}
        fault = world.github.fail(pattern, faults.reply(status, message), times=None)
        world.github.unlabel(REPO, number, "auto")
        world.github.comment(REPO, other)
        world.github.review_comment(REPO, other)
        new = world.add_issue()
        world.github.comment(REPO, new)
        await world.cycle()
        world.github.label(REPO, number, "auto")
        await world.cycle(times=12)
        world.github.faults.remove(fault)
        world.clock.run(600)
        await world.cycle(times=3)

        assert world.ids(number) == ["spawn:1"]
        assert sorted(everything_of(world, other)) == ["comment:1001", "review_comment:1001", "spawn:1"]
        assert everything_of(world, new) == ["spawn:1", "comment:1002"]
        assert world.state == "ok"
