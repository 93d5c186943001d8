"""The poller's unit: whether it runs and starts at boot, its files, lingering, and the manager of its deliveries."""

from __future__ import annotations

import asyncio
import os
import pwd
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from the_loop import __version__
from the_loop.core.model import explain
from the_loop.doctor.subject import LIMIT_S, Service, Subject, Unasked, service_of
from the_loop.findings import Finding, fail, ok, unknown, warn
from the_loop.lock import Probe, Sight
from the_loop.manager import Manager, ManagerError
from the_loop.state import StateRoot
from the_loop.subprocesses import manager_environment
from the_loop.supervision.install import BASES, SLICE, is_ours, template_name, unit_texts
from the_loop.supervision.surroundings import unseen, verify
from the_loop.supervision.unit import Unit, active_elsewhere

OLDEST: Final = 252
_LINGER: Final = Path("/var/lib/systemd/linger")
_ENABLED: Final = frozenset({"enabled", "enabled-runtime", "linked", "static", "generated", "alias"})
_NAMED: Final = re.compile(
    r"""
    (?P<option>\ --(?:config|state-root)\ (?:"(?:\\.|[^"])*"|\S+))
    | (?P<program>^(?:Exec\w+)=(?P<minus>-?)(?:/usr/bin/env\ )?(?:"(?:\\.|[^"])*"|\S+))(?=\ (?:poll|config)\ )
    | (?P<root>^(?:Environment="?(?:THE_LOOP_STATE_ROOT|PATH)=|ReadWritePaths=).*\n)
    """,
    re.VERBOSE | re.MULTILINE,
)


def examine_poller(subject: Subject, sight: Sight, root: StateRoot | None) -> Iterator[Finding]:
    """Whether it runs, and would after a boot."""
    service = subject.service
    timer = _timer(service) if service is not None else None
    found = of_lock(sight, service, timer)
    is_nothing_there = service is None and sight.probe is Probe.FREE
    others = active_elsewhere(root) if is_nothing_there and root is not None else []
    yield replace(found, detail="; ".join([found.detail, *(_elsewhere(unit, path) for unit, path in others)]))
    if service is not None:
        yield of_unit(service, timer)
        if service.needs_reload:
            detail = "its files changed since the manager read them"
            yield warn("unit", detail, f"{service.systemctl} daemon-reload")


def _elsewhere(unit: Unit, path: str) -> str:
    """A unit that may be meant instead."""
    which = f" (run `the-loop doctor --state-root {shlex.quote(path)}`)" if path else ""
    return f"the {unit.scope} unit '{unit.name}' is active on another state root{which}"


def of_lock(sight: Sight, service: Service | None, timer: Service | None) -> Finding:
    if sight.probe is Probe.UNKNOWN:
        return unknown("poller", sight.cause)
    if sight.probe is Probe.HELD:
        pid = sight.holder.pid if sight.holder else 0
        who = f"running, pid {pid}" if pid else "running"
        is_unit = service is None or not pid or pid == service.main_pid or (timer and timer.active == "active")
        return ok("poller", who) if is_unit else warn("poller", f"{who}, which is not the unit's")
    if timer is not None and timer.active == "active":
        return ok("poller", f"not running right now, '{timer.unit.name}' starts it")
    start = "the-loop poll start" if service is None else service.type("enable --now")
    return fail("poller", "not running", start)


def of_unit(service: Service, timer: Service | None) -> Finding:
    """The unit that should run it, in the words of its manager."""
    name, is_timed = service.unit.name, timer is not None and timer.active == "active"
    detail = f"{name} ({service.unit.scope}): {service.active} ({service.sub}), {service.enabled or 'no unit file'}"
    if service.active == "failed" or service.sub == "auto-restart":
        return fail("unit", detail, f"journalctl{' --user' if service.is_of_user else ''} -u {name} -n 50")
    if service.enabled in _ENABLED or (is_timed and timer is not None and timer.enabled in _ENABLED):
        return ok("unit", detail)
    if service.enabled in ("masked", "masked-runtime"):
        return fail("unit", detail, service.type("unmask"))
    return warn("unit", f"{detail}: it does not start at boot", service.type("enable"))


def _timer(service: Service) -> Service | None:
    """The timer of the same poller; None if it is not installed or cannot be asked."""
    stem, at, instance = service.unit.name.removesuffix(".service").partition("@")
    try:
        return service_of(replace(service.unit, name=f"{stem}-once{at}{instance}.timer"))
    except Unasked:
        return None


# --- the files ---


def examine_files(service: Service) -> Iterator[Finding]:
    """Whether `unit install` of this version would write the same, and the manager takes them."""
    install = install_again(service)
    if not is_ours(service.fragment):
        yield ok("unit files", f"'{service.fragment}' was not installed by `the-loop unit install`, not compared")
        return
    files = dict(_installed_files(service))
    yield of_files(files, _texts(service), install)
    there = [file for file, text in files.items() if text is not None]
    instance = service.unit.name.partition("@")[2].removesuffix(".service")
    named = [file.with_name(file.name.replace("@.", f"@{instance}.")) if instance else file for file in there]
    is_good, said = verify(named, is_user=service.is_of_user)
    if not is_good:
        yield fail("unit files", "; ".join(said), install)
    elif said:
        yield warn("unit files", "; ".join(said))


