"""`the-loop poll`: start, stop, restart, wake and status."""

from __future__ import annotations

import contextlib
import math
import os
import sys
from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from the_loop.cli.common import Options, check_configuration_of, with_options
from the_loop.cli.completion import sources
from the_loop.cli.help import examples
from the_loop.config_file import doubts
from the_loop.eventlog import say
from the_loop.state import PIDFILE
from the_loop.supervision.stopping import Result

F = TypeVar("F", bound=Callable[..., Any])
_STOP_LIMIT_S: Final = 30.0


def _with_timeout(help_text: str) -> Callable[[F], F]:
    return click.option(
        "--timeout",
        "timeout_s",
        type=click.FloatRange(min=0),
        default=_STOP_LIMIT_S,
        show_default=True,
        metavar="SECONDS",
        help=help_text,
    )


@click.group("poll")
def command() -> None:
    """Start, stop, restart and observe the poller."""


@command.command(epilog=examples("the-loop poll start", "the-loop poll start --once --verbose"))
@click.option("--once", is_flag=True, help="Run one cycle, wait for its deliveries, and exit.")
@click.option(
    "--wait",
    "wait_s",
    type=click.FloatRange(min=0),
    is_flag=False,
    flag_value=math.inf,
    default=0,
    metavar="[SECONDS]",
    help="If another poller is running, wait for it to end: SECONDS, or without a limit.",
)
@click.option("--takeover", is_flag=True, help="Stop the running poller first, as `poll stop` does; take over bots.")
@with_options
def start(options: Options, *, once: bool, wait_s: float, takeover: bool) -> None:
    """Run the poller in the foreground.

    It makes a cycle now and one every polling.intervalSeconds, until it is told
    to stop. Only one poller can run on a state root.
    """
    from the_loop import daemon
    from the_loop.supervision import stopping

    loaded = options.load()
    root = options.root_of(loaded)
    for doubt in doubts(loaded.config):
        say(f"the-loop: warning: {doubt}")
    if takeover:
        root.prepare_root()  # a start that is bound to fail must not stop the running poller
        result = stopping.stop(root, PIDFILE, _STOP_LIMIT_S, for_takeover=True)
        if result.code not in (stopping.Code.DONE, stopping.Code.NOTHING_RUNS):
            _tell(options, result)
    how = daemon.How(once=once, wait_s=wait_s, verbose=options.verbose, takeover=takeover, progress=_progress())
    code = daemon.run(root, loaded, lambda: options.reload(loaded).config, how)
    _end(code)


def _progress() -> Any:
    if sys.stderr is None or not sys.stderr.isatty():
        return None
    from the_loop.cli.progress import Progress

    return Progress()


def _end(code: int) -> None:
    """Leave at once: everything is on disk, and what the interpreter would tear down (90 ms) goes with the process."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


@command.command(epilog=examples("the-loop poll stop --timeout 120"))
@_with_timeout("Wait at most this long until the poller is gone; then say what is left, and exit 4.")
@with_options
def stop(options: Options, *, timeout_s: float) -> None:
    """Stop the running poller and wait until it is gone."""
    from the_loop.supervision import stopping

    _tell(options, stopping.stop(options.root(), PIDFILE, timeout_s))


@command.command(epilog=examples("the-loop poll restart"))
@_with_timeout("Wait at most this long for the new start; then say what is left, and exit 4.")
@with_options
def restart(options: Options, *, timeout_s: float) -> None:
    """Restart the running poller and wait for the new start.

    A unit is restarted by its service manager. A plain process executes the
    program again, with the same pid, arguments and environment. If the
    configuration that it would load is not valid, it is left running.
    """
    from the_loop.supervision import stopping

    _tell(options, stopping.restart(options.root(), PIDFILE, timeout_s, check_configuration_of))


@command.command(epilog=examples("the-loop poll wake", "the-loop poll wake inbox"))
@click.argument("source", required=False, shell_complete=sources)
@with_options
def wake(options: Options, *, source: str | None) -> None:
    """Make the running poller start a cycle now.

    A cycle of SOURCE, a name from the configuration, or of every source.
    """
    from the_loop.supervision import waking

    _tell(options, waking.wake(options.root(), PIDFILE, source))


@command.command(epilog=examples("the-loop poll status --watch", "the-loop poll status --check || echo 'look at it'"))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--watch", is_flag=True, help="Show it again every two seconds, until Ctrl-C.")
@click.option("--check", is_flag=True, help="Exit with 1 if a person should look.")
@click.option(
    "--prometheus",
    "metrics_file",
    is_flag=False,
    flag_value="",
    metavar="[FILE]",
    help="Print metrics in Prometheus's text format, or write them to FILE.",
)
@with_options
def status(options: Options, *, as_json: bool, watch: bool, check: bool, metrics_file: str | None) -> None:
    """Show the state of the poller, its sources and its queue."""
    from the_loop.cli import status

    if metrics_file is not None and (as_json or watch):
        raise click.UsageError("--prometheus goes with neither --json nor --watch")
    root = options.root()
    if watch:
        status.watch(root, options.typed, as_json=as_json)
    seen = status.see(root, options.typed, asks_manager=metrics_file is None)
    if metrics_file is not None:
        from the_loop.cli import prometheus

        prometheus.show(metrics_file, seen.sight, seen.beat, seen.report)
    else:
        status.show(seen, as_json=as_json)
    click.get_current_context().exit(status.exit_code(seen, is_check=check))


def _tell(options: Options, result: Result) -> None:
    print(f"the-loop: {options.typed(result.message)}", file=sys.stderr)
    click.get_current_context().exit(int(result.code))
