"""No `x += await …`: `x` is read before the await, so whatever was added to it meanwhile is lost.

It was found in the count of a cycle's errors, where sources polled side by side overwrote each other's. A local
variable is safe, but the rule has no exceptions: name the result first, then add it.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ROOT = Path(__file__).parents[2]
FOLDERS = ("src", "tests", "benchmarks", "scripts", "examples")


def races_in(source: str) -> list[int]:
    """The lines with an assignment that reads its own target before an await and writes it after."""
    return [node.lineno for node in ast.walk(ast.parse(source)) if isinstance(node, ast.stmt) and is_race(node)]


def is_race(node: ast.stmt) -> bool:
    match node:
        case ast.AugAssign(target=target, value=value):
            return has_await(value) or has_await(target)
        case ast.Assign(targets=targets, value=value) if has_await(value):
            return not names_in(targets).isdisjoint(names_in([value]))
        case ast.AnnAssign(target=target, value=ast.expr() as value) if has_await(value):
            return not names_in([target]).isdisjoint(names_in([value]))
        case _:
            return False


def has_await(node: ast.AST) -> bool:
    return any(isinstance(part, ast.Await) or getattr(part, "is_async", 0) for part in evaluated_in(node))


def names_in(nodes: Iterable[ast.AST]) -> set[str]:
    """The attributes and elements (`self.x`, `a[b]`) that are read or written here, outside of an awaited call."""
    found: set[str] = set()
    for node in nodes:
        parts = evaluated_in(node, into_await=False)
        found |= {ast.unparse(part) for part in parts if isinstance(part, ast.Attribute | ast.Subscript)}
    return found


def evaluated_in(node: ast.AST, *, into_await: bool = True) -> Iterator[ast.AST]:
    """The expression and its parts; not the bodies of functions, which are run at another time."""
    yield node
    if isinstance(node, ast.Lambda) or (isinstance(node, ast.Await) and not into_await):
        return
    for part in ast.iter_child_nodes(node):
        yield from evaluated_in(part, into_await=into_await)


@pytest.mark.parametrize(
    "line",
    [
        "x += await f()",
        "self.x += await f()",
        "self.x -= 1 + (await f())",
        "self.x[k] |= {*(await f())}",
        "self.x += [one async for one in f()]",
        "x[await f()] += 1",
        "self.x = self.x + await f()",
        "self.x = 1 + await f() + self.x",  # in this order it is safe, and one edit away from not being so
        "self.x: int = self.x + await f()",
        "self.x[k] = (self.x[k], await f())",
    ],
)
def test_read_before_an_await_that_is_written_after_it_is_found(line: str) -> None:
    assert races_in(f"async def run(self):\n    if self:\n        {line}\n") == [3]


@pytest.mark.parametrize(
    "line",
    [
        "x = await f()",
        "self.x += 1",
        "self.x += f()",
        "self.x = await f()",
        "self.x = await self.f(self.x)",
        "self.x = self.y + await f()",
        "self.x = lambda: self.x",
        "await f(self.x)",
    ],
)
def test_other_assignments_are_not_found(line: str) -> None:
    assert races_in(f"async def run(self):\n    {line}\n") == []


def test_nothing_of_ours_reads_before_an_await_what_it_writes_after_it() -> None:
    files = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    assert len(files) > 200

    found = [f"{path.relative_to(ROOT)}:{line}" for path in files for line in races_in(path.read_text("utf-8"))]

    assert found == [], "name the result first, then add it"
