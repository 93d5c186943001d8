"""The command line: parse, call one function of the core, print. A module for each noun, loaded when it is used."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
from typing import Final

import click

from the_loop import __version__
from the_loop.core.model import LoopError
from the_loop.eventlog import say

_NOUNS: Final = {
    "poll": "start, stop, restart and watch the poller",
    "events": "the decision trail",
    "ledger": "what is known about an item",
    "config": "check and show the configuration",
    "unit": "the unit files for systemd",
}


class _Nouns(click.Group):
    """Loads a noun's module only when it is used: a bare `--version` needs none of them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_NOUNS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _NOUNS:
            return None
        command: click.Command = importlib.import_module(f"the_loop.cli.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_NOUNS.items()))


@click.group(cls=_Nouns, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="the-loop", message="%(prog)s %(version)s")
@click.option("--config", "config_file", metavar="PATH", help="Configuration file.")
@click.option("--state-root", metavar="DIR", help="Where the state lives.")
@click.option("--verbose", is_flag=True, help="Say every event on stderr, not only the important ones.")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
@click.pass_context
def cli(ctx: click.Context, /, **options: object) -> None:
    """Watch work items and hand each, and each instruction on it, to a session: once, whatever happens to us."""
    ctx.obj = options


def main() -> None:
    """The `the-loop` command. Every known error is one sentence on stderr and an exit code (SPEC section 2)."""
    if "start" in sys.argv:
        # until the poller's own handlers stand, an early reload or restart must not end the process
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGHUP, signal.SIGUSR2))
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")  # type: ignore[union-attr]
    try:
        code = cli.main(standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except click.exceptions.Abort:
        code = 130
    except LoopError as error:
        say(f"the-loop: {error}")
        code = error.exit_code
    except KeyboardInterrupt:
        code = 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the reader has gone; what is still to be flushed goes nowhere
        code = 0
    except Exception as error:
        if "--debug" in sys.argv:
            raise
        say(f"the-loop: this is a bug: {type(error).__name__}: {error} (--debug shows more)")
        code = 1
    sys.exit(code)
