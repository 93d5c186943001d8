"""What the operator may write in a section of the provider `github`."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Final
from urllib.parse import urlsplit

from msgspec import Meta

from the_loop.config import Section, SourceSection

GITHUB_API_VERSION: Final = "2022-11-28"

_PORTS: Final = {"http": 80, "https": 443}


def normal(url: str) -> str:
    """An address as addresses are compared: scheme and host in lower case, without the scheme's own port.

    Raises ValueError.
    """
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port
    shown = f"[{host}]" if ":" in host else host
    place = shown if port in (None, _PORTS.get(parts.scheme)) else f"{shown}:{port}"
    return parts._replace(netloc=place).geturl()


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
    token_command: tuple[Annotated[str, Meta(min_length=1, pattern=r"^[^\x00]+$")], ...] = ()
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
