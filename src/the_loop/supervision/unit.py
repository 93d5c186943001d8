"""Which unit of which service manager runs a process. Every answer may be "could not be found out".

A unit counts only if it is a `.service` whose `MainPID` is the process: a poller started in a shell is in a scope, one
started by cron in `cron.service`, and stopping one of those would end something else.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pwd
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from the_loop.durable import IrregularFile, read_json_object, replace_file, to_json_bytes
from the_loop.processes import Identity, control_group, is_main_of_unit
from the_loop.state import PIDFILE, StateRoot
from the_loop.subprocesses import Finished, manager_environment, run_blocking

POLL_UNITS: Final = "the-loop-poll*.service"
_CALL_LIMIT_S: Final = 10.0
_USER_MANAGER: Final = re.compile(r"/user@(\d+)\.service/")
_SERVICE: Final = re.compile(r"[a-zA-Z0-9:_.\\][-a-zA-Z0-9:_.\\@]{0,246}\.service", re.ASCII)  # systemd.unit(5)
_NO_UID: Final = 0xFFFF_FFFF  # -1
_UP: Final = frozenset({"active", "activating", "deactivating", "reloading"})


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit and the manager it belongs to: the system's, or that of the user `uid`."""

    name: str
    scope: str  # "system" or "user"
    uid: int = 0

    def __str__(self) -> str:
        return self.name if self.scope == "system" else f"{self.name} (user manager of uid {self.uid})"

    def command(self, verb: str) -> str:
        """The command for a person to run."""
        return " ".join(["systemctl", *_manager_options(self), verb, self.name])


@dataclass(frozen=True, slots=True)
class UnitState:
    """The state of a unit according to its manager; names as in `systemctl show`."""

    active: str
    sub: str
    main_pid: int
    environment: str = ""
    invocation: str = ""
    user: str = ""  # of a system unit; "" is root
    command: str = ""

    @property
    def is_down(self) -> bool:
        return self.active in ("inactive", "failed")

    @property
    def is_up(self) -> bool:
        """True unless it is down for good. True for `auto-restart`: such a unit is going to take the lock."""
        return self.active in _UP


def unit_of(pid: int | str) -> Unit | None:
    """The service whose control group the process is in; None in a scope or slice, or if the process is gone.

    Raises OSError if that cannot be found out.
    """
    path = control_group(pid)
    name = path.rpartition("/")[2]
    if not name.endswith(".service") or name.startswith("user@"):
        return None
    owner = _USER_MANAGER.search(path)
    return Unit(name, "user", int(owner[1])) if owner else Unit(name, "system")


def systemctl(unit: Unit, *words: str, limit_s: float = _CALL_LIMIT_S) -> Finished:
    """Run systemctl for the unit's manager, without a password prompt and without our standard input."""
    argv = ["systemctl", *_manager_options(unit), "--no-ask-password", *words]
    return run_blocking(argv, manager_environment(os.environ), limit_s=limit_s)


def state_of(unit: Unit, limit_s: float = _CALL_LIMIT_S) -> UnitState | None:
    """The state of the unit; None if its manager cannot be asked."""
    properties = "ActiveState,SubState,MainPID,Environment,InvocationID,User,ExecStart"
    finished = systemctl(unit, "show", f"--property={properties}", "--", unit.name, limit_s=limit_s)
    if not finished.is_good:
        return None
    values = dict(line.partition("=")[::2] for line in finished.out.splitlines())
    main_pid = values.get("MainPID", "0")
    return UnitState(
        values.get("ActiveState", ""),
        values.get("SubState", ""),
        int(main_pid) if main_pid.isdigit() else 0,
        values.get("Environment", ""),
        values.get("InvocationID", ""),
        values.get("User", ""),
        values.get("ExecStart", ""),
    )


