"""Where one event or one item is, and why: one sentence from what is known of it. No clock, disk or network."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from the_loop.core.ledger import Ledger, Pending, Phase, Standing
from the_loop.core.model import Kind, Outcome, Verdict, epoch

Event = Mapping[str, Any]

_DELIVERED: Final = ("poll.comment_forwarded", "poll.spawned", "session.closed")
_REJECTED: Final = ("poll.comment_failed", "poll.spawn_failed")
_BEGUN: Final = ("accepted", "running", "ended", "unknown", "held")  # of a spawn that is not built again
_RULES: Final = {
    "unauthorized": "its author is not authorised to speak here",
    "own": "it is a notice of our own: its last line is the marker",
    "kind": "`session.kinds` does not have its kind",
    "deleted": "it was deleted before it was handed over",
    "payload lost": "its payload was lost, and it cannot be read again",
    "not a regular file": "it is not a regular file",
}
_VERDICTS: Final = {
    Verdict.DELIVERED: "it was delivered",
    Verdict.REFUSED: "it was rejected",
    Verdict.LATER: "it was deferred",
    Verdict.UNSTARTABLE: "its command could not be started",
    Verdict.UNKNOWN: "its outcome is unknown",
    Verdict.NEVER_BEGUN: "it was not begun",
}


@dataclass(frozen=True, slots=True)
class Files:
    """What the files of one delivery say now. Times are epoch seconds."""

    is_locked: bool | None = False  # accepted or running; None: could not be found out
    begun_at: float | None = None  # by the start mark of the present offer
    outcome: Outcome | None = None  # of the present offer, as long as it is not recorded
    ended_at: float | None = None
    unit: str = ""  # that it runs in
    unit_state: str = ""  # as its manager says: "active (running)"
    look: tuple[str, ...] = ()  # commands that show it running
    payload: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Here:
    """What is known beside the item: the poller, the source that the item is of, the configuration."""

    is_running: bool | None = None  # a poller; None: could not be found out
    paused: str = ""  # why all deliveries pause
    source: Mapping[str, Any] = field(default_factory=dict)  # as in the heartbeat; empty: not known
    source_name: str = ""
    max_retries: int | None = None
    sources: tuple[str, ...] | None = None  # all that are configured; None: not known


@dataclass(frozen=True, slots=True)
class Stage:
    """Where it is. `state` is for programs; `text` says it with `reason` and times, `commands` are for a person."""

    state: str
    text: str
    reason: str = ""
    since: float | None = None
    until: float | None = None
    unit: str = ""
    commands: tuple[str, ...] = ()
    is_known: bool = True  # False: nothing speaks of it


@dataclass(frozen=True, slots=True)
class Seen:
    """All that stages are told from. `events` are of the item, oldest first; `at` writes a moment for people."""

    ref: str
    ledger: Ledger | None
    events: Sequence[Event]
    files: Mapping[str, Files]
    here: Here
    now: float
    at: Callable[[float], str]
    held: str = ""  # why the item's ledger cannot be used
    unread: str = ""  # why it could not be read
    is_log_read: bool = True

    def of(self, key: str) -> list[Event]:
        """The events about one event of the item."""
        return [event for event in self.events if event.get("deliveryId") == f"{self.ref}/{key}"]


def stage_of_item(seen: Seen) -> Stage:
    """Where the item itself is."""
    ledger, at = seen.ledger, seen.at
    if unusable := _unusable(seen):
        return unusable
    if ledger is None:
        return _unknown_item(seen)
    poll = ledger.poll
    if poll.phase is Phase.ENDED:
        ended = _last(seen.events, "session.closed")
        when = f", {at(ended)}" if ended else ""
        return Stage("ended", f"the item ended ({poll.reason or 'no reason kept'}){when}", poll.reason, since=ended)
    if poll.phase is Phase.WAITING:
        reason = poll.reason or _reason(seen.events, "poll.waiting") or "it starts by the start word"
        text = f"met, and does not start by itself: {reason}; an authorised person starts it by the start word"
        return Stage("waiting", text, reason)
    if poll.phase is Phase.STARTING:
        stage = stage_of_event(seen, ledger.spawn_key)
        return replace(stage, state="starting", text=f"starts with {ledger.spawn_key}: {stage.text}")
    if poll.phase is Phase.ENDING:
        stage = stage_of_event(seen, ledger.close_key)
        return replace(stage, state="ending", text=f"ends with {ledger.close_key}: {stage.text}")
    if pause := _pause(ledger, seen):
        return pause
    since = _last(seen.events, "poll.spawned")
    started = f"started {at(since)}" if since else "started"
    return Stage("live", f"{started}; new comments are handed over", since=since)


def stage_of_event(seen: Seen, key: str) -> Stage:
    """Where this event of the item is."""
    ledger = seen.ledger
    if unusable := _unusable(seen):
        return unusable
    if ledger is not None and (entry := ledger.poll.pending.get(key)) is not None:
        return _under_way(seen, key) or _pending(seen, ledger, key, entry)
    if ledger is not None and (carrier := _carrier(ledger, key)):
        stage = stage_of_event(seen, carrier)
        return replace(stage, text=f"it goes with {carrier} of the item: {stage.text}")
    if told := _told(seen, key):
        return told
    if ledger is not None and key in ledger.poll.seen_comments:
        return _settled(seen, key)
    if (own := seen.of(key)) and (moment := epoch(own[-1]["time"])):
        text = f"it was known, and is not in the item's record any more: last mentioned {seen.at(moment)}"
        return Stage("withdrawn", text, since=moment)
    return _not_seen(seen, ledger, key)


# --- on its way ------------------------------------------------------------------------------------------------------


def _under_way(seen: Seen, key: str) -> Stage | None:
    """What only the delivery's files tell: it runs, or it ended and that is not recorded yet."""
    files = seen.files.get(key, Files())
    if files.is_locked is None:
        return Stage("unknown", "it could not be found out whether it runs")
    if files.outcome is not None:
        text = f"it ended{_when(seen, files.ended_at)}, {_VERDICTS[files.outcome.verdict]}"
        text += f": {files.outcome.reason}" if files.outcome.reason else ""
        then = "the poller is recording that" if seen.here.is_running else "the next start of the poller records that"
        return Stage("ended", f"{text}; {then}", files.outcome.reason, since=files.ended_at)
    if files.is_locked and files.begun_at is None:
        text = "the service manager accepted it and has not begun it yet"
        return Stage("accepted", text, unit=files.unit, commands=files.look)
    if files.is_locked:
        unit = f" in {files.unit}" if files.unit else ""
        unit += f", {files.unit_state}" if files.unit_state else ""
        text = f"running since {seen.at(files.begun_at or 0.0)}{unit}"
        return Stage("running", text, since=files.begun_at, unit=files.unit, commands=files.look)
    if files.begun_at is None:
        return None
    then = "" if seen.here.is_running else "; the next start of the poller decides what follows"
    text = f"begun {seen.at(files.begun_at)}, and its keeper is gone without an outcome: the outcome is unknown{then}"
    return Stage("unknown", text, since=files.begun_at)


