"""The `directory` source with the rest of the poller behind it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from support import factories as make
from support.clock import NOON
from support.fakes import DELIVERED, FakeRunner
from support.inbox import LAST_YEAR, ME, NEXT_CENTURY, Inbox, remove
from support.life import (
    Life,
    in_virtual_loop,
    new_root,
)


@pytest.fixture
def inbox(tmp_path: Path) -> Inbox:
    path = tmp_path / "inbox"
    path.mkdir()
    return Inbox(path)


@in_virtual_loop
async def test_odd_inbox_over_ten_looks_and_restarts_delivers_each_once(tmp_path: Path) -> None:
    """The mtime and the name say nothing: contents do."""
    runner, root = FakeRunner(), new_root(tmp_path / "state")
    inbox = Inbox(tmp_path / "inbox")
    inbox.path.mkdir()
    inbox.write("one/item.md", "the body", at=NOON)

    async def poll(count: int) -> None:
        for _ in range(count):
            life = Life(root, runner, inbox.source, rules=make.rules(ME, folds_case=False))
            await life.begin()
            await life.cycle()
            await life.die()

    await poll(2)
    inbox.write("one/old", "last year's", at=LAST_YEAR)
    inbox.write("one/future", "next century's", at=NEXT_CENTURY)
    inbox.write("one/same-1", "of one second", at=NOON)
    inbox.write("one/same-2", "of one second, too", at=NOON)
    inbox.write(b"one/line\nbreak", "odd")
    for odd in (".dot", "backup~"):
        inbox.write(f"one/{odd}", "no")
    (inbox.path / "one/link").symlink_to("/etc/passwd")
    os.mkfifo(inbox.path / "one/fifo")
    await poll(5)
    inbox.write("one/old", "other words", at=LAST_YEAR)
    (inbox.path / "one/future").rename(inbox.path / "one/renamed")
    await poll(5)

    assert sorted(payload["body"] for payload in runner.got) == sorted(
        ["the body", "last year's", "next century's", "of one second", "of one second, too", "odd"]
    )
    assert [payload["body"] for payload in runner.got if payload["body"].startswith("of")] == [
        "of one second",
        "of one second, too",
    ]


@in_virtual_loop
async def test_file_renamed_while_the_spawn_that_carries_it_runs_is_not_delivered_again(tmp_path: Path) -> None:
    runner, root = FakeRunner(default=None), new_root(tmp_path / "state")
    inbox = Inbox(tmp_path / "inbox")
    inbox.path.mkdir()
    inbox.write("one/item.md", "the body")
    inbox.write("one/a.txt", "a comment")
    life = Life(root, runner, inbox.source, rules=make.rules(ME, folds_case=False))
    await life.cycle()
    assert [entry["id"] for entry in runner.got[0]["thread"]] == ["a.txt"]

    (inbox.path / "one/a.txt").rename(inbox.path / "one/b.txt")
    await life.cycle()
    runner.default = None
    runner.finish("directory:inbox/one/spawn:1")
    for _ in range(3):
        await life.cycle()

    assert len(runner.got) == 1


@pytest.mark.parametrize("state", ["waits for its turn", "runs", "waits for a start word"])
@in_virtual_loop
async def test_file_renamed_before_it_was_handed_over_is_handed_over_once(tmp_path: Path, state: str) -> None:
    """Only what is known under its old name is nothing new under another one."""
    runner, root = FakeRunner(default=None if state == "runs" else DELIVERED), new_root(tmp_path / "state")
    inbox = Inbox(tmp_path / "inbox")
    inbox.path.mkdir()
    inbox.write("one/item.md", "the body")
    rules = make.rules(ME, folds_case=False, require_start=state == "waits for a start word")
    life = Life(root, runner, inbox.source, rules=rules, limit=0 if state == "waits for its turn" else 4)
    await life.cycle()
    inbox.write("one/a.txt", "a comment")
    await life.cycle()
    (inbox.path / "one/a.txt").rename(inbox.path / "one/b.txt")
    inbox.write("one/start.txt", "the-loop start")
    await life.cycle()

    life.dispatcher.limit = 4
    life.dispatcher.resume()
    await life.cycle()
    if state == "runs":
        runner.finish("directory:inbox/one/spawn:1")
        await life.cycle()

    told_bodies = [payload["body"] for payload in runner.got]
    told_bodies += [entry["body"] for payload in runner.got for entry in payload["thread"]]
    assert sorted(told_bodies) == ["a comment", "the body"]


@in_virtual_loop
async def test_item_md_that_came_later_is_a_comment_also_when_the_thread_is_read(tmp_path: Path) -> None:
    runner, root = FakeRunner(), new_root(tmp_path / "state")
    inbox = Inbox(tmp_path / "inbox")
    inbox.path.mkdir()
    inbox.write("one/notes.txt", "the body")
    for _ in range(3):
        life = Life(root, runner, inbox.source, rules=make.rules(ME, folds_case=False))
        await life.begin()
        await life.cycle()
        await life.die()
        inbox.write("one/item.md", "a comment")
        root.cursor("inbox").unlink()

    assert [(payload["kind"], payload["body"]) for payload in runner.got] == [
        ("spawn", "the body"),
        ("comment", "a comment"),
    ]


@in_virtual_loop
async def test_folder_that_was_removed_is_closed_and_starts_again_when_it_is_back(tmp_path: Path) -> None:
    runner, root = FakeRunner(), new_root(tmp_path / "state")
    inbox = Inbox(tmp_path / "inbox")
    inbox.path.mkdir()
    inbox.write("one/item.md", "the body")
    inbox.write("one/a.txt", "a comment")
    life = Life(root, runner, inbox.source, rules=make.rules(ME, folds_case=False))
    await life.cycle()
    remove(inbox.path / "one")
    for _ in range(3):
        inbox.now += 100
        await life.cycle()
    inbox.write("one/item.md", "the body")
    inbox.write("one/b.txt", "another")
    await life.cycle()

    assert [(payload["deliveryId"].rpartition("/")[2], payload.get("reason")) for payload in runner.got] == [
        ("spawn:1", None),
        ("close:1", "deleted"),
        ("spawn:2", None),
    ]


@in_virtual_loop
async def test_file_that_was_dropped_for_its_mode_is_delivered_under_a_new_name(tmp_path: Path) -> None:
    runner, root = FakeRunner(), new_root(tmp_path / "state")
    inbox = Inbox(tmp_path / "inbox")
    inbox.path.mkdir()
    inbox.write("one/item.md", "the body")
    life = Life(root, runner, inbox.source, rules=make.rules(ME, folds_case=False))
    await life.cycle()
    inbox.write("one/a.txt", "do it").chmod(0o664)
    await life.cycle()

    (inbox.path / "one/a.txt").unlink()
    inbox.write("one/b.txt", "do it")
    for _ in range(3):
        await life.cycle()

    assert [payload["body"] for payload in runner.got] == ["the body", "do it"]
