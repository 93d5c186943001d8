"""The decision about one item: from its state in the source and its ledger to new events and a new ledger.

Pure functions, without clock, disk or network. The caller commits a `Decision` in this order: the payloads of
`events`, then `ledger`; then it removes the files of `withdrawn` and logs `notes`.

The whole thread is read only if `wants_thread` says so; otherwise the new rows are enough.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from the_loop.core import breaker
from the_loop.core.guards import Dropped, Reading, Rules, Speaker, Word, is_slow, read, read_text
from the_loop.core.ledger import (
    Ledger,
    Phase,
    Standing,
    accept,
    accept_all,
    after_receipt,
    change,
    end,
    is_spawn,
    move,
    new_ledger,
    rearm,
    restarted,
    settle,
    withdraw,
)
from the_loop.core.model import Entry, Event, Kind, Note, Presence, WorkItem, epoch, in_order

STOPPED: Final = "stopped"
_BODY: Final = "body"  # the key of the item's own text in `obeyed`


@dataclass(frozen=True, slots=True)
class View:
    """What a cycle knows of one item. `rows`: new entries; `thread`: all entries, None if it was not read."""

    ref: str
    presence: Presence
    item: WorkItem | None = None
    reason: str = ""  # why the item ended
    detail: str = ""
    rows: Sequence[Entry] = ()
    thread: Sequence[Entry] | None = None
    omitted: int = 0  # entries of the thread that the source does not have any more
    is_partial: bool = False  # entries of the thread may be missing: what is not in it is not gone
    running: str | None = None  # the key of the event that is being delivered now
    due: bool = False  # the pause of a rejected or deferred spawn is over
    readings: dict[tuple[str, str], Reading] = field(default_factory=dict)  # by key and text: each is read once

    def read(self, entry: Entry, rules: Rules) -> Reading:
        """The guards' result for this entry."""
        reading = self.readings.get((entry.key, entry.body))
        if reading is None:
            reading = self.readings[entry.key, entry.body] = read(entry, rules)
        return reading

    def read_body(self, item: WorkItem, rules: Rules) -> Reading:
        """The guards' result for the item's own text."""
        reading = self.readings.get((_BODY, item.body))
        if reading is None:
            reading = self.readings[_BODY, item.body] = read_text(item.body, rules)
        return reading

    def read_slow_ones(self, rules: Rules) -> None:
        """Read the texts that take their time; what follows finds them read. May be called in another thread."""
        for entry in self.entries:
            if is_slow(entry.body, rules):
                self.read(entry, rules)
        if self.item is not None and is_slow(self.item.body, rules):
            self.read_body(self.item, rules)

    def has_slow_ones(self, rules: Rules) -> bool:
        bodies = [entry.body for entry in self.entries] + ([self.item.body] if self.item is not None else [])
        return any(is_slow(body, rules) for body in bodies)

    @property
    def entries(self) -> Sequence[Entry]:
        """All known entries, each once: replicas of a source differ in age, so rows may be missing in the thread."""
        return tuple({entry.key: entry for entry in (*(self.thread or ()), *self.rows)}.values())


@dataclass(frozen=True, slots=True)
class Decision:
    """What to commit. `ledger` is None if it does not change; `withdrawn` has keys of events."""

    ledger: Ledger | None
    events: tuple[Event, ...] = ()
    withdrawn: Mapping[str, int] = field(default_factory=dict)  # by key: the offer that must not begin any more
    notes: tuple[Note, ...] = ()


def decide(ledger: Ledger | None, view: View, rules: Rules) -> Decision:
    """Decide about one item. If `wants_thread` is true for it, `view.thread` must be present."""
    view = _without_waiting(view, rules)
    if ledger is None:
        return _decide(None, view, rules)
    present, renames = _settle_renames(ledger, view)
    decision = _decide(present, view, rules)
    if renames:
        decision = replace(decision, ledger=decision.ledger or present, notes=(*renames, *decision.notes))
    if decision.ledger is None:
        return decision
    left = decision.ledger.poll.pending
    withdrawn = {key: entry.offer for key, entry in ledger.poll.pending.items() if key not in left}
    return replace(decision, withdrawn=withdrawn)


