"""Hundreds of items over several repositories: what idle looks cost, and how a first full sight goes.

`benchmarks/scale.py` does the same with ten thousand, real processes and a clock.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.clock import NOON
from support.github.values import Rules
from support.world import World, carried, in_real_loop, scene

SIGHTS = 50  # of one source in one cycle
SWEEP = 30  # looks in which each pull request is asked for its reviews once
MINUTE_S = 60.0

SIZES = {  # items, and how many of them are pull requests
    "octo/none": (0, 0),
    "octo/few": (7, 0),
    "octo/full": (100, 30),
    "octo/pulls": (90, 90),
    "octo/most": (203, 61),
}

_watched: list[tuple[str, list[str]]] = []


def _note_file_events(event: str, arguments: tuple[Any, ...]) -> None:
    if _watched and event in ("open", "os.rename", "os.remove", "os.link", "os.truncate") and arguments:
        folder, seen = _watched[-1]
        if str(arguments[0]).startswith(folder):
            seen.append(f"{event} {arguments[0]}")


sys.addaudithook(_note_file_events)  # never to be removed, so it does nothing unless asked to


@contextmanager
def file_events(folder: Path) -> Iterator[list[str]]:
    """Every file below `folder` that is opened, renamed or removed."""
    seen: list[str] = []
    _watched.append((str(folder), seen))
    try:
        yield seen
    finally:
        _watched.pop()


def add(world: World, repo: str, count: int, *, pulls: int = 0, created: float = NOON - 7200) -> list[str]:
    """So many items, the last of them pull requests, with 0 to 2 entries each; the delivery ids they have to bring."""
    expected = []
    for place in range(count):
        is_pull = place >= count - pulls
        number = world.add_issue(repo=repo, created=created + place, pull_request=is_pull)
        ref = f"github:{repo}#{number}"
        expected.append(f"{ref}/spawn:1")
        for entry in range(place % 3):
            kind, write = ("comment", world.github.comment)
            if is_pull and entry:
                kind, write = ("review_comment", world.github.review_comment)
            expected.append(f"{ref}/{kind}:{write(repo, number, created=created + place + entry + 1)}")
    return expected


async def settle(world: World) -> None:
    """Cycles until every item was handed over and nothing is followed more closely than usual."""
    while world.watched.cursor.value is None or world.watched.cursor.owed:
        await world.cycle()
    await world.cycle(times=SWEEP + 5)


def requests_by_repo(world: World, since: int) -> Counter[str]:
    """Requests by the name of their repository, which pages behind the first one are asked of by its id."""
    names = {str(world.github.repo(repo).id): repo for repo in world.options.repos}
    found = (
        re.match(r"/(?:repos/([^/]+/[^/]+)|repositories/([0-9]+))/", one.target) for one in world.github.log[since:]
    )
    return Counter(match[1] or names[match[2]] for match in found if match)


def assert_once(world: World, expected: Sequence[str]) -> None:
    """These arrived, by themselves or with their item's spawn: each once, and nothing else did."""
    arrived = Counter(carried(world.received))
    assert [name for name, count in arrived.items() if count > 1] == []
    assert sorted(arrived) == sorted(expected)


class TestIdle:
    @in_real_loop
    async def test_look_when_four_hundred_items_are_idle_then_costs_the_formula_and_touches_no_file(
        self, tmp_path: Path
    ) -> None:
        world = scene(tmp_path, repos=tuple(SIZES))
        expected = [name for repo, (count, pulls) in SIZES.items() for name in add(world, repo, count, pulls=pulls)]
        await settle(world)
        await world.cycle(times=SWEEP)  # every pull request had its turn, so that is not noted any more
        points, reviews = world.github.points, len(world.github.requests_matching(r"/reviews"))

        with file_events(world.root.path) as seen:
            for _ in range(SWEEP):
                since = len(world.github.log)
                await world.cycle()
                asked = requests_by_repo(world, since)
                for repo, (count, pulls) in SIZES.items():
                    formula = count // 100 + 1 + 1 + (pulls > 0) + pulls / SWEEP
                    assert abs(asked[repo] - formula) <= 1, f"{repo}: {asked[repo]}, not {formula:.1f}"

        assert world.github.points == points
        assert seen == []
        asked_for_reviews = len(world.github.requests_matching(r"/reviews")) - reviews
        assert asked_for_reviews == sum(pulls for _, pulls in SIZES.values()), "each once"
        assert_once(world, expected)

    @in_real_loop
    async def test_look_when_one_comment_came_then_costs_a_point_for_each_changed_list(self, tmp_path: Path) -> None:
        world = scene(tmp_path, repos=tuple(SIZES))
        expected = add(world, "octo/most", 203) + add(world, "octo/few", 7)
        await settle(world)
        points = world.github.points
        expected.append(f"github:octo/most#150/comment:{world.github.comment('octo/most', 150)}")
        await world.cycle()

        assert world.github.points == points + 2, "the page that counts the comment, and the comments"
        assert_once(world, expected)


class TestFirstSight:
    REPOS = ("octo/old", "octo/a", "octo/b", "octo/c")

    @in_real_loop
    async def test_items_when_hundreds_are_new_then_fifty_a_cycle_and_known_ones_do_not_wait(
        self, tmp_path: Path
    ) -> None:
        world = scene(tmp_path, repos=self.REPOS)
        expected = add(world, "octo/old", 20, pulls=5)
        await settle(world)
        for repo in self.REPOS:  # older than the known ones, so listed before them
            expected += add(world, repo, 60, pulls=20, created=world.clock.now - 86_400)
        left = 60 * len(self.REPOS)
        while left:
            number = 1 + left % 20
            comment = f"github:octo/old#{number}/comment:{world.github.comment('octo/old', number)}"
            expected.append(comment)
            before = len(world.received)
            await world.cycle()
            came = [payload["deliveryId"] for payload in world.received[before:]]

            assert came.count(comment) == 1, "in the very next cycle"
            assert sum("/spawn:" in name for name in came) == min(SIGHTS, left)
            left -= min(SIGHTS, left)
            assert len(world.cursor()["owed"]) == left
            if left == 140:
                world = world.restart()
        await settle(world)

        assert_once(world, expected)

    @in_real_loop
    async def test_known_items_when_first_sights_would_spend_the_limit_then_do_not_wait_for_its_end(
        self, tmp_path: Path
    ) -> None:
        world = scene(tmp_path, Rules(rate_limit=200), repos=self.REPOS)
        expected = add(world, "octo/old", 20)
        await settle(world)
        world.clock.run(3600)
        for repo in self.REPOS:
            expected += add(world, repo, 40, pulls=15, created=world.clock.now - 86_400)
        began = world.clock.now
        late = []
        while world.clock.now < began + 2 * 3600:
            number = 1 + int(world.clock.now // MINUTE_S) % 20
            comment = f"github:octo/old#{number}/comment:{world.github.comment('octo/old', number)}"
            expected.append(comment)
            before = len(world.received)
            await world.cycle()
            if comment not in (payload["deliveryId"] for payload in world.received[before:]):
                late.append((world.clock.now - began) / MINUTE_S)
            await world.cycle(times=9)

        assert late == [], "minutes in which a comment on a known item waited"
        assert_once(world, expected)
