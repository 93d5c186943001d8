"""Reviews of pull requests. The API has no list for a whole repository, so each pull request is requested by itself.

Requested are those that are *hot*: their row changed, a comment on a line is new, or they ended a short while ago; and
in each poll one in thirty of the others, since a review may change nothing else. All pages of a list are requested
with their validators: a review that was pending appears among older ones, on any page.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
    found = await validated_pages(client, path, before)
    poll.reviews[number] = []
    for place, part in enumerate(found.parts):
        if part.answer.is_unchanged:
            poll.reviews[number].append(before[place])
            continue
        rows = many(part.answer.value, Review, path)
        poll.add(number, to_reviews(rows))
        poll.reviews[number].append(to_page(part.asked, rows))
    if _more_bare(before, poll.reviews[number]) > _met(poll, number):
        poll.behind.add(number)
    if found.gap:
        raise SourceError(f"{path}: {found.gap}")


def to_page(asked: Asked, rows: Iterable[Review]) -> Reviews:
    """The page as it is kept, with these rows."""
    return Reviews(asked.path, asked.etag, asked.size, sum(not row.says_something for row in rows))


def _more_bare(before: Sequence[Reviews], now: Sequence[Reviews]) -> int:
    """How many reviews came that only group comments on lines; 0 if it was not counted before."""
    if not before or any(page.bare is None for page in before):
        return 0
    return sum(page.bare or 0 for page in now) - sum(page.bare or 0 for page in before)


def _met(poll: RepositoryPoll, number: int) -> int:
    """The reviews of which this poll has a comment on a line. Another new one has some that came to light late."""
    return len({entry.group for entry in poll.entries.get(number, ()) if entry.kind is Kind.REVIEW_COMMENT})
