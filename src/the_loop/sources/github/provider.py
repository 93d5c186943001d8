"""The provider `github`: its faults between fields, its token, and how a `GithubSource` is made."""

from __future__ import annotations

import re
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from the_loop.config import Config, Fault, login_and_id
from the_loop.core.model import Note
from the_loop.sources.base import SourceError
from the_loop.sources.github.section import GithubSection
from the_loop.sources.section import normal, place_faults
from the_loop.state import StateRoot

if TYPE_CHECKING:
    from collections.abc import Iterator

    from the_loop.findings import Finding, Site
    from the_loop.sources.base import Source, SourceSite

Section = GithubSection
_LOGIN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*(\[bot\])?")


def check(section: GithubSection, config: Config) -> list[Fault]:
    faults = _shared_repositories(section, config)
    if not (section.monitor.issues or section.monitor.pull_requests):
        faults.append(Fault("monitor", "leaves nothing to watch; one of both has to be true"))
    return faults + place_faults(section, section.api_url)


def name_fault(name: str) -> str:
    """Why no account can have this name, with what would be right; nothing if one can."""
    login, _ = login_and_id(name)
    if _LOGIN.fullmatch(login):
        return ""
    if "@" in login.strip()[1:]:
        return f"'{name}' is an e-mail address; write the login of the account, as in 'octocat'"
    kind, _, rest = re.sub(r"^https?://[^/]*/|^/|/$", "", login.strip()).removeprefix("@").rstrip("/.").rpartition("/")
    if kind in ("app", "apps") and _LOGIN.fullmatch(rest):
        return f"'{name}' is not a login; the login of this app is '{rest}[bot]'"
    if kind:
        return f"'{name}' is not a login; a team cannot be named, write the logins of its members"
    meant = f"; did you mean '{rest}'?" if _LOGIN.fullmatch(rest) else ", as in 'octocat' or 'renovate[bot]'"
    return f"'{name}' is not a login{meant}"


def build(section: GithubSection, site: SourceSite) -> Source:
    # an HTTP client takes longer to load than everything else together: only a source that is built pays for it
    from the_loop.authors import Authors
    from the_loop.sources.github.client import Client
    from the_loop.sources.github.page_sizes import PageSizes
    from the_loop.sources.github.repositories import Repositories
    from the_loop.sources.github.source import GithubSource
    from the_loop.sources.github.token import VARIABLES, github_token
    from the_loop.sources.tokens import Token

    token, limiter = Token(section, site.environ, VARIABLES), None
    with suppress(SourceError):  # without its token the first poll says so
        # the token of a command is not known yet: its limiter takes over the wait of this one
        command = "\0".join(section.token_command)
        limiter = site.limiters.of(normal(section.api_url), command or github_token(section, site.environ))
        if site.wait_s:
            limiter.resume(site.wait_left_s, site.wait_s)
    client = Client(
        section.api_url,
        token,
        now=time.time,
        first_limiter=limiter if section.token_command else None,
        limiters=site.limiters,
        api_version=section.api_version,
        page_sizes=PageSizes(time.time, site.folder / "page-sizes.json"),
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


def examine(section: GithubSection, site: Site) -> Iterator[Finding]:
    from the_loop.sources.github.examination import examine as examined

    return examined(section, site)


def _warnings(section: GithubSection, site: SourceSite) -> list[Note]:
    """What is to be told once, as it should be different but works."""
    from the_loop.sources.github.token import VARIABLES
    from the_loop.sources.tokens import exposure, token_path

    try:
        path = token_path(section, site.environ)
    except SourceError:
        return []  # each poll says so
    if path is None and not section.token_command and not any(site.environ.get(name) for name in VARIABLES):
        reason = "GitHub is asked anonymously, public repositories only, 60 requests per hour (set tokenFile)"
        return [Note("source.anonymous", {"source": site.name, "reason": reason})]
    if path is None or path.parent == Path(site.environ.get("CREDENTIALS_DIRECTORY", "")):
        return []
    exposed = exposure(path)
    return [Note("source.exposed", {"source": site.name, "reason": exposed})] if exposed else []


def _shared_repositories(section: GithubSection, config: Config) -> list[Fault]:
    """Repositories that belong to this source twice, or to one that stands before it."""
    taken: dict[tuple[str, str], tuple[int, int | None]] = {}
    faults: list[Fault] = []
    for index, other in enumerate(config.polling.sources):
        if not isinstance(other, GithubSection):
            continue
        for number, repo in enumerate(other.repos):
            place = (other.host, repo.lower())
            if other is section and place in taken:
                first, port = taken[place]
                problem = f"'{repo}' belongs to polling.sources[{first}] already"
                if port != other.port:
                    problem += (
                        f", on another port of '{other.host}'; items of both would have the same names, as "
                        f"'github:{other.host}/{repo.lower()}#1': give one of the servers a host name of its own, or "
                        "poll it with another state root"
                    )
                faults.append(Fault(f"repos[{number}]", problem))
            taken.setdefault(place, (index, other.port))
        if other is section:
            break
    return faults
