"""What the documents state is so: tables equal the code's, samples are valid, commands do what is shown."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import pwd
import re
import shutil
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, get_args, get_origin, get_type_hints

import click
import msgspec
import pytest
import yaml

from the_loop import cli, config, config_file, eventlog, plugins
from the_loop.cli import prometheus
from the_loop.cli.events import _in_words
from the_loop.core import ledger
from the_loop.core.model import Entry, Event, Kind
from the_loop.runners import keeper
from the_loop.runners.exec import variables

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
BIN = Path(sys.executable).parent
USER = pwd.getpwuid(os.getuid()).pw_name
DEADLINE_S = 30.0

Row = list[str]


def read(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def blocks(text: str, language: str) -> list[str]:
    """The fenced blocks of this language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def tables(text: str) -> list[list[Row]]:
    """Every table: its rows, the head first, without the line below it."""
    found: list[list[Row]] = [[]]
    for line in text.splitlines():
        if line.startswith("|"):
            found[-1].append([cell.strip() for cell in line.strip("|").split("|")])
        elif found[-1]:
            found.append([])
    return [[rows[0], *rows[2:]] for rows in found if rows]


def table(text: str, *head: str) -> list[Row]:
    """The rows below a head that begins like this, of all such tables."""
    return [row for rows in tables(text) if rows[0][: len(head)] == list(head) for row in rows[1:]]


def plain(cell: str) -> str:
    return cell.strip("`")


def without_code(text: str) -> str:
    return re.sub(r"^```.*?^```$|`[^`\n]*`", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(text: str) -> set[str]:
    """The anchors that GitHub gives the headings."""
    titles = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


# --- links -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_when_relative_lead_to_a_file_and_a_heading(page: Path) -> None:
    dead = []
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(page.read_text("utf-8"))):
        if target.startswith(("https://", "http://")):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and anchor not in anchors(file.read_text("utf-8"))):
            dead.append(target)

    assert dead == []


def test_pages_when_they_are_docs_are_all_linked_from_the_readme() -> None:
    linked = {
        (ROOT / target.partition("#")[0]).resolve() for target in re.findall(r"\]\(([^)\s]+)\)", read("README.md"))
    }

    assert set(DOCS.rglob("*.md")) <= linked


# --- events ----------------------------------------------------------------------------------------------------------


def test_events_page_when_compared_with_the_catalog_is_equal() -> None:
    rows = table(read("docs/usage/events.md"), "event", "level")

    told = {plain(name): (level, plain(sentence)) for name, level, sentence, _ in rows}

    assert told == {name: (form.level, form.sentence) for name, form in eventlog.CATALOG.items()}


def test_events_page_when_a_field_is_used_explains_it() -> None:
    text = read("docs/usage/events.md")
    explained = {name for row in table(text, "field", "meaning") for name in re.findall(r"`(\w+)`", row[0])}

    used = set()
    for _, _, sentence, more in table(text, "event", "level"):
        used |= set(re.findall(r"\{(\w+)\}", sentence)) | set(re.findall(r"`(\w+)`", more))

    assert used - explained == {"suffix"}


def test_events_page_when_its_sample_is_read_tells_the_same_twice() -> None:
    (sample,) = [block for block in blocks(read("docs/usage/events.md"), "console") if '"event"' in block]
    lines = sample.splitlines()

    parsed = [json.loads(line) for line in lines if line.startswith("{")]

    assert [_in_words(event) for event in parsed] == [line for line in lines if line[0] not in "${"]
    for event in parsed:
        form = eventlog.CATALOG[event["event"]]
        assert event["level"] == form.level
        assert event["message"] == form.sentence.format_map({**event, "suffix": ""})


# --- metrics ---------------------------------------------------------------------------------------------------------


def test_monitoring_page_when_compared_with_the_code_has_every_metric_as_it_is() -> None:
    rows = table(read("docs/usage/monitoring.md"), "metric", "type")

    told = {plain(name): (kind, meaning) for name, kind, _, meaning in rows}

    assert told == prometheus.METRICS


