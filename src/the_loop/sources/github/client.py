"""The HTTP client of one GitHub API: sends a request once and classifies the response.

Statuses that say something about the requested resource (200, 304, 404, 410, a redirect) are returned as an `Answer`;
everything else raises `SourceError`, and a rate limit in any of its forms `Limited` with the wait that it named.
Rule: GitHub REST documentation, "Best practices" and "Rate limits".
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any, Final
from urllib.parse import urljoin, urlsplit

import httpx2

from the_loop import __version__
from the_loop.sources.base import Limited, SourceError, Unanswered, Usage
from the_loop.sources.github.page_sizes import PageSizes
from the_loop.sources.github.pages import has_too_many_values
from the_loop.sources.github.refusals import check_limit, message_of, number_of, sso_hint
from the_loop.sources.github.section import GITHUB_API_VERSION
from the_loop.sources.http import Http, TooMuch
from the_loop.sources.limits import RateLimiter, RateLimiters, fingerprint
from the_loop.sources.section import normal
from the_loop.sources.tokens import Token

REQUEST_LIMIT_S: Final = 30.0  # for one request in total, also if data keeps arriving slowly
BODY_LIMIT: Final = 32 << 20  # bytes; a page of a hundred texts of 64 Ki characters has less
_ACCEPT: Final = "application/vnd.github+json"
_REDIRECTS: Final = (301, 302, 307, 308)
_PORTS: Final = {"http": 80, "https": 443}
_SAME_METHOD: Final = (307, 308)


class Rejected(SourceError):
    """The token is not valid (401)."""


class Unprocessable(SourceError):
    """The request makes no sense to the server (422): of a list, a page behind the last one that it returns."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A response. `value`: decoded JSON; `moved`: the path that a redirect led to; `date`: epoch seconds.

    `next` is the path of the next page, "" if there is none; None if its address is outside this API.

    `etag` is the validator for the next request. It contains a fingerprint of its token and is not sent with another
    one: the content of a response depends on who asks.
    """

    status: int
    value: Any = None
    etag: str = ""
    date: float = 0.0
    moved: str = ""
    next: str | None = ""
    headers: Mapping[str, str] = field(default_factory=dict)  # in any case of letters

    @property
    def is_unchanged(self) -> bool:
        return self.status == 304


@dataclass(frozen=True, slots=True)
class _Request:
    """One request. `bound`: fingerprint that its validator is valid for; `limiter`: the rate limiter of its token."""

    path: str
    method: str
    url: str
    headers: dict[str, str]
    body: bytes | None
    bound: str
    limiter: RateLimiter


class Client:
    """`token` is called before each request, so that a changed token file is used. `now` returns epoch seconds.

    Proxies and certificate stores are taken from the environment ($HTTPS_PROXY, $SSL_CERT_FILE, …).
    """

    def __init__(
        self,
        api_url: str,
        token: Callable[[], str | None],
        *,
        now: Callable[[], float],
        limiters: RateLimiters | None = None,
        api_version: str = GITHUB_API_VERSION,
        transport: httpx2.AsyncBaseTransport | None = None,
        first_limiter: RateLimiter | None = None,
        page_sizes: PageSizes | None = None,
    ) -> None:
        self._base = normal(api_url).rstrip("/")
        self._token = token
        self._sent: str | None = None  # the token of the last request
        self._now = now
        self._limiters = limiters or RateLimiters(now)
        self._version = api_version
        headers = {
            "Accept": _ACCEPT,
            "User-Agent": f"the-loop/{__version__}",
            "X-GitHub-Api-Version": api_version,
        }
        self._http = Http(headers, transport)
        self._limiter = first_limiter  # of the token of the last request
        self.page_sizes = page_sizes or PageSizes(now)
        self._requests = 0

    async def get(self, path: str, etag: str = "") -> Answer:
        """GET `path` below the API's address, following redirects within it. Raises SourceError and Limited."""
        return await self._renewing(lambda: self._ask("GET", path, etag=etag))

    async def post(self, path: str, value: Any) -> Answer:
        """POST `value` as JSON. A status of 400 to 499 that is not a rate limit is returned: nothing was done then.

        Raises Limited, with nothing done, and SourceError, with the outcome unknown.
        """
        return await self._renewing(lambda: self._ask("POST", path, body=json.dumps(value).encode()))

    @property
    def is_anonymous(self) -> bool:
        """True if requests are sent without a token. Raises SourceError."""
        return self._token() is None

    @property
    def is_short(self) -> bool:
        """True if the remaining requests of the hour have to be reserved for known items."""
        return self._limiter is not None and self._limiter.is_short

    def usage(self) -> Usage:
        """The requests that were sent, and what the rate limiter of the last one's token has left."""
        limiter = self._limiter
        left, limit = (None, None) if limiter is None else (limiter.points_left, limiter.points_limit)
        return Usage(self._requests, left, limit)

    async def close(self) -> None:
        """Close the connections; another request opens new ones."""
        await self._http.close()

    # --- requests ---

    async def _renewing(self, ask: Callable[[], Awaitable[Answer]]) -> Answer:
        """Ask, and once more if the token was rejected (nothing was done then) and there is another one now."""
        token = self._token
        if isinstance(token, Token) and not token.is_printed:
            await token.renew()
        try:
            answer = await ask()
            if answer.status != 401 or not await self._is_replaced():
                return answer
        except Rejected:
            if not await self._is_replaced():
                raise
        return await ask()

    async def _is_replaced(self) -> bool:
        """True if the token is another one than was sent, after its command has run again. Raises SourceError."""
        if not isinstance(self._token, Token):
            return False
        await self._token.renew()
        return self._token() != self._sent

    async def _ask(self, method: str, path: str, *, etag: str = "", body: bytes | None = None) -> Answer:
        url, moved = self._base + path, ""
        for _ in range(4):
            request = self._request(path, method, url, etag, body)
            async with request.limiter.turn:
                if request.limiter.wait_left_s > 0:
                    raise Limited(f"{path}: the rate limit of this token", request.limiter.wait_left_s)
                response, content = await self._send(request)
                status = response.status_code
                if status not in _REDIRECTS:
                    return self._answer(request, response, content, moved)
            if method != "GET" and status not in _SAME_METHOD:
                raise SourceError(f"{path}: moved ({status})")
            url = self._redirected(url, response)
            moved = urlsplit(url).path.removeprefix(urlsplit(self._base).path)
        raise SourceError(f"{path}: too many redirects")

    def _request(self, path: str, method: str, url: str, etag: str, body: bytes | None) -> _Request:
        token = self._sent = self._token()
        if token is not None and not (token.isascii() and token.isprintable() and " " not in token):
            raise SourceError("the token contains characters that cannot be sent", "check the token of this source")
        bound = fingerprint(self._base, token or "", _ACCEPT, self._version)
        made_for, _, validator = etag.partition(" ")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        if validator and made_for == bound:
            headers["If-None-Match"] = validator
        if body is not None:
            headers["Content-Type"] = "application/json"
        return _Request(path, method, url, headers, body, bound, self._limiter_of(token))

    def _limiter_of(self, token: str | None) -> RateLimiter:
        """The rate limiter of the token. A renewed token takes over the wait of the previous one."""
        limiter = self._limiters.of(self._base, token)
        if self._limiter is not None and self._limiter is not limiter and self._limiter.wait_left_s > 0:
            limiter.resume(self._limiter.wait_left_s, self._limiter.wait_left_s)
        self._limiter = limiter
        return limiter

    async def _send(self, request: _Request) -> tuple[httpx2.Response, bytes]:
        self._requests += 1
        return await self._http.send(
            request.method,
            request.url,
            shown=request.url,
            headers=request.headers,
            body=request.body,
            limit_s=REQUEST_LIMIT_S,
            size=BODY_LIMIT,
        )

    def _redirected(self, url: str, response: httpx2.Response) -> str:
        try:
            target = normal(urljoin(url, response.headers.get("location", "")))
            is_ours = _origin(target) == _origin(self._base)
        except ValueError as error:
            raise SourceError(f"{url}: redirected to an invalid address") from error
        if not is_ours:
            raise SourceError(f"{url}: redirected to another host, not followed")
        return target

    # --- responses ---

    def _answer(self, request: _Request, response: httpx2.Response, content: bytes, moved: str) -> Answer:
        path, status, date = request.path, response.status_code, self._date(response)
        etag = _validator(response)
        etag = f"{request.bound} {etag}" if etag else ""
        request.limiter.note_left(
            number_of(response.headers.get("x-ratelimit-remaining")),
            number_of(response.headers.get("x-ratelimit-limit")),
        )
        if status == 304:
            if "If-None-Match" not in request.headers:
                raise SourceError(f"{path}: status 304 to a request without a validator")
            request.limiter.clear()
            return Answer(304, etag=etag, date=date, moved=moved)
        if has_too_many_values(content):
            raise TooMuch(f"{path}: the response has more values than a page", is_sure=True)
        value = _decoded(content)
        check_limit(path, request.method, response, value, date=date, limiter=request.limiter)
        if status in (200, 201):
            if value is None:
                raise SourceError(f"{path}: the response is not JSON")
            request.limiter.clear()
            return Answer(status, value, etag, date, moved, self._next(response), response.headers)
        if status in (404, 410) or (request.method == "POST" and 400 <= status < 500):
            return Answer(status, value, date=date, moved=moved, headers=response.headers)
        if status == 401:
            was_sent = "Authorization" in request.headers
            hint = getattr(self._token, "hint", "check the token of this source")
            hint = hint if was_sent else "no token was sent: set tokenFile or $GITHUB_TOKEN"
            raise Rejected(f"{path}: the credentials were rejected (401)", hint)
        if status == 403:
            raise SourceError(
                f"{path}: forbidden (403): {message_of(value)}",
                sso_hint(response) or "check the permissions of the token",
            )
        raise _kind_of(status)(f"{path}: status {status} {message_of(value)}".rstrip())

    def _next(self, response: httpx2.Response) -> str | None:
        """The path of the next page. A link out of this API is not followed: the token must not be sent there."""
        if "next" not in response.links:
            return ""
        try:
            link = normal(urljoin(str(response.url), response.links["next"].get("url", "")))
        except ValueError:
            return None
        return link.removeprefix(self._base) if link.startswith(f"{self._base}/") else None

    def _date(self, response: httpx2.Response) -> float:
        try:
            return parsedate_to_datetime(response.headers["date"]).timestamp()
        except (KeyError, ValueError, TypeError, OverflowError):
            return self._now()


def _kind_of(status: int) -> type[SourceError]:
    if status in (502, 504):
        return TooMuch
    if status >= 500:
        return Unanswered
    return Unprocessable if status == 422 else SourceError


def _origin(url: str) -> tuple[str, str | None, int | None]:
    """Scheme, host and port as URLs are compared (RFC 3986, section 6.2). Raises ValueError for an invalid port."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or _PORTS.get(parts.scheme)


def _decoded(content: bytes) -> Any:
    # NB: not msgspec's decoder: a lone surrogate in one comment would make it reject the whole page
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None


def _validator(response: httpx2.Response) -> str:
    """The ETag, "" if it cannot be sent back unchanged: some proxies return invalid ones."""
    etag = response.headers.get("etag", "")
    return etag if etag.isascii() and etag.isprintable() else ""
