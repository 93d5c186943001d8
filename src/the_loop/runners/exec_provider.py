"""The provider `exec`: the operator's command for each event. `exec.ExecRunner` runs it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from the_loop.config import Config, Fault, Session, path_faults
from the_loop.core.model import Note
from the_loop.state import StateRoot

if TYPE_CHECKING:
    from the_loop.runners.base import Runner, RunnerSite


class CommandSession(Session, frozen=True, kw_only=True):
    """Of the runners that start a command: `exec`, and `print`, whose command is ours."""

    command: tuple[str, ...] = ()
    workdir: str | None = None


Section = CommandSession


def check(section: CommandSession, config: Config) -> list[Fault]:
    faults = check_workdir(section)
    if not section.command:
        faults.append(
            Fault("command", "is missing; the program to run for each event, as a list: [my-agent, --from-stdin]")
        )
    elif "/" in section.command[0]:
        faults += path_faults(**{"command[0]": section.command[0]})
    return faults


def check_workdir(section: CommandSession) -> list[Fault]:
    workdir = section.workdir
    if workdir is not None and not workdir.startswith(("/", "~")):
        return [Fault("workdir", f"'{workdir}' is relative; give an absolute path, or one below ~")]
    return path_faults(workdir=workdir)


def build(section: CommandSession, site: RunnerSite) -> Runner:
    from the_loop.runners.exec import Command, ExecRunner
    from the_loop.runners.units import find_units

    command = Command(
        argv=tuple(map(_at_home, section.command)),
        workdir=workdir_of(section, site.environ),
        limit_s=site.limit_s,
        environment=site.environ,
        output=StateRoot(site.root).logs / "output.log",
    )
    units = find_units(site.root, site.environ)
    if units is None:
        site.tell(Note("dispatch.no_manager", {"reason": "this user has no service manager"}))
    return ExecRunner(command, units, site.tell)


def _at_home(word: str) -> str:
    """The word as a shell would take it: `~/…` and `~user/…` lead to a home, any other `~` is a character."""
    return os.path.expanduser(word) if word.startswith("~") and "/" in word else word  # noqa: PTH111 (a home that is not there leaves the word as it is)


def workdir_of(section: CommandSession, environ: Mapping[str, str]) -> Path:
    """Where its command starts: at home, if nothing is said."""
    return Path(section.workdir or environ.get("HOME") or "/").expanduser()
