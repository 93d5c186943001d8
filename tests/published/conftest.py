"""What `make test-contract` fetched, and Prism in front of the GitHub fake."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from published.description import cut
from published.example import TOKEN, make
from published.prism import Described, Prism
from support.http_server import HttpServer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.github.fake import FakeGitHub

FETCHED = Path(__file__).resolve().parents[2] / ".contract"


def fetched(*parts: str) -> Path:
    path = FETCHED.joinpath(*parts)
    if not path.exists():
        pytest.fail(f"'{path}' is not there: run these tests by `make test-contract`, which fetches it")
    return path


@pytest.fixture(scope="session")
def description() -> dict[str, Any]:
    return cut(fetched("description", "api.github.com.json"))


@pytest.fixture(scope="session")
def described(description: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Described]:
    place = tmp_path_factory.mktemp("prism")
    file = place / "description.json"
    file.write_text(json.dumps(description), "utf-8")
    program = fetched("node_modules", "@stoplight", "prism-cli", "dist", "index.js")
    ours = Described()
    with HttpServer(ours.handle) as server, Prism(program, file, server.url, place / "log") as prism:
        ours.url, ours.upstream = prism.url, server.url
        yield ours


@pytest.fixture
def github(described: Described) -> FakeGitHub:
    """The fake behind Prism; the addresses in its answers lead back through Prism."""
    described.github = fake = make(described.url)
    return fake


@pytest.fixture(scope="session")
def connection(described: Described) -> Iterator[httpx2.Client]:
    headers = {"Authorization": f"Bearer {TOKEN}", "User-Agent": "test", "Accept": "application/vnd.github+json"}
    with httpx2.Client(base_url=described.url, headers=headers, timeout=30) as client:
        yield client


@pytest.fixture
def http(connection: httpx2.Client, github: FakeGitHub) -> httpx2.Client:  # noqa: ARG001 - it has to be there
    """A client of Prism; one for all tests, as making one reads every certificate of the machine."""
    return connection


@pytest.fixture(scope="session")
def recordings() -> Path:
    return fetched("recordings", "api.github.com")