def wants_thread(ledger: Ledger | None, view: View, rules: Rules, *, owed: bool) -> bool:
    """True if `decide` needs the item's whole thread. `owed`: its source says that it needs a full re-read."""
    if ledger is None:
        return view.presence is Presence.LISTED
    view = _without_waiting(view, rules)
    missed = owed or ledger.poll.away or ledger.poll.behind
    if view.presence in (Presence.LEFT, Presence.GONE):
        return ledger.poll.phase is Phase.LIVE and (missed or view.presence is Presence.GONE)
    if view.presence is not Presence.LISTED or ledger.poll.phase is Phase.ENDING:
        return False
    match ledger.poll.phase:
        case Phase.STARTING:
            return not _may_have_begun(ledger, view) and (missed or _spawn_wants_thread(ledger, view, rules))
        case Phase.LIVE:
            return missed
        case _:
            return missed or _may_start(ledger, view, rules)


def _without_waiting(view: View, rules: Rules) -> View:
    """The view without entries whose author is another account than before.

    They are neither settled nor delivered. Their source says that the item needs a full re-read once that is decided.
    """
    if not any(map(rules.waits, view.entries)):
        return view
    rows = [entry for entry in view.rows if not rules.waits(entry)]
    thread = None if view.thread is None else [entry for entry in view.thread if not rules.waits(entry)]
    return replace(view, rows=rows, thread=thread)


def _decide(ledger: Ledger | None, view: View, rules: Rules) -> Decision:
    if view.presence is not Presence.LISTED:
        return _decide_absent(ledger, view, rules)
    if view.item is None:
        raise ValueError(f"{view.ref} is listed without its item")
    if ledger is None or not ledger.poll.phase.has_queue:
        return _consider_start(ledger, view, view.item, rules)
    caught_up = view.thread is not None and ledger.poll.phase is not Phase.ENDING
    present = change(ledger, away=False, behind=not caught_up and (ledger.poll.behind or ledger.poll.away))
    match ledger.poll.phase:
        case Phase.STARTING:
            decision = _starting(present, view, view.item, rules)
        case Phase.LIVE:
            decision = _live(present, view, rules)
        case _:
            decision = Decision(_remember_news(present, view))
    return replace(decision, ledger=None) if decision.ledger == ledger else decision


def _settle_renames(ledger: Ledger, view: View) -> tuple[Ledger, tuple[Note, ...]]:
    """Settle entries that are renames of ones that were settled, queued or carried before."""
    spawn = ledger.poll.pending.get(ledger.spawn_key)
    carried = spawn.carries if spawn is not None and _may_have_begun(ledger, view) else ()
    known = {*ledger.poll.seen_comments, *ledger.poll.pending, *carried}
    keys = [entry.key for entry in _fresh(ledger, view.entries) if known.intersection(entry.renamed_from)]
    if not keys:
        return ledger, ()
    notes = tuple(_note("poll.edited", ledger, key, reason=str(Dropped.RENAMED)) for key in keys)
    return settle(ledger, *keys), notes


def _remember_news(ledger: Ledger, view: View) -> Ledger:
    """Record that new rows cannot be accepted now: the item needs a full re-read later."""
    return change(ledger, behind=True) if _fresh(ledger, view.entries) and not ledger.poll.behind else ledger


# --- without a session, not yet or no longer -------------------------------------------------------------------------


def _may_start(ledger: Ledger, view: View, rules: Rules) -> bool:
    """True if this waiting or ended item could start now, judged without its whole thread."""
    poll = ledger.poll
    if poll.phase is Phase.ENDED and poll.reason != STOPPED:
        return True  # it was closed and is listed again: reopened
    if poll.phase is Phase.WAITING and view.item is not None and _starts_by_itself(view.item, rules):
        return True
    return any(reading.word is Word.START for _, reading in _words(ledger, view, view.rows, rules))


