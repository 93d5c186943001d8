"""A token that is not as it should be: blanks around it are no matter, anything else is said, and never shown."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from support.clock import Clock
from support.github.fake import FakeGitHub
from support.http_server import FakeServer
from support.world import REPO, in_real_loop
from the_loop.sources.base import SourceError
from the_loop.sources.github.client import Client
from the_loop.sources.github.provider import github_token
from the_loop.sources.github.section import GithubSection

SECTION = GithubSection(provider="github", repos=(REPO,), label="auto")
UNUSABLE = ["hush\0hush", "hush\nhush", "hush\r\nX-Evil: 1", "h\xfcsh-hush", "hush\ud800", "\u2028hush"]


@pytest.fixture
def github() -> Iterator[FakeGitHub]:
    github = FakeGitHub(Clock())
    github.add_repo(REPO)
    with FakeServer(github):
        yield github


@pytest.mark.parametrize("token", ["hush\n", "hush ", " hush\r\n", "\thush"])
@in_real_loop
async def test_token_when_it_has_blanks_around_it_then_is_sent_without(github: FakeGitHub, token: str) -> None:
    """From the environment as well as from a file: a line break at its end is easily left there."""
    client = Client(github.base_url, lambda: github_token(SECTION, {"GITHUB_TOKEN": token}), now=time.time)
    answer = await client.get(f"/repos/{REPO}")
    await client.close()

    assert (answer.status, github.log[0].headers["authorization"]) == (200, "Bearer hush")


@pytest.mark.parametrize("token", ["hush hush", "hush\x7f", *UNUSABLE])
@in_real_loop
async def test_token_when_unusable_then_is_said_and_not_shown(github: FakeGitHub, token: str) -> None:
    """Elsewhere the whole header stood in the log, in the words of the library that refused it."""
    client = Client(github.base_url, lambda: github_token(SECTION, {"GITHUB_TOKEN": token}), now=time.time)
    with pytest.raises(SourceError, match="GITHUB_TOKEN") as caught:
        await client.get(f"/repos/{REPO}")
    await client.close()

    assert "hush" not in str(caught.value)
    assert github.requests == 0


@pytest.mark.parametrize("token", UNUSABLE)
@in_real_loop
async def test_client_when_its_token_cannot_be_sent_then_does_not_show_it(github: FakeGitHub, token: str) -> None:
    client = Client(github.base_url, lambda: token, now=time.time)
    with pytest.raises(SourceError) as caught:
        await client.get(f"/repos/{REPO}")
    await client.close()

    assert "hush" not in str(caught.value)
