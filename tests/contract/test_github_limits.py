"""One clock for each token: a limit that one source meets is in force for all that use it, also in the next life."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.clock import Clock
from support.github import faults
from support.github.fake import FakeGitHub
from support.http_server import FakeServer
from support.world import in_real_loop
from the_loop import wiring
from the_loop.clocks import SystemClock
from the_loop.config import Config, Polling, Routing
from the_loop.cursors import Cursor, Wait, write_cursor
from the_loop.sources.base import Limited
from the_loop.sources.github.section import GithubSection
from the_loop.sources.limits import RateLimiter, RateLimiters
from the_loop.state import StateRoot
from the_loop.watched import Watched

ENVIRON = {"GITHUB_TOKEN": "secret"}


@pytest.fixture
def github() -> Iterator[FakeGitHub]:
    github = FakeGitHub(Clock())
    for repo in ("octo/one", "octo/two"):
        github.add_repo(repo)
    with FakeServer(github):
        yield github


@pytest.fixture
def root(tmp_path: Path) -> StateRoot:
    root = StateRoot(tmp_path / "root")
    root.prepare_root()
    root.prepare_folders()
    return root


async def close(*all_of_them: Watched) -> None:
    for one in all_of_them:
        await one.source.close()


def watched(github: FakeGitHub, root: StateRoot, *token_files: Path | None) -> list[Watched]:
    """Two sources, one for each repository, as a start finds them."""
    sections = tuple(
        GithubSection(
            provider="github",
            name=name,
            repos=(f"octo/{name}",),
            label="auto",
            api_url=github.base_url,
            token_file=str(file) if file else None,
        )
        for name, file in zip(("one", "two"), token_files or (None, None), strict=True)
    )
    config = Config(polling=Polling(sources=sections), routing=Routing(authorized_users=("octocat",)))
    clock, limiters = SystemClock(), RateLimiters(time.monotonic)
    return [wiring.watch(config, one, root, ENVIRON, clock=clock, limiters=limiters, tell=print) for one in sections]


class TestShared:
    @in_real_loop
    async def test_limit_when_one_source_met_it_then_the_other_does_not_ask(
        self, github: FakeGitHub, root: StateRoot
    ) -> None:
        one, two = watched(github, root)
        github.fail("octo/one", faults.secondary_limit(90))
        with pytest.raises(Limited):
            await one.source.poll(None, {})
        asked = github.requests
        with pytest.raises(Limited) as caught:
            await two.source.poll(None, {})
        await close(one, two)

        assert (asked, github.requests) == (1, 1)
        assert 85 < caught.value.wait_s <= 90

    @in_real_loop
    async def test_limit_when_the_other_source_has_another_token_then_it_goes_on(
        self, github: FakeGitHub, root: StateRoot, tmp_path: Path
    ) -> None:
        (tmp_path / "other").write_text("other\n")
        one, two = watched(github, root, None, tmp_path / "other")
        github.fail("octo/one", faults.secondary_limit(90))
        with pytest.raises(Limited):
            await one.source.poll(None, {})
        listing = await two.source.poll(None, {})
        await close(one, two)

        assert listing.faults == []
        assert github.log[-1].headers["authorization"] == "Bearer other"

    @in_real_loop
    async def test_limit_when_only_one_source_had_written_it_down_then_the_next_life_holds_it_for_both(
        self, github: FakeGitHub, root: StateRoot
    ) -> None:
        """The poller was killed before the other one could meet it."""
        write_cursor(root, "one", Cursor(wait=Wait(time.time() + 300, 300.0, "rate limit")))
        one, two = watched(github, root)
        for source in (one.source, two.source):
            with pytest.raises(Limited) as caught:
                await source.poll(None, {})
            assert 295 < caught.value.wait_s <= 300

        assert one.wait_left_s(time.monotonic()) > 295
        assert (one.state(time.monotonic()), one.error) == ("waiting", "rate limit")
        assert github.requests == 0

    @in_real_loop
    async def test_limit_when_the_token_is_renewed_meanwhile_then_is_in_force_still(
        self, github: FakeGitHub, root: StateRoot, tmp_path: Path
    ) -> None:
        """The tokens of an App's installation change every hour, and have its limits in common."""
        file = tmp_path / "token"
        file.write_text("first\n")
        one, two = watched(github, root, file, file)
        await two.source.poll(None, {})
        asked = github.requests
        github.fail("octo/one", faults.secondary_limit(90))
        with pytest.raises(Limited):
            await one.source.poll(None, {})
        file.write_text("second\n")
        with pytest.raises(Limited):
            await two.source.poll(None, {})
        await close(one, two)

        assert github.requests == asked + 1


class TestClock:
    def test_guess_when_limits_name_no_moment_then_grows_to_a_quarter_of_an_hour(self) -> None:
        limiter = RateLimiter(lambda: 0.0)
        guesses = []
        for _ in range(6):
            guesses.append(limiter.guess_s())
            limiter.hold(guesses[-1])
        assert guesses == [60, 120, 240, 480, 900, 900]

        limiter.clear()
        assert limiter.guess_s() == 60

    def test_guess_when_an_earlier_life_waited_then_goes_on_growing(self) -> None:
        limiter = RateLimiter(lambda: 0.0)
        limiter.resume(0.0, 240.0)

        assert (limiter.wait_left_s, limiter.guess_s()) == (0.0, 480)

    def test_clocks_when_tokens_come_and_go_then_only_those_in_force_are_kept(self) -> None:
        limiters = RateLimiters(lambda: 0.0)
        limiters.of("https://api", "held").hold(60)
        for hour in range(1000):
            limiters.of("https://api/", f"token {hour}")

        assert len(limiters._limiters) == 100
        assert limiters.of("https://api/", "held").wait_left_s == 60

    @pytest.mark.parametrize(
        ("points", "limit", "is_short"),
        [
            (5000, 5000, False),
            (1001, 5000, False),
            (999, 5000, True),
            (0, 60, True),
            (None, 5000, False),
            (5, 0, False),
        ],
    )
    def test_clock_when_a_fifth_is_left_then_is_short(
        self, points: float | None, limit: float | None, is_short: bool
    ) -> None:
        limiter = RateLimiter(lambda: 0.0)
        limiter.note_left(points, limit)

        assert limiter.is_short is is_short
