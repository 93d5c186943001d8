"""A whole life of the core over fakes, with everything in it: what is to be the same whatever fails in between.

Four items: an ordinary one that ends; one whose spawn is refused first; a stranger's, started by a word; one whose
spawn outlives two pollers. Between its chapters all comes to rest, so that a delay changes nothing of what arrives.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, cast

from model.runner import Keepers, runner_with
from support import factories as make
from support.clock import Clock
from support.fakes import LATER, REFUSED, FakeSource, comments
from support.life import Life
from the_loop.core.model import LoopError, Presence
from the_loop.state import StateRoot

CYCLES: Final = 6  # until all that can be done is done, also after some failures
_BETWEEN_S: Final = 1000.0
_STARTS: Final = 5

Arrived = dict[str, list[tuple[Any, ...]]]
EXPECTED: Final[dict[str, list[str]]] = {
    "fake:1": ["spawn:1", "comment:1", "comment:1", "comment:1", "comment:3", "comment:6", "comment:6*", "close:1"],
    "fake:2": ["spawn:1", "spawn:1", "comment:8", "comment:10", "comment:11"],
    "fake:3": ["spawn:1"],
    "fake:4": ["spawn:1", "comment:7", "comment:9"],
}


def new_world() -> tuple[Keepers, FakeSource]:
    source = FakeSource()
    keepers = Keepers(
        {
            "fake:1/comment:1": [REFUSED, LATER],
            "fake:1/comment:6": [None],
            "fake:2/spawn:1": [REFUSED],
            "fake:2/comment:10": [None],
            "fake:4/spawn:1": [None],
        }
    )
    source.add(1, *comments(5))
    source.add(2)
    source.add(3, author=make.STRANGER)
    source.add(4)
    return keepers, source


@dataclass
class Story:
    """One telling of it, on one root. `make_life` is called for each start."""

    root: StateRoot
    keepers: Keepers
    source: FakeSource
    clock: Clock = field(default_factory=Clock)
    errors: int = 0  # that cycles met

    async def tell(self) -> None:
        life = await self.start()
        await self.settle(life)  # 1, 2: delivered; 4: runs
        self.source.write("fake:1", make.entry(1), make.entry(2, author=make.STRANGER), make.entry(3))
        self.source.write("fake:4", *comments(7))
        await self.settle(life)
        self.source.write("fake:1", *comments(6))
        await self.settle(life)  # it runs, as that spawn does
        await life.die()
        self.keepers.finish("fake:4/spawn:1")
        self.keepers.kill("fake:1/comment:6")
        self.source.write("fake:2", *comments(8))
        self.source.write("fake:4", *comments(9))
        life = await self.start()
        await self.settle(life)
        self.source.write("fake:2", *comments(10, 11))
        await self.settle(life)
        await life.stop()
        await life.die()
        life = await self.start()
        await self.settle(life)
        self.keepers.finish("fake:2/comment:10")
        self.source.write("fake:3", make.entry(4, "the-loop start"))
        await self.settle(life)
        self.source.items["fake:1"].presence = Presence.GONE
        self.source.items["fake:2"].presence = Presence.AWAY
        await self.settle(life)
        await life.stop()
        await life.die()

    async def start(self) -> Life:
        """A start that is refused in words is tried again, as the manager does."""
        for _ in range(_STARTS):
            with suppress(LoopError):
                life = Life(self.root, cast("Any", runner_with(self.keepers)), self.source, clock=self.clock)
                await life.begin()
                return life
        raise AssertionError(f"not started in {_STARTS} tries")

    async def settle(self, life: Life) -> None:
        """Cycles, with time between them in which what failed is tried again."""
        for _ in range(CYCLES):
            self.errors += await life.cycle()
            self.clock.run(_BETWEEN_S)
            await asyncio.sleep(_BETWEEN_S)


def arrived(keepers: Keepers) -> Arrived:
    """By item, in order: key, attempt, mark, and what the thread has."""
    found: Arrived = {}
    for payload in keepers.got:
        said = tuple(entry["id"] for entry in payload["thread"])
        ref, _, key = payload["deliveryId"].partition("/")
        found.setdefault(ref, []).append((key, payload["attempt"], payload["redelivery"], said))
    return found


def keys_of(found: Arrived) -> dict[str, list[str]]:
    """The keys alone; one that was marked ends in a star."""
    return {ref: [f"{key}{'*' * marked}" for key, _, marked, _ in events] for ref, events in found.items()}
