"""What `the-loop doctor` says of a bot."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.telegram.fake import FakeTelegram, TelegramServer
from support.telegram.world import claims_in
from the_loop.findings import Site, State
from the_loop.lock import RunLock
from the_loop.sources.telegram.claim import CLAIM, claim_of
from the_loop.sources.telegram.provider import examine
from the_loop.sources.telegram.section import TelegramSection


@pytest.fixture
def telegram(tmp_path: Path) -> Iterator[FakeTelegram]:
    telegram = FakeTelegram(time.time)
    with claims_in(tmp_path), TelegramServer(telegram):
        yield telegram


def found(telegram: FakeTelegram, folder: Path, *, token: str = "", **fields: Any) -> dict[str, tuple[State, str]]:
    section = TelegramSection(provider="telegram", api_url=telegram.base_url, **fields)
    environ = {"TELEGRAM_BOT_TOKEN": token or telegram.token}
    site = Site(root=folder, environ=environ, shell={}, user="alice", limit_s=5.0)
    return {one.name: (one.state, one.detail) for one in examine(section, site)}


def test_bot_that_is_right_is_named_and_its_updates_are_left_alone(telegram: FakeTelegram, tmp_path: Path) -> None:
    telegram.say(5, "waits")

    said = found(telegram, tmp_path)

    assert said["token"] == (State.OK, f"of the bot @loop_bot, {telegram.bot_id}")
    assert said["claim"] == (State.OK, f"'{claim_of(telegram.token)}' is free")
    assert set(said) == {"token", "claim"}
    assert (telegram.asked(), len(telegram.waiting)) == ([], 1)


def test_what_is_wrong_is_said(telegram: FakeTelegram, tmp_path: Path) -> None:
    assert found(telegram, tmp_path, token="1:wrong")["token"][0] is State.FAIL
    telegram.webhook, telegram.sees_groups = "https://elsewhere", False
    (tmp_path / "token").write_text(telegram.token)
    (tmp_path / "token").chmod(0o644)
    folder = claim_of(telegram.token)
    folder.mkdir(parents=True)
    lock = RunLock.attempt(folder, CLAIM)

    said = found(telegram, tmp_path, token_file=str(tmp_path / "token"))

    lock.close()
    assert {name: state for name, (state, _) in said.items()} == {
        "token": State.OK,
        "token file": State.WARN,
        "webhook": State.FAIL,
        "groups": State.WARN,
        "claim": State.OK,
    }
    assert f"is held by {lock.identity}" in said["claim"][1]
    assert telegram.token not in str(said)


def test_api_that_does_not_answer_is_unknown(telegram: FakeTelegram, tmp_path: Path) -> None:
    telegram.base_url = "http://127.0.0.1:9"

    assert found(telegram, tmp_path)["token"][0] is State.UNKNOWN
