"""A folder of folders, the `directory` source that reads it, and what a poller remembers from look to look."""

from __future__ import annotations

import asyncio
import json
import os
import pwd
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from support.clock import NOON
from the_loop.core.model import Entry, Note, Presence
from the_loop.sources.base import Known, Listing, Thread
from the_loop.sources.directory import DirectorySource
from the_loop.sources.ignored import Ignored

ME = pwd.getpwuid(os.geteuid()).pw_name
LAST_YEAR, NEXT_CENTURY = 1_600_000_000, 4_102_444_800


class Inbox:
    """An inbox, a source that reads it, and what a poller would remember from one look to the next."""

    def __init__(
        self,
        path: Path,
        *,
        settle_s: float = 0.0,
        authorized: frozenset[str] = frozenset({ME}),
        ignore: Sequence[str] = (),
    ) -> None:
        self.path = path
        self.now = NOON
        self.cursor: Any = None
        self.known: dict[str, Known] = {}
        self.settle_s, self.authorized = settle_s, authorized
        self.begin(ignore)

    def begin(self, ignore: Sequence[str] = ()) -> None:
        """A source that is made anew, as after a reload."""
        self.source = DirectorySource(
            "inbox",
            self.path,
            settle_s=self.settle_s,
            authorized=self.authorized,
            ignored=Ignored(ignore),
            now=lambda: self.now,
        )

    def write(self, name: str | bytes, text: str | bytes = "text", at: float | None = None) -> Path:
        """A file that its owner alone may write, in a folder of the same kind."""
        path = Path(os.fsdecode(os.path.join(os.fsencode(self.path), os.fsencode(name))))  # noqa: PTH118 (bytes)
        if not path.parent.exists():
            path.parent.mkdir()
            path.parent.chmod(0o755)
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        path.chmod(0o644)
        if at is not None:
            os.utime(path, (at, at))
        return path

    def poll(self) -> Listing:
        listing = asyncio.run(self.source.poll(self.cursor, self.known))
        self.cursor = json.loads(json.dumps(listing.cursor))
        for sighting in listing.sightings:
            if sighting.item is not None:
                self.known.setdefault(sighting.ref, Known(is_open=True, is_away=False, url=sighting.item.url))
            if sighting.presence is Presence.GONE:
                self.known[sighting.ref] = Known(is_open=False, is_away=False, url=self.known[sighting.ref].url)
        return listing

    def thread(self, name: str = "one") -> Thread:
        return asyncio.run(self.source.thread(f"directory:inbox/{name}"))


def refs(listing: Listing, presence: Presence = Presence.LISTED) -> list[str]:
    return [
        sighting.ref.removeprefix("directory:inbox/") for sighting in listing.sightings if sighting.presence is presence
    ]


def rows(listing: Listing) -> list[Entry]:
    return [row for sighting in listing.sightings for row in sighting.rows]


def ids(entries: Any) -> list[str]:
    return sorted(entry.id for entry in entries)


def told(listing: Listing, name: str) -> list[Note]:
    return [note for note in listing.notes if note.name == name]


def remove(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