def _pending(seen: Seen, ledger: Ledger, key: str, entry: Pending) -> Stage:
    """An event that does not run: what it waits for."""
    match entry.state:
        case Standing.GAVE_UP:
            return _gave_up(seen, key)
        case Standing.HELD:
            reason = entry.reason or _reason(seen.of(key), "poll.comment_held", "dispatch.uncertain")
            text = f"held, its outcome is unknown{_because(reason)}; it is not offered again by itself"
            commands = tuple(_typed(verb, seen.ref, key) for verb in ("retry", "settle"))
            return Stage("held", text, reason, commands=commands)
        case Standing.REFUSED:
            return _rejected(seen, key, entry)
        case Standing.LATER:
            reason = entry.reason or _reason(seen.of(key), "poll.deferred")
            text = f"deferred by its receiver{_because(reason)}, {_next_try(seen, entry)}"
            return Stage("deferred", text, reason, until=entry.retry_at or None)
    ahead = next((one for one in _before(ledger, key) if one != key), "")
    if ahead:
        stage = stage_of_event(seen, ahead)
        text = f"{_accepted(seen, key)}, and its turn comes after {ahead} of the item: {stage.text}"
        since = _last(seen.of(key), "poll.accepted")
        return Stage("waiting", text, f"behind {ahead}", since, stage.until, stage.unit, stage.commands)
    return _first_in_line(seen, ledger, key, entry)


