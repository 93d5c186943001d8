"""Values of the GitHub fake: what an issue and a comment are at one moment, and the rules the fake plays by.

All times are epoch seconds. Times that GitHub shows (`created`, `updated`, …) are whole seconds, moments at which
the world changes may have fractions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class Kind(StrEnum):
    """What is written on an issue; each kind has its own stream of ids, and the streams share numbers."""

    COMMENT = "comment"
    REVIEW = "review"
    REVIEW_COMMENT = "review_comment"


class View(StrEnum):
    """One kind of endpoint; `Rules.lag_s` may differ between them."""

    REPO = "repo"
    ISSUES = "issues"
    LABEL = "label"
    LABELS = "labels"  # of the repository, all on one page
    ISSUE = "issue"
    COMMENTS = "comments"  # of the whole repository
    THREAD = "thread"  # the comments of one issue
    REVIEW_COMMENTS = "review_comments"  # of the whole repository
    PULL_COMMENTS = "pull_comments"  # the review comments of one pull request
    REVIEWS = "reviews"
    RATE_LIMIT = "rate_limit"
    USER = "user"

    def is_of_one_issue(self) -> bool:
        """Whether the path of this endpoint carries an issue number."""
        return self in {View.ISSUE, View.THREAD, View.PULL_COMMENTS, View.REVIEWS}

    def is_of_pulls_only(self) -> bool:
        """Whether this endpoint answers 404 for the number of a plain issue."""
        return self in {View.PULL_COMMENTS, View.REVIEWS}


@dataclass(frozen=True, slots=True)
class Issue:
    """An issue or pull request at one moment."""

    id: int
    node_id: str
    number: int
    title: str
    body: str | None
    author: str | None  # None: the account was deleted
    labels: tuple[str, ...]
    is_pull: bool
    created: int
    updated: int
    closed: int | None = None  # None: open
    state_reason: str | None = None
    merged: int | None = None
    comments: int = 0  # reviews and review comments are not counted
    is_deleted: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """A comment, review or review comment at one moment."""

    kind: Kind
    id: int
    node_id: str
    number: int  # of its issue
    author: str | None
    body: str | None
    created: int
    updated: int
    state: str = "COMMENTED"  # reviews only
    review_id: int | None = None  # review comments only, as are the next two
    path: str = "README.md"
    line: int | None = 1
    is_deleted: bool = False


@dataclass(frozen=True, slots=True)
class Rules:
    """How this GitHub behaves where the real one varies.

    `lag_s`: answers show the world as it was that many seconds ago; one number, or asked for each request by its
    `View`. `coalesce_s`: the `updated_at` of an issue does not move again within that many seconds.
    `reviews_move_issue`: whether reviews and review comments move it at all. `rate_limit`: points per token and hour.
    """

    since_inclusive: bool = True
    lag_s: float | Callable[[View], float] = 0.0
    coalesce_s: float = 0.0
    reviews_move_issue: bool = True
    rate_limit: int = 5000
    require_user_agent: bool = True


@dataclass(frozen=True, slots=True)
class Answer:
    """One HTTP answer and how it is sent.

    `hang`: nothing is ever sent. `drip_s`: if not 0, one byte is sent every so many seconds, head included.
    `cut`: the connection is closed after half the body, which the head had promised whole.
    """

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    hang: bool = False
    drip_s: float = 0.0
    cut: bool = False


class Request(NamedTuple):
    """One entry of the request log; numbers start at 1, header names are lower case, status 0 is a hang."""

    number: int
    time: float
    method: str
    target: str
    headers: Mapping[str, str]
    status: int
    points: int
