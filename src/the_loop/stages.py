"""Where one event or one item is, and why: one sentence from what is known of it. No clock, disk or network."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Final

from the_loop.core.ledger import Ledger, Pending, Phase, Standing
from the_loop.core.model import Kind, Verdict, delivery_id, epoch
from the_loop.seen import Files, Seen, Stage, last_of, next_poll, next_poll_at, overlooked, reason_of

_DELIVERED: Final = ("poll.comment_forwarded", "poll.spawned", "session.closed")
_REJECTED: Final = ("poll.comment_failed", "poll.spawn_failed")
_BEGUN: Final = ("accepted", "running", "ended", "unknown", "held")  # of a spawn that is not built again
_RULES: Final = {
    "unauthorized": "its author is not authorised to speak here, or cannot be established",
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
    Verdict.HELD: "it is held",
}


def stage_of_item(seen: Seen) -> Stage:
    """Where the item itself is."""
    ledger, at = seen.ledger, seen.at
    if unusable := _unusable(seen):
        return unusable
    if ledger is None:
        return _unknown_item(seen)
    poll = ledger.poll
    if poll.phase is Phase.ENDED:
        ended = last_of(seen.events, "session.closed")
        when = f", {at(ended)}" if ended else ""
        return Stage("ended", f"the item ended ({poll.reason or 'no reason kept'}){when}", poll.reason, since=ended)
    if poll.phase is Phase.WAITING:
        reason = poll.reason or reason_of(seen.events, "poll.waiting") or "it waits for its start word"
        how = f"an authorised person starts it by writing {seen.here.start_word} on it"
        return Stage("waiting", f"met, and does not start by itself: {reason}; {how}", reason)
    if poll.phase is Phase.STARTING:
        stage = stage_of_event(seen, ledger.spawn_key)
        return replace(stage, state="starting", text=f"starts with {ledger.spawn_key}: {stage.text}")
    if poll.phase is Phase.ENDING:
        stage = stage_of_event(seen, ledger.close_key)
        return replace(stage, state="ending", text=f"ends with {ledger.close_key}: {stage.text}")
    if pause := _pause(ledger, seen):
        return pause
    since = last_of(seen.events, "poll.spawned")
    started = f"started {at(since)}" if since else "started"
    return Stage("live", f"{started}; new comments are handed over", since=since)


def stage_of_event(seen: Seen, key: str) -> Stage:
    """Where this event of the item is."""
    ledger = seen.ledger
    if unusable := _unusable(seen):
        return unusable
    if ledger is not None and (entry := ledger.poll.pending.get(key)) is not None:
        return _under_way(seen, key, entry) or _pending(seen, ledger, key, entry)
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


def _under_way(seen: Seen, key: str, entry: Pending) -> Stage | None:
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
        then = "; no poller is running, the next start records how it ends" if seen.here.is_running is False else ""
        text = f"running since {seen.at(files.begun_at or 0.0)}{unit}{then}"
        return Stage("running", text, since=files.begun_at, unit=files.unit, commands=files.look)
    if files.begun_at is None:
        return _at_work(seen, key) if _may_run(seen, entry) else None
    then = "" if seen.here.is_running else "; the next start of the poller decides what follows"
    text = f"begun {seen.at(files.begun_at)}, and its keeper is gone without an outcome: the outcome is unknown{then}"
    return Stage("unknown", text, since=files.begun_at)


def _may_run(seen: Seen, entry: Pending) -> bool:
    """False if the record is newer than what a heartbeat says of the event."""
    return entry.state.is_offered and entry.retry_at <= seen.now


def _at_work(seen: Seen, key: str) -> Stage | None:
    """What the poller says of a delivery that leaves no marks: its runner is another one than ours."""
    work = seen.here.work.get(delivery_id(seen.ref, key), {})
    since = epoch(work.get("since"))
    if work.get("state") != "running" or since is None:
        return None
    unit = str(work.get("unit") or "")
    return Stage("running", f"running since {seen.at(since)}{f' in {unit}' if unit else ''}", since=since, unit=unit)


def _pending(seen: Seen, ledger: Ledger, key: str, entry: Pending) -> Stage:
    """An event that does not run: what it waits for."""
    match entry.state:
        case Standing.GAVE_UP:
            return _gave_up(seen, key, entry)
        case Standing.HELD:
            reason = entry.reason or reason_of(seen.of(key), "poll.comment_held", "session.held", "dispatch.uncertain")
            what = "its outcome is unknown" if entry.redelivery else "it was not begun"
            text = f"held, {what}{_because(reason)}; it is not offered again by itself"
            commands = tuple(_typed(f"ledger {verb}", seen.ref, key) for verb in ("retry", "settle"))
            return Stage("held", text, reason, commands=commands)
        case Standing.REFUSED:
            return _rejected(seen, key, entry)
        case Standing.LATER:
            reason = entry.reason or reason_of(seen.of(key), "poll.deferred")
            text = f"deferred by its receiver{_because(reason)}, {_next_try(seen, entry)}"
            return Stage("deferred", text, reason, until=entry.retry_at or None)
    ahead = next((one for one in _before(ledger, key) if one != key), "")
    if ahead:
        stage = stage_of_event(seen, ahead)
        text = f"{_accepted(seen, key)}, and its turn comes after {ahead} of the item: {stage.text}"
        since = last_of(seen.of(key), "poll.accepted")
        return Stage("waiting", text, f"behind {ahead}", since, stage.until, stage.unit, stage.commands)
    return _first_in_line(seen, ledger, key, entry)


def _first_in_line(seen: Seen, ledger: Ledger, key: str, entry: Pending) -> Stage:
    accepted, since = _accepted(seen, key), last_of(seen.of(key), "poll.accepted")
    if entry.state is Standing.UNCERTAIN:
        reason = entry.reason or reason_of(seen.of(key), "dispatch.uncertain")
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
    reason = entry.reason or reason_of(seen.of(key), *_REJECTED)
    limit = f" of {seen.here.max_retries}" if seen.here.max_retries else ""
    text = f"rejected, attempt {entry.attempt - 1}{limit}{_because(reason)}; {_next_try(seen, entry)}"
    return Stage("refused", text, reason, until=entry.retry_at or None)


def _gave_up(seen: Seen, key: str, entry: Pending) -> Stage:
    failed = [event for event in seen.of(key) if event["event"] in _REJECTED]
    reason = entry.reason or reason_of(failed, *_REJECTED)
    attempts = f" after attempt {failed[-1].get('attempt')}" if failed else ""
    text = f"given up{attempts}{_because(reason)}; it is not offered again by itself"
    return Stage("gave-up", text, reason, since=last_of(failed), commands=(_typed("ledger retry", seen.ref, key),))


def _next_try(seen: Seen, entry: Pending) -> str:
    if seen.ledger is not None and seen.ledger.poll.phase is not Phase.ENDING and (pause := _pause(seen.ledger, seen)):
        return f"next try from {seen.at(entry.retry_at)} on; {pause.text}"
    if not seen.here.is_running:
        return f"next try with the next start of the poller, from {seen.at(entry.retry_at)} on"
    return f"next try {seen.at(entry.retry_at)}" if entry.retry_at > seen.now else "next try with the next cycle"


def _pause(ledger: Ledger, seen: Seen) -> Stage | None:
    """Why nothing of the item is handed over, if a word, its label or the breaker says so."""
    poll = ledger.poll
    if poll.away:
        return Stage("paused", "the item lost its label and waits until it is back", "its label is gone")
    if poll.paused:
        return Stage("paused", f"the item is paused by a word, and goes on with {seen.here.resume_word}", "paused")
    if poll.breaker.since:
        text = f"the item pauses since {seen.at(poll.breaker.since)}: too many events within an hour"
        command = _typed("ledger retry", seen.ref)
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
    started = last_of(seen.events, "poll.spawned")
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
    since = last_of(seen.events, "ledger.held")
    return Stage("held", text, seen.held, since=since, commands=(_typed("ledger reset", seen.ref),))


def _unknown_item(seen: Seen) -> Stage:
    if why := overlooked(seen):
        return Stage("not-seen", f"passed over: {why}; {next_poll(seen)}", why, until=next_poll_at(seen))
    if seen.events and (moment := epoch(seen.events[-1]["time"])):
        reason = str(seen.events[-1].get("reason", ""))
        text = f"the item has no record; last mentioned {seen.at(moment)}: {seen.events[-1].get('message', '')}"
        return Stage("not-seen", f"{text}; {next_poll(seen)}", reason, is_known=True)
    needs = f" (it needs {seen.here.needs})" if seen.here.needs else ""
    text = f"not seen: the item is not known{needs}; {next_poll(seen)}"
    return Stage("not-seen", text, until=next_poll_at(seen), is_known=False)


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
    if why := overlooked(seen, key):
        return Stage("not-seen", f"passed over: {why}; {next_poll(seen)}", why, until=next_poll_at(seen))
    why = f"{pause.text}; " if pause is not None and ledger.poll.away else ""
    if key.startswith(f"{Kind.REVIEW}:"):
        why += "a review without a text or a verdict is not an event, but each of its comments on lines is; "
    commands = tuple(_typed("authors accept", login) for login in seen.here.changed)
    if commands:
        logins = " and ".join(f"'{login}'" for login in seen.here.changed)
        why += f"what {logins} wrote on the item waits, as the account is another one than before; "
    text = f"not seen yet: {why}{next_poll(seen)}"
    return Stage("not-seen", text, until=next_poll_at(seen), commands=commands, is_known=False)


# --- words -----------------------------------------------------------------------------------------------------------


def _typed(verb: str, *words: str) -> str:
    return f"the-loop {verb} {shlex.join(words)}"


def _accepted(seen: Seen, key: str) -> str:
    moment = last_of(seen.of(key), "poll.accepted")
    return f"accepted {seen.at(moment)}" if moment else "accepted"


def _because(reason: str) -> str:
    return f" ({reason})" if reason else ""


def _when(seen: Seen, moment: float | None) -> str:
    return f", {seen.at(moment)}" if moment else ""
