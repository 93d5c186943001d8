"""What must hold for a source on Telegram: its token, whose it is, no webhook, what it sees, who polls it.

Asks for nothing that a running poller would miss: `getMe` and `getWebhookInfo`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from the_loop.findings import Finding, Site, fail, ok, unknown, warn
from the_loop.lock import Probe, look
from the_loop.sources.base import SourceError, Unanswered
from the_loop.sources.limits import RateLimiters
from the_loop.sources.telegram.claim import CLAIM, claim_of
from the_loop.sources.telegram.client import Client, Rejected
from the_loop.sources.telegram.section import VARIABLES, TelegramSection
from the_loop.sources.tokens import Token, exposure, token_path


def examine(section: TelegramSection, site: Site) -> Iterator[Finding]:
    if section.credential and site.edit and not site.environ.get("CREDENTIALS_DIRECTORY"):
        detail = f"the credential '{section.credential}' can be read only while the unit runs with it"
        yield unknown("token", f"{detail}; it needs `LoadCredential=`", site.edit)
        return
    try:
        value, me, webhook = asyncio.run(_asked(section, site))
    except (Unanswered, TimeoutError) as error:
        yield unknown("token", f"no answer from {section.api_url}: {str(error) or 'not in time'}")
        return
    except Rejected as error:
        yield fail("token", f"Telegram rejects it: {error.hint}")
        return
    except SourceError as error:
        yield fail("token", str(error))
        return
    yield ok("token", f"of the bot @{me.get('username')}, {me.get('id')}")
    yield from _exposed(section, site)
    if webhook:
        yield fail("webhook", "it takes the bot's updates; remove it with the method deleteWebhook of the Bot API")
    if me.get("can_read_all_group_messages") is False:
        yield warn("groups", "in groups the bot sees commands and answers to it only; see /setprivacy of @BotFather")
    yield from _claimed(value)


async def _asked(section: TelegramSection, site: Site) -> tuple[str, Mapping[str, Any], bool]:
    """The token, what `getMe` says, and whether there is a webhook. Raises SourceError and TimeoutError."""
    token = Token(section, site.environ, VARIABLES)
    client = Client(section.api_url, RateLimiters(time.monotonic))
    try:
        async with asyncio.timeout(max(1.0, site.limit_s - 1)):
            await token.renew()
            value = token()
            if value is None:
                raise SourceError("there is none", "set tokenFile or $TELEGRAM_BOT_TOKEN")
            return value, await client.profile(value), await client.has_webhook(value)
    finally:
        with suppress(Exception):
            await client.close()


def _exposed(section: TelegramSection, site: Site) -> Iterator[Finding]:
    with suppress(SourceError):
        path = token_path(section, site.environ)
        if path is not None and path.parent != Path(site.environ.get("CREDENTIALS_DIRECTORY", "")):
            exposed = exposure(path)
            if exposed:
                yield warn("token file", exposed)


def _claimed(token: str) -> Iterator[Finding]:
    try:
        folder = claim_of(token)
    except SourceError as error:
        yield fail("claim", str(error))
        return
    sight = look(folder, CLAIM)
    if sight.probe is Probe.UNKNOWN:
        yield unknown("claim", f"'{folder}': {sight.cause}")
    elif sight.probe is Probe.HELD:
        yield ok("claim", f"'{folder}' is held by {sight.holder or 'a process that is not visible here'}")
    else:
        yield ok("claim", f"'{folder}' is free")
