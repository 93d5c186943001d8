"""Which poller is examined, and as whom: its unit, its running process, or what a start in this shell would be.

The configuration and the environment are those of the poller. A shell has other variables than a unit, and reading a
file as root says nothing about the user who has to read it: a caller who is root becomes that user.
"""

from __future__ import annotations

import os
import pwd
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from the_loop.core.model import LoopError
from the_loop.processes import Execution, execution_of
from the_loop.supervision.unit import Unit, systemctl

LIMIT_S: Final = 5.0
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin"  # of units, unless something says another
_PROPERTIES: Final = (
    *("LoadState", "ActiveState", "SubState", "UnitFileState", "MainPID", "FragmentPath", "NeedDaemonReload"),
    *("ExecStart", "Environment", "EnvironmentFiles", "User"),
)
_NOT_PASSED: Final = frozenset({"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID"})


@dataclass(frozen=True, slots=True)
class Service:
    """A unit that is installed, according to its manager. `fragment`: its file; `systemctl`: how the caller asks it."""

    unit: Unit
    active: str
    sub: str
    enabled: str  # UnitFileState
    main_pid: int
    fragment: Path
    needs_reload: bool
    command: str
    environment: Mapping[str, str]
    user: str
    systemctl: str

    @property
    def is_of_user(self) -> bool:
        return self.unit.scope == "user"

    def option(self, name: str) -> str | None:
        """The value of an option in its command line, which is one text here: up to the next option."""
        found = re.search(rf" {name}[ =](.*?)(?= --| ; |$)", self.command)
        return found[1] if found else None

    def type(self, verb: str, unit: str = "") -> str:
        """The command for the caller to type."""
        return f"{self.systemctl} {verb} {unit or self.unit.name}"


@dataclass(frozen=True, slots=True)
class Subject:
    """What is examined. `config_file` and `state_root` are as options of the poller would name them, absolute.

    `pid`: the poller that runs as this, 0 if none does. `shell`: the caller's environment.
    """

    service: Service | None
    user: str
    uid: int
    environ: Mapping[str, str]
    shell: Mapping[str, str]
    config_file: str | None = None
    state_root: str | None = None
    pid: int = 0
    unasked: Sequence[str] = field(default_factory=tuple)  # why a manager could not be asked


class Unasked(LoopError):
    """A service manager could not be asked."""


def service_of(unit: Unit) -> Service | None:
    """The unit, None if it is not installed. Raises Unasked."""
    finished = systemctl(unit, "show", f"--property={','.join(_PROPERTIES)}", "--", unit.name, limit_s=LIMIT_S)
    if not finished.is_good:
        raise Unasked(f"cannot ask the manager of '{unit}': {finished.problem}")
    values = dict(line.partition("=")[::2] for line in finished.out.splitlines())
    if values.get("LoadState") != "loaded":
        return None
    pid = values.get("MainPID", "")
    command = values.get("ExecStart", "").partition(" argv[]=")[2].partition(" ; ignore_errors=")[0]
    return Service(
        unit,
        active=values.get("ActiveState", ""),
        sub=values.get("SubState", ""),
        enabled=values.get("UnitFileState", ""),
        main_pid=int(pid) if pid.isdigit() else 0,
        fragment=Path(values.get("FragmentPath", "")),
        needs_reload=values.get("NeedDaemonReload") == "yes",
        command=command,
        environment=_pairs(_words(values.get("Environment", ""))) | _of_files(values.get("EnvironmentFiles", "")),
        user=_user_of(unit, values.get("User", "")),
        systemctl=unit.command("VERB").partition(" VERB")[0],
    )


def _user_of(unit: Unit, named: str) -> str:
    """Raises Unasked for a user that has no name now."""
    try:
        if unit.scope == "user":
            return pwd.getpwuid(unit.uid).pw_name
        uid_or_name = named or "0"
        return (pwd.getpwuid(int(uid_or_name)) if uid_or_name.isdecimal() else pwd.getpwnam(uid_or_name)).pw_name
    except (KeyError, OverflowError) as error:
        raise Unasked(f"'{unit}' runs as the user '{named or unit.uid}', who has no account now") from error


def environment_of(service: Service) -> dict[str, str]:
    """What a start of this unit would find: of its manager, its account, and its own files. Raises Unasked."""
    finished = systemctl(service.unit, "show-environment", limit_s=LIMIT_S)
    if not finished.is_good:
        raise Unasked(f"cannot find out the environment of '{service.unit}': {finished.problem}")
    account = pwd.getpwnam(service.user)
    of_account = {"HOME": account.pw_dir, "USER": account.pw_name, "LOGNAME": account.pw_name}
    if service.is_of_user:
        of_account["XDG_RUNTIME_DIR"] = f"/run/user/{account.pw_uid}"
    of_manager = _pairs(word for line in finished.out.splitlines() for word in _words(line.replace("=$'", "='")))
    return {"PATH": _PATH} | of_manager | of_account | dict(service.environment)


def running(pid: int) -> Execution | None:
    """How the poller was executed; None if that cannot be seen."""
    with suppress(OSError):
        execution = execution_of(pid)
        environ = {name: value for name, value in execution.environ.items() if name not in _NOT_PASSED}
        return Execution(execution.argv, environ, execution.directory)
    return None


def become(subject: Subject) -> None:
    """Be the poller's user for the rest of this process, with the poller's environment. Raises LoopError."""
    os.environ.clear()
    os.environ.update(subject.environ)
    if os.geteuid() != 0 or subject.uid == 0:
        return
    try:
        group = pwd.getpwuid(subject.uid).pw_gid
        os.initgroups(subject.user, group)
        os.setgid(group)
        os.setuid(subject.uid)
        os.chdir("/")
    except (KeyError, OSError) as error:
        raise LoopError(f"cannot examine as the user '{subject.user}': {error}") from error


def _pairs(words: Iterable[str]) -> dict[str, str]:
    return {name: value for name, equals, value in (word.partition("=") for word in words) if equals}


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def _of_files(value: str) -> dict[str, str]:
    """What `EnvironmentFile=` adds, as far as it may be read: `/etc/x (ignore_errors=yes)`."""
    found: dict[str, str] = {}
    for path in re.findall(r"(/.*?) \(ignore_errors=", value):
        with suppress(OSError):
            lines = Path(path).read_text("utf-8", "replace").splitlines()
            found |= _pairs([word for line in lines if line[:1] not in ("#", ";") for word in _words(line)[:1]])
    return found
