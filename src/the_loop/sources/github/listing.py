"""The labelled items of one repository, page by page; unchanged pages are taken from the cursor."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote

from the_loop.core.model import WorkItem
from the_loop.sources.base import SourceError
from the_loop.sources.github.client import Client
from the_loop.sources.github.poll import RepositoryPoll
from the_loop.sources.github.record import Asked, Page, Row
from the_loop.sources.github.rows import Issue, many, to_item
from the_loop.sources.github.section import GithubSection
from the_loop.sources.github.walk import Part, validated_pages


async def list_items(client: Client, section: GithubSection, poll: RepositoryPoll) -> str:
    """Read the items into `poll`. Returns the path that a redirect led to, "" without one. Raises SourceError."""
    label = quote(section.label, safe="")
    path = f"/repos/{poll.name}/issues?labels={label}&state=open&sort=created&direction=asc"
    monitored = {True: section.monitor.pull_requests, False: section.monitor.issues}
    found = await validated_pages(client, path, [_to_ask(poll, page, monitored) for page in poll.old.pages])
    parts = found.parts
    poll.is_cut = bool(found.gap)
    if found.gap:  # items that are not listed are asked about one by one
        poll.faults.append(SourceError(f"the list of items: {found.gap}"))
    poll.now = parts[0].answer.date
    poll.pages = [
        poll.old.pages[place] if part.answer.is_unchanged else _read(poll, part) for place, part in enumerate(parts)
    ]
    for row in (row for page in poll.pages for row in page.rows):
        poll.rows[row.number] = row
        if monitored[row.is_pull]:
            poll.listed[row.number] = poll.fresh.get(row.number) or poll.kept.get(row.number) or _thin(poll, row)
        else:
            poll.excluded.append(row.number)
    poll.excluded.sort()
    poll.stirred |= _changed(poll)
    return parts[0].answer.moved


async def has_label(client: Client, section: GithubSection, name: str) -> bool:
    """False if the repository has no such label: it is misspelt, or not created yet. Raises SourceError."""
    answer = await client.get(f"/repos/{name}/labels/{quote(section.label, safe='')}")
    return answer.status != 404


def is_another_repository(poll: RepositoryPoll) -> bool:
    """True if the listing may be of another repository that took over this one's name.

    An item with a known number proves it either way. If none of the items that were listed before is left, nothing is
    proven, and the repository has to be requested.
    """
    if not poll.fresh:
        return False  # every row was listed before
    known = {number: poll.known[number].id for number in poll.rows if number in poll.known}
    known = {number: id_ for number, id_ in known.items() if id_}
    known |= {number: row.id for number, row in poll.before.items()}
    verdicts = [known[number] == row.id for number, row in poll.rows.items() if number in known]
    if not all(verdicts):
        return True
    return bool(poll.rows) and not verdicts and bool(poll.old.pages)


def _to_ask(poll: RepositoryPoll, page: Page, monitored: Mapping[bool, bool]) -> Asked:
    """Request a page with items that are not known yet without a validator: one request instead of one per item.

    So is one that an earlier version read, which did not keep how many comments its items have.
    """
    numbers = (row.number for row in page.rows if monitored[row.is_pull])
    is_wanted = any(number not in poll.known and number not in poll.kept for number in numbers)
    return Asked(page.path, page.etag if page.is_counted and not is_wanted else "", page.size)


def _read(poll: RepositoryPoll, part: Part) -> Page:
    asked = part.asked
    issues = many(part.answer.value, Issue, asked.path, poll.odd.setdefault(asked.path, []))
    poll.fresh |= {issue.number: to_item(poll.ref(issue.number), issue) for issue in issues}
    rows = [
        Row(
            issue.number,
            issue.node_id,
            issue.pull_request is not None,
            issue.login,
            issue.updated_at or "",
            issue.login_id,
            issue.comments,
        )
        for issue in issues
    ]
    return Page(asked.path, asked.etag, asked.size, rows, is_counted=True)


def _thin(poll: RepositoryPoll, row: Row) -> WorkItem:
    """An item of an unchanged page, without its text, which is not needed again."""
    return WorkItem(
        poll.ref(row.number),
        row.id,
        url="",
        title="",
        body="",
        author=row.author,
        created_at="",
        author_id=row.author_id,
    )


def _changed(poll: RepositoryPoll) -> set[int]:
    """The pull requests whose row changed."""
    before = poll.before
    return {number for number in poll.pulls if number in before and before[number] != poll.rows[number]}
