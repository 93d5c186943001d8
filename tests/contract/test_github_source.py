"""The GitHub source in a whole poller: what is delivered of items, of what is written on them, and of their ends."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

import pytest

from support import github_faults as faults
from support.github_faults import Effect
from support.github_rows import encode
from support.github_values import Answer, Rules, View
from support.world import NOON, REPO, World, carried, in_loop, scene, short
from the_loop.config import Monitor
from the_loop.model import Outcome, Verdict

LISTING = r"/issues\?labels"
COMMENTS = r"/issues/comments\?sort"
FAILURES = {
    "502": faults.server_error(),
    "half": faults.half_json(),
    "html": faults.html(),
    "cut": faults.cut(),
    "hang": faults.hang(),
    "limit": faults.secondary_limit(30),
    "limit in 200": faults.limit_in_200(),
    "object": faults.reply(200, {"total_count": 0, "items": []}),
    "404": faults.reply(404, {"message": "Not Found"}),
}
LINGER_CYCLES = 4  # the one that sees it left, and three minutes
MIB = 1 << 20


def edited(change: Callable[[Any], Any], *, is_lasting: bool = False) -> Effect:
    """The true answer with its JSON changed, and a validator of its own; a lasting one is unchanged from then on."""

    def effect(genuine: Callable[[], Answer]) -> Answer:
        answer = genuine()
        body = encode(change(json.loads(answer.body)))
        etag = answer.headers["ETag"] if is_lasting else f'W/"{sha256(body).hexdigest()}"'
        return replace(answer, body=body, headers={**answer.headers, "ETag": etag})

    return effect


def without(number: int) -> Effect:
    """A listing in which this item is missing."""
    return edited(lambda rows: [row for row in rows if row["number"] != number])


def keys(kind: str, ids: Iterable[int]) -> list[str]:
    return [f"{kind}:{id_}" for id_ in ids]


def thread_of(world: World, number: int) -> list[str]:
    """What the item's last spawn carried."""
    spawns = [got for got in world.received if got["kind"] == "spawn" and got["ref"].endswith(f"#{number}")]
    return [f"{entry['kind']}:{entry['id']}" for entry in spawns[-1]["thread"]]


def everything_of(world: World, number: int) -> list[str]:
    """All that arrived of an item, by itself or carried by a spawn, in order."""
    mine = (short(name) for name in carried(world.received))
    return [name.partition("/")[2] for name in mine if name.startswith(f"{number}/")]


class TestFirstSight:
    @in_loop
    async def test_spawn_when_item_is_new_then_carries_it_with_its_thread(self, tmp_path: Path) -> None:
        world = scene(tmp_path, people=frozenset({"octocat", "hubot"}))
        number = world.add_issue(title="Broken", body="It does not work.", author="octocat", pull_request=True)
        world.clock.run(10)
        world.github.comment(REPO, number, "HubOt", "First.")
        world.clock.run(10)
        world.github.comment(REPO, number, "stranger", "Second.")
        world.github.review_comment(REPO, number, "hubot", "Third.")

        await world.cycle()

        (spawn,) = world.received
        assert spawn["deliveryId"] == "github:octo/repo#1/spawn:1"
        assert (spawn["kind"], spawn["ref"], spawn["title"]) == ("spawn", "github:octo/repo#1", "Broken")
        assert (spawn["body"], spawn["author"]) == ("It does not work.", "octocat")
        assert (spawn["url"], spawn["omitted"]) == ("https://github.com/octo/repo/pull/1", 1)
        assert spawn["createdAt"] == "2023-11-14T22:13:20Z"
        assert [(entry["author"], entry["body"]) for entry in spawn["thread"]] == [
            ("HubOt", "First."),
            ("hubot", "Third."),
        ]

    @in_loop
    async def test_item_when_seen_again_then_nothing_but_its_new_comments(self, tmp_path: Path) -> None:
        world = scene(tmp_path)
        number = world.add_issue()
        world.github.comment(REPO, number)
        await world.cycle(times=3)
        world.github.comment(REPO, number, body="More.")
        await world.cycle(times=3)
        world = world.restart()
        await world.cycle(times=3)

        assert world.ids() == ["1/spawn:1", "1/comment:1002"]
        assert (world.received[1]["body"], world.received[1]["title"]) == ("More.", "A title")

    @in_loop
    async def test_items_when_more_than_fifty_are_new_then_known_ones_are_not_kept_waiting(
        self, tmp_path: Path
    ) -> None:
        world = scene(tmp_path)
        known = world.add_issue()
        await world.cycle()
        for _ in range(120):
            world.add_issue()
        world.github.comment(REPO, known)

        counts = []
        for _ in range(4):
            await world.cycle()
            counts.append(len(world.ids()))

        assert counts == [52, 102, 122, 122]
        assert world.ids(known) == ["spawn:1", "comment:1001"]

    @in_loop
    async def test_item_of_a_stranger_then_waits_for_the_start_word(self, tmp_path: Path) -> None:
        world = scene(tmp_path)
        number = world.add_issue(author="stranger")
        nobodys = world.add_issue(author=None)
        world.github.comment(REPO, number, "stranger", "the-loop start")
        await world.cycle(times=2)
        assert world.received == []

        world.github.comment(REPO, number, "octocat", "See to it.\n\nthe-loop start")
        await world.cycle()

        assert (world.ids(number), thread_of(world, number)) == (["spawn:1"], ["comment:1002"])
        assert world.ids(nobodys) == []

    @in_loop
    async def test_start_word_when_written_while_the_label_is_gone_then_counts_when_it_is_back(
        self, tmp_path: Path
    ) -> None:
        world = scene(tmp_path)
        number = world.add_issue(author="stranger")
        await world.cycle()
        world.github.unlabel(REPO, number, "auto")
        await world.cycle()
        world.github.comment(REPO, number, "octocat", "the-loop start")
        await world.cycle()
        world.github.label(REPO, number, "auto")
        await world.cycle()

        assert world.ids() == ["1/spawn:1"]

    @in_loop
    async def test_start_word_when_written_on_a_stopped_item_without_label_then_counts_when_it_is_back(
        self, tmp_path: Path
    ) -> None:
        world = scene(tmp_path)
        number = world.add_issue()
        await world.cycle()
        world.github.comment(REPO, number, body="the-loop stop")
        await world.cycle(times=2)
        world.github.unlabel(REPO, number, "auto")
        await world.cycle()
        world.github.comment(REPO, number, body="the-loop start")
        await world.cycle()
        world.github.label(REPO, number, "auto")
        await world.cycle()

        assert world.ids() == ["1/spawn:1", "1/close:1", "1/spawn:2"]


