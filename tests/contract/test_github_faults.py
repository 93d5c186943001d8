"""What goes wrong at GitHub costs time, and only that: nothing ends, nothing is lost, no budget is spent."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from support.github import faults
from support.github.faults import Effect
from support.github.values import Rules
from support.http_transport import FakeTransport
from support.world import REPO, World, carried, in_real_loop, scene
from the_loop.core.model import Outcome, Verdict

HOUR = 3600
UNREADABLE: dict[str, Effect] = {
    "html": faults.html(),
    "half": faults.half_json(),
    "cut": faults.cut(),
    "empty": faults.reply(200, b""),
    "null": faults.reply(200, b"null"),
    "number": faults.reply(200, b"7"),
    "nested": faults.reply(200, b"[" * 200_000),
    "latin": faults.reply(200, b'[{"title": "\xe9"}]'),
    "204": faults.reply(204),
}
LIMITS: dict[str, Effect] = {
    "403": faults.secondary_limit(),
    "429": faults.too_many_requests(),
    "200": faults.limit_in_200(),
}


async def started(folder: Path, *, interval_s: int = 60, **options: object) -> World:
    """A world with an issue and a pull request that were delivered."""
    world = scene(folder, interval_s=interval_s, **options)  # type: ignore[arg-type]
    world.add_issue()
    world.add_issue(pull_request=True)
    await world.cycle(times=3)
    assert world.ids() == ["1/spawn:1", "2/spawn:1"]
    return world


def asked_at(world: World, since: float) -> list[float]:
    """The moments of the requests after `since`, each once, counted from it."""
    return sorted({entry.time - since for entry in world.github.log if entry.time >= since})


def gaps(moments: list[float]) -> list[float]:
    return [later - earlier for earlier, later in pairwise(moments)]


async def run_until(world: World, moment: float) -> None:
    while world.clock.now < moment:
        await world.cycle()


class TestFailing:
    @pytest.mark.parametrize("effect", [faults.server_error(500), faults.server_error(503), faults.bad_credentials()])
    @in_real_loop
    async def test_source_when_failing_for_an_hour_then_is_asked_ever_less_and_nothing_ends(
        self, tmp_path: Path, effect: Effect
    ) -> None:
        world = await started(tmp_path)
        good, began = world.watched.last_good_at, world.clock.now
        fault = world.github.fail(".", effect, times=None)
        world.github.close(REPO, 1)
        world.github.comment(REPO, 2)
        before = {number: world.ledger(number) for number in (1, 2)}
        await run_until(world, began + HOUR)

        pauses = gaps(asked_at(world, began))
        assert pauses[:5] == [60, 120, 240, 480, 600]
        assert set(pauses[5:]) == {600}
        assert (world.state, world.watched.last_good_at) == ("failing", good)
        assert [note.name for note in world.notes if note.name.startswith("source")] == ["source.failed"]
        assert {number: world.ledger(number) for number in (1, 2)} == before

        world.github.faults.remove(fault)
        await run_until(world, world.clock.now + 600)
        await world.cycle(times=4)
        assert world.ids() == ["1/spawn:1", "2/spawn:1", "2/comment:1001", "1/close:1"]
        assert (world.state, len(world.told("source.recovered"))) == ("ok", 1)

    @in_real_loop
    async def test_source_when_restarted_within_its_backoff_then_is_asked_at_once(self, tmp_path: Path) -> None:
        world = await started(tmp_path)
        world.github.fail(".", faults.server_error(), times=4)
        await world.cycle(times=9)
        world = world.restart()
        before = world.github.requests
        await world.cycle()

        assert world.github.requests == before + 3

    @in_real_loop
    async def test_network_when_away_for_ten_minutes_from_the_start_then_everything_comes_after_it(
        self, tmp_path: Path
    ) -> None:
        world = scene(tmp_path)
        network = FakeTransport(world.github)
        network.is_down = True
        world = world.restart(transport=network)
        world.add_issue()
        await world.cycle(times=10)
        assert (world.received, world.state) == ([], "failing")
        network.is_down = False
        await world.cycle(times=11)

        assert world.ids() == ["1/spawn:1"]

    @pytest.mark.parametrize("effect", UNREADABLE.values(), ids=UNREADABLE)
    @pytest.mark.parametrize("pattern", [r"\?labels", r"issues/comments\?sort", r"pulls/comments", r"/issues/1$", "."])
    @in_real_loop
    async def test_answer_when_unreadable_then_is_no_answer(self, tmp_path: Path, pattern: str, effect: Effect) -> None:
        world = await started(tmp_path)
        fault = world.github.fail(pattern, effect, times=None)
        world.github.close(REPO, 1)
        world.github.comment(REPO, 2)
        world.github.review_comment(REPO, 2)
        await world.cycle(times=6)
        assert world.ids(1) == ["spawn:1"]

        world.github.faults.remove(fault)
        await world.cycle(times=16)
        assert sorted(world.ids()) == sorted(
            ["1/spawn:1", "2/spawn:1", "2/comment:1001", "2/review_comment:1001", "1/close:1"]
        )

    @in_real_loop
    async def test_thread_when_it_cannot_be_read_then_only_its_item_waits(self, tmp_path: Path) -> None:
        world = await started(tmp_path)
        bad, good = world.add_issue(), world.add_issue()
        world.github.fail(rf"/issues/{bad}/comments", faults.server_error(500), times=3)
        world.github.comment(REPO, 1)
        await world.cycle()
        assert world.ids()[2:] == ["1/comment:1001", f"{good}/spawn:1"]
        assert [note.fields["ref"] for note in world.told("item.failed")] == [f"github:{REPO}#{bad}"]
        assert world.cursor()["owed"] == [f"github:{REPO}#{bad}"]
        world.github.comment(REPO, bad)
        await world.cycle(times=4)

        assert world.ids(bad) == ["spawn:1"]
        assert [entry["id"] for entry in world.received[-1]["thread"]] == ["1002"]

    @pytest.mark.parametrize("effect", ["502", "limit", "html", "hang", "404"])
    @in_real_loop
    async def test_request_when_any_one_fails_then_all_arrives_once_and_in_order(
        self, tmp_path: Path, effect: str
    ) -> None:
        """Each request of three busy cycles in turn."""
        effects = {
            "502": faults.server_error(),
            "limit": faults.secondary_limit(30),
            "html": faults.html(),
            "hang": faults.hang(),
            "404": faults.reply(404, {"message": "Not Found"}),
        }
        total = await busy_cycles(tmp_path / "none", None, 0)
        assert total > 12
        for number in range(total):
            await busy_cycles(tmp_path / str(number), effects[effect], number)


async def busy_cycles(folder: Path, effect: Effect | None, after: int) -> int:
    """Let one request of some cycles fail, and check what arrives; how many requests those cycles made."""
    world = await started(folder)
    github = world.github
    before = github.requests
    if effect is not None:
        github.fail(".", effect, after=after)
    github.comment(REPO, 1)
    github.review_comment(REPO, 2)
    github.unlabel(REPO, 2, "auto")
    new = world.add_issue()
    github.comment(REPO, new)
    await world.cycle()
    github.comment(REPO, 1)
    github.comment(REPO, 2)
    github.label(REPO, 2, "auto")
    github.comment(REPO, new)
    await world.cycle()
    github.comment(REPO, 1)
    github.close(REPO, 1)
    await world.cycle()
    made = github.requests - before
    world = world.restart()
    await world.cycle(times=8)

    assert world.ids(1) == ["spawn:1", "comment:1001", "comment:1003", "comment:1006", "close:1"]
    assert sorted(world.ids(2)) == ["comment:1004", "review_comment:1001", "spawn:1"]
    arrived = [name.partition("#")[2] for name in carried(world.received)]
    assert [name for name in arrived if name.startswith(f"{new}/")] == ["3/spawn:1", "3/comment:1002", "3/comment:1005"]
    return made


class TestLimits:
    @pytest.mark.parametrize(
        ("effect", "wait_s"),
        [
            (lambda _now: faults.secondary_limit(90), 90),
            (lambda _now: faults.too_many_requests(90), 90),
            (lambda now: faults.primary_limit(now + 120), 120),
            (lambda now: faults.primary_limit(now + 120, status=429), 120),
            (lambda now: faults.primary_limit(now + 50 * 60), 50 * 60),
            (lambda _now: faults.secondary_limit(), 60),
            (lambda _now: faults.too_many_requests(), 60),
            (lambda _now: faults.limit_in_200(), 60),
        ],
    )
    @pytest.mark.parametrize("pattern", [r"\?labels", r"issues/comments\?sort", r"/issues/1$", r"/issues/3/comments"])
    @pytest.mark.parametrize("restarts", [False, True])
    @in_real_loop
    async def test_limit_then_silence_until_the_moment_it_named(
        self, tmp_path: Path, pattern: str, effect: Callable[[float], Effect], wait_s: float, restarts: bool
    ) -> None:
        world = await started(tmp_path, interval_s=5)
        limited_at = world.clock.now
        world.github.fail(pattern, effect(limited_at))
        world.github.close(REPO, 1)
        world.github.comment(REPO, 2)
        world.add_issue()
        await world.cycle()
        (last,) = [entry for entry in world.github.requests_matching(pattern) if entry.time == limited_at][-1:]
        assert world.github.log[-1] == last, "nothing is asked after the one that named the limit"
        assert world.state == "waiting"
        while world.clock.now < limited_at + wait_s + 60:
            if restarts and world.clock.now > limited_at + 20:
                world = world.restart()
            await world.cycle()

        moments = [moment for moment in asked_at(world, limited_at) if moment > 0]
        assert wait_s <= moments[0] <= wait_s + 1 + 5
        await run_until(world, limited_at + wait_s + 300)
        assert sorted(world.ids()) == sorted(["1/spawn:1", "2/spawn:1", "2/comment:1001", "3/spawn:1", "1/close:1"])
        assert world.state == "ok"
        assert world.told("poll.comment_failed") == []

    @pytest.mark.parametrize("effect", LIMITS.values(), ids=LIMITS)
    @in_real_loop
    async def test_limit_when_it_names_no_moment_then_pauses_grow(self, tmp_path: Path, effect: Effect) -> None:
        world = await started(tmp_path, interval_s=5)
        began = world.clock.now
        world.github.fail(".", effect, times=8)
        await run_until(world, began + 2 * HOUR)

        pauses = gaps(asked_at(world, began))[:8]
        assert pauses == [60, 120, 240, 480, 900, 900, 900, 900]
        assert world.state == "ok"
        world.github.fail(".", effect)
        began = world.clock.now
        await run_until(world, began + 120)
        assert gaps(asked_at(world, began))[0] == 60, "a good answer ends the growing"

    @in_real_loop
    async def test_forbidden_when_it_is_about_rights_then_is_no_limit(self, tmp_path: Path) -> None:
        world = await started(tmp_path)
        world.github.fail(".", faults.permission_denied(), times=None)
        await world.cycle()

        assert world.state == "failing"
        assert "forbidden (403): Resource not accessible" in world.watched.error
        assert world.told("source.waiting") == []

    @in_real_loop
    async def test_limit_when_real_points_run_out_then_everything_comes_after_the_reset(self, tmp_path: Path) -> None:
        world = scene(tmp_path, Rules(rate_limit=25))
        numbers = [world.add_issue() for _ in range(30)]
        await world.cycle(times=70)
        refused = [entry for entry in world.github.log if entry.status == 403]

        assert sorted(world.ids()) == sorted(f"{number}/spawn:1" for number in numbers)
        assert len(refused) == 1

    @in_real_loop
    async def test_wait_when_the_clock_is_set_back_then_lasts_no_longer_than_it_was_set(self, tmp_path: Path) -> None:
        world = await started(tmp_path, interval_s=5)
        limited_at = world.clock.now
        world.github.fail(".", faults.secondary_limit(90))
        await world.cycle()
        world.clock.now -= 30 * 86_400
        set_back_at = world.clock.now
        before = world.github.requests
        await run_until(world, set_back_at + 100)

        assert limited_at > set_back_at
        assert world.github.requests > before

    @in_real_loop
    async def test_wait_when_the_clock_is_set_back_over_a_restart_then_lasts_no_longer_than_it_was_set(
        self, tmp_path: Path
    ) -> None:
        world = await started(tmp_path, interval_s=5)
        world.github.fail(".", faults.secondary_limit(90))
        await world.cycle()
        world.clock.now -= 30 * 86_400
        world = world.restart()
        set_back_at, before = world.clock.now, world.github.requests
        await run_until(world, set_back_at + 80)
        assert world.github.requests == before
        await run_until(world, set_back_at + 100)

        assert world.github.requests > before

    @in_real_loop
    async def test_wait_when_the_clock_is_set_ahead_then_still_ends_no_sooner(self, tmp_path: Path) -> None:
        world = await started(tmp_path, interval_s=5)
        world.github.fail(".", faults.secondary_limit(90))
        await world.cycle()
        world.clock.now += 86_400
        ahead_at, before = world.clock.now, world.github.requests
        await run_until(world, ahead_at + 80)
        assert world.github.requests == before
        await run_until(world, ahead_at + 100)

        assert world.github.requests > before

    @in_real_loop
    async def test_wait_when_it_is_named_absurdly_long_then_ends_within_a_day(self, tmp_path: Path) -> None:
        world = await started(tmp_path, interval_s=600)
        began = world.clock.now
        world.github.fail(".", faults.secondary_limit(10**9))
        world.github.comment(REPO, 1)
        await run_until(world, began + 86_400 + 1200)

        assert world.ids()[-1] == "1/comment:1001"


class TestRepositories:
    @pytest.mark.parametrize("effect", [faults.reply(404, {"message": "Not Found"}), *UNREADABLE.values()])
    @in_real_loop
    async def test_repository_when_it_cannot_be_listed_then_the_others_are_served_each_round(
        self, tmp_path: Path, effect: Effect
    ) -> None:
        repos = ("octo/one", "octo/two", "octo/three")
        world = scene(tmp_path, repos=repos)
        fault = world.github.fail(r"/octo/two\b", effect, times=None)
        for repo in repos:
            world.add_issue(repo=repo)
        await world.cycle()
        for _ in range(5):
            for repo in repos:
                world.github.comment(repo, 1)
            await world.cycle()

        for repo in ("octo/one", "octo/three"):
            assert len([got for got in world.received if got["ref"] == f"github:{repo}#1"]) == 6
        assert not [got for got in world.received if got["ref"] == "github:octo/two#1"]
        assert (world.state, world.watched.error.startswith("octo/two: ")) == ("failing", True)

        world.github.faults.remove(fault)
        await world.cycle()
        assert world.ids(1, "octo/two") == ["spawn:1"]
        assert world.state == "ok"

    @in_real_loop
    async def test_limit_when_it_hits_one_repository_then_those_behind_it_are_not_asked(self, tmp_path: Path) -> None:
        repos = ("octo/one", "octo/two", "octo/three")
        world = scene(tmp_path, repos=repos)
        for repo in repos:
            world.add_issue(repo=repo)
        await world.cycle()
        for repo in repos:
            world.github.comment(repo, 1)
        world.github.fail(r"/octo/two/issues\?", faults.secondary_limit(90))
        before = world.github.requests
        await world.cycle()
        assert [entry.status for entry in world.github.log[before:]][-1] == 403
        assert world.state == "waiting"
        await world.cycle(times=3)

        for repo in repos:
            assert len([got for got in world.received if got["ref"] == f"github:{repo}#1"]) == 2
        assert world.state == "ok"

    @in_real_loop
    async def test_item_when_it_is_owed_and_its_repository_fails_then_is_still_owed(self, tmp_path: Path) -> None:
        """Its rows went by while its thread could not be read; only the thread can bring them."""
        world = scene(tmp_path, repos=("octo/one", "octo/two"))
        world.add_issue(repo="octo/one")
        number = world.add_issue(repo="octo/two")
        await world.cycle()
        world.root.cursor("github").unlink()
        world = world.restart()
        world.github.comment("octo/two", number)
        world.clock.run(HOUR)
        world.github.fail(r"/octo/two/issues/1/comments", faults.server_error())
        await world.cycle()
        world.github.fail(r"/octo/two/issues\?", faults.server_error())
        await world.cycle(times=3)

        assert world.ids(number, "octo/two") == ["spawn:1", "comment:1001"]

    @in_real_loop
    async def test_item_when_it_is_owed_and_missing_from_one_listing_then_is_still_owed(self, tmp_path: Path) -> None:
        world = await started(tmp_path)
        world.root.cursor("github").unlink()
        world = world.restart()
        world.github.comment(REPO, 1)
        world.clock.run(HOUR)
        world.github.fail(r"/issues/1/comments", faults.server_error())
        await world.cycle()
        world.github.fail(r"\?labels", faults.reply(200, b"[]", {"ETag": 'W/"x"'}))
        await world.cycle(times=3)

        assert world.ids(1) == ["spawn:1", "comment:1001"]

    @in_real_loop
    async def test_repository_when_added_to_the_configuration_then_its_items_start(self, tmp_path: Path) -> None:
        world = await started(tmp_path)
        world.github.add_repo("octo/late")
        world.github.comment(REPO, 1)
        number = world.add_issue(repo="octo/late")
        world.github.comment("octo/late", number)
        world.clock.run(HOUR)
        world = world.restart(repos=(REPO, "octo/late"))
        await world.cycle(times=2)
        world.github.comment("octo/late", number)
        await world.cycle(times=2)

        late = [name for name in world.ids() if "late" in name]
        assert [name for name in world.ids() if name not in late] == ["1/spawn:1", "2/spawn:1", "1/comment:1001"]
        assert late == ["github:octo/late#1/spawn:1", "github:octo/late#1/comment:1003"]

    @in_real_loop
    async def test_repository_when_taken_out_and_back_then_nothing_ends_or_is_lost(self, tmp_path: Path) -> None:
        world = scene(tmp_path, repos=("octo/one", "octo/two"))
        for repo in ("octo/one", "octo/two"):
            world.add_issue(repo=repo)
        await world.cycle()
        world = world.restart(repos=("octo/one",))
        world.github.comment("octo/two", 1)
        await world.cycle(times=5)
        assert len(world.received) == 2
        world = world.restart(repos=("octo/one", "octo/two"))
        await world.cycle(times=5)

        assert world.ids(1, "octo/two") == ["spawn:1", "comment:1001"]


class TestReceiver:
    @in_real_loop
    async def test_source_when_limited_then_refused_events_are_still_tried_again(self, tmp_path: Path) -> None:
        world = await started(tmp_path)
        world.sink.answers["github:octo/repo#1/comment:1001"] = [Outcome(Verdict.REFUSED, "no")]
        world.github.comment(REPO, 1)
        await world.cycle()
        world.github.fail(".", faults.secondary_limit(600))
        await world.cycle(times=3)

        assert world.ids(1) == ["spawn:1", "comment:1001", "comment:1001"]
        assert [got["attempt"] for got in world.received[2:]] == [1, 2]
