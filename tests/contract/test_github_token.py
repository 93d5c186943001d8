"""A token that is not as it should be: blanks around it are no matter, anything else is said, and never shown."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.clock import Clock
from support.github.fake import FakeGitHub
from support.http_server import FakeServer
from support.world import REPO, in_real_loop
from the_loop.sources.base import SourceError, SourceSite
from the_loop.sources.github.client import Client
from the_loop.sources.github.provider import build, github_token
from the_loop.sources.github.section import GithubSection
from the_loop.sources.limits import RateLimiters

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


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o620, 0o604, 0o600, 0o400])
@in_real_loop
async def test_token_file_when_others_may_use_it_then_is_told_once_with_what_to_type(
    github: FakeGitHub, tmp_path: Path, mode: int
) -> None:
    file = tmp_path / "my token"
    file.write_text("hush")
    file.chmod(mode)
    told = await notes_of(github, tmp_path, token_file=str(file))

    reason = f"other users may use the token in '{file}', its mode is {mode:04o} (run `chmod 600 '{file}'`)"
    exposed = [("source.exposed", {"source": "work", "reason": reason})]
    assert told == [exposed if mode & 0o077 else [], []]


@in_real_loop
async def test_credential_of_the_manager_is_taken_as_it_is(github: FakeGitHub, tmp_path: Path) -> None:
    """Its group bits are the mask of the access list that lets the service read it."""
    (tmp_path / "token").write_text("hush")
    (tmp_path / "token").chmod(0o440)

    assert await notes_of(github, tmp_path, credential="token") == [[], []]


async def notes_of(github: FakeGitHub, folder: Path, **fields: str) -> list[list[tuple[str, object]]]:
    """What two polls of a source with such a token tell."""
    place: Any = fields
    section = GithubSection(provider="github", repos=(REPO,), label="auto", api_url=github.base_url, **place)
    (folder / "root" / "portable").mkdir(parents=True)
    site = SourceSite(
        name="work",
        root=folder / "root",
        folder=folder / "root" / "x",
        environ={"CREDENTIALS_DIRECTORY": str(folder)} if "credential" in fields else {},
        authorized=frozenset(),
        linger_s=0,
        limiters=RateLimiters(time.monotonic),
        cursor=None,
        wait_s=0,
        wait_left_s=0,
    )
    source = build(section, site)
    listings = [await source.poll(None, {}) for _ in range(2)]
    await source.close()
    return [[(note.name, note.fields) for note in listing.notes] for listing in listings]
