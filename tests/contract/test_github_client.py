"""The HTTP client against a real socket: limits in time and size, redirects, and where the token goes."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from support.clock import Clock
from support.github import faults
from support.github.fake import FakeGitHub
from support.github.values import Answer
from support.http_server import FakeServer, HttpServer
from support.world import REPO, World, in_real_loop, scene
from the_loop import __version__
from the_loop.sources.base import Limited, SourceError, Usage
from the_loop.sources.github import client as client_module
from the_loop.sources.github.client import Client
from the_loop.sources.github.section import GithubSection
from the_loop.sources.github.token import github_token
from the_loop.sources.limits import RateLimiters

PATH = "/repos/octo/repo/issues?labels=auto"


@pytest.fixture
def github() -> FakeGitHub:
    fake = FakeGitHub(Clock())
    fake.add_repo(REPO, id=42)
    fake.add_issue(REPO, labels=["auto"])
    return fake


def client_of(url: str, token: str | None = "secret") -> Client:
    return Client(url, lambda: token, now=time.time)


async def fault_of(client: Client, path: str = PATH) -> SourceError:
    """The error that asking for `path` ends in."""
    with pytest.raises(SourceError) as caught:
        await client.get(path)
    return caught.value


class TestAsking:
    @in_real_loop
    async def test_get_then_says_who_asks_and_for_what(self) -> None:
        github = FakeGitHub(Clock())
        github.add_repo(REPO)
        with FakeServer(github) as server:
            client = client_of(server.url)
            first = await client.get(PATH)
            second = await client.get(PATH, first.etag)
            await client.close()

        sent = github.log[0].headers
        assert sent["user-agent"] == f"the-loop/{__version__}"
        assert sent["authorization"] == "Bearer secret"
        assert sent["accept"] == "application/vnd.github+json"
        assert sent["x-github-api-version"] == "2022-11-28"
        assert "if-none-match" not in sent
        assert (first.status, first.value, first.date) == (200, [], 1_700_000_000.0)
        assert (second.status, second.is_unchanged) == (304, True)

    @in_real_loop
    async def test_get_when_there_is_no_token_then_sends_none(self, github: FakeGitHub) -> None:
        with FakeServer(github) as server:
            client = client_of(server.url, token=None)
            await client.get(PATH)
            await client.close()

        assert "authorization" not in github.log[0].headers

    @in_real_loop
    async def test_get_when_nobody_listens_then_source_error(self, github: FakeGitHub) -> None:
        with FakeServer(github) as server:
            url = server.url
        client = client_of(url)

        assert "ConnectError" in str(await fault_of(client))
        await client.close()

    @in_real_loop
    async def test_get_when_the_server_was_restarted_then_works_again(self, github: FakeGitHub) -> None:
        with FakeServer(github) as server:
            client = client_of(server.url)
            await client.get(PATH)
        with FakeServer(github, port=server.port):
            answers = [await asyncio.gather(client.get(PATH), return_exceptions=True) for _ in range(2)]
        await client.close()

        assert getattr(answers[-1][0], "status", None) == 200


class TestSurroundings:
    @in_real_loop
    async def test_get_when_the_environment_names_a_proxy_then_goes_through_it(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        passed: list[str] = []

        def passing(_method: str, target: str, _headers: Any, _body: bytes) -> Answer:
            passed.append(target)
            return Answer(200, {}, b"[]")

        with HttpServer(passing) as proxy:
            monkeypatch.setenv("HTTP_PROXY", proxy.url)
            client = client_of("http://github.invalid/api/v3")
            answer = await client.get(PATH)
            await client.close()
            monkeypatch.setenv("NO_PROXY", "github.invalid")
            fault = await fault_of(around := client_of("http://github.invalid/api/v3"))
            await around.close()

        assert answer.value == []
        assert passed == [f"http://github.invalid/api/v3{PATH}"]
        assert "ConnectError" in str(fault)

    @pytest.mark.parametrize("proxy", ["socks5://127.0.0.1:1", "nonsense:port", "ftp://127.0.0.1", "http://[::1"])
    @in_real_loop
    async def test_get_when_the_proxy_cannot_be_used_then_is_an_error_of_the_source(
        self, monkeypatch: pytest.MonkeyPatch, proxy: str
    ) -> None:
        """Elsewhere the program did not start at all, with a traceback."""
        monkeypatch.setenv("ALL_PROXY", proxy)
        client = client_of("http://github.invalid")

        assert "proxy" in str(await fault_of(client))
        await client.close()

    @in_real_loop
    async def test_get_when_another_version_of_the_api_is_configured_then_asks_for_that(
        self, github: FakeGitHub
    ) -> None:
        with FakeServer(github) as server:
            client = Client(server.url, lambda: None, now=time.time, api_version="2026-03-10")
            await client.get(PATH)
            await client.close()

        assert github.log[0].headers["x-github-api-version"] == "2026-03-10"

    @in_real_loop
    async def test_usage_when_asked_then_counts_what_was_sent_and_tells_what_is_left(self, github: FakeGitHub) -> None:
        with FakeServer(github) as server:
            client = client_of(server.url)
            before = client.usage()
            await client.get(PATH)
            await client.get("/repos/octo/none")
            after = client.usage()
            await client.close()

        assert before == Usage(0, None, None)
        assert after.requests == 2
        assert after.points_limit == 5000
        assert after.points_left is not None
        assert after.points_left < 5000

    @in_real_loop
    async def test_get_when_the_token_is_another_then_its_validator_is_not_sent(self, github: FakeGitHub) -> None:
        """What one token was shown says nothing of what another one would be."""
        tokens = iter(["first", "second", "first"])
        with FakeServer(github) as server:
            client = Client(server.url, lambda: next(tokens), now=time.time)
            answer = await client.get(PATH)
            other = await client.get(PATH, answer.etag)
            again = await client.get(PATH, answer.etag)
            await client.close()

        assert [other.status, again.status] == [200, 304]
        assert "if-none-match" not in github.log[1].headers

    @in_real_loop
    async def test_get_when_several_ask_at_once_then_they_take_turns(
        self, github: FakeGitHub, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        busy, most = [0], [0]
        genuine = github.handle

        def counting(*request: Any) -> Answer:
            busy[0] += 1
            most[0] = max(most[0], busy[0])
            time.sleep(0.02)
            busy[0] -= 1
            return genuine(*request)

        monkeypatch.setattr(github, "handle", counting)
        with FakeServer(github) as server:
            limiters = RateLimiters(time.monotonic)
            clients = [Client(server.url, lambda: "secret", now=time.time, limiters=limiters) for _ in range(4)]
            await asyncio.gather(*(client.get(PATH) for client in clients))
            await asyncio.gather(*(client.close() for client in clients))

        assert (most, github.requests) == ([1], 4)


class TestLimits:
    @pytest.mark.parametrize(
        "effect", [faults.hang(), faults.drip(0.02), faults.drip(5.0)], ids=["hang", "drip", "5 s"]
    )
    @in_real_loop
    async def test_get_when_the_peer_takes_for_ever_then_ends_within_the_limit(
        self, github: FakeGitHub, monkeypatch: pytest.MonkeyPatch, effect: faults.Effect
    ) -> None:
        """A byte now and then resets every time-out but that of the request as a whole."""
        monkeypatch.setattr(client_module, "REQUEST_LIMIT_S", 0.4)
        github.fail(".", effect)
        with FakeServer(github) as server:
            client = client_of(server.url)
            began = time.monotonic()
            fault = await fault_of(client)
            took_s = time.monotonic() - began
            again = await client.get(PATH)
            await client.close()

        assert not isinstance(fault, Limited)
        assert 0.3 < took_s < 5
        assert again.status == 200

    @in_real_loop
    async def test_get_when_cancelled_then_ends_at_once(self, github: FakeGitHub) -> None:
        github.fail(".", faults.hang())
        asked, loop = asyncio.Event(), asyncio.get_running_loop()
        github.hook(lambda *_: loop.call_soon_threadsafe(asked.set))
        with FakeServer(github) as server:
            client = client_of(server.url)
            asking = asyncio.create_task(client.get(PATH))
            await asyncio.wait_for(asked.wait(), 30)
            began = time.monotonic()
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            await client.close()

        assert time.monotonic() - began < 1

    @in_real_loop
    async def test_source_when_the_peer_hangs_then_its_cycle_ends_and_nothing_changes(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(client_module, "REQUEST_LIMIT_S", 0.4)
        world = scene(tmp_path)
        github = world.github
        number = world.add_issue()
        with FakeServer(github) as server:
            world = world.restart(transport=httpx2.AsyncHTTPTransport(), section={"api_url": server.url})
            await world.cycle()
            github.close(REPO, number)
            github.fail("issues.labels", faults.hang())
            await world.cycle()
            assert (world.state, len(world.received)) == ("failing", 1)
            await world.cycle(times=5)
            await world.stop()

        assert [got["kind"] for got in world.received] == ["spawn", "close"]

    @in_real_loop
    async def test_get_when_the_answer_is_huge_then_is_refused_unread(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(client_module, "BODY_LIMIT", 1 << 20)
        bodies = [b'"' + b"x" * ((1 << 20) - 2) + b'"', b'"' + b"x" * (1 << 20) + b'"']
        with HttpServer(lambda *_: Answer(200, {}, bodies.pop(0))) as server:
            client = client_of(server.url)
            at_limit = await client.get("/")
            fault = await fault_of(client, "/")
            await client.close()

        assert len(at_limit.value) == (1 << 20) - 2
        assert "larger than 1048576 bytes" in str(fault)

    @pytest.mark.parametrize("value", ["[]", '""', "1", '{"a": {}}', r'"\"[\\"'])
    @pytest.mark.parametrize("first", ["0", f'"{"," * (2 << 20)}"'], ids=["at once", "behind a text"])
    @in_real_loop
    async def test_get_when_the_answer_has_a_million_values_then_is_refused(self, first: str, value: str) -> None:
        """32 MiB of `[],` took 3.5 s to decode, in which the loop stood still, and 900 MiB."""
        body = f"[{first}{f', {value}' * 1_000_000}]".encode()
        with HttpServer(lambda *_: Answer(200, {}, body)) as server:
            client = client_of(server.url)
            fault = await fault_of(client, "/")
            await client.close()

        assert "more values than a page" in str(fault)

    @in_real_loop
    async def test_get_when_a_page_is_as_large_as_can_be_then_is_read(self) -> None:
        texts = ['[",{\\"' * 10_000, ", " * 32_000, "\\" * 65_536]
        labels = [dict.fromkeys(("id", "url", "name", "color", "default", "description"), ",")] * 100
        page = [{"body": texts[number % 3], "labels": labels, "user": {"login": "octocat"}} for number in range(100)]
        body = json.dumps(page).encode()
        with HttpServer(lambda *_: Answer(200, {}, body)) as server:
            client = client_of(server.url)
            answer = await client.get("/")
            await client.close()

        assert answer.value == page

    @pytest.mark.parametrize(
        ("headers", "wait_s"),
        [
            ({"Retry-After": "7"}, 7),
            ({"Retry-After": "0"}, 1),
            ({"Retry-After": "soon"}, 60),
            ({"Retry-After": "-5"}, 60),
            ({"Retry-After": "\xb2"}, 60),
            ({"Retry-After": "9" * 400}, 86_400),
            ({"Retry-After": "7", "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1700003600"}, 7),
            ({"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1700000030"}, 31),
            ({"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1600000000"}, 1),
            ({"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "x"}, 60),
            ({"X-RateLimit-Remaining": "0"}, 60),
            ({"Date": "some day", "Retry-After": "7"}, 7),
            ({}, 60),
        ],
    )
    @in_real_loop
    async def test_limit_then_waits_as_its_headers_say(
        self, github: FakeGitHub, headers: dict[str, str], wait_s: float
    ) -> None:
        github.fail(".", faults.reply(403, {"message": "You have exceeded a secondary rate limit."}, headers))
        with FakeServer(github) as server:
            client = client_of(server.url)
            fault = await fault_of(client)
            await client.close()

        assert isinstance(fault, Limited)
        assert fault.wait_s == wait_s

    @pytest.mark.parametrize(
        ("status", "body", "text"),
        [
            (401, {"message": "Bad credentials"}, "rejected (401)"),
            (403, {"message": "Must have admin rights"}, "forbidden (403): Must have admin rights"),
            (403, b"<html>", "forbidden (403)"),
            (403, ["odd"], "forbidden (403)"),
            (451, {"message": "Blocked", "block": {"reason": "dmca"}}, "status 451 Blocked"),
            (422, {"message": "Validation Failed", "errors": [{"field": "since"}]}, "since"),
            (500, b"", "status 500"),
            (204, b"", "status 204"),
            (300, b"", "status 300"),
        ],
    )
    @in_real_loop
    async def test_status_when_it_is_no_answer_then_is_said(
        self, github: FakeGitHub, status: int, body: object, text: str
    ) -> None:
        github.fail(".", faults.reply(status, body))
        with FakeServer(github) as server:
            client = client_of(server.url)
            fault = await fault_of(client)
            await client.close()

        assert text in str(fault)
        assert not isinstance(fault, Limited)


class TestRedirects:
    @in_real_loop
    async def test_redirect_when_within_the_origin_then_is_followed_with_the_token(self, github: FakeGitHub) -> None:
        github.rename_repo(REPO, "octo/new")
        with FakeServer(github) as server:
            client = client_of(server.url)
            answer = await client.get(PATH)
            await client.close()

        assert (answer.status, len(answer.value)) == (200, 1)
        assert answer.moved == "/repositories/42/issues"
        assert [entry.headers["authorization"] for entry in github.log] == ["Bearer secret"] * 2

    @pytest.mark.parametrize(
        "location",
        [
            "{other}/repos/octo/repo",
            "//{other_host}/repos/octo/repo",
            "http://{here_host}@{other_host}/",
            "http://{here_host}.evil.example/",
            "https://{here_host}/repos/octo/repo",
            "ftp://{here_host}/",
            "file:///etc/passwd",
            "http://[",
            "http://[::1",
            "http://{here_host}:99999999/",
            "",
        ],
    )
    @in_real_loop
    async def test_redirect_when_to_another_origin_then_nobody_gets_the_token(
        self, github: FakeGitHub, location: str
    ) -> None:
        visits: list[dict[str, Any]] = []

        def listening(_method: str, _target: str, headers: Any, _body: bytes) -> Answer:
            visits.append(dict(headers))
            return Answer(200, {}, b"[]")

        with FakeServer(github) as server, HttpServer(listening) as other:
            names = {
                "other": other.url,
                "other_host": other.url.removeprefix("http://"),
                "here_host": server.url.removeprefix("http://"),
            }
            github.fail(".", faults.redirect(location.format(**names)), times=None)
            client = client_of(server.url)
            fault = await fault_of(client)
            await client.close()

        assert "redirect" in str(fault)
        assert visits == []

    @in_real_loop
    async def test_redirect_when_it_goes_in_a_circle_then_is_given_up(self, github: FakeGitHub) -> None:
        github.fail(".", faults.redirect("/repos/octo/repo"), times=None)
        with FakeServer(github) as server:
            client = client_of(server.url)
            fault = await fault_of(client)
            await client.close()

        assert "too many redirects" in str(fault)
        assert github.requests <= 5


class TestEnterprise:
    @in_real_loop
    async def test_items_of_another_host_then_are_named_by_it_and_found_again_after_a_rename(
        self, tmp_path: Path
    ) -> None:
        github = FakeGitHub(clock := Clock(), base_url="https://ghe.example:8443/api/v3")
        github.add_repo(REPO)
        github.add_repo("octo/elsewhere")
        world = World(tmp_path, github, clock, section={"api_url": "https://ghe.example:8443/api/v3/"})
        stays, moves = world.add_issue(), world.add_issue()
        await world.cycle()
        github.rename_repo(REPO, "octo/new")
        github.comment("octo/new", stays)
        await world.cycle(times=2)
        github.transfer_issue("octo/new", moves, "octo/elsewhere")
        await world.cycle(times=5)

        assert [got["deliveryId"].removeprefix("github:ghe.example/octo/repo#") for got in world.received] == [
            "1/spawn:1",
            "2/spawn:1",
            "1/comment:1001",
            "2/close:1",
        ]
        assert world.received[-1]["reason"] == "transferred"


class TestToken:
    @pytest.mark.parametrize(
        ("write", "text"),
        [
            (lambda _path: None, "No such file"),
            (lambda path: path.write_text(""), "empty or more than one line"),
            (lambda path: path.write_text("one\ntwo\n"), "empty or more than one line"),
            (lambda path: path.write_text("one two"), "empty or more than one line"),
            (lambda path: path.write_text("one\x00two"), "empty or more than one line"),
            (lambda path: path.write_bytes(b"t\xc3\xb6ken"), "not ASCII"),
            (lambda path: path.mkdir(), "Is a directory"),
        ],
    )
    @pytest.mark.parametrize("by", ["file", "credential"])
    @in_real_loop
    async def test_token_when_it_cannot_be_read_then_nothing_is_asked_and_it_is_said(
        self, tmp_path: Path, write: Callable[[Path], object], text: str, by: str
    ) -> None:
        token = tmp_path / "github-token"
        write(token)
        section = {"token_file": str(token)} if by == "file" else {"credential": token.name}
        environ = {"GITHUB_TOKEN": "not this one", "CREDENTIALS_DIRECTORY": str(tmp_path)}
        world = scene(tmp_path, section=section, environ=environ)
        world.add_issue()
        await world.cycle()

        assert (world.github.requests, world.received, world.state) == (0, [], "failing")
        assert text in world.watched.error
        assert str(token) in world.watched.error

    @in_real_loop
    async def test_token_when_rotated_then_the_next_look_uses_it_and_nothing_comes_again(self, tmp_path: Path) -> None:
        token = tmp_path / "token"
        token.write_text("first\n")
        world = scene(tmp_path, section={"token_file": str(token)}, environ={"GITHUB_TOKEN": "not this one"})
        world.github.tokens["first"] = "bot"
        number = world.add_issue()
        await world.cycle(times=2)
        world.github.tokens.clear()
        world.github.tokens["second"] = "bot"
        world.github.comment(REPO, number)
        await world.cycle()
        assert (world.state, "check the token" in world.watched.error) == ("failing", True)
        token.write_text("second")
        await world.cycle(times=2)

        assert world.ids() == ["1/spawn:1", "1/comment:1001"]
        assert world.state == "ok"
        sent = {entry.headers["authorization"] for entry in world.github.log}
        assert sent == {"Bearer first", "Bearer second"}

    @in_real_loop
    async def test_token_then_is_in_no_file_and_no_event(self, tmp_path: Path) -> None:
        world = scene(tmp_path, environ={"GITHUB_TOKEN": "hush-hush"})
        world.add_issue()
        await world.cycle()
        world.github.fail(".", faults.bad_credentials())
        await world.cycle()
        world.github.fail(".", faults.redirect("http://127.0.0.1:9/"))
        await world.cycle(times=5)

        files = [path.read_bytes() for path in world.root.path.rglob("*") if path.is_file()]
        assert files
        assert not any(b"hush-hush" in content for content in files)
        assert "hush-hush" not in repr(world.notes) + repr(world.received)

    @pytest.mark.parametrize(
        ("fields", "environ", "token"),
        [
            ({}, {}, None),
            ({}, {"GITHUB_TOKEN": ""}, None),
            ({}, {"GITHUB_TOKEN": "env"}, "env"),
            ({"token_file": "{dir}/file"}, {"GITHUB_TOKEN": "env"}, "file"),
            ({"credential": "cred"}, {"CREDENTIALS_DIRECTORY": "{dir}"}, "cred"),
        ],
    )
    def test_token_then_comes_from_the_first_place_that_is_named(
        self, tmp_path: Path, fields: dict[str, str], environ: dict[str, str], token: str | None
    ) -> None:
        for name in ("file", "cred"):
            (tmp_path / name).write_text(f"{name}\n")
        named = {key: value.format(dir=tmp_path) for key, value in fields.items()}
        section = GithubSection(provider="github", repos=(REPO,), label="auto", **named)  # type: ignore[arg-type]

        assert github_token(section, {key: value.format(dir=tmp_path) for key, value in environ.items()}) == token