def units_on_their_way(root: StateRoot, limit_s: float = _CALL_LIMIT_S) -> tuple[list[Unit], list[str]]:
    """Units that run a poller on this root or are about to, and why others could not be asked."""
    found: list[Unit] = []
    listed, unknown = _listed(POLL_UNITS, limit_s)
    remembered: Unit | None = None
    try:
        remembered = recorded_unit(root)
    except OSError as error:
        unknown.append(f"cannot find out which unit runs it: '{root.unit_record}': {error.strerror}")
    for unit in [*listed, *([remembered] if remembered else [])]:
        if unit in found:
            continue
        state = state_of(unit, limit_s)
        if state is None:
            unknown.append(f"cannot find out the state of '{unit}': its manager cannot be asked")
        elif state.is_up:
            try:
                is_ours = is_of_root(unit, state, root)
            except OwnerUnknown as error:
                unknown.append(f"cannot find out whether '{unit}' runs on '{root.path}': {error}")
                continue
            if is_ours:
                found.append(unit)
    return found, unknown


def active_companions(root: StateRoot, limit_s: float = _CALL_LIMIT_S) -> list[str]:
    """Names of active timers and sockets that would start a poller on this root again."""
    names = []
    for pattern in ("the-loop-poll*.timer", "the-loop-poll*.socket"):
        for unit in _listed(pattern, limit_s, "--state=active")[0]:
            service = Unit(f"{unit.name.rpartition('.')[0]}.service", unit.scope, unit.uid)
            state = state_of(service, limit_s)
            with contextlib.suppress(OwnerUnknown):
                if state is not None and is_of_root(service, state, root):
                    names.append(unit.name)
    return names


class OwnerUnknown(Exception):
    """The user of a unit or the owner of a root cannot be found out; the message says why."""


def is_of_root(unit: Unit, state: UnitState, root: StateRoot) -> bool:
    """True if the unit runs a poller on this root. Raises OwnerUnknown.

    Its user must own the root, and the unit itself must say so: its environment or its command names the root, or it
    is the poller that `local/unit.json` has the current invocation of. That file is the word of the owner of the
    root, who may not be the caller: it names no unit but one that this owner's poller runs in.
    """
    if not (_names(state, root) or _is_recorded_poller(state, root)):
        return False
    try:
        owner = root.path.stat().st_uid
    except FileNotFoundError:
        return True  # then only the unit itself can have named it
    except OSError as error:
        raise OwnerUnknown(f"'{root.path}': {error.strerror}") from error
    return owner == _uid_of(unit, state)


def _names(state: UnitState, root: StateRoot) -> bool:
    """True if the unit's command, or else its environment, names this root."""
    named = _named_in(state.command, "--state-root") or _named_in(state.environment, "THE_LOOP_STATE_ROOT")
    return any(os.path.realpath(path) == str(root.path) for path in named)


def _named_in(text: str, name: str) -> list[str]:
    """The values of `name=value`, and of `name value`."""
    words = _words(text)
    following = [word for before, word in itertools.pairwise(words) if before == name]
    return following + [word.partition("=")[2] for word in words if word.startswith(f"{name}=")]


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def _is_recorded_poller(state: UnitState, root: StateRoot) -> bool:
    """True if the unit starts a poller on a root that its configuration names, and the last one here was its own."""
    words = _words(state.command)
    if not {"poll", "start"} <= set(words) or _named_in(state.command, "--state-root"):
        return False
    try:
        return bool(state.invocation) and state.invocation == unit_record(root).get("invocationId")
    except OSError:
        return False  # said by `units_on_their_way`


def _uid_of(unit: Unit, state: UnitState) -> int:
    """The user that the unit runs as. Raises OwnerUnknown."""
    if unit.scope == "user":
        return unit.uid
    if not state.user or state.user.isdecimal():
        return int(state.user or "0")
    try:
        return pwd.getpwnam(state.user).pw_uid
    except (KeyError, OSError, ValueError) as error:
        raise OwnerUnknown(f"there is no user '{state.user}' now") from error


def runtime_directory(environ: Mapping[str, str]) -> Path | None:
    """The directory in memory that the manager made for this unit, the first of several; None if there is none."""
    first = environ.get("RUNTIME_DIRECTORY", "").partition(":")[0]
    return Path(first) if first else None


