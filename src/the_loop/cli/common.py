"""The global options, which are accepted before and after a command, and how they are resolved."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from the_loop import wiring
from the_loop.cli.completion import files, folders
from the_loop.cli.help import CONFIG_HELP, DEBUG_HELP, STATE_ROOT_HELP, VERBOSE_HELP
from the_loop.config import ConfigError, Fault, Loaded, names_below
from the_loop.config_file import find_file, load, peek_root
from the_loop.core.model import LoopError, with_given
from the_loop.processes import Identity, execution_of, is_main_of_unit
from the_loop.state import StateRoot

F = TypeVar("F", bound=Callable[..., Any])


class RootUnknown(LoopError):
    """The configuration that would name the state root cannot be read, so the holder of its lock is unknown."""

    exit_code = 4

    def __init__(self, error: ConfigError) -> None:
        super().__init__(f"cannot find out the state root: {error.summary}", "name it with --state-root DIR")


_NO_DEFAULT: Final = (
    "a unit does not run on the built-in default; write /etc/the-loop/config.yaml or ~/.config/the-loop/config.yaml, "
    "or name your file with --config in ExecStart= of the unit (XDG variables of a shell are not set in units)"
)


@dataclass(frozen=True, slots=True)
class Options:
    """The global options of one call."""

    config_file: str | None
    state_root: str | None
    verbose: bool

    def load(self) -> Loaded:
        """The configuration in force. Raises ConfigError."""
        file = find_file(self.config_file, os.environ)
        if file is None and is_main_of_unit(os.environ):
            raise ConfigError("none", [Fault("", _NO_DEFAULT)])
        return load(file)

    def reload(self, before: Loaded) -> Loaded:
        """The file of `before` as it is now; no other takes its place if it vanished. Raises ConfigError."""
        return load(before.file) if before.file is not None else self.load()

    def root(self) -> StateRoot:
        """The state root, also when other parts of the configuration are invalid. Raises RootUnknown."""
        file = find_file(self.config_file, os.environ)
        try:
            configured = None if self.state_root else peek_root(file)
        except ConfigError as error:
            raise RootUnknown(error) from error
        return wiring.state_root(self.state_root or configured, None, os.environ)

    def typed(self, text: str) -> str:
        """`text` with these options in the commands that it suggests: copied, they are about the same state root."""
        named = {"--config": self.config_file, "--state-root": self.state_root}
        given = " ".join(f"{option} {shlex.quote(value)}" for option, value in named.items() if value)
        return with_given(text, given)

    def root_of(self, loaded: Loaded) -> StateRoot:
        """The state root under a configuration that is loaded, with what that puts there."""
        root = wiring.state_root(self.state_root, loaded.config, os.environ)
        return replace(root, guests=root.guests | names_below(root.path, loaded.config, loaded.file))


def with_options(command: F) -> F:
    """Pass `Options` to a command, and accept the global options after its name too."""

    @click.option("--config", "config_file", metavar="PATH", shell_complete=files, help=CONFIG_HELP)
    @click.option("--state-root", metavar="DIR", shell_complete=folders, help=STATE_ROOT_HELP)
    @click.option("--verbose", is_flag=True, help=VERBOSE_HELP)
    @click.option("--debug", is_flag=True, help=DEBUG_HELP)
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
        try:
            return command(options, **own)
        except LoopError as error:
            error.problem, error.hint = options.typed(error.problem), options.typed(error.hint)
            raise

    return wrapped  # type: ignore[return-value]


class NotChecked(LoopError):
    """The configuration of a running poller could not be found."""

    exit_code = 4


def check_configuration_of(holder: Identity) -> None:
    """Load the configuration that this poller would load if it were executed again. Raises ConfigError, NotChecked."""
    try:
        then = execution_of(holder.pid)
    except OSError as error:
        raise NotChecked(f"cannot find out which configuration pid {holder.pid} uses: {error.strerror}") from error
    file = find_file(_config_option(then.argv), then.environ)
    load(then.directory / file if file is not None else None)


def _config_option(argv: Sequence[str]) -> str | None:
    """The value of `--config` on a command line, as `with_options` takes it: the last one counts."""
    found = None
    for index, word in enumerate(argv):
        if word == "--config" and index + 1 < len(argv):
            found = argv[index + 1]
        elif word.startswith("--config="):
            found = word.partition("=")[2]
    return found


def must_exist(root: StateRoot) -> None:
    """Raise LoopError if the state root does not exist."""
    if not Path(root.path).is_dir():
        raise LoopError(
            f"cannot read state root '{root.path}': no such directory", "name the right one with --state-root DIR"
        )