# --- configuration ---------------------------------------------------------------------------------------------------


def keys(kind: type[config.Section], prefix: str) -> Iterator[tuple[str, msgspec.structs.FieldInfo, Any]]:
    """Every key of a section as the page writes it, with its field and its type."""
    hints = get_type_hints(kind, include_extras=True)
    for info in msgspec.structs.fields(kind):
        hint = hints[info.name]
        name = f"{prefix}{info.encode_name}"
        if isinstance(hint, type) and issubclass(hint, config.Section):
            yield from keys(hint, f"{name}.")
        else:
            yield name, info, hint


def all_keys() -> dict[str, tuple[msgspec.structs.FieldInfo, Any]]:
    found = {key: (info, hint) for key, info, hint in keys(config.Config, "")}
    for name in plugins.RUNNERS.ours:
        found |= {key: (info, hint) for key, info, hint in keys(plugins.RUNNERS.get(name).Section, "session.")}
    common = {key: (info, hint) for key, info, hint in keys(config.SourceSection, "")}
    for name in plugins.SOURCES.ours:
        for key, info, hint in keys(plugins.SOURCES.get(name).Section, ""):
            if key not in common or common[key][0].default != info.default:
                found[f"{name}: {key}"] = (info, hint)
    return found | common


def config_rows() -> dict[str, Row]:
    """The rows by key, those of a provider's own as `<provider>: <key>`."""
    rows: dict[str, Row] = {}
    for part in re.split(r"^(?=`provider: |### )", read("docs/usage/configuration.md"), flags=re.MULTILINE):
        provider = re.match(r"`provider: (\w+)`", part)
        prefix = f"{provider[1]}: " if provider else ""
        rows |= {f"{prefix}{plain(row[0])}": row for row in _rows_of(part)}
    return rows


def _rows_of(part: str) -> list[Row]:
    return table(part, "key", "default", "values") if "| key | default | values |" in part else []


def test_configuration_page_when_compared_with_the_code_names_every_key_and_no_other() -> None:
    assert set(config_rows()) == set(all_keys())


@pytest.mark.parametrize("name", sorted(all_keys()))
def test_configuration_page_when_it_gives_a_default_and_a_range_they_are_the_codes(name: str) -> None:
    info, hint = all_keys()[name]
    _, default, values, _ = config_rows()[name]
    is_required = info.required or name == "polling.sources"  # an empty list is refused, too

    if is_required:
        assert default == "required"
    else:
        assert yaml.safe_load(default) == json.loads(msgspec.json.encode(info.default))
    base, *metas = get_args(hint) if get_origin(hint) is not None and get_args(hint) else (hint,)
    limits = [meta for meta in metas if isinstance(meta, msgspec.Meta) and meta.le is not None]
    if base in (int, float):
        assert values == f"{limits[0].ge} to {limits[0].le}"


def test_configuration_page_when_it_shows_the_built_in_default_it_is_that() -> None:
    (sample,) = [block for block in blocks(read("docs/usage/configuration.md"), "yaml") if "print" in block]

    assert config_file.parse(sample.replace("alice", USER).encode(), "sample") == config_file.embedded_default()


def test_configuration_page_when_it_shows_faults_they_are_told_so() -> None:
    sample = next(block for block in blocks(read("docs/usage/configuration.md"), "console"))
    faulty = """
        polling:
          intervalSeconds: soon
          sources: [{provider: github, repos: [octo/repo], lable: auto}]
        routing: {authorizedUsers: [octocat]}
        session: {command: [my-agent]}
    """

    with pytest.raises(config.ConfigError) as caught:
        config_file.parse(textwrap.dedent(faulty).lstrip().encode(), "loop.yaml")

    assert sample.partition("\n")[2].strip() == f"the-loop: {caught.value}"


@pytest.mark.parametrize("file", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda file: file.name)
def test_example_when_checked_is_in_order(file: Path) -> None:
    config_file.parse(file.read_bytes(), file.name)


