"""Reading paginated lists that may change while they are read.

A list of several pages is valid only if every page but the last is the same when requested again after the walk: a row
that is removed meanwhile shifts another one over a page boundary, and that one would never be read. (Requesting page 1
alone detects a new row, but not one that was removed from page 2.) These requests are answered by 304 and do not count
towards the rate limit.

The next page is the one that a page links to. A full page without a link is followed by page number: a 304 has no
links, and a list that ended with this page may have grown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from the_loop.sources.base import SourceError
from the_loop.sources.github.client import Answer, Client
from the_loop.sources.github.record import Asked

PAGE: Final = 100
_WALKS: Final = 3
_LONGEST: Final = 1000  # pages


@dataclass(frozen=True, slots=True)
class Walk:
    """All rows of a list, as raw JSON, and the pages they came from."""

    rows: list[Any]
    pages: list[Asked]


@dataclass(frozen=True, slots=True)
class Part:
    """One page: its request and its response."""

    asked: Asked
    answer: Answer


async def walk(client: Client, path: str, etag: str = "") -> Walk | None:
    """Every row of the list at `path` (which has a query); None if page 1 is what `etag` names.

    Raises SourceError, also if the list changed during three walks in a row or does not exist.
    """
    for _ in range(_WALKS):
        parts = await _pages(client, path, [Asked(path, etag, 0)])
        if parts[0].answer.is_unchanged:
            return None
        if await _are_unchanged(client, parts[:-1]):
            rows = [row for part in parts for row in part.answer.value]
            return Walk(rows, [part.asked for part in parts])
        etag = ""
    raise SourceError(f"{path}: the list changed during {_WALKS} attempts to read it")


async def validated_pages(client: Client, path: str, known: Sequence[Asked]) -> list[Part]:
    """Request each page of a list with its own validator; an unchanged one is a 304 without rows.

    `known`: the requests of the last poll. A row that moves over a page boundary meanwhile changes the page that it
    came from, so the next poll reads it. Raises SourceError.
    """
    return await _pages(client, path, known, goes_on=True)


async def _pages(client: Client, path: str, known: Sequence[Asked], *, goes_on: bool = False) -> list[Part]:
    """The pages from `path` on; with `goes_on` also those behind an unchanged one. Raises SourceError."""
    parts: list[Part] = []
    here, asked = path, set[str]()
    while here:
        asked.add(here)
        if len(asked) > _LONGEST:
            raise SourceError(f"{path}: more than {_LONGEST} pages")
        before = known[len(parts)] if len(parts) < len(known) and known[len(parts)].path == here else None
        answer = await _page(client, here, before.etag if before else "")
        size = before.size if answer.is_unchanged and before else len(answer.value)
        parts.append(Part(Asked(here, answer.etag or (before.etag if before else ""), size), answer))
        if answer.is_unchanged and not goes_on:
            break
        here = _successor(path, parts, known)
        if here in asked:
            raise SourceError(f"{path}: the links of its pages form a loop")
    return parts


def _successor(path: str, parts: Sequence[Part], known: Sequence[Asked]) -> str:
    last = parts[-1]
    by_number = f"{path}&page={len(parts) + 1}"
    if last.answer.next != "":
        return last.answer.next or by_number  # behind a gateway, links may contain the server's internal name
    if last.answer.is_unchanged and len(known) > len(parts):
        return known[len(parts)].path
    return by_number if last.asked.size >= PAGE else ""


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