class TestPaging:
    @pytest.mark.parametrize("count", [0, 1, 99, 100, 101, 200, 250])
    @in_loop
    async def test_items_when_they_fill_pages_then_each_starts_once(self, tmp_path: Path, count: int) -> None:
        world = scene(tmp_path)
        numbers = [world.add_issue() for _ in range(count)]

        await world.cycle(times=8)

        assert world.ids() == [f"{number}/spawn:1" for number in numbers]
        assert world.watched.items == count
        assert world.position()["owed"] == []

    @pytest.mark.parametrize("count", [99, 100, 101, 130, 250])
    @in_loop
    async def test_comment_when_its_thread_is_long_then_arrives(self, tmp_path: Path, count: int) -> None:
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
    @in_loop
    async def test_comments_when_many_come_at_once_then_all_arrive_in_order(self, tmp_path: Path, count: int) -> None:
        world = scene(tmp_path)
        first, second = world.add_issue(), world.add_issue()
        await world.cycle()
        written = [world.github.comment(REPO, (first, second)[n % 2]) for n in range(count)]
        await world.cycle(times=2)

        assert world.ids(first) == ["spawn:1", *keys("comment", written[::2])]
        assert world.ids(second) == ["spawn:1", *keys("comment", written[1::2])]

    @pytest.mark.parametrize("page", [1, 2])
    @in_loop
    async def test_row_when_deleted_while_new_ones_are_walked_then_none_is_lost(
        self, tmp_path: Path, page: int
    ) -> None:
        """It goes from a page that was read, before the next one is: a row slips over the edge, unseen."""
        world = scene(tmp_path)
        number = world.add_issue()
        await world.cycle()
        written = [world.github.comment(REPO, number) for _ in range(250)]
        victim = {1: written[200], 2: written[100]}[page]  # the newest come first
        first_page = world.github.requests + 2
        world.github.between(first_page + page - 1, lambda: world.github.delete_comment(REPO, victim))
        await world.cycle(times=3)

        assert without_victim(world.ids(number)[1:], victim) == keys("comment", [x for x in written if x != victim])

    @pytest.mark.parametrize("page", [1, 2])
    @in_loop
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

    @in_loop
    async def test_item_when_closed_between_two_pages_of_the_listing_then_its_neighbour_is_no_departure(
        self, tmp_path: Path
    ) -> None:
        """Item 101 slips to page 1 after that was read: in neither answer, and just then written on."""
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

    @in_loop
    async def test_new_item_when_it_slips_between_two_pages_then_starts_in_the_next_cycle(self, tmp_path: Path) -> None:
        world = scene(tmp_path)
        numbers = [world.add_issue() for _ in range(101)]
        world.github.between(2, lambda: world.github.close(REPO, numbers[0]))
        await world.cycle(times=4)

        assert world.ids(numbers[100]) == ["spawn:1"]


