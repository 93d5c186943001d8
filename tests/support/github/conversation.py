"""The part of the fake's world that people write: comments, reviews and review comments."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from support.github.repo import node_id
from support.github.values import Kind, Row
from support.github.world import World, changes

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.github.values import Issue, Rules

_NODE_PREFIX = {Kind.COMMENT: "IC", Kind.REVIEW: "PRR", Kind.REVIEW_COMMENT: "PRRC"}
_FIRST_ID = 1001  # of each kind, so that the streams share numbers


class Conversation(World):
    """A world in which people write.

    Each kind numbers its rows from 1001 on. `created` is what the row shows as its creation; `visible`, not before
    it, is the moment it comes to light (pending review comments: later). `updated` is what it shows then; one after
    `visible` is an edit at that moment; without it the row shows the moment it came to light.
    """

    def __init__(self, clock: Callable[[], float], rules: Rules) -> None:
        super().__init__(clock, rules)
        self._next_row_id = dict.fromkeys(Kind, _FIRST_ID)

    @changes
    def comment(
        self,
        repo: str,
        number: int,
        author: str | None = "octocat",
        body: str | None = "A comment.",
        *,
        id: int | None = None,  # noqa: A002 - GitHub's own word
        created: float | None = None,
        updated: float | None = None,
        visible: float | None = None,
    ) -> int:
        """The id of a new comment in the conversation of an issue or pull request."""
        row = self._row(repo, number, Kind.COMMENT, author, body, id_=id, created=created)
        return self._write(repo, row, created, updated, visible)

    @changes
    def review_comment(
        self,
        repo: str,
        number: int,
        author: str | None = "octocat",
        body: str | None = "A review comment.",
        *,
        id: int | None = None,  # noqa: A002
        review_id: int | None = None,
        path: str = "README.md",
        line: int | None = 1,
        created: float | None = None,
        updated: float | None = None,
        visible: float | None = None,
    ) -> int:
        """The id of a new comment on a line of a pull request."""
        row = self._row(repo, number, Kind.REVIEW_COMMENT, author, body, id_=id, created=created)
        row = replace(row, review_id=review_id, path=path, line=line)
        return self._write(repo, row, created, updated, visible)

    @changes
    def review(
        self,
        repo: str,
        number: int,
        author: str | None = "octocat",
        body: str | None = "",
        *,
        state: str = "COMMENTED",
        id: int | None = None,  # noqa: A002
        created: float | None = None,
        visible: float | None = None,
    ) -> int:
        """The id of a new review, submitted at `visible` if that is later than `created`.

        `state` is COMMENTED, APPROVED, CHANGES_REQUESTED or DISMISSED.
        """
        submitted = max(self._moment(created), visible or 0.0)
        row = replace(self._row(repo, number, Kind.REVIEW, author, body, id_=id, created=submitted), state=state)
        return self._write(repo, row, submitted, None, None)

    @changes
    def edit_comment(
        self,
        repo: str,
        id: int,  # noqa: A002
        body: str | None = None,
        *,
        kind: Kind = Kind.COMMENT,
        at: float | None = None,
    ) -> None:
        """Change the text and `updated_at` of a row of any kind; `body=None` moves `updated_at` only."""
        self._edit(repo, kind, id, body, self._moment(at))

    @changes
    def delete_comment(
        self,
        repo: str,
        id: int,  # noqa: A002
        *,
        kind: Kind = Kind.COMMENT,
        at: float | None = None,
    ) -> None:
        """Take a row of any kind away; those behind it move up, over page edges too."""
        at = self._moment(at)
        where = self.repo(repo)
        number = where.rows[kind][id].state(0).number
        where.patch_row(kind, id, at, lambda row: replace(row, is_deleted=True))
        self._move_issue(repo, number, kind, at, -1)

    def _row(
        self,
        repo: str,
        number: int,
        kind: Kind,
        author: str | None,
        body: str | None,
        *,
        id_: int | None,
        created: float | None,
    ) -> Row:
        where = self.repo(repo)
        where.thread(number)
        id_ = self._next_row_id[kind] if id_ is None else id_
        if id_ in where.rows[kind]:
            raise ValueError(f"there is a {kind} {id_} already")
        self._next_row_id[kind] = max(self._next_row_id[kind], id_ + 1)
        when = int(self._moment(created))
        return Row(kind, id_, node_id(_NODE_PREFIX[kind], where.id, id_), number, author, body, when, when)

    def _write(self, repo: str, row: Row, created: float | None, updated: float | None, visible: float | None) -> int:
        at = max(self._moment(created), visible or 0.0)
        shown = int(at if updated is None else min(updated, at))
        self.repo(repo).add_row(at, replace(row, updated=shown))
        self._move_issue(repo, row.number, row.kind, at, 1)
        if updated is not None and updated > at:
            self._edit(repo, row.kind, row.id, None, updated)
        return row.id

    def _edit(self, repo: str, kind: Kind, id_: int, body: str | None, at: float) -> None:
        where, when = self.repo(repo), int(at)
        where.patch_row(kind, id_, at, lambda row: replace(row, body=row.body if body is None else body, updated=when))
        self._move_issue(repo, where.rows[kind][id_].state(0).number, kind, at, 0)

    def _move_issue(self, repo: str, number: int, kind: Kind, at: float, more: int) -> None:
        if kind is not Kind.COMMENT and not self.rules.reviews_move_issue:
            return
        counted = more if kind is Kind.COMMENT else 0

        def patch(issue: Issue) -> Issue:
            return replace(issue, comments=issue.comments + counted)

        self._patch_issue(repo, number, at, patch)
