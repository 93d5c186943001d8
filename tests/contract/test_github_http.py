"""Odd HTTP between us and GitHub: what it does to headers and bodies on their way costs requests at most."""

from __future__ import annotations

import asyncio
import gzip
import json
import time
import zlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from email.utils import formatdate, parsedate_to_datetime
from itertools import count
from pathlib import Path
from typing import Final

import httpx2
import pytest

from support.clock import NOON, Clock
from support.github import faults
from support.github.fake import FakeGitHub
from support.github.stories import LINGER_CYCLES, begun, everything_of, keys
from support.github.values import Answer
from support.http_server import FakeServer
from support.world import REPO, World, in_real_loop, scene
from the_loop.sources.base import SourceError
from the_loop.sources.github import client as client_module
from the_loop.sources.github.client import Client

YEAR: Final = 365 * 86_400
ROWS: Final = json.dumps([{"number": 1, "body": "x" * 5000}]).encode()
HEAD: Final = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
Handle = Callable[[str, str, Mapping[str, str], bytes], Answer]
Between = Callable[[Handle], Handle]


# --- what stands between: it changes questions and answers of a whole life ---


def _answers(change: Callable[[Answer], Answer]) -> Between:
    def between(handle: Handle) -> Handle:
        return lambda method, target, headers, body: change(handle(method, target, headers, body))

    return between


def _with_headers(change: Callable[[dict[str, str]], dict[str, str]]) -> Between:
    return _answers(lambda answer: replace(answer, headers=change(dict(answer.headers))))


def _without_validators(handle: Handle) -> Handle:
    """A proxy that drops `ETag`, as some do when they change the body's coding."""
    return _with_headers(lambda headers: {name: value for name, value in headers.items() if name != "ETag"})(handle)


def _never_unchanged(handle: Handle) -> Handle:
    """Servers behind one name that do not agree on validators: no answer is ever a 304."""
    numbers = count()

    def asked(method: str, target: str, headers: Mapping[str, str], body: bytes) -> Answer:
        plain = {name: value for name, value in headers.items() if name.lower() != "if-none-match"}
        answer = handle(method, target, plain, body)
        return replace(answer, headers={**answer.headers, "ETag": f'W/"{next(numbers)}"'})

    return asked


def _strong(headers: dict[str, str]) -> dict[str, str]:
    return {name: value.removeprefix("W/") if name == "ETag" else value for name, value in headers.items()}


