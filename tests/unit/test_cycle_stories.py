"""Whole stories of items, look by look, from the source to what the receiver got (contract R6)."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import factories as make
from support.fakes import UNKNOWN, FakeRunner, FakeSource, comments
from support.life import (
    Life,
    files_of,
    in_virtual_loop,
    quick_root,
)
from the_loop.core.model import Kind, Presence
from the_loop.state import StateRoot

REF = "fake:1"
START, STOP, PAUSE, RESUME = (f"the-loop {word}" for word in ("start", "stop", "pause", "resume"))


class Story:
    """One item, looked at by a poller that may be killed between any two looks."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch, *, killed: bool) -> None:
        self.root: StateRoot = quick_root(path, monkeypatch)
        self.runner, self.source = FakeRunner(), FakeSource()
        self._killed = killed
        self._life: Life | None = None

    async def poll(self, count: int = 1) -> None:
        for _ in range(count):
            if self._life is None or self._killed:
                if self._life is not None:
                    await self._life.die()
                self._life = Life(self.root, self.runner, self.source)
                await self._life.begin()
            await self._life.cycle()

    async def write(self, *bodies: str | int) -> None:
        """Comments, each with its own number; then a look."""
        before = len(self.source.items[REF].entries)
        self.source.write(REF, *(make.entry(before + n, str(body)) for n, body in enumerate(bodies, 1)))
        await self.poll()

    def got(self) -> list[str]:
        return [key.partition("/")[2] for key in self.runner.ids()]


