"""The promise, checked against a model: one item's thread grows, its label and state change, deliveries end at random.

Decisions and verdicts run on a ledger that goes through JSON at every crash. Whatever the order of things: nothing
that a person of ours wrote is handed over twice or left out, the order is kept, and only refusals are counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import Phase as Step
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from support import factories as make
from support.clock import NOON
from the_loop.core.decide import View, decide, wants_thread
from the_loop.core.guards import read_text
from the_loop.core.ledger import Ledger, Phase, Standing, decode, encode, move
from the_loop.core.model import Entry, Note, Outcome, Presence, Verdict
from the_loop.durable import to_json_bytes
from the_loop.outbox import Outbox
from the_loop.recovery import Recovery
from the_loop.runners.base import Offer, Status, Trace
from the_loop.sources.base import Sighting
from the_loop.visits import _is_quiet

BODIES = st.sampled_from(
    [
        *["text"] * 20,
        *("the-loop stop", "the-loop stop\ntext", *["the-loop start"] * 3, "the-loop start\ntext"),
        *("the-loop pause", "the-loop pause\ntext", *["the-loop resume"] * 4),
        *("the-loop stop\nthe-loop pause", f"told\n{make.MARKER}"),
    ]
)
AUTHORS = st.sampled_from([*["alice"] * 6, "mallory", None])
LOOKS = st.sampled_from(
    [*["whole"] * 6, "rows repeat", "position lost", "write fails", "thread unreadable", "thread lags"]
)
VERDICTS = st.sampled_from(
    [*[Verdict.DELIVERED] * 4, *[Verdict.REFUSED] * 3, Verdict.LATER, Verdict.UNKNOWN, Verdict.UNSTARTABLE]
)
ACTIONS = [
    *["cycle"] * 8,
    *["people_write"] * 5,
    *["the_world_changes"] * 3,
    *["restart"] * 2,
    *("upgrade", "move_to_another_machine"),
]
MOSTLY = st.sampled_from([True, True, True, False])
Draw = Callable[[st.SearchStrategy[Any]], Any]
OVERLAP = 2  # rows that a look may show again


class Disk:
    """Stands for the archive: one ledger, as JSON."""

    def __init__(self) -> None:
        self.content = b""

    def get(self, ref: str) -> Ledger | None:
        return decode(self.content, ref) if self.content else None

    def held(self) -> dict[str, str]:
        return {}

    def save(self, ledger: Ledger) -> None:
        self.content = to_json_bytes(encode(ledger))

    def with_pending(self) -> list[Ledger]:
        ledger = self.get(make.REF)
        return [ledger] if ledger is not None and ledger.poll.pending else []


class MemoryDeliveries:
    """The payloads in memory; what runs is known to the machine."""

    def __init__(self, payloads: dict[str, dict[str, Any]]) -> None:
        self.payloads = payloads

    def stem(self, ref: str, key: str) -> Path:
        assert ref == make.REF
        return Path("/nonexistent") / key

    def stems(self) -> set[Path]:
        return {self.stem(make.REF, key) for key in self.payloads}

    def payload(self, stem: Path) -> dict[str, Any] | None:
        return self.payloads.get(stem.name)

    def write(self, stem: Path, payload: dict[str, Any]) -> None:
        self.payloads[stem.name] = payload

    make_ready = write

    def flush(self) -> None:
        """Memory needs none."""

    def withdraw_offer(self, stem: Path, number: int) -> int:
        if (payload := self.payload(stem)) is not None:
            self.write(stem, {**payload, "offer": number + 1})
        return number + 1

    def outcome(self, stem: Path, number: int) -> None:
        """None: the machine tells outcomes itself."""

    def remove_marks(self, stem: Path) -> None:
        """The machine keeps none."""

    def remove(self, stem: Path) -> None:
        self.payloads.pop(stem.name, None)


class Conversation(RuleBasedStateMachine):
    """One item, its source, its receiver, and the poller between them."""

    def __init__(self) -> None:
        super().__init__()
        self.item = make.item()
        self.source_rules = make.rules()
        self.policy = make.policy(max_retries=2)
        self.now = NOON
        self.thread: list[Entry] = []
        self.deleted: set[str] = set()
        self.is_open = self.has_label = True
        self.linger_is_over = False
        self.disk = Disk()
        self.cursor = 0  # rows before it were shown by an earlier look
        self.owed = True
        self.running: Offer | None = None
        self.ended: Outcome | None = None  # of the running one, while nobody was there to record it
        self.told: list[Note] = []
        self.handed: list[str] = []  # what arrived, in order
        self.refusals: Counter[str] = Counter()
        self.gave_up: set[str] = set()
        self.seen_before: frozenset[str] = frozenset()
        self.payloads: dict[str, dict[str, Any]] = {}
        self.outbox = self._new_life()

    @property
    def ledger(self) -> Ledger | None:
        return self.disk.get(make.REF)

    def _new_life(self) -> Outbox:
        return Outbox(
            cast("Any", MemoryDeliveries(self.payloads)),
            cast("Any", self.disk),
            cast("Any", _Receiver(self)),
            policy=self.policy,
            rules_of=lambda _: self.source_rules,
            tell=self.told.append,
            now=lambda: self.now,
        )

    @initialize(
        author=AUTHORS,
        require_start=st.sampled_from([False, False, True]),
        body=st.sampled_from(["body"] * 3 + ["body\nthe-loop pause"]),
    )
    def begin(self, *, author: str | None, require_start: bool, body: str) -> None:
        self.item = make.item(author=author, body=body)
        self.source_rules = make.rules(require_start=require_start)

    @rule(what=st.sampled_from(ACTIONS), data=st.data())
    def something_happens(self, what: str, data: st.DataObject) -> None:
        """One rule for all: with several, hypothesis leaves some out for a whole run."""
        getattr(self, what)(data.draw)

    # --- the world ---

    def people_write(self, draw: Draw) -> None:
        for body, author in draw(st.lists(st.tuples(BODIES, AUTHORS), min_size=1, max_size=3)):
            self.write(body, author)

    def the_world_changes(self, draw: Draw) -> None:
        match draw(st.sampled_from(["label", "state", "linger", "deletion"])):
            case "label":
                self.has_label = draw(MOSTLY)
            case "state":
                self.is_open, self.linger_is_over = draw(MOSTLY), False
            case "linger":
                self.linger_is_over = True
            case _:
                self.deleted.update(entry.key for entry in self.thread[-1:])

    # --- the poller ---

    def cycle(self, draw: Draw) -> None:
        """A look, and deliveries that end before the next one; the last one that began goes on."""
        self.now += draw(st.sampled_from([1000, 10]))
        self.look(draw(LOOKS))
        self.hand_over()
        for verdict in draw(st.lists(VERDICTS, max_size=4)):
            if self.running is not None:
                self._conclude(Outcome(verdict))
                self.hand_over()

    def restart(self, draw: Draw) -> None:
        """The poller goes away and comes back; what it had in memory is lost, the delivery may end meanwhile."""
        if draw(st.booleans()):
            self.outbox.leave_running([self.running] if self.running else [])
        fate = draw(st.sampled_from(["goes on", *Verdict]))
        self._recover(None if fate == "goes on" else Outcome(Verdict(fate)))

    def upgrade(self, _: Draw) -> None:
        self.policy = replace(self.policy, version=f"{self.policy.version}+")
        self._recover(None)

    def move_to_another_machine(self, _: Draw) -> None:
        """Only `portable/` comes along, after a stop."""
        if self.running is None:
            self.outbox.leave_running([])
            self.payloads.clear()
            self.cursor, self.owed = 0, True
            self._recover(None)

    # --- what must hold at any moment ---

    @invariant()
    def seen_never_shrinks(self) -> None:
        ledger = self.ledger
        seen = ledger.poll.seen_comments if ledger else frozenset()
        assert seen >= self.seen_before
        self.seen_before = seen

    @invariant()
    def nothing_is_both_settled_and_pending(self) -> None:
        if (ledger := self.ledger) is not None:
            assert not ledger.poll.seen_comments & ledger.poll.pending.keys()

    @invariant()
    def attempts_are_refusals(self) -> None:
        if (ledger := self.ledger) is not None:
            for key, entry in ledger.poll.pending.items():
                assert ledger.attempts(key) == self.refusals[key]
                assert entry.attempt == self.refusals[key] + 1

    @invariant()
    def nothing_arrives_twice(self) -> None:
        assert max(Counter(self.handed).values(), default=1) == 1

    @invariant()
    def order_is_kept(self) -> None:
        numbers = [int(key.partition(":")[2]) for key in self.handed if key.startswith("comment:")]
        in_line = [number for number in numbers if f"comment:{number}" not in self.gave_up]
        assert in_line == sorted(in_line)

    def teardown(self) -> None:
        """Let everything come to rest with the item open, labelled and wanted: then everything has arrived."""
        self.is_open = self.has_label = True
        self.linger_is_over = False
        for _ in range(12):
            self._settle_down()
            if self._is_at_rest():
                break
            self._ask_for_it()
        assert self._is_at_rest(), "it never came to rest"
        self._check_all_arrived()

    # --- the runner, as far as the outbox asks it ---

    def inspect(self, offer: Offer) -> Status:
        if self.running is None or self.running != offer:
            return Status(Trace.NEVER_BEGUN)
        if self.ended is None:
            return Status(Trace.RUNNING)
        match self.ended.verdict:
            case Verdict.UNKNOWN:
                return Status(Trace.UNKNOWN)
            case Verdict.NEVER_BEGUN:
                return Status(Trace.NEVER_BEGUN)
            case _:
                return Status(Trace.DONE, self.ended)

    # --- how it is done ---

    def write(self, body: str, author: str | None) -> None:
        number = len(self.thread) + 1
        self.thread.append(make.entry(number, body, author, created_at=make.when(number // 2)))

    def look(self, outcome: str) -> None:
        shown = len(self.thread)
        sighting = self._sighting(self.cursor - OVERLAP * (outcome == "rows repeat"))
        if sighting is not None and not _is_quiet(self.ledger, sighting, self.owed):
            self._visit(sighting, outcome)
        if outcome != "position lost":
            self.cursor = shown

    def hand_over(self) -> None:
        if self.running is None:
            offer = self.outbox.next(make.REF)
            self.running = offer if offer is not None and self.outbox.prepare(offer) else None

    def _sighting(self, since: int) -> Sighting | None:
        """What a source tells of the item now; None where it says nothing."""
        ledger = self.ledger
        rows = tuple(entry for entry in self.thread[max(0, since) :] if entry.key not in self.deleted)
        if self.is_open and self.has_label:
            return Sighting(make.REF, Presence.LISTED, self.item, rows=rows)
        if ledger is None or not ledger.poll.phase.is_open:
            return None
        if self.is_open:
            return Sighting(make.REF, Presence.AWAY)
        presence = Presence.GONE if self.linger_is_over else Presence.LEFT
        return Sighting(make.REF, presence, reason="closed", rows=rows)

    def _visit(self, sighting: Sighting, outcome: str) -> None:
        ledger = self.ledger
        spawn = ledger.poll.pending.get(ledger.spawn_key) if ledger else None
        view = View(
            ref=make.REF,
            presence=sighting.presence,
            item=sighting.item,
            reason=sighting.reason,
            rows=sighting.rows,
            running=self.running.key if self.running else None,
            due=spawn is not None and self.outbox.is_due(spawn),
        )
        if wants_thread(ledger, view, self.source_rules, owed=self.owed):
            if outcome == "thread unreadable":
                self.owed = True
                return
            # a replica that lags lacks the last entry, which the rows have
            there = self.thread[:-1] if outcome == "thread lags" and sighting.rows[-1:] else self.thread
            view = replace(view, thread=tuple(entry for entry in there if entry.key not in self.deleted))
        decision = decide(ledger, view, self.source_rules)
        if outcome == "write fails":
            self.owed = True
            return
        self.outbox.commit(decision)
        if view.thread is not None:
            self.owed = False
        self._take_notes()

    def _conclude(self, outcome: Outcome) -> None:
        assert self.running is not None
        self._arrives(self.running, outcome)
        self.outbox.conclude(self.running, outcome)
        self.running = None
        self._take_notes()

    def _arrives(self, offer: Offer, outcome: Outcome) -> None:
        """What the receiver has after this outcome, and what it counts."""
        ledger = self.ledger
        assert ledger is not None
        if outcome.verdict is Verdict.DELIVERED:
            carries = ledger.poll.pending[offer.key].carries
            assert {f"{entry['kind']}:{entry['id']}" for entry in self.payloads[offer.key]["thread"]} >= set(carries)
            self.handed += [offer.key, *carries]
        self.refusals[offer.key] += outcome.verdict is Verdict.REFUSED

    def _recover(self, fate: Outcome | None) -> None:
        self.ended = fate
        if self.running is not None and fate is not None:
            self._arrives(self.running, fate)
        self.outbox = self._new_life()
        deliveries: Any = MemoryDeliveries(self.payloads)
        recovery = Recovery(deliveries, cast("Any", self.disk), self.outbox, self.told.append)
        running = list(chain.from_iterable(recovery.run()))
        assert running in ([], [self.running])
        self.running = running[0] if running else None
        self.ended = None
        self._take_notes()

    def _take_notes(self) -> None:
        """Budgets start over where the trail says so, and end with their event."""
        for note in self.told:
            if note.name == "poll.rearmed":
                self.refusals[note.fields["key"]] = 0
            if note.fields.get("willRetry") is False:
                self.gave_up.add(note.fields["key"])
        self.told.clear()
        ledger = self.ledger
        for key in self.refusals.keys() - (ledger.poll.pending.keys() if ledger else set()):
            del self.refusals[key]

    def _settle_down(self) -> None:
        for _ in range(len(self.thread) * 2 + 12):
            self.now += 1000
            self.look("whole")
            self.hand_over()
            if self.running is not None:
                self._conclude(Outcome(Verdict.DELIVERED))

    def _is_at_rest(self) -> bool:
        ledger = self.ledger
        if ledger is None or ledger.poll.phase is not Phase.LIVE or ledger.poll.paused:
            return False
        return all(entry.state is Standing.GAVE_UP for entry in ledger.poll.pending.values())

    def _ask_for_it(self) -> None:
        """What a person does: release what is held, and say start."""
        if (ledger := self.ledger) is not None:
            for key, entry in ledger.poll.pending.items():
                if entry.state is Standing.HELD:
                    ledger = move(ledger, key, Standing.UNCERTAIN, unknown=0)
            self.disk.save(ledger)
        self.write("the-loop start\nplease", "alice")

    def _check_all_arrived(self) -> None:
        ledger = self.ledger
        assert ledger is not None
        arrived = set(self.handed)
        for entry in self.thread:
            is_ours = entry.author == "alice" and make.MARKER not in entry.body
            if not is_ours or not read_text(entry.body, self.source_rules).text:
                assert entry.key not in arrived
            elif entry.key not in self.deleted and entry.key not in ledger.poll.pending:
                assert entry.key in arrived, f"{entry.key} never arrived"


class _Receiver:
    """The machine as a runner: `inspect` is taken by a rule of its own."""

    def __init__(self, machine: Conversation) -> None:
        self._machine = machine

    def inspect(self, offer: Offer) -> Status:
        return self._machine.inspect(offer)


TestConversation = pytest.mark.timeout(600)(Conversation.TestCase)  # to find the shortest way to a failure takes time
TestConversation.settings = settings(
    max_examples=200,
    stateful_step_count=40,
    deadline=None,
    print_blob=True,
    phases=[Step.explicit, Step.reuse, Step.generate, Step.shrink],
)
