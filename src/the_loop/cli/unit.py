"""`the-loop unit`: install, remove and show the systemd unit files."""

from __future__ import annotations

import functools
import os
import pwd
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import click

from the_loop.cli.common import Options, with_options
from the_loop.cli.completion import instances
from the_loop.cli.help import examples
from the_loop.config import ConfigError
from the_loop.config_file import find_file, misnamed, parse
from the_loop.core.model import LoopError, printable
from the_loop.eventlog import say
from the_loop.subprocesses import Finished, manager_environment, run_blocking
from the_loop.supervision.install import (
    MARK,
    METRICS,
    NOTHING_NAMED,
    SLICE,
    Named,
    is_ours,
    manager_drop_in,
    quoted,
    shipped,
    template_name,
    unit_texts,
    write_all,
)
from the_loop.supervision.surroundings import HIDDEN, mend_of_owners, unseen, user_units_folder, verify

_SYSTEM_UNITS = Path("/etc/systemd/system")
_USER_UNITS = Path("/etc/systemd/user")
_SYSTEM_USER = "the-loop"
_SYSTEM_ROOT = "/var/lib/the-loop"
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
            shell_complete=instances,
            help="Use the instance that NAME.yaml configures.",
        ),
        click.option("--system", "is_system", is_flag=True, help="Use the system service manager."),
        click.option("--user", "is_user", is_flag=True, help="Use your own service manager (default unless root)."),
    ):
        function = option(function)
    return function


_metrics_option = click.option(
    "--metrics",
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False, resolve_path=True),
    help="Also the units that write metrics for node_exporter into DIR.",
)


_path_option = click.option(
    "--path", "carries_path", is_flag=True, help="Have deliveries use the PATH of this call, as far as it is safe."
)


@command.command(epilog=examples("the-loop unit install --user", "the-loop unit install --user --name bot --timer"))
@click.option("--timer", is_flag=True, help="Print how to enable the timer instead of the service.")
@_path_option
@_metrics_option
@_kind
@with_options
def install(
    options: Options,
    *,
    timer: bool,
    carries_path: bool,
    metrics: str | None,
    is_user: bool,
    is_system: bool,
    name: str | None,
) -> None:
    """Install the unit files and print the next steps."""
    for_user = _is_for_user(is_user=is_user, is_system=is_system)
    if not for_user and os.geteuid() != 0:
        raise LoopError("cannot install system units: you are not root", "use --user, or run the command as root")
    path = _search_path(for_user=for_user) if carries_path else None
    named = replace(_named(options, for_user=for_user, name=name), metrics=metrics, path=path)
    texts = {_path(file, for_user=for_user): text for file, text in _texts(for_user, name, named).items()}
    services = [file for file in texts if file.suffix == ".service"]
    if not for_user:
        _refuse_hidden(named, services)
        _prepare_system()
        uid = pwd.getpwnam(_SYSTEM_USER).pw_uid
        for file in services:
            if file.name.startswith("the-loop-metrics"):
                continue  # it needs no manager for deliveries
            texts[file.with_name(f"{file.name}.d") / "10-manager.conf"] = manager_drop_in(uid)
    for line in write_all(texts):
        print(line)
    _systemctl(for_user, "daemon-reload")
    config = named.config or _config_path(for_user, name)
    _warn_of_hidden_homes(config, for_user=for_user)
    is_good, said = verify([_named_as(file, name) for file in texts if file.suffix != ".conf"], is_user=for_user)
    for line in said:
        say(f"the-loop: {line}")
    lacks = _what_a_user_lacks() if for_user else _what_the_service_lacks(named, name)
    _tell_next(config, _instance("the-loop-poll-once.timer" if timer else "the-loop-poll.service", name), for_user)
    if metrics is not None:
        print(f"next: run `{_words(for_user)} enable --now {_instance('the-loop-metrics.timer', name)}`")
        lacks += _what_metrics_lack(metrics, for_user=for_user)
    for line in lacks:
        say(f"the-loop: NOT COMPLETE: {line}")
    if not is_good or (lacks and not for_user):
        click.get_current_context().exit(1)


