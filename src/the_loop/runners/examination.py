"""What must hold for a command that is started for each event: it is found where the poller looks, and can start."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from the_loop.core.model import explain
from the_loop.findings import Finding, Site, fail, ok, unknown, warn
from the_loop.runners.given import Extras, read_environment
from the_loop.subprocesses import run_blocking

_USUAL: Final = "/usr/local/bin:/usr/bin:/bin"
_TMUX: Final = (3, 3, "a")
_CALL_LIMIT_S: Final = 5.0
_HEAD: Final = 256  # bytes of a script that may name its interpreter


def examine_variables(extras: Extras, passed: Sequence[str], site: Site) -> Generator[Finding, None, Mapping[str, str]]:
    """What the command gets beside the poller's environment is returned; `passed`: `session.passEnvironment`."""
    missing = [name for name in passed if name not in site.environ]
    if missing:
        here = [name for name in missing if name in site.shell]
        where = f" ({', '.join(here)}: set in this shell only)" if here else ""
        yield warn("environment", f"not set for the poller: {', '.join(missing)}{where}", site.edit)
    if extras.file is None:
        return extras.variables
    if site.hides(extras.file):
        detail = f"the service does not see '{extras.file}'; move it below /etc/the-loop"
        yield fail("environment", detail, site.edit)
        return extras.variables
    try:
        of_file = read_environment(extras.file, os.geteuid())
    except (OSError, ValueError) as error:
        detail = f"cannot use '{extras.file}': {explain(error)}"
        yield fail("environment", detail, f"ls -l {shlex.quote(str(extras.file))}")
        return extras.variables
    yield ok("environment", f"'{extras.file}' can be read")
    return {**extras.variables, **of_file}


def examine_command(program: str, path: str, site: Site) -> Iterator[Finding]:
    """Whether `program` (of `session.command`) is found on this search path, and can be executed by the poller."""
    if "/" in program:
        yield of_path(Path(program), site)
        found: str | None = program
    else:
        found = shutil.which(program, path=path)
        yield of_name(program, found, path, site)
    if found is not None:
        yield from _interpreter(Path(found), path, site)


def of_name(program: str, found: str | None, path: str, site: Site) -> Finding:
    """A command without a slash."""
    if found is not None:
        return ok("command", f"'{program}' is '{found}'")
    in_shell = shutil.which(program, path=site.shell.get("PATH", os.defpath))
    if in_shell is None:
        detail = f"'{program}' is not found on the poller's PATH ({_shown(path)}); correct `session.command`"
        return fail("command", detail, f"type {shlex.quote(program)}")
    return _only_in_shell("command", program, in_shell, path, site)


def _only_in_shell(name: str, program: str, in_shell: str, path: str, site: Site) -> Finding:
    folder = Path(in_shell).parent
    where = f"'{program}' is on the PATH of this shell, in '{folder}', and not on the poller's ({_shown(path)})"
    mends = [f"write `session.command: [{in_shell}, …]`"] if name == "command" else []
    mends += (
        [f"add `Environment=PATH={folder}:{_USUAL}` below `[Service]` (or install the unit with `--path`)"]
        if site.edit
        else []
    )
    return fail(name, f"{where}; {', or '.join(mends) or 'start the poller from this shell'}", site.edit)


def _shown(path: str) -> str:
    """The directories of a search path, where a line can be broken between them."""
    return ", ".join(dict.fromkeys(path.split(":")))


def of_path(program: Path, site: Site) -> Finding:
    """A command that is a path."""
    look = f"ls -lL {shlex.quote(str(program))}"
    try:
        program.stat()
    except FileNotFoundError:
        return fail("command", f"'{program}' does not exist", look)
    except OSError as error:
        return fail("command", f"'{program}': {explain(error)}", f"namei -l {shlex.quote(str(program))}")
    if not program.is_file():
        return fail("command", f"'{program}' is not a file", look)
    if not os.access(program, os.X_OK):
        return fail("command", f"'{site.user}' may not execute '{program}'", f"chmod +x {shlex.quote(str(program))}")
    return ok("command", f"'{program}'")


def _interpreter(program: Path, path: str, site: Site) -> Iterator[Finding]:
    """Of a script: `#!/usr/bin/env node` needs `node` on the poller's PATH as well."""
    try:
        with program.open("rb") as file:
            head = file.readline(_HEAD)
    except OSError:
        return  # it may be executed without being read
    if not head.startswith(b"#!"):
        return
    words = os.fsdecode(head[2:]).split()
    if not words:
        return
    if not os.access(words[0], os.X_OK):
        detail = f"'{program}' is to be run by '{words[0]}', which is not there"
        yield fail("interpreter", detail, f"head -n 1 {shlex.quote(str(program))}")
        return
    by_name = next((word for word in words[1:] if not word.startswith("-") and "=" not in word), "")
    if Path(words[0]).name != "env" or not by_name or shutil.which(by_name, path=path):
        return
    in_shell = shutil.which(by_name, path=site.shell.get("PATH", os.defpath))
    if in_shell is not None:
        yield _only_in_shell("interpreter", by_name, in_shell, path, site)
    else:
        detail = f"'{program}' is to be run by '{by_name}', which is not on the poller's PATH ({_shown(path)})"
        yield fail("interpreter", detail, f"type {shlex.quote(by_name)}")


def examine_tmux(site: Site) -> Iterator[Finding]:
    """Whether tmux is there for the poller, and new enough."""
    found = shutil.which("tmux", path=site.environ.get("PATH", os.defpath))
    if found is None:
        path = _shown(site.environ.get("PATH", os.defpath))
        yield fail("tmux", f"not found on the poller's PATH ({path}); install it", "tmux -V")
        return
    finished = run_blocking([found, "-V"], {"PATH": os.defpath}, limit_s=_CALL_LIMIT_S)
    yield of_tmux(finished.out if finished.is_good else "", finished.problem)


def of_tmux(version: str, problem: str = "") -> Finding:
    """`version` as `tmux -V` prints it: `tmux 3.3a`. `problem`: why there is none."""
    number = re.search(r"(\d+)\.(\d+)([a-z]?)", version)
    if number is None:
        return unknown("tmux", f"its version cannot be found out: {version or problem}", "tmux -V")
    if (int(number[1]), int(number[2]), number[3]) < _TMUX:
        return fail("tmux", f"{version}: 3.3a or newer is needed", "tmux -V")
    return ok("tmux", version)


def examine_workdir(workdir: Path, site: Site) -> Iterator[Finding]:
    """Where the command starts."""
    try:
        is_folder = workdir.is_dir()
        workdir.stat()
    except FileNotFoundError:
        yield fail("workdir", f"'{workdir}' does not exist", f"mkdir -p {shlex.quote(str(workdir))}")
        return
    except OSError as error:
        yield fail("workdir", f"'{workdir}': {explain(error)}", f"namei -l {shlex.quote(str(workdir))}")
        return
    if not is_folder or not os.access(workdir, os.X_OK):
        detail = f"'{workdir}' cannot be entered by '{site.user}'" if is_folder else f"'{workdir}' is not a directory"
        yield fail("workdir", detail, f"namei -l {shlex.quote(str(workdir))}")
    else:
        yield ok("workdir", f"'{workdir}'")
