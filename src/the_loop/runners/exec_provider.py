"""The provider `exec`: the operator's command for each event. `exec.ExecRunner` runs it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta

from the_loop.config import Config, Fault, Session, path_faults
from the_loop.core.model import Note
from the_loop.runners.given import Extras, name_problem, read_environment
from the_loop.runners.placeholders import placeholder_problem
from the_loop.state import StateRoot

if TYPE_CHECKING:
    from collections.abc import Iterator

    from the_loop.findings import Finding, Site
    from the_loop.runners.base import Runner, RunnerSite


class CommandSession(Session, frozen=True, kw_only=True):
    """Of the runners that start a command: `exec`, and `print`, whose command is ours."""

    command: tuple[str, ...] = ()
    workdir: str | None = None
    input: Literal["json", "text"] = "json"
    environment: dict[str, str] | None = None
    environment_file: str | None = None
    pass_environment: tuple[str, ...] = ()


class ExecSession(CommandSession, frozen=True, kw_only=True):
    """Of commands that are run for each event, in a unit of this slice where there are units."""

    slice: Annotated[str, Meta(pattern=r"^[A-Za-z0-9:_.\\-]+\.slice$", max_length=200)] | None = None


Section = ExecSession


def check(section: CommandSession, config: Config) -> list[Fault]:
    faults = check_workdir(section) + check_environment(section)
    if not section.command:
        faults.append(
            Fault("command", "is missing; the program to run for each event, as a list: [my-agent, --from-stdin]")
        )
    elif "/" in section.command[0]:
        faults += path_faults(**{"command[0]": section.command[0]})
    if problem := placeholder_problem(section.command):
        faults.append(Fault("command", problem))
    return faults


def check_environment(section: CommandSession) -> list[Fault]:
    named = [(f"environment.{name}", name) for name in section.environment or {}]
    named += [(f"passEnvironment[{index}]", name) for index, name in enumerate(section.pass_environment)]
    faults = [Fault(path, f"'{name}' {problem}") for path, name in named if (problem := name_problem(name))]
    file = section.environment_file
    if file is not None and not file.startswith(("/", "~")):
        return [*faults, Fault("environmentFile", f"'{file}' is relative; give an absolute path, or one below ~")]
    return faults + path_faults(environmentFile=file)


def faults_here(section: CommandSession) -> list[Fault]:
    """What is wrong on this machine, for this user: a file of variables that is not there, or that others can read.

    What cannot be found out is no fault; it is looked at again for each delivery.
    """
    if section.environment_file is None or check_environment(section):
        return []
    try:
        read_environment(Path(section.environment_file).expanduser(), os.geteuid() or None)
    except FileNotFoundError:
        return [Fault("environmentFile", f"there is no file '{section.environment_file}'")]
    except ValueError as error:
        return [Fault("environmentFile", f"cannot use '{section.environment_file}': {error}")]
    except OSError:
        pass
    return []


def check_workdir(section: CommandSession) -> list[Fault]:
    workdir = section.workdir
    if workdir is not None and not workdir.startswith(("/", "~")):
        return [Fault("workdir", f"'{workdir}' is relative; give an absolute path, or one below ~")]
    return path_faults(workdir=workdir)


def build(section: ExecSession, site: RunnerSite) -> Runner:
    from the_loop.runners.exec import Command, ExecRunner
    from the_loop.runners.units import SLICE, find_units

    command = Command(
        argv=tuple(map(at_home, section.command)),
        workdir=workdir_of(section, site.environ),
        limit_s=site.limit_s,
        environment=site.environ,
        output=StateRoot(site.root).logs / "output.log",
        extras=extras_of(section, site.environ),
    )
    units = find_units(site.root, site.environ, section.slice or SLICE)
    if units is None:
        site.tell(Note("dispatch.no_manager", {"reason": "this user has no service manager"}))
    return ExecRunner(command, units, site.tell)


def extras_of(section: CommandSession, environ: Mapping[str, str]) -> Extras:
    """What its command gets beside the payload. Of `environ`, the poller's own, only what the section names."""
    passed = {name: environ[name] for name in section.pass_environment if name in environ}
    file = section.environment_file
    return Extras(
        is_text=section.input == "text",
        variables={**passed, **(section.environment or {})},
        file=None if file is None else Path(file).expanduser(),
    )


def examine(section: CommandSession, site: Site) -> Iterator[Finding]:
    return examine_section(section, site, section.command[:1])


def examine_section(section: CommandSession, site: Site, programs: Sequence[str]) -> Iterator[Finding]:
    """What must hold for these programs, in the environment that the section gives them."""
    from the_loop.runners.examination import examine_command, examine_variables, examine_workdir

    extras = extras_of(section, site.environ)
    variables = yield from examine_variables(extras, section.pass_environment, site)
    path = {**site.environ, **variables}.get("PATH", os.defpath)
    for program in dict.fromkeys(programs):
        yield from examine_command(at_home(program), path, site)
    yield from examine_workdir(workdir_of(section, site.environ), site)


def at_home(word: str) -> str:
    """The word as a shell would take it: `~/…` and `~user/…` lead to a home, any other `~` is a character."""
    return os.path.expanduser(word) if word.startswith("~") and "/" in word else word  # noqa: PTH111 (a home that is not there leaves the word as it is)


def workdir_of(section: CommandSession, environ: Mapping[str, str]) -> Path:
    """Where its command starts: at home, if nothing is said."""
    return Path(section.workdir or environ.get("HOME") or "/").expanduser()
