"""A poller on a bot, seen from outside: its long poll holds nothing up."""

from __future__ import annotations

import hashlib
import secrets
import shutil
import time
from functools import partial
from typing import TYPE_CHECKING

import pytest

from support.poller import Box
from support.telegram.fake import ALICE, FakeTelegram, TelegramServer
from the_loop.sources.telegram.claim import claims_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow

REF = f"telegram:bot/{ALICE}"


@pytest.fixture
def telegram() -> Iterator[FakeTelegram]:
    fake = FakeTelegram(time.time, token=f"{secrets.randbelow(10**9)}:{secrets.token_hex()}")
    with TelegramServer(fake):
        yield fake
    shutil.rmtree(claims_folder() / hashlib.sha256(fake.token.encode()).hexdigest()[:32], ignore_errors=True)


def watch(box: Box, telegram: FakeTelegram, **more: object) -> None:
    box.environ["TELEGRAM_BOT_TOKEN"] = telegram.token
    bot = {"provider": "telegram", "name": "bot", "apiUrl": telegram.base_url, **more}
    box.configure(sources=[bot], routing={"authorizedUsers": [str(ALICE)]})


def waits(box: Box, telegram: FakeTelegram) -> None:
    """Return once a request waits for news."""
    box.wait(lambda: telegram.in_flight == 1 and telegram.waiting == [] and len(telegram.asked()) >= 1, "a long poll")


def has_cycles(box: Box, count: int) -> bool:
    return len(box.events("poll.cycle")) >= count


def test_stop_when_a_long_poll_waits_then_ends_it_at_once(box: Box, telegram: FakeTelegram) -> None:
    watch(box, telegram)
    poller = box.start()
    waits(box, telegram)
    began = time.monotonic()

    assert poller.stop() == 0

    assert time.monotonic() - began < 2
    box.wait(lambda: telegram.in_flight == 0, "the end of the request")
    assert telegram.conflicts == 0


def test_message_when_a_long_poll_waits_then_arrives_at_once(box: Box, telegram: FakeTelegram) -> None:
    watch(box, telegram)
    box.start()
    waits(box, telegram)
    began = time.monotonic()
    telegram.say(ALICE, "please")
    box.wait(box.sink.ids, "the message")

    assert time.monotonic() - began < 10
    assert telegram.asked()[0]["timeout"] == 0, "the first one is a probe"
    assert all(one["allowed_updates"] for one in telegram.asked())


def test_wake_when_a_long_poll_waits_then_asks_nothing_twice(box: Box, telegram: FakeTelegram) -> None:
    watch(box, telegram)
    box.start()
    waits(box, telegram)
    asked = len(telegram.asked())
    for number in range(1, 4):
        assert box.run("poll", "wake").code == 0
        box.wait(partial(has_cycles, box, number), "a cycle that was woken")

    assert (len(telegram.asked()), telegram.in_flight, telegram.most_in_flight) == (asked, 1, 1)


def test_spawn_when_rejected_then_is_offered_again_while_a_long_poll_waits(box: Box, telegram: FakeTelegram) -> None:
    box.sink.behave(("*/spawn:1", {"fail": 1}))
    watch(box, telegram)
    box.start()
    waits(box, telegram)
    telegram.say(ALICE, "please")
    began = time.monotonic()

    box.wait(lambda: [one.attempt for one in box.sink.got()] == [1, 2], "the second attempt", 20)

    assert time.monotonic() - began < 20
    assert telegram.most_in_flight == 1


def test_once_when_there_is_no_news_then_does_not_wait(box: Box, telegram: FakeTelegram) -> None:
    watch(box, telegram)
    began = time.monotonic()
    assert box.once().code == 0
    telegram.say(ALICE, "please")
    assert box.once().code == 0
    assert box.once().code == 0

    assert time.monotonic() - began < 30
    assert {one["timeout"] for one in telegram.asked()} == {0}
    box.assert_once({REF: ["spawn:1"]})


def test_once_when_another_poller_has_the_bot_then_is_no_error(box: Box, telegram: FakeTelegram) -> None:
    watch(box, telegram)
    box.start()
    waits(box, telegram)
    with Box(box.folder / "another") as other:
        watch(other, telegram)
        assert other.once().code == 0

    assert (telegram.conflicts, telegram.most_in_flight) == (0, 1)


def test_reload_when_the_source_changes_or_goes_then_its_claim_is_given_up(box: Box, telegram: FakeTelegram) -> None:
    watch(box, telegram)
    poller = box.start()
    waits(box, telegram)
    watch(box, telegram, authorizedUsers=[str(ALICE), "5"])
    poller.signal(1)
    box.wait(lambda: len(box.events("claim.taken")) == 2, "the claim, taken again")
    telegram.say(ALICE, "please")
    box.wait(box.sink.ids, "the message")
    box.configure()
    poller.signal(1)
    box.wait(lambda: len(box.events("config.reloaded")) == 2, "a configuration without the bot")
    with Box(box.folder / "another") as other:
        watch(other, telegram)
        other.start()
        other.wait(lambda: other.events("claim.taken"), "the claim, by another poller")

    assert telegram.conflicts == 0
