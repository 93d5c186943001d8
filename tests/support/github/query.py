"""What a request asks for: its address read as a `Query`, with the defaults and bounds GitHub puts in."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import parse_qsl, unquote, urlencode

from support.github.values import View

_REPO = re.compile(r"/(?:repos/(?P<name>[^/]+/[^/]+)|repositories/(?P<id>\d+))(?:/(?P<rest>.*))?")
_RESTS = (
    (re.compile(r"issues"), View.ISSUES),
    (re.compile(r"issues/comments"), View.COMMENTS),
    (re.compile(r"pulls/comments"), View.REVIEW_COMMENTS),
    (re.compile(r"issues/(\d+)"), View.ISSUE),
    (re.compile(r"issues/(\d+)/comments"), View.THREAD),
    (re.compile(r"pulls/(\d+)/comments"), View.PULL_COMMENTS),
    (re.compile(r"pulls/(\d+)/reviews"), View.REVIEWS),
    (re.compile(r"labels"), View.LABELS),
    (re.compile(r"labels/[^/]+"), View.LABEL),
)
_CHOICES = {
    "state": ("open", "closed", "all"),
    "sort": ("created", "updated", "comments"),
    "direction": ("asc", "desc"),
}


class BadQuery(ValueError):
    """A parameter has a value that GitHub answers with 422; the message names it."""


@dataclass(frozen=True, slots=True)
class Query:
    """One address. `repo` is the name as it was asked for, or the numeric id; `rest` the path below it."""

    view: View
    repo: str | int
    number: int  # of the issue, 0 where the path has none
    rest: str
    params: tuple[tuple[str, str], ...]

    def text(self, name: str, default: str) -> str:
        """The last value of a parameter. Raises BadQuery if GitHub knows other values only."""
        given = dict(self.params).get(name)
        if given is not None and name in _CHOICES and given not in _CHOICES[name]:
            raise BadQuery(name)
        return default if given is None else given

    def count(self, name: str, default: int, most: int) -> int:
        """A number from 1 to `most`; what is no such number counts as the default."""
        text = dict(self.params).get(name, "")
        return min(int(text), most) if text.isdecimal() and int(text) else default

    def since(self) -> int | None:
        """The `since` parameter in whole epoch seconds. Raises BadQuery."""
        text = dict(self.params).get("since")
        if text is None:
            return None
        try:
            moment = datetime.fromisoformat(text)
        except ValueError as exc:
            raise BadQuery("since") from exc
        return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())

    def target(self, page: int) -> str:
        """Path below the repository and query of another page of the same list."""
        params = [(name, value) for name, value in self.params if name != "page"]
        return f"{self.rest}?{urlencode([*params, ('page', str(page))])}"


def parse(target: str) -> Query | None:
    """The query behind a path with its query string, None for an address that does not exist."""
    path, _, tail = target.partition("?")
    params = tuple(parse_qsl(tail, keep_blank_values=True))
    if path == "/rate_limit":
        return Query(View.RATE_LIMIT, 0, 0, path, params)
    match = _REPO.fullmatch(path)
    if match is None:
        return None
    repo = unquote(match["name"]) if match["name"] else int(match["id"])
    rest = match["rest"] or ""
    if not rest:
        return Query(View.REPO, repo, 0, "", params)
    for pattern, view in _RESTS:
        if found := pattern.fullmatch(rest):
            return Query(view, repo, int(found[1]) if view.is_of_one_issue() else 0, f"/{rest}", params)
    return None