def without_victim(found: list[str], victim: int) -> list[str]:
    return [key for key in found if key != f"comment:{victim}"]


class TestDepartures:
    @pytest.mark.parametrize(("is_pull", "merged", "reason"), [(False, False, "closed"), (True, True, "merged")])
    @in_loop
    async def test_item_when_closed_then_close_comes_last(
        self, tmp_path: Path, is_pull: bool, merged: bool, reason: str
    ) -> None:
        world = scene(tmp_path)
        number = world.add_issue(pull_request=is_pull)
        await world.cycle()
        world.github.comment(REPO, number)
        world.github.close(REPO, number, merged=merged)
        await world.cycle(times=LINGER_CYCLES - 1)
        assert world.ids() == ["1/spawn:1", "1/comment:1001"]
        await world.cycle(times=3)

        assert world.ids() == ["1/spawn:1", "1/comment:1001", "1/close:1"]
        assert world.received[-1]["reason"] == reason
        assert world.ledger(number)["poll"]["phase"] == "ended"

    @in_loop
    async def test_comment_when_written_within_the_linger_then_arrives_before_the_close(self, tmp_path: Path) -> None:
        world = scene(tmp_path)
        number = world.add_issue(pull_request=True)
        await world.cycle()
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

    @in_loop
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

    @in_loop
    async def test_item_when_closed_before_it_started_then_gets_nothing(self, tmp_path: Path) -> None:
        world = scene(tmp_path)
        number = world.add_issue(author="stranger")
        await world.cycle()
        world.github.comment(REPO, number, body="the-loop start")
        world.github.close(REPO, number)
        await world.cycle(times=LINGER_CYCLES)

        assert world.received == []

    @pytest.mark.parametrize("restarts", [False, True])
    @in_loop
    async def test_item_when_unlabelled_then_what_is_written_meanwhile_comes_when_it_is_back(
        self, tmp_path: Path, restarts: bool
    ) -> None:
        world = scene(tmp_path)
        number = world.add_issue(pull_request=True)
        await world.cycle()
        world.github.unlabel(REPO, number, "auto")
        for _ in range(3):
            await world.cycle()
            world.github.comment(REPO, number)
            world.github.review_comment(REPO, number)
        await world.cycle(times=5)
        assert world.ids() == ["1/spawn:1"]
        if restarts:
            world = world.restart()
        world.github.label(REPO, number, "auto")
        await world.cycle(times=2)

        written = [f"{kind}:{id_}" for id_ in (1001, 1002, 1003) for kind in ("comment", "review_comment")]
        assert sorted(world.ids(number)) == sorted(["spawn:1", *written])
        assert [key for key in world.ids(number) if key.startswith("comment")] == keys("comment", (1001, 1002, 1003))

    @in_loop
    async def test_item_when_closed_while_unlabelled_then_is_closed_within_thirty_cycles(self, tmp_path: Path) -> None:
        world = scene(tmp_path)
        number = world.add_issue()
        await world.cycle()
        world.github.unlabel(REPO, number, "auto")
        await world.cycle(times=2)
        world.github.close(REPO, number)
        await world.cycle(times=31 + LINGER_CYCLES)

        assert world.ids() == ["1/spawn:1", "1/close:1"]
        assert len(world.github.requests_matching(r"/issues/1$")) <= 4

    @in_loop
    async def test_item_when_deleted_then_closes_and_the_others_go_on(self, tmp_path: Path) -> None:
        world = scene(tmp_path)
        number, other = world.add_issue(), world.add_issue()
        await world.cycle()
        world.github.delete_issue(REPO, number)
        world.github.comment(REPO, other)
        await world.cycle(times=LINGER_CYCLES + 1)

        assert world.ids(number) == ["spawn:1", "close:1"]
        assert world.received[-1]["reason"] == "deleted"
        assert world.ids(other) == ["spawn:1", "comment:1001"]
        assert world.told("item.failed") == []

    @pytest.mark.parametrize("status", [404, 410])
    @in_loop
    async def test_item_when_closed_and_then_deleted_within_the_linger_then_closes(
        self, tmp_path: Path, status: int
    ) -> None:
        """There is no thread any more for the last look."""
        world = scene(tmp_path)
        number = world.add_issue()
        await world.cycle()
        world.github.close(REPO, number)
        await world.cycle(times=2)
        world.github.delete_issue(REPO, number)
        if status == 404:
            world.github.fail(r"/issues/1($|/)", faults.reply(404, {"message": "Not Found"}), times=None)
        await world.cycle(times=LINGER_CYCLES)

        assert world.ids() == ["1/spawn:1", "1/close:1"]
        assert world.told("item.failed") == []

    @in_loop
    async def test_item_when_missing_in_two_cycles_then_is_deleted(self, tmp_path: Path) -> None:
        world = scene(tmp_path)
        number = world.add_issue()
        await world.cycle()
        world.github.delete_issue(REPO, number)
        world.github.fail(r"/issues/1$", faults.reply(404, {"message": "Not Found"}), times=None)
        await world.cycle()
        assert world.position()["position"]["repos"][REPO]["left"] == {}
        await world.cycle(times=LINGER_CYCLES)

        assert world.ids() == ["1/spawn:1", "1/close:1"]
        assert world.received[-1]["reason"] == "deleted"

    @in_loop
    async def test_item_when_missing_once_then_nothing_changes(self, tmp_path: Path) -> None:
        world = scene(tmp_path)
        number = world.add_issue()
        await world.cycle()
        world.github.fail(LISTING, without(number))
        world.github.fail(r"/issues/1$", faults.reply(404, {"message": "Not Found"}))
        world.github.comment(REPO, number)  # shown by a list just then, and never again
        await world.cycle(times=10)

        assert world.ids() == ["1/spawn:1", "1/comment:1001"]

    @in_loop
    async def test_item_when_missing_while_its_repository_is_too_then_nothing_changes(self, tmp_path: Path) -> None:
        """A token that lost its rights sees 404 for everything; here the list still comes from a cache."""
        world = scene(tmp_path)
        number = world.add_issue()
        await world.cycle()
        gone = faults.reply(404, {"message": "Not Found"})
        fault = [world.github.fail(LISTING, without(number), times=None)]
        fault += [world.github.fail(pattern, gone, times=None) for pattern in (r"/issues/1$", r"/repos/octo/repo$")]
        await world.cycle(times=10)
        assert (world.ids(), world.state) == (["1/spawn:1"], "failing")

        for one in fault:
            world.github.faults.remove(one)
        world.github.comment(REPO, number)
        world.clock.run(600)
        await world.cycle()
        assert (world.ids(), world.state) == (["1/spawn:1", "1/comment:1001"], "ok")

    @pytest.mark.parametrize("effect", [FAILURES["502"], FAILURES["html"], faults.permission_denied()])
    @in_loop
    async def test_item_when_it_cannot_be_asked_about_then_nothing_changes(
        self, tmp_path: Path, effect: Effect
    ) -> None:
        world = scene(tmp_path)
        number, other = world.add_issue(), world.add_issue()
        await world.cycle()
        world.github.close(REPO, number)
        world.github.fail(r"/issues/1$", effect, times=5)
        world.github.comment(REPO, other)
        await world.cycle(times=5)
        assert world.ids() == ["1/spawn:1", "2/spawn:1", "2/comment:1001"]

        await world.cycle(times=LINGER_CYCLES)
        assert world.ids(number) == ["spawn:1", "close:1"]

    @pytest.mark.parametrize("can_be_read", [True, False])
    @in_loop
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
    @in_loop
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

    @in_loop
    async def test_item_when_the_listing_lags_then_is_no_departure(self, tmp_path: Path) -> None:
        world = scene(tmp_path)
        number = world.add_issue()
        await world.cycle()
        world.github.fail(LISTING, without(number), times=2)
        world.github.comment(REPO, number, body="Shown by a list that is not behind.")
        await world.cycle(times=2 + LINGER_CYCLES)

        assert world.ids() == ["1/spawn:1", "1/comment:1001"]

    @in_loop
    async def test_item_when_reopened_within_the_linger_then_goes_on(self, tmp_path: Path) -> None:
        world = scene(tmp_path)
        number = world.add_issue()
        await world.cycle()
        world.github.close(REPO, number)
        await world.cycle()
        world.github.comment(REPO, number)
        await world.cycle()
        world.github.reopen(REPO, number)
        world.github.comment(REPO, number)
        await world.cycle(times=LINGER_CYCLES)
        world.github.comment(REPO, number)
        await world.cycle()

        assert world.ids() == ["1/spawn:1", "1/comment:1001", "1/comment:1002", "1/comment:1003"]

    @in_loop
    async def test_item_when_reopened_later_then_starts_again_with_its_thread(self, tmp_path: Path) -> None:
        world = scene(tmp_path)
        number = world.add_issue()
        world.github.comment(REPO, number)
        await world.cycle()
        world.github.close(REPO, number)
        await world.cycle(times=LINGER_CYCLES)
        world.github.comment(REPO, number, body="While it was closed.")
        await world.cycle()
        world = world.restart()
        world.github.reopen(REPO, number)
        await world.cycle()
        world.github.comment(REPO, number, body="Now it is open.")
        await world.cycle(times=2)

        assert world.ids() == ["1/spawn:1", "1/close:1", "1/spawn:2", "1/comment:1003"]
        assert thread_of(world, number) == ["comment:1001", "comment:1002"]

    @pytest.mark.parametrize("effect", FAILURES.values(), ids=FAILURES)
    @pytest.mark.parametrize("page", [1, 2])
    @in_loop
    async def test_listing_when_a_page_fails_then_closes_nothing(
        self, tmp_path: Path, page: int, effect: Effect
    ) -> None:
        world = scene(tmp_path, linger_s=0)
        numbers = [world.add_issue() for _ in range(130)]
        await world.cycle(times=4)
        before = world.ids()
        world.github.comment(REPO, numbers[120])
        world.github.fail(LISTING if page == 1 else rf"{LISTING}.*page=2", effect, times=2)
        await world.cycle(times=8)

        assert world.ids() == [*before, f"{numbers[120]}/comment:1001"]
        assert world.state == "ok"

    @pytest.mark.parametrize(("issues", "pulls"), [(True, False), (False, True)])
    @in_loop
    async def test_monitor_when_it_is_for_one_kind_then_the_other_is_left_alone(
        self, tmp_path: Path, issues: bool, pulls: bool
    ) -> None:
        world = scene(tmp_path)
        issue, pull = world.add_issue(), world.add_issue(pull_request=True)
        await world.cycle()
        world = world.restart(section={"monitor": Monitor(issues=issues, pull_requests=pulls)})
        new = world.add_issue(), world.add_issue(pull_request=True)
        world.github.comment(REPO, issue)
        world.github.comment(REPO, pull)
        await world.cycle(times=LINGER_CYCLES)
        kept, left_alone = (issue, pull) if issues else (pull, issue)

        assert len(world.ids(kept)) == 2
        assert world.ids(left_alone) == ["spawn:1"]
        assert [world.ids(number) for number in new] == [["spawn:1"] * issues, ["spawn:1"] * pulls]

        world = world.restart(section={})
        await world.cycle(times=2)
        assert len(world.ids(left_alone)) == 2, "what was written while it was not monitored comes when it is again"


