"""`the-loop once`: run a command once for an id. It starts for each delivery of its users, so it imports little."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from the_loop.cli.completion import files, folders
from the_loop.cli.help import CONFIG_HELP, DEBUG_HELP, STATE_ROOT_HELP, VERBOSE_HELP, examples
from the_loop.state import StateRoot


@click.command(
    "once",
    epilog=examples(
        'the-loop once "$THE_LOOP_DELIVERY_ID" -- my-agent --from-stdin',
        'the-loop once --hold "pay-$THE_LOOP_DELIVERY_ID" -- ./pay-invoice',
    ),
)
@click.argument("name", metavar="ID")
@click.option("--hold", is_flag=True, help="Do not run it again if an earlier run was cut off.")
@click.argument("argv", metavar="-- COMMAND …", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("--config", "config_file", metavar="PATH", shell_complete=files, help=CONFIG_HELP)
@click.option("--state-root", metavar="DIR", shell_complete=folders, help=STATE_ROOT_HELP)
@click.option("--verbose", is_flag=True, help=VERBOSE_HELP)
@click.option("--debug", is_flag=True, help=DEBUG_HELP)
@click.pass_context
def command(ctx: click.Context, /, name: str, argv: tuple[str, ...], **own: Any) -> None:
    """Run COMMAND once for ID, however often it is called.

    For receivers, whose deliveries may come again. COMMAND gets standard input,
    and signals; its exit status is ours. Only 0 is remembered, for 30 days:
    with the same ID nothing is run then, and the exit status is 0 at once.

    While it runs, the exit status is 75 (try again later). If it was cut off, so
    that its outcome is unknown, it is run again with THE_LOOP_REDELIVERY=true,
    or, with --hold, not at all: the exit status is 75.
    """
    from the_loop.once import run_once

    if not name:
        raise click.UsageError("ID is empty")
    above = ctx.find_root().obj or {}
    root = _root(own["config_file"] or above.get("config_file"), own["state_root"] or above.get("state_root"))
    ctx.exit(run_once(root, name, argv, os.environ, holds=own["hold"]))


def _root(config_file: str | None, state_root: str | None) -> StateRoot:
    """As for all other commands. Raises NotNow where it cannot be found out: a receiver is not to blame for that."""
    if state_root:
        return StateRoot(Path(os.path.realpath(Path(state_root).expanduser())))
    from the_loop.cli.common import Options, RootUnknown
    from the_loop.once import NotNow

    try:
        return Options(config_file, None, verbose=False).root()
    except RootUnknown as error:
        raise NotNow(error.problem, error.hint) from error
