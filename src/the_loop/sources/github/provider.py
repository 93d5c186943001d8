"""The provider `github`: its faults between fields, its token, and how a `GithubSource` is made."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from the_loop.config import Config, Fault, path_faults
from the_loop.core.model import Note
from the_loop.sources.base import SourceError
from the_loop.sources.github.section import GithubSection
from the_loop.sources.tokens import exposure
from the_loop.state import StateRoot

if TYPE_CHECKING:
    from the_loop.sources.base import Source, SourceSite

Section = GithubSection


def check(section: GithubSection, config: Config) -> list[Fault]:
    faults = _shared_repositories(section, config)
    if not (section.monitor.issues or section.monitor.pull_requests):
        faults.append(Fault("monitor", "leaves nothing to watch; one of both has to be true"))
    return faults + path_faults(tokenFile=section.token_file)


def build(section: GithubSection, site: SourceSite) -> Source:
    # an HTTP client takes longer to load than everything else together: only a source that is built pays for it
    from the_loop.authors import Authors
    from the_loop.sources.github.client import Client
    from the_loop.sources.github.repositories import Repositories
    from the_loop.sources.github.source import GithubSource

    if site.wait_s:
        with suppress(SourceError):  # without its token the first poll says so
            limiter = site.limiters.of(section.api_url, github_token(section, site.environ))
            limiter.resume(site.wait_left_s, site.wait_s)
    client = Client(
        section.api_url,
        lambda: github_token(section, site.environ),
        now=time.time,
        limiters=site.limiters,
        api_version=section.api_version,
    )
    repositories = Repositories(StateRoot(site.root).repositories)
    return GithubSource(
        section,
        client,
        repositories,
        linger_s=site.linger_s,
        cursor=site.cursor,
        notes=_warnings(section, site),
        authors=Authors(StateRoot(site.root).authors, section.host, site.name, site.authorized, time.time),
    )


def _warnings(section: GithubSection, site: SourceSite) -> list[Note]:
    """What is to be told once, as it should be different but works."""
    path = _token_path(section, site.environ)
    if path is None or path.parent == Path(site.environ.get("CREDENTIALS_DIRECTORY", "")):
        return []
    exposed = exposure(path)
    return [Note("source.exposed", {"source": site.name, "reason": exposed})] if exposed else []


def _token_path(section: GithubSection, environ: Mapping[str, str]) -> Path | None:
    credentials = environ.get("CREDENTIALS_DIRECTORY")
    if section.credential and credentials:
        return Path(credentials) / section.credential
    return Path(section.token_file).expanduser() if section.token_file else None


def github_token(section: GithubSection, environ: Mapping[str, str]) -> str | None:
    """The token as it is right now: the credential, else the file, else `$GITHUB_TOKEN`; None for none at all.

    Raises SourceError where one is named and cannot be read: that is not the same as none.
    """
    path = _token_path(section, environ)
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


def _shared_repositories(section: GithubSection, config: Config) -> list[Fault]:
    """Repositories that belong to this source twice, or to one that stands before it."""
    taken: dict[tuple[str, str], int] = {}
    faults: list[Fault] = []
    for index, other in enumerate(config.polling.sources):
        if not isinstance(other, GithubSection):
            continue
        for number, repo in enumerate(other.repos):
            place = (other.host, repo.lower())
            if other is section and place in taken:
                problem = f"'{repo}' belongs to polling.sources[{taken[place]}] already"
                faults.append(Fault(f"repos[{number}]", problem))
            taken.setdefault(place, index)
        if other is section:
            break
    return faults
