"""A first configuration file: it is valid, and says exactly what was decided, whatever characters that has."""

from __future__ import annotations

import itertools
import os
import pwd
from typing import Any, cast

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from the_loop.config import Config, Polling, Routing, Session
from the_loop.config_draft import Draft, scalar
from the_loop.config_file import parse
from the_loop.plugins import RUNNERS
from the_loop.sources.directory_provider import DirectorySection
from the_loop.sources.github.section import GithubSection

ME = pwd.getpwuid(os.geteuid()).pw_name
HOSTILE = [
    "a: b",
    "# no comment",
    "null",
    "yes",
    "~",
    "- x",
    "{text}",
    "[a]",
    "a, b]",
    "'\"\\",
    "line\nother: line",
    "*alias",
    "!!python/object:os.system",
    "%TAG",
    "\u2028\x85",
    "é 門 😀",
    "{interval}",
    " blanks ",
    "0x10",
    "x" * 300,
    "\x1b[2J",
]


def read(draft: Draft) -> Config:
    return parse(draft.text.encode("utf-8"), "a draft", is_for_here=True)


@pytest.mark.parametrize(
    ("api_url", "token_file", "runner"),
    [*itertools.product(["", "https://ghe.example/api/v3"], ["", "~/a token"], ["exec", "tmux", "print"])],
)
def test_draft_when_it_is_of_github_is_what_was_decided_and_defaults(
    api_url: str, token_file: str, runner: str
) -> None:
    command = () if runner == "print" else ("my-agent", "--print")
    draft = Draft(
        provider="github",
        users=("octocat", "hubot#17"),
        runner=runner,
        command=command,
        repos=("octo/repo", "octo/other"),
        label="to do",
        api_url=api_url,
        token_file=token_file,
    )

    source = GithubSection(
        provider="github",
        repos=("octo/repo", "octo/other"),
        label="to do",
        api_url=api_url or "https://api.github.com",
        token_file=token_file or None,
    )
    assert read(draft) == Config(
        polling=Polling(sources=(source,)),
        routing=Routing(authorized_users=("octocat", "hubot#17")),
        session=session(runner, command),
    )
    assert draft.faults() == []


@pytest.mark.parametrize("runner", ["exec", "tmux", "print"])
def test_draft_when_it_is_of_a_directory_is_what_was_decided_and_defaults(runner: str) -> None:
    draft = Draft(provider="directory", users=(ME,), runner=runner, command=("cat",), path="~/in box")

    assert read(draft) == Config(
        polling=Polling(sources=(DirectorySection(provider="directory", path="~/in box"),)),
        routing=Routing(authorized_users=(ME,)),
        session=session(runner, () if runner == "print" else ("cat",)),
    )


def session(runner: str, command: tuple[str, ...]) -> Session:
    kind: Any = RUNNERS.get(runner).Section
    return cast("Session", kind(runner=runner, command=command))


@pytest.mark.parametrize("value", HOSTILE)
def test_draft_when_values_are_hostile_has_them_as_they_are(value: str) -> None:
    draft = Draft(provider="directory", users=(ME,), command=(value, value), path=value)
    tree: Any = yaml.safe_load(draft.text)

    assert tree["polling"]["sources"] == [{"provider": "directory", "path": value}]
    assert tree["session"] == {"runner": "exec", "command": [value, value], "input": "json"}
    assert set(tree) == {"polling", "routing", "session"}


@given(st.text() | st.lists(st.text()))
def test_scalar_when_it_is_read_again_is_the_same_on_one_line(value: str | list[str]) -> None:
    written = scalar(value)

    assert yaml.safe_load(f"a:\n  - b: {written}\n    c: 1\n") == {"a": [{"b": value, "c": 1}]}
    assert len(written.splitlines()) == 1


@pytest.mark.parametrize(
    ("field", "value", "place"),
    [
        ("repos", ("octo",), "polling.sources[0].repos"),
        ("label", "a,b", "polling.sources[0].label"),
        ("api_url", "ftp://x", "polling.sources[0].apiUrl"),
        ("users", ("@octocat",), "routing.authorizedUsers"),
        ("command", (), "session.command"),
        ("command", ("a", "\udc80"), "session.command"),
    ],
)
def test_draft_when_a_value_is_wrong_names_its_key(field: str, value: Any, place: str) -> None:
    good = {"provider": "github", "users": ("octocat",), "command": ("cat",), "repos": ("octo/repo",), "label": "auto"}

    (fault,) = Draft(**{**good, field: value}).faults()

    assert fault.path.startswith(place)
