"""The comments of a whole repository since a time: one list of conversations, one of comments on lines."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from the_loop.core.model import Kind
from the_loop.sources.github.client import Client
from the_loop.sources.github.poll import RepositoryPoll
from the_loop.sources.github.record import Asked, Stream
from the_loop.sources.github.rows import Comment, many, to_entries
from the_loop.sources.github.walk import walk

OVERLAP_S: Final = 120  # a list is read from so long before its newest row: late rows, whole seconds, lag
ADVANCE_AT: Final = 50  # rows; a changed `since` is a new URL, whose first response is never a 304
PLACES: Final = {Kind.COMMENT: "issues/comments", Kind.REVIEW_COMMENT: "pulls/comments"}


async def read_streams(client: Client, poll: RepositoryPoll) -> None:
    """Read the new rows of both lists and add them to their items. Raises SourceError."""
    await _read(client, poll, Kind.COMMENT, poll.old.comment)
    if poll.pulls:
        await _read(client, poll, Kind.REVIEW_COMMENT, poll.old.review_comment)
    poll.behind |= {number for number in poll.fresh if _rise(poll, number) > poll.arrived[number]}


def _rise(poll: RepositoryPoll, number: int) -> int:
    """By how many comments the item has grown since the last poll.

    More than the list shows means that one came to light late, with an old date, and no list will ever show it.
    """
    before, now = poll.before.get(number), poll.rows[number]
    if before is None or before.comments is None or now.comments is None:
        return 0
    return now.comments - before.comments


async def _read(client: Client, poll: RepositoryPoll, kind: Kind, old: Stream | None) -> None:
    since = old.since if old else whole_second(poll.now - OVERLAP_S)
    if since > whole_second(poll.now):
        # a response had a wrong date, now or before: rows may be missing, so all items need a full re-read
        poll.is_unsure = True
        since = whole_second(poll.now - OVERLAP_S)
    path = f"/repos/{poll.name}/{PLACES[kind]}?sort=updated&direction=desc&since={since}"
    found = await walk(client, path, Asked(old.path, old.etag, 0) if old else None)
    if found is None:
        return
    if found.gap:  # what was read counts; the rest is found in the threads, and the list begins anew
        poll.is_unsure = True
        since = whole_second(poll.now - OVERLAP_S)
    rows = many(found.rows, Comment, path, poll.odd.setdefault(path.partition("?")[0], []))
    late, seen = (_earlier(old.newest), {*old.recent}) if old else ("", set[int]())
    for row, entry in zip(rows, to_entries(rows, kind), strict=True):
        poll.add(row.number, [entry])
        if row.number in poll.old.left and old and row.updated_at > old.newest:
            poll.is_doubtful = True
        is_new = old is None or row.updated_at > old.newest or (row.updated_at >= late and row.id not in seen)
        if kind is Kind.REVIEW_COMMENT and is_new:
            poll.stirred.add(row.number)
            poll.met.add(row.group)
        elif is_new and row.updated_at == row.created_at:
            poll.arrived[row.number] += 1
    newest = min(max((row.updated_at for row in rows), default=""), whole_second(poll.now))
    if len(rows) >= ADVANCE_AT:
        since = max(since, min(_earlier(newest), whole_second(poll.now - OVERLAP_S)))
    recent = sorted(row.id for row in rows if row.updated_at >= _earlier(newest))
    poll.streams[kind] = Stream(since, found.pages[0].path, found.pages[0].etag, newest, recent)


def whole_second(epoch_s: float) -> str:
    """`epoch_s` as ISO 8601 UTC in whole seconds, as the API takes it."""
    return datetime.fromtimestamp(epoch_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _earlier(moment: str) -> str:
    """The time less the overlap; "" if it is malformed."""
    try:
        return whole_second(datetime.fromisoformat(moment).timestamp() - OVERLAP_S)
    except (ValueError, OverflowError):
        return ""