@pytest.mark.parametrize("page", ["docs/usage/directory.md", "docs/usage/github.md"])
def test_source_page_when_it_shows_a_section_it_is_valid(page: str) -> None:
    (sample,) = blocks(read(page), "yaml")
    whole = {"polling": {"sources": yaml.safe_load(sample)}, "session": {"command": ["true"]}}

    config_file.parse(yaml.safe_dump(whole).encode(), page)


# --- the tables of the architecture -----------------------------------------------------------------------------------


def transitions(name: str) -> dict[str, set[str]]:
    """The table `from | to` below the heading that has this in it."""
    part = next(part for part in read("docs/development/architecture.md").split("\n## ") if name in part.split("\n")[0])
    return {row[0]: {cell.strip() for cell in row[1].split(",")} for row in table(part, "from", "to")}


def written(code: Mapping[Any, frozenset[Any]]) -> dict[str, set[str]]:
    return {str(before or "-"): {str(after) for after in afters} for before, afters in code.items()}


def test_phase_table_when_compared_with_the_code_is_equal() -> None:
    assert transitions("phase table") == written(ledger.PHASES)


def test_standing_table_when_compared_with_the_code_is_equal() -> None:
    assert transitions("standing table") == written(ledger.STANDINGS)


def test_module_table_when_compared_with_the_tree_names_every_module_and_package() -> None:
    rows = table(read("docs/development/architecture.md"), "module in `src/the_loop/`")
    named = {name for row in rows for name in re.findall(r"`(\w+)/?`", row[0])}

    source = ROOT / "src" / "the_loop"
    there = {path.stem for path in source.glob("*.py")} | {path.name for path in source.iterdir() if path.is_dir()}

    assert {name for name in there if name[0] not in "._"} == named


def modules_in(folder: str) -> set[str]:
    """The modules and packages in this folder of the source tree."""
    source = ROOT / "src" / "the_loop" / folder
    return {path.stem for path in source.glob("*.py")} | {path.parent.name for path in source.glob("*/__init__.py")}


@pytest.mark.parametrize("folder", ["core", "sources", "runners", "supervision"])
def test_module_table_when_it_shows_a_folder_names_every_module_in_it(folder: str) -> None:
    rows = table(read("docs/development/architecture.md"), "module in `src/the_loop/`")
    (cell,) = [row[1] for row in rows if row[0] == f"`{folder}/`"]

    assert set(re.findall(r"`(\w+)/?`", cell)) == modules_in(folder) - {"__init__"}


@pytest.mark.parametrize("folder", ["sources/github", "sources/telegram"])
def test_module_table_of_a_source_when_compared_with_the_tree_names_every_module(folder: str) -> None:
    rows = table(read("docs/development/architecture.md"), f"module in `{folder}/`")

    assert {plain(row[0]) for row in rows} == modules_in(folder) - {"__init__"}


# --- the contract -----------------------------------------------------------------------------------------------------


def requirements() -> set[str]:
    """The numbers of all requirements: `R1`, `R1.1`, …, and `section 1` for the parts of the page."""
    text = read("docs/development/contract.md")
    numbers = set(re.findall(r"^(?:### |- \*\*)(R\d+(?:\.\d+)?)\b", text, re.MULTILINE))
    return numbers | {f"section {number}" for number in re.findall(r"^## (\d+)\.", text, re.MULTILINE)}


def test_contract_when_code_or_a_test_cites_it_has_that_number() -> None:
    cited: set[str] = set()
    for file in (*(ROOT / "src").rglob("*.py"), *(ROOT / "tests").rglob("*.py")):
        for numbers in re.findall(r"\bcontract ((?:(?:R\d[\d.]*|section \d)(?:, )?)+)", file.read_text("utf-8")):
            cited |= set(re.findall(r"R\d+(?:\.\d+)?|section \d", numbers))

    assert len(cited) > 10
    assert cited <= requirements()


# --- delivery --------------------------------------------------------------------------------------------------------


