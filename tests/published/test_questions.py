"""What our client and source ask is what GitHub's published description offers: everything goes through Prism."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from published.example import BARE, DELETED, NAMED, PULL, REPO, TOKEN
from published.prism import Inspecting, violations
from support.clock import Clock
from support.github.query import parse
from support.github.values import View
from support.world import in_real_loop
from the_loop.core.model import Kind, Presence
from the_loop.sources.base import Known, Listing
from the_loop.sources.github.client import Client
from the_loop.sources.github.repositories import Repositories
from the_loop.sources.github.section import GithubSection
from the_loop.sources.github.source import GithubSource

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from support.github.fake import FakeGitHub

PREFIX = f"github:127.0.0.1/{REPO}#"
SELDOM = {View.LABEL, View.LABELS}  # without an item, and by the doctor
ACCOUNTS = {View.USER}  # by the doctor; not compared: the two schemas of a user do not tell each other apart
ASKED = set(View) - {View.RATE_LIMIT} - SELDOM - ACCOUNTS  # every answer tells the first


class Poller:
    """Our source behind Prism; position and known items are kept from look to look."""

    def __init__(self, github: FakeGitHub, client: Client, folder: Path) -> None:
        assert isinstance(github.clock, Clock)
        self._clock = github.clock
        section = GithubSection(provider="github", repos=(REPO,), label="auto", api_url=github.base_url)
        repositories = Repositories(folder / "repositories.json")
        self._source = GithubSource(section, client, repositories, linger_s=180)
        self._cursor: Any = None
        self.known: dict[str, Known] = {}

    async def poll(self) -> Listing:
        """One look, a minute after the last, and the thread of everything that it is the first to tell of."""
        self._clock.run(60)
        listing = await self._source.poll(self._cursor, self.known)
        assert not listing.faults
        self._cursor = listing.cursor
        for one in listing.sightings:
            if one.presence is Presence.LISTED and one.ref not in self.known:
                await self._source.thread(one.ref)
            self.known[one.ref] = Known(is_open=one.presence is Presence.LISTED, is_away=False, url="")
        return listing


@asynccontextmanager
async def inspected(github: FakeGitHub) -> AsyncIterator[tuple[Client, list[str]]]:
    """A client behind Prism, and what Prism found so far."""
    transport = Inspecting()
    client = Client(github.base_url, lambda: TOKEN, now=github.clock, transport=transport)
    try:
        yield client, transport.violations
    finally:
        await client.close()


@in_real_loop
async def test_source_when_it_looks_then_asks_and_is_told_as_described(github: FakeGitHub, tmp_path: Path) -> None:
    for _ in range(101):  # a second page
        github.add_issue(REPO, labels=["auto"])
    async with inspected(github) as (client, found):
        poller = Poller(github, client, tmp_path)
        told = [await poller.poll()]
        github.review_comment(REPO, PULL, body="New.")
        github.comment(REPO, 1, body="New.")
        github.review(REPO, PULL, body="New.", state="APPROVED")
        told.append(await poller.poll())
        github.close(REPO, 1)
        github.unlabel(REPO, PULL, "auto")
        github.delete_issue(REPO, BARE)
        poller.known[f"{PREFIX}999"] = Known(is_open=True, is_away=False, url="")
        rest = [await poller.poll() for _ in range(3)]
        told.extend(rest)

    queries = [query for entry in github.log if (query := parse(entry.target))]
    sightings = [one for listing in told for one in listing.sightings]
    last = {one.ref.removeprefix(PREFIX): one.presence for one in sightings}
    assert found == []
    assert {query.view for query in queries} == ASKED
    assert {entry.status for entry in github.log} == {200, 304, 404, 410}
    assert any(("page", "2") in query.params for query in queries)
    assert {row.kind for one in sightings for row in one.rows} == {Kind.COMMENT, Kind.REVIEW, Kind.REVIEW_COMMENT}
    assert {last["1"], last[str(BARE)], last["999"]} == {Presence.LEFT}
    assert (told[0].items, last[str(PULL)]) == (104, Presence.AWAY)


@in_real_loop
async def test_client_when_it_asks_about_labels_then_as_described(github: FakeGitHub) -> None:
    paths = [f"{NAMED}/labels/auto", f"{NAMED}/labels/none", f"{NAMED}/labels?per_page=100"]
    async with inspected(github) as (client, found):
        statuses = [(await client.get(path)).status for path in paths]

    assert (statuses, found) == ([200, 404, 200], [])
    assert {query.view for entry in github.log if (query := parse(entry.target))} == SELDOM


@in_real_loop
async def test_client_when_it_writes_a_comment_then_as_described(github: FakeGitHub) -> None:
    async with inspected(github) as (client, found):
        statuses = [
            (await client.post(f"{NAMED}/issues/{number}/comments", {"body": body})).status
            for number, body in ((PULL, "The loop gave up: größer 😀"), (99, "x"), (DELETED, "x"), (1, ""))
        ]

    assert (statuses, found) == ([201, 404, 410, 422], [])


@pytest.mark.parametrize(
    ("method", "target", "more"),
    [
        ("GET", f"{NAMED}/issues?state=opened", {}),
        ("GET", f"{NAMED}/issues?sort=number", {}),
        ("GET", f"{NAMED}/issues?per_page=all", {}),
        ("GET", f"{NAMED}/issues/first", {}),
        ("GET", f"{NAMED}/issues/comments?since=yesterday", {}),
        ("GET", f"{NAMED}/pulls/comments?direction=down", {}),
        ("GET", f"{NAMED}/reviews", {}),
        ("POST", f"{NAMED}/issues/1/comments", {}),
        ("POST", f"{NAMED}/issues/1/comments", {"json": {"text": "Text."}}),
        ("POST", f"{NAMED}/issues/1/comments", {"json": {"body": 5}}),
        ("POST", f"{NAMED}/issues/1/comments", {"content": b"Text.", "headers": {"Content-Type": "text/plain"}}),
    ],
)
def test_question_when_not_offered_then_noticed_and_kept_from_the_fake(
    http: httpx2.Client, github: FakeGitHub, method: str, target: str, more: dict[str, Any]
) -> None:
    answer = http.request(method, target, **more)

    assert violations(answer)
    assert github.log == []