def _first_in_line(seen: Seen, ledger: Ledger, key: str, entry: Pending) -> Stage:
    accepted, since = _accepted(seen, key), _last(seen.of(key), "poll.accepted")
    if entry.state is Standing.UNCERTAIN:
        reason = entry.reason or _reason(seen.of(key), "dispatch.uncertain")
        text = f"begun before, its outcome is unknown{_because(reason)}; it is offered again, marked as a redelivery"
        return Stage("unknown", text, reason)
    if entry.state is Standing.LOST:
        return Stage("waiting", f"{accepted}, its payload is not on this machine: it is read again with the next cycle")
    if ledger.poll.phase is not Phase.ENDING and (pause := _pause(ledger, seen)):
        return replace(pause, text=f"{accepted}; {pause.text}")
    if not seen.here.is_running:
        why = "whether a poller is running is not known" if seen.here.is_running is None else "no poller is running"
        return Stage("waiting", f"{accepted}; {why}, the next start hands it over", why)
    if seen.here.paused:
        return Stage("waiting", f"{accepted}; all deliveries pause: {seen.here.paused}", seen.here.paused)
    if entry.state is Standing.RELEASED and key == ledger.spawn_key:
        return Stage("waiting", f"{accepted}, not begun: it is built from its thread again with the next cycle")
    return Stage("waiting", f"{accepted}, and handed over as soon as a slot is free", since=since)


def _rejected(seen: Seen, key: str, entry: Pending) -> Stage:
    reason = entry.reason or _reason(seen.of(key), *_REJECTED)
    limit = f" of {seen.here.max_retries}" if seen.here.max_retries else ""
    text = f"rejected, attempt {entry.attempt - 1}{limit}{_because(reason)}; {_next_try(seen, entry)}"
    return Stage("refused", text, reason, until=entry.retry_at or None)


def _gave_up(seen: Seen, key: str) -> Stage:
    failed = [event for event in seen.of(key) if event["event"] in _REJECTED]
    reason = str(failed[-1].get("reason", "")) if failed else ""
    attempts = f" after attempt {failed[-1].get('attempt')}" if failed else ""
    text = f"given up{attempts}{_because(reason)}; it is not offered again by itself"
    return Stage("gave-up", text, reason, since=_last(failed), commands=(_typed("retry", seen.ref, key),))


def _next_try(seen: Seen, entry: Pending) -> str:
    if not seen.here.is_running:
        return f"next try with the next start of the poller, from {seen.at(entry.retry_at)} on"
    return f"next try {seen.at(entry.retry_at)}" if entry.retry_at > seen.now else "next try with the next cycle"


def _pause(ledger: Ledger, seen: Seen) -> Stage | None:
    """Why nothing of the item is handed over, if a word, its label or the breaker says so."""
    poll = ledger.poll
    if poll.away:
        return Stage("paused", "the item lost its label and waits until it is back", "its label is gone")
    if poll.paused:
        return Stage("paused", "the item is paused by a word, and goes on with the resume word", "paused")
    if poll.breaker.since:
        text = f"the item pauses since {seen.at(poll.breaker.since)}: too many events within an hour"
        command = _typed("retry", seen.ref)
        return Stage("paused", text, "too many events within an hour", since=poll.breaker.since, commands=(command,))
    return None


def _before(ledger: Ledger, key: str) -> list[str]:
    """The events that are in the queue up to this one; what was given up holds nothing back."""
    queue = [one for one, entry in ledger.poll.pending.items() if entry.state is not Standing.GAVE_UP]
    return queue[: queue.index(key) + 1]


