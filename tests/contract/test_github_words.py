"""The control words, wherever on GitHub they are written."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.github import faults
from support.github.stories import LINGER_CYCLES, begun, everything_of, thread_of
from support.github.values import Kind
from support.world import REPO, World, in_real_loop, scene

KINDS = [str(kind) for kind in Kind]
MARKER = "<!-- the-loop -->"


def say(world: World, kind: str, body: str | None, author: str | None = "octocat", number: int = 1) -> str:
    """Write on a pull request; the key of what was written."""
    return f"{kind}:{getattr(world.github, kind)(REPO, number, author, body)}"


class TestWords:
    @pytest.mark.parametrize("kind", KINDS)
    @in_real_loop
    async def test_words_when_written_anywhere_then_are_obeyed(self, tmp_path: Path, kind: str) -> None:
        world, number = await begun(tmp_path, pull_request=True)
        arrived = []
        for word in ("pause", "resume", "stop", "start"):
            say(world, kind, f"the-loop {word}")
            await world.cycle()
            world.github.comment(REPO, number)
            await world.cycle()
            arrived.append([key.partition(":")[0] for key in world.ids(number)])

        assert arrived == [
            ["spawn"],
            ["spawn", "comment", "comment"],
            ["spawn", "comment", "comment", "close"],
            ["spawn", "comment", "comment", "close", "spawn", "comment"],
        ]
        assert [note.fields["reason"] for note in world.told("control.applied")] == ["pause", "resume", "stop", "start"]

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("author", ["stranger", None, "octocat[bot]"])
    @in_real_loop
    async def test_word_when_of_somebody_else_then_is_not_heard(
        self, tmp_path: Path, kind: str, author: str | None
    ) -> None:
        world, number = await begun(tmp_path, pull_request=True)
        say(world, kind, "the-loop stop", author)
        await world.cycle()
        heard = say(world, kind, "Go on.")
        await world.cycle(times=2)

        assert world.ids(number) == ["spawn:1", heard]
        assert world.told("control.applied") == []

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize(
        "body",
        ["> the-loop stop", "```\nthe-loop stop\n```", "    the-loop stop", "say the-loop stop", "the-loop stop!"],
    )
    @in_real_loop
    async def test_word_when_quoted_or_part_of_a_line_then_is_text(self, tmp_path: Path, kind: str, body: str) -> None:
        world, number = await begun(tmp_path, pull_request=True)
        key = say(world, kind, body)
        await world.cycle(times=2)

        assert (world.ids(number), world.received[-1]["body"]) == (["spawn:1", key], body)

    @pytest.mark.parametrize("kind", KINDS)
    @in_real_loop
    async def test_text_beside_a_word_then_arrives_without_it(self, tmp_path: Path, kind: str) -> None:
        """Lines end as web forms send them."""
        world, number = await begun(tmp_path, pull_request=True)
        key = say(world, kind, "Wait for me.\r\n\r\nThe-Loop  PAUSE\r\n\r\nUntil noon.")
        await world.cycle(times=2)
        assert world.ids(number) == ["spawn:1"]
        say(world, kind, "the-loop resume")
        await world.cycle(times=2)

        assert world.ids(number) == ["spawn:1", key]
        assert world.received[-1]["body"].split() == ["Wait", "for", "me.", "Until", "noon."]

    @in_real_loop
    async def test_review_when_a_word_is_all_its_text_then_its_verdict_still_arrives(self, tmp_path: Path) -> None:
        world, number = await begun(tmp_path, pull_request=True)
        world.github.review(REPO, number, body="the-loop pause", state="APPROVED")
        await world.cycle(times=2)
        assert world.ids(number) == ["spawn:1"]
        world.github.review(REPO, number, body="the-loop resume", state="COMMENTED")
        await world.cycle(times=2)

        assert world.ids(number) == ["spawn:1", "review:1001"]
        assert (world.received[-1]["verdict"], world.received[-1]["body"]) == ("approved", "")

    @in_real_loop
    async def test_words_when_in_several_lists_then_the_last_written_decides(self, tmp_path: Path) -> None:
        """Each list is an answer of its own; what counts is when the words were written."""
        world, number = await begun(tmp_path, pull_request=True)
        order = [("review", "pause"), ("comment", "resume"), ("review_comment", "pause"), ("comment", "resume")]
        for kind, word in order:
            world.clock.run(1)
            say(world, kind, f"the-loop {word}")
        last = say(world, "comment", "Go on.")
        await world.cycle(times=2)
        assert world.ids(number) == ["spawn:1", last]

        for kind, word in [*order, ("review", "stop")]:
            world.clock.run(1)
            say(world, kind, f"the-loop {word}")
        await world.cycle(times=2)
        assert world.ids(number) == ["spawn:1", last, "close:1"]
        assert world.received[-1]["reason"] == "stopped"

    @pytest.mark.parametrize("kind", KINDS)
    @in_real_loop
    async def test_word_when_edited_into_what_was_heard_then_is_not_obeyed(self, tmp_path: Path, kind: str) -> None:
        world, number = await begun(tmp_path, pull_request=True)
        key = say(world, kind, "Go on.")
        await world.cycle()
        world.github.edit_comment(REPO, 1001, "the-loop stop", kind=Kind(kind))
        await world.cycle(times=3)

        assert world.ids(number) == ["spawn:1", key]

    @in_real_loop
    async def test_word_when_in_a_review_that_is_not_submitted_then_is_heard_once_it_is(self, tmp_path: Path) -> None:
        world, number = await begun(tmp_path, pull_request=True)
        began = world.clock.now
        world.github.review(REPO, number, body="the-loop stop", visible=began + 7200)
        await world.cycle(times=100)
        assert world.ids(number) == ["spawn:1"]
        await world.cycle(times=22)

        assert world.ids(number) == ["spawn:1", "close:1"]

    @in_real_loop
    async def test_words_when_two_stand_in_one_comment_then_are_neither(self, tmp_path: Path) -> None:
        world, number = await begun(tmp_path, pull_request=True)
        key = say(world, "review", "the-loop stop\nor rather\nthe-loop pause")
        await world.cycle(times=2)

        assert (world.ids(number), world.received[-1]["body"]) == (["spawn:1", key], "or rather")
        assert len(world.told("control.ambiguous")) == 1


class TestStartCommand:
    @pytest.mark.parametrize(
        ("kind", "is_first_sight"),
        [("item", True), *((kind, True) for kind in KINDS), *((kind, False) for kind in KINDS)],
    )
    @in_real_loop
    async def test_item_when_the_word_is_required_then_starts_with_it_and_not_before(
        self, tmp_path: Path, kind: str, is_first_sight: bool
    ) -> None:
        """The label arms, the word starts, wherever it is written."""
        world = scene(tmp_path, require_start=True)
        body = "See here.\n\nthe-loop start" if kind == "item" else "See here."
        number = world.add_issue(pull_request=True, body=body)
        say(world, "comment", "Look at this.")
        say(world, "comment", "the-loop start", "stranger")
        say(world, "review", f"the-loop start\n{MARKER}")
        say(world, "review_comment", "> the-loop start")
        if not is_first_sight:
            await world.cycle(times=3)
            assert world.received == []
        if kind != "item":
            say(world, kind, "the-loop start")
        await world.cycle(times=2)

        assert world.ids(number) == ["spawn:1"]
        assert sorted(thread_of(world, number)) == ["comment:1001", "review_comment:1001"]
        assert world.received[0]["body"] == "See here."

    @in_real_loop
    async def test_word_when_the_label_is_missing_then_starts_once_it_is_there(self, tmp_path: Path) -> None:
        world = scene(tmp_path, require_start=True)
        number = world.add_issue(labels=())
        world.github.comment(REPO, number, body="the-loop start")
        await world.cycle(times=2)
        assert world.received == []
        world.github.label(REPO, number, "auto")
        await world.cycle()

        assert world.ids(number) == ["spawn:1"]

    @in_real_loop
    async def test_items_when_the_word_becomes_required_then_running_ones_go_on(self, tmp_path: Path) -> None:
        world, number = await begun(tmp_path)
        world = world.restart(require_start=True)
        new = world.add_issue()
        world.github.comment(REPO, number)
        await world.cycle(times=2)
        assert (world.ids(number), world.ids(new)) == (["spawn:1", "comment:1001"], [])
        world.github.close(REPO, number)
        await world.cycle(times=LINGER_CYCLES)
        world.github.comment(REPO, new, body="the-loop start")
        await world.cycle()

        assert (world.ids(number)[-1], world.ids(new)) == ("close:1", ["spawn:1"])

    @in_real_loop
    async def test_start_word_when_its_thread_cannot_be_read_then_starts_later(self, tmp_path: Path) -> None:
        world = scene(tmp_path, require_start=True)
        number = world.add_issue(pull_request=True)
        await world.cycle()
        say(world, "review", "the-loop start")
        world.github.fail("/pulls/1/comments", faults.server_error(), times=2)
        await world.cycle(times=4)

        assert everything_of(world, number) == ["spawn:1"]


class TestStrangersItems:
    @in_real_loop
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

    @in_real_loop
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

    @in_real_loop
    async def test_start_word_when_written_on_a_stopped_item_without_label_then_counts_when_it_is_back(
        self, tmp_path: Path
    ) -> None:
        world, number = await begun(tmp_path)
        world.github.comment(REPO, number, body="the-loop stop")
        await world.cycle(times=2)
        world.github.unlabel(REPO, number, "auto")
        await world.cycle()
        world.github.comment(REPO, number, body="the-loop start")
        await world.cycle()
        world.github.label(REPO, number, "auto")
        await world.cycle()

        assert world.ids() == ["1/spawn:1", "1/close:1", "1/spawn:2"]
