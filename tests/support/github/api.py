"""The true answers of the GitHub fake: addresses, validators, rate limit, and pages kept until the world moves."""

from __future__ import annotations

import json
from email.utils import formatdate
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import unquote, urlencode, urlsplit

from support.github.conversation import Conversation
from support.github.limits import RateWindow, RateWindows
from support.github.query import Query, parse
from support.github.rows import Names, encode, user_json
from support.github.values import Answer, Kind, Rules, View
from support.github.views import Page, Viewer, failure, moved, not_found

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from support.github.repo import Repo

_KEPT_ADDRESSES = 500  # each may hold a body of some 200 kB
_JSON = "application/json; charset=utf-8"
_FIXED_HEADERS = {
    "Server": "github.com",
    "Cache-Control": "private, max-age=60, s-maxage=60",
    "Vary": "Accept, Authorization, Cookie, Accept-Encoding",
    "X-GitHub-Media-Type": "github.v3; format=json",
}
V = TypeVar("V")
_BOT = "the-loop-bot"  # who writes where no tokens tell


class Api(Conversation):
    """A world and its true answers, without faults and without a log."""

    def __init__(
        self,
        clock: Callable[[], float],
        rules: Rules,
        *,
        tokens: Mapping[str, str],
        base_url: str,
        web_url: str,
    ) -> None:
        super().__init__(clock, rules)
        self.tokens = dict(tokens)
        self.scopes: dict[str, str] = {}  # of classic tokens, as GitHub names them: "public_repo, read:org"
        self.unknown_logins: set[str] = set()  # in lower case; any other login has an account
        self._base_url, self._web_url = base_url.rstrip("/"), web_url
        self._queries: dict[str, Query | None] = {}
        self._pages: dict[str, Page] = {}
        self._windows = RateWindows()
        self._date = (-1, "")

    @property
    def base_url(self) -> str:
        """Where clients find this API, without a closing slash; links and rows follow it."""
        return self._base_url

    @base_url.setter
    def base_url(self, url: str) -> None:
        with self.lock:
            self._base_url = url.rstrip("/")
            self._queries.clear()
            self.generation += 1
            self.refold()

    def answer(self, method: str, target: str, asked: Mapping[str, str], body: bytes, now: float) -> tuple[Answer, int]:
        """The true answer and the points it cost; `asked`: the headers, with names in lower case."""
        window = self.window(asked, now)
        page = self._refusal(target, asked, window) or self._page(method, target, asked, body, now)
        is_free = page.view is View.RATE_LIMIT
        validator: dict[str, str] = {}
        if method == "GET" and page.status == 200 and not is_free:
            etag = page.etag(target, asked.get("authorization", ""), asked.get("accept", "*/*"))
            validator = {"ETag": etag}
            if etag[2:] in asked.get("if-none-match", ""):  # weak comparison: `W/` plays no part
                return Answer(304, {**self.head(window, now), **validator}), 0
        window.used += not is_free
        head = {**self.head(window, now), "Content-Type": _JSON, **validator, **self._scopes_of(asked), **page.headers}
        return Answer(page.status, head, page.body), int(not is_free)

    def window(self, asked: Mapping[str, str], now: float) -> RateWindow:
        """The rate limit window of whoever asks."""
        return self._windows.of(asked.get("authorization", ""), now, self._rules.rate_limit)

    def head(self, window: RateWindow, now: float) -> dict[str, str]:
        """The headers of every answer."""
        return {**_FIXED_HEADERS, "Date": self.http_date(now), **window.headers()}

    def http_date(self, now: float) -> str:
        """The `Date` header: the server's time, in whole seconds."""
        second = int(now)
        if self._date[0] != second:
            self._date = (second, formatdate(second, usegmt=True))
        return self._date[1]

    def _refusal(self, target: str, asked: Mapping[str, str], window: RateWindow) -> Page | None:
        """What is said without looking at the address."""
        if self._rules.require_user_agent and not asked.get("user-agent"):
            return failure(View.REPO, 403, "Please make sure your request has a User-Agent header")
        if self.tokens and self._login(asked) is None:
            known = "Bad credentials" if "authorization" in asked else "Requires authentication"
            return failure(View.REPO, 401, known)
        if window.is_exhausted() and not target.endswith("/rate_limit"):
            return failure(View.REPO, 403, "API rate limit exceeded for user ID 1.")
        return None

    def _login(self, asked: Mapping[str, str]) -> str | None:
        return self.tokens.get(_token(asked))

    def _scopes_of(self, asked: Mapping[str, str]) -> dict[str, str]:
        """What a classic token may do; fine-grained ones are not told."""
        token = _token(asked)
        return {"X-OAuth-Scopes": self.scopes[token]} if token in self.scopes else {}

    def _account(self, path: str, asked: Mapping[str, str]) -> Page | None:
        """`/user`, which needs a token, and `/users/LOGIN`; None for any other path."""
        kind, slash, login = path.partition("/")
        if kind == "user" and not slash:
            login = (self._login(asked) or _BOT) if _token(asked) else ""
        elif kind != "users" or not slash or "/" in login:
            return None
        if not login:
            return failure(View.USER, 401, "Requires authentication")
        if login.lower() in self.unknown_logins:
            return not_found(View.USER)
        return Page(View.USER, 200, encode(user_json(Names(self._base_url, self._web_url, ""), login)))

    def _page(self, method: str, target: str, asked: Mapping[str, str], body: bytes, now: float) -> Page:
        path = unquote(target.partition("?")[0].removeprefix(f"{urlsplit(self._base_url).path}/"))
        if method == "GET" and (account := self._account(path, asked)):
            return account
        query = self._query(target)
        if query is None or method not in {"GET", "POST"}:
            return not_found(View.REPO)
        if method == "POST":
            return self._write_comment(query, asked, body, now)
        if query.view is View.RATE_LIMIT:
            core = self.window(asked, now).numbers()
            return Page(query.view, 200, encode({"resources": {"core": core, "search": core}, "rate": core}))
        lag_s = self._rules.lag_s
        moment = now - (lag_s(query.view) if callable(lag_s) else lag_s)
        page = self._pages.get(target)
        if page is None or page.generation != self.generation or not page.start <= moment < page.end:
            page = self._look(query, moment)
            _keep(self._pages, target, page)
        return page

    def _query(self, target: str) -> Query | None:
        if target not in self._queries:
            prefix = urlsplit(self._base_url).path
            query = parse(target.removeprefix(prefix)) if target.startswith(f"{prefix}/") else None
            _keep(self._queries, target, query)
        return self._queries[target]

    def _look(self, query: Query, moment: float) -> Page:
        """A new page, marked with the time in which it stays true."""
        page, repo = self._elsewhere(query), self._repo(query)
        if page is None and repo is not None:
            names = Names(self._base_url, self._web_url, repo.name)
            page = Viewer(repo, names, moment, self._rules.since_inclusive).page(query)
            page.start, page.end = repo.window(query.view, query.number, moment)
        page = page or not_found(query.view)
        page.generation = self.generation
        return page

    def _repo(self, query: Query) -> Repo | None:
        """The repository that answers at this address, None for an unknown or removed one."""
        names, key = self._by_name, query.repo
        repo = self._by_id.get(key) if isinstance(key, int) else names.get(key.lower())
        return None if repo is None or repo.is_removed else repo

    def _elsewhere(self, query: Query) -> Page | None:
        """The redirect for a former name that nobody else has taken."""
        if isinstance(query.repo, int) or query.repo.lower() in self._by_name:
            return None
        repo = self._by_former_name.get(query.repo.lower())
        if repo is None:
            return None
        tail = f"?{urlencode(query.params)}" if query.params else ""
        return moved(query.view, f"{self._base_url}/repositories/{repo.id}{query.rest}{tail}")

    def _write_comment(self, query: Query, asked: Mapping[str, str], body: bytes, now: float) -> Page:
        """The 201 for a new comment, or why there is none."""
        if query.view is not View.THREAD:
            return not_found(query.view)
        page, repo = self._look(query, now), self._repo(query)
        if page.status != 200 or repo is None:
            page.status = 307 if page.status == 301 else page.status
            return page
        text = _text_of(body)
        if not text:
            return failure(query.view, 422, "Validation Failed")
        id_ = self.comment(repo.name, query.number, self._login(asked) or _BOT, text)
        timeline = repo.rows[Kind.COMMENT][id_]
        names = Names(self._base_url, self._web_url, repo.name)
        row = Viewer(repo, names, now, since_inclusive=True).row_json(timeline, 0)
        location = f"{names.repo_url}/issues/comments/{id_}"
        return Page(query.view, 201, row, {"Location": location})


def _token(asked: Mapping[str, str]) -> str:
    return asked.get("authorization", "").partition(" ")[2].strip()


def _text_of(body: bytes) -> str:
    """The text in the JSON of a new comment, empty if there is none."""
    try:
        value = json.loads(body)
    except ValueError:
        return ""
    text = value.get("body") if isinstance(value, dict) else None
    return text if isinstance(text, str) else ""


def _keep(cache: dict[str, V], target: str, value: V) -> None:
    if len(cache) >= _KEPT_ADDRESSES:
        cache.clear()
    cache[target] = value
