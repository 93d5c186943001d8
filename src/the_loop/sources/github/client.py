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
from the_loop.config import GITHUB_API_VERSION
from the_loop.sources.base import Limited, SourceError, Unanswered
from the_loop.sources.github.limits import RateLimiter, RateLimiters, fingerprint

REQUEST_LIMIT_S: Final = 30.0  # for one request as a whole, however slowly it trickles
BODY_LIMIT: Final = 64 << 20  # bytes
_ACCEPT: Final = "application/vnd.github+json"
_REDIRECTS: Final = (301, 302, 307, 308)
_SAME_METHOD: Final = (307, 308)
_LIMIT_WORDS: Final = ("rate limit", "abuse detection")
_LONGEST_WAIT_S: Final = 86_400.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back. `value`: decoded JSON; `moved`: the path a redirect led to; `date`: epoch seconds.

    `next` is the path of the following page; None if there is one at an address that is not within this API.

    `etag` is the validator to send with the next question. It names the token that it holds for, and is not sent
    with another one: what an API shows depends on who asks.
    """

    status: int
    value: Any = None
    etag: str = ""
    date: float = 0.0
    moved: str = ""
    next: str | None = ""

    @property
    def is_unchanged(self) -> bool:
        return self.status == 304


@dataclass(frozen=True, slots=True)
class _Request:
    """One request as it is sent; `bound` is what its answer's validator holds for, `clock` its token's."""

    path: str
    method: str
    url: str
    headers: dict[str, str]
    body: bytes | None
    bound: str
    limiter: RateLimiter


class Client:
    """`token` is asked before each request, so that a file that changes is followed. `now` is epoch seconds.

    Proxies and certificate stores are those that the environment names, as other programs take them.
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
    ) -> None:
        self._base = api_url.rstrip("/")
        self._token = token
        self._now = now
        self._limiters = limiters or RateLimiters(now)
        self._version = api_version
        self._transport = transport
        self._http: httpx2.AsyncClient | None = None
        self._limiter: RateLimiter | None = None  # of the token that was used last

    async def get(self, path: str, etag: str = "") -> Answer:
        """Ask for `path` below the API's address, following redirects within it. Raises SourceError and Limited."""
        return await self._ask("GET", path, etag=etag)

    async def post(self, path: str, value: Any) -> Answer:
        """Send `value`. The answers of 400 to 499 that are no limit come back: then nothing was done.

        Raises Limited, where nothing was done either, and SourceError, where that is not known.
        """
        return await self._ask("POST", path, body=json.dumps(value).encode())

    @property
    def is_short(self) -> bool:
        """True if the points that are left have to be kept for what is known already."""
        return self._limiter is not None and self._limiter.is_short

    async def close(self) -> None:
        """Let go of the connections; another question opens new ones."""
        if self._http is not None:
            await self._http.aclose()
            self._http = None

    # --- asking ---

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
        raise SourceError(f"{path}: redirected in a circle")

    def _request(self, path: str, method: str, url: str, etag: str, body: bytes | None) -> _Request:
        token = self._token()
        if token is not None and not (token.isascii() and token.isprintable() and " " not in token):
            raise SourceError("the token has characters in it that cannot be sent")
        bound = fingerprint(self._base, token or "", _ACCEPT, self._version)
        made_for, _, validator = etag.partition(" ")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        if validator and made_for == bound:
            headers["If-None-Match"] = validator
        if body is not None:
            headers["Content-Type"] = "application/json"
        return _Request(path, method, url, headers, body, bound, self._limiter_of(token))

    def _limiter_of(self, token: str | None) -> RateLimiter:
        """The token's clock. A token that was renewed is under the limits of the one before."""
        limiter = self._limiters.of(self._base, token)
        if self._limiter is not None and self._limiter is not limiter and self._limiter.wait_left_s > 0:
            limiter.resume(self._limiter.wait_left_s, self._limiter.wait_left_s)
        self._limiter = limiter
        return limiter

    async def _send(self, request: _Request) -> tuple[httpx2.Response, bytes]:
        url, http = request.url, self._opened()
        try:
            async with (
                asyncio.timeout(REQUEST_LIMIT_S),
                http.stream(request.method, url, headers=request.headers, content=request.body) as response,
            ):
                parts, size = [], 0
                async for part in response.aiter_bytes():
                    parts.append(part)
                    size += len(part)
                    if size > BODY_LIMIT:
                        raise SourceError(f"{url}: the answer is larger than {BODY_LIMIT} bytes")
                return response, b"".join(parts)
        except TimeoutError as error:
            raise Unanswered(f"{url}: no answer within {REQUEST_LIMIT_S:.0f} s") from error
        except (httpx2.LocalProtocolError, UnicodeEncodeError):
            # its own text would quote what cannot be sent, the token included
            raise SourceError(f"{url}: the request cannot be sent as it is") from None
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise Unanswered(f"{url}: {_cause(error)}") from error

    def _opened(self) -> httpx2.AsyncClient:
        """The connections, made with the first request: what the environment says of proxies may be wrong."""
        if self._http is None:
            headers = {
                "Accept": _ACCEPT,
                "User-Agent": f"the-loop/{__version__}",
                "X-GitHub-Api-Version": self._version,
            }
            timeout = httpx2.Timeout(REQUEST_LIMIT_S)
            try:
                self._http = httpx2.AsyncClient(transport=self._transport, timeout=timeout, headers=headers)
            except ImportError as error:
                problem = "the environment names a SOCKS proxy, and the extra `socks` of httpx2 is not installed"
                raise SourceError(problem, "look at ALL_PROXY, HTTPS_PROXY and HTTP_PROXY") from error
            except (ValueError, httpx2.InvalidURL, OSError) as error:
                problem = f"cannot use the proxy or the certificates that the environment names: {_cause(error)}"
                hint = "look at HTTPS_PROXY, HTTP_PROXY, ALL_PROXY, SSL_CERT_FILE and SSL_CERT_DIR"
                raise SourceError(problem, hint) from error
        return self._http

    def _redirected(self, url: str, response: httpx2.Response) -> str:
        try:
            target = urljoin(url, response.headers.get("location", ""))
            is_ours = urlsplit(target)[:2] == urlsplit(self._base)[:2]
        except ValueError as error:
            raise SourceError(f"{url}: redirected to no address") from error
        if not is_ours:
            raise SourceError(f"{url}: redirected to another host, not followed")
        return target

    # --- what it means ---

    def _answer(self, request: _Request, response: httpx2.Response, content: bytes, moved: str) -> Answer:
        path, status, date = request.path, response.status_code, self._date(response)
        etag = _validator(response)
        etag = f"{request.bound} {etag}" if etag else ""
        request.limiter.note_left(
            _number(response.headers.get("x-ratelimit-remaining")), _number(response.headers.get("x-ratelimit-limit"))
        )
        if status == 304:
            if "If-None-Match" not in request.headers:
                raise SourceError(f"{path}: status 304 to a question without a validator")
            request.limiter.clear()
            return Answer(304, etag=etag, date=date, moved=moved)
        value = _decoded(content)
        _check_limit(request, response, value, date)
        if status in (200, 201):
            if value is None:
                raise SourceError(f"{path}: the answer is not JSON")
            request.limiter.clear()
            return Answer(status, value, etag, date, moved, self._next(response))
        if status in (404, 410) or (request.method == "POST" and 400 <= status < 500):
            return Answer(status, value, date=date, moved=moved)
        if status == 401:
            was_sent = "Authorization" in request.headers
            hint = "check the token of this source" if was_sent else "none were sent: set tokenFile or $GITHUB_TOKEN"
            raise SourceError(f"{path}: the credentials were rejected (401)", hint)
        if status == 403:
            raise SourceError(f"{path}: forbidden (403): {_message(value)}", "check what the token may read")
        kind = Unanswered if status >= 500 else SourceError
        raise kind(f"{path}: status {status} {_message(value)}".rstrip())

    def _next(self, response: httpx2.Response) -> str | None:
        """A link is followed within this API only: the token goes nowhere else."""
        if "next" not in response.links:
            return ""
        try:
            link = urljoin(str(response.url), response.links["next"].get("url", ""))
        except ValueError:
            return None
        return link.removeprefix(self._base) if link.startswith(f"{self._base}/") else None

    def _date(self, response: httpx2.Response) -> float:
        try:
            return parsedate_to_datetime(response.headers["date"]).timestamp()
        except (KeyError, ValueError, TypeError, OverflowError):
            return self._now()


