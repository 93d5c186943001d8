"""One cycle of one source: it is polled, its items are visited, and its cursor comes last.

Nothing of a poll is recorded before its items are; the cursor names those that could not be written.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from the_loop.clocks import Clock
from the_loop.core.model import Note, explain, timestamp
from the_loop.cursors import Cursor, Wait, write_cursor
from the_loop.dispatcher import Dispatcher
from the_loop.known import KnownItems
from the_loop.ledgers import Ledgers
from the_loop.notices import Notices
from the_loop.outbox import Outbox
from the_loop.sources.base import Limited, Listing, SourceError, in_few_words
from the_loop.state import StateRoot
from the_loop.turns import Turns
from the_loop.visits import Budget, Visits
from the_loop.watched import Watched

LONGEST_BACKOFF_S: Final = 600.0


class Cycle:
    """Runs cycles, of any source. Built once for all sources of a life."""

    def __init__(
        self,
        root: StateRoot,
        ledgers: Ledgers,
        outbox: Outbox,
        dispatcher: Dispatcher,
        *,
        tell: Callable[[Note], None],
        clock: Clock,
    ) -> None:
        self._root = root
        self._ledgers = ledgers
        self._outbox = outbox
        self._dispatcher = dispatcher
        self._tell = tell
        self._clock = clock
        self._visits = Visits(ledgers, outbox, dispatcher, tell=tell, on_limit=self._wait)
        self._notices = Notices(ledgers, tell, clock.now)

    async def run(self, watched: Watched) -> int:
        """Poll this source and take up what is new; the number of errors. Raises only CancelledError."""
        self._ledgers.look_again()
        known = KnownItems(self._ledgers, watched.source)
        watched.waiting = known.waiting
        try:
            listing = await watched.source.poll(watched.cursor.value, known)
        except SourceError as error:
            self._fail(watched, error)
            return 1
        except Exception as error:  # noqa: BLE001 (the border: one broken source costs that one only)
            if not isinstance(error, OSError):  # a cursor of a wrong shape is not a cursor
                watched.cursor = Cursor(wait=watched.cursor.wait)
            self._fail(watched, SourceError(f"unexpected: {type(error).__name__}: {error}"))
            return 1
        for note in listing.notes:
            self._tell(note)
        limit = next((fault for fault in listing.faults if isinstance(fault, Limited)), None)
        if limit is not None:
            self._wait(watched, limit)
        budget = Budget(initial_syncs=0) if listing.is_short else Budget()
        if self._wait_of(watched) is not None:
            budget.exhaust()
        turns = Turns()  # with many items each of these steps is long, also where nothing is new
        await turns.are_given()
        errors, owed = await self._visits.all_of(watched, listing, budget, known.doubtful)
        self._succeed(watched, listing)
        await turns.are_given()
        self._move_on(watched, Cursor(dict(listing.cursor), frozenset(owed), self._wait_of(watched)))
        await turns.are_given()
        untold = await self._tell_give_ups(watched)
        return errors + untold + len(listing.faults)

    def offer_pending(self, watched: Watched) -> None:
        """Hand over what is due of this source's items; while it fails, a spawn that waits for a poll as it was."""
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
        if not self._outbox.policy.reports_give_ups or self._wait_of(watched) is not None:
            return 0
        try:
            return await self._notices.send(watched.source)
        except Limited as limit:
            self._wait(watched, limit)
            return 1

    def _succeed(self, watched: Watched, listing: Listing) -> None:
        watched.was_polled = True
        watched.failures = 0
        watched.items = listing.items
        watched.overlooked = listing.overlooked
        watched.held_by = listing.held_by
        if listing.faults:
            self._say_error(watched, in_few_words(listing.faults), *map(str, listing.faults))
            return
        if not listing.held_by:
            watched.last_good_at = self._clock.now()
        if watched.error and self._wait_of(watched) is None:
            watched.error = ""
            watched.told.clear()
            self._tell(Note("source.recovered", {"source": watched.source.name}))

    def _fail(self, watched: Watched, error: SourceError) -> None:
        watched.was_polled = True
        watched.held_by = ""
        if isinstance(error, Limited):
            self._wait(watched, error)
            return
        watched.failures += 1
        self._say_error(watched, str(error))

    def _wait(self, watched: Watched, limit: Limited) -> None:
        """Nothing is asked before that moment, also after a restart."""
        until = self._clock.now() + limit.wait_s
        watched.wait_ends_s = self._clock.uptime() + limit.wait_s
        watched.error = limit.problem
        fields = {"source": watched.source.name, "until": timestamp(until), "reason": limit.problem}
        self._tell(Note("source.waiting", fields))
        self._move_on(watched, replace(watched.cursor, wait=Wait(until, limit.wait_s, limit.problem)))

    def _wait_of(self, watched: Watched) -> Wait | None:
        """The wait that is still in force."""
        return watched.cursor.wait if watched.wait_left_s(self._clock.uptime()) > 0 else None

    def _say_error(self, watched: Watched, error: str, *parts: str) -> None:
        """What is wrong is told once until the source recovers: each part of it, in whatever company it comes."""
        if not watched.told.issuperset(parts or {error}):
            good_at = watched.last_good_at
            fields = {"source": watched.source.name, "reason": error}
            self._tell(Note("source.failed", {**fields, "lastGoodAt": good_at and timestamp(good_at)}))
        watched.error = error
        watched.told.update(parts or {error})

    def _move_on(self, watched: Watched, cursor: Cursor) -> None:
        """The new cursor, in memory and on disk; without a disk the next start asks for more than it has to."""
        if cursor == watched.cursor:
            return
        watched.cursor = cursor
        if not self._ledgers.is_ours():
            return
        try:
            write_cursor(self._root, watched.source.name, cursor)
        except OSError as error:
            reason = f"cannot write its cursor: {explain(error)}"
            self._tell(Note("source.failed", {"source": watched.source.name, "reason": reason}))


def backoff_s(failures: int, interval_s: float) -> float:
    """Seconds until a source is polled again that failed so many times in a row: growing, at most ten minutes."""
    if failures == 0:
        return interval_s
    growing_s = interval_s * float(1 << min(failures - 1, 12))
    return max(interval_s, min(growing_s, LONGEST_BACKOFF_S))