def payload(**fields: Any) -> dict[str, Any]:
    """What a receiver reads of an event that has everything."""
    entry = Entry(Kind.COMMENT, "1", "octocat", "text", "url", "2026-01-31T12:00:00Z")
    event = Event("github:octo/repo#15", "spawn:1", "url", "title", "octocat", "body", "", thread=(entry,), **fields)
    return {"schema": 1, "offer": 1, **event.to_json(attempt=1, redelivery=False)}


def test_delivery_page_when_compared_with_the_payload_explains_every_field() -> None:
    rows = table(read("docs/usage/delivery.md"), "field", "meaning")

    assert {plain(row[0]) for row in rows} == set(payload(truncated=True, reason="closed"))


def test_delivery_page_when_its_sample_is_read_has_the_fields_of_a_payload() -> None:
    (sample,) = blocks(read("docs/usage/delivery.md"), "json")

    shown = json.loads(sample)

    assert list(shown) == list(payload())
    assert list(shown["thread"][0]) == list(payload()["thread"][0])


def test_delivery_page_when_it_lists_the_environment_then_it_is_the_receivers() -> None:
    part = next(part for part in read("docs/usage/delivery.md").split("\n## ") if part.startswith("Environment"))
    listed, _, passed_on = part.partition("Of the poller's own environment")

    assert set(re.findall(r"`(THE_LOOP_\w+)`", listed)) == set(variables({}))
    assert set(re.findall(r"`([A-Z_]+)`", passed_on)) == keeper.PASSED_ON


@pytest.mark.parametrize("language", ["sh", "python"])
def test_receiver_when_a_delivery_is_offered_twice_works_once(language: str, tmp_path: Path) -> None:
    (program,) = blocks(read("docs/usage/delivery.md"), language)
    file = tmp_path / "receiver"
    file.write_text(program)
    file.chmod(0o700)
    offers = ["a:b/spawn:1", "a:b/spawn:1", "a:b/comment:1 ü"]

    for offer in offers:
        stdin = json.dumps({**payload(), "deliveryId": offer}) + "\n"
        environ = {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "THE_LOOP_DELIVERY_ID": offer}
        subprocess.run([file], input=stdin, text=True, env=environ, check=True, timeout=DEADLINE_S)

    (work,) = (tmp_path / ".local/state/my-receiver").glob("work.*")
    assert len(work.read_text().splitlines()) == 2


# --- commands --------------------------------------------------------------------------------------------------------


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    for name in group.list_commands(click.Context(group)):
        found = group.get_command(click.Context(group), name)
        assert found is not None
        if isinstance(found, click.Group):
            yield from commands(found, (*path, name))
        else:
            yield " ".join((*path, name)), found


def test_commands_page_when_compared_with_the_program_names_every_command_and_option() -> None:
    text = read("docs/usage/commands.md")

    missing = []
    for name, found in commands(cli.cli):
        options = [option for parameter in found.params for option in parameter.opts if option.startswith("--")]
        missing += [word for word in (name, *options) if word not in text]

    assert missing == []


def test_issue_template_when_it_is_filled_in_has_status_and_versions() -> None:
    asked = re.findall(r"^\$ (.*)$", read(".github/ISSUE_TEMPLATE/bug_report.md"), re.MULTILINE)
    names = [name for name, _ in commands(cli.cli)]

    assert {"the-loop --version", "the-loop poll status --json", "systemctl --version | head -1"} <= set(asked)
    for words in (line.removeprefix("the-loop ") for line in asked if line.startswith("the-loop ")):
        assert words.startswith(("--", *names)), words


def run_console(block: str, folder: Path) -> str:
    """What a terminal shows for the commands of a block, run one after the other in this folder."""
    script = [f"echo {_quoted(line)}\n{line[2:]}" for line in block.splitlines() if line.startswith("$ ")]
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("THE_LOOP_", "XDG_CONFIG"))}
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        ["sh", "-c", "\n".join(script)],
        cwd=folder,
        env={**environ, "HOME": str(folder), "PATH": f"{BIN}:{os.environ['PATH']}", "NO_COLOR": "1"},
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    with open(ours, "rb", buffering=0) as terminal:  # noqa: PTH123 (a descriptor)
        shown = b"".join(_parts(terminal))
    assert process.wait(2 * DEADLINE_S) is not None
    return shown.decode().replace("\r\n", "\n")