def _starts_by_itself(item: WorkItem, rules: Rules) -> bool:
    return rules.may_speak(item.author, item.author_id) and not rules.require_start


def _consider_start(ledger: Ledger | None, view: View, item: WorkItem, rules: Rules) -> Decision:
    if view.thread is None:
        return Decision(None)
    base = ledger or new_ledger(item, Phase.WAITING)
    reopened = base.poll.phase is Phase.ENDED and base.poll.reason != STOPPED and base.g > 0
    stopped = base.poll.phase is Phase.ENDED and base.poll.reason == STOPPED
    wants = not stopped and (reopened or _starts_by_itself(item, rules))
    state, obeyed, notes = _apply_words(
        base, item, view, rules, _Will(wants=wants, stopped=stopped, paused=base.poll.paused)
    )
    if state.wants:
        fresh = new_ledger(item, Phase.STARTING, g=1) if ledger is None else restarted(ledger, item)
        fresh = change(
            _obey(fresh, obeyed),
            phase=Phase.STARTING,
            reason="",
            detail="",
            paused=state.paused,
            away=False,
            behind=False,
            receiver=rules.receiver_for(item.labels),
        )
        decision = _build_spawn(fresh, item, view, rules)
        return replace(decision, notes=(*notes, *decision.notes))
    phase = Phase.ENDED if state.stopped else Phase.WAITING
    reason = STOPPED if state.stopped else _why_waiting(item, rules)
    parked = _obey(base, obeyed) if ledger is not None else _obey(new_ledger(item, phase), obeyed)
    parked = change(parked, phase=phase, reason=reason, paused=state.paused, away=False, behind=False)
    if ledger is None and phase is Phase.WAITING:
        notes = (*notes, Note("poll.waiting", {"ref": parked.ref, "author": item.author, "reason": reason}))
    return Decision(None if parked == ledger else parked, notes=notes)


def _why_waiting(item: WorkItem, rules: Rules) -> str:
    """Why an item that was met does not start."""
    if item.author is None:
        return "its author cannot be established" + (f": {item.author_doubt}" if item.author_doubt else "")
    if rules.may_speak(item.author, item.author_id):
        return "it starts by the start word"
    if rules.speaker(item.author, item.author_id) is Speaker.CHANGED:
        return f"'{item.author}' is another account than before"
    return f"its author '{item.author}' is not authorised"


def _build_spawn(ledger: Ledger, item: WorkItem, view: View, rules: Rules) -> Decision:
    """A spawn with the present thread; entries that are not delivered are settled at once."""
    if Kind.SPAWN not in rules.kinds:
        return _start_without_spawn(ledger, view, rules)
    carried, dropped, omitted = _sort_out(view, rules)
    unsettled = [key for key in dropped if key not in ledger.poll.seen_comments]
    ledger = settle(ledger, *unsettled) if unsettled else ledger
    key = ledger.spawn_key
    keys = tuple(entry.key for entry in carried if entry.key not in ledger.poll.seen_comments)
    before = ledger.poll.pending.get(key)
    if before is None or before.state is Standing.LOST:
        author = item.author if rules.may_speak(item.author, item.author_id) else None  # else a control word started it
        ledger = accept(ledger, key, author, keys)
    else:
        ledger = move(ledger, key, Standing.QUEUED, carries=keys, offer=before.offer + 1)
    event = Event(
        ref=item.ref,
        key=key,
        url=item.url,
        title=item.title,
        author=item.author,
        body=view.read_body(item, rules).text,
        created_at=item.created_at,
        truncated=item.truncated,
        thread=tuple(carried),
        omitted=omitted + view.omitted,
    )
    return Decision(ledger, (event,))


def _start_without_spawn(ledger: Ledger, view: View, rules: Rules) -> Decision:
    """The session is live at once; what the spawn would carry follows as single events."""
    key = ledger.spawn_key
    before = ledger.poll.pending.get(key)
    ledger = accept(ledger, key, None) if before is None else move(ledger, key, before.state, carries=())
    decision = _take_up(after_receipt(ledger, key), view, rules)
    note = _note("dispatch.dropped", ledger, key, reason=str(Dropped.KIND))
    return replace(decision, notes=(note, *decision.notes))