def record_unit(root: StateRoot, environ: Mapping[str, str], wake: str, control: str = "") -> None:
    """Record the unit that runs this process, if any, so that `stop` knows it between two starts. Raises OSError.

    `wake` is the path of the manager's wake socket, "" if there is none; `control` that of the control socket, ""
    if it is in the root or there is none. Without a unit the record has no name, and is there only for a `control`.
    """
    path = root.unit_record
    unit = unit_of("self") if is_main_of_unit(environ) else None
    if unit is None and not control:
        path.unlink(missing_ok=True)
        return
    record: dict[str, Any] = {"schema": 1}
    if unit is not None:
        record |= {"name": unit.name, "scope": unit.scope, "uid": unit.uid}
        record["invocationId"] = environ.get("INVOCATION_ID")
    record["heartbeat"] = str(runtime_directory(environ) or "")
    record |= {"wake": wake, "control": control}
    replace_file(path, to_json_bytes(record), sync=False)


def recorded_unit(root: StateRoot) -> Unit | None:
    """The unit that ran the last poller of this root; None if it was a plain process or the record is damaged.

    Raises OSError if the record cannot be read.
    """
    record = unit_record(root)
    name, scope, uid = record.get("name"), record.get("scope"), record.get("uid")
    if not isinstance(name, str) or not _SERVICE.fullmatch(name) or scope not in ("system", "user"):
        return None
    if not isinstance(uid, int) or isinstance(uid, bool) or not 0 <= uid < _NO_UID:
        return None
    return Unit(name, str(scope), uid)


def unit_record(root: StateRoot) -> dict[str, Any]:
    """The content of `local/unit.json`; empty if it is missing or damaged. Raises OSError if it cannot be read."""
    try:
        return read_json_object(root.unit_record)
    except (FileNotFoundError, IrregularFile, ValueError):
        return {}


def runs(unit: Unit, holder: Identity, limit_s: float = _CALL_LIMIT_S) -> bool | None:
    """True if this process is the unit's main process; None if that could not be found out."""
    state = state_of(unit, limit_s)
    return None if state is None else state.main_pid == holder.pid


def active_elsewhere(root: StateRoot) -> list[tuple[Unit, str]]:
    """The active poller units that a person may mean, with their state roots ("" is unknown); none is on this root.

    Units of our own user manager, and for an ordinary user those of the system manager.
    """
    units, _ = _listed(POLL_UNITS, _CALL_LIMIT_S, "--state=active")
    if os.geteuid() == 0:
        units = [unit for unit in units if unit.scope == "user"]
    found = [(unit, _locked_by(state_of(unit))) for unit in units]
    return [(unit, path) for unit, path in found if path != str(root.path)]


def _locked_by(state: UnitState | None) -> str:
    """The state root whose lock file the main process of a unit has open; "" if that cannot be seen."""
    try:
        files = [one.readlink() for one in Path(f"/proc/{state.main_pid}/fd").iterdir()] if state is not None else []
    except OSError:
        return ""
    return next((str(file.parent) for file in files if file.name == PIDFILE), "")


def _listed(pattern: str, limit_s: float, *options: str) -> tuple[list[Unit], list[str]]:
    """The loaded units that match this pattern, of the system manager and our own user manager.

    Also why one of these managers could not be asked.
    """
    managers = [Unit("", "system")] if Path("/run/systemd/system").is_dir() else []
    if Path(f"/run/user/{os.geteuid()}/systemd/private").exists():
        managers.append(Unit("", "user", os.geteuid()))
    units: list[Unit] = []
    unknown = []
    for manager in managers:
        words = ("list-units", "--all", *options, "--plain", "--no-legend", "--", pattern)
        finished = systemctl(manager, *words, limit_s=limit_s)
        if not finished.is_good:
            whose = "the system manager" if manager.scope == "system" else "the user manager"
            unknown.append(f"cannot find out which units are about to start a poller: {whose}: {finished.problem}")
            continue
        names = [line.split()[0] for line in finished.out.splitlines() if line.split()]
        units += [Unit(name, manager.scope, manager.uid) for name in names]
    return units, unknown


def _manager_options(unit: Unit) -> Sequence[str]:
    if unit.scope == "system":
        return ("--system",)
    if unit.uid == os.geteuid():
        return ("--user",)
    try:
        return ("--user", "-M", f"{pwd.getpwuid(unit.uid).pw_name}@")
    except KeyError:
        return ("--user", "-M", f"{unit.uid}@")
