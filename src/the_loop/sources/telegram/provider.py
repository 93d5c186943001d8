"""The provider `telegram`: its faults between fields, its token, and how a `TelegramSource` is made."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from the_loop.config import Config, Fault
from the_loop.sources.section import normal, place_faults
from the_loop.sources.telegram.section import VARIABLES, TelegramSection

if TYPE_CHECKING:
    from collections.abc import Iterator

    from the_loop.findings import Finding, Site
    from the_loop.sources.base import Source, SourceSite

Section = TelegramSection
_ID: Final = re.compile(r"[1-9][0-9]{0,18}", re.ASCII)
# accounts that Telegram shows for what is written in the name of a chat: by anyone who administers it
_NOBODY: Final = {"777000": "Telegram itself", "1087968824": "every anonymous administrator", "136817688": "channels"}


def check(section: TelegramSection, config: Config) -> list[Fault]:
    faults = place_faults(section, section.api_url)
    place = _place_of(section)
    for index, other in enumerate(config.polling.sources):
        if other is section:
            break
        if isinstance(other, TelegramSection) and _place_of(other) == place:
            field = next((field for field, value in zip(_FIELDS, place, strict=True) if value), "")
            faults.append(Fault(field, f"polling.sources[{index}] has the same token; a bot is polled by one source"))
    return faults


_FIELDS: Final = ("credential", "tokenFile", "tokenCommand")


def _place_of(section: TelegramSection) -> tuple[object, ...]:
    return section.credential, section.token_file, section.token_command


def name_fault(name: str) -> str:
    """Why no person can have this name, with what would be right; nothing if one can."""
    if name in _NOBODY:
        return f"'{name}' stands for {_NOBODY[name]}; write the numeric ids of people"
    if _ID.fullmatch(name):
        return ""
    return f"'{name}' is not a numeric user id, as in '123456789'; user names can change hands"


def build(section: TelegramSection, site: SourceSite) -> Source:
    # an HTTP client takes longer to load than everything else together: only a source that is built pays for it
    from the_loop.sources.telegram.client import Client
    from the_loop.sources.telegram.source import TelegramSource
    from the_loop.sources.tokens import Token

    limiters, url = site.limiters, normal(section.api_url)
    token = Token(section, site.environ, VARIABLES)
    earlier = None
    if site.wait_s:  # its token may not be known yet
        earlier = limiters.of(url, f"of the source {site.name}")
        earlier.resume(site.wait_left_s, site.wait_s)
    client = Client(url, limiters, earlier=earlier, wait_s=site.wait_s)
    return TelegramSource(site, client, token, exposed=_exposure(section, site))


def examine(section: TelegramSection, site: Site) -> Iterator[Finding]:
    from the_loop.sources.telegram.examination import examine as examined

    return examined(section, site)


def _exposure(section: TelegramSection, site: SourceSite) -> str:
    """Why others may use the token; "" if they may not."""
    from the_loop.sources.base import SourceError
    from the_loop.sources.tokens import exposure, token_path

    try:
        path = token_path(section, site.environ)
    except SourceError:
        return ""  # each poll says so
    if path is None or path.parent == Path(site.environ.get("CREDENTIALS_DIRECTORY", "")):
        return ""
    return exposure(path)