def _carrier(ledger: Ledger, key: str) -> str:
    return next((one for one, entry in ledger.poll.pending.items() if key in entry.carries), "")


# --- done with -------------------------------------------------------------------------------------------------------


def _told(seen: Seen, key: str) -> Stage | None:
    """What the event log says became of an event that is not pending."""
    for event in reversed(seen.of(key)):
        moment, name, reason = epoch(event["time"]), event["event"], str(event.get("reason", ""))
        when = _when(seen, moment)
        if name in _DELIVERED:
            return Stage("delivered", f"delivered{when}", since=moment)
        if name == "dispatch.dropped" and reason == "settled":
            return Stage("settled", f"recorded as delivered by `ledger settle`{when}", reason, since=moment)
        if name == "dispatch.dropped":
            author = f" by '{event['author']}'" if event.get("author") else ""
            text = f"not delivered{author}: {_RULES.get(reason, reason)}{when}"
            return Stage("dropped", text, reason, since=moment)
        if name == "control.applied":
            return Stage("applied", f"a control word: '{reason}' was applied{when}", reason, since=moment)
        if name == "control.ambiguous":
            text = f"its control words contradict each other ({reason}), none was applied{when}"
            return Stage("dropped", text, reason, since=moment)
        if name == "poll.edited" and reason == "renamed":
            return Stage("settled", f"the same content under a new name is not delivered again{when}", reason, moment)
        if name in _REJECTED and event.get("willRetry") is False:
            return Stage("gave-up", f"given up{when}: {reason}; it was the last one of the item", reason, since=moment)
        if name == "poll.rearmed":
            return None  # what was before that does not count any more
    return None


def _settled(seen: Seen, key: str) -> Stage:
    """In the record as done with, and the event log has nothing of it: only a spawn settles others in silence."""
    if key.startswith((f"{Kind.SPAWN}:", f"{Kind.CLOSE}:")):
        return Stage("settled", "settled, and the event log does not go back to it")
    if not seen.is_log_read:
        return Stage("settled", "settled; how, is in the event log, which cannot be read")
    started = _last(seen.events, "poll.spawned")
    when = f" (delivered {seen.at(started)})" if started else ""
    text = (
        f"settled: it went with the item's start{when}; or it was not for the session: "
        "by an author who is not authorised, a notice of our own, a control word"
    )
    return Stage("carried", text, since=started)


# --- not seen --------------------------------------------------------------------------------------------------------


def _unusable(seen: Seen) -> Stage | None:
    """The item's record does not tell anything."""
    if seen.unread:
        return Stage("unread", f"its record cannot be read: {seen.unread}", seen.unread, is_known=False)
    if not seen.held:
        return None
    text = f"the item is held, its ledger cannot be used: {seen.held}"
    since = _last(seen.events, "ledger.held")
    return Stage("held", text, seen.held, since=since, commands=(_typed("reset", seen.ref),))


def _unknown_item(seen: Seen) -> Stage:
    if overlooked := _overlooked(seen):
        return Stage("not-seen", f"passed over: {overlooked}; {_next_poll(seen)}", overlooked, until=_next(seen))
    if seen.events and (moment := epoch(seen.events[-1]["time"])):
        reason = str(seen.events[-1].get("reason", ""))
        text = f"the item has no record; last mentioned {seen.at(moment)}: {seen.events[-1].get('message', '')}"
        return Stage("not-seen", f"{text}; {_next_poll(seen)}", reason, is_known=True)
    return Stage("not-seen", f"not seen: the item is not known; {_next_poll(seen)}", until=_next(seen), is_known=False)


