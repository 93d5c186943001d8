"""A receiver and a source that play what a test tells them.

    runner, source = FakeRunner(), FakeSource()
    ref = source.add(15)                     # the source lists a new item
    source.write(ref, make.entry(1))         # somebody wrote on it
    runner.script = {f"{ref}/comment:1": [REFUSED, None]}

The runner plays keepers and receivers alike: it outlives the lives of a test, writes the keepers' files, and refuses
what a keeper refuses.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from support import factories as make
from the_loop import deliveries
from the_loop.core.model import Entry, Outcome, Presence, Verdict, WorkItem
from the_loop.runners.base import Offer, Status, Trace
from the_loop.sources.base import Known, Listing, Sighting, SourceError, Thread

DELIVERED: Final = Outcome(Verdict.DELIVERED)
REFUSED: Final = Outcome(Verdict.REFUSED, "exit status 1")
LATER: Final = Outcome(Verdict.LATER, "exit status 75")
UNSTARTABLE: Final = Outcome(Verdict.UNSTARTABLE, "no such command")
UNKNOWN: Final = Outcome(Verdict.UNKNOWN, "killed by SIGKILL")


@dataclass
class _Going:
    """A delivery under way."""

    offer: Offer
    waiters: list[asyncio.Future[None]] = field(default_factory=list)


class FakeRunner:
    """Satisfies `runners.base.Runner`. `script` has outcomes by delivery id, used up one by one; then `default`.

    None stands for a delivery that goes on until the test says `finish` or `kill`.
    """

    def __init__(self, default: Outcome | None = DELIVERED) -> None:
        self.default = default
        self.script: dict[str, list[Outcome | None]] = {}
        self.got: list[dict[str, Any]] = []  # payloads as they arrived
        self.most_at_once = 0
        self._going: dict[str, _Going] = {}

    # --- what the core asks ---

    async def deliver(self, offer: Offer) -> Outcome:
        if offer.delivery_id in self._going:
            return await self.adopt(offer)
        problem = self._begin(offer)
        outcome = await self.adopt(offer)
        return Outcome(Verdict.UNSTARTABLE, problem) if outcome.verdict is Verdict.NEVER_BEGUN else outcome

    async def adopt(self, offer: Offer) -> Outcome:
        while self.inspect(offer).trace is Trace.RUNNING:
            waiter = asyncio.get_running_loop().create_future()
            self._going[offer.delivery_id].waiters.append(waiter)
            await waiter
        status = self.inspect(offer)
        if status.outcome is not None:
            return status.outcome
        return Outcome(Verdict.NEVER_BEGUN if status.trace is Trace.NEVER_BEGUN else Verdict.UNKNOWN)

    async def close(self) -> None:
        """Nothing is held open."""

    def inspect(self, offer: Offer) -> Status:
        outcome = deliveries.outcome_of(offer.stem, offer.number)
        if outcome is not None:
            return Status(Trace.DONE, outcome)
        if any(going.offer.stem == offer.stem for going in self._going.values()):
            return Status(Trace.RUNNING)
        return Status(Trace.UNKNOWN if deliveries.is_started(offer.stem, offer.number) else Trace.NEVER_BEGUN)

    # --- what a test asks ---

    def ids(self) -> list[str]:
        """The delivery ids that arrived, in order."""
        return [payload["deliveryId"] for payload in self.got]

    def going(self) -> list[str]:
        """What is under way."""
        return list(self._going)

    def finish(self, delivery_id: str, outcome: Outcome = DELIVERED) -> None:
        """The command ended, and its keeper wrote that down."""
        offer = self._going[delivery_id].offer
        mark = {"schema": 1, "offer": offer.number, "outcome": str(outcome.verdict), "reason": outcome.reason}
        deliveries.beside(offer.stem, "outcome.json").write_text(json.dumps(mark))
        self.kill(delivery_id)

    def kill(self, delivery_id: str) -> None:
        """The keeper is gone, whatever it has written."""
        for waiter in self._going.pop(delivery_id).waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _begin(self, offer: Offer) -> str:
        """What keeper and receiver do first; why not, where it does not begin."""
        deliveries.remove_old_marks(offer.stem, offer.number)
        started = deliveries.beside(offer.stem, "started.json")
        payload = json.loads(deliveries.beside(offer.stem, "payload.json").read_bytes())
        if started.exists() or payload.get("offer", offer.number) != offer.number:
            return "a second keeper refuses"
        started.write_text(json.dumps({"schema": 1, "offer": offer.number, "attempt": offer.attempt}))
        self.got.append(payload)
        self._going[offer.delivery_id] = _Going(offer)
        self.most_at_once = max(self.most_at_once, len(self._going))
        left = self.script.get(offer.delivery_id, [])
        outcome = left.pop(0) if left else self.default
        if outcome is not None:
            self.finish(offer.delivery_id, outcome)
        return ""


@dataclass
class FakeItem:
    item: WorkItem
    entries: list[Entry] = field(default_factory=list)
    presence: Presence = Presence.LISTED
    reason: str = "closed"
    is_hidden: bool = False  # in no answer: of a part that could not be read


class FakeSource:
    """Satisfies `sources.base.Source`. Rows are what was added since the position; without one there are none."""

    provider = "fake"
    folds_case = True

    def __init__(self, name: str = "fake") -> None:
        self.name = name
        self.items: dict[str, FakeItem] = {}
        self.poll_errors: list[BaseException | None] = []  # for the next looks, used up one by one
        self.thread_errors: dict[str, list[BaseException]] = {}  # by ref, used up one by one
        self.faults: list[SourceError] = []  # of the next look
        self.threads: list[str] = []  # refs asked for by themselves
        self.cursors: list[Mapping[str, Any] | None] = []  # that looks were given
        self.gate: asyncio.Event | None = None  # what looks and threads wait for
        self.is_closed = False

    # --- what a test does ---

    def add(self, number: int, *entries: Entry, **changes: Any) -> str:
        """A new item; its ref."""
        ref = f"{self.name}:{number}"
        self.items[ref] = FakeItem(make.item(ref=ref, id=f"node-{number}", **changes), list(entries))
        return ref

    def write(self, ref: str, *entries: Entry) -> None:
        self.items[ref].entries += entries

    # --- what the core asks ---

    def owns(self, ref: str) -> bool:
        return ref.startswith(f"{self.name}:")

    async def poll(self, cursor: Mapping[str, Any] | None, known: Mapping[str, Known]) -> Listing:
        self.cursors.append(cursor)
        if self.gate is not None:
            await self.gate.wait()
        error = self.poll_errors.pop(0) if self.poll_errors else None
        if error is not None:
            raise error
        shown = dict(cursor["shown"]) if cursor is not None else {}
        sightings = []
        for ref, fake in self.items.items():
            if fake.is_hidden:
                continue
            rows = fake.entries[shown.get(ref, 0) :] if cursor is not None else []
            shown[ref] = len(fake.entries)
            sighting = self._sighting(ref, fake, rows, known.get(ref))
            if sighting is not None:
                sightings.append(sighting)
        faults, self.faults = self.faults, []
        listed = sum(sighting.presence is Presence.LISTED for sighting in sightings)
        return Listing(sightings, {"shown": shown}, listed, faults)

    async def thread(self, ref: str) -> Thread:
        self.threads.append(ref)
        if self.gate is not None:
            await self.gate.wait()
        errors = self.thread_errors.get(ref)
        if errors:
            raise errors.pop(0)
        fake = self.items[ref]
        is_there = fake.presence is Presence.LISTED
        return Thread(fake.item if is_there else None, list(fake.entries))

    async def close(self) -> None:
        self.is_closed = True

    def _sighting(self, ref: str, fake: FakeItem, rows: list[Entry], known: Known | None) -> Sighting | None:
        if fake.presence is Presence.LISTED:
            return Sighting(ref, Presence.LISTED, fake.item, rows=rows)
        if known is None or not known.is_open:
            return None
        return Sighting(ref, fake.presence, reason=fake.reason, rows=() if fake.presence is Presence.AWAY else rows)


def comments(*numbers: int) -> Iterable[Entry]:
    return [make.entry(number) for number in numbers]
