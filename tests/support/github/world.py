"""The world behind the GitHub fake: repositories, issues and what people write on them, changed by tests.

Every change has a moment: `at`, `created` or `visible` if given, which may lie in the past or the future, else now.
`author=None` is a deleted account. Any thread may change the world, also while another one asks.
"""

from __future__ import annotations

from dataclasses import replace
from functools import wraps
from itertools import count
from threading import RLock
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from support.github.repo import Repo, node_id
from support.github.values import Issue, Rules

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

P = ParamSpec("P")
R = TypeVar("R")
W = TypeVar("W", bound="World")


def changes(method: Callable[Concatenate[W, P], R]) -> Callable[Concatenate[W, P], R]:
    """Let `method` run under the lock, and drop what was remembered of earlier answers."""

    @wraps(method)
    def changing(self: W, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self.lock:
            self.generation += 1
            return method(self, *args, **kwargs)

    return changing


class World:
    """Repositories by name (any case), by numeric id, and by former name."""

    def __init__(self, clock: Callable[[], float], rules: Rules) -> None:
        self.clock = clock
        self.lock = RLock()
        self.generation = 0  # raised with every change
        self._rules = rules
        self._by_name: dict[str, Repo] = {}
        self._by_former_name: dict[str, Repo] = {}
        self._by_id: dict[int, Repo] = {}
        self._next_issue_id = count(5001)

    @property
    def rules(self) -> Rules:
        """How this GitHub behaves; setting it applies to the past as well, as if it had always been so."""
        return self._rules

    @rules.setter
    def rules(self, rules: Rules) -> None:
        self._set_rules(rules)

    @changes
    def _set_rules(self, rules: Rules) -> None:
        self._rules = rules
        self.refold()

    def refold(self) -> None:
        """Derive all states and rows anew, after a change of rules or addresses."""
        for repo in self._by_id.values():
            for timeline in repo.timelines():
                timeline.refold()

    def repo(self, name: str) -> Repo:
        """The repository that has this name now. Raises KeyError."""
        return self._by_name[name.lower()]

    # Repositories: these changes show at once, whatever the lag.

    @changes
    def add_repo(self, name: str, id: int | None = None) -> int:  # noqa: A002 - GitHub's own word
        """The numeric id of a new, empty repository; a former name of another one may be taken."""
        id_ = id if id is not None else max(self._by_id, default=700_000) + 1
        self._by_id[id_] = self._by_name[name.lower()] = Repo(id_, name, int(self.clock()))
        return id_

    @changes
    def remove_repo(self, name: str) -> None:
        """Answer 404 for everything in this repository, as for one that is gone or out of reach."""
        self.repo(name).is_removed = True

    @changes
    def restore_repo(self, name: str) -> None:
        """Undo `remove_repo`."""
        self.repo(name).is_removed = False

    @changes
    def rename_repo(self, old: str, new: str) -> None:
        """Move to a new `owner/name`; the old one answers 301 to the numeric address until it is taken again."""
        repo = self._by_name.pop(old.lower())
        self._by_former_name[old.lower()] = repo
        self._by_name[new.lower()] = repo
        repo.name = new
        self.refold()

    # Issues.

    @changes
    def add_issue(
        self,
        repo: str,
        *,
        title: str = "A title",
        body: str | None = "A body.",
        author: str | None = "octocat",
        labels: Sequence[str] = (),
        pull_request: bool = False,
        number: int | None = None,
        created: float | None = None,
    ) -> int:
        """The number of a new open issue or pull request, which shows from `created` on."""
        where = self.repo(repo)
        at = self._moment(created)
        id_, number = next(self._next_issue_id), number or where.next_number()
        node = node_id("PR" if pull_request else "I", where.id, id_)
        where.add_thread(
            at,
            Issue(
                id_, node, number, title, body, author, tuple(labels), pull_request, created=int(at), updated=int(at)
            ),
        )
        return number

    @changes
    def edit_issue(
        self, repo: str, number: int, *, title: str | None = None, body: str | None = None, at: float | None = None
    ) -> None:
        """Change the title or the body; None leaves it as it is."""
        self._patch_issue(
            repo,
            number,
            self._moment(at),
            lambda issue: replace(
                issue,
                title=issue.title if title is None else title,
                body=issue.body if body is None else body,
            ),
        )

    @changes
    def label(self, repo: str, number: int, *names: str, at: float | None = None) -> None:
        """Put labels on."""
        self._patch_issue(
            repo,
            number,
            self._moment(at),
            lambda issue: replace(issue, labels=tuple(dict.fromkeys((*issue.labels, *names)))),
        )

    @changes
    def unlabel(self, repo: str, number: int, *names: str, at: float | None = None) -> None:
        """Take labels off."""
        gone = {name.lower() for name in names}
        self._patch_issue(
            repo,
            number,
            self._moment(at),
            lambda issue: replace(issue, labels=tuple(x for x in issue.labels if x.lower() not in gone)),
        )

    @changes
    def close(
        self, repo: str, number: int, *, merged: bool = False, reason: str = "completed", at: float | None = None
    ) -> None:
        """Close; `merged` is for pull requests, `reason` for issues (completed, not_planned, duplicate)."""
        at = self._moment(at)
        when = int(at)
        self._patch_issue(
            repo,
            number,
            at,
            lambda issue: replace(
                issue,
                closed=when,
                merged=when if merged else None,
                state_reason=None if issue.is_pull else reason,
            ),
        )

    @changes
    def reopen(self, repo: str, number: int, *, at: float | None = None) -> None:
        """Open again."""
        self._patch_issue(
            repo,
            number,
            self._moment(at),
            lambda issue: replace(issue, closed=None, merged=None, state_reason=None if issue.is_pull else "reopened"),
        )

    @changes
    def touch(self, repo: str, number: int, *, at: float | None = None) -> None:
        """Move `updated_at` and nothing else."""
        self._patch_issue(repo, number, self._moment(at), lambda issue: issue)

    @changes
    def delete_issue(self, repo: str, number: int, *, at: float | None = None) -> None:
        """Delete for good: 410 on its own address, absent from every list, its comments too."""
        self.repo(repo).drop_thread(number, self._moment(at))

    @changes
    def transfer_issue(self, repo: str, number: int, to_repo: str) -> int:
        """The number in `to_repo`, with a new issue id; comments go along as they are now and keep their ids.

        The old address answers 301 to the new one at once; the lists follow with their lag.
        """
        source, target, now = self.repo(repo), self.repo(to_repo), self.clock()
        thread, new = source.thread(number), target.next_number()
        issue, id_ = thread.issue.at(now), next(self._next_issue_id)
        if issue is None or issue.is_deleted:
            raise KeyError(number)
        node = node_id("PR" if issue.is_pull else "I", target.id, id_)
        target.add_thread(now, replace(issue, id=id_, node_id=node, number=new))
        for timeline in (row for rows in thread.rows.values() for row in rows):
            if (row := timeline.at(now)) is not None and not row.is_deleted:
                target.add_row(now, replace(row, number=new))
        source.drop_thread(number, now)
        source.moved[number] = (target, new)
        return new

    def _moment(self, at: float | None) -> float:
        return self.clock() if at is None else at

    def _patch_issue(self, repo: str, number: int, at: float, patch: Callable[[Issue], Issue]) -> None:
        self.repo(repo).patch_issue(number, at, lambda issue: self._moved(patch(issue), at))

    def _moved(self, issue: Issue, at: float) -> Issue:
        when = int(at)
        is_coalesced = when <= issue.updated or when - issue.updated < self._rules.coalesce_s
        return issue if is_coalesced else replace(issue, updated=when)
