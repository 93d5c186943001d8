"""What an earlier life left, settled at the start: the normal path begins with it.

Outcomes are recorded, what is under way is adopted, what was never begun is put back, and files of deliveries that
are not pending are removed. What cannot be found out is adopted too: the dispatcher looks at it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from the_loop.core.ledger import Ledger, Pending, Standing, rearm, versions_that_gave_up
from the_loop.core.model import Note, Outcome, Verdict, explain
from the_loop.core.outcomes import without_a_session_to_close
from the_loop.deliveries import Deliveries, DeliveryRuns
from the_loop.ledgers import HeldItem, Ledgers
from the_loop.outbox import Outbox
from the_loop.runners.base import Offer, Trace


class Recovery:
    """One start of one state root."""

    def __init__(self, deliveries: Deliveries, ledgers: Ledgers, outbox: Outbox, tell: Callable[[Note], None]) -> None:
        self._deliveries = deliveries
        self._ledgers = ledgers
        self._outbox = outbox
        self._tell = tell

    def run(self) -> Iterator[list[Offer]]:
        """Settle everything that can be settled now; by item, what is under way, or may be.

        Nothing else may be decided or handed over before the last step.
        """
        for ledger in self._ledgers.with_pending():
            yield self._item(ledger)
        for _ in self._remove_orphans():
            yield []

    def _item(self, ledger: Ledger) -> list[Offer]:
        under_way: list[Offer] = []
        for key, entry in ledger.poll.pending.items():
            try:
                under_way += self._event(ledger.ref, key)
            except HeldItem:
                continue
            except (OSError, DeliveryRuns) as error:
                self._tell(Note("item.failed", {"ref": ledger.ref, "reason": explain(error)}))
                if entry.state.is_offered:
                    under_way.append(self._outbox.offer_of(ledger.ref, key, entry))
        return under_way

    def _event(self, ref: str, key: str) -> Iterator[Offer]:
        ledger = self._ledgers.get(ref)
        entry = None if ledger is None else ledger.poll.pending.get(key)
        if ledger is None or entry is None:
            return  # it went with an event before it
        if not entry.state.is_offered:
            self._rearm_for_this_version(ledger, key, entry)
            return
        offer = self._outbox.offer_of(ledger.ref, key, entry)
        status = self._outbox.inspect(offer)
        if status.trace.is_under_way:
            yield offer
        elif status.outcome is not None:
            self._outbox.conclude(offer, status.outcome)
        elif status.trace is Trace.UNKNOWN:
            self._outbox.conclude(offer, Outcome(Verdict.UNKNOWN, "it was begun, and cut off with its keeper"))
        else:
            self._outbox.put_back(offer)

    def _rearm_for_this_version(self, ledger: Ledger, key: str, entry: Pending) -> None:
        version = self._outbox.policy.version
        if entry.state is not Standing.GAVE_UP or version in versions_that_gave_up(ledger, key):
            return
        self._ledgers.save(without_a_session_to_close(rearm(ledger, key)))
        reason = f"version {version} has not tried it yet"
        self._tell(Note("poll.rearmed", {"ref": ledger.ref, "key": key, "reason": reason}))

    def _remove_orphans(self) -> Iterator[None]:
        """Files of events that are pending nowhere; those of held items stay, and what still runs is left alone."""
        wanted = {
            self._outbox.offer_of(ledger.ref, key, entry).stem.name
            for ledger in self._ledgers.with_pending()
            for key, entry in ledger.poll.pending.items()
        }
        held = self._ledgers.held()
        try:
            stems = self._deliveries.stems()
        except OSError as error:  # they are removed by another start
            self._tell(Note("item.failed", {"ref": "local/deliveries", "reason": explain(error)}))
            return
        for stem in stems:
            with suppress(OSError):  # what cannot be looked at stays
                if stem.name not in wanted and not self._is_of_unknown_ledger(stem, held):
                    self._remove_unless_it_runs(stem)
            yield

    def _remove_unless_it_runs(self, stem: Path) -> None:
        if not self._outbox.inspect(Offer("", stem.name, stem, 0, 0)).trace.is_under_way:
            self._deliveries.remove(stem)

    def _is_of_unknown_ledger(self, stem: Path, held: Mapping[str, str]) -> bool:
        """True if its item has a ledger that cannot be read: what is pending in it is not known. Raises OSError."""
        payload = self._deliveries.payload(stem)
        ref = None if payload is None else str(payload.get("ref"))
        if ref is None or ref in held:
            return ref in held
        try:
            ledger = self._ledgers.get(ref)
        except (HeldItem, OSError):
            return True
        if ledger is None:
            return False
        # it may be readable only since a moment ago, after the pending events were counted
        return any(self._outbox.offer_of(ref, key, one).stem == stem for key, one in ledger.poll.pending.items())