def _parts(terminal: IO[bytes]) -> Iterator[bytes]:
    """All that is written to a terminal until nobody has it open any more."""
    with contextlib.suppress(OSError):  # EIO: its other side is closed
        while part := terminal.read(65536):
            yield part


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def levelled(text: str, folder: Path) -> str:
    """Without what differs from machine to machine."""
    return re.sub(r"\b(pid|uid) \d+", r"\1 N", text.replace(str(folder.resolve()), "/home/alice"))


def test_readme_when_its_configuration_is_checked_is_in_order(tmp_path: Path) -> None:
    (sample,) = blocks(read("README.md"), "yaml")
    (tmp_path / "loop.yaml").write_text(sample.replace("alice", USER))  # as the comment in it says

    shown = run_console("$ the-loop --config loop.yaml config check\n", tmp_path)

    assert shown.splitlines()[1:] == ["loop.yaml: OK"]


@pytest.mark.slow
def test_readme_when_its_example_is_run_shows_what_it_says(tmp_path: Path) -> None:
    (sample,) = blocks(read("README.md"), "yaml")
    (console,) = blocks(read("README.md"), "console")
    (tmp_path / "loop.yaml").write_text(sample.replace("alice", USER))

    shown = run_console(console, tmp_path)

    assert levelled(shown, tmp_path) == levelled(console, tmp_path)


# --- make run ---------------------------------------------------------------------------------------------------------


def wait_for(condition: str, file: Path, process: subprocess.Popen[bytes]) -> str:
    """The text of a growing file once this is in it."""
    until = time.monotonic() + DEADLINE_S
    while condition not in (text := file.read_text()) and process.poll() is None:
        assert time.monotonic() < until, text
        time.sleep(0.02)
    return file.read_text()


def run_demo(root: Path, output: Path, arrives: Sequence[str]) -> str:
    """Start the demo, wait for all of these, end it in order: what it showed."""
    with output.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, ROOT / "scripts" / "demo.py", root],
            env={**os.environ, "THE_LOOP_CONFIG": "/nonexistent/of-the-user.yaml"},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
        try:
            for text in arrives:
                wait_for(text, output, process)
        finally:
            process.terminate()
            code = process.wait(DEADLINE_S)
    assert code == 0, output.read_text()
    return output.read_text()


@pytest.mark.slow
def test_demo_when_run_again_shows_something_new_and_nothing_twice(tmp_path: Path) -> None:
    root = tmp_path / "a root"
    samples = [f"[spawn] directory:inbox/{name}/spawn:1" for name in ("squeaky-door", "paint-the-fence")]

    first = run_demo(root, tmp_path / "first", samples)
    (root / "inbox" / "squeaky-door" / "02-hinges.md").write_text("Mind the hinges.\n")
    (root / "inbox" / "squeaky-door" / "02-hinges.md").chmod(0o644)
    news = ["[spawn] directory:inbox/run-2/spawn:1", "[comment] directory:inbox/squeaky-door/comment:run-2.md"]
    second = run_demo(root, tmp_path / "second", ["| Mind the hinges.", *news])
    shutil.rmtree(root / "inbox" / "squeaky-door")
    third = run_demo(root, tmp_path / "third", ["[spawn] directory:inbox/run-3/spawn:1"])

    assert [first.count(sample) for sample in samples] == [1, 1]
    assert [second.count(one) for one in (*samples, *news)] == [0, 0, 1, 1]
    assert "come within a few seconds: run-2/item.md, squeaky-door/run-2.md\n" in second
    assert [third.count(one) for one in (*samples, *news)] == [0, 0, 0, 0]
    assert "come within a few seconds: run-3/item.md\n" in third
