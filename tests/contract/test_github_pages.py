"""Lists of more than one page, and lists that change while they are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from support.clock import NOON
from support.github.faults import Effect
from support.github.stories import FAILURES, LINGER_CYCLES, LISTING, begun, edited, keys, thread_of
from support.github.values import Answer
from support.http_transport import FakeTransport
from support.world import REPO, in_real_loop, scene

Handle = Callable[[str, str, Mapping[str, str], bytes], Answer]


def without_victim(found: list[str], victim: int) -> list[str]:
    return [key for key in found if key != f"comment:{victim}"]


class TestPages:
    @pytest.mark.parametrize("count", [0, 1, 99, 100, 101, 200, 250])
    @in_real_loop
    async def test_items_when_they_fill_pages_then_each_starts_once(self, tmp_path: Path, count: int) -> None:
        """Elsewhere the hundred and first was in a second document that nobody parsed."""
        world = scene(tmp_path)
        numbers = [world.add_issue() for _ in range(count)]

        await world.cycle(times=8)

        assert world.ids() == [f"{number}/spawn:1" for number in numbers]
        assert world.watched.items == count
        assert world.cursor()["owed"] == []

    @pytest.mark.parametrize("count", [99, 100, 101, 130, 250])
    @in_real_loop
    async def test_comment_when_its_thread_is_long_then_arrives(self, tmp_path: Path, count: int) -> None:
        """Elsewhere only the first, oldest page was read: the newest entries did not exist."""
        world = scene(tmp_path)
        number = world.add_issue(pull_request=True)
        old = [world.github.comment(REPO, number, created=NOON - 1000 + n) for n in range(count)]
        lines = [world.github.review_comment(REPO, number, created=NOON - 500 + n) for n in range(count)]
        await world.cycle()
        new = world.github.comment(REPO, number, body="The new one.")
        await world.cycle()

        assert sorted(thread_of(world, number)) == sorted(keys("comment", old) + keys("review_comment", lines))
        assert world.ids() == ["1/spawn:1", f"1/comment:{new}"]

    @pytest.mark.parametrize("count", [99, 100, 101, 250])
    @in_real_loop
    async def test_comments_when_many_come_at_once_then_all_arrive_in_order(self, tmp_path: Path, count: int) -> None:
        world = scene(tmp_path)
        first, second = world.add_issue(), world.add_issue()
        await world.cycle()
        written = [world.github.comment(REPO, (first, second)[n % 2]) for n in range(count)]
        await world.cycle(times=2)

        assert world.ids(first) == ["spawn:1", *keys("comment", written[::2])]
        assert world.ids(second) == ["spawn:1", *keys("comment", written[1::2])]

    @pytest.mark.parametrize("effect", FAILURES.values(), ids=FAILURES)
    @pytest.mark.parametrize("page", [1, 2])
    @in_real_loop
    async def test_listing_when_a_page_fails_then_closes_nothing(
        self, tmp_path: Path, page: int, effect: Effect
    ) -> None:
        """Elsewhere what a cut listing lacked was taken for ended."""
        world = scene(tmp_path, linger_s=0)
        numbers = [world.add_issue() for _ in range(130)]
        await world.cycle(times=4)
        before = world.ids()
        world.github.comment(REPO, numbers[120])
        world.github.fail(LISTING if page == 1 else rf"{LISTING}.*page=2", effect, times=2)
        await world.cycle(times=8)

        assert world.ids() == [*before, f"{numbers[120]}/comment:1001"]
        assert world.state == "ok"


class TestShifts:
    @pytest.mark.parametrize("page", [1, 2])
    @in_real_loop
    async def test_row_when_deleted_while_new_ones_are_walked_then_none_is_lost(
        self, tmp_path: Path, page: int
    ) -> None:
        """It goes from a page that was read, before the next one is: a row slips over the edge, unseen."""
        world, number = await begun(tmp_path)
        written = [world.github.comment(REPO, number) for _ in range(250)]
        victim = {1: written[200], 2: written[100]}[page]  # the newest come first
        first_page = world.github.requests + 2
        world.github.between(first_page + page - 1, lambda: world.github.delete_comment(REPO, victim))
        await world.cycle(times=3)

        assert without_victim(world.ids(number)[1:], victim) == keys("comment", [x for x in written if x != victim])

    @pytest.mark.parametrize("page", [1, 2])
    @in_real_loop
    async def test_row_when_deleted_while_a_thread_is_walked_then_none_is_lost(self, tmp_path: Path, page: int) -> None:
        world = scene(tmp_path)
        number = world.add_issue()
        written = [world.github.comment(REPO, number, created=NOON - 9000 + n) for n in range(250)]
        victim = {1: written[20], 2: written[120]}[page]  # the oldest come first
        first_page = 4  # after the repository, the listing and the new rows
        world.github.between(first_page + page - 1, lambda: world.github.delete_comment(REPO, victim))
        await world.cycle(times=3)

        assert world.github.requests_matching(r"/issues/1/comments")[0].number == first_page
        assert without_victim(thread_of(world, number), victim) == keys("comment", [x for x in written if x != victim])

    @in_real_loop
    async def test_item_when_closed_between_two_pages_of_the_listing_then_its_neighbour_is_no_departure(
        self, tmp_path: Path
    ) -> None:
        """Item 101 slips to page 1 after that was read: in neither answer, and just then written on.

        Elsewhere the one that slipped was ended, or started twice.
        """
        world = scene(tmp_path)
        numbers = [world.add_issue() for _ in range(205)]
        await world.cycle(times=5)
        assert len(world.ids()) == 205
        closed, slipped, touched = numbers[3], numbers[100], numbers[150]

        def meanwhile() -> None:
            world.github.close(REPO, closed)
            world.github.comment(REPO, slipped, body="On the one that slipped.")
            world.github.comment(REPO, touched, body="On another one.")

        world.github.fail(LISTING, edited(lambda rows: rows))  # so that page 1 is really read
        world.github.between(world.github.requests + 1, meanwhile)
        await world.cycle(times=3)

        assert world.ids(slipped) == ["spawn:1", "comment:1001"]
        assert world.ids(touched) == ["spawn:1", "comment:1002"]
        await world.cycle(times=LINGER_CYCLES)
        assert [name for name in world.ids() if "close" in name] == [f"{closed}/close:1"]
        assert len(world.ids()) == 205 + 2 + 1

    @in_real_loop
    async def test_new_item_when_it_slips_between_two_pages_then_starts_in_the_next_cycle(self, tmp_path: Path) -> None:
        world = scene(tmp_path)
        numbers = [world.add_issue() for _ in range(101)]
        world.github.between(2, lambda: world.github.close(REPO, numbers[0]))
        await world.cycle(times=4)

        assert world.ids(numbers[100]) == ["spawn:1"]

    @pytest.mark.parametrize("between_pages", [1, 2])
    @in_real_loop
    async def test_items_when_several_slip_at_once_then_none_ends_or_starts_twice(
        self, tmp_path: Path, between_pages: int
    ) -> None:
        world = scene(tmp_path)
        numbers = [world.add_issue() for _ in range(230)]
        await world.cycle(times=6)
        assert len(world.ids()) == 230
        closed = numbers[10:40]

        def meanwhile() -> None:
            for number in closed:
                world.github.close(REPO, number)
            for number in numbers[100:130]:
                world.github.comment(REPO, number)

        world.github.fail(LISTING, edited(lambda rows: rows), times=3)  # so that they are really read
        world.github.between(world.github.requests + between_pages, meanwhile)
        await world.cycle(times=3 + LINGER_CYCLES)

        ends = [name for name in world.ids() if "close" in name]
        assert sorted(ends) == sorted(f"{number}/close:1" for number in closed)
        for number in numbers[100:130]:
            assert [key.partition(":")[0] for key in world.ids(number)] == ["spawn", "comment"]
        assert len(world.ids()) == 230 + 30 + 30

    @in_real_loop
    async def test_items_when_labelled_between_two_pages_then_all_start_and_nobody_twice(self, tmp_path: Path) -> None:
        """An old item that gets the label moves everybody behind it up, some of them over an edge."""
        world = scene(tmp_path)
        old = [world.add_issue(labels=()) for _ in range(20)]
        numbers = [world.add_issue() for _ in range(205)]
        await world.cycle(times=6)
        for request, number in enumerate(old[:3], world.github.requests + 1):
            world.github.between(request, partial(world.github.label, REPO, number, "auto"))
        world.github.fail(LISTING, edited(lambda rows: rows), times=3)
        await world.cycle(times=6)

        assert sorted(world.ids()) == sorted(f"{number}/spawn:1" for number in (*numbers, *old[:3]))


def _linking(change: Callable[[str], str], *, links_only: bool) -> Callable[[Handle], Handle]:
    """GitHub with other links to its next pages; with `links_only` it has nothing under their numbers."""

    def between(handle: Handle) -> Handle:
        def answered(method: str, target: str, headers: Mapping[str, str], body: bytes) -> Answer:
            if links_only and "&page=" in target:
                return Answer(200, {"ETag": '"none"'}, b"[]")
            answer = handle(method, target.replace("&after=cursor", "&page="), headers, body)
            if "Link" not in answer.headers:
                return answer
            return replace(answer, headers={**answer.headers, "Link": change(answer.headers["Link"])})

        return answered

    return between


LINKS: dict[str, Callable[[str], str]] = {
    "to cursors": lambda link: link.replace("&page=", "&after=cursor"),
    "relative": lambda link: link.replace("https://api.github.com", ""),
    "to another host": lambda link: link.replace("api.github.com", "api.github.com.evil.example"),
    "to the same host, unencrypted": lambda link: link.replace("https:", "http:"),
    "to the same host, another port": lambda link: link.replace("github.com/", "github.com:8443/"),
    "unreadable": lambda _link: "<http://[>; rel=next, ;;, <>",
    "without quotes": lambda link: link.replace('"', ""),
}


class TestLinks:
    @pytest.mark.parametrize("links", LINKS)
    @in_real_loop
    async def test_pages_when_linked_in_any_way_then_all_are_read_and_the_token_stays(
        self, tmp_path: Path, links: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        world = scene(tmp_path)
        transport = FakeTransport(world.github)
        world = world.restart(transport=transport)
        between = _linking(LINKS[links], links_only=links == "to cursors")
        monkeypatch.setattr(world.github, "handle", between(world.github.handle))
        number = world.add_issue(created=NOON - 9000)
        old = [world.github.comment(REPO, number, created=NOON - 8000 + n) for n in range(205)]
        others = [world.add_issue(created=NOON - 7000) for _ in range(100)]
        await world.cycle(times=3)
        assert thread_of(world, number) == keys("comment", old)
        assert sorted(world.ids()) == sorted(f"{one}/spawn:1" for one in (number, *others))

        new = [world.github.comment(REPO, number) for _ in range(101)]
        await world.cycle()
        world = world.restart()
        late = world.github.comment(REPO, others[-1])
        await world.cycle(times=2)
        assert world.ids(number) == ["spawn:1", *keys("comment", new)]
        assert world.ids(others[-1]) == ["spawn:1", f"comment:{late}"]
        assert transport.foreign == []
