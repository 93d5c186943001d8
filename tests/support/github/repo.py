"""One repository of the GitHub fake: its issues, what is written on them, and when each answer changes."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from support.github.timeline import Moments, Timeline
from support.github.values import Issue, Kind, Row, View

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_VIEWS_OF_KIND = {
    Kind.COMMENT: (View.COMMENTS, View.THREAD),
    Kind.REVIEW: (None, View.REVIEWS),
    Kind.REVIEW_COMMENT: (View.REVIEW_COMMENTS, View.PULL_COMMENTS),
}
_VIEWS_BELOW_ISSUE = (View.THREAD, View.PULL_COMMENTS, View.REVIEWS)


def node_id(prefix: str, *numbers: int) -> str:
    """An opaque global id, the same for the same arguments; no two kinds share one."""
    packed = b"".join(number.to_bytes(6, "big") for number in numbers)
    return f"{prefix}_{urlsafe_b64encode(packed).decode().rstrip('=')}"


@dataclass(slots=True)
class Thread:
    """One issue or pull request with all that is written on it."""

    issue: Timeline[Issue]
    rows: dict[Kind, list[Timeline[Row]]] = field(default_factory=lambda: {kind: [] for kind in Kind})


@dataclass(slots=True)
class Repo:
    """A repository; `name` is `owner/name` as it is spelt now, `moved` tells where transferred issues went."""

    id: int
    name: str
    created: int
    is_removed: bool = False
    labels: set[str] = field(default_factory=lambda: {"auto"})  # and those that issues carry
    threads: dict[int, Thread] = field(default_factory=dict)
    rows: dict[Kind, dict[int, Timeline[Row]]] = field(default_factory=lambda: {kind: {} for kind in Kind})
    moved: dict[int, tuple[Repo, int]] = field(default_factory=dict)
    _moments: defaultdict[tuple[View, int], Moments] = field(default_factory=lambda: defaultdict(Moments))

    def next_number(self) -> int:
        """The number the next issue gets; numbers are never given twice."""
        return max((*self.threads, *self.moved), default=0) + 1

    def thread(self, number: int) -> Thread:
        """The thread with this number. Raises KeyError: a test names only what it made."""
        return self.threads[number]

    def add_thread(self, at: float, issue: Issue) -> None:
        """Show `issue` from the moment `at`."""
        self.threads[issue.number] = Thread(Timeline(at, issue))
        self._mark_issue(issue.number, at)
        self._mark_existence(issue.number, at)

    def patch_issue(self, number: int, at: float, patch: Callable[[Issue], Issue]) -> None:
        """Change the issue from the moment `at`."""
        self._mark_issue(number, self.threads[number].issue.patch(at, patch))

    def drop_thread(self, number: int, at: float) -> None:
        """Take the issue and all that is written on it away from the moment `at`."""
        thread = self.threads[number]
        for kind, rows in thread.rows.items():
            for row in rows:
                self.patch_row(kind, row.state(0).id, at, lambda row: replace(row, is_deleted=True))
        self.patch_issue(number, at, lambda issue: replace(issue, is_deleted=True))
        self._mark_existence(number, at)

    def add_row(self, at: float, row: Row) -> None:
        """Show `row` from the moment `at`."""
        timeline = Timeline(at, row)
        self.rows[row.kind][row.id] = timeline
        self.threads[row.number].rows[row.kind].append(timeline)
        self._mark_row(row, at)

    def patch_row(self, kind: Kind, id_: int, at: float, patch: Callable[[Row], Row]) -> None:
        """Change the row from the moment `at`. Raises KeyError."""
        timeline = self.rows[kind][id_]
        self._mark_row(timeline.state(0), timeline.patch(at, patch))

    def window(self, view: View, number: int, moment: float) -> tuple[float, float]:
        """`(from, until)`, until excluded, in which the answer of this view stays as it is at `moment`."""
        view = View.ISSUES if view in {View.REPO, View.LABEL, View.LABELS} else view  # they look at all issues
        return self._moments[view, number].window(moment)

    def timelines(self) -> Iterator[Timeline[Issue] | Timeline[Row]]:
        """Everything here that has states."""
        for thread in self.threads.values():
            yield thread.issue
            for rows in thread.rows.values():
                yield from rows

    def _mark_issue(self, number: int, at: float) -> None:
        self._moments[View.ISSUES, 0].add(at)
        self._moments[View.ISSUE, number].add(at)

    def _mark_existence(self, number: int, at: float) -> None:
        for view in _VIEWS_BELOW_ISSUE:
            self._moments[view, number].add(at)

    def _mark_row(self, row: Row, at: float) -> None:
        whole, single = _VIEWS_OF_KIND[row.kind]
        self._moments[single, row.number].add(at)
        if whole is not None:
            self._moments[whole, 0].add(at)
