"""The registry of sources and runners: ours are found without a search, third-party ones by their entry points."""

from __future__ import annotations

import importlib
import re
import sys
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.configs import INBOX, config_of, faults_of, tree
from support.example_plugin import EXAMPLE
from support.processes import run_python
from the_loop import wiring
from the_loop.clocks import SystemClock
from the_loop.config import Config, Session, SourceSection
from the_loop.core.model import LoopError
from the_loop.cursors import Cursor, Wait, write_cursor
from the_loop.plugins import RUNNERS, SOURCES, PluginError, Registry
from the_loop.runners.base import RunnerSite
from the_loop.sources.base import SourceSite
from the_loop.sources.limits import RateLimiters
from the_loop.state import StateRoot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Install = Callable[..., None]

SOURCE = """
    from the_loop.config import Fault, SourceSection, path_faults
    class Section(SourceSection, frozen=True, kw_only=True):
        folder: str
        depth: int = 1
    def check(section, config):
        return [Fault("depth", "is negative")] * (section.depth < 0) + path_faults(folder=section.folder)
    def build(section, site):
        raise OSError(5, "the disk is full of holes")
"""
RUNNER = """
    from the_loop.config import Session
    class Section(Session, frozen=True, kw_only=True):
        mailbox: str
    def check(section, config):
        return []
    def build(section, site):
        return (section.mailbox, site)
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Put a distribution with one module and one entry point where Python finds it; gone after the test."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(site)
    made = []

    def put(kind: str, name: str, source: str, *, dist: str = "third-party") -> None:
        module = f"{dist.replace('-', '_')}_{kind}"
        lines = source.splitlines()
        (site / f"{module}.py").write_text("\n".join(line.removeprefix("    ") for line in lines))
        info = site / f"{dist}-1.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {dist}\nVersion: 1\n")
        with (info / "entry_points.txt").open("a") as points:
            points.write(f"[the_loop.{kind}]\n{name} = {module}\n")
        made.append(module)
        importlib.invalidate_caches()

    yield put
    for module in made:
        sys.modules.pop(module, None)


# --- what is found ---


def test_names_when_nothing_is_installed_are_our_own() -> None:
    assert SOURCES.names() == ["directory", "github", "telegram"]
    assert RUNNERS.names() == ["exec", "print", "tmux"]


@pytest.mark.parametrize(("registry", "base"), [(SOURCES, SourceSection), (RUNNERS, Session)], ids=["source", "runner"])
def test_provider_of_ours_has_the_form_that_is_asked_of_others(registry: Registry[Any], base: type) -> None:
    for name in registry.ours:
        provider = registry.get(name)

        assert issubclass(provider.Section, base)
        assert callable(provider.check)
        assert callable(provider.build)


def test_provider_of_ours_when_its_section_is_checked_loads_neither_event_loop_nor_client_nor_list_of_packages() -> (
    None
):
    script = """
        import sys
        from the_loop.config_file import parse
        parse(b"polling: {sources: [{provider: github, repos: [o/r], label: a}, {provider: directory, path: i,"
              b" authorizedUsers: [x]}, {provider: telegram, authorizedUsers: ['1']}]}"
              b"\\nrouting: {authorizedUsers: [x]}\\nsession: {command: [x]}", "c.yaml")
        print(sorted({"asyncio", "httpx2", "importlib.metadata"} & set(sys.modules)))
    """

    assert run_python(script) == "[]\n"


def test_third_party_source_is_named_checked_and_shown_as_ours_are(install: Install) -> None:
    install("sources", "lines", SOURCE)
    section = {"provider": "lines", "folder": "x"}

    assert SOURCES.names() == ["directory", "github", "lines", "telegram"]
    assert config_of(tree(section)).polling.sources[0].folder == "x"  # type: ignore[attr-defined]
    assert faults_of(tree(INBOX, {**section, "depth": -1, "folder": "~nobody-of-this-name/x"})) == {
        "polling.sources[1].depth": "is negative",
        "polling.sources[1].folder": "there is no home directory for '~nobody-of-this-name/x'",
        "routing.authorizedUsers": faults_of(tree(INBOX, section))["routing.authorizedUsers"],
    }
    assert "did you mean 'folder'?" in faults_of(tree({**section, "foldr": "x"}))["polling.sources[0].foldr"]
    assert "did you mean 'lines'?" in faults_of(tree({"provider": "line"}))["polling.sources[0].provider"]


def test_third_party_runner_has_its_keys_in_the_session_beside_the_common_ones(install: Install) -> None:
    install("runners", "mailer", RUNNER)
    session = {"runner": "mailer", "mailbox": "out", "onUncertain": "hold"}

    config = config_of({**tree(), "session": session})

    assert (config.session.mailbox, config.session.on_uncertain) == ("out", "hold")  # type: ignore[attr-defined]
    assert "unknown key" in faults_of({**tree(), "session": {**session, "command": ["x"]}})["session.command"]
    assert faults_of({**tree(), "session": {"runner": "mailer"}}) == {"session.mailbox": "is missing"}
    assert faults_of({**tree(), "session": {"runner": "maler"}}) == {
        "session.runner": "unknown runner 'maler'; one of: exec, mailer, print, tmux, did you mean 'mailer'?"
    }


def test_provider_of_ours_cannot_be_replaced(install: Install) -> None:
    install("sources", "directory", SOURCE)

    assert SOURCES.get("directory").Section.__name__ == "DirectorySection"
    assert SOURCES.names() == ["directory", "github", "telegram"]


# --- what cannot be used ---


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("raise RuntimeError('no such luck')", "cannot load '.*': RuntimeError: no such luck"),
        ("import no_such_module", "cannot load '.*': ModuleNotFoundError: No module named 'no_such_module'"),
        ("class Section: pass", "has no check and no build"),
        (SOURCE.replace("(SourceSection, frozen=True, kw_only=True)", ""), "does not derive from 'SourceSection'"),
    ],
    ids=["raises", "needs what is missing", "incomplete", "of another shape"],
)
def test_provider_that_cannot_be_used_is_a_fault_that_says_why(install: Install, source: str, problem: str) -> None:
    install("sources", "lines", source)

    with pytest.raises(PluginError, match=problem) as caught:
        SOURCES.get("lines")

    faults = faults_of(tree({"provider": "lines", "folder": "x"}))
    assert faults == {"polling.sources[0].provider": caught.value.problem}


def test_provider_that_two_packages_have_is_a_fault_that_names_both(install: Install) -> None:
    install("sources", "lines", SOURCE)
    install("sources", "lines", SOURCE, dist="other")

    problem = faults_of(tree({"provider": "lines"}))["polling.sources[0].provider"]

    assert "other_sources, third_party_sources" in problem


def test_check_that_raises_is_a_fault_and_no_traceback(install: Install) -> None:
    install("sources", "lines", SOURCE.replace("return [Fault", "raise KeyError('x')\n        return [Fault"))

    faults = faults_of(tree({"provider": "lines", "folder": "x"}))

    assert faults == {"polling.sources[0]": "the provider 'lines' failed to check it: KeyError: 'x'"}


# --- what they are built with ---


def watch(config: Config, root: StateRoot, environ: dict[str, str]) -> None:
    (section,) = config.polling.sources
    clock = SystemClock()
    wiring.watch(config, section, root, environ, clock=clock, limiters=RateLimiters(clock.uptime), tell=print)


def test_source_that_cannot_be_built_is_an_error_that_names_it(install: Install, tmp_path: Path) -> None:
    install("sources", "lines", SOURCE)
    config = config_of(tree({"provider": "lines", "name": "mine", "folder": "x"}))

    with pytest.raises(LoopError, match="cannot make the source 'mine': the disk is full of holes"):
        watch(config, StateRoot(tmp_path / "root"), {})


def test_source_is_built_with_what_it_may_use(install: Install, tmp_path: Path) -> None:
    install("sources", "lines", SOURCE.replace("raise OSError", "Section.seen.append(site)\n        raise OSError"))
    section = {"provider": "lines", "name": "mine.json", "folder": "x", "authorizedUsers": ["alice", "github:bob"]}
    config = config_of(tree(section, polling={"sources": [section], "lingerSeconds": 7}))
    root = StateRoot(tmp_path / "root")
    root.prepare_root()
    root.prepare_folders()
    write_cursor(root, "mine.json", Cursor({"at": 5}, wait=Wait(until=1e10, seconds=60.0, reason="limit")))
    seen: list[object] = []
    type.__setattr__(type(config.polling.sources[0]), "seen", seen)

    with pytest.raises(LoopError):
        watch(config, root, {"HOME": "/home/alice"})

    (site,) = seen
    given: Any = {name: getattr(site, name) for name in type(site).__dataclass_fields__}  # type: ignore[attr-defined]
    assert callable(given.pop("tell"))
    assert given.pop("limiters") is not None
    assert given == {
        "name": "mine.json",
        "root": root.path,
        "folder": root.path / "local" / "sources" / "mine.json.d",
        "environ": {"HOME": "/home/alice"},
        "authorized": {"alice"},
        "linger_s": 7,
        "takes_over": False,
        "waits": True,
        "cursor": {"at": 5},
        "wait_s": 60.0,
        "wait_left_s": 60.0,
    }


def test_runner_is_built_with_what_it_may_use(install: Install, tmp_path: Path) -> None:
    install("runners", "mailer", RUNNER)
    config = config_of({**tree(routing={"dispatchTimeoutSeconds": 9}), "session": {"runner": "mailer", "mailbox": "o"}})
    told: list[object] = []

    built: Any = wiring.runner(config, StateRoot(tmp_path), {"HOME": "/x"}, told.append)
    mailbox, site = built

    assert mailbox == "o"
    assert (site.root, site.folder) == (tmp_path, tmp_path / "local" / "runners" / "mailer")
    assert (site.environ, site.limit_s, site.tell) == ({"HOME": "/x"}, 9, told.append)


# --- what the page says of it ---

PAGE = Path(__file__).parents[2] / "docs" / "development" / "writing-a-source.md"


@pytest.mark.parametrize("site", [SourceSite, RunnerSite])
def test_page_explains_every_field_that_a_provider_is_given(site: type) -> None:
    _, _, part = PAGE.read_text().partition(f"`build` gets a `{site.__name__}`:\n")
    table, _, _ = part.strip().partition("\n\n")
    named = [name for row in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split("|")[1])]

    assert sorted(named) == sorted(field.name for field in fields(site))


def test_page_names_nothing_that_is_not_there() -> None:
    _, _, part = PAGE.read_text().partition("## What you may import")
    rows = re.findall(r"^\| (`[\w., `]+`) \| (.*) \|$", part.partition("\n## ")[0], re.MULTILINE)

    for modules, names in rows:
        for module in re.findall(r"`([\w.]+)`", modules):
            there = vars(importlib.import_module(f"the_loop.{module}"))
            assert set(re.findall(r"`(\w+)`", names)) <= set(there)
    assert len(rows) == 6


def test_example_imports_nothing_else() -> None:
    _, _, part = PAGE.read_text().partition("## What you may import")
    rows = re.findall(r"^\| (`[\w., `]+`) \|", part.partition("\n## ")[0], re.MULTILINE)
    open_to_others = {f"the_loop.{module}" for row in rows for module in re.findall(r"`([\w.]+)`", row)}

    texts = [path.read_text() for path in (EXAMPLE / "the_loop_example").glob("*.py")]
    used = {module for text in texts for module in re.findall(r"^from (the_loop[\w.]*) import", text, re.MULTILINE)}

    assert used
    assert used <= open_to_others


def test_page_gives_the_length_of_the_example() -> None:
    lines = {path.stem: len(path.read_text().splitlines()) for path in (EXAMPLE / "the_loop_example").glob("*.py")}

    assert f"a source of {lines['jsonl']} lines" in PAGE.read_text()
    assert f"a runner of {lines['spool']}" in PAGE.read_text()
    assert lines["jsonl"] < 150
