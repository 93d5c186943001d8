"""Between the decisions and the receivers: what is written before a hand-over, and what is recorded after it.

The commit order is what the promise rests on. Taking up: payloads, then the ledger, and only then a hand-over.
Concluding: outcome (written by the keeper), then the ledger, then the files are removed. Whatever is cut off in
between is found by `recover` and goes on from there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from the_loop.core.decide import Decision, close_session, closing_event
from the_loop.core.guards import Dropped, Rules
from the_loop.core.ledger import (
    Ledger,
    Pending,
    Phase,
    Standing,
    change,
    is_spawn,
    move,
    rearm,
    settle,
    versions_that_gave_up,
    withdraw,
)
from the_loop.core.model import Event, Kind, Note, Outcome, Verdict, delivery_id, explain
from the_loop.core.outcomes import Policy, conclude, is_due, without_a_session_to_close
from the_loop.deliveries import beside, remove_all, stem_of
from the_loop.durable import read_json_object, to_json_line, write_durably
from the_loop.ledgers import HeldItem, Ledgers
from the_loop.runners.base import Offer, Runner, Trace
from the_loop.state import StateRoot


class Outbox:
    """The pending events of all items. `rules_of` gives the rules of an item's source, None for one not configured."""

    def __init__(
        self,
        root: StateRoot,
        ledgers: Ledgers,
        runner: Runner,
        *,
        policy: Policy,
        rules_of: Callable[[str], Rules | None],
        tell: Callable[[Note], None],
        now: Callable[[], float],
        offers_once: bool = False,
    ) -> None:
        self._runner = runner
        self.policy = policy
        self.delivered = 0  # receipts since the start
        self._root = root
        self._ledgers = ledgers
        self._rules_of = rules_of
        self._tell = tell
        self._now = now
        self._offers_once = offers_once
        self._offered: set[tuple[str, str]] = set()

    def reconfigure(self, policy: Policy, runner: Runner) -> None:
        """From now on offers are made under this policy, to this runner; what is under way goes on as it is."""
        self.policy = policy
        self._runner = runner

    async def hand_over(self, offer: Offer) -> Outcome:
        """Start this offer and wait for what becomes of it."""
        return await self._runner.deliver(offer)

    async def adopt(self, offer: Offer) -> Outcome:
        """Wait for an offer that was started before."""
        return await self._runner.adopt(offer)

    def trace(self, offer: Offer) -> Trace:
        """What is known of this offer right now."""
        return self._runner.inspect(offer).trace

    def commit(self, decision: Decision) -> None:
        """Put a decision on disk, in its order. Raises OSError; what was written before that does no harm."""
        for event in decision.events:
            self._write_payload(event)
        if decision.ledger is not None:
            self._ledgers.save(decision.ledger)
            for key in decision.withdrawn:
                remove_all(self._stem(decision.ledger.ref, key))
        for note in decision.notes:
            self._tell(note)

    def is_due(self, entry: Pending) -> bool:
        """True if the event's wait is over. In a single run a refusal waits for the next run, not for a time."""
        if self._offers_once and entry.state is Standing.REFUSED:
            return True
        return is_due(entry, self._now())

    def next(self, ref: str) -> Offer | None:
        """The event of this item that is to be handed over now, if any. Raises OSError."""
        try:
            ledger = self._ledgers.get(ref)
        except HeldItem:
            return None
        rules = self._rules_of(ref)
        if ledger is None or rules is None:
            return None
        while (key := self._head(ledger)) is not None:
            entry = ledger.poll.pending[key]
            if self._offers_once and (ref, key) in self._offered:
                return None
            if entry.kind is Kind.SPAWN and not self._may_spawn(ledger, entry, rules):
                self._reconsider_spawn(ledger, key, entry)
                return None
            if rules.may_speak(entry.author) or entry.kind in (Kind.CLOSE, Kind.SPAWN):
                return self._prepare(ledger, key, entry)
            ledger = self._drop(ledger, key)
        return None

    def _may_spawn(self, ledger: Ledger, entry: Pending, rules: Rules) -> bool:
        """True if the item's author may still start it, and nobody who was taken off the list speaks in its thread.

        A spawn without an author was started by a person's word, whoever wrote the item.
        """
        if entry.author is not None and not rules.may_speak(entry.author):
            return False
        if entry.may_have_arrived:
            return True  # the same bytes again
        payload = self._payload(ledger.ref, ledger.spawn_key) or {}
        return all(rules.may_speak(said.get("author")) for said in payload.get("thread", ()))

    def _reconsider_spawn(self, ledger: Ledger, key: str, entry: Pending) -> None:
        """Somebody was taken off the list: build it anew in the next look; what may have arrived is ended instead."""
        if not entry.may_have_arrived:
            self._ledgers.save(change(move(ledger, key, Standing.RELEASED), behind=True))
            return
        after = self._drop(ledger, key)
        if after.poll.phase is Phase.STARTING:
            self.commit(close_session(after, str(Dropped.UNAUTHORIZED)))

    def _prepare(self, ledger: Ledger, key: str, entry: Pending) -> Offer | None:
        """Have the payload say what it has to; None where there is none any more."""
        if entry.kind is Kind.CLOSE and self._payload(ledger.ref, key) is None:
            self._write_payload(closing_event(ledger))
        if not self._refresh_payload(ledger.ref, key, entry):
            self._ledgers.save(self._lost(ledger, key))
            return None
        if self._offers_once:
            self._offered.add((ledger.ref, key))
        return self._offer(ledger.ref, key, entry)

    def conclude(self, offer: Offer, outcome: Outcome) -> None:
        """Record what became of a hand-over, then remove its files. Raises OSError if it cannot be recorded."""
        ref, key = offer.ref, offer.key
        try:
            ledger = self._ledgers.get(ref)
        except HeldItem:
            return  # its files keep the outcome for the day its ledger is back
        if ledger is None or key not in ledger.poll.pending:
            remove_all(offer.stem)
            return
        after, notes = conclude(ledger, key, outcome, self.policy, self._now())
        if after != ledger:
            self._ledgers.save(after)
        for gone in ledger.poll.pending.keys() - after.poll.pending.keys():
            remove_all(self._stem(ref, gone))
        self.delivered += outcome.verdict is Verdict.DELIVERED
        for note in notes:
            self._tell(note)
        if outcome.verdict is Verdict.UNKNOWN:
            self._tell(Note("dispatch.uncertain", {"ref": ref, "key": key, "reason": outcome.reason}))

    def recover(self) -> list[Offer]:
        """Settle what an earlier life left: outcomes are recorded, what nobody began is offered again.

        Returns what still runs. Removes files that no pending event stands behind.
        """
        running: list[Offer] = []
        for ledger in self._ledgers.with_pending():
            for key in list(ledger.poll.pending):
                try:
                    running += self._recover_event(ledger.ref, key)
                except OSError as error:  # its files keep what is known; its turn comes again
                    self._tell(Note("item.failed", {"ref": ledger.ref, "reason": explain(error)}))
        self._remove_orphans()
        return running

    def release_all(self, begun: Mapping[str, str]) -> list[str]:
        """Put back what was accepted and not begun; the delivery ids. Events in `begun` (by ref) are marked as such.

        What cannot be written is left as it is: a queued event means the same to the next start.
        """
        released = []
        for ledger in self._ledgers.with_pending():
            after = ledger
            for key, entry in ledger.poll.pending.items():
                if key == begun.get(ledger.ref):
                    after = move(after, key, Standing.RUNNING)
                elif entry.state in (Standing.QUEUED, Standing.RELEASED):
                    after = move(after, key, Standing.RELEASED)
                    released.append(delivery_id(ledger.ref, key))
            if after != ledger:
                with suppress(OSError):
                    self._ledgers.save(after)
        return released

    def offer_as_it_was(self, ref: str) -> None:
        """A released spawn whose source cannot be asked goes out as it was built. Raises OSError."""
        try:
            ledger = self._ledgers.get(ref)
        except HeldItem:
            return
        spawn = None if ledger is None else ledger.poll.pending.get(ledger.spawn_key)
        if ledger is not None and spawn is not None and spawn.state is Standing.RELEASED:
            self._ledgers.save(move(ledger, ledger.spawn_key, Standing.QUEUED))

    def _head(self, ledger: Ledger) -> str | None:
        """The first event that is not given up, if its turn has come."""
        poll = ledger.poll
        if not poll.phase.has_queue or (poll.phase is not Phase.ENDING and (poll.paused or poll.away)):
            return None
        for key, entry in poll.pending.items():
            if entry.state is Standing.GAVE_UP:
                continue
            return key if self._is_offerable(key, entry) else None
        return None

    def _is_offerable(self, key: str, entry: Pending) -> bool:
        match entry.state:
            case Standing.QUEUED | Standing.UNCERTAIN | Standing.RUNNING:
                return True
            case Standing.RELEASED:
                return not is_spawn(key)  # a spawn is built anew first, from its thread as it is then
            case Standing.REFUSED | Standing.LATER:
                return not is_spawn(key) and self.is_due(entry)
            case _:
                return False

    def _recover_event(self, ref: str, key: str) -> Iterator[Offer]:
        ledger = self._ledgers.get(ref)
        entry = None if ledger is None else ledger.poll.pending.get(key)
        if ledger is None or entry is None:
            return
        if entry.state in (Standing.HELD, Standing.GAVE_UP, Standing.LOST):
            self._recover_unbegun(ledger, key, entry)
            return
        offer = self._offer(ref, key, entry)
        status = self._runner.inspect(offer)
        if status.trace is Trace.RUNNING:
            self._offered.add((ref, key))
            yield offer
        elif status.trace is Trace.DONE and status.outcome is not None:
            self.conclude(offer, status.outcome)
        elif status.trace is Trace.UNKNOWN:
            self.conclude(offer, Outcome(Verdict.UNKNOWN, "it was begun, and cut off with its keeper"))
        else:
            self._recover_unbegun(ledger, key, entry)

    def _recover_unbegun(self, ledger: Ledger, key: str, entry: Pending) -> None:
        after = ledger
        if entry.state is Standing.GAVE_UP:
            if self.policy.version not in versions_that_gave_up(ledger, key):
                after = rearm(ledger, key)
        elif entry.state in (Standing.HELD, Standing.LOST):
            return
        elif self._payload(ledger.ref, key) is None:
            after = self._lost(ledger, key)
        elif entry.state is Standing.QUEUED or entry.state is Standing.RUNNING:
            after = move(ledger, key, Standing.RELEASED)
        after = without_a_session_to_close(after)
        if after != ledger:
            self._ledgers.save(after)
        if entry.state is Standing.GAVE_UP and after != ledger:
            reason = f"version {self.policy.version} has not tried it yet"
            self._tell(Note("poll.rearmed", {"ref": ledger.ref, "key": key, "reason": reason}))

    def _remove_orphans(self) -> None:
        """Files of events that are pending nowhere; those of held items stay, and what still runs is left alone."""
        wanted = {
            self._stem(ledger.ref, key).name for ledger in self._ledgers.with_pending() for key in ledger.poll.pending
        }
        held = self._ledgers.held()
        for path in self._root.deliveries.iterdir():
            stem = stem_of(path)
            if stem.name in wanted or self._is_of_unknown_ledger(stem, held):
                continue
            if self._runner.inspect(Offer("", stem.name, stem, 0, 0)).trace is not Trace.RUNNING:
                remove_all(stem)

    def _lost(self, ledger: Ledger, key: str) -> Ledger:
        """Its payload is gone (the ledger came from another machine): read it again from the thread.

        Of an item that is ending nothing is read any more; its next start carries what was to be said.
        """
        entry = ledger.poll.pending[key]
        if entry.kind is Kind.CLOSE:
            return ledger
        if ledger.poll.phase is Phase.ENDING and not is_spawn(key):
            self._tell(Note("dispatch.dropped", {"ref": ledger.ref, "key": key, "reason": "payload lost"}))
            return withdraw(ledger, key)
        ledger = move(ledger, key, Standing.LOST, redelivery=entry.may_have_arrived)
        return without_a_session_to_close(change(ledger, behind=True))

    def _is_of_unknown_ledger(self, stem: Path, held: Mapping[str, str]) -> bool:
        """True if its item has a ledger that cannot be read: what is pending in it cannot be told."""
        ref = _ref_in(stem)
        if ref is None or ref in held:
            return ref in held
        try:
            ledger = self._ledgers.get(ref)
        except (HeldItem, OSError):
            return True
        # it may be readable only since a moment ago, after the pending events were counted
        return ledger is not None and any(self._stem(ref, key) == stem for key in ledger.poll.pending)

    def _drop(self, ledger: Ledger, key: str) -> Ledger:
        """Settle an event whose author may not speak any more."""
        after = settle(ledger, key)
        self._ledgers.save(after)
        remove_all(self._stem(ledger.ref, key))
        self._tell(Note("dispatch.dropped", {"ref": ledger.ref, "key": key, "reason": str(Dropped.UNAUTHORIZED)}))
        return after

    def _offer(self, ref: str, key: str, entry: Pending) -> Offer:
        stem = self._stem(ref, key)
        return Offer(ref, key, stem, entry.offer, entry.attempt)

    def _stem(self, ref: str, key: str) -> Path:
        return self._root.delivery(delivery_id(ref, key))

    def _write_payload(self, event: Event) -> None:
        content = {"schema": 1, "offer": 1, **event.to_json(attempt=1, redelivery=False)}
        write_durably(beside(self._stem(event.ref, event.key), "payload.json"), to_json_line(content))

    def _payload(self, ref: str, key: str) -> dict[str, Any] | None:
        try:
            return read_json_object(beside(self._stem(ref, key), "payload.json"))
        except (OSError, ValueError):
            return None

    def _refresh_payload(self, ref: str, key: str, entry: Pending) -> bool:
        """Make the payload say which attempt this is; False if there is none that can be read."""
        payload = self._payload(ref, key)
        if payload is None:
            return False
        present = {**payload, "offer": entry.offer, "attempt": entry.attempt, "redelivery": entry.redelivery}
        if present != payload:
            write_durably(beside(self._stem(ref, key), "payload.json"), to_json_line(present))
        return True


def _ref_in(stem: Path) -> str | None:
    """The item that a delivery's payload is of."""
    try:
        return str(read_json_object(beside(stem, "payload.json")).get("ref"))
    except (OSError, ValueError):
        return None
