"""What every command shares: the global options, which may also stand behind it, and how they are resolved."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click

from the_loop import wiring
from the_loop.config import ConfigError, Loaded
from the_loop.config_file import find_file, load, peek_root
from the_loop.core.model import LoopError
from the_loop.state import StateRoot

F = TypeVar("F", bound=Callable[..., Any])


class RootUnknown(LoopError):
    """The configuration that would name the state root cannot be read: nobody can tell what runs on it."""

    exit_code = 4

    def __init__(self, error: ConfigError) -> None:
        super().__init__(f"cannot find out the state root: {error.summary}", "name it with --state-root")


@dataclass(frozen=True, slots=True)
class Options:
    """The global options of one call."""

    config_file: str | None
    state_root: str | None
    verbose: bool

    def load(self) -> Loaded:
        """The configuration in force. Raises ConfigError."""
        return load(find_file(self.config_file, os.environ), wiring.providers())

    def root(self) -> StateRoot:
        """The state root, also under a configuration that is wrong in other ways. Raises RootUnknown."""
        file = find_file(self.config_file, os.environ)
        try:
            configured = None if self.state_root else peek_root(file)
        except ConfigError as error:
            raise RootUnknown(error) from error
        return wiring.state_root(self.state_root or configured, None, os.environ)

    def root_of(self, loaded: Loaded) -> StateRoot:
        return wiring.state_root(self.state_root, loaded.config, os.environ)


def with_options(command: F) -> F:
    """Give a command its `Options`, and let the global options stand behind it too."""

    @click.option("--config", "config_file", metavar="PATH", help="Configuration file.")
    @click.option("--state-root", metavar="DIR", help="Where the state lives.")
    @click.option("--verbose", is_flag=True, help="Say every event on stderr.")
    @click.option("--debug", is_flag=True, help="Show tracebacks.")
    @click.pass_context
    @wraps(command)
    def wrapped(ctx: click.Context, /, **own: Any) -> Any:
        above = ctx.find_root().obj or {}
        options = Options(
            config_file=own.pop("config_file") or above.get("config_file"),
            state_root=own.pop("state_root") or above.get("state_root"),
            verbose=own.pop("verbose") or above.get("verbose", False),
        )
        own.pop("debug")
        return command(options, **own)

    return wrapped  # type: ignore[return-value]


def must_exist(root: StateRoot) -> None:
    """Raise LoopError where there is no state root to read."""
    if not Path(root.path).is_dir():
        raise LoopError(f"there is no state root '{root.path}'", "name the right one with --state-root")
