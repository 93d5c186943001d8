"""What the operator may write in a section of the provider `github`."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Final
from urllib.parse import urlsplit

from msgspec import Meta

from the_loop.config import Section, SourceSection
from the_loop.sources.section import ApiUrl, CommandPart, Credential

GITHUB_API_VERSION: Final = "2022-11-28"


RepoName = Annotated[
    str,
    Meta(pattern=r"^[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+$", max_length=140, description="each as owner/name"),
]


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
    api_url: ApiUrl = "https://api.github.com"
    credential: Credential | None = None
    token_file: str | None = None
    token_command: tuple[CommandPart, ...] = ()
    api_version: Annotated[str, Meta(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$", description="as in 2022-11-28")] = (
        GITHUB_API_VERSION
    )

    @property
    def host(self) -> str:
        """The host name of the API, which is part of the refs. Its port is not: it may change with a proxy."""
        return urlsplit(self.api_url).hostname or ""

    @property
    def port(self) -> int | None:
        """The port of the API; None if the address has none that can be one."""
        parts = urlsplit(self.api_url)
        with suppress(ValueError):
            return parts.port or {"https": 443, "http": 80}[parts.scheme]
        return None