class TestRename:
    @in_loop
    async def test_repository_when_renamed_then_same_ledgers_before_and_after_the_configuration_follows(
        self, tmp_path: Path
    ) -> None:
        world = scene(tmp_path)
        number, away, ending = world.add_issue(pull_request=True), world.add_issue(), world.add_issue()
        world.github.comment(REPO, number)
        await world.cycle()
        world.github.unlabel(REPO, away, "auto")
        await world.cycle()
        world.github.rename_repo(REPO, "octo/Gadgets")
        world.github.comment("octo/gadgets", number)
        world.github.close("octo/gadgets", ending)
        await world.cycle(times=2)
        world.github.review_comment("octo/gadgets", number)
        await world.cycle(times=2)
        assert world.ids(number) == ["spawn:1", "comment:1002", "review_comment:1001"]

        world = world.restart(repos=("octo/gadgets",))
        world.github.comment("octo/gadgets", number)
        await world.cycle(times=2)
        world.github.label("octo/gadgets", away, "auto")
        world.github.comment("octo/gadgets", away)
        new = world.add_issue(repo="octo/gadgets")
        await world.cycle(times=LINGER_CYCLES)

        assert world.ids(number) == ["spawn:1", "comment:1002", "review_comment:1001", "comment:1003"]
        assert world.ids(away) == ["spawn:1", "comment:1004"]
        assert world.ids(ending) == ["spawn:1", "close:1"]
        assert world.ids(new) == ["spawn:1"]
        assert {got["ref"].partition("#")[0] for got in world.received} == {"github:octo/repo"}

    @in_loop
    async def test_repository_when_idle_after_a_rename_then_costs_what_it_did_before(self, tmp_path: Path) -> None:
        world = scene(tmp_path)
        world.add_issue(pull_request=True)
        await world.cycle()
        world.github.rename_repo(REPO, "octo/gadgets")
        await world.cycle(times=2)
        before = (world.github.requests, world.github.points)
        await world.cycle(times=5)

        assert (world.github.requests - before[0], world.github.points - before[1]) == (5 * 3, 0)

    @in_loop
    async def test_name_when_another_repository_takes_it_then_nothing_is_mixed_up(self, tmp_path: Path) -> None:
        world = scene(tmp_path)
        number = world.add_issue()
        await world.cycle()
        world.github.rename_repo(REPO, "octo/gadgets")
        await world.cycle()
        world.github.add_repo(REPO)
        twin = world.add_issue(body="Of the other repository.")
        world.github.comment("octo/gadgets", number)
        await world.cycle(times=3)
        assert (twin, world.ids()) == (number, ["1/spawn:1", "1/comment:1001"])

        world = world.restart(repos=("octo/gadgets", REPO))
        world.github.comment("octo/gadgets", number)
        await world.cycle(times=2)
        assert world.ids() == ["1/spawn:1", "1/comment:1001", "1/comment:1002"]
        assert "another repository" in world.watched.error

    @pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"api.github.com/700001": 7}'])
    @in_loop
    async def test_table_of_repositories_when_unreadable_then_nothing_is_filed_anew(
        self, tmp_path: Path, content: bytes
    ) -> None:
        world = scene(tmp_path)
        number = world.add_issue()
        await world.cycle()
        world.github.rename_repo(REPO, "octo/gadgets")
        good = world.root.repositories.read_bytes()
        world.root.repositories.write_bytes(content)
        world = world.restart(repos=("octo/gadgets",))
        world.github.comment("octo/gadgets", number)
        await world.cycle(times=2)
        assert (world.ids(), world.state) == (["1/spawn:1"], "failing")
        assert str(world.root.repositories) in world.watched.error

        world.root.repositories.write_bytes(good)
        world = world.restart()
        await world.cycle(times=2)
        assert world.ids() == ["1/spawn:1", "1/comment:1001"]


