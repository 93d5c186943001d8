"""`make man`: write the manual pages. Usage: man_pages.py FOLDER.

Of each command one, from the same objects as `--help`; the-loop.yaml(5) and the-loop-poll.service(8) from the tables in
docs/usage, which tests compare with the code, and from the unit files.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click
from roff import bold, entry, from_markdown, inline, literal, plain, section

from the_loop import __version__
from the_loop.cli import cli
from the_loop.supervision.install import BASES, METRICS, SLICE, shipped, template_name

DOCS: Final = Path(__file__).resolve().parents[1] / "docs" / "usage"
PROGRAM: Final = "the-loop"
YAML: Final = "the-loop.yaml"
UNIT: Final = "the-loop-poll.service"


def main(folder: str) -> None:
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (place / name).write_text(text, "ascii")


def pages() -> dict[str, str]:
    """All pages by file name."""
    found = {f"{'-'.join(path)}.1": _text(_command(path, ctx)) for path, ctx in commands(cli, PROGRAM)}
    found[f"{YAML}.5"] = _text(_yaml())
    found[f"{UNIT}.8"] = _text(_units())
    return found


def commands(
    command: click.Command, name: str, parent: click.Context | None = None
) -> Iterator[tuple[tuple[str, ...], click.Context]]:
    """The command and all below it: the words to type, and the context of each."""
    ctx = command.context_class(command, info_name=name, parent=parent, **command.context_settings)
    yield tuple(ctx.command_path.split()), ctx
    for one in _below(ctx):
        yield from commands(one, str(one.name), ctx)


def _below(ctx: click.Context) -> Iterator[click.Command]:
    """The commands of a group."""
    if isinstance(ctx.command, click.Group):
        for name in ctx.command.list_commands(ctx):
            if (command := ctx.command.get_command(ctx, name)) is not None:
                yield command


def _command(path: tuple[str, ...], ctx: click.Context) -> Iterator[str]:
    command, name = ctx.command, "-".join(path)
    yield from _head(name, 1, _title(command))
    yield from [".SH SYNOPSIS", f"{bold(' '.join(path))} {plain(' '.join(command.collect_usage_pieces(ctx)))}"]
    yield from [".SH DESCRIPTION", *_paragraphs(command.help or "")]
    if below := list(_below(ctx)):
        yield ".SH COMMANDS"
        for one in below:
            yield from entry(f"{bold(f'{name}-{one.name}')}(1)", inline(f"{_title(one)}."))
    yield ".SH OPTIONS"
    for options, text in filter(None, (param.get_help_record(ctx) for param in command.get_params(ctx))):
        yield from entry(bold(options), inline(text))
    if name == PROGRAM:
        yield from [".SH EXIT STATUS", *from_markdown(section(_page("commands"), "## Exit codes"))]
    if command.epilog:
        yield from [
            ".SH EXAMPLES",
            *literal(re.sub(r"^(\x08\nExamples:\n)?  ", "", command.epilog, flags=re.MULTILINE)),
        ]
    above = ["-".join(path[:-1]), PROGRAM] if len(path) > 1 else []
    yield from _see_also(*(f"{one}(1)" for one in dict.fromkeys(above)), f"{YAML}(5)", f"{UNIT}(8)")


def _yaml() -> Iterator[str]:
    page = _page("configuration")
    yield from _head(YAML, 5, "Configuration of the-loop")
    yield from [
        ".SH SYNOPSIS",
        plain("$XDG_CONFIG_HOME/the-loop/config.yaml"),
        ".br",
        plain("/etc/the-loop/config.yaml"),
    ]
    yield from [".SH DESCRIPTION", *from_markdown(page.partition("\n")[2].partition("Samples:")[0])]
    for heading in ("Which file, which state root", "Keys", "Changing it while a poller is running", "Environment"):
        yield from [f".SH {plain(heading.upper())}", *from_markdown(section(page, f"## {heading}"))]
    yield from _see_also(f"{PROGRAM}(1)", f"{PROGRAM}-init(1)", f"{PROGRAM}-config(1)")


def _units() -> Iterator[str]:
    yield from _head(UNIT, 8, "Units of the-loop")
    names = [*BASES, *METRICS]
    yield ".SH SYNOPSIS"
    for name in (*names, SLICE):
        yield from [plain(name if name == SLICE else f"{name}, {template_name(name)}"), ".br"]
    yield from [".SH DESCRIPTION", *from_markdown(section(_page("systemd"), "## What is installed"))]
    yield ".SH UNITS"
    for name in (*names, SLICE):
        yield from entry(bold(name), plain(f"{shipped(name).partition('Description=')[2].partition(chr(10))[0]}."))
    for heading in ("Several instances", "Daily use", "Secrets"):
        yield from [f".SH {plain(heading.upper())}", *from_markdown(section(_page("systemd"), f"## {heading}"))]
    yield from _see_also(f"{PROGRAM}-unit-install(1)", f"{YAML}(5)", "systemctl(1)", "journalctl(1)")


def _head(name: str, number: int, title: str) -> list[str]:
    top = f'.TH {plain(name.upper())} {number} "" "{plain(f"{PROGRAM} {__version__}")}" "{plain("the-loop manual")}"'
    return [top, ".SH NAME", f"{plain(name)} \\- {plain(title)}"]


def _see_also(*names: str) -> list[str]:
    """Names of pages as in `tmux(1)`, which are not hyphenated."""
    return [".SH SEE ALSO", ", ".join(f"\\%{bold(name[:-3])}{name[-3:]}" for name in names)]


def _text(lines: Iterator[str]) -> str:
    return "\n".join(lines) + "\n"


def _title(command: click.Command) -> str:
    return command.get_short_help_str(limit=200).removesuffix(".").replace("`", "")


def _paragraphs(text: str) -> Iterator[str]:
    """The text of a help page; a paragraph that begins with a backspace keeps its lines."""
    for paragraph in re.split(r"\n{2,}", text.strip()):
        if paragraph.startswith("\b"):
            yield from literal(paragraph.partition("\n")[2])
        else:
            yield from [".PP", inline(" ".join(paragraph.split()))]


def _page(name: str) -> str:
    return (DOCS / f"{name}.md").read_text("utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
