"""The command line: parse, call one function of the core, print. One module per command group, imported on use."""

from __future__ import annotations

import difflib
import importlib
import os
import signal
import sys
from typing import Final

import click

from the_loop import __version__
from the_loop.cli.completion import files, folders
from the_loop.cli.help import CONFIG_HELP, DEBUG_HELP, STATE_ROOT_HELP, VERBOSE_HELP, examples
from the_loop.cli.output import protect_streams
from the_loop.core.model import LoopError
from the_loop.eventlog import say

_GROUPS: Final = {
    "init": "Write a first configuration file.",
    "poll": "Start, stop, restart and observe the poller.",
    "events": "Show the event log.",
    "report": "Write an HTML page about a span of time.",
    "trace": "Show the life of one item or one event.",
    "ledger": "Show and change the records of items.",
    "sessions": "Show, attach to and close sessions in terminals.",
    "authors": "Show the accounts of authors, decide about changed ones.",
    "once": "Run a command once for an id: for receivers.",
    "config": "Check and show the configuration.",
    "unit": "Install, remove and show the systemd unit files.",
    "doctor": "Check everything that the poller needs.",
}


class _LazyGroup(click.Group):
    """Imports the module of a command group only when it is used: a bare `--version` needs none of them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_GROUPS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _GROUPS:
            return None
        command: click.Command = importlib.import_module(f"the_loop.cli.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_GROUPS.items()))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in _GROUPS and not name.startswith("-") and (meant := self._similar(ctx, name)):
            ctx.fail(f"No such command '{name}'. (Did you mean {' or '.join(map(repr, meant))}?)")
        return super().resolve_command(ctx, args)

    def _similar(self, ctx: click.Context, name: str) -> list[str]:
        """Commands with a name like this one, also those inside a group: `poll status` for `status`."""
        paths = {group: [group] for group in _GROUPS}
        for group in _GROUPS:
            command = self.get_command(ctx, group)
            for inner in command.list_commands(ctx) if isinstance(command, click.Group) else ():
                paths.setdefault(inner, []).append(f"{group} {inner}")
        exact = paths.get(name)
        return exact or [path for match in difflib.get_close_matches(name, paths, n=2) for path in paths[match]]


@click.group(
    cls=_LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=examples(
        "the-loop poll status",
        "the-loop trace 'https://github.com/octo/repo/issues/15#issuecomment-9'",
    ),
)
@click.version_option(__version__, prog_name="the-loop", message="%(prog)s %(version)s")
@click.option("--config", "config_file", metavar="PATH", shell_complete=files, help=CONFIG_HELP)
@click.option("--state-root", metavar="DIR", shell_complete=folders, help=STATE_ROOT_HELP)
@click.option("--verbose", is_flag=True, help=VERBOSE_HELP)
@click.option("--debug", is_flag=True, help=DEBUG_HELP)
@click.pass_context
def cli(ctx: click.Context, /, **options: object) -> None:
    """Deliver work items, and comments on them, to a command.

    Items are GitHub issues, pull requests, or folders in a directory. Each item
    and each comment is delivered once, also over restarts and crashes.
    """
    ctx.obj = options


def main() -> None:
    """Run the `the-loop` command. A known error becomes one sentence and an exit code (contract section 2)."""
    if "start" in sys.argv and "once" not in sys.argv:
        # a reload or restart signal that arrives before the poller's handlers are installed must not end the process
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGHUP, signal.SIGUSR2))
    protect_streams()
    if "_THE_LOOP_COMPLETE" in os.environ:
        importlib.import_module("the_loop.cli.bash")
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
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the reader is gone: discard what is not flushed yet
        code = 0
    except Exception as error:
        if "--debug" in sys.argv:
            raise
        say(f"the-loop: internal error: {type(error).__name__}: {error} (run the command with --debug for a traceback)")
        code = 1
    sys.exit(code)