@pytest.fixture(params=[False, True], ids=["never stopped", "killed after every look"])
def story(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Story:
    return Story(tmp_path, monkeypatch, killed=request.param)


@in_virtual_loop
async def test_item_from_its_first_sight_to_its_end(story: Story) -> None:
    story.source.add(1, *comments(1))
    await story.poll(3)
    await story.write("two", "three")
    await story.poll(3)
    story.source.items[REF].presence = Presence.LEFT
    await story.write("four")
    await story.poll(2)
    story.source.items[REF].presence = Presence.GONE
    await story.poll(3)

    assert story.got() == ["spawn:1", "comment:2", "comment:3", "comment:4", "close:1"]
    assert [payload.get("reason") for payload in story.runner.got] == [None] * 4 + ["closed"]
    assert files_of(story.root) == []


@in_virtual_loop
async def test_label_off_and_on_brings_what_was_written_meanwhile_once(story: Story) -> None:
    story.source.add(1)
    await story.poll()
    await story.write("one", "two", "three")
    for _ in range(2):
        story.source.items[REF].presence = Presence.AWAY
        await story.poll()
        await story.write("meanwhile", "meanwhile, too")
        story.source.items[REF].presence = Presence.LISTED
        await story.poll(2)

    assert story.got() == ["spawn:1", *(f"comment:{number}" for number in range(1, 8))]


@in_virtual_loop
async def test_closed_commented_and_reopened_starts_again_with_what_was_missed(story: Story) -> None:
    story.source.add(1)
    await story.poll()
    await story.write("one", "two", "three")
    story.source.items[REF].presence = Presence.GONE
    await story.poll(2)
    await story.write("while closed")
    story.source.items[REF].presence = Presence.LISTED
    await story.poll(2)
    await story.write("after")

    assert story.got() == [
        *("spawn:1", "comment:1", "comment:2", "comment:3", "close:1"),
        *("spawn:2", "comment:5"),
    ]
    assert [entry["id"] for entry in story.runner.got[5]["thread"]] == ["1", "2", "3", "4"]


@in_virtual_loop
async def test_stop_and_start_again(story: Story) -> None:
    story.source.add(1)
    await story.poll()
    await story.write("one", STOP, "unheard")
    await story.poll(2)
    await story.write("unheard, too")
    await story.write(START)
    await story.poll(2)
    await story.write("after")

    assert story.got() == ["spawn:1", "close:1", "spawn:2", "comment:6"]
    assert [entry["id"] for entry in story.runner.got[2]["thread"]] == ["1", "3", "4"]
    assert story.runner.got[1]["reason"] == "stopped"


@in_virtual_loop
async def test_pause_holds_comments_back_and_resume_lets_them_flow(story: Story) -> None:
    story.source.add(1)
    await story.poll()
    await story.write("one", PAUSE, "two")
    await story.poll(2)
    await story.write("three")
    assert story.got() == ["spawn:1"]

    await story.write(RESUME)
    assert story.got() == ["spawn:1", "comment:1", "comment:3", "comment:4"]


@in_virtual_loop
async def test_pause_before_the_spawn_holds_it_back_and_it_carries_what_came(story: Story) -> None:
    story.source.add(1, make.entry(1, PAUSE))
    await story.poll(2)
    await story.write("two", "three")
    assert story.got() == []

    await story.write(RESUME)
    await story.poll(2)
    assert story.got() == ["spawn:1"]
    assert [entry["id"] for entry in story.runner.got[0]["thread"]] == ["2", "3"]


@in_virtual_loop
async def test_waiting_item_of_a_stranger_whose_label_was_off_when_start_was_said(story: Story) -> None:
    story.source.add(1, author=make.STRANGER)
    await story.poll()
    story.source.items[REF].presence = Presence.AWAY
    await story.poll()
    await story.write(START)
    story.source.items[REF].presence = Presence.LISTED
    await story.poll(2)

    assert story.got() == ["spawn:1"]


@in_virtual_loop
async def test_item_that_closes_while_its_spawn_runs_is_closed_after_it_with_its_last_words(story: Story) -> None:
    story.runner.script = {f"{REF}/spawn:1": [None]}
    story.source.add(1)
    await story.poll()
    story.source.items[REF].presence = Presence.LEFT
    await story.write("last words")
    story.source.items[REF].presence = Presence.GONE
    await story.poll(2)
    assert story.got() == ["spawn:1"]

    story.runner.finish(f"{REF}/spawn:1")
    await story.poll(3)
    assert story.got() == ["spawn:1", "comment:1", "close:1"]


@in_virtual_loop
async def test_stop_while_the_spawn_runs_closes_after_it(story: Story) -> None:
    story.runner.script = {f"{REF}/spawn:1": [None]}
    story.source.add(1)
    await story.poll()
    await story.write("one", STOP)
    assert story.got() == ["spawn:1"]

    story.runner.finish(f"{REF}/spawn:1")
    await story.poll(3)
    assert story.got() == ["spawn:1", "close:1"]


@in_virtual_loop
async def test_stop_while_a_spawn_runs_that_nobody_can_tell_about_closes_after_it_was_offered_again(
    story: Story,
) -> None:
    story.runner.script = {f"{REF}/spawn:1": [None]}
    story.source.add(1)
    await story.poll()
    await story.write(STOP)
    story.runner.finish(f"{REF}/spawn:1", UNKNOWN)
    await story.poll(3)

    assert story.got() == ["spawn:1", "spawn:1", "close:1"]
    assert [payload["redelivery"] for payload in story.runner.got] == [False, True, False]


@in_virtual_loop
async def test_streams_that_share_numbers_both_arrive(story: Story) -> None:
    story.source.add(1)
    await story.poll()
    kinds = (Kind.COMMENT, Kind.REVIEW, Kind.REVIEW_COMMENT)
    story.source.write(REF, *(make.entry(9001, kind=kind) for kind in kinds))
    await story.poll(3)

    assert sorted(story.got()[1:]) == ["comment:9001", "review:9001", "review_comment:9001"]


@in_virtual_loop
async def test_deleted_comment_runs_nothing_again(story: Story) -> None:
    story.source.add(1)
    await story.poll()
    await story.write("one", "two")
    story.source.items[REF].entries.clear()
    await story.poll(3)
    story.source.write(REF, make.entry(1), make.entry(2), make.entry(3))
    await story.poll(3)

    assert story.got() == ["spawn:1", "comment:1", "comment:2", "comment:3"]


@in_virtual_loop
async def test_comment_that_was_deleted_after_it_was_accepted_is_delivered_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    story = Story(tmp_path, monkeypatch, killed=False)
    story.runner.script = {f"{REF}/comment:1": [None]}
    story.source.add(1)
    await story.poll()
    await story.write("one", "two")
    del story.source.items[REF].entries[1]
    await story.poll()
    story.runner.finish(f"{REF}/comment:1")
    await story.poll()

    assert story.got() == ["spawn:1", "comment:1", "comment:2"]
    assert story.runner.got[2]["body"] == "two"


@in_virtual_loop
async def test_first_sight_of_an_old_item_is_one_delivery_with_all_of_its_thread(story: Story) -> None:
    story.source.add(1, *comments(*range(1, 41)))
    await story.poll(3)

    assert story.got() == ["spawn:1"]
    assert len(story.runner.got[0]["thread"]) == 40


@in_virtual_loop
async def test_thread_of_thousands_is_delivered_once_and_never_forgotten(story: Story) -> None:
    story.source.add(1, *comments(*range(1, 3001)))
    await story.poll(2)
    await story.write(*range(20))
    story.root.cursor("fake").unlink()
    await story.poll(4)

    assert story.got() == ["spawn:1", *(f"comment:{number}" for number in range(3001, 3021))]
    assert story.root.ledger(REF).stat().st_size < 200_000


@in_virtual_loop
async def test_restarts_deliver_nothing_of_what_was_delivered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixty items with three comments each; five starts, the last two without anything of this machine."""
    story = Story(tmp_path, monkeypatch, killed=True)
    for number in range(1, 61):
        story.source.add(number)
    await story.poll(2)
    for number in range(1, 61):
        story.source.write(f"fake:{number}", *comments(1, 2, 3))
    await story.poll()
    assert len(story.runner.got) == 240

    for number in range(5):
        if number >= 3:
            story.root.cursor("fake").unlink()
        await story.poll()

    assert len(story.runner.got) == 240
