"""All that is examined about one poller, as its user: what each part is given, and what holds for all of them.

Nothing is changed: no file is made in the state root, and locks are only probed.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from the_loop import wiring
from the_loop.config import (
    Config,
    ConfigError,
    Loaded,
    SourceSection,
    authorized_users,
    names_below,
    sessions_of,
    source_name,
    with_labels,
)
from the_loop.config_file import doubts, find_file, load, peek_root
from the_loop.cursors import UnusableCursor, read_cursor
from the_loop.doctor.logs import examine_logs
from the_loop.doctor.parts import Part
from the_loop.doctor.service import (
    examine_files,
    examine_lingering,
    examine_manager,
    examine_poller,
    examine_program,
    hidden_by,
)
from the_loop.doctor.storage import examine_root
from the_loop.doctor.subject import Subject
from the_loop.findings import Finding, Site, fail, ok, unknown, warn
from the_loop.lock import Probe, Sight, look
from the_loop.plugins import RUNNERS, SOURCES, Registry
from the_loop.state import PIDFILE, StateRoot

LIMIT_S: Final = 10.0  # for each part; they are examined at once


@dataclass(frozen=True, slots=True)
class Case:
    """One poller with its configuration and state root; None: unknown."""

    subject: Subject
    configuration: list[Finding]
    loaded: Loaded | None
    root: StateRoot | None
    sight: Sight


def case_of(subject: Subject) -> Case:
    """Read its configuration; to be called as the poller's user."""
    found, loaded = _configuration(subject)
    root = _root(subject, loaded)
    sight = look(root.path, PIDFILE) if root is not None else Sight(Probe.UNKNOWN, cause="the state root is unknown")
    return Case(subject, found, loaded, root, sight)


def parts_of(case: Case) -> list[Part]:
    """What is to be examined."""
    return [
        Part("configuration", lambda: case.configuration),
        *_of_unit(case),
        Part("poller", lambda: examine_poller(case.subject, case.sight, case.root)),
        *_of_root(case),
        Part("manager", lambda: examine_manager(case.subject)),
        *sections_of(case),
    ]


# --- the configuration ---


def _configuration(subject: Subject) -> tuple[list[Finding], Loaded | None]:
    """What there is to say about the file in force, and its content if it is valid."""
    name = "configuration"
    file = find_file(subject.config_file, subject.environ)
    if file is None and subject.service is not None:
        return [fail(name, "none, and a unit does not run on the built-in default", "the-loop unit install")], None
    try:
        loaded = load(file)
    except ConfigError as error:
        return [fail(name, f"'{error.file}': {fault}", "the-loop config check") for fault in error.faults], None
    if file is None:
        detail = "none: the built-in default prints items of `inbox` in the state root; write a file"
        return [warn(name, detail, "${EDITOR:-vi} ~/.config/the-loop/config.yaml")], loaded
    if hidden_by([file], subject.service):
        detail = f"the service does not see '{file}'; move it below /etc/the-loop"
        return [fail(name, detail, f"the-loop unit install --system --config /etc/the-loop/{file.name}")], loaded
    sources = len(loaded.config.polling.sources)
    count = "1 source" if sources == 1 else f"{sources} sources"
    found = [ok(name, f"'{file}', valid, {count}"), *(warn(name, str(doubt)) for doubt in doubts(loaded.config))]
    return [*found, *_other_file(subject, file)], loaded


def _other_file(subject: Subject, file: Path) -> Iterator[Finding]:
    """A file that a start in the caller's shell would read, while the unit without an instance reads another."""
    service, in_shell = subject.service, find_file(None, subject.shell)
    if service is None or not service.is_of_user or "@" in service.unit.name or in_shell is None:
        return
    is_what_the_unit_names = subject.config_file == service.option("--config")
    if is_what_the_unit_names and os.path.lexists(in_shell) and in_shell.resolve() != file.resolve():
        detail = f"'{in_shell}', which this shell leads to, is not what the unit reads"
        yield warn("configuration", detail, f"the-loop unit install --config {shlex.quote(str(in_shell))}")