class TestRows:
    @in_loop
    async def test_streams_when_they_share_numbers_then_both_arrive(self, tmp_path: Path) -> None:
        world = scene(tmp_path)
        number = world.add_issue(pull_request=True)
        await world.cycle()
        world.github.comment(REPO, number, id=9001)
        world.github.review_comment(REPO, number, id=9001)
        await world.cycle(times=2)
        world = world.restart()
        await world.cycle(times=2)

        assert sorted(world.ids(number)) == ["comment:9001", "review_comment:9001", "spawn:1"]

    @in_loop
    async def test_author_or_body_when_null_then_the_others_arrive(self, tmp_path: Path) -> None:
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

    @in_loop
    async def test_own_notice_and_stranger_then_are_dropped_once(self, tmp_path: Path) -> None:
        world = scene(tmp_path)
        number = world.add_issue()
        await world.cycle()
        world.github.comment(REPO, number, body="I took it.\n\n<!-- the-loop -->")
        world.github.comment(REPO, number, "stranger")
        await world.cycle(times=3)

        assert world.ids() == ["1/spawn:1"]
        assert [note.fields["reason"] for note in world.told("dispatch.dropped")] == ["own", "unauthorized"]

    @in_loop
    async def test_row_when_edited_or_deleted_after_delivery_then_nothing_comes(self, tmp_path: Path) -> None:
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

    @in_loop
    async def test_row_when_missing_from_some_answers_and_back_then_does_not_come_again(self, tmp_path: Path) -> None:
        world = scene(tmp_path)
        number = world.add_issue()
        for _ in range(3):
            world.github.comment(REPO, number)
        await world.cycle(times=2)
        lost = edited(lambda rows: [row for row in rows if row.get("id") != 1002])
        for _ in range(2):
            world.root.position("github").unlink()  # so that the thread is read
            world.github.fail(COMMENTS, lost)
            world.github.fail(r"/issues/1/comments", lost)
            world = world.restart()
            await world.cycle(times=2)
        world.root.position("github").unlink()
        world = world.restart()
        world.github.edit_comment(REPO, 1002, "Back.")
        await world.cycle(times=2)

        assert everything_of(world, number) == ["spawn:1", *keys("comment", (1001, 1002, 1003))]

    @in_loop
    async def test_row_when_deleted_before_it_was_taken_then_is_delivered_as_accepted(self, tmp_path: Path) -> None:
        world = scene(tmp_path)
        number = world.add_issue()
        await world.cycle()
        id_ = world.github.comment(REPO, number, body="As accepted.")
        world.sink.answers[f"github:{REPO}#1/comment:{id_}"] = [Outcome(Verdict.LATER)]
        await world.cycle()
        world.github.delete_comment(REPO, id_)
        world = world.restart()
        await world.cycle(times=4)

        assert world.ids() == ["1/spawn:1", f"1/comment:{id_}", f"1/comment:{id_}"]
        assert (world.received[-1]["body"], world.received[-1]["attempt"]) == ("As accepted.", 1)

    @pytest.mark.parametrize("inclusive", [True, False])
    @in_loop
    async def test_rows_when_seconds_are_shared_then_all_arrive_whatever_since_means(
        self, tmp_path: Path, inclusive: bool
    ) -> None:
        """Bursts within one second, on both sides of a look, at odd fractions of it."""
        world = scene(tmp_path, Rules(since_inclusive=inclusive), interval_s=7)
        number = world.add_issue()
        await world.cycle()
        written = []
        for _ in range(60):
            world.clock.run(0.4)
            written += [world.github.comment(REPO, number) for _ in range(3)]
            await world.cycle()
            written += [world.github.comment(REPO, number, created=world.clock.now - 6.9) for _ in range(2)]
        await world.cycle(times=2)

        assert sorted(world.ids(number)) == sorted(["spawn:1", *keys("comment", written)])

    @pytest.mark.parametrize("late", [*View, None])
    @in_loop
    async def test_rows_when_answers_lag_then_all_arrive_once(self, tmp_path: Path, late: View | None) -> None:
        """Each kind of answer in turn is 20 s behind all others, then each answer by up to 20 s, at random."""
        seed = 20
        print("seed", seed)
        random = Random(seed)

        def lag_s(view: View) -> float:
            return random.uniform(0, 20) if late is None else 20.0 * (view is late)

        world = scene(tmp_path, Rules(lag_s=lag_s), interval_s=25)
        github = world.github
        numbers = [world.add_issue(pull_request=bool(n % 2)) for n in range(4)]
        away, written = set[int](), []
        for _ in range(150):
            world.clock.run(random.uniform(0, 6))
            number = random.choice(numbers)
            if random.random() < 0.2:
                (github.label if number in away else github.unlabel)(REPO, number, "auto")
                away ^= {number}
            elif number % 2 == 0 and random.random() < 0.5:
                written.append((number, f"review_comment:{github.review_comment(REPO, number)}"))
            else:
                written.append((number, f"comment:{github.comment(REPO, number)}"))
            if random.random() < 0.3:
                await world.cycle()
        for number in away:
            github.label(REPO, number, "auto")
        await world.cycle(times=5)

        for number in numbers:
            arrived = everything_of(world, number)
            for kind in ("comment", "review_comment"):
                mine = [key for at, key in written if at == number and key.startswith(f"{kind}:")]
                assert [key for key in arrived if key.startswith(f"{kind}:")] == mine
            assert [key for key in arrived if key.startswith("spawn")] == ["spawn:1"]

    @pytest.mark.parametrize("is_known", [False, True])
    @in_loop
    async def test_row_when_its_thread_lags_behind_the_list_of_all_then_arrives(
        self, tmp_path: Path, is_known: bool
    ) -> None:
        """The one look that shows it reads the thread as well, which does not have it yet; then all is quiet."""
        world = scene(tmp_path)
        number = world.add_issue()
        world.github.unlabel(REPO, number, "auto")
        if is_known:
            world.github.label(REPO, number, "auto")
            await world.cycle()
            world.github.unlabel(REPO, number, "auto")
        await world.cycle(times=2)
        world.github.rules = Rules(lag_s=lambda view: 20.0 * (view is View.THREAD))
        world.github.label(REPO, number, "auto")
        world.clock.run(30)
        world.github.comment(REPO, number)
        world.clock.run(5)
        await world.cycle(times=5)

        assert everything_of(world, number) == ["spawn:1", "comment:1001"]

    @in_loop
    async def test_comment_when_its_item_did_not_change_then_still_has_its_title(self, tmp_path: Path) -> None:
        world = scene(tmp_path, Rules(reviews_move_issue=False))
        number = world.add_issue(title="Broken", pull_request=True)
        await world.cycle(times=2)
        world.github.review_comment(REPO, number)
        await world.cycle()

        assert (world.ids(), world.received[1]["title"]) == (["1/spawn:1", "1/review_comment:1001"], "Broken")

    @in_loop
    async def test_pending_review_when_submitted_late_then_its_comments_arrive(self, tmp_path: Path) -> None:
        world = scene(tmp_path)
        number = world.add_issue(pull_request=True)
        await world.cycle(times=2)
        late = world.github.review_comment(REPO, number, created=world.clock.now, visible=world.clock.now + 7200)
        for _ in range(60):
            world.github.comment(REPO, number, "stranger")
            world.github.review_comment(REPO, number, "stranger")
            await world.cycle(times=2)
        await world.cycle()

        assert world.ids() == ["1/spawn:1", f"1/review_comment:{late}"]

    @in_loop
    async def test_row_when_malformed_then_costs_itself(self, tmp_path: Path) -> None:
        def broken(rows: list[dict[str, Any]]) -> list[Any]:
            odd: list[Any] = [None, [], "row", 7, {}, {**rows[0], "id": "x"}, {**rows[0], "user": []}]
            odd += [{**rows[0], "issue_url": url, "id": n} for n, url in enumerate(("", "x/²", "x/" + "9" * 5000))]
            odd += [{**rows[0], "id": 88, "updated_at": "9999-12-31T23:59:59Z", "issue_url": "x/77"}] * 60
            return odd + rows

        world = scene(tmp_path)
        number = world.add_issue()
        await world.cycle()
        world.github.fail(COMMENTS, edited(broken), times=1)
        first = world.github.comment(REPO, number)
        await world.cycle()
        assert world.told("source.failed") == []
        second = world.github.comment(REPO, number)
        await world.cycle(times=2)

        assert world.ids() == ["1/spawn:1", f"1/comment:{first}", f"1/comment:{second}"]

    @in_loop
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
        assert (world.ids(bad), world.state) == (["spawn:1"], "ok")
        asked = [entry for entry in world.github.requests_matching(rf"/issues/{good}$") if entry.number > before]
        assert asked == []

    @in_loop
    async def test_text_when_it_is_odd_then_arrives_made_safe_and_the_rest_behind_it(self, tmp_path: Path) -> None:
        texts = ["a\0b", "a\ud800b", "a\u202eb", "e" + "\u0301" * 10_000, "plain"]
        world = scene(tmp_path)
        number = world.add_issue(title="\udfff title", body="\0")
        await world.cycle()
        for text in texts:
            world.github.comment(REPO, number, body=text)
        await world.cycle()

        assert (world.received[0]["title"], world.received[0]["body"]) == ("\ufffd title", "\u2400")
        bodies = [got["body"] for got in world.received[1:]]
        assert bodies == ["a\u2400b", "a\ufffdb", *texts[2:]]

    @pytest.mark.parametrize(("size", "is_cut"), [(MIB, False), (MIB + 1, True)])
    @in_loop
    async def test_text_when_over_a_mebibyte_then_is_named_and_left_out(
        self, tmp_path: Path, size: int, is_cut: bool
    ) -> None:
        world = scene(tmp_path)
        number = world.add_issue(body="x" * size)
        world.github.comment(REPO, number, body="y" * size)
        await world.cycle()
        world.github.comment(REPO, number, body="z" * size)
        await world.cycle(times=2)

        spawn, comment = world.received
        assert [got.get("truncated", False) for got in (spawn, spawn["thread"][0], comment)] == [is_cut] * 3
        assert [len(got.get("body", "")) for got in (spawn, spawn["thread"][0], comment)] == [size * (not is_cut)] * 3
        assert comment["url"].endswith("#issuecomment-1002")
        assert comment["author"] == "octocat"

    @in_loop
    async def test_thread_when_over_four_mebibytes_then_its_entries_are_named_and_count_as_carried(
        self, tmp_path: Path
    ) -> None:
        world = scene(tmp_path)
        number = world.add_issue()
        for _ in range(5):
            world.github.comment(REPO, number, body="y" * 900_000)
        await world.cycle(times=2)

        (spawn,) = world.received
        assert thread_of(world, number) == keys("comment", range(1001, 1006))
        assert {(entry["truncated"], "body" in entry, entry["author"]) for entry in spawn["thread"]} == {
            (True, False, "octocat")
        }

    @in_loop
    async def test_comments_when_thousands_then_each_arrives_once_over_restarts(self, tmp_path: Path) -> None:
        world = scene(tmp_path)
        number = world.add_issue()
        await world.cycle()
        for _ in range(6):
            for _ in range(250):
                world.github.comment(REPO, number)
            await world.cycle()
        world = world.restart()
        await world.cycle(times=2)
        world.root.position(world.watched.source.name).unlink()
        world = world.restart()
        await world.cycle(times=2)

        assert world.ids(number) == ["spawn:1", *keys("comment", range(1001, 2501))]
        assert world.root.ledger("github:octo/repo#1").stat().st_size < 200_000

    @in_loop
    async def test_ledgers_when_everything_was_delivered_then_no_restart_delivers_again(self, tmp_path: Path) -> None:
        world = scene(tmp_path)
        numbers = [world.add_issue() for _ in range(60)]
        await world.cycle(times=2)
        for number in numbers * 3:
            world.github.comment(REPO, number)
        await world.cycle()
        for number in numbers[:20]:
            world.github.close(REPO, number)
        await world.cycle(times=LINGER_CYCLES)
        before = world.ids()
        assert len(before) == 60 + 180 + 20
        for forgets in (False, True, False):
            if forgets:
                world.root.position(world.watched.source.name).unlink()
            world = world.restart()
            await world.cycle(times=2)

        assert world.ids() == before

    @in_loop
    async def test_pull_request_when_written_on_everywhere_then_is_one_item(self, tmp_path: Path) -> None:
        world = scene(tmp_path)
        number = world.add_issue(pull_request=True)
        await world.cycle()
        world.github.comment(REPO, number)
        world.github.review(REPO, number, body="Looks good.", state="APPROVED")
        world.github.review_comment(REPO, number, review_id=1001)
        await world.cycle(times=2)

        arrived = [name for name in world.ids() if "/review:" not in name]
        assert sorted(arrived) == ["1/comment:1001", "1/review_comment:1001", "1/spawn:1"]
        assert len({got["ref"] for got in world.received}) == 1
