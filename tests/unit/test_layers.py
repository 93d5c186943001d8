"""Imports point inwards: what each part of the code may know (docs/development/, the shape of the code)."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

import the_loop

ROOT = Path(the_loop.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
EDGES = ("sources", "runners", "supervision", "cli")


def name_of(path: Path) -> str:
    """The module in this file, without the package's name in front; `` for the package itself."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


MODULES = {name_of(path): path for path in FILES}


def imports_of(module: str) -> set[str]:
    """Every module that is imported in this one, at its top or inside a function, with its full name."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(MODULES[module].read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: a relative import"
            assert node.module is not None
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def ours_of(module: str) -> set[str]:
    """Our own modules among them, without the package's name in front."""
    return {name.removeprefix("the_loop.") for name in imports_of(module) if name.startswith("the_loop.")} & set(
        MODULES
    )


def edge_of(module: str) -> str:
    """The edge that a module belongs to, or nothing for the core."""
    first = module.partition(".")[0]
    return first if first in EDGES else ""


def test_there_are_modules_to_look_at() -> None:
    assert {"model", "decide", "sources.github.client", "runners.keeper", "supervision.notify", "cli.poll"} <= set(
        MODULES
    )
    assert ours_of("decide") >= {"model", "ledger", "guards"}


@pytest.mark.parametrize(
    ("module", "may_know"),
    [
        ("model", set()),
        ("config", {"model"}),
        ("state", {"model"}),
        ("processes", set()),
        ("lock", {"model", "processes", "state"}),
        ("events", {"model"}),
        ("ledger", {"model", "state"}),
        ("guards", {"model", "config"}),
        ("verdicts", {"model", "ledger"}),
        ("decide", {"model", "ledger", "guards"}),
        ("positions", {"model", "state"}),
        ("archive", {"model", "ledger", "state"}),
        ("sources.base", {"model"}),
        ("runners.base", {"model"}),
    ],
)
def test_core_module_knows_only_what_is_below_it(module: str, may_know: set[str]) -> None:
    assert ours_of(module) <= may_know


@pytest.mark.parametrize("module", ["model", "ledger", "guards", "decide", "verdicts"])
def test_heart_knows_no_clock_no_disk_and_no_network(module: str) -> None:
    outside = {"asyncio", "os", "pathlib", "time", "random", "socket", "subprocess", "threading", "httpx2", "shutil"}

    assert not {name.partition(".")[0] for name in imports_of(module)} & outside


@pytest.mark.parametrize("module", [name for name in MODULES if edge_of(name)])
def test_edge_never_knows_another_edge(module: str) -> None:
    if edge_of(module) == "cli":
        return  # the outermost layer

    others = {name for name in ours_of(module) if edge_of(name) not in ("", edge_of(module))}

    assert others == set()


@pytest.mark.parametrize("module", [name for name in MODULES if edge_of(name) in ("sources", "runners")])
def test_source_or_runner_knows_nothing_of_who_drives_it(module: str) -> None:
    drivers = {"poller", "cycle", "dispatcher", "outbox", "wiring", "running", "heartbeat", "archive", "positions"}

    assert not ours_of(module) & drivers


@pytest.mark.parametrize("module", ["runners.keeper", "runners.printer"])
def test_what_outlives_us_or_starts_alone_knows_only_the_standard_library(module: str) -> None:
    names = {name.partition(".")[0] for name in imports_of(module)}

    assert names <= sys.stdlib_module_names


def test_nobody_but_the_command_line_imports_the_command_line() -> None:
    importers = {
        name for name in MODULES if edge_of(name) != "cli" and any(map("cli".__eq__, map(edge_of, ours_of(name))))
    }

    assert importers <= {"running", "__main__"}  # `poll start` itself, around one life of the poller


def test_no_module_imports_itself_in_a_circle() -> None:
    left = {name: ours_of(name) - {name} for name in MODULES}

    while free := {name for name, needs in left.items() if not needs & set(left)}:
        left = {name: needs for name, needs in left.items() if name not in free}

    assert left.keys() <= {"running", "cli.common", "cli.poll"}, left
