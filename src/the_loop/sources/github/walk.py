"""Walking lists that change while they are read.

An answer of several pages counts only if every page but the last, asked again after the walk, is the same: a row
that goes meanwhile shifts another over a page edge, and nothing later would bring that one back. (Asking page 1 alone
again sees a row that came, not one that went from page 2.) These second questions are 304s and cost no points.

A page's successor is the one it links to. A full page that links to none is followed by its number all the same: an
unchanged answer carries no links, and a list of exactly so many rows may have grown.
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
    """One page as it was asked for, and as it answered."""

    asked: Asked
    answer: Answer


async def walk(client: Client, path: str, etag: str = "") -> Walk | None:
    """Every row of the list at `path` (which has a query); None if page 1 is what `etag` names.

    Raises SourceError, also where the list changed under three walks in a row or is not there.
    """
    for _ in range(_WALKS):
        parts = await _pages(client, path, [Asked(path, etag, 0)])
        if parts[0].answer.is_unchanged:
            return None
        if await _are_unchanged(client, parts[:-1]):
            rows = [row for part in parts for row in part.answer.value]
            return Walk(rows, [part.asked for part in parts])
        etag = ""
    raise SourceError(f"{path}: changed under {_WALKS} walks in a row")


async def validated_pages(client: Client, path: str, known: Sequence[Asked]) -> list[Part]:
    """Each page of a list with its own validator; an unchanged one comes back as 304, without its rows.

    `known` is what was asked last. A row that slips over a page edge meanwhile makes the page it came from another
    one, so the next look sees it. Raises SourceError.
    """
    return await _pages(client, path, known, goes_on=True)


async def _pages(client: Client, path: str, known: Sequence[Asked], *, goes_on: bool = False) -> list[Part]:
    """The pages from `path` on; those behind an unchanged one only if it `goes_on`."""
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
            raise SourceError(f"{path}: its pages link in a circle")
    return parts


def _successor(path: str, parts: Sequence[Part], known: Sequence[Asked]) -> str:
    last = parts[-1]
    by_number = f"{path}&page={len(parts) + 1}"
    if last.answer.next != "":
        return last.answer.next or by_number  # behind a gateway links may name the server as it calls itself
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
        raise SourceError(f"{path}: expected a list")
    return answer


async def _are_unchanged(client: Client, parts: Sequence[Part]) -> bool:
    for part in parts:
        again = await _page(client, part.asked.path, part.answer.etag)
        # what stands between may have taken the validator away: then the rows themselves are compared
        if not again.is_unchanged and again.value != part.answer.value:
            return False
    return True
