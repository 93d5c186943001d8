"""`the-loop unit`: install, remove and show the systemd unit files."""

from __future__ import annotations

import os
import pwd
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import click

from the_loop.cli.common import Options, with_options
from the_loop.config import ConfigError
from the_loop.config_file import load
from the_loop.core.model import LoopError
from the_loop.eventlog import say
from the_loop.subprocesses import Finished, manager_environment, run_blocking
from the_loop.supervision.install import MARK, SLICE, is_ours, manager_drop_in, shipped, unit_texts, write_all

_SYSTEM_UNITS = Path("/etc/systemd/system")
_USER_UNITS = Path("/etc/systemd/user")
_SYSTEM_USER = "the-loop"
_HIDDEN = ("/home/", "/root/", "/run/user/", "/tmp/", "/var/tmp/")  # noqa: S108 (a program must not be there)
_SYSTEM_FILES = {
    Path("/etc/sysusers.d/the-loop.conf"): "the-loop.sysusers",
    Path("/etc/tmpfiles.d/the-loop.conf"): "the-loop.tmpfiles",
    Path("/usr/local/lib/systemd/catalog/the-loop.catalog"): "the-loop.catalog",
}
_CALL_LIMIT_S = 30.0


@click.group("unit")
def command() -> None:
    """Install, remove and show the systemd unit files."""


def _checked(_ctx: click.Context, _option: click.Parameter, name: str | None) -> str | None:
    """The name of an instance, which becomes part of unit names and paths. Raises click.BadParameter."""
    if name is not None and not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,99}", name):
        raise click.BadParameter(f"'{name}' is not a valid instance name; use letters, digits and _ . : -")
    return name


F = TypeVar("F", bound=Callable[..., object])


def _kind(function: F) -> F:
    """Add the options that select the service manager and the instance."""
    for option in (
        click.option(
            "--name",
            metavar="NAME",
            callback=_checked,
            help="Use the instance that NAME.yaml configures.",
        ),
        click.option("--system", "is_system", is_flag=True, help="Use the system service manager."),
        click.option("--user", "is_user", is_flag=True, help="Use your own service manager (default unless root)."),
    ):
        function = option(function)
    return function


@command.command()
@click.option("--timer", is_flag=True, help="Print how to enable the timer instead of the service.")
@_kind
@with_options
def install(options: Options, *, timer: bool, is_user: bool, is_system: bool, name: str | None) -> None:
    """Install the unit files and print the next steps."""
    for_user = _is_for_user(is_user=is_user, is_system=is_system)
    if not for_user and os.geteuid() != 0:
        raise LoopError("cannot install system units: you are not root", "use --user, or run the command as root")
    texts = {_path(file, for_user=for_user): text for file, text in _texts(for_user, name).items()}
    if not for_user:
        _prepare_system()
        _warn_of_hidden_program()
        uid = pwd.getpwnam(_SYSTEM_USER).pw_uid
        for file in list(texts):
            if file.suffix == ".service":
                texts[file.with_name(f"{file.name}.d") / "10-manager.conf"] = manager_drop_in(uid)
    for line in write_all(texts):
        print(line)
    _systemctl(for_user, "daemon-reload")
    _warn_of_hidden_homes(options.config_file or _config_path(for_user, name), for_user=for_user)
    is_complete = not for_user or _lingers()
    main = _instance("the-loop-poll-once.timer" if timer else "the-loop-poll.service", name)
    words = "systemctl --user" if for_user else "systemctl"
    print(f"next: write {_config_path(for_user, name)}, then run `{words} enable --now {main}`")
    if not is_complete:
        user = pwd.getpwuid(os.geteuid()).pw_name
        say(
            f"the-loop: NOT COMPLETE: lingering is off, so the poller and all sessions end at your last logout "
            f"(run `loginctl enable-linger {user}`)"
        )


@command.command()
@_kind
@with_options
def uninstall(_options: Options, *, is_user: bool, is_system: bool, name: str | None) -> None:
    """Stop and disable the units and remove their files.

    State and configuration are kept.
    """
    for_user = _is_for_user(is_user=is_user, is_system=is_system)
    if not for_user and os.geteuid() != 0:
        raise LoopError("cannot remove system units: you are not root", "use --user, or run the command as root")
    files = [_path(file, for_user=for_user) for file in _texts(for_user, name)]
    units = [_instance(file.name.replace("@", ""), name) for file in files if file.name != SLICE]
    _systemctl(for_user, "disable", "--now", "--quiet", "--", *units)
    _systemctl(for_user, "clean", "--what=runtime", "--", *(unit for unit in units if unit.endswith(".service")))
    with suppress(OSError):  # another instance may have its directory in it
        Path(f"/run/user/{os.geteuid()}/the-loop" if for_user else "/run/the-loop").rmdir()
    files += [file.with_name(f"{file.name}.d") / "10-manager.conf" for file in files]
    files = [file for file in files if not _is_needed_elsewhere(file, name, for_user=for_user)]
    if not for_user and not set(_folder(for_user).glob("the-loop-poll*.service")) - set(files):
        files += _SYSTEM_FILES  # no other unit of ours is left
    for file in files:
        if is_ours(file):
            file.unlink()
            print(f"removed {file}")
            if file.parent.name.endswith(".d") and not any(file.parent.iterdir()):
                file.parent.rmdir()
    _systemctl(for_user, "daemon-reload")


