"""Refusals as GitHub really sends them: limits as 422, 5xx with the time to wait, single sign-on, spelt addresses."""

from __future__ import annotations

import time
from email.utils import formatdate

import httpx2
import pytest

from support.clock import Clock
from support.github import faults
from support.github.fake import FakeGitHub
from support.http_server import FakeServer
from support.world import REPO, in_real_loop
from the_loop.sources.base import Limited, SourceError, Unanswered
from the_loop.sources.github.client import Client

PATH = f"/repos/{REPO}"
SECONDARY = {"message": "Validation Failed", "errors": [{"message": "was submitted too quickly"}]}
LIMIT = {"message": "You have exceeded a secondary rate limit."}


async def refused(effect: faults.Effect, method: str = "GET") -> tuple[SourceError, SourceError, int]:
    """The errors of two requests in a row of which the first is refused like this, and how many were sent."""
    github = FakeGitHub(Clock())
    github.add_repo(REPO)
    github.fail(PATH, effect, bare=True)
    with FakeServer(github) as server:
        client = Client(server.url, lambda: "secret", now=time.time)
        errors = []
        for _ in range(2):
            with pytest.raises(SourceError) as caught:
                await (client.get(PATH) if method == "GET" else client.post(f"{PATH}/issues/1/comments", {}))
            errors.append(caught.value)
        await client.close()
    return errors[0], errors[1], github.requests


@pytest.mark.parametrize("body", [SECONDARY, LIMIT])
@pytest.mark.parametrize("method", ["GET", "POST"])
@in_real_loop
async def test_limit_when_it_comes_as_422_then_is_a_limit(body: object, method: str) -> None:
    first, second, sent = await refused(faults.reply(422, body), method)

    assert isinstance(first, Limited)
    assert isinstance(second, Limited)
    assert (first.wait_s, sent) == (60, 1)


@pytest.mark.parametrize("status", [500, 502, 503, 504])
@pytest.mark.parametrize("form", ["seconds", "date"])
@in_real_loop
async def test_server_error_when_it_names_the_time_to_wait_then_is_silent_until_then(status: int, form: str) -> None:
    after = "600" if form == "seconds" else formatdate(time.time() + 600, usegmt=True)
    first, second, sent = await refused(
        faults.reply(status, {}, {"Retry-After": after, "Date": formatdate(usegmt=True)})
    )

    assert isinstance(first, Limited)
    assert isinstance(second, Limited)
    assert 595 <= first.wait_s <= 601
    assert sent == 1


@in_real_loop
async def test_server_error_when_the_time_is_absurd_then_waits_a_day_at_most() -> None:
    first, _, _ = await refused(faults.reply(503, {}, {"Retry-After": "Fri, 01 Jan 2199 00:00:00 GMT"}))

    assert isinstance(first, Limited)
    assert first.wait_s == 86_400


@in_real_loop
async def test_post_when_the_server_asks_for_a_pause_then_its_outcome_is_unknown_and_the_pause_is_kept() -> None:
    first, second, sent = await refused(faults.reply(503, {}, {"Retry-After": "600"}), "POST")

    assert isinstance(first, Unanswered)
    assert isinstance(second, Limited)
    assert sent == 1


@in_real_loop
async def test_forbidden_when_single_sign_on_is_the_cause_then_shows_where_to_authorize() -> None:
    address = "https://github.com/orgs/octo/sso?authorization_request=AB-1"
    effect = faults.reply(403, {"message": "Resource protected"}, {"X-GitHub-SSO": f"required; url={address}"})
    github = FakeGitHub(Clock())
    github.add_repo(REPO)
    github.fail(PATH, effect, bare=True)
    with FakeServer(github) as server:
        client = Client(server.url, lambda: "secret", now=time.time)
        with pytest.raises(SourceError) as caught:
            await client.get(PATH)
        await client.close()

    assert address in caught.value.hint


@pytest.mark.parametrize(
    ("api_url", "location"),
    [
        ("http://LOCALHOST:{port}", "http://localhost:{port}/repositories/1"),
        ("http://localhost:{port}/", "http://LocalHost:{port}/repositories/1"),
    ],
)
@in_real_loop
async def test_redirect_when_the_address_is_spelt_otherwise_then_is_followed(api_url: str, location: str) -> None:
    github = FakeGitHub(Clock())
    github.add_repo(REPO, id=1)
    with FakeServer(github) as server:
        github.fail(PATH, faults.reply(301, {}, {"Location": location.format(port=server.port)}))
        client = Client(api_url.format(port=server.port), lambda: "secret", now=time.time)
        answer = await client.get(PATH)
        await client.close()

    assert (answer.status, answer.moved) == (200, "/repositories/1")


@pytest.mark.parametrize(
    ("api_url", "location", "is_followed"),
    [
        ("https://ghe.example:443/api/v3", "https://ghe.example/api/v3/repositories/1", True),
        ("https://ghe.example/api/v3", "https://GHE.example:443/api/v3/repositories/1", True),
        ("http://ghe.example", "http://ghe.example:80/repositories/1", True),
        ("https://ghe.example", "https://ghe.example:80/repositories/1", False),
        ("https://ghe.example", "http://ghe.example/repositories/1", False),
        ("https://ghe.example", "https://ghe.example.org/repositories/1", False),
        ("https://ghe.example", "https://ghe.example:x/repositories/1", False),
    ],
)
@in_real_loop
async def test_redirect_when_it_names_a_port_then_is_compared_as_urls_are(
    api_url: str, location: str, is_followed: bool
) -> None:
    def handle(request: httpx2.Request) -> httpx2.Response:
        is_moved = request.url.path.endswith(PATH)
        return httpx2.Response(301, headers={"Location": location}) if is_moved else httpx2.Response(200, json={})

    client = Client(api_url, lambda: "secret", now=time.time, transport=httpx2.MockTransport(handle))
    if is_followed:
        assert (await client.get(PATH)).moved == "/repositories/1"
    else:
        with pytest.raises(SourceError, match="redirected to"):
            await client.get(PATH)
    await client.close()
