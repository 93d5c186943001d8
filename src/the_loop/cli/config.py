"""`the-loop config`: check and show the configuration."""

from __future__ import annotations

import json
import os
from typing import Any

import click
import msgspec

from the_loop.cli.common import Options, with_options
from the_loop.cli.help import examples
from the_loop.config import Config
from the_loop.config_file import doubts, find_file, load
from the_loop.eventlog import say
from the_loop.plugins import RUNNERS, SOURCES


@click.group("config")
def command() -> None:
    """Check and show the configuration."""


@command.command(epilog=examples("the-loop --config loop.yaml config check"))
@with_options
def check(options: Options) -> None:
    """Check the configuration; exit 78 if it is invalid.

    Each error is printed with the path of the key that is wrong.
    """
    loaded = options.load()
    for doubt in doubts(loaded.config):
        say(f"the-loop: warning: {doubt}")
    print(f"{loaded.file or 'embedded default'}: OK")


@command.command(epilog=examples("the-loop config show"))
@with_options
def show(options: Options) -> None:
    """Show the effective values and their origin."""
    import yaml

    file = find_file(options.config_file, os.environ)
    loaded = load(file)
    written = yaml.safe_load(file.read_bytes()) if file is not None else {}
    origin = str(file) if file is not None else "embedded default"
    for path, value in _leaves(msgspec.to_builtins(loaded.config), ""):
        place = origin if file is None or _is_written(written, path) else "default"
        print(f"{path}: {json.dumps(value)}  # {place}")
    print(f"(state root: {options.root_of(loaded).path})")


@command.command(epilog=examples("the-loop config schema >the-loop.schema.json"))
@with_options
def schema(_options: Options) -> None:
    """Print the JSON schema of the configuration file."""
    print(schema_text())


def schema_text() -> str:
    """The JSON schema of the configuration file, with the sections of all providers that are installed."""
    tree = msgspec.json.schema(Config)
    definitions = tree["$defs"]
    for base, key, registry in (("SourceSection", "provider", SOURCES), ("Session", "runner", RUNNERS)):
        choices = []
        for name in registry.names():
            part = msgspec.json.schema(registry.get(name).Section, ref_template=f"#/$defs/{name}.{{name}}")
            definitions.update({f"{name}.{shape}": value for shape, value in part["$defs"].items()})
            chosen = definitions[part["$ref"].removeprefix("#/$defs/")]
            chosen["properties"][key] = {"const": name}
            choices.append({"$ref": part["$ref"]})
        definitions[base] = {"anyOf": choices}
    return json.dumps(tree, indent=1)


def _leaves(tree: Any, path: str) -> list[tuple[str, Any]]:
    if isinstance(tree, dict) and tree:
        return [leaf for key, value in tree.items() for leaf in _leaves(value, f"{path}.{key}" if path else key)]
    if isinstance(tree, list) and tree and isinstance(tree[0], dict):
        return [leaf for number, value in enumerate(tree) for leaf in _leaves(value, f"{path}[{number}]")]
    return [(path, tree)]


def _is_written(tree: Any, path: str) -> bool:
    """True if the file itself contains this key."""
    for part in path.replace("[", ".").replace("]", "").split("."):
        try:
            tree = tree[int(part)] if part.isdigit() else tree[part]
        except (KeyError, IndexError, TypeError):
            return False
    return True
