"""The JSON shapes of GitHub's REST answers, as its OpenAPI description for api.github.com has them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha1
from typing import TYPE_CHECKING
from urllib.parse import quote
from zlib import crc32

from support.github.repo import node_id
from support.github.values import Kind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from support.github.repo import Repo
    from support.github.values import Issue, Row

Json = dict[str, object]

# Keys of the form `<word>_url` whose value is the address with this ending.
_REPO_URLS: Mapping[str, str] = {
    "archive": "/{archive_format}{/ref}",
    "assignees": "/assignees{/user}",
    "blobs": "/git/blobs{/sha}",
    "branches": "/branches{/branch}",
    "collaborators": "/collaborators{/collaborator}",
    "comments": "/comments{/number}",
    "commits": "/commits{/sha}",
    "compare": "/compare/{base}...{head}",
    "contents": "/contents/{+path}",
    "contributors": "/contributors",
    "deployments": "/deployments",
    "downloads": "/downloads",
    "events": "/events",
    "forks": "/forks",
    "git_commits": "/git/commits{/sha}",
    "git_refs": "/git/refs{/sha}",
    "git_tags": "/git/tags{/sha}",
    "hooks": "/hooks",
    "issue_comment": "/issues/comments{/number}",
    "issue_events": "/issues/events{/number}",
    "issues": "/issues{/number}",
    "keys": "/keys{/key_id}",
    "labels": "/labels{/name}",
    "languages": "/languages",
    "merges": "/merges",
    "milestones": "/milestones{/number}",
    "notifications": "/notifications{?since,all,participating}",
    "pulls": "/pulls{/number}",
    "releases": "/releases{/id}",
    "stargazers": "/stargazers",
    "statuses": "/statuses/{sha}",
    "subscribers": "/subscribers",
    "subscription": "/subscription",
    "tags": "/tags",
    "teams": "/teams",
    "trees": "/git/trees{/sha}",
}
_USER_URLS: Mapping[str, str] = {
    "events": "/events{/privacy}",
    "followers": "/followers",
    "following": "/following{/other_user}",
    "gists": "/gists{/gist_id}",
    "organizations": "/orgs",
    "received_events": "/received_events",
    "repos": "/repos",
    "starred": "/starred{/owner}{/repo}",
    "subscriptions": "/subscriptions",
}
_COUNTS = ("forks", "forks_count", "stargazers_count", "watchers", "watchers_count", "network_count")
_ORIGINAL_LINE = 1  # of a comment whose line is gone from the diff: the one fact about its place that stays
_HAS = ("issues", "projects", "wiki", "pages", "discussions", "downloads")


@dataclass(frozen=True, slots=True)
class Names:
    """Where the rows of one repository point to: `api` and `web` without a closing slash, `repo` as `owner/name`."""

    api: str
    web: str
    repo: str

    @property
    def repo_url(self) -> str:
        """The address of the repository in the API."""
        return f"{self.api}/repos/{self.repo}"

    def page_url(self, number: int, *, is_pull: bool) -> str:
        """The address of an issue for people."""
        return f"{self.web}/{self.repo}/{'pull' if is_pull else 'issues'}/{number}"


def encode(value: object) -> bytes:
    """Compact JSON in ASCII; a lone surrogate stays an escape, as it may come from a real peer."""
    return json.dumps(value, separators=(",", ":")).encode("ascii")


def iso(time: int | None) -> str | None:
    """The form GitHub shows times in: UTC, whole seconds, `Z`."""
    return None if time is None else datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def account_id(login: str) -> int:
    """The number of the account that has always had this login."""
    return crc32(login.lower().encode())


def user_json(names: Names, login: str | None) -> Json | None:
    """The account, None for a deleted one; its id follows from the login, or is given as in `octocat#77`."""
    if login is None:
        return None
    login, _, number = login.partition("#")
    url, id_ = f"{names.api}/users/{quote(login, safe='')}", int(number or account_id(login))
    slug = login.removesuffix("[bot]")
    return {
        "login": login,
        "id": id_,
        "node_id": node_id("U", id_),
        "avatar_url": f"{names.web}/avatars/u/{id_}?v=4",
        "gravatar_id": "",
        "url": url,
        "html_url": f"{names.web}/{login}" if slug == login else f"{names.web}/apps/{slug}",
        **{f"{word}_url": url + ending for word, ending in _USER_URLS.items()},
        "type": "User" if slug == login else "Bot",
        "user_view_type": "public",
        "site_admin": False,
    }


def repo_json(names: Names, repo: Repo, open_issues: int) -> Json:
    """The repository itself."""
    url, web = names.repo_url, f"{names.web}/{names.repo}"
    owner, name = names.repo.split("/")
    clone = web.partition("://")[2]
    times = dict.fromkeys(("created_at", "updated_at", "pushed_at"), iso(repo.created))
    return {
        "id": repo.id,
        "node_id": node_id("R", repo.id),
        "name": name,
        "full_name": names.repo,
        "owner": user_json(names, owner),
        "private": False,
        "visibility": "public",
        "html_url": web,
        "description": None,
        "fork": False,
        "url": url,
        **{f"{word}_url": url + ending for word, ending in _REPO_URLS.items()},
        "clone_url": f"{web}.git",
        "git_url": f"git://{clone}.git",
        "ssh_url": f"git@{clone.replace('/', ':', 1)}.git",
        "svn_url": web,
        "mirror_url": None,
        "homepage": None,
        "language": None,
        "license": None,
        "size": 0,
        "default_branch": "main",
        "archived": False,
        "disabled": False,
        "topics": [],
        **times,
        **{f"has_{word}": word == "issues" for word in _HAS},
        **dict.fromkeys(_COUNTS, 0),
        "subscribers_count": 0,
        "open_issues": open_issues,
        "open_issues_count": open_issues,
    }


def issue_json(names: Names, issue: Issue) -> Json:
    """An issue or pull request as the issue endpoints show it."""
    url = f"{names.repo_url}/issues/{issue.number}"
    page = names.page_url(issue.number, is_pull=issue.is_pull)
    row: Json = {
        "url": url,
        "repository_url": names.repo_url,
        "labels_url": f"{url}/labels{{/name}}",
        "comments_url": f"{url}/comments",
        "events_url": f"{url}/events",
        "timeline_url": f"{url}/timeline",
        "html_url": page,
        "id": issue.id,
        "node_id": issue.node_id,
        "number": issue.number,
        "title": issue.title,
        "user": user_json(names, issue.author),
        "labels": [label_json(names, label) for label in issue.labels],
        "state": "open" if issue.closed is None else "closed",
        "state_reason": issue.state_reason,
        "locked": False,
        "active_lock_reason": None,
        "assignee": None,
        "assignees": [],
        "milestone": None,
        "comments": issue.comments,
        "created_at": iso(issue.created),
        "updated_at": iso(issue.updated),
        "closed_at": iso(issue.closed),
        "author_association": "NONE",
        "body": issue.body,
        "performed_via_github_app": None,
    }
    if issue.is_pull:
        pull = {"url": f"{names.repo_url}/pulls/{issue.number}", "html_url": page}
        pull |= {"diff_url": f"{page}.diff", "patch_url": f"{page}.patch"}
        row |= {"draft": False, "pull_request": {**pull, "merged_at": iso(issue.merged)}}
    return row


def label_json(names: Names, label: str) -> Json:
    id_ = crc32(label.lower().encode())
    return {
        "id": id_,
        "node_id": node_id("LA", id_),
        "url": f"{names.repo_url}/labels/{quote(label, safe='')}",
        "name": label,
        "description": None,
        "color": "ededed",
        "default": False,
    }


def row_json(names: Names, row: Row, *, is_pull: bool) -> Json:
    """A comment, review or review comment; `is_pull` tells what its issue is."""
    page = names.page_url(row.number, is_pull=is_pull)
    shared: Json = {
        "id": row.id,
        "node_id": row.node_id,
        "user": user_json(names, row.author),
        "body": row.body,
        "author_association": "NONE",
    }
    if row.kind is Kind.COMMENT:
        return shared | _comment_part(names, row, page)
    pull_url = f"{names.repo_url}/pulls/{row.number}"
    shared |= {
        "pull_request_url": pull_url,
        "commit_id": sha1(pull_url.encode(), usedforsecurity=False).hexdigest(),
    }
    if row.kind is Kind.REVIEW:
        return shared | _review_part(row, page, pull_url)
    return shared | _review_comment_part(names, row, page, pull_url)


def _comment_part(names: Names, row: Row, page: str) -> Json:
    return {
        "url": f"{names.repo_url}/issues/comments/{row.id}",
        "html_url": f"{page}#issuecomment-{row.id}",
        "issue_url": f"{names.repo_url}/issues/{row.number}",
        "created_at": iso(row.created),
        "updated_at": iso(row.updated),
        "performed_via_github_app": None,
    }


def _review_part(row: Row, page: str, pull_url: str) -> Json:
    html_url = f"{page}#pullrequestreview-{row.id}"
    return {
        "state": row.state,
        "html_url": html_url,
        "submitted_at": iso(row.created),
        "_links": {"html": {"href": html_url}, "pull_request": {"href": pull_url}},
    }


def _review_comment_part(names: Names, row: Row, page: str, pull_url: str) -> Json:
    url, html_url = f"{names.repo_url}/pulls/comments/{row.id}", f"{page}#discussion_r{row.id}"
    links = {"self": url, "html": html_url, "pull_request": pull_url}
    return {
        "url": url,
        "html_url": html_url,
        "pull_request_review_id": row.review_id,
        "diff_hunk": "@@ -1 +1 @@\n-old\n+new",
        "path": row.path,
        "position": row.line,
        "original_position": row.line or _ORIGINAL_LINE,
        "original_commit_id": sha1(row.path.encode(), usedforsecurity=False).hexdigest(),
        "line": row.line,
        "original_line": row.line or _ORIGINAL_LINE,
        "start_line": None,
        "original_start_line": None,
        "side": "RIGHT",
        "start_side": None,
        "subject_type": "line",
        "created_at": iso(row.created),
        "updated_at": iso(row.updated),
        "_links": {name: {"href": href} for name, href in links.items()},
    }
