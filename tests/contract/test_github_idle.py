"""What a look costs: requests and points at GitHub, and files on disk."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.clock import NOON
from support.github.faults import server_error
from support.world import REPO, World, in_real_loop, scene

_watched: list[tuple[Path, list[str]]] = []


def _note_file_events(event: str, arguments: tuple[Any, ...]) -> None:
    if _watched and event in ("open", "os.rename", "os.remove", "os.link", "os.truncate") and arguments:
        folder, seen = _watched[-1]
        path = str(arguments[0])
        if path.startswith(str(folder)):
            seen.append(f"{event} {path}")


sys.addaudithook(_note_file_events)  # never to be removed, so it does nothing unless asked to


@contextmanager
def file_events(folder: Path) -> Iterator[list[str]]:
    """Every file below `folder` that is opened, renamed or removed, by whatever way of Python."""
    seen: list[str] = []
    _watched.append((folder, seen))
    try:
        yield seen
    finally:
        _watched.pop()


class Meter:
    """Requests and points since it was last read."""

    def __init__(self, world: World) -> None:
        self._github = world.github
        self.read()

    def read(self) -> tuple[int, int]:
        before = getattr(self, "_last", (0, 0))
        self._last = (self._github.requests, self._github.points)
        return self._last[0] - before[0], self._last[1] - before[1]


async def settled(world: World, issues: int, pulls: int) -> list[int]:
    """The numbers of so many items, all of them started."""
    numbers = [world.add_issue(created=NOON - 3600) for _ in range(issues)]
    numbers += [world.add_issue(created=NOON - 3600, pull_request=True) for _ in range(pulls)]
    await world.cycle(times=1 + -(-len(numbers) // 50))
    assert len(world.ids()) == len(numbers)
    return numbers


class TestRequests:
    @pytest.mark.parametrize(
        ("issues", "pulls", "requests"),
        [
            (0, 0, 2),
            (1, 0, 2),
            (0, 1, 3),
            (99, 0, 2),
            (98, 1, 3),
            (100, 0, 3),
            (101, 0, 3),
            (50, 50, 4),
            (199, 0, 3),
            (200, 0, 4),
            (150, 100, 5),
        ],
    )
    @in_real_loop
    async def test_look_when_idle_then_costs_its_pages_and_lists_and_no_point(
        self, tmp_path: Path, issues: int, pulls: int, requests: int
    ) -> None:
        """Beside the reviews of a thirtieth of the pull requests: in thirty looks each is asked for once."""
        world = scene(tmp_path)
        await settled(world, issues, pulls)
        assert requests == (issues + pulls) // 100 + 1 + 1 + (pulls > 0)
        await world.cycle()  # what was read with the threads is remembered
        meter = Meter(world)
        for told in ("", "validators outlive the process"):
            costs = []
            for _ in range(30):
                await world.cycle()
                costs.append(meter.read())
            assert sum(asked for asked, _ in costs) == 30 * requests + pulls, told
            assert all(abs(asked - requests - pulls / 30) < 1 for asked, _ in costs), told
            assert sum(spent for _, spent in costs) == 0, told
            world = world.restart()

    @pytest.mark.parametrize(("pulls", "requests"), [(0, 7), (30, 9)])
    @in_real_loop
    async def test_look_when_five_hundred_items_are_idle_then_opens_no_file(
        self, tmp_path: Path, pulls: int, requests: int
    ) -> None:
        world = scene(tmp_path)
        await settled(world, 500 - pulls, pulls)
        await world.cycle(times=30)  # every pull request had its turn, so that is not noted any more
        meter = Meter(world)
        with file_events(world.root.path) as seen:
            await world.cycle(times=3)

        assert meter.read() == (3 * requests, 0)
        assert seen == []

    @in_real_loop
    async def test_file_events_when_something_is_delivered_then_see_it(self, tmp_path: Path) -> None:
        """So that the silence above means something."""
        world = scene(tmp_path)
        (number,) = await settled(world, 1, 0)
        world.github.comment(REPO, number)
        with file_events(world.root.path) as seen:
            await world.cycle()

        ledger = str(world.root.ledger(f"github:{REPO}#{number}"))
        assert any(line.startswith("open ") for line in seen)
        assert any(ledger.rpartition("/")[2] in line for line in seen)

    @in_real_loop
    async def test_look_when_comments_come_then_costs_a_point_for_each_list(self, tmp_path: Path) -> None:
        """A review may have come with a comment: that is asked for, and costs no point where none did."""
        world = scene(tmp_path)
        numbers = await settled(world, 20, 20)
        meter = Meter(world)
        for number in numbers:
            world.github.comment(REPO, number)
        world.github.review_comment(REPO, numbers[-1])
        await world.cycle()

        assert meter.read() == (3 + 20, 3)  # the listing counts comments, so it changes too
        assert len(world.ids()) == 40 + 40 + 1

    @in_real_loop
    async def test_look_when_items_left_then_costs_one_more_each_and_their_last_words(self, tmp_path: Path) -> None:
        world = scene(tmp_path)
        numbers = await settled(world, 10, 0)
        for number in numbers[:3]:
            world.github.close(REPO, number)
        meter = Meter(world)
        costs = []
        for _ in range(5):
            await world.cycle()
            costs.append(meter.read())

        # the listing and each of the three; nothing; at the end each item and its thread; nothing
        assert costs == [(2 + 3, 1 + 3), (2, 0), (2, 0), (2 + 6, 6), (2, 0)]
        assert sum("close" in name for name in world.ids()) == 3

    @in_real_loop
    async def test_items_without_label_when_thirty_then_cost_one_request_a_cycle(self, tmp_path: Path) -> None:
        world = scene(tmp_path)
        numbers = await settled(world, 40, 0)
        for number in numbers[:30]:
            world.github.unlabel(REPO, number, "auto")
        await world.cycle()
        meter = Meter(world)
        await world.cycle(times=30)

        assert meter.read() == (30 * 3, 0)
        asked = {entry.target.rpartition("/")[2] for entry in world.github.requests_matching(r"/issues/\d+$")}
        assert {str(number) for number in numbers[:30]} <= asked

    @in_real_loop
    async def test_item_when_first_seen_then_costs_its_thread_alone(self, tmp_path: Path) -> None:
        world = scene(tmp_path)
        await settled(world, 1, 0)
        meter = Meter(world)
        world.add_issue(created=world.clock.now - 300)
        await world.cycle()
        assert meter.read() == (3, 2)

        world.add_issue(created=world.clock.now - 300, pull_request=True)
        await world.cycle()
        assert meter.read() == (6, 5)  # its three threads, the listing, and the list that nobody asked for before


class TestSince:
    @in_real_loop
    async def test_list_when_a_burst_is_over_then_is_short_again(self, tmp_path: Path) -> None:
        """Each look at a long list would cost all its pages, twice."""
        world = scene(tmp_path)
        (number,) = await settled(world, 1, 0)
        for _ in range(250):
            world.github.comment(REPO, number)
        await world.cycle()
        meter = Meter(world)
        costs = []
        for _ in range(5):
            world.clock.run(300)
            await world.cycle()
            costs.append(meter.read())
            world.github.comment(REPO, number)

        assert costs == [(6, 3), (6, 4), (2, 2), (2, 2), (2, 2)]
        assert len(world.ids()) == 1 + 250 + 4

    @in_real_loop
    async def test_list_when_few_rows_come_then_keeps_its_address(self, tmp_path: Path) -> None:
        world = scene(tmp_path)
        (number,) = await settled(world, 1, 0)
        for _ in range(49):
            world.github.comment(REPO, number)
            await world.cycle()

        asked = {entry.target for entry in world.github.requests_matching(r"/issues/comments")}
        assert len(asked) == 1
        assert len(world.ids()) == 50

    @in_real_loop
    async def test_list_when_traffic_never_ends_then_stays_short(self, tmp_path: Path) -> None:
        """The address moves along: no walk ever takes more than a page."""
        world = scene(tmp_path)
        (number,) = await settled(world, 1, 0)
        for _ in range(300):
            for _ in range(5):
                world.github.comment(REPO, number, "stranger")
            await world.cycle()

        assert world.github.requests_matching(r"/issues/comments.*page=2") == []
        assert len(world.told("dispatch.dropped")) == 1500


class TestFailing:
    @in_real_loop
    async def test_look_when_it_failed_then_the_next_one_asks_with_the_same_validators(self, tmp_path: Path) -> None:
        world = scene(tmp_path)
        await settled(world, 10, 30)
        await world.cycle()
        world.github.fail(r"/pulls/comments", server_error())
        await world.cycle()
        meter = Meter(world)
        await world.cycle(times=2)

        assert meter.read() == (8, 0)
