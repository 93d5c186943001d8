"""Repositories under changing names: the numeric id is what counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.github.stories import LINGER_CYCLES, begun
from support.world import REPO, in_real_loop, scene


class TestRenamed:
    @in_real_loop
    async def test_repository_when_renamed_then_same_ledgers_before_and_after_the_configuration_follows(
        self, tmp_path: Path
    ) -> None:
        """Elsewhere the same repository existed twice in the data, once under each name."""
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

    @in_real_loop
    async def test_repository_when_idle_after_a_rename_then_costs_what_it_did_before(self, tmp_path: Path) -> None:
        world = scene(tmp_path)
        world.add_issue(pull_request=True)
        await world.cycle()
        world.github.rename_repo(REPO, "octo/gadgets")
        await world.cycle(times=2)
        before = (world.github.requests, world.github.points)
        await world.cycle(times=5)

        assert (world.github.requests - before[0], world.github.points - before[1]) == (5 * 3, 0)

    @pytest.mark.parametrize("restarts", [False, True])
    @in_real_loop
    async def test_repository_when_renamed_again_and_again_then_is_followed(
        self, tmp_path: Path, restarts: bool
    ) -> None:
        world, number = await begun(tmp_path)
        name = REPO
        for new in ("octo/second", "hexa/third", "hexa/Third", REPO, "octo/fourth"):
            world.github.rename_repo(name, new)
            name = new
            world = world.restart() if restarts else world
            world.github.comment(name, number)
            await world.cycle(times=2)
        world = world.restart(repos=("octo/FOURTH",))
        world.github.comment(name, number)
        await world.cycle(times=2)

        assert world.ids() == ["1/spawn:1", *(f"1/comment:{id_}" for id_ in range(1001, 1007))]
        assert world.told("source.failed") == []

    @pytest.mark.parametrize("keeps_position", [True, False])
    @in_real_loop
    async def test_repositories_when_they_swap_names_then_each_goes_on_by_its_id(
        self, tmp_path: Path, keeps_position: bool
    ) -> None:
        world = scene(tmp_path, repos=("octo/one", "octo/two"))
        for repo in ("octo/one", "octo/two"):
            world.add_issue(repo=repo, title=repo)
        await world.cycle()
        world.github.rename_repo("octo/one", "octo/spare")
        world.github.rename_repo("octo/two", "octo/one")
        world.github.rename_repo("octo/spare", "octo/two")
        world.github.comment("octo/one", 1, body="For the second one.")
        world.github.comment("octo/two", 1, body="For the first one.")
        if not keeps_position:
            world.root.cursor("github").unlink()
            world = world.restart()
        await world.cycle(times=3)
        world.github.comment("octo/two", 1, body="For the first one.")
        await world.cycle()

        got = [(one["ref"], one["kind"], one["body"]) for one in world.received[2:]]
        assert sorted(got) == [
            ("github:octo/one#1", "comment", "For the first one."),
            ("github:octo/one#1", "comment", "For the first one."),
            ("github:octo/two#1", "comment", "For the second one."),
        ]
        assert world.state == "ok"

    @pytest.mark.parametrize("spelling", ["octo/repo", "Octo/Repo", "OCTO/REPO"])
    @in_real_loop
    async def test_repository_when_configured_in_another_case_then_is_the_same(
        self, tmp_path: Path, spelling: str
    ) -> None:
        world, number = await begun(tmp_path)
        world = world.restart(repos=(spelling,))
        world.github.comment(REPO, number)
        await world.cycle(times=2)

        assert world.ids() == ["1/spawn:1", "1/comment:1001"]


class TestReused:
    """Another repository takes the name. In all of this it has an item with the number of one of the first."""

    @in_real_loop
    async def test_name_when_another_repository_takes_it_and_both_are_configured_then_both_are_served(
        self, tmp_path: Path
    ) -> None:
        world, number = await begun(tmp_path)
        world.github.rename_repo(REPO, "octo/gadgets")
        await world.cycle()
        new_id = world.github.add_repo(REPO)
        twin = world.add_issue(body="Of the other repository.")
        world.github.comment("octo/gadgets", number)
        await world.cycle(times=3)
        assert (twin, world.ids()) == (number, ["1/spawn:1", "1/comment:1001"])

        world = world.restart(repos=("octo/gadgets", REPO))
        world.github.comment("octo/gadgets", number)
        await world.cycle(times=2)
        world.github.comment(REPO, twin)
        await world.cycle(times=2)
        world = world.restart()
        await world.cycle(times=2)

        assert world.ids(number) == ["spawn:1", "comment:1001", "comment:1002"]
        assert world.ids(twin, f"{REPO}@{new_id}") == ["spawn:1", "comment:1003"]
        assert world.state == "ok"

    @pytest.mark.parametrize("was", ["listed", "unlabelled", "nothing"])
    @pytest.mark.parametrize("keeps_position", [True, False], ids=["position", "no position"])
    @in_real_loop
    async def test_name_when_its_repository_is_gone_and_another_takes_it_then_that_starts_afresh(
        self, tmp_path: Path, was: str, keeps_position: bool
    ) -> None:
        """The first one's items are left alone: nothing says that they ended."""
        world = scene(tmp_path)
        number = world.add_issue(labels=() if was == "nothing" else ("auto",))
        await world.cycle()
        if was == "unlabelled":
            world.github.unlabel(REPO, number, "auto")
            await world.cycle()
        before = world.ledger(number) if was != "nothing" else None
        world.github.remove_repo(REPO)
        new_id = world.github.add_repo(REPO)
        world.github.add_issue(REPO)
        world.github.comment(REPO, number, body="On another item of this number.")
        if not keeps_position:
            world.root.cursor("github").unlink()
            world = world.restart()
        await world.cycle(times=3)
        started = world.add_issue()
        await world.cycle(times=2)
        world.github.comment(REPO, started)
        await world.cycle(times=35)

        assert world.ids(number) == ["spawn:1"] * (was != "nothing")
        assert world.ids(started, f"{REPO}@{new_id}") == ["spawn:1", "comment:1002"]
        assert len(world.received) == 2 + (was != "nothing")
        assert before is None or world.ledger(number) == before
        assert world.told("ledger.held") == []

    @pytest.mark.parametrize("was", ["listed", "unlabelled"])
    @pytest.mark.parametrize("keeps_position", [True, False], ids=["position", "no position"])
    @in_real_loop
    async def test_name_when_its_repository_was_renamed_and_another_takes_it_then_each_id_keeps_its_sessions(
        self, tmp_path: Path, was: str, keeps_position: bool
    ) -> None:
        """With its position the first one is followed; without, the name means who has it now, and is kept apart."""
        world, number = await begun(tmp_path)
        if was == "unlabelled":
            world.github.unlabel(REPO, number, "auto")
            await world.cycle()
        world.github.rename_repo(REPO, "octo/gadgets")
        new_id = world.github.add_repo(REPO)
        twin = world.add_issue(body="Of the other repository.")
        world.github.comment(REPO, twin)
        if not keeps_position:
            world.root.cursor("github").unlink()
            world = world.restart()
        await world.cycle(times=3)
        world.github.label("octo/gadgets", number, "auto")
        world.github.comment("octo/gadgets", number, id=5001)
        await world.cycle(times=3)
        others = world.ids(twin, f"{REPO}@{new_id}")
        assert world.ids(number) == (["spawn:1", "comment:5001"] if keeps_position else ["spawn:1"])
        assert others == ([] if keeps_position else ["spawn:1"])

        world = world.restart(repos=("octo/gadgets", REPO))
        await world.cycle(times=4)
        assert world.ids(number) == ["spawn:1", "comment:5001"]
        assert world.ids(twin, f"{REPO}@{new_id}") == ["spawn:1"]
        assert world.told("ledger.held") == []

    @pytest.mark.parametrize("keeps_position", [True, False], ids=["position", "no position"])
    @pytest.mark.parametrize("age_s", [0, 4000], ids=["just written", "moved there with its age"])
    @in_real_loop
    async def test_name_when_taken_while_an_item_is_ending_then_its_last_words_are_its_own(
        self, tmp_path: Path, keeps_position: bool, age_s: int
    ) -> None:
        """Both lists of open items are empty, so they look the same."""
        world, number = await begun(tmp_path)
        world.github.close(REPO, number)
        await world.cycle()
        world.github.remove_repo(REPO)
        world.github.add_repo(REPO)
        twin = world.github.add_issue(REPO)
        world.github.comment(REPO, twin, body="On another item.", created=world.clock.now - age_s)
        if not keeps_position:
            world.root.cursor("github").unlink()
            world = world.restart()
        await world.cycle(times=LINGER_CYCLES + 2)

        assert [key for key in world.ids() if "comment" in key] == []


class TestTable:
    @pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"api.github.com/700001": 7}'])
    @in_real_loop
    async def test_table_of_repositories_when_unreadable_then_nothing_is_filed_anew(
        self, tmp_path: Path, content: bytes
    ) -> None:
        world, number = await begun(tmp_path)
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
