"""What the operator may write in the section of every source that asks an API with a token."""

from __future__ import annotations

from typing import Annotated, Final, Protocol
from urllib.parse import urlsplit

from msgspec import Meta

from the_loop.config import Fault, path_faults

_PORTS: Final = {"http": 80, "https": 443}

ApiUrl = Annotated[
    str,
    Meta(
        pattern=r"^https?://[^\s/?#@]+(/[^\s?#]*)?$",
        description="as in https://HOST/api/v3, without a user name in it",
    ),
]
Credential = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]+$", description="a file name, without a path")]
CommandPart = Annotated[str, Meta(min_length=1, pattern=r"^[^\x00]+$")]


def normal(url: str) -> str:
    """An address as addresses are compared: scheme and host in lower case, without the scheme's own port.

    Raises ValueError.
    """
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port
    shown = f"[{host}]" if ":" in host else host
    place = shown if port in (None, _PORTS.get(parts.scheme)) else f"{shown}:{port}"
    return parts._replace(netloc=place).geturl()


class TokenSection(Protocol):
    """A section that names the place of a token; at most one of the three is set."""

    @property
    def credential(self) -> str | None: ...
    @property
    def token_file(self) -> str | None: ...
    @property
    def token_command(self) -> tuple[str, ...]: ...


def place_faults(section: TokenSection, api_url: str) -> list[Fault]:
    """What is wrong with the places that a section names: more than one for its token, or one that cannot be any."""
    places = (("credential", section.credential), ("tokenFile", section.token_file))
    named = [field for field, value in (*places, ("tokenCommand", section.token_command)) if value]
    faults = [Fault(field, f"is set beside {named[0]}; a token comes from exactly one place") for field in named[1:]]
    try:
        normal(api_url)
    except ValueError as error:
        faults.append(Fault("apiUrl", str(error)))
    return faults + path_faults(tokenFile=section.token_file)
