"""Who set a label on GitHub: only those of authorised users choose a receiver (contract R7.9)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.github.faults import reply, server_error
from support.github.rows import account_id
from support.world import World, in_real_loop, scene
from the_loop.config import Session
from the_loop.runners.exec_provider import ExecSession

TIMELINE = r"GET .*/issues/\d+/timeline"


def change(event: str, label: str, login: str | None, number: int | None = None) -> dict[str, Any]:
    actor = None if login is None else {"login": login, "id": number or account_id(login)}
    return {"event": event, "actor": actor, "label": {"name": label, "color": "aaaaaa"}, "created_at": "2024-01-01"}


def world_of(folder: Path, *labels: str, **session: Any) -> World:
    entries: dict[str, Session] = {label: ExecSession(command=("big",)) for label in labels}
    own = ExecSession(command=("small",), by_label=entries, **session)
    return scene(folder, section={"session": own})


OTHERS = [
    {"event": "committed", "sha": "abc", "author": {"name": "x"}},
    {"event": "commented", "actor": {"login": "octocat", "id": 1}, "body": "hi"},
    {"event": "renamed", "actor": {"login": "octocat", "id": 1}},
    change("labeled", "auto", "octocat"),
]


@pytest.mark.parametrize(
    ("changes", "chosen"),
    [
        ([change("labeled", "Heavy", "OctoCat")], "heavy"),
        ([change("labeled", "heavy", "stranger")], ""),
        ([change("labeled", "heavy", None)], ""),
        ([], ""),
        (
            [
                change("labeled", "heavy", "octocat"),
                change("unlabeled", "heavy", "octocat"),
                change("labeled", "heavy", "x"),
            ],
            "",
        ),
        (
            [change("labeled", "heavy", "x"), change("unlabeled", "heavy", "x"), change("labeled", "heavy", "octocat")],
            "heavy",
        ),
    ],
)
@in_real_loop
async def test_receiver_when_its_label_was_set_by_somebody_then_that_counts(
    tmp_path: Path, changes: list[dict[str, Any]], chosen: str
) -> None:
    world = world_of(tmp_path, "heavy")
    number = world.add_issue(labels=("auto", "heavy"))
    world.github.fail(TIMELINE, reply(200, [*OTHERS, *changes]), times=None)

    await world.cycle(times=3)

    assert world.ids(number) == ["spawn:1"]
    assert world.ledger(number)["poll"]["receiver"] == chosen
    assert len(world.github.requests_matching(TIMELINE)) == 1  # asked once


@in_real_loop
async def test_receiver_when_labels_are_trusted_or_have_none_then_nothing_is_asked(tmp_path: Path) -> None:
    world = world_of(tmp_path, "heavy", trust_labels=True)
    heavy, plain = world.add_issue(labels=("auto", "heavy")), world.add_issue()

    await world.cycle(times=2)

    assert [world.ledger(number)["poll"]["receiver"] for number in (heavy, plain)] == ["heavy", ""]
    assert world.github.requests_matching(TIMELINE) == []


@in_real_loop
async def test_receiver_when_the_timeline_cannot_be_read_then_the_item_waits_and_the_others_do_not(
    tmp_path: Path,
) -> None:
    world = world_of(tmp_path, "heavy")
    heavy, plain = world.add_issue(labels=("auto", "heavy")), world.add_issue()
    world.github.fail(TIMELINE, server_error(), times=8)
    world.github.fail(TIMELINE, reply(200, [change("labeled", "heavy", "octocat")]), times=None)
    await world.cycle()
    assert (world.ids(heavy), world.ids(plain)) == ([], ["spawn:1"])

    await world.cycle(times=6)

    assert world.ids(heavy) == ["spawn:1"]
    assert world.ledger(heavy)["poll"]["receiver"] == "heavy"


@in_real_loop
async def test_receiver_when_its_label_is_by_an_account_that_took_over_a_login_then_it_does_not_count(
    tmp_path: Path,
) -> None:
    world = world_of(tmp_path, "heavy")
    world.add_issue(author="octocat")
    await world.cycle()  # pins the login
    number = world.add_issue(labels=("auto", "heavy"))
    world.github.fail(TIMELINE, reply(200, [change("labeled", "heavy", "octocat", 99)]), times=None)

    await world.cycle()

    assert world.ledger(number)["poll"]["receiver"] == ""
