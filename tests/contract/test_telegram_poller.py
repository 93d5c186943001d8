"""A poller on a Telegram bot: what arrives, whatever cuts it off."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.fuse import Crash, Fuse
from support.github.faults import reply
from support.telegram.fake import ALICE, BOB, FORUM, GROUP, QUIET_S, conflict, throttled
from support.telegram.world import TelegramWorld, claims_in, telegram_scene
from support.world import in_real_loop

DAY_S = 86_400.0


def files(folder: Path, pattern: str) -> list[Path]:
    return list(folder.rglob(pattern))


@pytest.fixture(autouse=True)
def claims(tmp_path: Path) -> Iterator[None]:
    with claims_in(tmp_path):
        yield


@in_real_loop
async def test_first_message_starts_the_chat_and_the_next_ones_are_comments(tmp_path: Path) -> None:
    world = telegram_scene(tmp_path)
    world.telegram.say(ALICE, "please")
    await world.cycle()
    world.telegram.say(ALICE, "and this")
    world.telegram.say(ALICE, "and that")
    await world.cycle()

    spawn, *_ = world.received
    assert (spawn["title"], spawn["body"], spawn["author"], spawn["thread"]) == ("Alice", "please", "1001", [])
    assert world.arrived() == {"1001": ["spawn:1", "comment:2", "comment:3"]}
    assert world.texts(ALICE) == ["please", "and this", "and that"]


@in_real_loop
async def test_messages_while_stopped_arrive_in_order(tmp_path: Path) -> None:
    world = telegram_scene(tmp_path)
    world.telegram.say(ALICE, "please")
    await world.cycle()
    await world.stop()
    for text in ("a", "b", "c"):
        world.telegram.say(ALICE, text)
    world = world.restart()
    await world.cycle(times=2)

    assert world.texts(ALICE) == ["please", "a", "b", "c"]
    assert (world.telegram.waiting, world.inbox()) == ([], [])


@in_real_loop
async def test_unauthorised_people_start_nothing_and_are_told_once(tmp_path: Path) -> None:
    world = telegram_scene(tmp_path)
    for text in ("spam", "spam", "spam"):
        world.telegram.say(BOB, text)
        await world.cycle()
    world = world.restart()
    world.telegram.say(BOB, "spam")
    world.telegram.say(GROUP, "hello", by=BOB)
    world.telegram.say(GROUP, "do it", by=ALICE)
    world.telegram.say(GROUP, "no, that", by=BOB)
    world.telegram.say(GROUP, "anonymous", sender_chat={"id": GROUP, "type": "group"})
    await world.cycle(times=2)

    assert world.arrived() == {str(GROUP): ["spawn:1"]}
    assert [payload["omitted"] for payload in world.received] == [2]
    dropped = [note.fields for note in world.told("dispatch.dropped")]
    assert [(one["ref"], one["reason"]) for one in dropped] == [(f"telegram:bot/{GROUP}", "unauthorized")]
    assert "no, that" not in "".join(path.read_text() for path in files(tmp_path, "chats/*.json"))


@in_real_loop
async def test_words_start_nothing_and_are_obeyed(tmp_path: Path) -> None:
    world = telegram_scene(tmp_path)
    world.telegram.say(ALICE, "/start")
    await world.cycle()
    assert (world.received, files(tmp_path, "chats/*.json")) == ([], [])
    world.telegram.say(GROUP, "work", by=ALICE)
    await world.cycle()
    for text in ("/pause", "waits", "/stop@another_bot", "```", "/RESUME@Loop_Bot"):
        world.telegram.say(GROUP, text, by=ALICE)
        await world.cycle()
    assert world.texts(GROUP) == ["work", "waits", "/stop@another_bot", "```"]
    quoted = [{"type": "code", "offset": 0, "length": 5}]
    world.telegram.say(GROUP, "/stop", by=ALICE, entities=quoted)
    world.telegram.say(GROUP, "/stop", by=ALICE, forward_origin={"type": "user"})
    await world.cycle()
    assert world.texts(GROUP)[4:] == ["`/stop`", "> /stop"]
    world.telegram.say(GROUP, "/stop@loop_bot", by=ALICE)
    await world.cycle()
    assert world.arrived()[str(GROUP)][-1] == "close:1"
    world.telegram.say(GROUP, "/start", by=ALICE)
    await world.cycle()
    assert world.received[-1]["deliveryId"].endswith("spawn:2")


@in_real_loop
async def test_edit_is_told_and_not_delivered(tmp_path: Path) -> None:
    world = telegram_scene(tmp_path)
    world.telegram.say(ALICE, "please")
    number = world.telegram.say(ALICE, "one")
    await world.cycle()
    world.telegram.edit(ALICE, number, "two")
    world.telegram.edit(BOB, world.telegram.say(BOB, "x"), "y")
    await world.cycle(times=2)

    assert world.texts(ALICE) == ["please", "one"]
    assert [note.fields["key"] for note in world.told("poll.edited")] == [f"comment:{number}"]


@in_real_loop
async def test_files_replies_and_captions_are_text(tmp_path: Path) -> None:
    world = telegram_scene(tmp_path)
    first = world.telegram.say(ALICE, caption="look", photo=[{"file_id": "S"}, {"file_id": "L", "file_size": 9}])
    world.telegram.say(
        ALICE, "yes", reply_to_message={"message_id": first, "text": "?"}, quote={"text": "a\nb", "position": 0}
    )
    world.telegram.say(ALICE, document={"file_id": "D", "file_name": "plan\n/stop", "file_size": 5})
    world.telegram.service(ALICE, pinned_message={"message_id": first})
    await world.cycle()

    assert world.texts(ALICE) == [
        "look\n\n[photo, 9 bytes, file_id L]",
        "> a\n> b\n\nyes",
        "[document, plan\\x0a/stop, 5 bytes, file_id D]",
    ]
    reply, file = world.received[0]["thread"]
    assert reply["replyTo"] == first
    assert (file["fileType"], file["fileId"], file["fileName"], file["fileSize"]) == (
        "document",
        "D",
        "plan\\x0a/stop",
        5,
    )


@in_real_loop
async def test_topics_are_items_and_leaving_ends_all_of_them(tmp_path: Path) -> None:
    world = telegram_scene(tmp_path)
    topic = world.telegram.add_topic(FORUM, "Bugs")
    place = {"message_thread_id": topic, "is_topic_message": True}
    created = {"message_id": topic, "forum_topic_created": {"name": "Bugs"}}
    world.telegram.say(FORUM, "in the topic", reply_to_message=created, **place)
    world.telegram.say(FORUM, "in general")
    await world.cycle()
    assert {payload["title"] for payload in world.received} == {"The forum", "The forum: Bugs"}
    world.telegram.say(FORUM, "last words", **place)
    world.telegram.set_member(FORUM, "left")
    await world.cycle(times=2)
    assert world.arrived() == {
        f"{FORUM}/{topic}": ["spawn:1", "comment:4", "close:1"],
        str(FORUM): ["spawn:1", "close:1"],
    }
    assert {payload.get("reason") for payload in world.received if "close" in payload["deliveryId"]} == {"removed"}
    world.telegram.say(FORUM, "/start", **place)
    await world.cycle()
    assert len(world.received) == 5
    world.telegram.say(FORUM, "again", **place)
    await world.cycle(times=2)
    assert world.received[-1]["deliveryId"] == f"telegram:bot/{FORUM}/{topic}/spawn:2"


@pytest.mark.parametrize("new_first", [False, True])
@in_real_loop
async def test_group_that_becomes_a_supergroup_stays_the_same_item(tmp_path: Path, new_first: bool) -> None:
    world = telegram_scene(tmp_path)
    world.telegram.say(GROUP, "please")
    world.telegram.say(GROUP, "first")
    await world.cycle()
    to = world.telegram.migrate(GROUP, new_first=new_first)
    second = world.telegram.say(to, "second")  # its number is one that the group had
    await world.cycle()
    world = world.restart()
    third = world.telegram.say(to, "third")
    await world.cycle(times=2)

    assert second == 2
    assert world.arrived() == {str(GROUP): ["spawn:1", "comment:2", f"comment:{to}.{second}", f"comment:{to}.{third}"]}
    assert world.texts(GROUP) == ["please", "first", "second", "third"]


@in_real_loop
async def test_ids_that_begin_anew_after_a_quiet_week_lose_nothing(tmp_path: Path) -> None:
    """In this life, and in the next one, whose cursor is of before."""
    world = telegram_scene(tmp_path, interval_s=3600)
    world.telegram.say(ALICE, "please")
    await world.cycle(times=2)
    for text in ("after a week", "after another one"):
        await world.cycle(times=int(QUIET_S / 3600) + 2)
        world.telegram.say(ALICE, text)
        await world.cycle(times=2)
    world.clock.run(QUIET_S)
    world.telegram.say(ALICE, "after an outage")
    world = world.restart()
    await world.cycle(times=2)

    assert world.texts(ALICE) == ["please", "after a week", "after another one", "after an outage"]
    assert [note.fields["reason"] for note in world.told("source.gap")] == [
        "not polled for 7 d; Telegram keeps messages for 24 h, older ones are lost"
    ]


@in_real_loop
async def test_limits_and_conflicts_are_waited_for(tmp_path: Path) -> None:
    world = telegram_scene(tmp_path)
    world.telegram.say(ALICE, "please")
    world.telegram.fail("getUpdates", throttled(100))
    await world.cycle()
    assert (world.state, len(world.telegram.log)) == ("waiting", 2)
    world = world.restart()
    await world.cycle()
    assert len(world.telegram.log) == 2, "not before the moment that was named, in the next life either"
    world.telegram.fail("getUpdates", conflict())
    await world.cycle()
    assert "another program polls this bot" in world.watched.error
    await world.cycle(times=3)

    assert (world.state, world.arrived()) == ("ok", {"1001": ["spawn:1"]})


@in_real_loop
async def test_token_is_in_no_error_event_or_file(tmp_path: Path) -> None:
    world = telegram_scene(tmp_path)
    world.telegram.say(ALICE, "please")
    said = []
    world.telegram.base_url = "http://elsewhere"  # then nothing is found at its address
    await world.cycle()
    said.append(world.watched.error)
    world.telegram.base_url = "https://api.telegram.org"
    await world.cycle(times=3)
    world.telegram.token += "x"
    await world.cycle(times=3)
    said.append(world.watched.error)

    assert "ConnectError" in said[0]
    assert "rejected (401)" in said[1]
    secret = "a-Secret_token"
    assert secret not in f"{said} {world.notes}"
    assert not [path for path in files(tmp_path, "*.json*") if secret in path.read_text()]


@in_real_loop
async def test_malformed_updates_are_named_and_the_others_arrive(tmp_path: Path) -> None:
    world = telegram_scene(tmp_path)
    chat = {"id": ALICE, "type": "private", "first_name": "Alice"}
    for message in (5, {}, {"chat": 5}, {"chat": {"id": True}, "text": "x"}, {"chat": chat, "text": "x", "date": "y"}):
        world.telegram.add_raw({"message": message})
    world.telegram.add_raw({"message": {"chat": chat, "text": {"a": 1}, "date": 5, "message_id": 5, "entities": 7}})
    world.telegram.add_raw({"poll": []})
    world.telegram.add_raw({"update_id": None, "message": {}})
    world.telegram.say(ALICE, "good", entities=[{"type": "code", "offset": -1, "length": 10**9}, 5])
    await world.cycle()
    assert "is left out: its message is not an object" in world.watched.error
    assert "1 updates without an id are left out" in world.watched.error
    await world.cycle(times=2)

    assert (world.state, world.texts(ALICE), world.telegram.waiting) == ("ok", ["good"], [])


@in_real_loop
async def test_answer_that_is_nested_without_end_is_a_failure_of_the_server(tmp_path: Path) -> None:
    world = telegram_scene(tmp_path)
    for depth in (300, 900, 5000, 100_000):
        nested = b'{"ok": true, "result": [{"update_id": 1, "message": ' + b"[" * depth + b"]" * depth + b"}]}"
        world.telegram.fail("getUpdates", reply(200, nested))
        await world.cycle()
        assert not [note for note in world.notes if "unexpected" in str(note.fields)]
        world.clock.run(600)
    world.telegram.say(ALICE, "please")
    await world.cycle(times=3)

    assert world.texts(ALICE) == ["please"]


@in_real_loop
async def test_transcript_that_is_lost_swallows_nothing(tmp_path: Path) -> None:
    world = telegram_scene(tmp_path)
    world.telegram.say(ALICE, "please")
    await world.cycle(times=2)
    for path in files(tmp_path, "chats/*.json"):
        path.unlink()
    for text in ("first", "second"):
        world.telegram.say(ALICE, text)
    await world.cycle()
    world = world.restart()
    world.telegram.say(ALICE, "third")
    await world.cycle(times=2)

    assert world.texts(ALICE) == ["please", "first", "second", "third"]


@in_real_loop
async def test_transcript_over_its_size_is_cut_and_the_rest_counted(tmp_path: Path) -> None:
    world = telegram_scene(tmp_path, section={}, require_start=True)
    world.telegram.say(ALICE, "please")
    text = "x" * (900 << 10)
    for number in range(8):
        world.telegram.say(ALICE, f"{number}{text}")
    await world.cycle()
    world.telegram.say(ALICE, "/start")
    await world.cycle(times=2)

    (spawn,) = world.received
    assert (spawn["body"], spawn["omitted"], len(spawn["thread"])) == ("please", 4, 4)
    [path] = files(tmp_path, "chats/*.json")
    assert path.stat().st_size < 4 << 20
    assert path.stat().st_mode & 0o777 == 0o600


# --- cut off anywhere ---


def story() -> list[Callable[[TelegramWorld], Any]]:
    """What happens, cycle by cycle: two chats, a stranger, an edit, a migration, an end, a batch over the limit."""
    return [
        lambda w: (w.telegram.say(ALICE, "please"), w.telegram.say(GROUP, "work"), w.telegram.say(BOB, "spam")),
        lambda w: (w.telegram.say(ALICE, "one"), w.telegram.say(ALICE, "two"), w.telegram.say(GROUP, "x", by=BOB)),
        lambda w: (w.telegram.edit(ALICE, 2, "one!"), w.telegram.migrate(GROUP), w.telegram.say(-1001000000077, "new")),
        lambda w: (w.telegram.say(ALICE, "last"), w.telegram.set_member(ALICE, "kicked")),
        lambda w: (w.telegram.say(ALICE, "back"), w.telegram.say(-1001000000077, "/stop")),
        lambda _: None,
        lambda _: None,
    ]


async def play(folder: Path, at: int | None) -> TelegramWorld:
    """The story, with a crash before step `at` and the next life at once."""
    with claims_in(folder):
        world = telegram_scene(folder, fuse=Fuse(at))
        for happen in story():
            happen(world)
            try:
                await world.cycle()
            except Crash:
                world = world.restart()
                await world.cycle()
        world.release()
    return world


def test_kill_sweep(tmp_path: Path) -> None:
    """SIGKILL before each request, file change and hand-over: the same arrives, once, in the same order."""

    @in_real_loop
    async def sweep() -> None:
        whole = await play(tmp_path / "whole", None)
        expected, steps = whole.arrived(), len(whole.fuse.steps)
        thread = ["comment:2", "comment:3", "comment:4"]
        assert expected == {
            "1001": ["spawn:1", *thread, "close:1", "spawn:2", *thread, "comment:5"],
            "-42": ["spawn:1", "comment:-1001000000077.2", "close:1"],
        }
        assert steps > 80
        for at in range(1, steps + 1):
            cut = await play(tmp_path / f"at {at}", at)
            assert cut.arrived() == expected, f"cut off before step {at}: {whole.fuse.log[at - 1]}"
            assert cut.telegram.waiting == [], at
            assert cut.inbox() == [], at

    sweep()
