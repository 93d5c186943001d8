"""When a notice about a give-up is due: at once, and again only when what was written must show."""

from __future__ import annotations

import pytest

from support import factories as make
from support.clock import Clock
from support.fakes import FakeSource
from support.life import in_virtual_loop
from the_loop.core.ledger import Notice, Phase, Standing
from the_loop.core.model import Note
from the_loop.ledgers import Ledgers
from the_loop.notices import LOOK_AFTER_S, Notices
from the_loop.sources.base import GiveUp
from the_loop.state import StateRoot

KEY = "comment:1"


class Wall(FakeSource):
    """A source on whose items a notice can be written. `is_reported` finds what was written."""

    def __init__(self) -> None:
        super().__init__("github")
        self.written: list[GiveUp] = []
        self.looks = 0

    async def report(self, report: GiveUp) -> str:
        self.written.append(report)
        return ""

    async def is_reported(self, report: GiveUp) -> bool:
        self.looks += 1
        return report in self.written


class Case:
    """An item with an event that was given up, whose notice was being written when the poller ended."""

    def __init__(self, root: StateRoot) -> None:
        self.clock = Clock()
        self.told: list[Note] = []
        self.ledgers = Ledgers(root, self.told.append, self.clock)
        given_up = make.pending(KEY, Standing.GAVE_UP, notice=Notice.SENT, notice_at=self.clock.now)
        self.ledgers.save(make.ledger(Phase.LIVE, queue={KEY: given_up}))
        self.source = Wall()
        self.notices = Notices(self.ledgers, self.told.append, self.clock)

    async def send(self) -> list[str]:
        """One turn; the events told so far."""
        assert await self.notices.send(self.source) == 0
        return [note.name for note in self.told]


@pytest.fixture
def case(root: StateRoot) -> Case:
    return Case(root)


@in_virtual_loop
async def test_notice_that_was_cut_off_is_looked_for_when_it_must_show(case: Case) -> None:
    case.clock.run(LOOK_AFTER_S - 1)
    assert (await case.send(), case.source.looks) == ([], 0)

    case.clock.run(1)
    assert await case.send() == ["poll.give_up_told"]
    assert (case.source.looks, len(case.source.written)) == (1, 1)


@in_virtual_loop
async def test_notice_that_was_cut_off_when_the_clock_is_set_back_is_looked_for_at_once(case: Case) -> None:
    """Else a clock that was a year ahead would keep the notice back for that year."""
    case.clock.now -= 365 * 86_400

    assert await case.send() == ["poll.give_up_told"]
    assert (case.source.looks, len(case.source.written)) == (1, 1)
