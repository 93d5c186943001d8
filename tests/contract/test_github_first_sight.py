"""What is handed over of an item that is met for the first time, and when it starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.github.stories import LINGER_CYCLES, keys, thread_of
from support.world import REPO, in_real_loop, scene
from the_loop.sources.github.section import Monitor

MIB = 1 << 20


class TestFirstSight:
    @in_real_loop
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

    @in_real_loop
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

    @in_real_loop
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

    @pytest.mark.parametrize(("issues", "pulls"), [(True, False), (False, True)])
    @in_real_loop
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


class TestSizes:
    @pytest.mark.parametrize(("size", "is_cut"), [(MIB, False), (MIB + 1, True)])
    @in_real_loop
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

    @in_real_loop
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

    @in_real_loop
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
