"""One look at one source, and what it means for each item: the part of a cycle that is the same for all sources.

Nothing of a look is recorded before its items are: an item is decided, written and only then handed over; the
position comes last and names what could not be written. A stop cancels at an await, so never inside an item.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from the_loop.core.decide import View, decide, wants_thread
from the_loop.core.ledger import Ledger, Phase, Standing
from the_loop.core.model import Note, Presence, explain, timestamp
from the_loop.cursors import Cursor, Wait, write_cursor
from the_loop.dispatcher import Dispatcher
from the_loop.ledgers import HeldItem, Ledgers
from the_loop.notices import Notices
from the_loop.outbox import Outbox
from the_loop.sources.base import Known, Limited, Listing, Sighting, Source, SourceError, Unanswered, in_few_words
from the_loop.state import StateRoot
from the_loop.watched import Watched

FIRST_SIGHTS: Final = 50  # of one source in one cycle, so that known items are not kept waiting (contract R6.9)
_THREADS: Final = 200  # of known items that are owed, likewise
_PATIENCE: Final = 10  # threads of one look that were asked for in vain
_LONGEST_BACKOFF_S: Final = 600.0


@dataclass(slots=True)
class _Budget:
    first_sights: int = FIRST_SIGHTS
    threads: int = _THREADS

    def take(self, *, is_first: bool) -> bool:
        """True if one more thread may be read in this look."""
        left = self.first_sights if is_first else self.threads
        if left <= 0:
            return False
        if is_first:
            self.first_sights -= 1
        else:
            self.threads -= 1
        return True

    def exhaust(self) -> None:
        self.first_sights = self.threads = 0


class Cycle:
    """Looks at sources one item at a time. `run` returns the number of errors it met."""

    def __init__(
        self,
        root: StateRoot,
        ledgers: Ledgers,
        outbox: Outbox,
        dispatcher: Dispatcher,
        *,
        tell: Callable[[Note], None],
        now: Callable[[], float],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._monotonic = monotonic
        self._root = root
        self._ledgers = ledgers
        self._outbox = outbox
        self._dispatcher = dispatcher
        self._tell = tell
        self._now = now
        self._notices = Notices(ledgers, tell, now)

    async def run(self, watched: Watched, interval_s: float) -> int:
        """Look at this source and take up what is new. Never raises but when cancelled."""
        self._look_at_held_again()
        try:
            listing = await watched.source.poll(watched.cursor.value, self._known(watched.source))
        except SourceError as error:
            self._fail(watched, error, interval_s)
            return 1
        except Exception as error:  # noqa: BLE001 (the border: one broken source costs that one only)
            # a position of a wrong shape is no position; anything else will say the same again without one
            watched.cursor = Cursor(wait=watched.cursor.wait)
            self._fail(watched, SourceError(f"unexpected: {type(error).__name__}: {error}"), interval_s)
            return 1
        for note in listing.notes:
            self._tell(note)
        limit = next((fault for fault in listing.faults if isinstance(fault, Limited)), None)
        if limit is not None:
            self._wait(watched, limit)
        errors, owed = await self._visit_all(watched, listing)
        self._succeed(watched, listing)
        self._move_on(watched, Cursor(dict(listing.cursor), frozenset(owed), self._wait_of(watched)))
        untold = await self._tell_give_ups(watched)
        return errors + untold + len(listing.faults)

    def offer_pending(self, watched: Watched) -> None:
        """What is due of this source's items is handed over; a spawn that waited for a look in vain, as it was."""
        for ledger in self._ledgers.with_pending():
            if watched.source.owns(ledger.ref):
                if watched.error and not watched.is_unread:
                    self._offer_as_it_was(ledger.ref)
                self._dispatcher.offer(ledger.ref)

    def _offer_as_it_was(self, ref: str) -> None:
        try:
            self._outbox.offer_as_it_was(ref)
        except OSError as error:
            self._tell(Note("item.failed", {"ref": ref, "reason": explain(error)}))

    async def _tell_give_ups(self, watched: Watched) -> int:
        if not self._outbox.policy.reports_give_ups or watched.wait_left_s(self._monotonic()) > 0:
            return 0
        try:
            return await self._notices.send(watched.source)
        except Limited as limit:
            self._wait(watched, limit)
            return 1

    # --- items ---

    async def _visit_all(self, watched: Watched, listing: Listing) -> tuple[int, set[str]]:
        owed = self._owed(watched, listing)
        budget = _Budget(first_sights=0) if listing.is_short else _Budget()
        errors = unanswered = 0
        if watched.wait_left_s(self._monotonic()) > 0:
            budget.exhaust()
        worked = True
        ordered = sorted(listing.sightings, key=lambda sighting: sighting.ref in watched.troubled)
        for done, sighting in enumerate(ordered):
            watched.visited = (done, len(listing.sightings))
            if worked:
                await asyncio.sleep(0)  # where a stop takes hold: between items, with the last one on disk
            worked = True
            try:
                worked = await self._visit(watched, sighting, owed, budget)
                watched.troubled.discard(sighting.ref)
            except HeldItem:
                owed.add(sighting.ref)
            except Limited as limit:
                owed.add(sighting.ref)
                budget.exhaust()
                self._wait(watched, limit)
                errors += 1
            except Exception as error:  # noqa: BLE001 (the border: one broken item costs that one only)
                owed.add(sighting.ref)
                if isinstance(error, Unanswered):
                    watched.troubled.add(sighting.ref)
                    unanswered += 1
                if unanswered == _PATIENCE:
                    budget.exhaust()
                fields = {"ref": sighting.ref, "source": watched.source.name, "reason": explain(error)}
                self._tell(Note("item.failed", fields))
                errors += 1
        watched.visited = None
        return errors, owed

    async def _visit(self, watched: Watched, sighting: Sighting, owed: set[str], budget: _Budget) -> bool:
        """False if there was nothing to do for this item."""
        ref = sighting.ref
        ledger = self._ledgers.get(ref)
        if ledger is not None and sighting.item is not None and ledger.id not in ("", sighting.item.id):
            raise self._ledgers.hold(ref, f"it is of another item ('{ledger.id}', not '{sighting.item.id}')")
        if _is_quiet(ledger, sighting, ref in owed):
            return False
        view = self._view(ledger, sighting)
        if wants_thread(ledger, view, watched.rules, owed=ref in owed):
            if not budget.take(is_first=ledger is None):
                owed.add(ref)
                return False
            thread = await watched.source.thread(ref)
            if thread.item is None and sighting.presence is Presence.LISTED:
                owed.add(ref)
                return True
            ledger = self._ledgers.get(ref)  # an outcome may have been recorded meanwhile
            view = self._view(ledger, sighting)
            view = replace(view, item=thread.item or view.item, thread=thread.entries)
        self._outbox.commit(decide(ledger, view, watched.rules))
        if view.thread is not None:
            owed.discard(ref)
        self._dispatcher.offer(ref)
        return True

    def _view(self, ledger: Ledger | None, sighting: Sighting) -> View:
        spawn = None if ledger is None else ledger.poll.pending.get(ledger.spawn_key)
        return View(
            ref=sighting.ref,
            presence=sighting.presence,
            item=sighting.item,
            reason=sighting.reason,
            detail=sighting.detail,
            rows=sighting.rows,
            running=self._dispatcher.running(sighting.ref),
            due=spawn is not None and self._outbox.is_due(spawn),
        )

    def _look_at_held_again(self) -> None:
        """A held item whose ledger was repaired is known again, also where its source does not list it any more."""
        for ref in self._ledgers.held():
            with suppress(HeldItem, OSError):
                self._ledgers.get(ref)

    def _known(self, source: Source) -> dict[str, Known]:
        return {
            ledger.ref: Known(ledger.poll.phase.is_open, ledger.poll.away, ledger.url, ledger.id)
            for ledger in self._ledgers.all()
            if source.owns(ledger.ref)
        }

    def _owed(self, watched: Watched, listing: Listing) -> set[str]:
        """Whose thread has to be read before rows count. Of what ended and is not listed nothing is owed."""
        here = {sighting.ref for sighting in listing.sightings}
        held = self._ledgers.held()
        owed = {ref for ref in watched.cursor.owed if ref in here or ref in held or self._may_be_listed(ref, listing)}
        if watched.cursor.value is None:
            owed |= here
        owed |= {ref for ref in held if watched.source.owns(ref)}
        return owed | {sighting.ref for sighting in listing.sightings if sighting.is_owed}

    def _may_be_listed(self, ref: str, listing: Listing) -> bool:
        """True for an item that is not over as far as anybody knows, though this look does not show it."""
        try:
            ledger = self._ledgers.get(ref)
        except (HeldItem, OSError):
            return True
        return bool(listing.faults) if ledger is None else ledger.poll.phase.is_open

    # --- the source ---

    def _succeed(self, watched: Watched, listing: Listing) -> None:
        watched.was_looked_at = True
        watched.failures = 0
        watched.next_look_s = 0.0
        watched.items = listing.items
        if listing.faults:
            self._say_error(watched, in_few_words(listing.faults), *map(str, listing.faults))
            return
        watched.last_good_at = self._now()
        if watched.error and self._wait_of(watched) is None:
            watched.error = ""
            watched.told.clear()
            self._tell(Note("source.recovered", {"source": watched.source.name}))

    def _fail(self, watched: Watched, error: SourceError, interval_s: float) -> None:
        watched.was_looked_at = True
        if isinstance(error, Limited):
            self._wait(watched, error)
            return
        watched.failures += 1
        growing = interval_s * 2 ** min(watched.failures - 1, 12)
        watched.next_look_s = self._monotonic() + max(min(growing, _LONGEST_BACKOFF_S) - interval_s / 2, 0.0)
        self._say_error(watched, str(error))

    def _wait(self, watched: Watched, limit: Limited) -> None:
        """Nobody asks before that moment, also after a restart."""
        until = self._now() + limit.wait_s
        watched.wait_ends_s = self._monotonic() + limit.wait_s
        watched.error = limit.problem
        fields = {"source": watched.source.name, "until": timestamp(until), "reason": limit.problem}
        self._tell(Note("source.waiting", fields))
        self._move_on(watched, replace(watched.cursor, wait=Wait(until, limit.wait_s, limit.problem)))

    def _wait_of(self, watched: Watched) -> Wait | None:
        """The wait that is still in force."""
        return watched.cursor.wait if watched.wait_left_s(self._monotonic()) > 0 else None

    def _say_error(self, watched: Watched, error: str, *parts: str) -> None:
        """What is wrong is told once until the source recovers: each part of it, in whatever company it comes."""
        if not watched.told.issuperset(parts or {error}):
            good_at = watched.last_good_at
            fields = {"source": watched.source.name, "reason": error}
            self._tell(Note("source.failed", {**fields, "lastGoodAt": good_at and timestamp(good_at)}))
        watched.error = error
        watched.told.update(parts or {error})

    def _move_on(self, watched: Watched, cursor: Cursor) -> None:
        """The new position, in memory and on disk; without a disk the next start asks for more than it has to."""
        if cursor == watched.cursor:
            return
        watched.cursor = cursor
        if not self._ledgers.is_ours():
            return
        try:
            write_cursor(self._root, watched.source.name, cursor)
        except OSError as error:
            reason = f"cannot write its position: {error.strerror or error}"
            self._tell(Note("source.failed", {"source": watched.source.name, "reason": reason}))


def _is_quiet(ledger: Ledger | None, sighting: Sighting, is_owed: bool) -> bool:  # noqa: FBT001
    """True for a listed item whose session is live and of which there is no news: most of them, most of the time."""
    if ledger is None or is_owed or sighting.rows or sighting.presence is not Presence.LISTED:
        return False
    poll = ledger.poll
    if poll.away or poll.behind:
        return False
    spawn = poll.pending.get(ledger.spawn_key)
    return poll.phase is Phase.LIVE or (spawn is not None and spawn.state is Standing.QUEUED)
