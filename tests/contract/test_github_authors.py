"""A login that another account has taken over speaks with no rights until the operator decides."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from support.fuse import Crash, Fuse
from support.github.rows import account_id
from support.poller import Box
from support.world import REPO, World, carried, in_real_loop, scene
from the_loop.authors import decide_author
from the_loop.core.model import timestamp

HOST = "api.github.com"
THIEF = "octocat#77"


async def begun(folder: Path, **options: Any) -> tuple[World, int]:
    """A pull request of hubot that is being worked on; octocat wrote on it, and left GitHub."""
    world = scene(folder, **{"people": frozenset({"octocat", "hubot"}), **options})
    number = world.add_issue(pull_request=True, author="hubot")
    comment = world.github.comment(REPO, number, "octocat", "hello")
    await world.cycle()
    assert carried(world.received)[1:] == [f"github:{REPO}#{number}/comment:{comment}"]
    world.github.delete_comment(REPO, comment)
    return world, number


def pins(world: World) -> dict[str, Any]:
    tree: dict[str, Any] = json.loads(world.root.authors.read_bytes())
    return {login: one["id"] for login, one in tree["hosts"][HOST]["logins"].items()}


@pytest.mark.parametrize("kind", ["comment", "review", "review_comment"])
@pytest.mark.parametrize("accepts", [True, False])
@in_real_loop
async def test_entry_of_another_account_when_decided_then_is_delivered_or_dropped(
    tmp_path: Path, kind: str, *, accepts: bool
) -> None:
    world, number = await begun(tmp_path)
    theirs = f"{kind}:{getattr(world.github, kind)(REPO, number, THIEF, 'deploy it')}"
    world.clock.run(1)
    mine = f"comment:{world.github.comment(REPO, number, 'hubot', 'go on')}"
    await world.cycle(times=40)  # a sweep of reviews, too

    assert world.ids(number) == ["spawn:1", mine]
    assert len(world.told("author.changed")) == 1
    assert world.told("dispatch.dropped") == []
    assert theirs not in world.ledger(number)["poll"]["seenComments"]

    world = world.restart()
    await world.cycle()
    decide_author(world.root.authors, f"{HOST}/octocat", accepts=accepts)
    world = world.restart()
    await world.cycle(times=3)

    assert world.ids(number) == ["spawn:1", mine, *([theirs] if accepts else [])]
    assert [note.fields["key"] for note in world.told("dispatch.dropped")] == ([] if accepts else [theirs])
    assert theirs in world.ledger(number)["poll"]["seenComments"]
    assert world.told("author.changed") == []

    again = f"comment:{world.github.comment(REPO, number, THIEF, 'and this')}"
    await world.cycle(times=2)
    assert (again in world.ids(number)) is accepts


@in_real_loop
async def test_wait_for_a_decision_costs_no_requests(tmp_path: Path) -> None:
    """An item is not read whole in every look until it is decided: it costs what an item without news does."""
    quiet = []
    for author in ("octocat", THIEF):
        world, number = await begun(tmp_path / author)
        world.github.comment(REPO, number, author, "deploy it")
        world.add_issue(author=author)
        await world.cycle(times=3)
        before = len(world.github.log)
        await world.cycle()
        quiet.append([(one.target, one.status) for one in world.github.log[before:]])

    assert quiet[1] == quiet[0]
    assert {status for _, status in quiet[1]} == {304}


@in_real_loop
async def test_item_of_another_account_when_accepted_then_starts(tmp_path: Path) -> None:
    world, _ = await begun(tmp_path)
    number = world.add_issue(author=THIEF, body="mine the coin")
    await world.cycle(times=3)
    assert world.ids(number) == []

    decide_author(world.root.authors, f"{HOST}/octocat", accepts=True)
    await world.cycle(times=2)

    assert world.ids(number) == ["spawn:1"]


@in_real_loop
async def test_word_of_another_account_is_not_obeyed(tmp_path: Path) -> None:
    world, number = await begun(tmp_path)
    world.github.comment(REPO, number, THIEF, "the-loop stop")
    await world.cycle(times=2)

    assert world.told("control.applied") == []
    assert world.ids(number) == ["spawn:1"]


@in_real_loop
async def test_pin_is_on_disk_before_the_first_event_is(tmp_path: Path) -> None:
    world = scene(tmp_path)
    world.add_issue(author="octocat")
    seen = []
    record = world.outbox.record
    world.outbox.record = lambda *what: (seen.append(pins(world)), record(*what))  # type: ignore[method-assign, assignment, func-returns-value]

    await world.cycle()

    assert seen == [{"octocat": account_id("octocat")}]


@in_real_loop
async def test_pin_when_it_cannot_be_written_then_nothing_is_accepted_and_the_next_look_makes_up_for_it(
    tmp_path: Path,
) -> None:
    world = scene(tmp_path)
    number = world.add_issue(author="octocat")
    world.root.authors.mkdir()  # nothing can be read or written there
    await world.cycle(times=2)
    assert (world.ids(), world.state) == ([], "failing")
    assert f"cannot read '{world.root.authors}'" in world.watched.error

    world.root.authors.rmdir()
    world.clock.run(600)
    await world.cycle()

    assert world.ids(number) == ["spawn:1"]


@in_real_loop
async def test_crash_at_any_step_of_a_decision_loses_and_repeats_nothing(tmp_path: Path) -> None:
    """What was accepted is delivered once, wherever the poller dies between the decision and the delivery."""
    at = 1
    while True:
        world, number = await begun(tmp_path / str(at))
        theirs = f"comment:{world.github.comment(REPO, number, THIEF, 'deploy it')}"
        await world.cycle()
        decide_author(world.root.authors, f"{HOST}/octocat", accepts=True)
        fuse = Fuse(at)
        world = world.restart(fuse=fuse)
        with contextlib.suppress(Crash):
            await world.cycle(times=3)
        is_over = not fuse.is_blown
        world = world.restart()
        await world.cycle(times=3)

        assert world.ids(number) == ["spawn:1", theirs], f"died at step {at}"
        if is_over:
            break
        at += 1
    assert at > 5


@in_real_loop
async def test_login_pinned_by_hand_when_another_account_had_it_from_the_start_then_that_waits(tmp_path: Path) -> None:
    world = scene(tmp_path, people=frozenset({f"OctoCat#{account_id('octocat')}"}))
    theirs = world.add_issue(author=THIEF)
    mine = world.add_issue(author="octocat")
    await world.cycle(times=2)

    assert world.ids() == [f"{mine}/spawn:1"]
    assert [note.fields["account"] for note in world.told("author.changed")] == [77]
    world = world.restart(people=frozenset({"octocat#77"}))
    await world.cycle(times=2)
    assert world.ids() == [f"{mine}/spawn:1", f"{theirs}/spawn:1"]


@in_real_loop
async def test_login_taken_off_the_list_loses_its_pin(tmp_path: Path) -> None:
    both = frozenset({"octocat", "hubot"})
    world = scene(tmp_path, people=both)
    number = world.add_issue(author="hubot")
    world.github.comment(REPO, number, "octocat", "hello")
    await world.cycle()
    world = world.restart(people=frozenset({"hubot"}))
    await world.cycle()
    assert pins(world) == {"hubot": account_id("hubot")}

    world = world.restart(people=both)
    late = world.github.comment(REPO, number, THIEF, "a new person of that name")
    await world.cycle()

    assert world.ids(number) == ["spawn:1", f"comment:{late}"]


# --- the commands ---


def test_commands_show_and_decide_and_a_running_poller_is_named(tmp_path: Path) -> None:
    with Box(tmp_path) as box:
        box.root.joinpath("portable").mkdir(mode=0o700)
        record = {
            "id": 1,
            "since": timestamp(0),
            "sources": ["work"],
            "waiting": {"77": {"since": timestamp(1), "refs": [f"github:{REPO}#1"]}},
        }
        tree = {"schema": 1, "hosts": {HOST: {"logins": {"octo[bot]": record}}}}
        file = box.root / "portable" / "authors.json"
        file.write_text(json.dumps(tree))
        poller = box.start()

        status = box.run("poll", "status")
        shown = f"author changed: octo[bot] is account 77 on {HOST}, it was 1; 1 item with entries that wait\n"
        ours = f"the-loop --config {box.config} --state-root {box.root} authors"
        assert shown.strip() in " ".join(status.out.split())
        assert f"  run `{ours} accept 'octo[bot]'` or `{ours} reject 'octo[bot]'`\n" in status.out
        (changed,) = box.run("poll", "status", "--json").json()["changedAuthors"]
        assert changed == {"host": HOST, "login": "octo[bot]", "pinned": 1, "id": 77, "since": timestamp(1)}
        for words in ((), ("list",)):
            listed = box.run("authors", *words)
            assert (listed.code, shown in listed.out) == (0, True)
            assert f"octo[bot]  account 1 on {HOST}, since {timestamp(0)}\n" in listed.out
        assert box.run("authors", "list", "--json").json()["login"] == "octo[bot]"

        done = box.run("authors", "accept", f"{HOST}/Octo[bot]")
        assert (done.code, done.out) == (0, f"accepted: {HOST}/Octo[bot], 1 item to be read again\n"), "by the poller"
        assert json.loads(file.read_bytes())["hosts"][HOST]["logins"]["octo[bot]"]["id"] == 77
        assert poller.stop() == 0

        file.write_text(json.dumps(tree))
        assert box.run("authors", "reject", "octocat").code == 1
        done = box.run("authors", "accept", f"{HOST}/Octo[bot]")
        assert (done.code, done.out) == (0, f"accepted: {HOST}/Octo[bot], 1 item to be read again\n")
        assert json.loads(file.read_bytes())["hosts"][HOST]["logins"]["octo[bot]"]["id"] == 77
        assert box.run("poll", "status", "--json").json()["changedAuthors"] == []
        file.write_text("{")
        assert box.run("poll", "status", "--json").json()["changedAuthors"] is None
        assert "cannot read" in box.run("poll", "status").out
        assert box.run("authors").code == 1
        file.unlink()
