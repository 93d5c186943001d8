"""What the operator may write in a section of the provider `telegram`."""

from __future__ import annotations

from typing import Final

from the_loop.config import Seconds, SourceSection
from the_loop.sources.section import ApiUrl, CommandPart, Credential

VARIABLES: Final = ("TELEGRAM_BOT_TOKEN",)


class TelegramSection(SourceSection, frozen=True, kw_only=True):
    """`interval_seconds` is the pause between two requests that each wait for news."""

    interval_seconds: Seconds | None = 1
    api_url: ApiUrl = "https://api.telegram.org"
    credential: Credential | None = None
    token_file: str | None = None
    token_command: tuple[CommandPart, ...] = ()
