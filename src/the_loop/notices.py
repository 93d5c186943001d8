"""Notices on the item itself, posted once, that an event was given up.

A notice cannot be taken back, and if the answer is lost it is unknown whether it was posted. So the ledger records
the intent before the request, and after an unknown outcome the item is searched for it before it is posted again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from the_loop.core.ledger import Ledger, Notice, Standing, note_notice
from the_loop.core.model import Note, explain
from the_loop.ledgers import HeldItem, Ledgers
from the_loop.sources.base import GiveUp, Limited, Reporting, Source

LOOK_AFTER_S: Final = 180.0  # a posted notice may not be visible for so long
AT_ONCE: Final = 10  # per source and cycle: many writes in a short time lead to a rate limit, which also stops reading


class Notices:
    """Posts the notices that are due. `now` returns epoch seconds."""

    def __init__(self, ledgers: Ledgers, tell: Callable[[Note], None], now: Callable[[], float]) -> None:
        self._ledgers = ledgers
        self._tell = tell
        self._now = now
        self._failed_at: dict[tuple[str, str], float] = {}

    async def send(self, source: Source) -> int:
        """Post the notices that are due on this source's items; return the number of errors. Raises Limited.

        Does nothing for a source that is not `Reporting`.
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
            except Exception as error:  # noqa: BLE001 (one failed notice must not stop the others)
                self._tell(Note("item.failed", {"ref": ref, "reason": f"cannot post the notice: {explain(error)}"}))
                self._failed_at[ref, key] = self._now()
                errors += 1
        return errors

    def _due(self, source: Source) -> Iterator[tuple[float, str, str]]:
        """When each due notice was last tried (epoch seconds, 0 for never), its ref and its key."""
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
            rejection = await source.report(report)
        except Limited:
            self._record(ref, key, Notice.DUE)  # nothing was written
            raise
        self._record(ref, key, Notice.REFUSED if rejection else Notice.TOLD, rejection)

    def _record(self, ref: str, key: str, notice: Notice, reason: str = "") -> None:
        """Save the state of the notice and tell the result, on the ledger as it is now."""
        ledger = self._ledger(ref, key)
        if ledger is None:
            return
        self._ledgers.save(note_notice(ledger, key, notice, self._now()))
        if notice is Notice.TOLD:
            self._tell(Note("poll.give_up_told", {"ref": ref, "key": key}))
        elif notice is Notice.REFUSED:
            self._tell(Note("poll.give_up_untold", {"ref": ref, "key": key, "reason": reason}))

    def _ledger(self, ref: str, key: str) -> Ledger | None:
        """The item's ledger; None unless the event is pending in it."""
        try:
            ledger = self._ledgers.get(ref)
        except HeldItem:
            return None
        return ledger if ledger is not None and key in ledger.poll.pending else None
