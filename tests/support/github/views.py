"""What the endpoints show: the world at one moment, filtered, sorted, cut into pages and written as JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from math import inf
from typing import TYPE_CHECKING, NamedTuple, TypeVar
from urllib.parse import unquote

from support.github.query import BadQuery, Query
from support.github.rows import Names, encode, issue_json, label_json, repo_json, row_json
from support.github.values import Kind, View

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from support.github.repo import Repo
    from support.github.timeline import Timeline
    from support.github.values import Issue, Row

T = TypeVar("T", "Issue", "Row")

_KIND = {
    View.COMMENTS: Kind.COMMENT,
    View.THREAD: Kind.COMMENT,
    View.REVIEW_COMMENTS: Kind.REVIEW_COMMENT,
    View.PULL_COMMENTS: Kind.REVIEW_COMMENT,
    View.REVIEWS: Kind.REVIEW,
}
_DOCS = "https://docs.github.com/rest"


@dataclass(slots=True)
class Page:
    """One answer and the time in which it stays true: from `start`, before `end`, in this `generation` of the world.

    `headers` are those of a full answer, which a 304 does not carry. Entity tags depend on who asks: kept by that.
    """

    view: View
    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    start: float = -inf
    end: float = inf
    generation: int = -1
    _digest: bytes = b""
    _etags: dict[tuple[str, str], str] = field(default_factory=dict)

    def etag(self, target: str, authorization: str, accept: str) -> str:
        """The weak validator of the body for this address, token and media type; links play no part."""
        key = (authorization, accept)
        if key not in self._etags:
            self._digest = self._digest or sha256(self.body).digest()
            asked = "\n".join((target, *key)).encode()
            self._etags[key] = f'W/"{sha256(asked + self._digest).hexdigest()}"'
        return self._etags[key]


class _Hit(NamedTuple):
    key: tuple[int, int]  # time and number, as asked for
    json: Callable[[], bytes]


def failure(view: View, status: int, message: str, **more: object) -> Page:
    """An answer in the form of GitHub's errors."""
    body = {"message": message, **more, "documentation_url": _DOCS}
    return Page(view, status, encode(body))


def not_found(view: View) -> Page:
    """The 404 that stands for absent as well as for hidden."""
    return failure(view, 404, "Not Found")


def moved(view: View, location: str) -> Page:
    """The answer of a renamed repository and of a transferred issue."""
    page = failure(view, 301, "Moved Permanently", url=location)
    page.headers = {"Location": location}
    return page


