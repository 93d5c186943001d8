"""Our client against what GitHub really answered, as octokit recorded it."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import httpx2
import pytest

from published.recordings import Recording
from support.clock import NOON
from support.http_server import HttpServer
from support.world import in_real_loop
from the_loop.sources.base import SourceError
from the_loop.sources.github.client import Client
from the_loop.sources.github.page_sizes import PageSizes
from the_loop.sources.github.record import Asked
from the_loop.sources.github.repositories import Repositories
from the_loop.sources.github.section import GithubSection
from the_loop.sources.github.source import GithubSource
from the_loop.sources.github.walk import validated_pages, walk

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

OWNER = "octokit-fixture-org"
LIST = f"/repos/{OWNER}/paginate-issues/issues"
LISTED = f"{LIST}?per_page=3"
OLD = f"{OWNER}/rename-repository"
NEW = f"{OLD}-newname"


class OnLoopback(httpx2.AsyncHTTPTransport):
    """Reaches nobody else, and notes who was to be reached."""

    def __init__(self) -> None:
        super().__init__()
        self.foreign: list[str] = []

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.url.host != "127.0.0.1":
            self.foreign.append(str(request.url))
            raise httpx2.ConnectError("not on loopback", request=request)
        return await super().handle_async_request(request)


class OfThree(PageSizes):
    """Pages as they were recorded."""

    def of(self, path: str) -> int:
        return 3


@asynccontextmanager
async def served(recording: Recording, *, is_mapped: bool = True) -> AsyncIterator[tuple[Client, OnLoopback]]:
    """A client of the server that plays the recording."""
    with HttpServer(recording.handle) as server:
        if is_mapped:
            recording.base_url = server.url
        transport = OnLoopback()
        client = Client(server.url, lambda: "secret", now=lambda: NOON, transport=transport)
        client.page_sizes = OfThree(lambda: NOON)
        try:
            yield client, transport
        finally:
            await client.close()


@pytest.fixture
def issues(recordings: Path) -> Recording:
    return Recording(recordings / "paginate-issues" / "normalized-fixture.json")


@pytest.fixture
def renamed(recordings: Path) -> Path:
    return recordings / "rename-repository" / "normalized-fixture.json"


class TestPaginateIssues:
    @in_real_loop
    async def test_walk_then_all_rows_of_all_pages_in_order(self, issues: Recording) -> None:
        async with served(issues) as (client, _):
            walked = await walk(client, LIST)

        assert walked is not None
        assert [row["number"] for row in walked.rows] == list(range(13, 0, -1))
        assert issues.strange == []
        assert issues.asked[:5] == issues.calls
        assert issues.asked[5:] == issues.calls[:4]  # asked again: nothing slipped over a page edge meanwhile
        assert [call.partition("?")[0] for call in issues.calls[1:]] == ["GET /repositories/1000/issues"] * 4

    @in_real_loop
    async def test_walk_when_page_1_is_known_then_nothing_else_is_asked(self, issues: Recording) -> None:
        async with served(issues) as (client, _):
            first = await client.get(LISTED)
            walked = await walk(client, LIST, Asked(LISTED, first.etag, 100))

        assert walked is None
        assert issues.asked == [f"GET {LISTED}"] * 2

    @in_real_loop
    async def test_listing_when_every_page_is_known_then_all_are_asked_and_none_is_sent_again(
        self, issues: Recording
    ) -> None:
        async with served(issues) as (client, _):
            first = (await validated_pages(client, LIST, [])).parts
            again = (await validated_pages(client, LIST, [part.asked for part in first])).parts

        numbers = [row["number"] for part in first for row in part.answer.value]
        assert numbers == list(range(13, 0, -1))
        assert [part.answer.status for part in again] == [304] * 5  # which carry no links
        assert (issues.asked, issues.strange) == (issues.calls * 2, [])

    @in_real_loop
    async def test_walk_when_links_lead_to_another_origin_then_fails_and_goes_nowhere(self, issues: Recording) -> None:
        async with served(issues, is_mapped=False) as (client, transport):
            with pytest.raises(SourceError):  # and never a list that ends early
                await walk(client, LIST)

        assert issues.asked[0] == f"GET {LISTED}"
        assert transport.foreign == []


class TestRenameRepository:
    @in_real_loop
    async def test_get_by_the_former_name_then_follows_to_the_lasting_id(self, renamed: Path) -> None:
        recording = Recording(renamed)
        async with served(recording) as (client, _):
            answer = await client.get(f"/repos/{OLD}")

        assert (answer.status, answer.value["id"], answer.value["full_name"]) == (200, 1000, NEW)
        assert answer.moved == "/repositories/1000"
        assert recording.asked == [f"GET /repos/{OLD}", "GET /repositories/1000"]

    @in_real_loop
    async def test_write_when_moved_then_repeated_with_method_and_body(self, renamed: Path) -> None:
        recording = Recording(renamed)
        rename = json.dumps({"name": NEW.partition("/")[2]}).encode()
        describe = json.dumps({"name": NEW.partition("/")[2], "description": "test description"}).encode()
        async with served(recording) as (client, _):
            # the scenario writes by PATCH; our client writes comments by POST, and both in the same way
            first = await client._ask("PATCH", f"/repos/{OLD}", body=rename)
            second = await client._ask("PATCH", f"/repos/{OLD}", body=describe)

        assert recording.strange == []
        assert (first.moved, second.moved) == ("", "/repositories/1000")
        assert (second.status, second.value["description"]) == (200, "test description")

    @in_real_loop
    async def test_get_when_redirected_to_another_origin_then_fails_and_goes_nowhere(self, renamed: Path) -> None:
        async with served(Recording(renamed), is_mapped=False) as (client, transport):
            with pytest.raises(SourceError, match="another host"):
                await client.get(f"/repos/{OLD}")

        assert transport.foreign == []

    @in_real_loop
    async def test_source_when_configured_by_the_former_name_then_keeps_id_and_name_and_asks_by_the_new_one(
        self, renamed: Path, tmp_path: Path
    ) -> None:
        recording = Recording(renamed, empty=f"/repos/{NEW}")
        section = GithubSection(provider="github", repos=(OLD,), label="auto")
        repositories = Repositories(tmp_path / "repositories.json")
        async with served(recording) as (client, _):
            source = GithubSource(section, client, repositories, linger_s=180)
            listing = await source.poll(None, {})

        (kept,) = listing.cursor["repos"].values()
        assert (kept["id"], kept["name"], kept["filed"]) == (1000, NEW, OLD)
        assert json.loads((tmp_path / "repositories.json").read_bytes()) == {"api.github.com/1000": OLD}
        assert recording.strange == []
        assert recording.asked[:2] == [f"GET /repos/{OLD}", "GET /repositories/1000"]
        assert len(recording.asked) > 2
        assert all(call.startswith(f"GET /repos/{NEW}/") for call in recording.asked[2:])
