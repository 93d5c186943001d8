"""The labelled items of one repository, page by page; unchanged pages are filled in from the position."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote

from the_loop.config import GithubSection
from the_loop.model import WorkItem
from the_loop.sources.github.client import Client
from the_loop.sources.github.look import Look
from the_loop.sources.github.record import Asked, Page, Row
from the_loop.sources.github.rows import Issue, many, to_item
from the_loop.sources.github.walk import PAGE, Part, validated_pages


async def list_items(client: Client, section: GithubSection, look: Look) -> str:
    """Fill in the items. Returns the path that a redirect led to, if there was one. Raises SourceError."""
    label = quote(section.label, safe="")
    path = f"/repos/{look.name}/issues?labels={label}&state=open&sort=created&direction=asc&per_page={PAGE}"
    monitored = {True: section.monitor.pull_requests, False: section.monitor.issues}
    parts = await validated_pages(client, path, [_to_ask(look, page, monitored) for page in look.old.pages])
    look.now = parts[0].answer.date
    look.pages = [
        look.old.pages[place] if part.answer.is_unchanged else _read(look, part) for place, part in enumerate(parts)
    ]
    for row in (row for page in look.pages for row in page.rows):
        look.rows[row.number] = row
        if monitored[row.is_pull]:
            look.listed[row.number] = look.fresh.get(row.number) or look.kept.get(row.number) or _thin(look, row)
        else:
            look.excluded.append(row.number)
    look.excluded.sort()
    look.stirred |= _changed(look)
    return parts[0].answer.moved


def is_another_repository(look: Look) -> bool:
    """True if the listing may be of another repository that has taken this one's name.

    An item under the same number proves that it is, or that it is not. Where no item is left of those that were
    listed, nothing is proven, and somebody has to ask.
    """
    if not look.fresh:
        return False  # every row was there before
    known = {number: one.id for number, one in look.known.items() if one.id}
    known |= {number: row.id for number, row in look.before.items()}
    verdicts = [known[number] == row.id for number, row in look.rows.items() if number in known]
    if not all(verdicts):
        return True
    return bool(look.rows) and not verdicts and bool(look.old.pages)


def _to_ask(look: Look, page: Page, monitored: Mapping[bool, bool]) -> Asked:
    """A page with items that are not taken up yet is asked for whole: one question instead of one for each."""
    numbers = (row.number for row in page.rows if monitored[row.is_pull])
    is_wanted = any(number not in look.known and number not in look.kept for number in numbers)
    return Asked(page.path, "" if is_wanted else page.etag, page.size)


def _read(look: Look, part: Part) -> Page:
    asked = part.asked
    issues = many(part.answer.value, Issue, asked.path)
    look.fresh |= {issue.number: to_item(look.ref(issue.number), issue) for issue in issues}
    rows = [
        Row(issue.number, issue.node_id, issue.pull_request is not None, issue.login, issue.updated_at or "")
        for issue in issues
    ]
    return Page(asked.path, asked.etag, asked.size, rows)


def _thin(look: Look, row: Row) -> WorkItem:
    """An item of a page that did not change: nobody needs its text again."""
    return WorkItem(look.ref(row.number), row.id, url="", title="", body="", author=row.author, created_at="")


def _changed(look: Look) -> set[int]:
    """The pull requests whose row is another than before."""
    before = look.before
    return {number for number in look.pulls if number in before and before[number] != look.rows[number]}
