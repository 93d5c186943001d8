"""A whole life of the core over fakes, with everything in it: what is to be the same whatever fails in between.

Four items: an ordinary one that ends; one whose spawn is refused first; a stranger's, started by a word; one whose
spawn outlives two pollers. Between its chapters all comes to rest, so that a delay changes nothing of what arrives.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from model.runner import Keepers, runner_with
from support import factories as make
from support.clock import Clock
from support.fakes import LATER, REFUSED, FakeSource, comments
from support.fuse import Crash
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


@dataclass(frozen=True)
class Chapter:
    """How the life before it ends ("": it goes on), and what happens in the world."""

    ends: str
    happens: Callable[[Keepers, FakeSource], None]


def _begin(_: Keepers, __: FakeSource) -> None:
    """1, 2: delivered; 4: runs."""


def _people_write(_: Keepers, source: FakeSource) -> None:
    source.write("fake:1", make.entry(1), make.entry(2, author=make.STRANGER), make.entry(3))
    source.write("fake:4", *comments(7))


def _one_more_runs(_: Keepers, source: FakeSource) -> None:
    source.write("fake:1", *comments(6))


def _it_ends_while_nobody_looks(keepers: Keepers, source: FakeSource) -> None:
    """Those of people come last: before them this may be cut off, and then it happens again."""
    if keepers.is_going("fake:4/spawn:1"):
        keepers.finish("fake:4/spawn:1")
    if keepers.is_going("fake:1/comment:6"):
        keepers.kill("fake:1/comment:6")
    source.write("fake:2", *comments(8))
    source.write("fake:4", *comments(9))


def _the_next_runs(_: Keepers, source: FakeSource) -> None:
    source.write("fake:2", *comments(10, 11))


def _a_stranger_is_heard(keepers: Keepers, source: FakeSource) -> None:
    if keepers.is_going("fake:2/comment:10"):
        keepers.finish("fake:2/comment:10")
    source.write("fake:3", make.entry(4, "the-loop start"))


def _they_leave(_: Keepers, source: FakeSource) -> None:
    source.items["fake:1"].presence = Presence.GONE
    source.items["fake:2"].presence = Presence.AWAY


CHAPTERS: Final = (
    Chapter("", _begin),
    Chapter("", _people_write),
    Chapter("", _one_more_runs),
    Chapter("kill", _it_ends_while_nobody_looks),
    Chapter("", _the_next_runs),
    Chapter("stop", _begin),
    Chapter("", _a_stranger_is_heard),
    Chapter("", _they_leave),
    Chapter("stop", _begin),
)


@dataclass
class Story:
    """One telling of it, on one root. `is_off` tells of a power cut, and `cut` leaves the disk as it is after one."""

    root: StateRoot
    keepers: Keepers
    source: FakeSource
    cut: Callable[[], None] = lambda: None
    is_off: Callable[[], bool] = lambda: False
    clock: Clock = field(default_factory=Clock)
    _life: Life | None = None

    async def tell(self) -> None:
        asyncio.get_running_loop().set_exception_handler(_but_crashes)
        for chapter in CHAPTERS:
            try:
                await self._end(chapter.ends)
                crashed = False
            except Crash:
                crashed = True
            await self._crash() if crashed else None
            await self._change(chapter)
            if not await self._settled():
                await self._crash()
                assert await self._settled()
        await self._end("stop")

    async def _change(self, chapter: Chapter) -> None:
        """What happens in the world; a power cut comes before the keepers that it is about, or after them."""
        try:
            chapter.happens(self.keepers, self.source)
        except Crash:
            await self._crash()
            assert await self._settled()
            chapter.happens(self.keepers, self.source)

    async def _crash(self) -> None:
        if self._life is not None:
            await self._life.die()
        self._life = None
        self.cut()

    async def _end(self, how: str) -> None:
        if how and self._life is not None:
            if how == "stop":
                await self._life.stop()
            await self._life.die()
            self._life = None

    async def _settled(self) -> bool:
        """Cycles, with time between them in which what failed is tried again. False if the power went."""
        try:
            if self._life is None:
                self._life = await self._started()
            for _ in range(CYCLES):
                await self._life.cycle()
                if self.is_off():
                    return False
                self.clock.run(_BETWEEN_S)
                await asyncio.sleep(_BETWEEN_S)
        except Crash:
            return False
        return not self.is_off()

    async def _started(self) -> Life:
        """A start that is refused in words is tried again, as the manager does."""
        problem = ""
        for _ in range(_STARTS):
            try:
                self.root.prepare_root()
                self.root.prepare_folders()
                life = Life(self.root, runner_with(self.keepers), self.source, clock=self.clock)  # type: ignore[arg-type]
                await life.begin()
                return life
            except LoopError as error:
                problem = str(error)
        raise AssertionError(f"not started in {_STARTS} tries: {problem}")


def _but_crashes(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Tasks that a crash has ended are not to be told of."""
    if not isinstance(context.get("exception"), Crash):
        loop.default_exception_handler(context)


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
