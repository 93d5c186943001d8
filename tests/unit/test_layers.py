"""Imports point inwards: what each part of the code may know (docs/development/architecture.md)."""

from __future__ import annotations

import ast
import re
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
    assert {"core.model", "core.decide", "sources.github.client", "runners.keeper", "cli.poll"} <= set(MODULES)
    assert ours_of("core.decide") >= {"core.model", "core.ledger", "core.guards"}


@pytest.mark.parametrize(
    ("module", "may_know"),
    [
        ("core.model", set()),
        ("core.ledger", {"core.model"}),
        ("core.guards", {"core.model", "core.markdown"}),
        ("core.breaker", {"core.model", "core.ledger"}),
        ("core.outcomes", {"core.model", "core.ledger", "core.breaker"}),
        ("core.decide", {"core.model", "core.ledger", "core.guards", "core.breaker"}),
        ("config", {"core.model"}),
        ("durable", set()),
        ("state", {"core.model", "durable"}),
        ("processes", set()),
        ("lock", {"core.model", "processes", "durable"}),
        ("eventlog", {"core.model"}),
        ("cursors", {"durable", "state"}),
        ("settled", {"core.ledger", "durable"}),
        ("asides", {"durable"}),
        ("records", {"core.ledger", "durable", "state", "settled", "asides"}),
        ("ledgers", {"core.model", "core.ledger", "durable", "state", "records"}),
        ("sources.base", {"core.model", "sources.limits"}),
        ("runners.base", {"core.model"}),
        ("config_text", {"core.model", "config"}),
        ("config_file", {"core.model", "config", "config_text", "config_words", "plugins"}),
        ("plugins", {"core.model", "config", "sources.base", "runners.base"}),
    ],
)
def test_module_knows_only_what_is_below_it(module: str, may_know: set[str]) -> None:
    assert ours_of(module) - {"core"} <= may_know


CORE = sorted(name for name in MODULES if name.startswith("core."))


def test_core_holds_the_values_the_record_and_the_decisions() -> None:
    assert [
        *("core.breaker", "core.decide", "core.guards", "core.ledger", "core.markdown", "core.model", "core.outcomes")
    ] == CORE


@pytest.mark.parametrize("module", CORE)
def test_core_knows_no_clock_no_disk_no_network_and_nothing_outside_itself(module: str) -> None:
    outside = {"asyncio", "os", "pathlib", "time", "random", "socket", "subprocess", "threading", "httpx2", "shutil"}

    assert not {name.partition(".")[0] for name in imports_of(module)} & outside
    assert ours_of(module) - {"core"} <= set(CORE)


@pytest.mark.parametrize("module", [name for name in MODULES if edge_of(name)])
def test_edge_never_knows_another_edge(module: str) -> None:
    if edge_of(module) == "cli":
        return  # the outermost layer

    others = {name for name in ours_of(module) if edge_of(name) not in ("", edge_of(module))}

    assert others == set()


@pytest.mark.parametrize("module", [name for name in MODULES if edge_of(name) in ("sources", "runners")])
def test_source_or_runner_knows_nothing_of_who_drives_it(module: str) -> None:
    drivers = {"poller", "cycle", "dispatcher", "outbox", "wiring", "daemon", "heartbeat", "ledgers", "cursors"}

    assert not ours_of(module) & drivers


@pytest.mark.parametrize("module", ["runners.keeper", "runners.printer"])
def test_what_outlives_us_or_starts_alone_knows_only_the_standard_library(module: str) -> None:
    names = {name.partition(".")[0] for name in imports_of(module)}

    assert names <= sys.stdlib_module_names


def test_nobody_but_the_command_line_imports_the_command_line() -> None:
    importers = {
        name for name in MODULES if edge_of(name) != "cli" and any(map("cli".__eq__, map(edge_of, ours_of(name))))
    }

    assert importers <= {"daemon", "__main__"}  # `poll start` itself, around one life of the poller


def test_no_module_imports_itself_in_a_circle() -> None:
    left = {name: ours_of(name) - {name} for name in MODULES}

    while free := {name for name, needs in left.items() if not needs & set(left)}:
        left = {name: needs for name, needs in left.items() if name not in free}

    assert left.keys() <= {"daemon", "cli.common", "cli.poll"}, left


def drawn() -> list[list[str]]:
    """The lines of the diagram in the page, each with its modules and folders, the outermost first."""
    page = (Path(__file__).parents[2] / "docs/development/architecture.md").read_text("utf-8")
    (diagram,) = re.findall(r"^```text\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    return [line.split() for line in diagram.splitlines()]


def top_level_imports() -> set[tuple[str, str]]:
    """Which module or folder of the package imports which other one."""
    pairs = {(name.partition(".")[0], other.partition(".")[0]) for name in MODULES for other in ours_of(name)}
    return {(one, other) for one, other in pairs if one != other and one not in ("", "__main__")}


def test_diagram_when_compared_with_the_tree_has_every_module_and_folder_once() -> None:
    names = [name for line in drawn() for name in line]

    assert sorted(names) == sorted({name.partition(".")[0] for name in MODULES} - {"", "__main__"})


def test_diagram_when_compared_with_the_imports_has_each_pointing_down() -> None:
    depth = {name: number for number, line in enumerate(drawn()) for name in line}

    assert sorted(f"{one} -> {other}" for one, other in top_level_imports() if depth[one] >= depth[other]) == []