def install_again(service: Service) -> str:
    """The command that installs the same unit again, with what it names."""
    command = f"the-loop unit install --{service.unit.scope}"
    if "@" in service.unit.name:
        return f"{command} --name {service.unit.name.partition('@')[2].removesuffix('.service')}"
    home = pwd.getpwnam(service.user).pw_dir
    is_user = service.is_of_user
    usual = (
        (f"{home}/.config/the-loop/config.yaml", f"{home}/.local/state/the-loop")
        if is_user
        else ("/etc/the-loop/config.yaml", "/var/lib/the-loop")
    )
    config, root = service.option("--config"), service.environment.get("THE_LOOP_STATE_ROOT")
    for option, value, default in (("--config", config, usual[0]), ("--state-root", root, usual[1])):
        if value is not None and value != default:
            command += f" {option} {shlex.quote(value)}"
    return f"{command} --path" if "PATH" in service.environment else command


def _texts(service: Service) -> Mapping[str, str]:
    name = "NAME" if "@" in service.unit.name else None
    return unit_texts(Path("/"), is_user=service.is_of_user, name=name)


def _installed_files(service: Service) -> Iterator[tuple[Path, str | None]]:
    """The installed files, None for a missing one. The slice is that of the user managers."""
    for base in (*BASES, SLICE):
        is_system_slice = base == SLICE and not service.is_of_user
        folder = Path("/etc/systemd/user") if is_system_slice else service.fragment.parent
        path = folder / (template_name(base) if "@" in service.unit.name and base != SLICE else base)
        try:
            yield path, path.read_text("utf-8")
        except FileNotFoundError:
            yield path, None


def of_files(files: Mapping[Path, str | None], texts: Mapping[str, str], install: str) -> Finding:
    """Installed files against those of this version, whatever configuration and state root they name."""
    missing = [str(path) for path, text in files.items() if text is None]
    if missing:
        return fail("unit files", f"missing: {', '.join(missing)}", install)
    others = [
        str(path)
        for path, text in files.items()
        if text is not None and path.name in texts and _unnamed(text) != _unnamed(texts[path.name])
    ]
    if others:
        return warn("unit files", f"not as this version ({__version__}) writes them: {', '.join(others)}", install)
    return ok("unit files", f"as version {__version__} writes them")


def _unnamed(text: str) -> str:
    """The text of a unit without what a call of `unit install` names in it: program, configuration, state root."""
    return _NAMED.sub(lambda found: f"{found['program'].partition('=')[0]}=…" if found["program"] else "", text)


# --- what goes on without a login ---


def examine_lingering(user: str, *, is_poller_in_it: bool) -> Iterator[Finding]:
    """Whether the user's manager lives without a login: the poller's own, or only that of its deliveries."""
    try:
        (_LINGER / user).lstat()
    except FileNotFoundError:
        what = "the poller and all sessions end" if is_poller_in_it else "no delivery can be started"
        when = "at the last logout" if is_poller_in_it else "without the manager of that user"
        yield fail("lingering", f"off for '{user}': {what} {when}", f"sudo loginctl enable-linger {user}")
    except OSError as error:
        yield unknown("lingering", f"'{_LINGER / user}': {explain(error)}", f"loginctl show-user {user} -P Linger")
    else:
        yield ok("lingering", f"on for '{user}'")


# --- manager and versions ---


def examine_manager(subject: Subject) -> Iterator[Finding]:
    """The user's service manager, in which deliveries run, and the versions."""
    environ = manager_environment(subject.environ)
    python = ".".join(map(str, sys.version_info[:3]))
    versions = f"the-loop {__version__}, Python {python}"
    try:
        version = asyncio.run(_version(environ))
    except ManagerError as error:
        yield of_no_manager(str(error), subject)
        yield ok("versions", versions)
        return
    yield ok("manager", f"the service manager of '{subject.user}' answers")
    yield of_version(version, versions)


def of_no_manager(problem: str, subject: Subject) -> Finding:
    if subject.service is not None:
        start = f"sudo systemctl start user@{subject.uid}.service"
        return fail("manager", f"no delivery can be started: {problem}", start)
    return ok("manager", f"none, so deliveries run beside the poller: {problem}")


def of_version(version: str, others: str) -> Finding:
    """`version` as the manager says it: `252.39-1~deb12u2`."""
    number = re.match(r"\d+", version.removeprefix("v"))
    detail = f"{others}, systemd {version or 'unknown'}"
    if number is None:
        return unknown("versions", detail, matters=False)
    if int(number[0]) < OLDEST:
        return fail("versions", f"{detail}: {OLDEST} or newer is needed")
    return ok("versions", detail)


async def _version(environ: Mapping[str, str]) -> str:
    manager = Manager(environ, limit_s=LIMIT_S)
    try:
        return await manager.version()
    finally:
        manager.close()


# --- the program ---


def examine_program(command: str, user: str) -> Iterator[Finding]:
    """Whether the poller's user can run the program that the unit names. `command`: of its `ExecStart=`."""
    words = _first_words(command)
    if not words:
        return
    program = Path(words[0])
    try:
        found = program.stat()
    except OSError as error:
        yield fail("program", f"'{program}': {explain(error)}", f"ls -l {shlex.quote(str(program))}")
        return
    if not os.access(program, os.X_OK) or not found.st_mode & 0o111:
        yield fail("program", f"'{program}' cannot be executed by '{user}'", f"ls -l {shlex.quote(str(program))}")
    else:
        yield ok("program", str(program))


def _first_words(command: str) -> list[str]:
    """The program: all up to its first word of ours, as a path may have blanks in it."""
    program = command.partition(" poll start")[0].removeprefix("/usr/bin/env ")
    return [program] if program else []


def hidden_by(places: Iterable[Path], service: Service | None) -> list[Path]:
    """Those of these paths that a system service does not see."""
    if service is None or service.is_of_user:
        return []
    return [Path(place) for place in unseen(map(str, places), [service.fragment])]
