"""What a whole poller is started with in a test: a configuration, a clock, and an event log in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from the_loop.clocks import Clock
from the_loop.config import Config
from the_loop.core.model import Note
from the_loop.life import Setup
from the_loop.state import StateRoot
from the_loop.supervision.notify import Notifier


class Notes:
    """An event log in memory."""

    def __init__(self) -> None:
        self.told: list[Note] = []

    def tell(self, note: Note) -> None:
        self.told.append(note)

    def check(self) -> None:
        pass

    def of(self, name: str) -> list[Mapping[str, Any]]:
        return [note.fields for note in self.told if note.name == name]


def setup_of(
    root: StateRoot, load: Callable[[], Config], notes: Notes, clock: Clock, *, once: bool = False, path: str = ""
) -> Setup:
    """A plain process without a manager, which starts with what `load` gives now."""
    return Setup(
        root=root,
        config=load(),
        load=load,
        environ={},
        once=once,
        wait_s=0.0,
        trail=cast("Any", notes),
        notifier=Notifier({}, print),
        wakes=None,
        path=path,
        clock=clock,
    )
