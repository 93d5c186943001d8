"""`the-loop doctor`: one line for each thing that must hold."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import click

from the_loop.cli.common import Options, with_options
from the_loop.cli.completion import instances
from the_loop.cli.help import examples
from the_loop.cli.page import Line, put
from the_loop.findings import Finding, State

_HANG: Final = 6
_INSTALL: Final = "the-loop unit "  # takes options for what it writes
_MARKS: Final = {  # and the style of each
    State.OK: ("ok", "good"),
    State.WARN: ("warn", "warn"),
    State.FAIL: ("FAIL", "bad"),
    State.UNKNOWN: ("?", "warn"),
}


@click.command("doctor", epilog=examples("the-loop doctor", "the-loop doctor --name work"))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON list.")
@click.option(
    "--name",
    "instance",
    metavar="NAME",
    shell_complete=instances,
    help="Examine the instance that NAME.yaml configures.",
)
@click.option("--system", "is_system", is_flag=True, help="Examine the unit of the system service manager.")
@click.option("--user", "is_user", is_flag=True, help="Examine the unit of your own service manager.")
@with_options
def command(options: Options, *, as_json: bool, instance: str | None, is_system: bool, is_user: bool) -> None:
    """Check everything that the poller needs.

    One line for each thing that must hold, good or with what to type. Exit 1 if
    one does not hold, or could not be found out. Nothing is changed.
    """
    if is_user and is_system:
        raise click.UsageError("--user and --system contradict each other")
    from the_loop.doctor import checkup, choice
    from the_loop.doctor.parts import examine_all
    from the_loop.doctor.subject import become

    scope = "user" if is_user else "system" if is_system else ""
    asked = choice.Asked(dict(os.environ), options.config_file, options.state_root, scope=scope, instance=instance)
    subject, root = choice.find(asked), asked.root()
    become(subject)
    case = checkup.case_of(subject)
    there = replace(options, state_root=str(case.root.path)) if case.root and case.root.path != root else options
    found: list[Finding] = []
    for several in examine_all(checkup.parts_of(case), checkup.LIMIT_S):
        typed = [_typed(options if _INSTALL in finding.command else there, finding) for finding in several]
        found += typed
        if not as_json:
            put(line for finding in typed for line in lines_of(finding))
            sys.stdout.flush()
    if as_json:
        print(json.dumps([_as_object(finding) for finding in found], indent=1))
    else:
        put(_summary(found))
    end(0 if all(finding.is_good for finding in found) else 1)


def _typed(options: Options, finding: Finding) -> Finding:
    """With options in its commands, so that they are about the same poller."""
    command = options.typed(f"`{finding.command}`")[1:-1]
    return replace(finding, detail=options.typed(finding.detail), command=command)


def _as_object(finding: Finding) -> dict[str, str]:
    return {
        "name": finding.name,
        "state": str(finding.state),
        "detail": finding.detail,
        "command": finding.command,
    }


def lines_of(finding: Finding) -> Iterator[Line]:
    """The finding, and below it what to type."""
    mark, style = _MARKS[finding.state]
    yield Line(f"{finding.name}: {finding.detail}", head=f"{mark:<{_HANG}}", style=style, hang=_HANG)
    if finding.command and finding.state is not State.OK:
        yield Line(f"{' ' * _HANG}$ {finding.command}", is_command=True)


def _summary(found: list[Finding]) -> Iterator[Line]:
    bad = sum(not finding.is_good for finding in found)
    warnings = sum(finding.state is State.WARN for finding in found)
    more = f", {warnings} with a warning" if warnings else ""
    yield Line(f"{bad} of {len(found)} are not good" if bad else f"all {len(found)} are good{more}")


def end(code: int) -> None:
    """Leave at once: a part that had no answer in time may still wait in its thread."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
