"""Help and usage errors of the command line: complete at 80 columns, and with a hint for a mistyped command."""

from __future__ import annotations

import ast
import re
import shlex
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest
from click.testing import CliRunner

from the_loop import cli
from the_loop.cli.common import Options, with_options
from the_loop.cli.events import parse_moment
from the_loop.core.model import LoopError

if TYPE_CHECKING:
    from collections.abc import Iterator


def command_paths(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    for name in group.list_commands(click.Context(group)):
        found = group.get_command(click.Context(group), name)
        if isinstance(found, click.Group):
            yield from command_paths(found, (*path, name))
        else:
            yield (*path, name)


@pytest.mark.parametrize("path", list(command_paths(cli.cli)), ids=lambda path: " ".join(path) or "the-loop")
def test_help_when_shown_at_80_columns_then_nothing_is_cut_off(path: tuple[str, ...]) -> None:
    done = CliRunner().invoke(cli.cli, [*path, "--help"], terminal_width=80)

    assert done.exit_code == 0
    assert [line for line in done.output.splitlines() if "..." in line and "[ARGS]..." not in line] == []
    assert [line for line in done.output.splitlines() if len(line) > 80] == []
    assert "\\b" not in done.output


def examples() -> list[str]:
    """The lines below "Examples:" of every command."""
    outputs = (CliRunner().invoke(cli.cli, [*path, "--help"]).output for path in command_paths(cli.cli))
    return [line.strip() for output in outputs for line in output.partition("Examples:\n")[2].splitlines()]


def test_help_when_of_a_command_then_ends_with_examples_of_it() -> None:
    shown = examples()

    without = [path for path in map(" ".join, command_paths(cli.cli)) if not any(f" {path}" in one for one in shown)]

    assert without == []


@pytest.mark.parametrize("line", examples())
def test_example_when_typed_then_is_right_usage(line: str) -> None:
    words = shlex.split(line.partition(" || ")[0].partition(" >")[0])
    assert words.pop(0) == "the-loop"
    command: click.Command = cli.cli
    above = None
    while isinstance(command, click.Group):
        above = command.make_context("the-loop", words, above)
        words = [*above._protected_args, *above.args]
        found = command.get_command(above, words.pop(0))
        assert found is not None
        command = found
    command.make_context("the-loop", words, above)


@pytest.mark.parametrize("path", list(command_paths(cli.cli)), ids=lambda path: " ".join(path) or "the-loop")
def test_options_when_listed_then_each_is_explained(path: tuple[str, ...]) -> None:
    command: click.Command = cli.cli
    for name in path:
        assert isinstance(command, click.Group)
        found = command.get_command(click.Context(command), name)
        assert found is not None
        command = found

    unexplained = [one.name for one in command.params if isinstance(one, click.Option) and not one.help]

    assert unexplained == []


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("pol", "(Did you mean 'poll'?)"),
        ("status", "(Did you mean 'poll status'?)"),
        ("wakeup", "(Did you mean 'poll wake'?)"),
        ("retry", "(Did you mean 'ledger retry'?)"),
        ("show", "(Did you mean 'ledger show' or 'config show' or 'unit show'?)"),
    ],
)
def test_command_when_mistyped_then_2_and_the_similar_ones_are_named(typed: str, meant: str) -> None:
    done = CliRunner().invoke(cli.cli, [typed])

    assert done.exit_code == 2
    assert f"No such command '{typed}'. {meant}" in done.output


def test_command_when_like_no_other_then_2_without_a_hint() -> None:
    done = CliRunner().invoke(cli.cli, ["xyzzy"])

    assert done.exit_code == 2
    assert done.output.endswith("No such command 'xyzzy'.\n")


@pytest.mark.parametrize(
    "text", ["soon", f"{'9' * 12}d", f"{'9' * 400} days ago", "0001-01-01T00:00:00+23:59", "9" * 5000 + "s"]
)
def test_moment_that_is_none_is_a_usage_error(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is not a time"):
        parse_moment(text, datetime.now(UTC))


# --- commands in messages ---

HERE = "--config 'my loop.yaml' --state-root /srv/x"


@pytest.mark.parametrize("hint", ["see `the-loop poll status`", "run `/opt/bin/the-loop unit install --system`"])
def test_error_when_it_tells_a_command_then_that_has_the_options_of_this_call(hint: str) -> None:
    @click.command()
    @with_options
    def fails(_options: Options) -> None:
        raise LoopError(f"no, {hint}", hint)

    done = CliRunner().invoke(fails, ["--config", "my loop.yaml", "--state-root", "/srv/x"])

    assert isinstance(done.exception, LoopError)
    right = hint.replace("the-loop ", f"the-loop {HERE} ")
    assert str(done.exception) == f"no, {right} ({right})"


def test_typed_when_it_is_a_control_word_then_is_left() -> None:
    assert Options("x", "y", verbose=False).typed("write `the-loop start`") == "write `the-loop start`"


def test_messages_of_the_source_when_they_tell_a_command_then_it_is_in_backquotes() -> None:
    """Only such a command gets the options of the call."""
    bare = re.compile(r"(?<![`/\w-])the-loop (authors|config|events|ledger|poll|trace|unit) [a-z]")
    told = []
    for file in Path(cli.__file__).parents[1].rglob("*.py"):
        syntax = ast.parse(file.read_text())
        docs = {id(node.body[0].value) for node in ast.walk(syntax) if _has_doc(node)}  # type: ignore[attr-defined]
        docs |= {id(line) for node in ast.walk(syntax) if _is_examples(node) for line in node.args}  # type: ignore[attr-defined]
        told += [
            f"{file.name}: {node.value}"
            for node in ast.walk(syntax)
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs
            if bare.search(node.value)
        ]

    # put into backquotes by those who call it; the lines of unit files
    assert sorted(set(told)) == [
        "attention.py: the-loop ledger reset ",
        "attention.py: the-loop ledger retry ",
        "authors.py: the-loop authors accept ",
        "authors.py: the-loop authors reject ",
        "checkup.py: the-loop config check",
        "checkup.py: the-loop unit install",
        "checkup.py: the-loop unit install --config ",
        "checkup.py: the-loop unit install --system --config /etc/the-loop/",
        "overrides.py: the-loop ledger show ",
        "service.py: the-loop poll start",
        "service.py: the-loop unit install --",
        "verdicts.py: the-loop authors accept ",
        "work.py: the-loop ledger retry ",
    ]


def _is_examples(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "examples"


def _has_doc(node: ast.AST) -> bool:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return isinstance(node, kinds) and ast.get_docstring(node) is not None