def _is_needed_elsewhere(file: Path, name: str | None, *, for_user: bool) -> bool:
    """True for the slice while other units of ours are installed, and for templates that other instances use."""
    if name is not None and _other_instances(name, for_user=for_user):
        return True
    installed = [other.name for other in _folder(for_user).glob("the-loop-poll*.service")]
    return file.name == SLICE and any(("@" in other) != (name is not None) for other in installed)


def _other_instances(name: str, *, for_user: bool) -> list[str]:
    """Instances, apart from this one, that the manager has enabled or running."""
    listed = _systemctl(for_user, "list-units", "--plain", "--no-legend", "--", "the-loop-poll*@*").out
    listed += "\n" + _systemctl(for_user, "list-unit-files", "--plain", "--no-legend", "--", "the-loop-poll*@*").out
    names = {line.split()[0] for line in listed.splitlines() if line.split()}
    return [unit for unit in names if f"@{name}." not in unit and "@." not in unit]


@command.command()
@_kind
@with_options
def show(_options: Options, *, is_user: bool, is_system: bool, name: str | None) -> None:
    """Print the files that `unit install` would write."""
    for_user = _is_for_user(is_user=is_user, is_system=is_system)
    for file, text in _texts(for_user, name).items():
        print(f"# {_path(file, for_user=for_user)}\n{text}")


def _texts(for_user: bool, name: str | None) -> dict[str, str]:  # noqa: FBT001 (one of two managers)
    return unit_texts(_bindir(), is_user=for_user, name=name)


def _is_for_user(*, is_user: bool, is_system: bool) -> bool:
    if is_user and is_system:
        raise click.UsageError("--user and --system contradict each other")
    return is_user or (not is_system and os.geteuid() != 0)


def _folder(for_user: bool) -> Path:  # noqa: FBT001 (one of two managers)
    if not for_user:
        return _SYSTEM_UNITS
    home = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(home) / "systemd" / "user"


def _path(file: str, *, for_user: bool) -> Path:
    """Where a unit file is installed. The slice always belongs to a user manager, because deliveries run there."""
    return (_USER_UNITS if file == SLICE and not for_user else _folder(for_user)) / file


def _config_path(for_user: bool, name: str | None) -> str:  # noqa: FBT001 (one of two managers)
    folder = "~/.config/the-loop" if for_user else "/etc/the-loop"
    return f"{folder}/{name or 'config'}.yaml"


def _bindir() -> Path:
    """The directory of the `the-loop` command that was called; the units run it from there."""
    called = Path(sys.argv[0])
    return called.resolve().parent if called.name == "the-loop" else Path(sys.executable).parent


def _instance(unit: str, name: str | None) -> str:
    stem, _, kind = unit.rpartition(".")
    return unit if name is None else f"{stem}@{name}.{kind}"


def _systemctl(for_user: bool, *words: str) -> Finished:  # noqa: FBT001 (one of two managers)
    scope = "--user" if for_user else "--system"
    argv = ["systemctl", scope, "--no-ask-password", *words]
    finished = run_blocking(argv, manager_environment(os.environ), limit_s=_CALL_LIMIT_S)
    if not finished.is_good and words[0] == "daemon-reload":
        say(f"the-loop: {finished.problem} (run `systemctl {scope} daemon-reload` in a session of that manager)")
    return finished


def _prepare_system() -> None:
    """Set up the user of the service, its home directory, its lingering manager, and the message catalog."""
    for line in write_all({path: f"{MARK}\n{shipped(file)}" for path, file in _SYSTEM_FILES.items()}):
        print(line)
    calls: Sequence[Sequence[str]] = (
        ("systemd-sysusers", "the-loop.conf"),
        ("systemd-tmpfiles", "--create", "the-loop.conf"),
        ("journalctl", "--update-catalog"),
        ("loginctl", "enable-linger", _SYSTEM_USER),
    )
    for argv in calls:
        finished = run_blocking(argv, manager_environment(os.environ), limit_s=_CALL_LIMIT_S)
        if not finished.is_good:
            say(f"the-loop: {finished.problem}")


def _lingers() -> bool:
    argv = ["loginctl", "show-user", str(os.geteuid()), "--property=Linger", "--value"]
    return run_blocking(argv, manager_environment(os.environ), limit_s=_CALL_LIMIT_S).out == "yes"


def _warn_of_hidden_program() -> None:
    """Warn if the command is below a home directory: the system service cannot see it there."""
    places = {str(_bindir()), sys.prefix, sys.base_prefix, str(Path(__file__).resolve().parent)}
    for place in sorted(place for place in places if place.startswith(_HIDDEN)):
        say(f"the-loop: NOT COMPLETE: the system service cannot see '{place}' (install it outside /home and /tmp)")


def _warn_of_hidden_homes(config_file: str, *, for_user: bool) -> None:
    """Warn about inboxes below a home directory: `ProtectHome=` hides them from the system service."""
    if for_user:
        return
    from the_loop.sources.directory_provider import DirectorySection

    try:
        sections = load(Path(config_file)).config.polling.sources
    except ConfigError:
        return
    for section in sections:
        if isinstance(section, DirectorySection) and section.path.startswith((*_HIDDEN, "~")):
            say(
                f"the-loop: the system service cannot see '{section.path}' "
                "(add `BindPaths=` with it in `systemctl edit the-loop-poll.service`)"
            )
