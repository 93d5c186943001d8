"""A repository with all that people make on issues and pull requests, and the addresses that the poller asks of it."""

from __future__ import annotations

from typing import Final

from support.clock import Clock
from support.github.fake import FakeGitHub
from support.github.values import Rules

TOKEN: Final = "secret"
REPO: Final = "octo/repo"
OTHER: Final = "octo/other"
FORMER: Final = "octo/former"
NAMED: Final = "/repos/octo/repo"
NUMERIC: Final = "/repositories/42"
PULL, BARE, MERGED, DELETED, TRANSFERRED = 2, 3, 4, 7, 8
SINCE: Final = "2023-11-14T22:13:20Z"

LISTS: Final = {
    "issues": "/issues?state=all&per_page=100",
    "issues of a label": "/issues?labels=auto&state=open&sort=created&direction=asc&per_page=100",
    "comments": f"/issues/comments?sort=updated&direction=desc&since={SINCE}&per_page=100",
    "review comments": f"/pulls/comments?sort=updated&direction=desc&since={SINCE}&per_page=100",
    "comments of one": f"/issues/{PULL}/comments?per_page=100",
    "review comments of one": f"/pulls/{PULL}/comments?per_page=100",
    "reviews of one": f"/pulls/{PULL}/reviews?per_page=100",
}
SINGLES: Final = {
    "repository": "",
    "issue": "/issues/1",
    "pull request": f"/issues/{PULL}",
    "bare issue": f"/issues/{BARE}",
    "merged": f"/issues/{MERGED}",
}
EVERY: Final = LISTS | SINGLES
_TEXTS: Final = (("octocat", "Text.\n\n\ud800 \u2028 😀"), (None, ""), ("helper[bot]", "/stop"))


def make(base_url: str, rules: Rules | None = None) -> FakeGitHub:
    """The world as it is two minutes after noon."""
    clock = Clock()
    fake = FakeGitHub(clock, rules, tokens={TOKEN: "loop-bot"}, base_url=base_url)
    fake.add_repo(FORMER, id=42)
    fake.rename_repo(FORMER, REPO)
    fake.add_repo(OTHER, id=43)
    _add_issues(fake)
    clock.run(60)
    _move_issues(fake)
    _write(fake)
    clock.run(60)
    return fake


def _add_issues(fake: FakeGitHub) -> None:
    fake.add_issue(REPO, labels=["auto", "good first issue", "größer"])
    fake.add_issue(REPO, labels=["auto"], pull_request=True, author="helper[bot]")
    fake.add_issue(REPO, labels=["auto"], author=None, body=None)
    fake.add_issue(REPO, pull_request=True)
    for reason in ("completed", "not_planned"):
        fake.close(REPO, fake.add_issue(REPO), reason=reason)
    fake.add_issue(REPO)
    fake.add_issue(REPO)


def _move_issues(fake: FakeGitHub) -> None:
    fake.close(REPO, MERGED, merged=True)
    fake.close(REPO, 1, reason="duplicate")
    fake.reopen(REPO, 1)
    fake.delete_issue(REPO, DELETED)
    fake.transfer_issue(REPO, TRANSFERRED, OTHER)


def _write(fake: FakeGitHub) -> None:
    for author, body in _TEXTS:
        fake.comment(REPO, 1, author, body)
        fake.comment(REPO, PULL, author, body)
    for state in ("COMMENTED", "APPROVED", "CHANGES_REQUESTED", "DISMISSED"):
        fake.review(REPO, PULL, body="" if state == "COMMENTED" else "A word.", state=state)
    fake.review(REPO, PULL, None, "Of a deleted account.")
    fake.review_comment(REPO, PULL, review_id=1001)
    fake.review_comment(REPO, PULL, None, "On a line that is gone.", line=None, path="gone.py")
    fake.edit_comment(REPO, fake.comment(REPO, PULL), "Edited.", at=fake.clock() + 5)
