"""One HTTP client for one GitHub API: asks once, says what the answer means, and never more than it knows.

Statuses that mean something about the thing asked for (200, 304, 404, 410, a redirect) come back as an `Answer`;
everything else is a `SourceError`, and a rate limit in any of its forms a `Limited` with the wait it named.
Rule: GitHub REST documentation, "Best practices" and "Rate limits".
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, Final
from urllib.parse import urljoin, urlsplit

import httpx2

from the_loop import __version__
from the_loop.sources.base import Limited, SourceError

REQUEST_LIMIT_S: Final = 30.0  # for one request as a whole, however slowly it trickles
BODY_LIMIT: Final = 64 << 20  # bytes
API_VERSION: Final = "2022-11-28"
_REDIRECTS: Final = (301, 302, 307, 308)
_LIMIT_WORDS: Final = ("rate limit", "abuse detection")
_SHORTEST_WAIT_S: Final = 60.0
_LONGEST_GUESS_S: Final = 900.0
_LONGEST_WAIT_S: Final = 86_400.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back. `value`: decoded JSON (200); `moved`: the path a redirect led to; `date`: epoch seconds."""

    status: int
    value: Any = None
    etag: str = ""
    date: float = 0.0
    moved: str = ""

    @property
    def is_unchanged(self) -> bool:
        return self.status == 304


class Client:
    """`token` is asked before each request, so that a file that changes is followed. `now` is epoch seconds."""

    def __init__(
        self,
        api_url: str,
        token: Callable[[], str | None],
        *,
        now: Callable[[], float],
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        self._base = api_url.rstrip("/")
        self._token = token
        self._now = now
        self._limits_in_a_row = 0
        self._http = httpx2.AsyncClient(
            transport=transport,
            timeout=httpx2.Timeout(REQUEST_LIMIT_S),
            headers={
                "Accept": "application/vnd.github+json",
                "User-Agent": f"the-loop/{__version__}",
                "X-GitHub-Api-Version": API_VERSION,
            },
        )

    async def get(self, path: str, etag: str = "") -> Answer:
        """Ask for `path` below the API's address, following redirects within it. Raises SourceError and Limited."""
        url = self._base + path
        moved = ""
        for _ in range(4):
            response, content = await self._ask(url, etag)
            if response.status_code not in _REDIRECTS:
                return self._answer(path, response, content, moved)
            url = self._redirected(url, response)
            moved = urlsplit(url).path.removeprefix(urlsplit(self._base).path)
        raise SourceError(f"{path}: redirected in a circle")

    async def close(self) -> None:
        await self._http.aclose()

    async def _ask(self, url: str, etag: str) -> tuple[httpx2.Response, bytes]:
        headers = {"If-None-Match": etag} if etag else {}
        if token := self._token():
            headers["Authorization"] = f"Bearer {token}"
        try:
            async with asyncio.timeout(REQUEST_LIMIT_S), self._http.stream("GET", url, headers=headers) as response:
                parts, size = [], 0
                async for part in response.aiter_bytes():
                    parts.append(part)
                    size += len(part)
                    if size > BODY_LIMIT:
                        raise SourceError(f"{url}: the answer is larger than {BODY_LIMIT} bytes")
                return response, b"".join(parts)
        except TimeoutError as error:
            raise SourceError(f"{url}: no answer within {REQUEST_LIMIT_S:.0f} s") from error
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise SourceError(f"{url}: {_cause(error)}") from error

    def _redirected(self, url: str, response: httpx2.Response) -> str:
        try:
            target = urljoin(url, response.headers.get("location", ""))
            is_ours = urlsplit(target)[:2] == urlsplit(self._base)[:2]
        except ValueError as error:
            raise SourceError(f"{url}: redirected to no address") from error
        if not is_ours:
            raise SourceError(f"{url}: redirected to another host, not followed")
        return target

    def _answer(self, path: str, response: httpx2.Response, content: bytes, moved: str) -> Answer:
        status, date = response.status_code, self._date(response)
        etag = response.headers.get("etag", "")
        if status == 304:
            self._limits_in_a_row = 0
            return Answer(304, etag=etag, date=date, moved=moved)
        value = _decoded(content)
        self._check_limit(path, response, value, date)
        if status == 200:
            if value is None:
                raise SourceError(f"{path}: the answer is not JSON")
            self._limits_in_a_row = 0
            return Answer(200, value, etag, date, moved)
        if status in (404, 410):
            return Answer(status, date=date, moved=moved)
        if status == 401:
            raise SourceError(f"{path}: the credentials were rejected (401)", "check the token of this source")
        if status == 403:
            raise SourceError(f"{path}: forbidden (403): {_message(value)}", "check what the token may read")
        raise SourceError(f"{path}: status {status} {_message(value)}".rstrip())

    def _check_limit(self, path: str, response: httpx2.Response, value: Any, date: float) -> None:
        """Raise Limited if this answer is one, in whichever of its forms."""
        status, headers = response.status_code, response.headers
        says_so = isinstance(value, dict) and any(word in _message(value).lower() for word in _LIMIT_WORDS)
        if status == 200 and not says_so:
            return
        if status not in (200, 403, 429):
            return
        wait_s = _number(headers.get("retry-after"))
        if wait_s is None and headers.get("x-ratelimit-remaining") == "0":
            reset = _number(headers.get("x-ratelimit-reset"))
            wait_s = None if reset is None else reset - date + 1
        if wait_s is None and (says_so or status == 429):
            wait_s = min(_SHORTEST_WAIT_S * 2**self._limits_in_a_row, _LONGEST_GUESS_S)
        if wait_s is not None:
            self._limits_in_a_row += 1
            raise Limited(f"{path}: rate limit ({status})", min(max(wait_s, 1.0), _LONGEST_WAIT_S))

    def _date(self, response: httpx2.Response) -> float:
        try:
            return parsedate_to_datetime(response.headers["date"]).timestamp()
        except (KeyError, ValueError, TypeError):
            return self._now()


def _decoded(content: bytes) -> Any:
    # NB: not the validator's own decoder: a lone surrogate in one comment must not cost the whole page
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None


def _message(value: Any) -> str:
    if not isinstance(value, dict):
        return ""
    errors = value.get("errors")
    return f"{value.get('message', '')} {json.dumps(errors)[:200] if errors else ''}".strip()[:300]


def _number(text: str | None) -> float | None:
    return float(text) if text is not None and text.isascii() and text.strip().isdigit() else None


def _cause(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": ")
