"""A token that is not as it should be: blanks around it are no matter, anything else is said, and never shown."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.clock import Clock
from support.github import faults
from support.github.fake import FakeGitHub
from support.http_server import FakeServer
from support.world import REPO, in_real_loop
from the_loop.config import Config, Polling
from the_loop.sources import tokens as token_module
from the_loop.sources.base import SourceError, SourceSite
from the_loop.sources.github.client import Client
from the_loop.sources.github.identity import ask_repository
from the_loop.sources.github.provider import build, check
from the_loop.sources.github.section import GithubSection
from the_loop.sources.github.token import VARIABLES, github_token
from the_loop.sources.limits import RateLimiters
from the_loop.sources.tokens import Token

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


def section_of(github: FakeGitHub, **fields: Any) -> GithubSection:
    return GithubSection(provider="github", repos=(REPO,), label="auto", api_url=github.base_url, **fields)


def client_of(section: GithubSection, environ: dict[str, str] | None = None) -> Client:
    return Client(section.api_url, Token(section, environ or {"PATH": "/usr/bin:/bin"}, VARIABLES), now=time.time)


@in_real_loop
async def test_command_when_named_then_runs_once_for_many_requests(github: FakeGitHub, tmp_path: Path) -> None:
    count = tmp_path / "count"
    client = client_of(section_of(github, token_command=("sh", "-c", f"echo x >>{count}; echo hush")))
    for _ in range(3):
        await client.get(f"/repos/{REPO}")
    await client.close()

    assert {request.headers["authorization"] for request in github.log} == {"Bearer hush"}
    assert count.read_text() == "x\n"


@pytest.mark.parametrize("is_post", [False, True])
@in_real_loop
async def test_command_when_its_token_is_rejected_then_runs_once_more(
    github: FakeGitHub, tmp_path: Path, is_post: bool
) -> None:
    file = tmp_path / "token"
    file.write_text("first")
    client = client_of(section_of(github, token_command=("cat", str(file))))
    await client.get(f"/repos/{REPO}")
    file.write_text("second")
    github.fail("octo", faults.reply(401, {"message": "Bad credentials"}))
    await (client.post(f"/repos/{REPO}/issues/1/comments", {"body": "x"}) if is_post else client.get(f"/repos/{REPO}"))
    await client.close()

    assert [request.headers["authorization"] for request in github.log[1:]] == ["Bearer first", "Bearer second"]


@in_real_loop
async def test_command_when_it_prints_the_rejected_token_again_then_is_said_without_asking_again(
    github: FakeGitHub,
) -> None:
    client = client_of(section_of(github, token_command=("echo", "hush")))
    github.fail("octo", faults.reply(401, {"message": "Bad credentials"}), times=None)
    with pytest.raises(SourceError, match="401") as caught:
        await client.get(f"/repos/{REPO}")
    await client.close()

    assert github.requests == 1
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        (("sh", "-c", "echo hush; echo hush >&2; exit 3"), "exit status 3"),
        (("sh", "-c", "yes hush"), "more than 16384 bytes"),
        (("sh", "-c", "echo hush; sleep 300 & sleep 300"), "not finished within 1 s"),
        (("sh", "-c", "echo hush; sleep 300 &"), "not finished within 1 s"),
        (("echo", ""), "empty or more than one line"),
        (("printf", "hush\nhush"), "empty or more than one line"),
        (("/nonexistent/hush-not-shown",), "No such file"),
    ],
)
@in_real_loop
async def test_command_when_it_fails_then_is_said_and_its_output_never_shown(
    github: FakeGitHub, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], problem: str
) -> None:
    monkeypatch.setattr(token_module, "COMMAND_LIMIT_S", 1.0)
    client = client_of(section_of(github, token_command=command))
    with pytest.raises(SourceError, match=problem) as caught:
        await client.get(f"/repos/{REPO}")
    await client.close()

    assert github.requests == 0
    assert "hush" not in str(caught.value).replace("hush-not-shown", "")


@in_real_loop
async def test_credential_when_there_is_no_folder_then_no_other_place_is_tried(github: FakeGitHub) -> None:
    client = client_of(section_of(github, credential="token"), {"GITHUB_TOKEN": "hush"})
    with pytest.raises(SourceError, match="CREDENTIALS_DIRECTORY"):
        await client.get(f"/repos/{REPO}")

    assert github.requests == 0


@in_real_loop
async def test_credential_when_rejected_then_says_that_it_needs_a_restart(github: FakeGitHub, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("hush")
    client = client_of(section_of(github, credential="token"), {"CREDENTIALS_DIRECTORY": str(tmp_path)})
    github.fail("octo", faults.reply(401, {}), times=None)
    with pytest.raises(SourceError) as caught:
        await client.get(f"/repos/{REPO}")
    await client.close()

    assert "restart" in caught.value.hint


@pytest.mark.parametrize(
    ("environ", "token"),
    [
        ({"GH_TOKEN": "two"}, "two"),
        ({"GITHUB_TOKEN": "one", "GH_TOKEN": "two"}, "one"),
        ({"GITHUB_TOKEN": "", "GH_TOKEN": "two"}, "two"),
        ({}, None),
    ],
)
def test_token_when_no_place_is_named_then_is_that_of_the_environment(
    environ: dict[str, str], token: str | None
) -> None:
    assert github_token(SECTION, environ) == token


@in_real_loop
async def test_anonymous_when_nothing_is_found_then_says_that_no_token_was_sent(
    github: FakeGitHub, tmp_path: Path
) -> None:
    told = await notes_of(github, tmp_path)
    client = client_of(section_of(github), {"PATH": "/bin"})
    with pytest.raises(SourceError, match="no token was sent"):
        await ask_repository(client, "octo/absent")
    await client.close()

    assert [[name for name, _ in notes] for notes in told] == [["source.anonymous"], []]


@pytest.mark.parametrize("fields", [("credential", "token_file"), ("token_file", "token_command")])
def test_section_when_it_names_two_places_then_is_a_fault(fields: tuple[str, str]) -> None:
    values: dict[str, Any] = {"credential": "x", "token_file": "/x", "token_command": ("x",)}
    section = GithubSection(provider="github", repos=(REPO,), label="auto", **{name: values[name] for name in fields})

    assert "exactly one place" in str(check(section, Config(polling=Polling(sources=(section,)))))
