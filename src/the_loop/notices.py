"""Telling people, on the item itself and once, that an event was given up.

A notice cannot be taken back, and where its answer was lost nobody knows whether it is there. So the ledger says that
it is being written before it is, and what was cut off is looked for on the item before it is written again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from the_loop.core.ledger import Ledger, Notice, Standing, note_notice
from the_loop.core.model import Note, explain
from the_loop.ledgers import HeldItem, Ledgers
from the_loop.sources.base import GiveUp, Limited, Reporting, Source

LOOK_AFTER_S: Final = 180.0  # so long what was written may not show yet
AT_ONCE: Final = 10  # of one source in one cycle: writing much in a short time meets limits that hold for reading too


class Notices:
    """The notices that are due. `now` is epoch seconds."""

    def __init__(self, ledgers: Ledgers, tell: Callable[[Note], None], now: Callable[[], float]) -> None:
        self._ledgers = ledgers
        self._tell = tell
        self._now = now
        self._failed_at: dict[tuple[str, str], float] = {}

    async def send(self, source: Source) -> int:
        """Write what is due on this source's items; the number of errors. Raises Limited.

        A source that is not `Reporting` has nothing to write on.
        """
        if not isinstance(source, Reporting):
            return 0
        errors = 0
        for _, ref, key in sorted(self._due(source))[:AT_ONCE]:
            try:
                await self._send(source, ref, key)
                self._failed_at.pop((ref, key), None)
            except Limited:
                raise
            except Exception as error:  # noqa: BLE001 (the border: one broken notice costs that one only)
                self._tell(Note("item.failed", {"ref": ref, "reason": f"cannot tell of a give-up: {explain(error)}"}))
                self._failed_at[ref, key] = self._now()
                errors += 1
        return errors

    def _due(self, source: Source) -> Iterator[tuple[float, str, str]]:
        """When it was tried last, and what it is about."""
        now = self._now()
        for ledger in self._ledgers.with_pending():
            for key, entry in ledger.poll.pending.items():
                tried_at = max(entry.notice_at, self._failed_at.get((ledger.ref, key), 0.0))
                rests = entry.notice is Notice.SENT and 0 <= now - tried_at < LOOK_AFTER_S
                is_due = entry.state is Standing.GAVE_UP and entry.notice in (Notice.DUE, Notice.SENT) and not rests
                if is_due and source.owns(ledger.ref):
                    yield tried_at, ledger.ref, key

    async def _send(self, source: Reporting, ref: str, key: str) -> None:
        ledger = self._ledger(ref, key)
        if ledger is None:
            return
        entry = ledger.poll.pending[key]
        report = GiveUp(ref, key, ledger.url, ledger.attempts(key))
        if entry.notice is Notice.SENT:
            if await source.is_reported(report):
                self._record(ref, key, Notice.TOLD)
                return
            self._record(ref, key, Notice.DUE)
        self._record(ref, key, Notice.SENT)
        try:
            refusal = await source.report(report)
        except Limited:
            self._record(ref, key, Notice.DUE)  # nothing was written
            raise
        self._record(ref, key, Notice.REFUSED if refusal else Notice.TOLD, refusal)

    def _record(self, ref: str, key: str, notice: Notice, reason: str = "") -> None:
        """Whatever else became of the event meanwhile stands."""
        ledger = self._ledger(ref, key)
        if ledger is None:
            return
        self._ledgers.save(note_notice(ledger, key, notice, self._now()))
        if notice is Notice.TOLD:
            self._tell(Note("poll.give_up_told", {"ref": ref, "key": key}))
        elif notice is Notice.REFUSED:
            self._tell(Note("poll.give_up_untold", {"ref": ref, "key": key, "reason": reason}))

    def _ledger(self, ref: str, key: str) -> Ledger | None:
        """The item's ledger while the event is pending in it."""
        try:
            ledger = self._ledgers.get(ref)
        except HeldItem:
            return None
        return ledger if ledger is not None and key in ledger.poll.pending else None
