"""Finding the poller that a call of `doctor` is about: the one of the named state root, else the installed unit."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from the_loop import wiring
from the_loop.config import ConfigError
from the_loop.config_file import find_file, peek_root
from the_loop.core.model import LoopError
from the_loop.doctor.subject import Service, Subject, Unasked, environment_of, running, service_of
from the_loop.lock import look
from the_loop.processes import Execution
from the_loop.state import PIDFILE
from the_loop.supervision.unit import Unit, unit_of

_SERVICE: Final = "the-loop-poll.service"


@dataclass(frozen=True, slots=True)
class Asked:
    """The options of the call. `scope`: "user", "system", or "" for whichever there is. `shell`: its environment."""

    shell: Mapping[str, str]
    config_file: str | None = None
    state_root: str | None = None
    scope: str = ""
    instance: str | None = None

    @property
    def is_particular(self) -> bool:
        """True if the call names a state root or a configuration, and is not about just any poller that there is."""
        variables = ("THE_LOOP_CONFIG", "THE_LOOP_STATE_ROOT")
        return bool(self.config_file or self.state_root or any(self.shell.get(name) for name in variables))

    def root(self) -> Path | None:
        """The state root that the call leads to; None if the configuration does not tell."""
        try:
            configured = None if self.state_root else peek_root(find_file(self.config_file, self.shell))
        except ConfigError:
            return None
        return wiring.state_root(self.state_root or configured, None, self.shell).path


def find(asked: Asked) -> Subject:
    """What is to be examined. Raises LoopError."""
    unasked: list[str] = []
    service = _service(asked, unasked)
    if service is not None:
        return _service_subject(asked, service, unasked)
    if (asked.scope or asked.instance is not None) and not unasked:
        raise LoopError("no such unit is installed", "run `the-loop unit install`")
    return _shell_subject(asked, unasked)


def _service(asked: Asked, unasked: list[str]) -> Service | None:
    """The installed unit that is meant. Raises LoopError if it is another user's, and we are not root.

    Why a manager could not be asked is added to `unasked`.
    """
    root = asked.root()
    is_picky = asked.is_particular and not asked.scope and asked.instance is None
    for unit in _units(asked, root):
        try:
            service = service_of(unit)
            if service is None or (is_picky and not (root and _is_on(service, root))):
                continue
        except Unasked as error:
            unasked.append(str(error))
            continue
        if os.geteuid() == 0 or service.user == _own_name():
            return service
        if is_picky or asked.scope or _reads(service) == find_file(None, asked.shell):
            raise LoopError(
                f"cannot examine '{unit}' as the user '{_own_name()}': it runs as '{service.user}'",
                "run `sudo the-loop doctor`",
            )
    return None


def _units(asked: Asked, root: Path | None) -> Iterator[Unit]:
    """Units that may be meant, those first that are more likely. None of them need be installed."""
    if asked.is_particular and root is not None and (unit := _holding(root)) is not None:
        yield unit
    name = _SERVICE if asked.instance is None else f"the-loop-poll@{asked.instance}.service"
    uid = _uid_meant(asked, root)
    has_manager = Path(f"/run/user/{uid}/systemd/private").exists() or _is_installed(name, uid)
    units = [Unit(name, "user", uid)] if has_manager and asked.scope != "system" else []
    if asked.scope != "user" and Path("/run/systemd/system").is_dir():
        units.insert(0 if os.geteuid() == 0 else 1, Unit(name, "system"))
    yield from units


def _uid_meant(asked: Asked, root: Path | None) -> int:
    """Whose own unit may be meant: for root that of the owner of the named root, or of the one who typed `sudo`."""
    euid, owner, sudo = os.geteuid(), _owner(root), asked.shell.get("SUDO_UID", "")
    if euid != 0:
        return euid
    if asked.is_particular and owner is not None:
        return owner
    return int(sudo) if sudo.isascii() and sudo.isdigit() else euid


def _is_installed(name: str, uid: int) -> bool:
    """True if this user has such a unit in the usual place; its manager may not run, as without lingering."""
    stem, at, _ = name.partition("@")
    file = f"{stem}@.service" if at else name
    return os.path.isfile(f"{_account(uid)[1]}/.config/systemd/user/{file}")  # noqa: PTH113 (False if it cannot be seen)


def _holding(root: Path) -> Unit | None:
    """The unit of the process that holds the lock of this root."""
    holder = look(root, PIDFILE).holder
    try:
        return unit_of(holder.pid) if holder is not None else None
    except OSError:
        return None


def _is_on(service: Service, root: Path) -> bool:
    """True if the unit is that of the state root: it says so, and its user owns it."""
    owner = _owner(root)
    return _root_of(service) == str(root) and owner in (None, pwd.getpwnam(service.user).pw_uid)


def _root_of(service: Service) -> str:
    """The state root that a unit leads to; "" if its configuration cannot be read."""
    named = service.option("--state-root")
    if named is None:
        try:
            named = peek_root(_reads(service))
        except ConfigError:
            return ""
    named = named or service.environment.get("THE_LOOP_STATE_ROOT") or ""
    if named.startswith("~/"):
        named = pwd.getpwnam(service.user).pw_dir + named[1:]
    return os.path.realpath(named) if named else ""


def _reads(service: Service) -> Path | None:
    named = service.option("--config") or service.environment.get("THE_LOOP_CONFIG")
    return Path(named) if named else None


def _owner(root: Path | None) -> int | None:
    try:
        return root.stat().st_uid if root is not None else None
    except OSError:
        return None


def _own_name() -> str:
    return _account(os.geteuid())[0]


def _account(uid: int) -> tuple[str, str]:
    """Name and home."""
    try:
        account = pwd.getpwuid(uid)
    except KeyError:
        return str(uid), "/"
    return account.pw_name, account.pw_dir


def _service_subject(asked: Asked, service: Service, unasked: list[str]) -> Subject:
    execution = running(service.main_pid) if service.main_pid else None
    try:
        environ = execution.environ if execution else environment_of(service)
    except Unasked as error:
        unasked.append(str(error))
        environ = dict(service.environment)
    named = _given(asked, execution)
    return Subject(
        service,
        user=service.user,
        uid=pwd.getpwnam(service.user).pw_uid,
        environ=environ,
        shell=asked.shell,
        config_file=named["--config"] or service.option("--config"),
        state_root=named["--state-root"] or service.option("--state-root"),
        pid=service.main_pid,
        unasked=tuple(unasked),
    )


def _shell_subject(asked: Asked, unasked: list[str]) -> Subject:
    """A poller that runs on the root of this call, else one that would be started here."""
    root = asked.root()
    holder = look(root, PIDFILE).holder if root is not None else None
    execution = running(holder.pid) if holder is not None else None
    owner, euid = _owner(root), os.geteuid()
    uid = owner if euid == 0 and owner is not None else euid
    environ = asked.shell
    if execution is not None:
        environ = execution.environ
    elif uid != euid:
        name, home = _account(uid)
        kept = {name: value for name, value in asked.shell.items() if name in ("PATH", "LANG", "TERM")}
        environ = {**kept, "HOME": home, "USER": name, "LOGNAME": name, "XDG_RUNTIME_DIR": f"/run/user/{uid}"}
    named = _given(asked, execution)
    return Subject(
        None,
        user=_account(uid)[0],
        uid=uid,
        environ=environ,
        shell=asked.shell,
        config_file=named["--config"],
        state_root=named["--state-root"] or (str(root) if root is not None else None),
        pid=holder.pid if holder is not None else 0,
        unasked=tuple(unasked),
    )


def _given(asked: Asked, execution: Execution | None) -> dict[str, str | None]:
    """`--config` and `--state-root` of the call, else of the running poller, as absolute paths."""
    here = {"--config": asked.config_file, "--state-root": asked.state_root}
    found: dict[str, str | None] = {
        name: str(Path(value).expanduser().absolute()) if value else None for name, value in here.items()
    }
    if execution is None:
        return found
    there = {name: str(execution.directory / value) for name in found if (value := _option_of(execution, name))}
    return {name: value or there.get(name) for name, value in found.items()}


def _option_of(execution: Execution, name: str) -> str | None:
    """As the command line takes it: the last one counts."""
    found = None
    for index, word in enumerate(execution.argv):
        if word == name and index + 1 < len(execution.argv):
            found = execution.argv[index + 1]
        elif word.startswith(f"{name}="):
            found = word.partition("=")[2]
    return found
