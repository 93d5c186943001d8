"""Reading paginated lists that may change while they are read.

A list of several pages is valid only if every page but the last is the same when requested again after the walk: a row
that is removed meanwhile shifts another one over a page boundary, and that one would never be read. (Requesting page 1
alone detects a new row, but not one that was removed from page 2.) These requests are answered by 304 and do not count
towards the rate limit.

A list that keeps changing, and one that is longer than the server returns (422 for a later page), is read as far as
that goes; the walk says that rows are missing. So is one whose links lead back to a page that was read, or that has no
end. Pages that are too much for the server are requested smaller (`page_sizes`).

The next page is the one that a page links to. A full page without a link is followed by page number: a 304 has no
links, and a list that ended with this page may have grown.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from urllib.parse import quote

from the_loop.sources.base import Silent, SourceError
from the_loop.sources.github.client import Answer, Client, Unprocessable
from the_loop.sources.github.record import Asked
from the_loop.sources.http import TooMuch

_WALKS: Final = 3
_LONGEST: Final = 1000  # pages

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Walk:
    """The rows of a list, as raw JSON, and the pages they came from. `gap`: why some may be missing, "" if none is.

    `is_cut`: only those behind the last page may be missing.
    """

    rows: list[Any]
    pages: list[Asked]
    gap: str = ""
    is_cut: bool = False


@dataclass(frozen=True, slots=True)
class Part:
    """One page: its request and its response."""

    asked: Asked
    answer: Answer


@dataclass(frozen=True, slots=True)
class Pages:
    """The pages of a list. `gap`: why there may be more, "" if there are none."""

    parts: list[Part]
    gap: str = ""


async def walk(client: Client, path: str, known: Asked | None = None) -> Walk | None:
    """The rows of the list at `path`, as far as they can be read; None if page 1 is still the one of `known`.

    Raises SourceError, also if the list does not exist.
    """
    return await _in_pages_of_any_size(client, path, lambda size: _walk(client, path, size, known))


async def walk_on(client: Client, path: str) -> Walk:
    """The rows of a list without a query whose rows are in the order of their creation; some may be there twice.

    Where the server pages no further, the list is read on from the time of its last row. If that leads nowhere, the
    `gap` says so. Raises SourceError, also if rows between others may be missing.
    """
    rows: list[Any] = []
    pages: list[Asked] = []
    since = query = ""
    while True:
        found = await walk(client, path + query)
        if found is None or (found.gap and not found.is_cut):
            raise SourceError(f"{path}: {found.gap if found else 'status 304 to a request without a validator'}")
        rows += found.rows
        pages += found.pages
        before, since = since, _created(found.rows)
        if not found.is_cut or since <= before:
            return Walk(rows, pages, found.gap, found.is_cut)
        query = f"?since={since}"


def _created(rows: Sequence[Any]) -> str:
    """When the last of these rows was written; "" if none says."""
    last = next((row for row in reversed(rows) if isinstance(row, dict) and row.get("created_at")), {})
    return quote(str(last.get("created_at", "")), safe=":")


async def validated_pages(client: Client, path: str, known: Sequence[Asked]) -> Pages:
    """Request each page of a list with its own validator; an unchanged one is a 304 without rows.

    `known`: the requests of the last poll. A row that moves over a page boundary meanwhile changes the page that it
    came from, so the next poll reads it. Raises SourceError.
    """
    return await _in_pages_of_any_size(client, path, lambda size: _pages(client, path, size, known, goes_on=True))


async def _in_pages_of_any_size(client: Client, path: str, read: Callable[[int], Awaitable[T]]) -> T:
    """What `read` makes of a page size: of smaller ones while pages are too much for the server."""
    sizes = client.page_sizes
    while True:
        try:
            return await read(sizes.of(path))
        except TooMuch as error:
            if not sizes.shrink(path, at_once=error.is_sure):
                raise
        except Silent:  # it took its time: the next poll goes on
            sizes.shrink(path, is_slow=True)
            raise


async def _walk(client: Client, path: str, size: int, known: Asked | None) -> Walk | None:
    found = Pages([])
    for _ in range(_WALKS):
        found = await _pages(client, path, size, [known] if known else [])
        if found.parts[0].answer.is_unchanged:
            return None
        if await _are_unchanged(client, found.parts[:-1]):
            return _rows_of(found, found.gap, is_cut=bool(found.gap))
        known = None
    return _rows_of(found, f"the list changed during {_WALKS} attempts to read it")


def _rows_of(found: Pages, gap: str, *, is_cut: bool = False) -> Walk:
    rows = [row for part in found.parts for row in part.answer.value]
    return Walk(rows, [part.asked for part in found.parts], gap, is_cut)


async def _pages(client: Client, path: str, size: int, known: Sequence[Asked], *, goes_on: bool = False) -> Pages:
    """The pages from `path` on; with `goes_on` also those behind an unchanged one. Raises SourceError."""
    parts: list[Part] = []
    first = here = f"{path}{'&' if '?' in path else '?'}per_page={size}"
    asked = set[str]()
    while here:
        asked.add(here)
        before = known[len(parts)] if len(parts) < len(known) and known[len(parts)].path == here else None
        try:
            answer = await _page(client, here, before.etag if before else "")
        except Unprocessable as error:
            if not parts:
                raise
            return Pages(parts, f"the server returns no more than {len(parts)} pages ({error.problem})")
        rows = before.size if answer.is_unchanged and before else len(answer.value)
        parts.append(Part(Asked(here, answer.etag or (before.etag if before else ""), rows), answer))
        if answer.is_unchanged and not goes_on:
            break
        here = _successor(first, size, parts, known)
        if here in asked:
            return Pages(parts, "the links of its pages form a loop")
        if here and len(parts) == _LONGEST:
            return Pages(parts, f"it has more than {_LONGEST} pages")
    return Pages(parts)


def _successor(first: str, size: int, parts: Sequence[Part], known: Sequence[Asked]) -> str:
    last = parts[-1]
    by_number = f"{first}&page={len(parts) + 1}"
    if last.answer.next != "":
        return last.answer.next or by_number  # behind a gateway, links may contain the server's internal name
    if last.answer.is_unchanged and len(known) > len(parts):
        return known[len(parts)].path
    return by_number if last.asked.size >= size else ""


async def _page(client: Client, path: str, etag: str) -> Answer:
    answer = await client.get(path, etag)
    if answer.is_unchanged:
        return answer
    if answer.status != 200:
        raise SourceError(f"{path}: status {answer.status}, not found with this token")
    if not isinstance(answer.value, list):
        raise SourceError(f"{path}: unexpected response: not a list")
    return answer


async def _are_unchanged(client: Client, parts: Sequence[Part]) -> bool:
    for part in parts:
        again = await _page(client, part.asked.path, part.answer.etag)
        # a proxy may have removed the validator: then compare the rows
        if not again.is_unchanged and again.value != part.answer.value:
            return False
    return True