def _not_seen(seen: Seen, ledger: Ledger | None, key: str) -> Stage:
    if ledger is None:
        return _unknown_item(seen)
    phase, pause = ledger.poll.phase, _pause(ledger, seen)
    if phase is Phase.ENDED:
        text = f"not seen, and {stage_of_item(seen).text}: nothing more is delivered unless it is opened again"
        return Stage("item-ended", text, ledger.poll.reason, is_known=False)
    if phase is Phase.WAITING:
        text = f"not taken up: the item was {stage_of_item(seen).text}"
        return Stage("not-seen", text, "the item waits for its start word", is_known=False)
    if phase is Phase.STARTING and key != ledger.spawn_key:
        start = stage_of_event(seen, ledger.spawn_key)
        found = "something new was seen on the item, and is" if ledger.poll.behind else "what is new on the item is"
        how = "after" if start.state in _BEGUN else "with"
        text = f"not accepted yet: {found} taken up {how} {ledger.spawn_key} of the item: {start.text}"
        return Stage(
            "not-seen", text, f"behind {ledger.spawn_key}", unit=start.unit, commands=start.commands, is_known=False
        )
    if overlooked := _overlooked(seen, key):
        return Stage("not-seen", f"passed over: {overlooked}; {_next_poll(seen)}", overlooked, until=_next(seen))
    why = f"{pause.text}; " if pause is not None and ledger.poll.away else ""
    return Stage("not-seen", f"not seen yet: {why}{_next_poll(seen)}", until=_next(seen), is_known=False)


def _overlooked(seen: Seen, key: str = "") -> str:
    """Why the source may not read it, if it says so: by folder, or by folder and file."""
    place = seen.ref.partition("/")[2] + (f"/{key.partition(':')[2]}" if key else "")
    overlooked = seen.here.source.get("overlooked")
    return str(overlooked.get(place) or "") if isinstance(overlooked, Mapping) else ""


def _next_poll(seen: Seen) -> str:
    """When the source of the item is polled next, or why not."""
    here, name = seen.here, f"its source '{seen.here.source_name}'"
    if not here.source_name:
        if here.sources is None:
            return "which source it is of is not known"
        return f"no configured source has it (there {_are(here.sources)})"
    if here.is_running is None:
        return f"it is not known whether a poller is running that polls {name}"
    if not here.is_running:
        return f"no poller is running, the next start polls {name}"
    if not here.source:
        return f"the running poller does not have {name}: its configuration is another one"
    state, error = here.source.get("state"), here.source.get("error")
    if state == "unread":
        return f"{name} is not polled: no user is authorised on it"
    until = epoch(here.source.get("waitingUntil"))
    upcoming = f"{name} is polled next {seen.at(until)}, after a limit" if until else _upcoming(seen, name)
    return f"{upcoming}; it is failing: {error}" if error else upcoming


def _upcoming(seen: Seen, name: str) -> str:
    upcoming = epoch(seen.here.source.get("nextCycleAt"))
    if upcoming is None or upcoming <= seen.now:
        return f"{name} is being polled now"
    return f"{name} is polled next {seen.at(upcoming)}"


def _next(seen: Seen) -> float | None:
    source = seen.here.source
    return epoch(source.get("waitingUntil")) or epoch(source.get("nextCycleAt")) if seen.here.is_running else None


def _are(names: Sequence[str]) -> str:
    if not names:
        return "is none"
    return ("is " if len(names) == 1 else "are ") + ", ".join(f"'{name}'" for name in names)


# --- words -----------------------------------------------------------------------------------------------------------


def _typed(verb: str, *words: str) -> str:
    return f"the-loop ledger {verb} {shlex.join(words)}"


def _accepted(seen: Seen, key: str) -> str:
    moment = _last(seen.of(key), "poll.accepted")
    return f"accepted {seen.at(moment)}" if moment else "accepted"


def _because(reason: str) -> str:
    return f" ({reason})" if reason else ""


def _when(seen: Seen, moment: float | None) -> str:
    return f", {seen.at(moment)}" if moment else ""


def _reason(events: Sequence[Event], *names: str) -> str:
    """The reason of the latest of these events."""
    return next((str(event.get("reason", "")) for event in reversed(events) if event["event"] in names), "")


def _last(events: Sequence[Event], *names: str) -> float | None:
    """When the latest of these events was, epoch seconds; of all, if none is named."""
    return next((epoch(event["time"]) for event in reversed(events) if not names or event["event"] in names), None)
