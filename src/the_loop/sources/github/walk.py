"""Walking lists that change while they are read.

An answer of several pages counts only if every page but the last, asked again after the walk, is unchanged: a row
that goes meanwhile shifts another over a page edge, and nothing later would bring that one back. (Asking page 1 alone
again sees a row that came, not one that went from page 2.) These second questions are 304s and cost no points.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from the_loop.sources.base import SourceError
from the_loop.sources.github.client import Answer, Client

PAGE: Final = 100
_WALKS: Final = 3
_LONGEST: Final = 1000  # pages


@dataclass(frozen=True, slots=True)
class Walk:
    """All rows of a list, as raw JSON. `etag` is page 1's, `date` its time at the server (epoch seconds)."""

    rows: list[Any]
    etag: str
    date: float
    moved: str = ""


async def walk(client: Client, path: str, etag: str = "") -> Walk | None:
    """Every row of the list at `path` (which has a query); None if page 1 is what `etag` names.

    Raises SourceError, also where the list changed under three walks in a row or is not there.
    """
    for _ in range(_WALKS):
        pages = await _pages(client, path, etag)
        if pages[0].is_unchanged:
            return None
        if await _are_unchanged(client, path, pages[:-1]):
            rows = [row for page in pages for row in page.value]
            return Walk(rows, pages[0].etag, pages[0].date, pages[0].moved)
        etag = ""
    raise SourceError(f"{path}: changed under {_WALKS} walks in a row")


async def listing_pages(client: Client, path: str, known: Sequence[Mapping[str, Any]]) -> list[Answer]:
    """The pages of the item list; an unchanged one comes back as 304, to be filled from what is known of it.

    `known` has each page's `path`, `etag` and `size`. Pages are asked for until one is not full.
    """
    pages: list[Answer] = []
    for number in range(1, _LONGEST):
        here = page_path(path, number)
        before = known[number - 1] if len(known) >= number and known[number - 1].get("path") == here else {}
        answer = await _page(client, here, str(before.get("etag", "")))
        pages.append(answer)
        size = int(before["size"]) if answer.is_unchanged else len(answer.value)
        if size < PAGE:
            return pages
    raise SourceError(f"{path}: more than {_LONGEST} pages")


def page_path(path: str, number: int) -> str:
    return path if number == 1 else f"{path}&page={number}"


async def _pages(client: Client, path: str, etag: str) -> list[Answer]:
    pages = [await _page(client, path, etag)]
    while not pages[-1].is_unchanged and len(pages[-1].value) >= PAGE:
        if len(pages) >= _LONGEST:
            raise SourceError(f"{path}: more than {_LONGEST} pages")
        pages.append(await _page(client, page_path(path, len(pages) + 1), ""))
    return pages


async def _page(client: Client, path: str, etag: str) -> Answer:
    answer = await client.get(path, etag)
    if answer.is_unchanged:
        return answer
    if answer.status != 200:
        raise SourceError(f"{path}: status {answer.status}, not found with this token")
    if not isinstance(answer.value, list):
        raise SourceError(f"{path}: expected a list")
    return answer


async def _are_unchanged(client: Client, path: str, pages: list[Answer]) -> bool:
    for number, page in enumerate(pages, 1):
        if not page.etag or not (await client.get(page_path(path, number), page.etag)).is_unchanged:
            return False
    return True
