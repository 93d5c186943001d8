"""What `make install` puts below `share`: manual pages as complete as `--help`, completion, and the schema."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pytest

from the_loop import cli

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
PROGRAM = Path(sys.executable).with_name("the-loop")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder `usr` of an installation below a destination with a blank in it."""
    place = tmp_path_factory.mktemp("a place")
    subprocess.run([sys.executable, ROOT / "scripts" / "install_files.py", place, "/usr"], check=True)
    return place / "usr"


@pytest.fixture(scope="module")
def pages(installed: Path) -> dict[str, str]:
    """The text of each page by its name, as `the-loop.1`, with the escapes of roff taken out."""
    found = {page.name: page.read_text("ascii") for page in installed.glob("share/man/man?/*")}
    escapes = {r"\-": "-", r"\fB": "", r"\fP": "", r"\(aq": "'", r"\(ga": "`", r"\(ti": "~", r"\(dq": '"', r"\%": ""}
    for escape, char in escapes.items():
        found = {name: text.replace(escape, char) for name, text in found.items()}
    return {name: re.sub(r"\\\[u(\w+)\]", lambda code: chr(int(code[1], 16)), text) for name, text in found.items()}


def commands(command: click.Command, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            below = command.get_command(click.Context(command), name)
            assert below is not None
            yield from commands(below, (*path, name))


COMMANDS = dict(commands(cli.cli, ("the-loop",)))


def test_pages_when_compared_with_the_program_are_one_for_each_command(pages: dict[str, str]) -> None:
    of_commands = {f"{'-'.join(path)}.1" for path in COMMANDS}

    assert len(of_commands) > 25
    assert set(pages) == of_commands | {"the-loop.yaml.5", "the-loop-poll.service.8"}


@pytest.mark.parametrize("path", COMMANDS, ids="-".join)
def test_page_when_compared_with_its_command_has_each_option_with_its_help(
    pages: dict[str, str], path: tuple[str, ...]
) -> None:
    page, command = pages[f"{'-'.join(path)}.1"], COMMANDS[path]
    listed = command.get_params(click.Context(command))
    options = [param for param in listed if isinstance(param, click.Option)]
    assert options

    for option in options:
        tag = re.search(rf"^\.TP\n.*{re.escape(option.opts[-1])}\b.*\n(.*)$", page, re.MULTILINE)
        assert tag is not None, option.opts
        assert option.help is not None
        assert tag[1].startswith(option.help.replace("`", ""))
    assert f"\n{' '.join(path)} " in page
    if isinstance(command, click.Group):
        below = command.list_commands(click.Context(command))
        assert re.findall(rf"^{'-'.join(path)}-([a-z]+)\(1\)$", page, re.MULTILINE) == below


def test_page_of_the_file_when_compared_with_the_schema_has_every_key(installed: Path, pages: dict[str, str]) -> None:
    tree: dict[str, Any] = json.loads((installed / "share/the-loop/config.schema.json").read_text())
    shapes = [shape for shape in tree["$defs"].values() if "properties" in shape]
    keys = {key for shape in shapes for key in shape["properties"]}
    tags = {tag.rpartition(".")[2] for tag in re.findall(r"^\.TP\n(.*)$", pages["the-loop.yaml.5"], re.MULTILINE)}

    assert len(keys) > 40
    sections = {"control", "monitor", "polling", "routing", "session", "state"}  # whose keys have entries
    assert keys - tags - sections == set()


def test_page_of_the_program_when_compared_with_the_docs_has_every_exit_code(pages: dict[str, str]) -> None:
    codes = re.findall(r"^\| (\d+) \| ", (ROOT / "docs/usage/commands.md").read_text("utf-8"), re.MULTILINE)

    assert codes == ["0", "1", "2", "3", "4", "75", "78", "130"]
    status = pages["the-loop.1"].partition(".SH EXIT STATUS\n")[2].partition(".SH ")[0]
    assert re.findall(r"^\.TP\n(\d+)$", status, re.MULTILINE) == codes


def test_pages_when_they_are_formatted_are_without_a_warning_and_without_markup(installed: Path) -> None:
    for page in sorted(installed.glob("share/man/man?/*")):
        done = subprocess.run(
            ["man", "--warnings", "--local-file", page],
            env={"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "MANWIDTH": "80", "MAN_KEEP_FORMATTING": ""},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stderr == "", page.name
        assert re.findall(r".*(?:`|\]\(|\*\*|\\f|\|---).*", done.stdout) == [], page.name
        assert re.search(r"^[A-Z ,]+\n(?=[A-Z])", done.stdout, re.MULTILINE) is None, f"{page.name}: an empty section"


def test_page_when_it_has_examples_they_are_lines_of_their_own(installed: Path) -> None:
    page = installed / "share/man/man1/the-loop-poll-start.1"

    shown = subprocess.run(["man", "--local-file", page], capture_output=True, text=True, check=True).stdout

    assert re.search(r"^ +the-loop poll start\n +the-loop poll start --once --verbose$", shown, re.MULTILINE)


@pytest.mark.parametrize(
    ("shell", "file"),
    [
        ("bash", "bash-completion/completions/the-loop"),
        ("zsh", "zsh/site-functions/_the-loop"),
        ("fish", "fish/vendor_completions.d/the-loop.fish"),
    ],
)
def test_completion_when_it_is_installed_is_what_the_program_prints(installed: Path, shell: str, file: str) -> None:
    env = {**os.environ, "_THE_LOOP_COMPLETE": f"{shell}_source"}

    printed = subprocess.run([PROGRAM], env=env, capture_output=True, text=True, check=True).stdout

    assert (installed / "share" / file).read_text().strip() == printed.strip()


def test_files_when_they_are_installed_are_for_everybody_and_complete(installed: Path) -> None:
    files = [file for file in installed.rglob("*") if file.is_file()]

    assert {file.stat().st_mode & 0o777 for file in files} == {0o644}
    names = {str(file.relative_to(installed)) for file in files}
    assert names >= {
        "lib/systemd/catalog/the-loop.catalog",
        "lib/systemd/system/the-loop-poll.service",
        "lib/systemd/system/the-loop-poll@.service",
        "lib/systemd/user/theloop.slice",
        "lib/sysusers.d/the-loop.conf",
        "lib/tmpfiles.d/the-loop.conf",
        "share/man/man1/the-loop-poll-start.1",
    }
    unit = (installed / "lib/systemd/system/the-loop-poll.service").read_text()
    assert "ExecStart=/usr/bin/the-loop " in unit


def test_schema_when_it_is_installed_is_what_the_program_prints(installed: Path) -> None:
    printed = subprocess.run([PROGRAM, "config", "schema"], capture_output=True, text=True, check=True).stdout

    assert (installed / "share/the-loop/config.schema.json").read_text() == printed
