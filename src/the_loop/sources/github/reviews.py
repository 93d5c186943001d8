"""Reviews of pull requests. The API has no list for a whole repository, so each pull request is requested by itself.

Requested are those that are *hot*: their row changed, a comment on a line is new, or they ended a short while ago; and
in each poll one in thirty of the others, since a review may change nothing else. All pages of a list are requested
with their validators: a review that was pending appears among older ones, on any page.

A review may come to light late, with comments on lines that have an old date and are in no list from then on. If there
is one whose comments cannot have been listed, its pull request needs a full re-read.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from the_loop.core.model import Kind
from the_loop.sources.base import SourceError
from the_loop.sources.github.client import Client
from the_loop.sources.github.poll import SWEEP, RepositoryPoll, Step
from the_loop.sources.github.record import Asked, Reviews
from the_loop.sources.github.rows import Review, many, to_reviews
from the_loop.sources.github.walk import validated_pages

HOT_S: Final = 180.0  # responses of different servers may differ in age by so much


async def read_reviews(client: Client, poll: RepositoryPoll) -> None:
    """Read new reviews of the pull requests that are due. One that could not be requested is due in the next poll."""
    here = {number for number in poll.pulls if number in poll.known}
    ended = {number for number, left in poll.left.items() if left.pull and left.is_readable}
    hot = {number: min(until, poll.now + HOT_S) for number, until in poll.old.hot.items()}
    hot |= dict.fromkeys(poll.stirred, poll.now + HOT_S)
    hot = {number: until for number, until in hot.items() if number in here}
    read = {**poll.old.reviews, **poll.heard}
    poll.reviews = {number: pages for number, pages in read.items() if number in here | ended}
    step = Step(poll)
    # also after a long pause each hot pull request is requested once more
    for number in poll.in_any_order(hot.keys() | (ended & poll.known.keys()) | _swept(poll, here)):
        if not (step.may_ask() and await _is_read(client, poll, step, number)) and number in here:
            hot[number] = poll.now + HOT_S
    poll.hot = {number: until for number, until in sorted(hot.items()) if until > poll.now}


async def _is_read(client: Client, poll: RepositoryPoll, step: Step, number: int) -> bool:
    step.ask()
    try:
        await _read(client, poll, number)
    except SourceError as fault:
        step.fail(fault)
        return False
    return True


def _swept(poll: RepositoryPoll, here: set[int]) -> set[int]:
    """One pull request in thirty, by place in the listing, so that each poll requests equally many.

    If items left the listing, those behind them move up, some past their turn: such a poll includes these, too.
    """
    gone = sum(number not in poll.rows for number in poll.before)
    turns = {(poll.turn - back) % SWEEP for back in range(min(gone, SWEEP - 1) + 1)}
    return {number for place, number in enumerate(sorted(here)) if place % SWEEP in turns}


async def _read(client: Client, poll: RepositoryPoll, number: int) -> None:
    path = f"/repos/{poll.name}/pulls/{number}/reviews"
    before = poll.reviews.get(number, [])
    seen = {id_ for page in before for id_ in page.ids or ()}
    is_known = bool(before) and all(page.ids is not None for page in before)
    found = await validated_pages(client, path, before if is_known else ())
    poll.reviews[number] = []
    for place, part in enumerate(found.parts):
        if part.answer.is_unchanged:
            poll.reviews[number].append(before[place])
            continue
        rows = many(part.answer.value, Review, path)
        poll.add(number, to_reviews(rows))
        poll.reviews[number].append(to_page(part.asked, rows))
        if is_known and any(_is_late(poll, row) for row in rows if row.id not in seen):
            poll.behind.add(number)
    if found.gap:
        raise SourceError(f"{path}: {found.gap}")


def to_page(asked: Asked, rows: Iterable[Review]) -> Reviews:
    """The page as it is kept, with these rows."""
    return Reviews(asked.path, asked.etag, asked.size, [row.id for row in rows if not row.is_pending])


def _is_late(poll: RepositoryPoll, row: Review) -> bool:
    """True for a new review with comments on lines, none of which is new, or from before the list of these begins."""
    if row.is_pending or row.group in poll.met:
        return False
    stream = poll.streams.get(Kind.REVIEW_COMMENT) or poll.old.review_comment
    return not row.says_something or (stream is not None and row.created_at < stream.since)