def _sort_out(view: View, rules: Rules) -> tuple[list[Entry], list[str], int]:
    """The entries that a spawn carries, the keys that are not delivered, and the number of unauthorised entries."""
    carried, dropped, omitted = [], [], 0
    for entry in in_order(view.entries):
        reading = view.read(entry, rules)
        omitted += reading.dropped is Dropped.UNAUTHORIZED
        if reading.dropped or reading.is_word_alone:
            dropped.append(entry.key)
        else:
            carried.append(replace(entry, body=reading.text))
    return carried, dropped, omitted


# --- the spawn is pending ----------------------------------------------------------------------------------------


def _may_have_begun(ledger: Ledger, view: View) -> bool:
    spawn = ledger.poll.pending.get(ledger.spawn_key)
    return spawn is not None and (view.running == ledger.spawn_key or spawn.state.may_have_begun)


def _spawn_wants_thread(ledger: Ledger, view: View, rules: Rules) -> bool:
    spawn = ledger.poll.pending.get(ledger.spawn_key)
    if spawn is None or spawn.state in (Standing.RELEASED, Standing.LOST):
        return True
    if spawn.state in (Standing.REFUSED, Standing.LATER) and view.due:
        return True
    return any(view.read(entry, rules).dropped is None for entry in _fresh(ledger, view.rows))


def _starting(ledger: Ledger, view: View, item: WorkItem, rules: Rules) -> Decision:
    begun = _may_have_begun(ledger, view)
    poll = ledger.poll
    is_news = any(view.read(entry, rules).dropped is None for entry in _fresh(ledger, view.entries))
    will, obeyed, notes = _apply_words(ledger, item, view, rules, _Will.of_running(poll.paused))
    ledger = change(_obey(ledger, obeyed), paused=will.paused)
    if will.stopped:
        return replace(_stop(ledger, view), notes=notes)
    if begun:
        return Decision(_remember_news(ledger, view), notes=notes)
    if view.thread is None:
        return Decision(ledger, notes=notes)
    spawn = poll.pending.get(ledger.spawn_key)
    if spawn is not None and spawn.state in (Standing.REFUSED, Standing.LATER) and not view.due:
        return Decision(ledger, notes=notes)  # its next attempt is built from the thread at that time
    if spawn is not None and spawn.state is Standing.GAVE_UP:
        if not is_news:
            return Decision(ledger, notes=notes)
        ledger = rearm(ledger, ledger.spawn_key)
        notes = (*notes, _note("poll.rearmed", ledger, ledger.spawn_key, reason="new activity"))
    if spawn is not None and spawn.author is not None and not rules.may_speak(spawn.author):
        return Decision(change(withdraw(ledger, ledger.spawn_key), phase=Phase.WAITING), notes=notes)
    decision = _build_spawn(ledger, item, view, rules)
    return replace(decision, notes=(*notes, *decision.notes))


# --- the session is live -------------------------------------------------------------------------------------------


def _live(ledger: Ledger, view: View, rules: Rules) -> Decision:
    will, obeyed, notes = _apply_words(ledger, None, view, rules, _Will.of_running(ledger.poll.paused))
    ledger = change(_obey(ledger, obeyed), paused=will.paused)
    if will.stopped:
        return replace(_stop(ledger, view), notes=notes)
    decision = _take_up(ledger, view, rules)
    return replace(decision, notes=(*notes, *decision.notes))


