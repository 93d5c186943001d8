"""The Telegram fake plays by Telegram's rules."""

from __future__ import annotations

import asyncio
import http.client
import json
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import pytest

from support.clock import Clock
from support.telegram.fake import ALICE, FORUM, GROUP, KEPT_S, QUIET_S, FakeTelegram, TelegramServer, throttled

WITHIN_S = 10.0


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def telegram(clock: Clock) -> FakeTelegram:
    return FakeTelegram(clock)


@pytest.fixture
def server(telegram: FakeTelegram) -> Iterator[TelegramServer]:
    with TelegramServer(telegram) as server:
        yield server


def ask(telegram: FakeTelegram, method: str = "getUpdates", **parameters: Any) -> Any:
    """What is answered at once."""
    target = f"/bot{telegram.token}/{method}"
    return json.loads(telegram.handle("POST", target, {}, json.dumps(parameters).encode()).body)


def texts(answer: Any) -> list[str]:
    return [update["message"].get("text", "") for update in answer["result"]]


def send(server: TelegramServer, telegram: FakeTelegram, **parameters: Any) -> Any:
    connection = http.client.HTTPConnection("127.0.0.1", urlsplit(server.url).port or 0, timeout=WITHIN_S)
    connection.request("POST", f"/bot{telegram.token}/getUpdates", json.dumps(parameters))
    try:
        return json.loads(connection.getresponse().read())
    finally:
        connection.close()


def in_flight(telegram: FakeTelegram, number: int) -> None:
    until = time.monotonic() + WITHIN_S
    while telegram.in_flight != number:
        assert time.monotonic() < until
        time.sleep(0.005)


def test_update_when_a_higher_offset_was_asked_for_is_gone(telegram: FakeTelegram) -> None:
    telegram.say(ALICE, "one")
    telegram.say(ALICE, "two")
    first = ask(telegram)

    assert texts(first) == texts(ask(telegram)) == ["one", "two"]
    assert texts(ask(telegram, offset=first["result"][0]["update_id"] + 1)) == ["two"]
    assert texts(ask(telegram)) == ["two"]


def test_update_when_a_day_old_is_gone(telegram: FakeTelegram, clock: Clock) -> None:
    telegram.say(ALICE, "old")
    clock.run(KEPT_S)
    telegram.say(ALICE, "new")

    assert texts(ask(telegram)) == ["new"]


def test_next_id_when_a_week_was_quiet_is_lower_and_a_stale_offset_loses_it(
    telegram: FakeTelegram, clock: Clock
) -> None:
    telegram.say(ALICE, "one")
    stale = ask(telegram)["result"][0]["update_id"] + 1
    clock.run(QUIET_S)
    telegram.say(ALICE, "two")

    assert ask(telegram)["result"][0]["update_id"] < stale
    assert ask(telegram, offset=stale)["result"] == []
    assert telegram.waiting == []


def test_kinds_that_were_not_allowed_are_not_kept(telegram: FakeTelegram) -> None:
    ask(telegram, allowed_updates=["edited_message"])
    number = telegram.say(ALICE, "no")
    telegram.edit(ALICE, number, "yes")

    assert [set(update) - {"update_id"} for update in ask(telegram)["result"]] == [{"edited_message"}]


def test_errors_have_their_form(telegram: FakeTelegram) -> None:
    telegram.fail("getUpdates", throttled(7))
    assert ask(telegram)["parameters"] == {"retry_after": 7}
    telegram.webhook = "https://elsewhere"
    assert ask(telegram)["error_code"] == 409
    ask(telegram, "deleteWebhook")
    assert ask(telegram) == {"ok": True, "result": []}
    assert ask(telegram, "getMe")["result"]["username"] == telegram.username
    assert telegram.handle("POST", "/botwrong/getMe", {}).status == 401


def test_world_has_topics_members_and_migrations(telegram: FakeTelegram) -> None:
    topic = telegram.add_topic(FORUM, "Bugs")
    telegram.say(FORUM, "in it", message_thread_id=topic, is_topic_message=True)
    telegram.set_member(GROUP, "kicked")
    to = telegram.migrate(GROUP)

    created, said, left, old, new = ask(telegram)["result"]
    assert created["message"]["message_thread_id"] == said["message"]["message_thread_id"] == topic
    assert left["my_chat_member"]["new_chat_member"]["status"] == "kicked"
    assert (old["message"]["migrate_to_chat_id"], new["message"]["migrate_from_chat_id"]) == (to, GROUP)


def test_long_poll_ends_with_news_and_the_older_of_two_gets_a_conflict(
    server: TelegramServer, telegram: FakeTelegram
) -> None:
    with ThreadPoolExecutor(2) as pool:
        older: Future[Any] = pool.submit(send, server, telegram, timeout=50)
        in_flight(telegram, 1)
        newer: Future[Any] = pool.submit(send, server, telegram, timeout=50)
        assert older.result(WITHIN_S)["error_code"] == 409
        telegram.say(ALICE, "news")
        assert texts(newer.result(WITHIN_S)) == ["news"]

    assert (telegram.conflicts, telegram.most_in_flight, telegram.in_flight) == (1, 2, 0)


def test_long_poll_when_its_client_is_gone_is_over(server: TelegramServer, telegram: FakeTelegram) -> None:
    async def leave() -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", urlsplit(server.url).port)
        body = json.dumps({"timeout": 50}).encode()
        writer.write(
            f"POST /bot{telegram.token}/getUpdates HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
        )
        await writer.drain()
        await asyncio.to_thread(in_flight, telegram, 1)
        writer.close()
        await asyncio.to_thread(in_flight, telegram, 0)

    asyncio.run(leave())
    assert send(server, telegram) == {"ok": True, "result": []}
    assert (telegram.conflicts, telegram.most_in_flight) == (0, 1)
