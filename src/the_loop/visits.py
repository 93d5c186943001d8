"""One poll's items in turn: what is seen of each is decided, written, and only then handed over.

A stop cancels between two items, so never inside one. An item that fails costs itself: it needs a full re-read.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from the_loop.core.decide import Decision, View, decide, wants_thread
from the_loop.core.guards import Rules
from the_loop.core.ledger import Ledger, Phase, Standing
from the_loop.core.model import Note, Presence, explain
from the_loop.deliveries import DeliveryRuns
from the_loop.dispatcher import Dispatcher
from the_loop.ledgers import HeldItem, Ledgers, UnreadItem
from the_loop.outbox import Outbox
from the_loop.sources.base import Labelled, Limited, Listing, Sighting, SourceError, Unanswered
from the_loop.turns import Turns
from the_loop.watched import Watched

INITIAL_SYNCS: Final = 50  # of one source in one cycle, so that known items are not kept waiting (contract R6.9)
_THREADS: Final = 200  # of known items that need a full re-read, for the same reason
_AT_ONCE: Final = 16  # events and notes of one item that are dealt with in one go
_PATIENCE: Final = 10  # threads of one poll that could not be read, before no more are asked for


@dataclass(slots=True)
class Budget:
    """How many threads may still be read in this poll."""

    initial_syncs: int = INITIAL_SYNCS
    threads: int = _THREADS

    def take(self, *, is_first: bool) -> bool:
        """True if one more thread may be read."""
        left = self.initial_syncs if is_first else self.threads
        if left <= 0:
            return False
        if is_first:
            self.initial_syncs -= 1
        else:
            self.threads -= 1
        return True

    def exhaust(self) -> None:
        self.initial_syncs = self.threads = 0


class Visits:
    """Visits the items of a listing. `on_limit` is told of a limit that is met on the way."""

    def __init__(
        self,
        ledgers: Ledgers,
        outbox: Outbox,
        dispatcher: Dispatcher,
        *,
        tell: Callable[[Note], None],
        on_limit: Callable[[Watched, Limited], None],
    ) -> None:
        self._ledgers = ledgers
        self._outbox = outbox
        self._dispatcher = dispatcher
        self._tell = tell
        self._on_limit = on_limit

    async def all_of(
        self, watched: Watched, listing: Listing, budget: Budget, doubtful: AbstractSet[str] = frozenset()
    ) -> tuple[int, set[str]]:
        """Visit every item; the number of errors, and the items that need a full re-read.

        `doubtful` are those whose ledgers could not be read when the source was told what is known.
        """
        owed = self._owed(watched, listing)
        errors = unanswered = 0
        turns, worked = Turns(), True
        ordered = self._in_turn(watched, listing)
        for done, sighting in enumerate(ordered):
            watched.visited = (done, len(ordered))
            await turns.are_given(now=worked)  # where a stop takes hold: between items, with the last one on disk
            worked = True
            try:
                if sighting.ref in doubtful:
                    raise UnreadItem(sighting.ref)
                worked = await self._visit(watched, sighting, owed, budget)
                watched.is_well(sighting.ref)
            except HeldItem:
                owed.add(sighting.ref)
            except UnreadItem:  # told by the ledgers
                owed.add(sighting.ref)
                errors += 1
            except Limited as limit:
                owed.add(sighting.ref)
                budget.exhaust()
                self._on_limit(watched, limit)
                errors += 1
            except Exception as error:  # noqa: BLE001 (the border: one broken item costs that one only)
                owed.add(sighting.ref)
                self._look_after(sighting.ref, error)
                unanswered += isinstance(error, Unanswered)
                if unanswered == _PATIENCE:
                    budget.exhaust()
                self._fail(watched, sighting.ref, error)
                errors += 1
        watched.visited = None
        return errors, owed

    def _in_turn(self, watched: Watched, listing: Listing) -> list[Sighting]:
        """First known items that had to wait for a full re-read, last those whose threads could not be read.

        If there are more of the first than one poll may read, chance decides: all have their turn, also if each poll
        asks for all of them.
        """
        left = watched.cursor.owed.intersection(self._ledgers.refs()) if watched.cursor.owed else frozenset[str]()
        chance = random.random if len(left) > _THREADS else float

        def turn(sighting: Sighting) -> tuple[bool, float]:
            return sighting.ref in watched.troubled, chance() if sighting.ref in left else 1.0

        return sorted(listing.sightings, key=turn)

    def _look_after(self, ref: str, error: Exception) -> None:
        if isinstance(error, DeliveryRuns):
            with suppress(OSError, HeldItem):  # it is looked at again in the next cycle
                self._dispatcher.look_after(ref)

    def _fail(self, watched: Watched, ref: str, error: Exception) -> None:
        """What is wrong with an item is told once, until it is well again."""
        reason = "a delivery of it is under way" if isinstance(error, DeliveryRuns) else explain(error)
        if isinstance(error, Unanswered):
            watched.troubled.add(ref)
        if watched.item_errors.get(ref) != reason:
            self._tell(Note("item.failed", {"ref": ref, "source": watched.source.name, "reason": reason}))
        watched.item_errors[ref] = reason

    async def _visit(self, watched: Watched, sighting: Sighting, owed: set[str], budget: Budget) -> bool:
        """False if there was nothing to do for this item."""
        ref = sighting.ref
        ledger = self._ledgers.get(ref)
        if ledger is not None and sighting.item is not None and ledger.id not in ("", sighting.item.id):
            raise self._ledgers.hold(ref, f"it is of another item ('{ledger.id}', not '{sighting.item.id}')")
        if _is_quiet(ledger, sighting, ref in owed):
            return False
        gap = ""
        view = await self._read(self._view(ledger, sighting), watched.rules)
        if wants_thread(ledger, view, watched.rules, owed=ref in owed):
            if not budget.take(is_first=ledger is None):
                owed.add(ref)
                return False
            thread = await watched.source.thread(ref)
            if thread.item is None and sighting.presence is Presence.LISTED:
                owed.add(ref)
                return True
            gap = thread.gap
            ledger = self._ledgers.get(ref)  # an outcome may have been recorded meanwhile
            view = self._view(ledger, sighting)
            item, entries = thread.item or view.item, thread.entries
            view = replace(view, item=item, thread=entries, omitted=thread.omitted, is_partial=bool(gap))
            view = await self._read(view, watched.rules)
            if (now := self._ledgers.get(ref)) is not ledger:
                ledger, view = now, _again(self._view(now, sighting), view)
        view = await self._with_trusted_labels(watched, ledger, view)
        if (now := self._ledgers.get(ref)) is not ledger:
            ledger, view = now, _again(self._view(now, sighting), view)
        await self._decide(sighting, ledger, view, watched.rules)
        if view.thread is not None:
            owed.discard(ref)
        self._dispatcher.offer(ref)
        if gap:
            raise SourceError(f"its thread cannot be read as a whole: {gap}")
        return True

    async def _with_trusted_labels(self, watched: Watched, ledger: Ledger | None, view: View) -> View:
        """The view without labels that nobody authorised has set, where they choose the receiver of a new session."""
        rules, source, item = watched.rules, watched.source, view.item
        if item is None or not rules.receiver_for(item.labels) or (ledger is not None and ledger.poll.phase.has_queue):
            return view
        if rules.trusts_labels or not isinstance(source, Labelled):
            return view
        after = decide(ledger, view, rules).ledger
        if after is None or not after.poll.phase.has_queue:
            return view
        by = await source.labelled_by(view.ref)
        labels = [label for label in item.labels if rules.may_speak(*by.get(label.casefold(), (None, None)))]
        return replace(view, item=replace(item, labels=tuple(labels)))

    async def _read(self, view: View, rules: Rules) -> View:
        """Have long texts with words or marks in them read in a thread: others have their turns meanwhile."""
        if view.has_slow_ones(rules):
            await asyncio.to_thread(view.read_slow_ones, rules)
        return view

    async def _decide(self, sighting: Sighting, ledger: Ledger | None, view: View, rules: Rules) -> None:
        """Decide, and have it on disk. If there is much to write, others have turns, and it is decided again."""
        decision = decide(ledger, view, rules)
        laid_out: frozenset[str] = frozenset()
        while len(decision.events) + len(decision.notes) > _AT_ONCE:
            laid_out = await self._outbox.lay_out(ledger, decision)
            if (now := self._ledgers.get(sighting.ref)) is ledger:
                break
            ledger, view = now, _again(self._view(now, sighting), view)
            decision = decide(ledger, view, rules)
        self._outbox.record(decision, laid_out)
        await self._tell_all([*decision.notes, *_accepted(ledger, decision)])

    async def _tell_all(self, notes: Sequence[Note]) -> None:
        """All of them, also if a stop takes hold in between: what they tell has happened."""
        turns, left = Turns(), deque(notes)
        try:
            while left:
                self._tell(left.popleft())
                await turns.are_given()
        finally:
            for note in left:
                self._tell(note)

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

    def _owed(self, watched: Watched, listing: Listing) -> set[str]:
        """The items whose thread has to be read before rows count; none that ended and is not listed."""
        here = {sighting.ref for sighting in listing.sightings}
        held = self._ledgers.held()
        owed = {ref for ref in watched.cursor.owed if ref in here or ref in held or self._may_be_listed(ref, listing)}
        if watched.cursor.value is None:
            owed |= here
        owed |= {ref for ref in held if watched.source.owns(ref)}
        return owed | {sighting.ref for sighting in listing.sightings if sighting.is_owed}

    def _may_be_listed(self, ref: str, listing: Listing) -> bool:
        """True for an item that is not known to be over, though this poll does not show it."""
        try:
            ledger = self._ledgers.get(ref)
        except (HeldItem, OSError):
            return True
        return bool(listing.faults) if ledger is None else ledger.poll.phase.is_open


def _again(view: View, read: View) -> View:
    """The view of a ledger that has changed, with the thread as it was read."""
    return replace(view, item=read.item, thread=read.thread, omitted=read.omitted, is_partial=read.is_partial)


def _accepted(before: Ledger | None, decision: Decision) -> Iterator[Note]:
    """The events that were taken up just now."""
    known = {} if before is None else before.poll.pending
    for event in decision.events:
        if event.key not in known:
            said = {"ref": event.ref, "key": event.key, "kind": str(event.kind), "author": event.author}
            yield Note("poll.accepted", said)


def _is_quiet(ledger: Ledger | None, sighting: Sighting, is_owed: bool) -> bool:  # noqa: FBT001
    """True for a listed item whose session is live and of which there is no news: most of them, most of the time."""
    if ledger is None or is_owed or sighting.rows or sighting.presence is not Presence.LISTED:
        return False
    poll = ledger.poll
    if poll.away or poll.behind:
        return False
    spawn = poll.pending.get(ledger.spawn_key)
    return poll.phase is Phase.LIVE or (spawn is not None and spawn.state is Standing.QUEUED)