def _take_up(ledger: Ledger, view: View, rules: Rules) -> Decision:
    """Accept new entries as pending events, in order; settle and log the ones that are not delivered."""
    events: list[Event] = []
    notes: list[Note] = []
    settled: list[str] = []
    accepted: dict[str, dict[str, Any]] = {}
    for entry in _fresh(ledger, view.entries):
        reading = view.read(entry, rules)
        is_wanted = entry.kind in rules.kinds or reading.is_word_alone
        if dropped := reading.dropped or (None if is_wanted else Dropped.KIND):
            notes.append(_dropped(ledger, entry, dropped))
        if dropped or reading.is_word_alone:
            settled.append(entry.key)
            continue
        facts = {"author": entry.author, "created": epoch(entry.created_at) or 0.0, "group": entry.group}
        accepted[entry.key] = facts
        events.append(
            Event(
                ref=ledger.ref,
                key=entry.key,
                url=entry.url,
                title=(view.item.title if view.item else "") or ledger.title,
                author=entry.author,
                body=reading.text,
                created_at=entry.created_at,
                truncated=entry.truncated,
                about=entry.about,
            )
        )
    ledger = accept_all(settle(ledger, *settled) if settled else ledger, accepted)
    if view.thread is not None and not view.is_partial:
        ledger, more = _settle_vanished(ledger, view.thread)
        notes += more
    return Decision(ledger, tuple(events), notes=tuple(notes))


def _settle_vanished(ledger: Ledger, thread: Sequence[Entry]) -> tuple[Ledger, list[Note]]:
    """Settle accepted events that lost their payload and are no longer in the thread: they cannot be delivered."""
    there = {entry.key for entry in thread}
    lost = [
        key
        for key, entry in ledger.poll.pending.items()
        if entry.state is Standing.LOST and key not in there and not is_spawn(key) and entry.kind is not Kind.CLOSE
    ]
    ledger = settle(ledger, *lost) if lost else ledger
    return ledger, [_note("dispatch.dropped", ledger, key, reason="deleted") for key in lost]


# --- endings -------------------------------------------------------------------------------------------------------


def _decide_absent(ledger: Ledger | None, view: View, rules: Rules) -> Decision:
    if ledger is None:
        return Decision(None)
    poll = ledger.poll
    if view.presence is Presence.AWAY:
        pausable = poll.phase.is_open and not poll.away
        return Decision(change(ledger, away=True) if pausable else None)
    if poll.phase is Phase.WAITING:
        return Decision(end(ledger, view.reason))
    if poll.phase is Phase.STARTING and not _may_have_begun(ledger, view):
        return _end_unbegun(ledger, view.reason)
    if poll.phase is Phase.STARTING:
        heard = _remember_news(ledger, view)  # closed once it is known whether the spawn arrived
        return Decision(None if heard is ledger else heard)
    return _last_words(ledger, view, rules) if poll.phase is Phase.LIVE else Decision(None)


def _last_words(ledger: Ledger, view: View, rules: Rules) -> Decision:
    """Accept last entries of an item that ended; once it is GONE add its close, behind everything accepted."""
    missed = ledger.poll.behind or ledger.poll.away
    present = change(ledger, away=False, behind=missed and view.thread is None)
    decision = _live(present, view, rules)
    heard = decision.ledger or ledger
    if view.presence is Presence.GONE and heard.poll.phase is Phase.LIVE:
        closing = close_session(change(heard, paused=False, detail=view.detail), view.reason)
        return replace(closing, events=(*decision.events, *closing.events), notes=decision.notes)
    return replace(decision, ledger=None) if heard == ledger else decision


def _stop(ledger: Ledger, view: View) -> Decision:
    """Apply the control word stop: withdraw what has not begun, and close a session that may exist."""
    if ledger.poll.phase is Phase.STARTING and not _may_have_begun(ledger, view):
        return _end_unbegun(ledger, STOPPED)
    idle = [key for key, entry in ledger.poll.pending.items() if key != view.running and not entry.state.may_have_begun]
    return close_session(change(withdraw(ledger, *idle), paused=False), STOPPED)


def _end_unbegun(ledger: Ledger, reason: str) -> Decision:
    """Withdraw a spawn that was not begun; close the session that an earlier offer of it may have started."""
    spawn = ledger.poll.pending.get(ledger.spawn_key)
    if spawn is not None and spawn.redelivery:
        return close_session(change(withdraw(ledger, ledger.spawn_key), paused=False), reason)
    return Decision(end(ledger, reason))


