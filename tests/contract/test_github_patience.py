"""Items that cannot be asked about for good must not stand in front of those that can."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.github import faults
from support.github.values import Rules
from support.world import REPO, World, in_real_loop, scene
from the_loop.core.model import Outcome, Verdict
from the_loop.sources.github import poll as poll_module

BROKEN = faults.server_error()


async def started(folder: Path, count: int, *, is_pull: bool = True, **options: Any) -> World:
    world = scene(folder, **options)
    for _ in range(count):
        world.add_issue(pull_request=is_pull)
    await world.cycle(times=3 + count // 50)
    assert len(world.ids()) == count
    return world


def arrived(world: World, kind: str) -> int:
    return sum(f"/{kind}" in name for name in world.ids())


@in_real_loop
async def test_reviews_when_nobody_answers_about_departures_then_arrive_all_the_same(tmp_path: Path) -> None:
    world = await started(tmp_path, 8)
    world.github.fail(r"/issues/[123]$", BROKEN, times=None)
    for number in (1, 2, 3):
        world.github.close(REPO, number)
    world.github.review(REPO, 6, body="Well done.")
    await world.cycle(times=3)

    assert arrived(world, "review") == 1


@in_real_loop
async def test_items_when_more_are_deleted_than_one_look_may_ask_about_then_each_is_found_missing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever was not found once and was not asked in the next look began anew, for ever."""
    monkeypatch.setattr(poll_module, "QUESTIONS", 20)
    world = await started(tmp_path, 90, is_pull=False, linger_s=0)
    for number in range(1, 91):
        world.github.fail(rf"/issues/{number}$", faults.reply(404, {"message": "Not Found"}), times=None)
        world.github.unlabel(REPO, number, "auto")
    spent = []
    for _ in range(14):
        before = world.github.points
        await world.cycle()
        spent.append(world.github.points - before)

    assert arrived(world, "close") == 90
    assert max(spent) <= 20 + 3, "one question for each, and one for the repository"


@pytest.mark.parametrize("count", [6, 15, 30])
@in_real_loop
async def test_items_without_label_when_three_others_are_broken_then_their_end_is_noticed(
    tmp_path: Path, count: int
) -> None:
    """Two circles of the same length kept in step: the same ones were always behind those that failed."""
    world = await started(tmp_path, count, is_pull=False, linger_s=0)
    for number in range(1, count - 2):
        world.github.unlabel(REPO, number, "auto")
    await world.cycle(times=2)
    for number in range(count - 2, count + 1):
        world.github.fail(rf"/issues/{number}$", BROKEN, times=None)
        world.github.close(REPO, number)
    await world.cycle(times=2)
    for number in range(1, count - 2):
        world.github.close(REPO, number)
    await world.cycle(times=45)

    assert arrived(world, "close") == count - 3


@pytest.mark.parametrize("interval_s", [180, 300, 600])
@in_real_loop
async def test_review_when_its_list_failed_once_then_comes_with_the_next_look_however_late_that_is(
    tmp_path: Path, interval_s: int
) -> None:
    world = await started(tmp_path, 30, interval_s=interval_s, rules=Rules(reviews_move_issue=False))
    await world.cycle(times=33)
    world.github.review_comment(REPO, 20)
    world.github.review(REPO, 20, body="Well done.")
    world.github.fail(r"/pulls/20/reviews", BROKEN)
    await world.cycle(times=2)

    assert arrived(world, "review:") == 1


@in_real_loop
async def test_repositories_when_the_first_one_takes_all_points_then_the_others_have_their_turn(tmp_path: Path) -> None:
    world = scene(tmp_path, repos=(REPO, "octo/second"))
    for _ in range(200):
        world.add_issue(pull_request=True)
    world.add_issue(repo="octo/second")
    await world.cycle(times=12)
    world.clock.run(3600)
    world.github.rules = replace(world.github.rules, rate_limit=60)
    for number in range(1, 201):
        world.github.review(REPO, number, body="Well done.")
    world.github.comment("octo/second", 1)
    await world.cycle(times=130)

    assert any("octo/second#1/comment" in got["deliveryId"] for got in world.received)


@in_real_loop
async def test_threads_when_nobody_answers_for_some_then_few_are_waited_for_and_the_others_are_read(
    tmp_path: Path,
) -> None:
    """Each takes its whole time limit, and a cycle waits for all of them."""
    world = await started(tmp_path, 60, is_pull=False)
    world.root.cursor("github").unlink()
    world = world.restart()
    world.github.fail(r"/issues/([1-9]|1[0-2])/comments", faults.hang(), times=None)
    for number in range(1, 61):
        world.github.comment(REPO, number)
    hung = []
    for _ in range(4):
        before = len(world.github.log)
        await world.cycle()
        hung.append(sum(entry.status == 0 for entry in world.github.log[before:]))

    assert max(hung) <= 10
    assert arrived(world, "comment") == 48


@in_real_loop
async def test_ledger_when_it_cannot_be_read_while_its_item_is_not_listed_then_the_cycle_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = await started(tmp_path, 2, is_pull=False)
    world.watched.cursor = replace(world.watched.cursor, owed=frozenset({f"github:{REPO}#1"}))
    world.github.unlabel(REPO, 1, "auto")
    world.github.fail(r"/issues/1$", BROKEN, times=None)
    world.github.comment(REPO, 2)
    genuine = world.ledgers.get

    def failing(ref: str) -> Any:
        if ref.endswith("#1"):
            raise OSError(5, "Input/output error")
        return genuine(ref)

    monkeypatch.setattr(world.ledgers, "get", failing)
    await world.cycle()

    assert world.ids()[-1] == "2/comment:1001"


@in_real_loop
async def test_faults_when_they_stay_the_same_then_are_told_once(tmp_path: Path) -> None:
    world = await started(tmp_path, 12)
    world.github.fail(r"/pulls/[1-5]/reviews", faults.permission_denied(), times=None)
    for number in range(1, 6):
        world.github.review(REPO, number, body="Well done.")
    await world.cycle(times=40)

    told = world.told("source.failed")
    assert len(told) <= 6, "each of the five is found once, in any order"
    assert len(world.watched.error) < 1000


@pytest.mark.parametrize("interval_s", [60, 300])
@in_real_loop
async def test_notices_when_ten_cannot_be_written_then_the_others_are(tmp_path: Path, interval_s: int) -> None:
    world = scene(tmp_path, report_give_ups=True, interval_s=interval_s)
    for number in range(1, 15):
        world.add_issue()
        refusals = [Outcome(Verdict.REFUSED, "exit 1")] * 9
        world.sink.answers[f"github:{REPO}#{number}/comment:{1000 + number}"] = refusals
    await world.cycle(times=2)
    for number in range(1, 15):
        world.github.comment(REPO, number)
    for number in (1, 10, 11, 12, 13, 14, 2, 3, 4, 5):
        world.github.fail(rf"/issues/{number}/comments", BROKEN, times=None)
    await world.cycle(times=35)

    assert sorted(note.fields["ref"][-1] for note in world.told("poll.give_up_told")) == ["6", "7", "8", "9"]
