"""A whole poller core around a Telegram source, as `support.world` has it: virtual time, and crashes at chosen points.

world = telegram_scene(tmp_path)
world.telegram.say(ALICE, "please")
await world.cycle()
assert world.arrived() == {"1001": ["spawn:1"]}
"""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from unittest import mock

from support.clock import Clock
from support.telegram.fake import ALICE, BOB, FakeTelegram
from support.world import FusedTransport, Options, World, carried
from the_loop.sources.limits import RateLimiters
from the_loop.sources.telegram import claim
from the_loop.sources.telegram.client import Client
from the_loop.sources.telegram.section import TelegramSection
from the_loop.sources.telegram.source import TelegramSource
from the_loop.sources.tokens import Token

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.fuse import Fuse
    from the_loop.sources.base import Source, SourceSite

NAME = "bot"


class TelegramWorld(World):
    """`github` is the Telegram fake here."""

    @property
    def telegram(self) -> FakeTelegram:
        fake: Any = self.github
        assert isinstance(fake, FakeTelegram)
        return fake

    def restart(self, *, fuse: Fuse | None = None, **changed: Any) -> Self:
        self.release()
        return super().restart(fuse=fuse, **changed)

    def release(self) -> None:
        """What the kernel does with the claim of a process that ends, also within the taking of it."""
        claims = str(self.folder / "claims")
        for link in Path("/proc/self/fd").iterdir():
            with suppress(OSError):
                if os.readlink(link).startswith(claims):
                    os.close(int(link.name))

    def arrived(self) -> dict[str, list[str]]:
        """What arrived in each chat, in order, with what spawns carried in their places."""
        found: dict[str, list[str]] = {}
        for place in carried(self.received):
            ref, _, key = place.removeprefix(f"telegram:{NAME}/").rpartition("/")
            found.setdefault(ref, []).append(key)
        return found

    def texts(self, chat: int | str) -> list[str]:
        """The texts that arrived of a chat, in order."""
        ref = f"telegram:{NAME}/{chat}"
        found = []
        for payload in self.received:
            if payload["ref"] == ref:
                found += [payload["body"], *(entry.get("body", "-") for entry in payload["thread"])]
        return found

    def inbox(self) -> list[str]:
        return sorted(path.name for path in self.folder.glob("claims/*/inbox/*.json"))

    def make_section(self) -> TelegramSection:
        return TelegramSection(provider="telegram", name=NAME, **self.options.section)

    def make_source(self, section: Any, site: SourceSite) -> Source:
        transport = self._transport or FusedTransport(self.github, self.fuse)
        limiters = RateLimiters(self.clock.monotonic)
        earlier = limiters.of(section.api_url, "earlier")
        earlier.resume(site.wait_left_s, site.wait_s)
        client = Client(section.api_url, limiters, earlier=earlier, wait_s=site.wait_s, transport=transport)
        token = Token(section, {"TELEGRAM_BOT_TOKEN": self.telegram.token}, ("TELEGRAM_BOT_TOKEN",))
        return TelegramSource(site, client, token, now=self.clock, uptime=self.clock.monotonic)


def telegram_scene(folder: Path, **options: Any) -> TelegramWorld:
    """A first life with a bot nobody has written to."""
    clock = Clock()
    fake: Any = FakeTelegram(clock)
    chosen = {"people": frozenset({str(ALICE)}), **options}
    (folder / "claims").mkdir(parents=True, exist_ok=True)
    return TelegramWorld(folder, fake, clock, options=Options(), **chosen)


@contextmanager
def claims_in(folder: Path) -> Iterator[None]:
    """Claims are here, not where this user's are."""
    with (
        mock.patch.object(claim, "claims_folder", return_value=folder / "claims"),
        mock.patch.object(claim, "watch_names", side_effect=OSError("a life that is cut off would keep it open")),
    ):
        yield


__all__ = ["ALICE", "BOB", "NAME", "TelegramWorld", "claims_in", "telegram_scene"]
