"""What may be in a section of the provider `telegram`."""

from __future__ import annotations

from typing import Any

import pytest

from support.configs import config_of, faults_of, tree
from the_loop.config import SourceSection
from the_loop.sources.telegram.section import TelegramSection

BOT = {"provider": "telegram", "name": "bot", "authorizedUsers": ["123456789"]}


def section(**fields: Any) -> SourceSection:
    return config_of(tree({**BOT, **fields})).polling.sources[0]


def test_section_has_its_defaults() -> None:
    bot = section()

    assert isinstance(bot, TelegramSection)
    assert (bot.api_url, bot.interval_seconds, bot.default_name()) == ("https://api.telegram.org", 1, "telegram")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("alice", "is not a numeric user id"),
        ("@alice", "is not a numeric user id"),
        ("-100123", "is not a numeric user id"),
        ("01", "is not a numeric user id"),
        ("1087968824", "every anonymous administrator"),
        ("777000", "Telegram itself"),
    ],
)
def test_names_that_no_person_can_have_are_faults(name: str, said: str) -> None:
    faults = faults_of(tree({**BOT, "authorizedUsers": [name]}))

    (problem,) = faults.values()
    assert said in problem


def test_shared_list_names_the_provider() -> None:
    inbox = {"provider": "directory", "path": "inbox", "authorizedUsers": ["root"]}
    bot = {key: value for key, value in BOT.items() if key != "authorizedUsers"}
    config = config_of(tree(bot, inbox, routing={"authorizedUsers": ["telegram:123456789"]}))

    assert len(config.polling.sources) == 2


def test_token_comes_from_one_place_and_a_bot_has_one_source() -> None:
    both = faults_of(tree({**BOT, "tokenFile": "/a", "credential": "b"}))
    assert "a token comes from exactly one place" in both["polling.sources[0].tokenFile"]

    twice = faults_of(tree({**BOT, "tokenFile": "/a"}, {**BOT, "name": "again", "tokenFile": "/a"}))
    assert "polling.sources[0] has the same token" in twice["polling.sources[1].tokenFile"]