def _named(options: Options, *, for_user: bool, name: str | None) -> Named:
    """What the units have to name. A user's units name what this call would use, a service only what options name.

    Raises click.UsageError: an instance names its own.
    """
    if name is not None:
        if options.config_file or options.state_root:
            raise click.UsageError(
                f"--name contradicts --config and --state-root: the instance reads {_config_path(for_user, name)} and "
                "has a state root of its own; name another one there, as state.root"
            )
        return Named()
    file = find_file(options.config_file, os.environ) if for_user or options.config_file else None
    is_default = file is not None and file == Path(_config_path(for_user, name)).expanduser()
    root = options.state_root or (os.environ.get("THE_LOOP_STATE_ROOT") if for_user else None)
    return Named(
        None if file is None or is_default else str(file.absolute()),
        str(Path(root).absolute()) if root else None,
        is_root_given=options.state_root is not None,
    )


def _search_path(*, for_user: bool) -> str:
    """The PATH of this call for deliveries, which run as this user or as the service's. Says what is left out.

    Raises LoopError if nothing is left.
    """
    from the_loop.supervision.search_path import safe_path

    uid = os.geteuid()
    if not for_user:
        with suppress(KeyError):  # it is made by the installation, and owns nothing before
            uid = pwd.getpwnam(_SYSTEM_USER).pw_uid
    found = safe_path(os.environ.get("PATH", ""), uid)
    for entry, problem in found.dropped:
        say(f"the-loop: not in the path of deliveries: '{printable(entry)}' ({printable(problem)})")
    if not found.kept:
        raise LoopError("no entry of PATH can be used for deliveries", "set PATH, or leave --path out")
    say(f"the-loop: path of deliveries: {found}")
    return str(found)


def _tell_next(config: str, unit: str, for_user: bool) -> None:  # noqa: FBT001 (one of two managers)
    enable = f"run `{_words(for_user)} enable --now {unit}`"
    path = Path(config).expanduser()
    if os.path.lexists(path):
        print(f"next: {enable}")
        return
    if (beside := misnamed(path)) is not None:
        say(f"the-loop: '{beside}' is not read (run `mv {shlex.quote(str(beside))} {shlex.quote(str(path))}`)")
    print(f"next: write {config} (the units do not start without it), then {enable}")


def _words(for_user: bool) -> str:  # noqa: FBT001 (one of two managers)
    return "systemctl --user" if for_user else "systemctl"


def _what_metrics_lack(folder: str, *, for_user: bool) -> list[str]:
    """That the file cannot be put there. The service's user is asked, as only the kernel knows all rules of access."""
    argv = ["test", "-w", folder]
    argv = argv if for_user else ["runuser", "-u", _SYSTEM_USER, "--", *argv]
    if run_blocking(argv, manager_environment(os.environ), limit_s=_CALL_LIMIT_S).is_good:
        return []
    where = shlex.quote(folder)
    mend = f"chmod u+w {where}" if for_user else f"chgrp {_SYSTEM_USER} {where} && chmod g+w {where}"
    return [f"the metrics cannot be written into '{folder}' (run `{mend}`)"]


def _named_as(file: Path, name: str | None) -> Path:
    """The path by which a unit file is verified: a template as its instance."""
    return file if name is None else file.with_name(file.name.replace("@.", f"@{name}."))


def _what_a_user_lacks() -> list[str]:
    if _lingers():
        return []
    call = f"loginctl enable-linger {pwd.getpwuid(os.geteuid()).pw_name}"
    return [f"lingering is off, so the poller and all sessions end at your last logout (run `{call}`)"]


