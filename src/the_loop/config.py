"""What the operator may write: one YAML file, whose shape this is.

Names are those of the file; `Config` and the structures below it are frozen.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from the_loop.core.model import LoopError

GITHUB_API_VERSION: Final = "2022-11-28"

Seconds = Annotated[int, Meta(ge=1, le=86_400)]
Name = Annotated[str, Meta(min_length=1, max_length=100)]
SourceName = Annotated[str, Meta(pattern=r"^[^/#:\x00-\x1f\x7f]+$", max_length=100)]
Phrase = Annotated[str, Meta(min_length=1, max_length=100)]
RepoName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+$", max_length=140)]


class Section(Struct, frozen=True, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """Base of every part of the file."""


class State(Section, frozen=True, kw_only=True):
    root: str | None = None


class SourceSection(Section, frozen=True, kw_only=True):
    """What every source has. Third parties derive from it."""

    provider: str
    name: SourceName | None = None
    authorized_users: tuple[Name, ...] | None = None

    def default_name(self) -> str:
        return self.provider


class Monitor(Section, frozen=True, kw_only=True):
    issues: bool = True
    pull_requests: bool = True


class GithubSection(SourceSection, frozen=True, kw_only=True):
    repos: Annotated[tuple[RepoName, ...], Meta(min_length=1)]
    label: Annotated[
        str,
        Meta(
            pattern=r"^[^,\s]([^,]*[^,\s])?$",  # GitHub takes a comma for "and"
            max_length=100,
            description="one label, without commas and blanks around it",
        ),
    ]
    monitor: Monitor = Monitor()
    api_url: Annotated[
        str,
        Meta(
            pattern=r"^https?://[^\s/?#@]+(/[^\s?#]*)?$",
            description="as in https://HOST/api/v3, without a user name in it",
        ),
    ] = "https://api.github.com"
    credential: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]+$", description="a file name, without a path")] | None = (
        None
    )
    token_file: str | None = None
    api_version: Annotated[str, Meta(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$", description="as in 2022-11-28")] = (
        GITHUB_API_VERSION
    )


class DirectorySection(SourceSection, frozen=True, kw_only=True):
    path: Annotated[str, Meta(min_length=1)]
    settle_seconds: Annotated[float, Meta(ge=0, le=3600)] = 2.0

    def default_name(self) -> str:
        return Path(self.path).name or "root"


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
    control: Control = Control()


class Session(Section, frozen=True, kw_only=True):
    runner: Literal["exec", "print"] = "exec"
    command: tuple[str, ...] = ()
    workdir: str | None = None
    on_uncertain: Literal["redeliver", "hold"] = "redeliver"


class Config(Section, frozen=True, kw_only=True):
    state: State = State()
    polling: Polling = Polling()
    routing: Routing = Routing()
    session: Session = Session()


BUILT_IN_SOURCES: Final[Mapping[str, type[SourceSection]]] = {"github": GithubSection, "directory": DirectorySection}


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong in the file."""

    path: str
    problem: str

    def __str__(self) -> str:
        return f"{self.path}: {self.problem}" if self.path else self.problem


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


def embedded_default() -> Config:
    """What `poll start` runs without any configuration."""
    inbox = DirectorySection(provider="directory", path="inbox")
    return Config(
        polling=Polling(interval_seconds=5, sources=(inbox,)),
        routing=Routing(authorized_users=(_invoking_user(),)),
        session=Session(runner="print"),
    )


def source_name(section: SourceSection) -> str:
    return section.name or section.default_name()


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


def _invoking_user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
