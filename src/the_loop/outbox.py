"""Between the decisions and the receivers: what is written before a hand-over, and what is recorded after it.

The commit order is what the promise rests on. Taking up: payloads, then the ledger, and only then a hand-over.
Concluding: outcome (written by the keeper), then the ledger, then the files are removed. Whatever is cut off in
between is found by `recover` and goes on from there.

An offer's number belongs to the bytes of its payload and rises whenever these change. Before it is concluded that an
offer was never begun, its number is withdrawn under the delivery's lock (`deliveries.withdraw_offer`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import replace
from typing import Any, cast

from the_loop.core import breaker
from the_loop.core.decide import Decision, close_session, closing_event
from the_loop.core.guards import Dropped, Rules
from the_loop.core.ledger import (
    Ledger,
    Pending,
    Phase,
    Standing,
    after_receipt,
    change,
    is_spawn,
    is_without_receiver,
    move,
    settle,
    withdraw,
)
from the_loop.core.model import Event, Kind, Note, Outcome, Verdict, delivery_id
from the_loop.core.outcomes import Policy, conclude, is_due, never_begun, without_a_session_to_close
from the_loop.counters import Counters
from the_loop.deliveries import Deliveries, outcome_of
from the_loop.ledgers import HeldItem, Ledgers
from the_loop.runners.base import Offer, Runner, Sessions, Status, Trace
from the_loop.turns import Turns


class Outbox:
    """The pending events of all items. `rules_of` gives the rules of an item's source, None for one not configured."""

    def __init__(
        self,
        deliveries: Deliveries,
        ledgers: Ledgers,
        runner: Runner,
        *,
        policy: Policy,
        rules_of: Callable[[str], Rules | None],
        tell: Callable[[Note], None],
        now: Callable[[], float],
        offers_once: bool = False,
        counters: Counters | None = None,
    ) -> None:
        self._runner = runner
        self.policy = policy
        self._receipts: Counter[str] = Counter()  # by item, since they were taken
        self._deliveries = deliveries
        self._ledgers = ledgers
        self._rules_of = rules_of
        self._tell = tell
        self._now = now
        self.offers_once = offers_once
        self._counters = counters or Counters(now)
        self._offered: set[tuple[str, str]] = set()

    async def reconfigure(self, policy: Policy, runner: Runner) -> None:
        """From now on offers are made under this policy, to this runner; what is under way goes on as it is."""
        before, self._runner, self.policy = self._runner, runner, policy
        await before.close()

    async def close(self) -> None:
        """Let go of the runner's connections."""
        await self._runner.close()

    def prepare(self, offer: Offer) -> bool:
        """Have the payload say which offer this is; False if there is nothing to hand over any more.

        Raises DeliveryRuns while an earlier offer is still ending, OSError where the files cannot be read or written.
        """
        ledger = self._ledgers.get(offer.ref)
        entry = None if ledger is None else ledger.poll.pending.get(offer.key)
        if ledger is None or entry is None or entry.offer != offer.number:
            return False
        payload = self._deliveries.payload(offer.stem)
        if payload is None and entry.kind is Kind.CLOSE:
            payload = closing_event(ledger).to_json(attempt=1, redelivery=False)
        if payload is None:
            self._ledgers.save(self._lost(ledger, offer.key))
            return False
        present = payload.get("offer")
        if isinstance(present, int) and present > offer.number:  # other bytes than the ledger knows of
            self._ledgers.save(never_begun(ledger, offer.key, present))
            return False
        self._deliveries.make_ready(offer.stem, {"schema": 1, **payload, **_address(entry)})
        self._counters.note_handed_over(offer.ref, offer.key, entry)
        return True

    async def hand_over(self, offer: Offer) -> Outcome:
        """Start this offer, which is prepared, and wait for what becomes of it."""
        return await self._runner.deliver(offer)

    async def adopt(self, offer: Offer) -> Outcome:
        """Wait for an offer that was started before."""
        if self.offers_once:
            self._offered.add((offer.ref, offer.key))
        return await self._runner.adopt(offer)

    def inspect(self, offer: Offer) -> Status:
        """What is known of this offer right now. Raises OSError."""
        return self._runner.inspect(offer)

    def trace(self, offer: Offer) -> Trace | None:
        """How far the offer is right now; None where that cannot be found out."""
        try:
            return self.inspect(offer).trace
        except OSError:
            return None

    def place(self, offer: Offer) -> str:
        """Where the offer runs, for people: a unit, for example; "" if the runner does not say."""
        place: Callable[[Offer], str] = getattr(self._runner, "place", lambda _: "")
        return place(offer)

    @property
    def sessions(self) -> Sessions | None:
        """What sessions can be asked, where the runner keeps some."""
        return cast("Sessions", self._runner) if getattr(self._runner, "keeps_sessions", False) else None

    def under_way(self, ref: str) -> list[Offer]:
        """The offers of this item that began, or will. Raises OSError, HeldItem."""
        ledger = self._ledgers.get(ref)
        pending = {} if ledger is None else ledger.poll.pending
        offers = [self.offer_of(ref, key, entry) for key, entry in pending.items() if entry.state.is_offered]
        return [offer for offer in offers if self.inspect(offer).trace is not Trace.NEVER_BEGUN]

    async def lay_out(self, before: Ledger | None, decision: Decision) -> frozenset[str]:
        """Write the payloads of new events while others have turns; their keys. Raises OSError.

        Nothing refers to them before the decision is committed. It has to be made again if `before`, the ledger that
        it was made on, is not the present one any more.
        """
        known = {} if before is None else before.poll.pending
        pending = {} if decision.ledger is None else decision.ledger.poll.pending
        new = [event for event in decision.events if event.key not in known]
        turns = Turns()
        await turns.are_given(now=True)
        for event in new:
            self._write_payload(event, pending[event.key])
            await turns.are_given()
        if new:
            self._deliveries.flush()
        return frozenset(event.key for event in new)

    def commit(self, decision: Decision, laid_out: AbstractSet[str] = frozenset()) -> None:
        """Put a decision on disk, in its order, and tell it. Raises as `record`."""
        self.record(decision, laid_out)
        for note in decision.notes:
            self._tell(note)

    def record(self, decision: Decision, laid_out: AbstractSet[str] = frozenset()) -> None:
        """Put a decision on disk, in its order: events with these keys are `laid_out` already.

        Raises OSError; what was written before that does no harm. Raises DeliveryRuns where an event that is built
        anew or withdrawn runs after all: then nothing is decided.
        """
        if decision.ledger is not None:
            ref = decision.ledger.ref
            for key, number in decision.withdrawn.items():
                self._deliveries.withdraw_offer(self._deliveries.stem(ref, key), number)
            if events := [event for event in decision.events if event.key not in laid_out]:
                for event in events:
                    self._write_payload(event, decision.ledger.poll.pending[event.key])
                self._deliveries.flush()
            self._ledgers.save(decision.ledger)
            for event in decision.events:
                self._counters.note_accepted(event, decision.ledger.poll.pending[event.key])
            for key in decision.withdrawn:
                self._deliveries.remove(self._deliveries.stem(ref, key))

    def is_due(self, entry: Pending) -> bool:
        """True if the event's wait is over. In a single run a refusal waits for the next run, not for a time."""
        if self.offers_once and entry.state is Standing.REFUSED:
            return True
        return is_due(entry, self._now())

    def next(self, ref: str) -> Offer | None:
        """The event of this item that is to be handed over now, if any. Raises OSError."""
        try:
            ledger = self._ledgers.get(ref)
        except HeldItem:
            return None
        rules = self._rules_of(ref)
        if ledger is None or rules is None or is_without_receiver(ledger, rules.receivers):
            return None
        while (key := self._head(ledger)) is not None:
            entry = ledger.poll.pending[key]
            if self._is_unwanted(ref, entry, rules):
                ledger = self._pass_over(ledger, key, entry)
                continue
            if breaker.trips(ledger, key, self.policy.events_per_hour, self._now()):
                self._trip(ledger)
                return None
            if self.offers_once and (ref, key) in self._offered:
                return None
            if entry.kind is Kind.SPAWN and not self._may_spawn(ledger, entry, rules):
                self._reconsider_spawn(ledger, key, entry)
                return None
            if rules.may_speak(entry.author) or entry.kind in (Kind.CLOSE, Kind.SPAWN):
                if self.offers_once:
                    self._offered.add((ref, key))
                return self.offer_of(ref, key, entry)
            ledger = self._drop(ledger, key)
        return None

    def _is_unwanted(self, ref: str, entry: Pending, rules: Rules) -> bool:
        """True for an event of a kind that its session does not take, unless it may have arrived: then it is ended.

        A runner that keeps sessions of its own is handed each close, whatever the kinds: it ends the session with it.
        """
        if entry.kind in rules.kinds or entry.may_have_arrived:
            return False
        return entry.kind is not Kind.CLOSE or not getattr(self._serving(ref), "keeps_sessions", False)

    def _serving(self, ref: str) -> Runner:
        """The runner of this item, where the one that we have leads to several."""
        serving: Callable[[str], Runner] = getattr(self._runner, "serving", lambda _: self._runner)
        return serving(ref)

    def _policy_of(self, ref: str) -> Policy:
        rules = self._rules_of(ref)
        if rules is None or rules.holds_uncertain is None:
            return self.policy
        return replace(self.policy, holds_uncertain=rules.holds_uncertain)

    def _pass_over(self, ledger: Ledger, key: str, entry: Pending) -> Ledger:
        """Settle such an event. A spawn was accepted under another configuration: its thread is read again first."""
        if entry.kind is Kind.SPAWN:
            after = change(move(ledger, key, Standing.RELEASED), behind=True)
            self._ledgers.save(after)
            return after
        after = self._drop(ledger, key, Dropped.KIND)
        if entry.kind is Kind.CLOSE:
            self._tell(Note("session.closed", {"ref": after.ref, "key": key, "reason": after.poll.reason}))
        return after

    def _trip(self, ledger: Ledger) -> None:
        """Too much was forwarded within an hour: the item pauses until a person lets it go on."""
        self._ledgers.save(breaker.tripped(ledger, self._now()))
        self._tell(Note("poll.breaker", {"ref": ledger.ref, "count": self.policy.events_per_hour}))

    def _may_spawn(self, ledger: Ledger, entry: Pending, rules: Rules) -> bool:
        """True if the item's author may still start it, and nobody who was taken off the list speaks in its thread.

        A spawn without an author was started by a person's word, whoever wrote the item.
        """
        if entry.author is not None and not rules.may_speak(entry.author):
            return False
        if entry.may_have_arrived:
            return True  # the same bytes again
        payload = self._deliveries.payload(self._deliveries.stem(ledger.ref, ledger.spawn_key)) or {}
        return all(rules.may_speak(said.get("author")) for said in payload.get("thread", ()))

    def _reconsider_spawn(self, ledger: Ledger, key: str, entry: Pending) -> None:
        """Somebody was taken off the list: build it anew in the next look; what may have arrived is ended instead."""
        if not entry.may_have_arrived:
            self._ledgers.save(change(move(ledger, key, Standing.RELEASED), behind=True))
            return
        after = self._drop(ledger, key)
        if after.poll.phase is Phase.STARTING:
            self.commit(close_session(after, str(Dropped.UNAUTHORIZED)))

    def conclude(self, offer: Offer, outcome: Outcome) -> None:
        """Record what became of an offer, then remove its files. Raises OSError if it cannot be recorded.

        Raises DeliveryRuns for an offer that was never begun and is under way after all.
        """
        try:
            ledger = self._ledgers.get(offer.ref)
        except HeldItem:
            return  # its files keep the outcome for the day its ledger is back
        if ledger is None or offer.key not in ledger.poll.pending:
            self._deliveries.remove(offer.stem)
            return
        if ledger.poll.pending[offer.key].offer != offer.number:
            return  # an outcome counts only for the offer that it was given for
        if outcome.verdict in (Verdict.UNSTARTABLE, Verdict.NEVER_BEGUN):  # by the lock, unless a keeper told more
            told = outcome_of(offer.stem, offer.number)
            outcome = told or outcome
            if told is None:
                self._deliveries.withdraw_offer(offer.stem, offer.number)
        after, notes = conclude(ledger, offer.key, outcome, self._policy_of(offer.ref), self._now())
        if after != ledger:
            self._ledgers.save(after)
        self._counters.note_outcome(offer.ref, ledger.poll.pending[offer.key].kind, outcome.verdict)
        self._forget_files(offer, ledger, after)
        if outcome.verdict is Verdict.DELIVERED:
            self._receipts[offer.ref] += 1
        for note in notes:
            self._tell(note)

    def _forget_files(self, offer: Offer, before: Ledger, after: Ledger) -> None:
        """What the ledger has is not needed in files any more."""
        for gone in before.poll.pending.keys() - after.poll.pending.keys():
            self._deliveries.remove(self._deliveries.stem(offer.ref, gone))
        if offer.key in after.poll.pending:
            self._deliveries.remove_marks(offer.stem)  # a torn one would be taken for a mark of the next offer

    def take_receipts(self, owns: Callable[[str], bool]) -> int:
        """How many events of these items were delivered since they were counted last."""
        return sum(self._receipts.pop(ref) for ref in list(self._receipts) if owns(ref))

    def put_back(self, offer: Offer) -> None:
        """Record that this offer was never begun. Raises DeliveryRuns, OSError."""
        ledger = self._ledgers.get(offer.ref)
        if ledger is None or offer.key not in ledger.poll.pending:
            return
        if self._deliveries.payload(offer.stem) is None:
            after = self._lost(ledger, offer.key)
        else:
            number = self._deliveries.withdraw_offer(offer.stem, offer.number)
            after = never_begun(ledger, offer.key, number)
        if is_spawn(offer.key):  # another event says nothing of whether it runs
            after = without_a_session_to_close(after)
        if after != ledger:
            self._ledgers.save(after)

    def leave_running(self, offers: Iterable[Offer]) -> list[str]:
        """Mark what goes on without us, for a root that is moved; the delivery ids of what was accepted and not begun.

        Best effort: an event that is queued means the same to the next start, which asks the lock.
        """
        running = {(offer.ref, offer.key) for offer in offers}
        released = []
        for ledger in self._ledgers.with_pending():
            for key, entry in ledger.poll.pending.items():
                if (ledger.ref, key) in running:
                    with suppress(OSError):
                        self._ledgers.save(move(ledger, key, Standing.RUNNING))
                elif entry.state in (Standing.QUEUED, Standing.RELEASED):
                    released.append(delivery_id(ledger.ref, key))
        return released

    def offer_as_it_was(self, ref: str) -> None:
        """A released spawn whose source cannot be asked goes out as it was built. Raises OSError."""
        try:
            ledger = self._ledgers.get(ref)
        except HeldItem:
            return
        spawn = None if ledger is None else ledger.poll.pending.get(ledger.spawn_key)
        if ledger is None or spawn is None or spawn.state is not Standing.RELEASED:
            return
        payload = self._deliveries.payload(self._deliveries.stem(ref, ledger.spawn_key))
        said = () if payload is None else payload.get("thread", ())
        carried = tuple(f"{entry['kind']}:{entry['id']}" for entry in said)  # the ledger may be older than the bytes
        carries = tuple(key for key in carried if key not in ledger.poll.seen_comments)
        self._ledgers.save(move(ledger, ledger.spawn_key, Standing.QUEUED, carries=carries))

    def _head(self, ledger: Ledger) -> str | None:
        """The first event that is not given up, if its turn has come."""
        poll = ledger.poll
        is_paused = poll.paused or poll.away or poll.breaker.since
        if not poll.phase.has_queue or (poll.phase is not Phase.ENDING and is_paused):
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

    def _drop(self, ledger: Ledger, key: str, why: Dropped = Dropped.UNAUTHORIZED) -> Ledger:
        """Settle an event that is not delivered: its author may not speak any more, or its kind is not wanted."""
        entry = ledger.poll.pending[key]
        after = after_receipt(ledger, key) if entry.kind is Kind.CLOSE else settle(ledger, key)
        self._ledgers.save(after)
        self._deliveries.remove(self._deliveries.stem(ledger.ref, key))
        said = {"ref": ledger.ref, "key": key, "author": entry.author, "reason": str(why)}
        self._tell(Note("dispatch.dropped", said))
        return after

    def offer_of(self, ref: str, key: str, entry: Pending) -> Offer:
        """The offer under which this event is pending."""
        return Offer(ref, key, self._deliveries.stem(ref, key), entry.offer, entry.attempt)

    def _write_payload(self, event: Event, entry: Pending) -> None:
        """Under the lock where the event was offered before. Raises DeliveryRuns, OSError."""
        payload = {"schema": 1, **event.to_json(attempt=1, redelivery=False), **_address(entry)}
        self._deliveries.write(self._deliveries.stem(event.ref, event.key), payload)


def _address(entry: Pending) -> dict[str, Any]:
    """What a payload says of the offer that it is of."""
    return {"offer": entry.offer, "attempt": entry.attempt, "redelivery": entry.redelivery}