def _check_limit(request: _Request, response: httpx2.Response, value: Any, date: float) -> None:
    """Raise Limited if this answer is one, in whichever of its forms."""
    status, headers = response.status_code, response.headers
    says_so = isinstance(value, dict) and any(word in _message(value).lower() for word in _LIMIT_WORDS)
    if status == 200 and not says_so:
        return
    if status not in (200, 403, 429):
        return
    wait_s = _seconds(headers.get("retry-after"), date)
    if wait_s is None and headers.get("x-ratelimit-remaining") == "0":
        reset = _number(headers.get("x-ratelimit-reset"))
        wait_s = None if reset is None else reset - date + 1
    if wait_s is None and (says_so or status == 429):
        wait_s = request.limiter.guess_s()
    if wait_s is not None:
        wait_s = min(max(wait_s, 1.0), _LONGEST_WAIT_S)
        request.limiter.hold(wait_s)
        raise Limited(f"{request.path}: rate limit ({status})", wait_s)


def _decoded(content: bytes) -> Any:
    # NB: not the validator's own decoder: a lone surrogate in one comment must not cost the whole page
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None


def _message(value: Any) -> str:
    if not isinstance(value, dict):
        return ""
    try:
        errors = json.dumps(value["errors"])[:200] if value.get("errors") else ""
    except RecursionError:
        errors = ""
    return f"{str(value.get('message', ''))[:300]} {errors}".strip()


def _validator(response: httpx2.Response) -> str:
    """What can be sent back as it came; some things that stand between make odd ones."""
    etag = response.headers.get("etag", "")
    return etag if etag.isascii() and etag.isprintable() else ""


def _seconds(text: str | None, date: float) -> float | None:
    """A wait that is given in seconds, or as a moment (RFC 9110, section 10.2.3)."""
    seconds = _number(text)
    if seconds is not None or text is None:
        return seconds
    try:
        return parsedate_to_datetime(text).timestamp() - date
    except (ValueError, TypeError, OverflowError):
        return None


def _number(text: str | None) -> float | None:
    return float(text) if text is not None and text.isascii() and text.strip().isdigit() else None


def _cause(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": ")
