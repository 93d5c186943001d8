"""The bar of `poll start` on a terminal: how far an initial sync is, with what limits it, and room for events."""

from __future__ import annotations

import io
import re
from types import SimpleNamespace
from typing import Any, Final

import pytest

from support import factories as make
from the_loop.cli.progress import Progress
from the_loop.cursors import Cursor
from the_loop.eventlog import Teller
from the_loop.sources.base import Usage
from the_loop.watched import Watched

NOW: Final = 1769860812.0


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Metered:
    name = "work"

    def usage(self) -> Usage:
        return Usage(10, 3120.0, 5000.0)


def watched(items: int, owed: int, **fields: Any) -> Watched:
    source: Any = fields.pop("source", SimpleNamespace(name="inbox"))
    cursor = Cursor(owed=frozenset(f"fake:{number}" for number in range(owed)))
    return Watched(source, make.rules(), cursor=cursor, items=items, **fields)


def drawn(*sources: Watched, running: int = 0) -> str:
    terminal = Terminal()
    Progress(terminal).show(sources, running, NOW, 100.0)
    return terminal.getvalue()


def test_bar_when_items_are_owed_tells_how_many_are_read() -> None:
    assert re.search(r"reading items, 2 deliveries run .*25/100", drawn(watched(100, 75), running=2))


def test_bar_when_a_limit_binds_tells_points_and_until_when() -> None:
    assert "3120 points left" in drawn(watched(100, 75, source=Metered()))
    assert re.search(r"inbox waits until \d\d:\d\d:\d\d", drawn(watched(100, 75, wait_ends_s=160.0)))


@pytest.mark.parametrize("sources", [[], [watched(100, 0)], [watched(10, 5)], [watched(10, 0, visited=(3, 10))]])
def test_bar_when_there_is_little_to_read_is_not_shown(sources: list[Watched]) -> None:
    assert drawn(*sources) == ""


def test_bar_when_a_cycle_visits_many_shows_how_far_it_is() -> None:
    assert "30/200" in drawn(watched(200, 0, visited=(30, 200)))


def test_bar_when_an_event_is_printed_makes_room_and_comes_back() -> None:
    terminal = Terminal()
    progress = Progress(terminal)
    teller = Teller(Nowhere(), terminal, verbose=False, make_room=progress.clear)
    progress.show([watched(100, 75)], 0, NOW, 100.0)
    teller.write({"event": "poll.spawned", "level": "info", "message": "started fake:1"})
    progress.show([watched(100, 50)], 0, NOW, 100.0)
    progress.show([watched(100, 0)], 0, NOW, 100.0)

    text = terminal.getvalue()
    assert "\r\x1b[Kthe-loop: poll.spawned: started fake:1\n" in text
    assert text.index("50/100") > text.index("poll.spawned")
    assert text.endswith("\r\x1b[K")


def test_events_of_hand_overs_when_there_is_no_terminal_are_not_printed() -> None:
    for stream, expected in ((io.StringIO(), ""), (Terminal(), "the-loop: session.started: starting fake:1\n")):
        Teller(Nowhere(), stream, verbose=False).write(
            {"event": "session.started", "level": "info", "message": "starting fake:1"}
        )
        assert stream.getvalue() == expected


class Nowhere:
    def write(self, event: object) -> None:
        pass

    def drop_log(self) -> None:
        pass

    def check(self) -> None:
        pass
