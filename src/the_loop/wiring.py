"""From the configuration to the parts that run: sources, rules, policy, runner. The one place that knows them all."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Final

from the_loop import __version__
from the_loop.config import (
    BUILT_IN_SOURCES,
    Config,
    DirectorySection,
    GithubSection,
    Session,
    SourceSection,
    authorized_users,
    source_name,
)
from the_loop.core.guards import Rules, phrases
from the_loop.core.model import LoopError, Note
from the_loop.core.outcomes import Policy
from the_loop.cursors import Cursor, read_cursor
from the_loop.runners import printer
from the_loop.runners.exec import Command, ExecRunner
from the_loop.runners.units import find_units
from the_loop.sources.base import Source, SourceError
from the_loop.sources.directory import DirectorySource
from the_loop.sources.github.limits import RateLimiters
from the_loop.state import StateRoot
from the_loop.watched import Watched

THIRD_PARTY_SOURCES: Final = "the_loop.sources"

Factory = Callable[[SourceSection, Config, StateRoot, Mapping[str, str]], Source]


def providers() -> dict[str, type[SourceSection]]:
    """The configuration's shape for every provider: ours, and those of third parties.

    An entry point of the group `the_loop.sources` names an object with `Section` (a `SourceSection`) and
    `build(section, config, root, environ)`, which returns a `Source`.
    """
    found = dict(BUILT_IN_SOURCES)
    for point in entry_points(group=THIRD_PARTY_SOURCES):
        found.setdefault(point.name, point.load().Section)
    return found


def state_root(option: str | None, config: Config | None, environ: Mapping[str, str]) -> StateRoot:
    """Where the state lives: option, configuration, environment, then the place for this user."""
    configured = config.state.root if config is not None else None
    named = option or configured or environ.get("THE_LOOP_STATE_ROOT")
    return StateRoot(Path(os.path.realpath(Path(named).expanduser() if named else _default_root(environ))))


def watch(config: Config, root: StateRoot, environ: Mapping[str, str]) -> list[Watched]:
    """Every configured source with its rules and where it left off."""
    cursors = {source_name(one): read_cursor(root, source_name(one)) for one in config.polling.sources}
    site = _Site(config, root, environ, _limiters(config, cursors, environ))
    watched = []
    for section in config.polling.sources:
        cursor = cursors[source_name(section)]
        source = _source(section, site, cursor)
        wait = cursor.wait
        wait_s = wait.remaining_s(time.time()) if wait is not None else 0.0
        error = wait.reason if wait is not None and wait_s > 0 else ""
        rules = _rules(config, section, source)
        watched.append(Watched(source, rules, cursor, error, wait_ends_s=time.monotonic() + wait_s))
    return watched


def policy(config: Config) -> Policy:
    return Policy(
        max_retries=config.polling.max_retries,
        interval_s=config.polling.interval_seconds,
        holds_uncertain=config.session.on_uncertain == "hold",
        version=__version__,
        reports_give_ups=config.polling.report_give_ups,
    )


def runner(config: Config, root: StateRoot, environ: Mapping[str, str], tell: Callable[[Note], None]) -> ExecRunner:
    """What events are handed to. The printing runner is a command like any other, with our own output."""
    prints = config.session.runner == "print"
    argv = (sys.executable, "-I", "-S", str(Path(printer.__file__))) if prints else config.session.command
    command = Command(
        argv=argv,
        workdir=_workdir(config.session, environ),
        limit_s=config.routing.dispatch_timeout_seconds,
        environment=environ,
        output=None if prints else root.logs / "output.log",
    )
    units = None if prints else find_units(root.path, environ)
    if units is None and not prints:
        tell(Note("dispatch.no_manager", {"reason": "this user has no service manager"}))
    return ExecRunner(command, units, tell)


@dataclass(frozen=True, slots=True)
class _Site:
    """What sources are built from, beside their own section."""

    config: Config
    root: StateRoot
    environ: Mapping[str, str]
    limiters: RateLimiters


def _source(section: SourceSection, site: _Site, cursor: Cursor) -> Source:
    if isinstance(section, DirectorySection):
        return _directory(section, site.config, site.root)
    if isinstance(section, GithubSection):
        return _github(section, site, cursor)
    for point in entry_points(group=THIRD_PARTY_SOURCES, name=section.provider):
        built: Source = point.load().build(section, site.config, site.root, site.environ)
        return built
    raise LoopError(f"no source for provider '{section.provider}'")


def _directory(section: DirectorySection, config: Config, root: StateRoot) -> DirectorySource:
    path = Path(section.path).expanduser()
    return DirectorySource(
        source_name(section),
        root.path / path,
        settle_s=section.settle_seconds,
        authorized=authorized_users(config, section),
        is_ours=not path.is_absolute(),
    )


def _limiters(config: Config, cursors: Mapping[str, Cursor], environ: Mapping[str, str]) -> RateLimiters:
    """One clock for each token, whoever uses it: a limit that one source met before is in force for all of them."""
    limiters = RateLimiters(time.monotonic)
    for section in config.polling.sources:
        wait = cursors[source_name(section)].wait
        if isinstance(section, GithubSection) and wait is not None:
            with suppress(SourceError):
                limiter = limiters.of(section.api_url, github_token(section, environ))
                limiter.resume(wait.remaining_s(time.time()), wait.seconds)
    return limiters


def _github(section: GithubSection, site: _Site, cursor: Cursor) -> Source:
    # an HTTP client takes longer to load than everything else together: only who needs it pays for it
    from the_loop.sources.github.client import Client
    from the_loop.sources.github.repositories import Repositories
    from the_loop.sources.github.source import GithubSource

    client = Client(
        section.api_url,
        lambda: github_token(section, site.environ),
        now=time.time,
        limiters=site.limiters,
        api_version=section.api_version,
    )
    repositories = Repositories(site.root.repositories)
    return GithubSource(
        section,
        client,
        repositories,
        linger_s=site.config.polling.linger_seconds,
        cursor=cursor.value,
    )


def github_token(section: GithubSection, environ: Mapping[str, str]) -> str | None:
    """The token as it is right now: the credential, else the file, else `$GITHUB_TOKEN`; None for none at all.

    Raises SourceError where one is named and cannot be read: that is not the same as none.
    """
    credentials = environ.get("CREDENTIALS_DIRECTORY")
    path = None
    if section.credential and credentials:
        path = Path(credentials) / section.credential
    elif section.token_file:
        path = Path(section.token_file).expanduser()
    if path is None:
        given = environ.get("GITHUB_TOKEN", "")
        return _checked_token(given, "$GITHUB_TOKEN") if given else None
    try:
        token = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        cause = error.strerror if isinstance(error, OSError) else "it is not ASCII"
        raise SourceError(
            f"cannot read the token in '{path}': {cause}", "it has to be there, and readable by this user"
        ) from error
    return _checked_token(token, f"'{path}'")


def _checked_token(text: str, place: str) -> str:
    """The token without what stands around it. No message ever quotes it: neither ours nor a library's."""
    if not text.isascii():
        raise SourceError(f"cannot read the token in {place}: it is not ASCII")
    token = text.strip()
    if not token or not token.isprintable() or " " in token:
        raise SourceError(f"the token in {place} is empty or more than one line")
    return token


def _rules(config: Config, section: SourceSection, source: Source) -> Rules:
    people = authorized_users(config, section)
    words = config.routing.control
    return Rules(
        authorized=frozenset(name.casefold() for name in people) if source.folds_case else people,
        folds_case=source.folds_case,
        words=phrases(words.start, words.stop, words.pause, words.resume),
        require_start=config.routing.require_start_command,
    )


def _workdir(session: Session, environ: Mapping[str, str]) -> Path:
    return Path(session.workdir or environ.get("HOME") or "/").expanduser()


def _default_root(environ: Mapping[str, str]) -> Path:
    shared = Path("/var/lib/the-loop")
    if os.geteuid() == 0 or _owns(shared):
        return shared
    home = environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(home) / "the-loop"


def _owns(path: Path) -> bool:
    try:
        return path.stat().st_uid == os.geteuid()
    except OSError:
        return False
