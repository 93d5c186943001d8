"""From the configuration to the parts that run: sources, rules, policy, runner."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from the_loop import __version__
from the_loop.config import (
    Config,
    Session,
    SourceSection,
    authorized_users,
    login_and_id,
    session_of,
    sessions_of,
    source_name,
    with_labels,
)
from the_loop.core.guards import Rules, phrases
from the_loop.core.model import Kind, LoopError, Note, explain
from the_loop.core.outcomes import Policy
from the_loop.cursors import Cursor, recover_cursor
from the_loop.plugins import RUNNERS, SOURCES
from the_loop.receivers import Place, Receivers
from the_loop.runners.base import Runner, RunnerSite
from the_loop.sources.base import Source, SourceSite
from the_loop.state import StateRoot
from the_loop.watched import Watched

if TYPE_CHECKING:
    from the_loop.clocks import Clock
    from the_loop.sources.limits import RateLimiters


def state_root(option: str | None, config: Config | None, environ: Mapping[str, str]) -> StateRoot:
    """Where the state lives: option, configuration, environment, then the place for this user."""
    configured = config.state.root if config is not None else None
    named = option or configured or environ.get("THE_LOOP_STATE_ROOT")
    return StateRoot(Path(os.path.realpath(Path(named).expanduser() if named else _default_root(environ))))


def watch(
    config: Config,
    section: SourceSection,
    root: StateRoot,
    environ: Mapping[str, str],
    *,
    clock: Clock,
    limiters: RateLimiters,
    tell: Callable[[Note], None],
    once: bool = False,
    takeover: bool = False,
) -> Watched:
    """One configured source with its rules and its cursor. Raises LoopError. `tell` gets a cursor that is lost."""
    cursor, problem = recover_cursor(root, source_name(section))
    if problem:
        reason = f"cannot use its cursor, so everything is read again: {problem}"
        tell(Note("source.failed", {"source": source_name(section), "reason": reason}))
    site = _site(config, section, root, environ, cursor=cursor, limiters=limiters, now=clock.now())
    site = replace(site, tell=tell, waits=not once, takes_over=takeover)
    source = _source(section, site)
    error = cursor.wait.reason if cursor.wait is not None and site.wait_left_s > 0 else ""
    return Watched(
        source, _rules(config, section, source), cursor, error, wait_ends_s=clock.uptime() + site.wait_left_s
    )


def interval_s(config: Config, section: SourceSection) -> float:
    """Seconds between two cycles of this source."""
    return section.interval_seconds or config.polling.interval_seconds


def shape(config: Config, section: SourceSection) -> tuple[object, ...]:
    """What a source is built from: while it is equal, a reload leaves the source as it is."""
    rebuilt = msgspec.structs.replace(section, interval_seconds=None, session=None)
    routing = config.routing
    people = authorized_users(config, section)
    session = session_of(config, section)
    served = (session.kinds, session.on_uncertain, session.trust_labels, tuple(session.by_label or ()))
    return rebuilt, people, config.polling.linger_seconds, routing.control, routing.require_start_command, served


def policy(config: Config) -> Policy:
    return Policy(
        max_retries=config.polling.max_retries,
        interval_s=config.polling.interval_seconds,
        holds_uncertain=config.session.on_uncertain == "hold",
        version=__version__,
        reports_give_ups=config.polling.report_give_ups,
        events_per_hour=config.routing.max_events_per_item_per_hour,
    )


def runner(
    config: Config,
    root: StateRoot,
    environ: Mapping[str, str],
    tell: Callable[[Note], None],
    place_of: Callable[[str], Place] = lambda _: Place("", ""),
) -> Runner:
    """What events are handed to. `place_of`: where the receiver of an item is written. Raises LoopError."""
    names = {f"polling.sources[{at}].session": source_name(one) for at, one in enumerate(config.polling.sources)}
    told: set[str] = set()

    def tell_once(note: Note) -> None:
        """What the runners find out at their making is the same for all."""
        if note.name not in told:
            told.add(note.name)
            tell(note)

    runners: dict[Place, Runner] = {}
    sessions = sessions_of(config)
    is_single = len(with_labels(sessions)) == 1
    for path, session in sessions.items():
        for label, one in {"": session, **(session.by_label or {})}.items():
            place = Place(names.get(path, ""), label)
            runners[place] = _runner(config, one, root, environ, tell if is_single else tell_once)
    return next(iter(runners.values())) if is_single else Receivers(runners, place_of)


def _runner(
    config: Config, session: Session, root: StateRoot, environ: Mapping[str, str], tell: Callable[[Note], None]
) -> Runner:
    site = RunnerSite(
        root=root.path,
        folder=root.runner_folder(session.runner),
        environ=environ,
        limit_s=config.routing.dispatch_timeout_seconds,
        tell=tell,
    )
    provider = RUNNERS.get(session.runner)
    try:
        return provider.build(session, site)
    except Exception as error:
        raise LoopError(f"cannot make the runner '{session.runner}': {explain(error)}") from error


def _site(
    config: Config,
    section: SourceSection,
    root: StateRoot,
    environ: Mapping[str, str],
    *,
    cursor: Cursor,
    limiters: RateLimiters,
    now: float,
) -> SourceSite:
    name, wait = source_name(section), cursor.wait
    return SourceSite(
        name=name,
        root=root.path,
        folder=root.source_folder(name),
        environ=environ,
        authorized=authorized_users(config, section),
        linger_s=config.polling.linger_seconds,
        limiters=limiters,
        cursor=cursor.value,
        wait_s=wait.seconds if wait is not None else 0.0,
        wait_left_s=wait.remaining_s(now) if wait is not None else 0.0,
    )


def _source(section: SourceSection, site: SourceSite) -> Source:
    provider = SOURCES.get(section.provider)
    try:
        return provider.build(section, site)
    except Exception as error:
        raise LoopError(f"cannot make the source '{site.name}': {explain(error)}") from error


def _rules(config: Config, section: SourceSection, source: Source) -> Rules:
    people, session = authorized_users(config, section), session_of(config, section)
    pins = getattr(source, "pins", None)  # of a source whose authors have numbers
    if pins is not None:
        people = frozenset(login_and_id(name)[0] for name in people)
    words = config.routing.control
    return Rules(
        authorized=frozenset(name.casefold() for name in people) if source.folds_case else people,
        folds_case=source.folds_case,
        words={**getattr(source, "words", {}), **phrases(words.start, words.stop, words.pause, words.resume)},
        require_start=config.routing.require_start_command,
        pins={} if pins is None else pins,
        kinds=frozenset(map(Kind, session.kinds)),
        receivers=tuple(session.by_label or ()),
        trusts_labels=session.trust_labels,
        holds_uncertain=session.on_uncertain == "hold",
    )


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
