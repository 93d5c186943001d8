"""Who may speak on GitHub, and which notices are our own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.github.stories import LINGER_CYCLES, begun, edited, thread_of
from support.github.values import Kind
from support.world import REPO, World, in_real_loop, scene
from the_loop.core.model import Outcome, Verdict

KINDS = [str(kind) for kind in Kind]
MARKER = "<!-- the-loop -->"
BOTH = frozenset({"octocat", "hubot"})


def say(world: World, kind: str, body: str | None, author: str | None = "octocat", number: int = 1) -> str:
    """Write on a pull request; the key of what was written."""
    return f"{kind}:{getattr(world.github, kind)(REPO, number, author, body)}"


def dropped(world: World) -> list[tuple[str, str]]:
    return [(note.fields["key"], note.fields["reason"]) for note in world.told("dispatch.dropped")]


class TestPeople:
    @pytest.mark.parametrize(
        ("listed", "author", "may"),
        [
            ("OctoCat", "octocat", True),
            ("octocat", "OCTOCAT", True),
            ("octocat", "octocat2", False),
            ("octocat", "octo-cat", False),
            ("octocat", "octocаt", False),  # noqa: RUF001 (a look-alike letter)
            ("octocat", " octocat", False),
            ("dependabot[bot]", "dependabot[bot]", True),
            ("Dependabot[BOT]", "dependabot[bot]", True),
            ("dependabot", "dependabot[bot]", False),
            ("dependabot[bot]", "dependabot", False),
            ("ghost", None, False),
            ("null", None, False),
            ("None", None, False),
        ],
    )
    @pytest.mark.parametrize("kind", ["item", *KINDS])
    @in_real_loop
    async def test_author_then_is_compared_whole_and_without_case(
        self, tmp_path: Path, kind: str, listed: str, author: str | None, may: bool
    ) -> None:
        """Elsewhere an author of null counted as authorised, and names were compared by their case."""
        world = scene(tmp_path, people=frozenset({listed, "starter"}))
        number = world.add_issue(pull_request=True, author=author if kind == "item" else "starter")
        await world.cycle()
        if kind != "item":
            say(world, kind, "A word.", author)
            await world.cycle(times=2)

        arrived = [got["author"] for got in world.received if got["author"] != "starter"]
        assert arrived == [author] * may
        assert len(world.ids(number)) == (kind != "item") + may

    @pytest.mark.parametrize("user", [{}, {"login": None}, {"login": 7}, {"login": ""}, [], "octocat", 0, False])
    @in_real_loop
    async def test_author_when_of_another_shape_then_is_nobody(self, tmp_path: Path, user: Any) -> None:
        world, number = await begun(tmp_path)
        first = world.github.comment(REPO, number)
        second = world.github.comment(REPO, number)
        odd = edited(lambda rows: [{**row, "user": user} if row["id"] == second else row for row in rows])
        world.github.fail(
            "/comments", odd, times=None
        )  # also of its own thread, as the count tells that one is missing
        await world.cycle(times=2)

        assert world.ids(number) == ["spawn:1", f"comment:{first}"]

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("restarts", [True, False], ids=["restart", "reload"])
    @in_real_loop
    async def test_author_when_taken_off_the_list_between_acceptance_and_hand_over_then_is_dropped(
        self, tmp_path: Path, kind: str, restarts: bool
    ) -> None:
        """Elsewhere a login taken off the list was served until a restart."""
        world, number = await begun(tmp_path, people=BOTH, pull_request=True)
        first = say(world, kind, "Accepted.", "hubot")
        second = say(world, kind, "Behind it.")
        world.sink.answers[f"github:{REPO}#1/{first}"] = [Outcome(Verdict.LATER)]
        await world.cycle()
        assert world.ids(number) == ["spawn:1", first]
        if restarts:
            world = world.restart(people=frozenset({"octocat"}))
        else:
            world.watched.rules = replace(world.watched.rules, authorized=frozenset({"octocat"}))
        await world.cycle(times=3)
        assert world.ids(number) == ["spawn:1", first, second]
        assert (first, "unauthorized") in dropped(world)

        world = world.restart(people=BOTH)
        third = say(world, kind, "Back on the list.", "hubot")
        await world.cycle(times=2)
        assert world.ids(number)[2:] == [second, third], "what was dropped stays dropped"

    @in_real_loop
    async def test_author_when_taken_off_before_the_spawn_began_then_it_goes_without_their_words(
        self, tmp_path: Path
    ) -> None:
        world = scene(tmp_path, people=BOTH)
        number = world.add_issue()
        world.sink.answers[f"github:{REPO}#1/spawn:1"] = [Outcome(Verdict.LATER)]
        world.github.comment(REPO, number, "hubot")
        world.github.comment(REPO, number, "octocat")
        await world.cycle()
        world = world.restart(people=frozenset({"octocat"}))
        await world.cycle(times=4)

        assert world.ids(number) == ["spawn:1", "spawn:1"]
        assert (thread_of(world, number), world.received[-1]["omitted"]) == (["comment:1002"], 1)

    @in_real_loop
    async def test_author_when_put_on_the_list_then_only_what_comes_after_is_heard(self, tmp_path: Path) -> None:
        world, number = await begun(tmp_path, pull_request=True)
        theirs = world.add_issue(author="hubot")
        for kind in KINDS:
            say(world, kind, "Before.", "hubot")
        await world.cycle(times=2)
        assert world.ids() == ["1/spawn:1"]
        world = world.restart(people=BOTH)
        after = {say(world, kind, "After.", "hubot") for kind in KINDS}
        await world.cycle(times=2)

        assert set(world.ids(number)) == {"spawn:1", *after}
        assert world.ids(theirs) == ["spawn:1"]

    @in_real_loop
    async def test_list_when_empty_then_nothing_is_even_asked_and_it_is_said(self, tmp_path: Path) -> None:
        world, number = await begun(tmp_path)
        before = world.github.requests
        world = world.restart(people=frozenset())
        world.github.comment(REPO, number)
        world.github.close(REPO, number)
        await world.cycle(times=LINGER_CYCLES)

        assert (world.github.requests, world.ids(), world.state) == (before, ["1/spawn:1"], "unread")


class TestOwn:
    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize(
        "body",
        [
            f"I took it.\n\n{MARKER}",
            f"I took it.\r\n\r\n{MARKER}\r\n",
            f"I took it.\n{MARKER}\n\n   \n",
            f"the-loop stop\n{MARKER}",
            f"> A quotation of yours.\n\nDone.\n{MARKER}",
            MARKER,
        ],
    )
    @in_real_loop
    async def test_notice_when_own_then_is_dropped_whoever_s_account_it_came_by(
        self, tmp_path: Path, kind: str, body: str
    ) -> None:
        """A person's own token may write it, so its author says nothing."""
        world, number = await begun(tmp_path, pull_request=True)
        own = say(world, kind, body)
        strangers = say(world, kind, body, "stranger")
        other = say(world, kind, "Go on.")
        await world.cycle(times=2)

        assert world.ids(number) == ["spawn:1", other]
        assert dropped(world) == [(own, "own"), (strangers, "own")]

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize(
        "body",
        [
            f"> I took it.\n>\n> {MARKER}",
            f"> I took it.\r\n>{MARKER}\r\n\r\nWhy did you?",
            f"I took it.\n{MARKER}\n\nNo, I did.",
            f"```\nI took it.\n{MARKER}\n```",
            f"Code:\n\n    {MARKER}",
            f"What is {MARKER}",
            f"{MARKER} is what it ends with",
            "<!-- the-loop-->",
            "<!-- The-Loop -->",
        ],
    )
    @in_real_loop
    async def test_notice_when_a_person_quotes_it_then_is_theirs(self, tmp_path: Path, kind: str, body: str) -> None:
        world, number = await begun(tmp_path, pull_request=True)
        quoting = say(world, kind, body)
        await world.cycle(times=2)

        assert world.ids(number) == ["spawn:1", quoting]
        assert world.received[-1]["body"] == body

    @in_real_loop
    async def test_notice_when_in_a_thread_at_first_sight_then_is_neither_carried_nor_counted(
        self, tmp_path: Path
    ) -> None:
        world = scene(tmp_path)
        number = world.add_issue(pull_request=True)
        for kind in KINDS:
            say(world, kind, f"Done.\n{MARKER}")
            say(world, kind, f"Done.\n{MARKER}", "stranger")
        say(world, "comment", "the-loop stop", "stranger")
        await world.cycle(times=2)

        assert (world.ids(number), thread_of(world, number), world.received[0]["omitted"]) == (["spawn:1"], [], 1)

    @pytest.mark.parametrize(("before", "after"), [(f"Done.\n{MARKER}", "Done."), ("Please.", f"Please.\n{MARKER}")])
    @in_real_loop
    async def test_marker_when_edited_in_or_out_then_changes_nothing(
        self, tmp_path: Path, before: str, after: str
    ) -> None:
        """Edits are no events: what was ours stays ours, and what was heard stays heard."""
        world, number = await begun(tmp_path)
        id_ = world.github.comment(REPO, number, body=before)
        world.sink.answers[f"github:{REPO}#1/comment:{id_}"] = [Outcome(Verdict.LATER)]
        await world.cycle()
        world.github.edit_comment(REPO, id_, after)
        world = world.restart()
        await world.cycle(times=3)
        world.root.cursor("github").unlink()
        world = world.restart()
        await world.cycle(times=2)

        assert {got["body"] for got in world.received[1:]} == ({before} if MARKER not in before else set())
