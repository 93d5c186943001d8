"""What the operator may write: one YAML file, whose shape this is.

Names are those of the file; `Config` and the structures below it are frozen. What a provider has of its own is in a
section that derives from `SourceSection` or `Session`, and that the provider states itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct
from msgspec.structs import astuple

from the_loop.core.model import LoopError

Seconds = Annotated[int, Meta(ge=1, le=86_400)]
Name = Annotated[str, Meta(min_length=1, max_length=100)]
SourceName = Annotated[str, Meta(pattern=r"^[^/#:\x00-\x1f\x7f]+$", max_length=100)]
KindName = Literal["spawn", "comment", "review", "review_comment", "close"]
Phrase = Annotated[str, Meta(min_length=1, max_length=100)]


class Section(Struct, frozen=True, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """Base of every part of the file."""


class State(Section, frozen=True, kw_only=True):
    root: str | None = None


class SourceSection(Section, frozen=True, kw_only=True):
    """What every source has. Third parties derive from it."""

    provider: str
    name: SourceName | None = None
    interval_seconds: Seconds | None = None
    authorized_users: tuple[Name, ...] | None = None
    session: Session | None = None

    def default_name(self) -> str:
        return self.provider


class Polling(Section, frozen=True, kw_only=True):
    interval_seconds: Seconds = 60
    max_retries: Annotated[int, Meta(ge=1, le=100)] = 3
    linger_seconds: Annotated[int, Meta(ge=0, le=86_400)] = 180
    report_give_ups: bool = False
    sources: tuple[SourceSection, ...] = ()


class Control(Section, frozen=True, kw_only=True):
    start: Phrase = "the-loop start"
    stop: Phrase = "the-loop stop"
    pause: Phrase = "the-loop pause"
    resume: Phrase = "the-loop resume"


class Routing(Section, frozen=True, kw_only=True):
    authorized_users: tuple[Name, ...] = ()
    dispatch_timeout_seconds: Annotated[int, Meta(ge=1, le=604_800)] = 1800
    max_concurrent_dispatches: Annotated[int, Meta(ge=1, le=256)] = 4
    require_start_command: bool = False
    max_events_per_item_per_hour: Annotated[int, Meta(ge=0, le=10_000)] = 30
    control: Control = Control()


class Session(Section, frozen=True, kw_only=True):
    """What every runner has. Third parties derive from it."""

    runner: str = "exec"
    kinds: tuple[KindName, ...] = ("spawn", "comment", "review", "review_comment", "close")
    on_uncertain: Literal["redeliver", "hold"] = "redeliver"
    by_label: dict[str, Session] | None = None  # each whole: this section, with what the entry says instead
    trust_labels: bool = False


class Config(Section, frozen=True, kw_only=True):
    state: State = State()
    polling: Polling = Polling()
    routing: Routing = Routing()
    session: Session = Session()


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong in the file."""

    path: str
    problem: str
    line: int | None = None  # from 1; None if it is in no line of the file

    def __str__(self) -> str:
        text = f"{self.path}: {self.problem}" if self.path else self.problem
        return text if self.line is None else f"line {self.line}: {text}"


class ConfigError(LoopError):
    """The configuration is wrong; `faults` has every reason."""

    exit_code = 78

    def __init__(self, file: str, faults: list[Fault]) -> None:
        lines = "".join(f"\n  {fault}" for fault in faults)
        super().__init__(f"cannot use configuration '{file}':{lines}")
        self.file = file
        self.faults = faults

    @property
    def summary(self) -> str:
        """All of it on one line."""
        return f"'{self.file}': {'; '.join(map(str, self.faults))}"


@dataclass(frozen=True, slots=True)
class Loaded:
    """A valid configuration and where it came from; `file` is None for the embedded default."""

    config: Config
    file: Path | None


def source_name(section: SourceSection) -> str:
    return section.name or section.default_name()


def session_of(config: Config, section: SourceSection) -> Session:
    """Who gets the events of this source."""
    return config.session if section.session is None else section.session


def sessions_of(config: Config) -> dict[str, Session]:
    """Every session that is used, by its path, without those by label."""
    sections = config.polling.sources
    own = {f"polling.sources[{at}].session": one.session for at, one in enumerate(sections) if one.session is not None}
    return own if sections and len(own) == len(sections) else {"session": config.session, **own}


def with_labels(sessions: Mapping[str, Session]) -> dict[str, Session]:
    """The same with those by label, at their paths."""
    found = dict(sessions)
    for path, session in sessions.items():
        found |= {f"{path}.byLabel.{label}": entry for label, entry in (session.by_label or {}).items()}
    return found


def authorized_users(config: Config, section: SourceSection) -> frozenset[str]:
    """Who may speak on this source: its own list, or the shared one without names of other providers."""
    names = config.routing.authorized_users if section.authorized_users is None else section.authorized_users
    mine = []
    for name in names:
        provider, colon, bare = name.partition(":")
        if not colon:
            mine.append(name)
        elif provider == section.provider:
            mine.append(bare)
    return frozenset(mine)


def login_and_id(name: str) -> tuple[str, int | None]:
    """A name of `authorizedUsers` in its two parts: `octocat#583231` pins the login to this account."""
    login, mark, number = name.rpartition("#")
    is_pinned = bool(mark and login) and number.isascii() and number.isdigit() and len(number) < 20
    return (login, int(number)) if is_pinned else (name, None)


def names_below(root: Path, config: Config, file: Path | None) -> frozenset[str]:
    """The names in the directory `root` that the configuration puts there: inboxes, and whatever else it names."""
    sections = [*config.polling.sources, *with_labels(sessions_of(config)).values()]
    texts = [text for section in sections for value in astuple(section) for text in _texts(value)]
    inboxes = (getattr(section, "path", None) for section in sections)
    places = [Path(path) for path in inboxes if isinstance(path, str)]
    places += [Path(text) for text in texts if text.startswith(("/", "~"))]
    places += [file.absolute()] if file is not None else []
    return frozenset(name for place in places if (name := _name_below(root, place)))


def _texts(value: object) -> list[str]:
    return [text for text in (value if isinstance(value, tuple) else (value,)) if isinstance(text, str)]


def _name_below(root: Path, place: Path) -> str:
    """The first part of the path from `root` to `place`; "" if it does not lead there."""
    try:
        parts = (root / place.expanduser()).resolve().relative_to(root).parts
    except (OSError, RuntimeError, ValueError):
        return ""
    return parts[0] if parts else ""


def path_faults(**paths: str | None) -> list[Fault]:
    """What is wrong with these paths, by field: a home that is not there. None is no path, and right."""
    found = ((field, path_fault(path)) for field, path in paths.items() if path is not None)
    return [Fault(field, problem) for field, problem in found if problem]


def path_fault(path: str) -> str:
    """Why this cannot be a path, or nothing."""
    if problem := text_fault(path):
        return problem
    try:
        Path(path).expanduser()
    except RuntimeError:
        return f"there is no home directory for '{path}'"
    return ""


def text_fault(text: str) -> str:
    """Why the system would not take this text, or nothing."""
    if "\0" in text:
        return "has a NUL character in it"
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return "has a character in it that is no text"
    return ""