@dataclass(frozen=True, slots=True)
class Viewer:
    """Looks at one repository at one moment; `names` and `since_inclusive` are the world's."""

    repo: Repo
    names: Names
    moment: float
    since_inclusive: bool

    def page(self, query: Query) -> Page:
        """The answer to a query for this repository."""
        if query.view is View.REPO:
            return self._repository()
        if query.view is View.LABEL:
            return self._label(unquote(query.rest.removeprefix("/labels/")))
        if query.view is View.LABELS:
            labels = sorted(self._names_of_labels())
            return Page(query.view, 200, encode([label_json(self.names, label) for label in labels]))
        if query.number in self.repo.moved:
            target, number = self.repo.moved[query.number]
            rest = query.rest.replace(f"/{query.number}", f"/{number}", 1)
            return moved(query.view, f"{self.names.api}/repositories/{target.id}{rest}")
        issue = self._issue_at(query.number) if query.number else None
        if query.number and (issue is None or (query.view.is_of_pulls_only() and not issue.is_pull)):
            return not_found(query.view)
        if issue is not None and issue.is_deleted:
            return failure(query.view, 410, "This issue was deleted")
        if query.view is View.ISSUE:
            timeline = self.repo.threads[query.number].issue
            return Page(query.view, 200, self._issue_json(timeline, timeline.index(self.moment)))
        return self._list(query)

    def _repository(self) -> Page:
        issues = (self._issue_at(number) for number in self.repo.threads)
        opened = sum(issue is not None and issue.closed is None and not issue.is_deleted for issue in issues)
        return Page(View.REPO, 200, encode(repo_json(self.names, self.repo, opened)))

    def _names_of_labels(self) -> set[str]:
        issues = (self._issue_at(number) for number in self.repo.threads)
        return self.repo.labels.union(*(issue.labels for issue in issues if issue is not None))

    def _label(self, name: str) -> Page:
        labels = self._names_of_labels()
        found = next((label for label in labels if label.lower() == name.lower()), None)
        return not_found(View.LABEL) if found is None else Page(View.LABEL, 200, encode(label_json(self.names, found)))

    def _list(self, query: Query) -> Page:
        try:
            hits = self._issues(query) if query.view is View.ISSUES else self._rows(query)
            hits.sort(key=lambda hit: hit.key, reverse=_is_descending(query))
        except BadQuery as exc:
            error = {"resource": "Issue", "field": str(exc), "code": "invalid"}
            return failure(query.view, 422, "Validation Failed", errors=[error])
        size, number = query.count("per_page", 30, 100), query.count("page", 1, 10**9)
        rows = [hit.json() for hit in hits[(number - 1) * size : number * size]]
        page = Page(query.view, 200, b"[" + b",".join(rows) + b"]")
        links = _links(query, f"{self.names.api}/repositories/{self.repo.id}", number, -(-len(hits) // size))
        if links:
            page.headers = {"Link": links}
        return page

    def _issue_at(self, number: int) -> Issue | None:
        thread = self.repo.threads.get(number)
        return None if thread is None else thread.issue.at(self.moment)

    def _issues(self, query: Query) -> list[_Hit]:
        state, sort = query.text("state", "open"), query.text("sort", "created")
        labels = {label.strip().lower() for label in query.text("labels", "").split(",") if label.strip()}

        def key_of(issue: Issue) -> tuple[int, int] | None:
            is_wanted = state == "all" or (state == "open") == (issue.closed is None)
            if not is_wanted or not labels <= {label.lower() for label in issue.labels}:
                return None
            key = {"created": issue.created, "updated": issue.updated, "comments": issue.comments}[sort]
            return (key, issue.number)

        timelines = (thread.issue for thread in self.repo.threads.values())
        return self._hits(timelines, query, key_of, self._issue_json)

    def _rows(self, query: Query) -> list[_Hit]:
        kind = _KIND[query.view]
        sort = query.text("sort", "") if _is_sortable(query) else ""

        def key_of(row: Row) -> tuple[int, int]:
            return ({"created": row.created, "updated": row.updated}.get(sort, 0), row.id)

        timelines: Iterable[Timeline[Row]] = self.repo.rows[kind].values()
        if query.number:
            timelines = self.repo.threads[query.number].rows[kind]
        return self._hits(timelines, query, key_of, self.row_json)

    def _hits(
        self,
        timelines: Iterable[Timeline[T]],
        query: Query,
        key_of: Callable[[T], tuple[int, int] | None],
        json_of: Callable[[Timeline[T], int], bytes],
    ) -> list[_Hit]:
        since = None if query.view is View.REVIEWS else query.since()
        least = None if since is None else since + (not self.since_inclusive)
        hits = []
        for timeline in timelines:
            index = timeline.index(self.moment)
            if index < 0:
                continue
            state = timeline.state(index)
            is_old = least is not None and state.updated < least
            if not state.is_deleted and not is_old and (key := key_of(state)) is not None:
                hits.append(_Hit(key, partial(json_of, timeline, index)))
        return hits

    def _issue_json(self, timeline: Timeline[Issue], index: int) -> bytes:
        return timeline.json(index, lambda issue: encode(issue_json(self.names, issue)))

    def row_json(self, timeline: Timeline[Row], index: int) -> bytes:
        """The JSON of one state of a row."""

        def render(row: Row) -> bytes:
            is_pull = self.repo.threads[row.number].issue.state(0).is_pull
            return encode(row_json(self.names, row, is_pull=is_pull))

        return timeline.json(index, render)


def _is_sortable(query: Query) -> bool:
    """Whether the list takes `sort`; the comments and reviews of one thread come by id, whatever is asked."""
    return query.view in {View.ISSUES, View.COMMENTS, View.REVIEW_COMMENTS, View.PULL_COMMENTS}


def _is_descending(query: Query) -> bool:
    if query.view is View.ISSUES:
        return query.text("direction", "desc") == "desc"
    return _is_sortable(query) and "sort" in dict(query.params) and query.text("direction", "desc") == "desc"


def _links(query: Query, repository: str, page: int, pages: int) -> str:
    """The Link header; empty where there is one page only."""
    wanted = {}
    if page > 1:
        wanted["prev"] = min(page - 1, max(pages, 1))
    if page < pages:
        wanted |= {"next": page + 1, "last": pages}
    if page > 1:
        wanted["first"] = 1
    return ", ".join(f'<{repository}{query.target(to)}>; rel="{rel}"' for rel, to in wanted.items())
