"""To be told when a keeper wrote its outcome or let go of its lock, by the kernel instead of by looking.

It is a hint only: where there is none (a limit on watches, an event that was lost), the files are looked at again after
growing pauses, as they are after a start.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from the_loop.backoff import growing
from the_loop.inotify import IN_CLOSE_WRITE, IN_MOVED_TO, names_in, watch

_WAITS_S: Final = (0.002, 0.25)  # a keeper is there within milliseconds, or the manager is slow
_WATCHED_WAITS_S: Final = (0.25, 30.0)
_CHUNK: Final = 1 << 16


class Endings:
    """The deliveries of one directory, in one event loop. The kernel watches it while something waits."""

    def __init__(self) -> None:
        self._waiting: dict[bytes, asyncio.Event] = {}  # by the names of outcomes and locks
        self._descriptor: int | None = None

    @contextlib.contextmanager
    def of(self, stem: Path) -> Iterator[Changes]:
        """What happens to this delivery from now on."""
        self._watch(stem.parent)
        changed = asyncio.Event()
        names = [os.fsencode(f"{stem.name}.{part}") for part in ("outcome.json", "lock")]
        self._waiting.update(dict.fromkeys(names, changed))
        try:
            yield Changes(changed, is_watched=self._descriptor is not None)
        finally:
            for name in names:
                self._waiting.pop(name, None)
            if not self._waiting:
                self._close()

    def _close(self) -> None:
        """Let go of the kernel's watch: a user has few of them."""
        if self._descriptor is not None:
            asyncio.get_running_loop().remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = None

    def _watch(self, directory: Path) -> None:
        if self._descriptor is None:
            with contextlib.suppress(OSError):
                self._descriptor = watch(directory, IN_MOVED_TO | IN_CLOSE_WRITE)
                asyncio.get_running_loop().add_reader(self._descriptor, self._read)

    def _read(self) -> None:
        """Wake those whose files are named; all of them if the kernel could not keep up, which has no name."""
        names = {b""}
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                names = set(names_in(os.read(self._descriptor, _CHUNK)))
        for name, changed in self._waiting.items():
            if b"" in names or name in names:
                changed.set()


class Changes:
    """Waits for one delivery."""

    def __init__(self, changed: asyncio.Event, *, is_watched: bool) -> None:
        self._changed = changed
        self._waits_s = growing(*(_WATCHED_WAITS_S if is_watched else _WAITS_S))

    async def wait(self) -> None:
        """Return when something changed since the last call, or it is time to look."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(next(self._waits_s)):
                await self._changed.wait()
        self._changed.clear()