def close_session(ledger: Ledger, reason: str) -> Decision:
    """Begin the end of the item: add its close, behind everything accepted."""
    ledger = accept(change(ledger, phase=Phase.ENDING, reason=reason), ledger.close_key, None)
    return Decision(ledger, (closing_event(ledger),))


def closing_event(ledger: Ledger) -> Event:
    """The close event of an item that is ending, built from its ledger alone."""
    return Event(
        ref=ledger.ref,
        key=ledger.close_key,
        url=ledger.url,
        title=ledger.title,
        author=None,
        body="",
        created_at="",
        reason=ledger.poll.reason,
        about={"stateReason": ledger.poll.detail} if ledger.poll.detail else {},
    )


# --- control words ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Will:
    """What the control words so far want of an item."""

    wants: bool
    stopped: bool
    paused: bool

    @classmethod
    def of_running(cls, paused: bool) -> _Will:  # noqa: FBT001 (the one thing that can differ)
        return cls(wants=True, stopped=False, paused=paused)

    def after(self, word: Word) -> _Will:
        match word:
            case Word.START:
                return _Will(wants=True, stopped=False, paused=False)
            case Word.STOP:
                return _Will(wants=False, stopped=True, paused=False)
            case Word.PAUSE:
                return replace(self, paused=True)
            case Word.RESUME:
                return replace(self, paused=False)


def _fresh(ledger: Ledger, entries: Iterable[Entry]) -> list[Entry]:
    by_key = {entry.key: entry for entry in entries}
    return in_order([by_key[key] for key in ledger.unknown(by_key)])


def _words(ledger: Ledger, view: View, entries: Iterable[Entry], rules: Rules) -> list[tuple[str, Reading]]:
    """Entries with control words that were not applied yet, in thread order."""
    readings = ((entry.key, view.read(entry, rules)) for entry in _fresh(ledger, entries))
    return [(key, reading) for key, reading in readings if reading.words and key not in ledger.poll.obeyed]


def _apply_words(
    ledger: Ledger, item: WorkItem | None, view: View, rules: Rules, will: _Will
) -> tuple[_Will, list[tuple[str, Reading]], tuple[Note, ...]]:
    """Apply new control words: the resulting will, the entries they are from, and the events to log."""
    readings = _words(ledger, view, view.entries, rules)
    if item is not None and rules.may_speak(item.author, item.author_id) and _BODY not in ledger.poll.obeyed:
        own = view.read_body(item, rules)
        readings = [(_BODY, own), *readings] if own.words else readings
    notes = []
    for key, reading in readings:
        if reading.word is None:
            notes.append(_note("control.ambiguous", ledger, key, reason=" and ".join(sorted(reading.words))))
        else:
            will = will.after(reading.word)
            notes.append(_note("control.applied", ledger, key, reason=str(reading.word)))
    return will, readings, tuple(notes)


def _obey(ledger: Ledger, obeyed: Sequence[tuple[str, Reading]]) -> Ledger:
    """Settle entries that are control words alone; of others record that their control words were applied."""
    if not obeyed:
        return ledger
    if any(reading.word in (Word.RESUME, Word.START) for _, reading in obeyed):
        ledger = breaker.lifted(ledger)
    alone = [key for key, reading in obeyed if reading.is_word_alone and key != _BODY]
    ledger = change(ledger, obeyed=ledger.poll.obeyed.union(key for key, _ in obeyed).difference(alone))
    return settle(ledger, *alone) if alone else ledger


def _note(name: str, ledger: Ledger, key: str, *, reason: str) -> Note:
    return Note(name, {"ref": ledger.ref, "key": key, "reason": reason})


def _dropped(ledger: Ledger, entry: Entry, why: Dropped) -> Note:
    said = {"ref": ledger.ref, "key": entry.key, "author": entry.author, "reason": str(why)}
    return Note("dispatch.dropped", said)
