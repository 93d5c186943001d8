"""What a source is told of its items: the open ones at once, an ended one when it asks for it."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, Mapping
from contextlib import suppress

from the_loop.core.ledger import Ledger, Phase
from the_loop.ledgers import HeldItem, Ledgers, UnreadItem
from the_loop.sources.base import Known, Source


class KnownItems(Mapping[str, Known]):
    """The items of one source in one poll, by ref. Iterating leaves out those that ended; looking one up finds it.

    `doubtful` has those that could not be found out about: the source took them for new, so nothing that it says of
    them in this poll may be acted on.
    """

    def __init__(self, ledgers: Ledgers, source: Source) -> None:
        self._ledgers = ledgers
        ours = [ledger for ledger in ledgers.all() if source.owns(ledger.ref)]
        self.waiting = sum(ledger.poll.phase is Phase.WAITING for ledger in ours)  # for a start word
        self._open = {ledger.ref: _known(ledger) for ledger in ours}
        self._others: dict[str, Known | None] = {}  # that were looked up; the answer stays the same in one poll
        self.doubtful = {ref for ref in ledgers.unread() if source.owns(ref)}

    def __getitem__(self, ref: str) -> Known:
        known = self._open.get(ref)
        if known is None:
            if ref not in self._others:
                self._others[ref] = self._look_up(ref)
            known = self._others[ref]
        if known is None:
            raise KeyError(ref)
        return known

    def __iter__(self) -> Iterator[str]:
        return iter(self._open)

    def __len__(self) -> int:
        return len(self._open)

    def items(self) -> ItemsView[str, Known]:
        return self._open.items()

    def _look_up(self, ref: str) -> Known | None:
        ledger = None
        try:
            with suppress(HeldItem):
                ledger = self._ledgers.get(ref)
        except UnreadItem:
            self.doubtful.add(ref)
        return None if ledger is None or ref in self.doubtful else _known(ledger)


def _known(ledger: Ledger) -> Known:
    return Known(ledger.poll.phase.is_open, ledger.poll.away, ledger.url, ledger.id)