def _what_the_service_lacks(named: Named, name: str | None) -> list[str]:
    """What lies in the state root and is not the service's, or that there is none where the options name it."""
    root = Path(named.root or (_SYSTEM_ROOT if name is None else f"{_SYSTEM_ROOT}-{name}"))
    try:
        mend = mend_of_owners(root, _SYSTEM_USER, pwd.getpwnam(_SYSTEM_USER).pw_uid)
    except FileNotFoundError:
        make = f"install -d -m 0700 -o {_SYSTEM_USER} -g {_SYSTEM_USER} {shlex.quote(str(root))}"
        return [f"there is no state root '{root}' (run `{make}`)"] if named.root else []
    except OSError as error:
        return [f"cannot find out who owns the files in '{root}': {error.strerror}"]
    return [f"files in '{root}' belong to others, the service cannot use them (run `{mend}`)"] if mend else []


@command.command(epilog=examples("the-loop unit uninstall --user --name bot"))
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
    metrics = [_path(file if name is None else template_name(file), for_user=for_user) for file in METRICS]
    files += [file for file in metrics if is_ours(file)]
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


@command.command(epilog=examples("the-loop unit show --system"))
@_path_option
@_metrics_option
@_kind
@with_options
def show(
    options: Options, *, carries_path: bool, metrics: str | None, is_user: bool, is_system: bool, name: str | None
) -> None:
    """Print the files that `unit install` would write."""
    for_user = _is_for_user(is_user=is_user, is_system=is_system)
    path = _search_path(for_user=for_user) if carries_path else None
    named = replace(_named(options, for_user=for_user, name=name), metrics=metrics, path=path)
    for file, text in _texts(for_user, name, named).items():
        print(f"# {_path(file, for_user=for_user)}\n{text}")


def _texts(for_user: bool, name: str | None, named: Named = NOTHING_NAMED) -> dict[str, str]:  # noqa: FBT001
    return unit_texts(_bindir(), is_user=for_user, name=name, named=named)


def _is_for_user(*, is_user: bool, is_system: bool) -> bool:
    if is_user and is_system:
        raise click.UsageError("--user and --system contradict each other")
    return is_user or (not is_system and os.geteuid() != 0)


@functools.cache
def _folder(for_user: bool) -> Path:  # noqa: FBT001 (one of two managers)
    if not for_user:
        return _SYSTEM_UNITS
    return user_units_folder(os.environ)


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


def _refuse_hidden(named: Named, services: Sequence[Path]) -> None:
    """Raise LoopError if the program, or what the options name, is where the service sees nothing."""
    places = [str(_bindir()), sys.prefix, sys.base_prefix, str(Path(__file__).resolve().parents[1])]
    hidden = unseen([*places, *(path for path in (named.config, named.root, named.metrics) if path)], services)
    if not hidden:
        return
    lines = " ".join(shlex.quote(f"BindReadOnlyPaths={quoted(place)}") for place in hidden)
    folders = " ".join(shlex.quote(f"{service}.d") for service in services)
    write = f"printf '%s\\n' '[Service]' {lines} > $dir/50-program.conf"
    show = f"for dir in {folders}; do mkdir -p $dir && {write}; done"
    raise LoopError(
        f"cannot install system units: the service sees nothing below {', '.join(HIDDEN)}, and there is: "
        f"{', '.join(hidden)}\n"
        "  install the program elsewhere: `python3 -m venv /opt/the-loop`, install it with `/opt/the-loop/bin/pip`, "
        "and run `/opt/the-loop/bin/the-loop unit install --system`\n"
        f"  or, if everybody may read these directories, show them to the service: `{show}`"
    )


def _warn_of_hidden_homes(config_file: str, *, for_user: bool) -> None:
    """Warn about inboxes below a home directory: `ProtectHome=` hides them from the system service."""
    if for_user:
        return
    from the_loop.sources.directory_provider import DirectorySection

    try:
        sections = parse(Path(config_file).read_bytes(), config_file).polling.sources
    except (ConfigError, OSError):
        return
    for section in sections:
        if isinstance(section, DirectorySection) and section.path.startswith((*HIDDEN, "~")):
            say(
                f"the-loop: the system service cannot see '{section.path}' "
                "(add `BindPaths=` with it in `systemctl edit the-loop-poll.service`)"
            )
