"""The notice that an event was given up, as a comment on its issue or pull request."""

from __future__ import annotations

from typing import Final

from the_loop.core.guards import OWN_MARKER, is_own_notice
from the_loop.core.model import Kind
from the_loop.sources.base import GiveUp, SourceError
from the_loop.sources.github.client import Client
from the_loop.sources.github.rows import Comment, many
from the_loop.sources.github.walk import PAGE, walk

_REFUSALS: Final = (403, 404, 410, 422)
_ANCHORS: Final = {
    Kind.COMMENT: "issuecomment-{id}",
    Kind.REVIEW: "pullrequestreview-{id}",
    Kind.REVIEW_COMMENT: "discussion_r{id}",
}


async def write_notice(client: Client, repository: str, number: str, report: GiveUp) -> str:
    """Why it is not to be written (no right to, locked, deleted), nothing if it is. Raises Limited and SourceError."""
    path = f"/repos/{repository}/issues/{number}/comments"
    answer = await client.post(path, {"body": notice_text(report)})
    if answer.status in _REFUSALS:
        return f"status {answer.status}, look at what the token may write"
    if answer.status != 201:
        raise SourceError(f"{path}: status {answer.status}")
    return ""


async def is_written(client: Client, repository: str, number: str, report: GiveUp) -> bool:
    """True if the item shows it. Raises SourceError.

    All its comments are read, as the moment it was written at may be one of another clock.
    """
    path = f"/repos/{repository}/issues/{number}/comments?per_page={PAGE}"
    found = await walk(client, path)
    bodies = [row.body or "" for row in many(found.rows, Comment, path)] if found else []
    return any(is_own_notice(body) and _mark(report) in body for body in bodies)


def notice_text(report: GiveUp) -> str:
    """Nothing of it comes from outside but the link."""
    kind, _, id_ = report.key.partition(":")
    anchor = _ANCHORS.get(Kind(kind), "").format(id=id_)
    what = f"[this]({report.url}#{anchor})" if anchor else "this item"
    times = "once" if report.attempts == 1 else f"{report.attempts} times"
    someone = "somebody" if anchor else "somebody who may writes something new here, or"
    return (
        f"I could not hand {what} over to the session: it was refused {times}. It is not tried again "
        f"until {someone} runs `the-loop ledger retry '{report.ref}'` where the-loop runs.\n\n"
        f"{_mark(report)}\n{OWN_MARKER}"
    )


def _mark(report: GiveUp) -> str:
    return f"<!-- the-loop gave up {report.key} -->"