def _lower_case(headers: dict[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


def _dated(change: Callable[[float], str | None]) -> Between:
    """The time of the answer, as `change` tells it."""

    def dated(headers: dict[str, str]) -> dict[str, str]:
        text = change(parsedate_to_datetime(headers["Date"]).timestamp())
        kept = {name: value for name, value in headers.items() if name != "Date"}
        return kept if text is None else {**kept, "Date": text}

    return _with_headers(dated)


BETWEEN: Final[dict[str, Between]] = {
    "nothing": lambda handle: handle,
    "no validators": _without_validators,
    "never unchanged": _never_unchanged,
    "strong validators": _with_headers(_strong),
    "lower case": _with_headers(_lower_case),
    "no links": _with_headers(lambda headers: {name: value for name, value in headers.items() if name != "Link"}),
    "no date": _dated(lambda _time: None),
    "garbage date": _dated(lambda _time: "some day"),
    "date without zone": _dated(lambda time: formatdate(time).replace("+0000", "-0000")),
    "date in another zone": _dated(lambda time: formatdate(time + 7200).replace("-0000", "+0200")),
    "date of fifty years ago": _dated(lambda time: formatdate(time - 50 * YEAR, usegmt=True)),
    "odd validators": _with_headers(
        lambda headers: {**headers, "ETag": 'W/"\xe9 \xff"'} if "ETag" in headers else headers
    ),
    "empty validators": _with_headers(lambda headers: {**headers, "ETag": ""} if "ETag" in headers else headers),
}


@pytest.fixture
def far_from_greenwich(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """So that a time without a zone, taken for local, is far off."""
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize("between", BETWEEN)
@pytest.mark.usefixtures("far_from_greenwich")
@in_real_loop
async def test_story_when_something_stands_between_then_all_arrives_once(
    tmp_path: Path, between: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Elsewhere validators, links and dates were relied on to be there, and lists of many pages never ended without."""
    world = scene(tmp_path)
    github = world.github
    monkeypatch.setattr(github, "handle", BETWEEN[between](github.handle))
    number = world.add_issue(created=NOON - 9000, pull_request=True)
    old = [github.comment(REPO, number, created=NOON - 8000 + n) for n in range(105)]
    others = [world.add_issue(created=NOON - 7000) for _ in range(100)]
    await world.cycle(times=3)
    assert everything_of(world, number) == ["spawn:1", *keys("comment", old)]
    assert sorted(world.ids()) == sorted(f"{one}/spawn:1" for one in (number, *others))

    new = [github.comment(REPO, number) for _ in range(105)]
    line = github.review_comment(REPO, number)
    github.close(REPO, others[0])
    github.unlabel(REPO, others[1], "auto")
    await world.cycle(times=2)
    github.label(REPO, others[1], "auto")
    world = world.restart()
    await world.cycle(times=LINGER_CYCLES)
    last = github.comment(REPO, others[1])
    await world.cycle()

    assert [key for key in world.ids(number) if key.startswith("comment")] == keys("comment", new)
    assert world.ids(number).count(f"review_comment:{line}") == 1
    assert world.ids(others[0]) == ["spawn:1", "close:1"]
    assert world.ids(others[1]) == ["spawn:1", f"comment:{last}"]
    assert world.told("source.failed") == []


@in_real_loop
async def test_date_when_a_year_ahead_once_then_later_comments_still_arrive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One machine behind the name has a wrong clock; a cursor taken from it must not lie in the future for good."""
    world = scene(tmp_path)
    ahead = _dated(lambda time: formatdate(time + YEAR, usegmt=True))
    number = world.add_issue()
    with monkeypatch.context() as patch:
        patch.setattr(world.github, "handle", ahead(world.github.handle))
        await world.cycle()
    world.github.comment(REPO, number)
    await world.cycle(times=2)

    assert world.ids(number) == ["spawn:1", "comment:1001"]


# --- bytes as they come from the wire ---


@asynccontextmanager
async def wire(*answers: bytes) -> AsyncIterator[str]:
    """The address of a server that sends these bytes, one for each request, and closes the connection after each."""
    left = list(answers)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(left.pop(0))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await server.wait_closed()


def sized(body: bytes, *headers: str) -> bytes:
    lines = "".join(f"{line}\r\n" for line in (*headers, f"Content-Length: {len(body)}"))
    return HEAD + lines.encode("latin-1") + b"\r\n" + body


def chunked(pieces: Sequence[bytes], *headers: str, end: bytes = b"0\r\n\r\n") -> bytes:
    lines = "".join(f"{line}\r\n" for line in (*headers, "Transfer-Encoding: chunked")).encode()
    return HEAD + lines + b"\r\n" + b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + end


def in_pieces(body: bytes, size: int) -> list[bytes]:
    return [body[start : start + size] for start in range(0, len(body), size)]


GOOD: Final = {
    "sized": sized(ROWS),
    "until the end": HEAD + b"Connection: close\r\n\r\n" + ROWS,
    "chunks": chunked(in_pieces(ROWS, 1000)),
    "chunks of a byte": chunked(in_pieces(ROWS, 1)),
    "chunks with a trailer": chunked([ROWS], end=b"0\r\nX-Sum: 1\r\n\r\n"),
    "gzip": sized(gzip.compress(ROWS), "Content-Encoding: gzip"),
    "gzip in chunks": chunked(in_pieces(gzip.compress(ROWS), 7), "Content-Encoding: gzip"),
    "deflate": sized(zlib.compress(ROWS), "Content-Encoding: deflate"),
    "byte order mark": sized(b"\xef\xbb\xbf" + ROWS),
    "early hints": b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" + sized(ROWS),
    "text": sized(ROWS).replace(b"application/json", b"text/plain"),
    "http/1.0": sized(ROWS).replace(b"HTTP/1.1", b"HTTP/1.0"),
}
BAD: Final = {
    "nothing": b"",
    "no http": b"SSH-2.0-OpenSSH_9.2\r\n",
    "half a head": HEAD[:30],
    "no length and half": HEAD + b"Connection: close\r\n\r\n" + ROWS[:99],
    "shorter than said": sized(ROWS)[:-1],
    "chunks cut": chunked(in_pieces(ROWS, 1000), end=b""),
    "chunks of nonsense": HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n" + ROWS,
    "two lengths": sized(ROWS, "Content-Length: 1"),
    "no gzip": sized(ROWS, "Content-Encoding: gzip"),
    "half a gzip": sized(gzip.compress(ROWS)[:-20], "Content-Encoding: gzip"),
    "unknown coding": sized(zlib.compress(ROWS), "Content-Encoding: br"),
    "endless head": HEAD + b"X: " + b"y" * 300_000,
    "not modified, unasked": b"HTTP/1.1 304 Not Modified\r\n\r\n",
    "partial": sized(ROWS).replace(b"200 OK", b"206 Partial Content"),
    "see other": sized(ROWS, "Location: /x").replace(b"200 OK", b"303 See Other"),
}


@pytest.mark.parametrize("answer", GOOD.values(), ids=GOOD)
@in_real_loop
async def test_answer_when_sent_in_any_way_of_http_then_is_read_whole(answer: bytes) -> None:
    async with wire(answer) as url:
        client = Client(url, lambda: None, now=time.time)
        got = await client.get("/x")
        await client.close()

    assert (got.status, got.value) == (200, json.loads(ROWS))


@pytest.mark.parametrize("answer", BAD.values(), ids=BAD)
@in_real_loop
async def test_answer_when_broken_on_its_way_then_is_no_answer(answer: bytes) -> None:
    async with wire(answer, sized(ROWS)) as url:
        client = Client(url, lambda: None, now=time.time)
        with pytest.raises(SourceError):
            await client.get("/x")
        again = await client.get("/x")
        await client.close()

    assert again.value == json.loads(ROWS)


@in_real_loop
async def test_answer_when_it_unpacks_to_something_huge_then_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fifty kilobytes on the wire, fifty megabytes in memory."""
    monkeypatch.setattr(client_module, "BODY_LIMIT", 1 << 20)
    async with wire(sized(gzip.compress(b'"' + b"x" * (50 << 20) + b'"'), "Content-Encoding: gzip")) as url:
        client = Client(url, lambda: None, now=time.time)
        with pytest.raises(SourceError, match="larger than"):
            await client.get("/x")
        await client.close()


@pytest.mark.parametrize("effect", [faults.hang(), faults.drip(5.0)], ids=["silent", "a byte every 5 s"])
@in_real_loop
async def test_peer_when_it_never_ends_its_answer_then_costs_one_limit_and_the_others_are_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, effect: faults.Effect
) -> None:
    """Elsewhere a peer accepted the connection and never answered; the poller waited for ever and nothing noticed."""
    monkeypatch.setattr(client_module, "REQUEST_LIMIT_S", 0.5)
    repos = ("octo/one", "octo/two", "octo/three")
    world = scene(tmp_path, repos=repos)
    for repo in repos:
        world.add_issue(repo=repo)
    with FakeServer(world.github) as server:
        world = world.restart(transport=httpx2.AsyncHTTPTransport(), section={"api_url": server.url})
        world.github.fail("octo/two", effect, times=None)
        began = time.monotonic()
        await world.cycle()
        took_s = time.monotonic() - began
        await world.stop()

    assert took_s < 5
    assert [got["ref"].rpartition("/")[2] for got in world.received] == ["one#1", "three#1"]
    assert (world.state, "octo/two: " in world.watched.error) == ("failing", True)


@pytest.mark.parametrize("status", [301, 302, 307, 308])
@pytest.mark.parametrize(
    "location",
    ["/repositories/42/issues?labels=auto", "{url}/repositories/42/issues?labels=auto", "../repositories/42"],
)
@in_real_loop
async def test_redirect_when_relative_or_absolute_then_leads_there(status: int, location: str) -> None:
    github = FakeGitHub(Clock())
    github.add_repo(REPO, id=42)
    with FakeServer(github) as server:
        github.fail("/repos/octo", faults.redirect(location.format(url=server.url), status))
        client = Client(server.url, lambda: "secret", now=time.time)
        answer = await client.get("/repos/octo")
        await client.close()

    assert answer.status == 200
    assert answer.moved.startswith("/repositories/42")


@pytest.mark.parametrize("page", [b"", b"<html>Unicorn!</html>", b'{"message":', b"null"])
@pytest.mark.parametrize("status", [500, 502, 503, 504])
@in_real_loop
async def test_server_error_with_any_page_then_nothing_changes(tmp_path: Path, status: int, page: bytes) -> None:
    world, number = await begun(tmp_path)
    before = world.ledger(number)
    fault = world.github.fail(".", faults.reply(status, page, {"Content-Type": "text/html"}), times=None)
    world.github.close(REPO, number)
    await world.cycle(times=3)
    assert (world.ledger(number), f"status {status}" in world.watched.error) == (before, True)
    world.github.faults.remove(fault)
    await world.cycle(times=5 + LINGER_CYCLES)

    assert world.ids(number) == ["spawn:1", "close:1"]


RETRY_AT: Final[dict[str, Callable[[float], dict[str, str]]]] = {
    "seconds": lambda _now: {"Retry-After": "600"},
    "date": lambda _now: {"Retry-After": "Tue, 14 Nov 2023 22:24:20 GMT"},  # 600 s after the first look's end
    "reset": lambda now: {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": str(int(now) + 600)},
}


@pytest.mark.parametrize("form", RETRY_AT)
@in_real_loop
async def test_limit_when_its_moment_is_told_in_any_form_then_is_waited_for(tmp_path: Path, form: str) -> None:
    world, number = await begun(tmp_path)
    limited_at = world.clock.now
    message = {"message": "You have exceeded a secondary rate limit."}
    world.github.fail(".", faults.reply(403, message, RETRY_AT[form](limited_at)))
    world.github.comment(REPO, number)
    await _until(world, limited_at + 700)

    moments = sorted({entry.time - limited_at for entry in world.github.log if entry.time > limited_at})
    assert 600 <= moments[0] <= 661
    assert world.ids(number) == ["spawn:1", "comment:1001"]


async def _until(world: World, moment: float) -> None:
    while world.clock.now < moment:
        await world.cycle()
