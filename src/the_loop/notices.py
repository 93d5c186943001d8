"""Telling people, on the item itself and once, that an event was given up.

A notice cannot be taken back, and where its answer was lost nobody knows whether it is there. So the ledger says that
it is being written before it is, and what was cut off is looked for on the item before it is written again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from the_loop.archive import Archive, HeldItem
from the_loop.ledger import Ledger, Notice, Standing, note_notice
from the_loop.model import Note, explain
from the_loop.sources.base import GiveUp, Limited, Reporting, Source, SourceError

LOOK_AFTER_S: Final = 180.0  # so long what was written may not show yet


class Notices:
    """The notices that are due. `now` is epoch seconds."""

    def __init__(self, archive: Archive, tell: Callable[[Note], None], now: Callable[[], float]) -> None:
        self._archive = archive
        self._tell = tell
        self._now = now

    async def send(self, source: Source) -> int:
        """Write what is due on this source's items; the number of errors. Raises Limited.

        A source that is not `Reporting` has nothing to write on.
        """
        if not isinstance(source, Reporting):
            return 0
        errors = 0
        for ref, key in list(self._due(source)):
            try:
                await self._send(source, ref, key)
            except Limited:
                raise
            except (SourceError, OSError) as error:
                self._tell(Note("item.failed", {"ref": ref, "reason": f"cannot tell of a give-up: {explain(error)}"}))
                errors += 1
        return errors

    def _due(self, source: Source) -> Iterator[tuple[str, str]]:
        now = self._now()
        for ledger in self._archive.with_pending():
            for key, entry in ledger.poll.pending.items():
                rests = entry.notice is Notice.SENT and 0 <= now - entry.notice_at < LOOK_AFTER_S
                is_due = entry.state is Standing.GAVE_UP and entry.notice in (Notice.DUE, Notice.SENT) and not rests
                if is_due and source.owns(ledger.ref):
                    yield ledger.ref, key

    async def _send(self, source: Reporting, ref: str, key: str) -> None:
        ledger = self._ledger(ref, key)
        if ledger is None:
            return
        entry = ledger.poll.pending[key]
        report = GiveUp(ref, key, ledger.url, ledger.attempts(key), entry.notice_at)
        if entry.notice is Notice.SENT:
            if await source.is_reported(report):
                self._record(ref, key, Notice.TOLD)
                return
            self._record(ref, key, Notice.DUE)
        self._record(ref, key, Notice.SENT)
        try:
            is_told = await source.report(report)
        except Limited:
            self._record(ref, key, Notice.DUE)  # nothing was written
            raise
        self._record(ref, key, Notice.TOLD if is_told else Notice.REFUSED)

    def _record(self, ref: str, key: str, notice: Notice) -> None:
        """Whatever else became of the event meanwhile stands."""
        ledger = self._ledger(ref, key)
        if ledger is None:
            return
        self._archive.save(note_notice(ledger, key, notice, self._now()))
        if notice is Notice.TOLD:
            self._tell(Note("poll.give_up_told", {"ref": ref, "key": key}))
        elif notice is Notice.REFUSED:
            reason = "the token may not write there"
            self._tell(Note("poll.give_up_untold", {"ref": ref, "key": key, "reason": reason}))

    def _ledger(self, ref: str, key: str) -> Ledger | None:
        """The item's ledger while the event is pending in it."""
        try:
            ledger = self._archive.get(ref)
        except HeldItem:
            return None
        return ledger if ledger is not None and key in ledger.poll.pending else None