def _root(subject: Subject, loaded: Loaded | None) -> StateRoot | None:
    """The state root; None if that would be in a configuration that is not valid."""
    if loaded is not None:
        root = wiring.state_root(subject.state_root, loaded.config, subject.environ)
        return replace(root, guests=root.guests | names_below(root.path, loaded.config, loaded.file))
    if subject.state_root is None and subject.service is None:
        return None
    try:
        configured = peek_root(find_file(subject.config_file, subject.environ))
    except ConfigError:
        configured = None
        if subject.state_root is None:
            return None
    return wiring.state_root(subject.state_root or configured, None, subject.environ)


# --- the parts ---


def _of_unit(case: Case) -> Iterator[Part]:
    service = case.subject.service
    for problem in case.subject.unasked:
        yield Part("unit", lambda problem=problem: [unknown("unit", problem)])  # type: ignore[misc]
    user = case.subject.user
    if service is None and case.subject.unasked:
        yield Part("lingering", lambda: examine_lingering(user, is_poller_in_it=True))
    if service is None:
        return
    yield Part("program", lambda: examine_program(service.command, user))
    yield Part("unit files", lambda: examine_files(service))
    yield Part("lingering", lambda: examine_lingering(user, is_poller_in_it=service.is_of_user))


def _of_root(case: Case) -> Iterator[Part]:
    root, subject = case.root, case.subject
    if root is None:
        detail = "unknown, as the configuration is not valid; name it with --state-root"
        yield Part("state root", lambda: [unknown("state root", detail)])
        return
    yield Part("state root", lambda: examine_root(root, subject.user))
    is_unit, is_running = subject.service is not None, case.sight.probe is Probe.HELD
    yield Part("event log", lambda: examine_logs(root, subject.user, is_unit=is_unit, is_running=is_running))


def sections_of(case: Case) -> Iterator[Part]:
    """A part for each source, and one for the runner: what the file itself is about."""
    if case.loaded is None or case.root is None:
        yield Part("sources", lambda: [unknown("sources", "not examined, as the configuration is not valid")])
        return
    config, root, site = case.loaded.config, case.root, _site(case, case.loaded, case.root)
    for section in config.polling.sources:
        name = f"source {source_name(section)}"
        yield Part(name, partial(_of_source, config, section, root, site, name))
    for path, session in with_labels(sessions_of(config)).items():
        name = "receiver" if path == "session" else f"receiver {path}"
        yield Part(name, partial(_examined, RUNNERS, session.runner, session, site, name))


def _of_source(config: Config, section: SourceSection, root: StateRoot, site: Site, name: str) -> Iterator[Finding]:
    here = _source_site(config, section, root, site)
    yield from _examined(SOURCES, section.provider, section, here, name)
    if not here.authorized:
        yield fail(name, "no user is authorised, so it is not read; write them into `routing.authorizedUsers`")


def _examined(registry: Registry[Any], provider: str, section: object, site: Site, prefix: str) -> Iterator[Finding]:
    """What the provider's `examine` finds, its names behind `prefix`."""
    ask = getattr(registry.get(provider), "examine", None)
    if ask is None:
        yield unknown(prefix, f"the provider '{provider}' cannot examine it", matters=False)
        return
    for finding in ask(section, site):
        yield replace(finding, name=f"{prefix}: {finding.name}" if finding.name else prefix)


def _site(case: Case, loaded: Loaded, root: StateRoot) -> Site:
    subject = case.subject
    service = subject.service
    return Site(
        root=root.path,
        environ=subject.environ,
        shell=subject.shell,
        user=subject.user,
        limit_s=LIMIT_S,
        hides=lambda path: bool(hidden_by([path], service)),
        config=loaded.file.absolute() if loaded.file is not None else None,
        edit=service.type("edit") if service is not None else "",
    )


def _source_site(config: Config, section: SourceSection, root: StateRoot, site: Site) -> Site:
    cursor = None
    with suppress(OSError, UnusableCursor):  # said by `poll status`; without it less can be compared
        cursor = read_cursor(root, source_name(section)).value
    return replace(
        site,
        name=source_name(section),
        authorized=authorized_users(config, section),
        is_written_to=config.polling.report_give_ups,
        cursor=cursor,
    )
