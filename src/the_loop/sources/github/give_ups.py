"""The notice that an event was given up, posted as a comment on its issue or pull request."""

from __future__ import annotations

from typing import Final

from the_loop.core.guards import OWN_MARKER, is_own_notice
from the_loop.core.model import Kind
from the_loop.sources.base import GiveUp, SourceError
from the_loop.sources.github.client import Client
from the_loop.sources.github.rows import Comment, many
from the_loop.sources.github.walk import walk_on

_REJECTIONS: Final = (403, 404, 410, 422)
_ANCHORS: Final = {
    Kind.COMMENT: "issuecomment-{id}",
    Kind.REVIEW: "pullrequestreview-{id}",
    Kind.REVIEW_COMMENT: "discussion_r{id}",
}


async def write_notice(client: Client, repository: str, number: str, report: GiveUp) -> str:
    """Post the notice of `report`; return why GitHub rejected it (no permission, locked, deleted), "" if it is posted.

    Raises Limited, with nothing posted, and SourceError, with the outcome unknown.
    """
    path = f"/repos/{repository}/issues/{number}/comments"
    answer = await client.post(path, {"body": notice_text(report)})
    if answer.status in _REJECTIONS:
        return f"status {answer.status} (the token needs permission to comment on issues and pull requests)"
    if answer.status != 201:
        raise SourceError(f"{path}: status {answer.status}")
    return ""


async def is_written(client: Client, repository: str, number: str, report: GiveUp) -> bool:
    """True if a comment of the item is the notice of `report`. Raises SourceError.

    Reads all comments of the item: a limit by time would depend on two clocks that may disagree.
    """
    path = f"/repos/{repository}/issues/{number}/comments"
    found = await walk_on(client, path)
    bodies = [row.body or "" for row in many(found.rows, Comment, path)]
    is_there = any(is_own_notice(body) and _mark(report) in body for body in bodies)
    if found.gap and not is_there:
        raise SourceError(f"{path}: {found.gap}")
    return is_there


def notice_text(report: GiveUp) -> str:
    """The comment's text in Markdown. The link is the only part that comes from outside."""
    kind, _, id_ = report.key.partition(":")
    anchor = _ANCHORS.get(Kind(kind), "").format(id=id_)
    what = f"[this]({report.url}#{anchor})" if anchor else "this item"
    times = "once" if report.attempts == 1 else f"{report.attempts} times"
    comment = "" if anchor else "an authorized user can write a new comment here, or "
    return (
        f"the-loop could not deliver {what} to the session: the receiver rejected it {times}. It was given up and "
        f"is not retried automatically. To retry it, {comment}the operator can run "
        f"`the-loop ledger retry '{report.ref}'` on the machine that runs the-loop.\n\n"
        f"{_mark(report)}\n{OWN_MARKER}"
    )


def _mark(report: GiveUp) -> str:
    return f"<!-- the-loop gave up {report.key} -->"
