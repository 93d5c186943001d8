"""The provider `print`: each event on the poller's own output. A command of ours, run as `exec` runs any other."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from the_loop.config import Config, Fault
from the_loop.runners.exec_provider import CommandSession, check_workdir, workdir_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from the_loop.findings import Finding, Site
    from the_loop.runners.base import Runner, RunnerSite

Section = CommandSession  # a configuration that prints for once keeps its command


def check(section: CommandSession, config: Config) -> list[Fault]:
    return check_workdir(section)


def build(section: CommandSession, site: RunnerSite) -> Runner:
    from the_loop.runners.exec import Command, ExecRunner

    command = Command(
        argv=(sys.executable, "-I", "-S", str(Path(__file__).with_name("printer.py"))),
        workdir=workdir_of(section, site.environ),
        limit_s=site.limit_s,
        environment=site.environ,
        output=None,
    )
    return ExecRunner(command, None, site.tell)


def examine(section: CommandSession, site: Site) -> Iterator[Finding]:
    from the_loop.findings import warn
    from the_loop.runners.examination import examine_workdir

    yield warn("", "events are printed, and no command is started (`session.runner: print`)")
    yield from examine_workdir(workdir_of(section, site.environ), site)
