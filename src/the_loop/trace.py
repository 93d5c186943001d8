"""The life of one item or one event: what the event log, the ledger, the delivery's files and the heartbeat say of it.

Only files are read, and locks are probed for a moment, so that this works while a poller is running, and without one.
Of the ledgers the one that is asked for is opened, however many there are. What cannot be read is in `unreadable`.
"""

from __future__ import annotations

import difflib
import heapq
import json
import os
import shlex
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, Final

from the_loop.addresses import Address, read_address
from the_loop.authors import AuthorsUnusable, read_authors, waiting_authors
from the_loop.config import Config
from the_loop.core.ledger import Ledger, Pending
from the_loop.core.model import delivery_id, epoch, explain, timestamp
from the_loop.deliveries import Deliveries, beside, is_locked, is_started, keeper_of, outcome_of
from the_loop.eventlog import read_log
from the_loop.last_report import read_heartbeat
from the_loop.ledgers import HeldItem, Ledgers
from the_loop.lock import Probe, look
from the_loop.places import Places, event_of_file
from the_loop.printed import Output, of_log, of_units
from the_loop.processes import identity_of
from the_loop.records import Records
from the_loop.runners.unit_names import unit_name
from the_loop.seen import Files, Here, Seen, Stage
from the_loop.stages import stage_of_event, stage_of_item
from the_loop.state import PIDFILE, StateRoot
from the_loop.supervision.journal import read_journal, read_journal_about
from the_loop.supervision.unit import Unit, state_of, unit_of

_FILES_READ: Final = 50  # pending events of an item whose files are looked at
_TRIES: Final = 5  # of reading what is being written
_MANAGER_LIMIT_S: Final = 0.5
_OF_THE_ITEM: Final = ("poll.spawned", "session.closed", "control.applied")  # shown with each of its events


@dataclass(frozen=True, slots=True)
class Traced:
    """Everything known about what was asked for. Without a `ref` the text names nothing."""

    asked: str
    ref: str
    key: str  # "" is the item as a whole
    stage: Stage
    ledger: Ledger | None = None
    author: str = ""
    url: str = ""
    pending: Mapping[str, Stage] = field(default_factory=dict)
    timeline: Sequence[Mapping[str, Any]] = ()
    output: Output | None = None
    unreadable: Sequence[str] = ()
    suggestions: Sequence[str] = ()


def trace(root: StateRoot, text: str, config: Config | str, at: Callable[[float], str]) -> Traced:
    """What is known about the item or event that `text` names.

    `config` is the configuration, or why it cannot be read; `at` writes a moment (epoch seconds) for people.
    """
    tracer = _Tracer(root, config, at)
    address = read_address(text)
    place = Address() if address is None else tracer.places.find(address)
    if not place.refs:
        return tracer.nothing(text, address)
    key = place.key
    if address is not None and address.path:
        key = event_of_file(tracer.record_of(place.refs[0]).ledger, key) if key else ""
    found = tracer.trace(text, place.refs[0], key)
    if address is None or found.stage.is_known or not _is_missing(address.path):
        return found
    return replace(found, stage=replace(found.stage, text=f"there is no such file; {found.stage.text}"))


@dataclass(frozen=True, slots=True)
class _Record:
    """An item's ledger, or why it is `held` or could not be read; all empty where there is none."""

    ledger: Ledger | None = None
    held: str = ""
    unread: str = ""


def _is_missing(path: str) -> bool:
    """True for a path that leads nowhere; False if that cannot be found out."""
    try:
        Path(path).expanduser().lstat()
    except FileNotFoundError:
        return bool(path)
    except (OSError, RuntimeError):
        return False
    return False


class _Tracer:
    def __init__(self, root: StateRoot, config: Config | str, at: Callable[[float], str]) -> None:
        self._root = root
        self._config = config if isinstance(config, Config) else None
        self._at = at
        self._now = time.time()
        self._uid = root.path.stat().st_uid
        self._deliveries = Deliveries(root)
        self._is_log_unread = False
        self.unreadable: list[str] = []
        if isinstance(config, str):
            self.unreadable.append(f"the configuration: {config}")
        self.places = Places(root, Records(root, time.time, is_alone=False), self._config)

    def trace(self, asked: str, ref: str, key: str) -> Traced:
        record, files = self._stored(ref, key)
        ledger = record.ledger
        events = self._events(ref, {*files, *([key] if key else [])})
        here = self._here(ref, events)
        seen = Seen(
            *(ref, ledger, events, files, here, self._now, self._at, record.held, record.unread),
            is_log_read=not self._is_log_unread,
        )
        stage = stage_of_event(seen, key) if key else stage_of_item(seen)
        pending = {} if ledger is None or key else {one: stage_of_event(seen, one) for one in files}
        chosen = key or next((one for one in pending if pending[one].state == "running"), _latest(events, ref))
        payload = files[key].payload if key in files else {}
        return Traced(
            asked,
            ref,
            key,
            stage,
            ledger,
            author=str(payload.get("author") or _author(seen, key)),
            url=str(payload.get("url") or ("" if key or ledger is None else ledger.url)),
            pending=pending,
            timeline=_timeline(seen, key),
            output=self._output(seen, chosen) if chosen else None,
            unreadable=self.unreadable,
            suggestions=() if stage.is_known or record.unread else self._suggestions(ref, key, ledger),
        )

    def nothing(self, asked: str, address: Address | None) -> Traced:
        """The text names no item: what it could have meant."""
        text = "this is not a ref, a delivery id, or the address of an issue, a pull request or a file"
        if address is not None:
            text = "no configured directory source has this path"
        stage = Stage("not-seen", text, is_known=False)
        return Traced(asked, "", "", stage, unreadable=self.unreadable, suggestions=self._suggestions(asked, "", None))

    def record_of(self, ref: str) -> _Record:
        """The item's ledger, or why there is none to read; that is noted."""
        try:
            return _Record(Ledgers(self._root, lambda _: None, time.time, may_write=False).get(ref))
        except HeldItem as error:
            return _Record(held=error.reason)
        except OSError as error:
            self._note(f"the record of '{ref}'", error)
            return _Record(unread=explain(error))

    # --- files ---

    def _stored(self, ref: str, key: str) -> tuple[_Record, dict[str, Files]]:
        """The record and the files of its pending events, as of one moment as far as possible."""
        tries = 0
        while True:
            record = self.record_of(ref)
            tries += 1
            pending = {} if record.ledger is None else record.ledger.poll.pending
            names = {*islice(pending, _FILES_READ), key} & pending.keys()
            files = {one: self._files(ref, one, entry) for one, entry in pending.items() if one in names}
            if tries == _TRIES or self.record_of(ref) == record:
                return record, files

    def _files(self, ref: str, key: str, entry: Pending) -> Files:
        stem = self._deliveries.stem(ref, key)
        try:
            # NB: the lock is asked before the marks are read, else a keeper could begin, or end, in between
            is_held = is_locked(stem)
            payload = self._deliveries.payload(stem) or {}
            outcome = outcome_of(stem, entry.offer)
            begun_at = _modified(beside(stem, "started.json")) if is_started(stem, entry.offer) else None
            ended_at = _modified(beside(stem, "outcome.json")) if outcome else None
            is_held = is_held and (begun_at is not None or payload.get("offer") == entry.offer)
            unit = self._unit(stem, delivery_id(ref, key), entry) if is_held and outcome is None else None
        except OSError as error:
            self._note(f"the files of '{key}'", error)
            return Files(is_locked=None)
        state = state_of(unit, _MANAGER_LIMIT_S) if unit is not None else None
        return Files(
            is_held,
            begun_at,
            outcome,
            ended_at,
            unit="" if unit is None else unit.name,
            unit_state="" if state is None else f"{state.active} ({state.sub})",
            look=self._look(unit) if is_held else (),
            payload=payload,
        )

    def _unit(self, stem: Path, delivery: str, entry: Pending) -> Unit | None:
        """The transient unit that the keeper runs in, or that the manager accepted. Raises OSError."""
        name = unit_name(self._root.path, delivery, entry.offer)
        keeper = keeper_of(stem)
        if keeper is not None and identity_of(keeper.pid) == keeper:
            unit = unit_of(keeper.pid)
            return unit if unit is not None and unit.name == name else None
        if not Path(f"/run/user/{self._uid}/systemd/private").exists():
            return None
        unit = Unit(name, "user", self._uid)
        state = state_of(unit, _MANAGER_LIMIT_S)
        return unit if state is not None and state.is_up else None

    def _look(self, unit: Unit | None) -> tuple[str, ...]:
        if unit is None:
            return (f"tail -f {shlex.quote(str(self._root.logs / 'output.log'))}",)
        own = f"--user -u {unit.name}" if unit.uid == os.geteuid() else f"_SYSTEMD_USER_UNIT={unit.name}"
        return unit.command("status"), f"journalctl -f {own}"

    # --- the event log, the poller ---

    def _events(self, ref: str, keys: Iterable[str]) -> list[dict[str, Any]]:
        """The events of the item, oldest first. What cannot be read is noted."""
        ids = {delivery_id(ref, key) for key in keys}
        journal: list[dict[str, Any]] = []
        logged: list[dict[str, Any]] = []
        log = self._root.logs / "events.jsonl"
        try:
            journal = list(read_journal_about(self._root.path, ref, ids))
        except OSError as error:
            self._note("the journal", error)
            self._is_log_unread = True
        try:
            logged = list(read_log(log, ref))
            if not (logged or journal or self._is_in_journal()) and self._root.heartbeat.exists():
                log.stat()  # a poller ran, and wrote one of the two
        except FileNotFoundError:
            self._is_log_unread = True
            self.unreadable.append("the event log: the journal shows none of it here, and there is no log file")
        except OSError as error:
            self._note("the event log", error)
            self._is_log_unread = True
        both = heapq.merge(journal, logged, key=lambda event: event["time"])
        mine = (event for event in both if any(_is_of(event.get(name), ref) for name in ("ref", "deliveryId")))
        return list({json.dumps(event, sort_keys=True): event for event in mine}.values())

    def _is_in_journal(self) -> bool:
        """True if there is an event of this root, of whatever item."""
        with suppress(OSError):
            return any(read_journal(self._root.path, None))
        return False

    def _here(self, ref: str, events: Sequence[Mapping[str, Any]]) -> Here:
        sight = look(self._root.path, PIDFILE)
        if sight.probe is Probe.UNKNOWN:
            self.unreadable.append(f"the lock: {sight.cause}")
        beat, holder = self._beat(), sight.holder
        is_of_holder = holder is None or (beat.get("pid"), beat.get("starttime")) == (holder.pid, holder.starttime)
        beat = beat if is_of_holder else {}
        works = beat.get("work", []) if sight.probe is Probe.HELD else []
        told = (str(event["source"]) for event in reversed(events) if event.get("source"))
        name = self.places.source_of(ref) or next(told, "")
        config = self._config
        return Here(
            is_running={Probe.HELD: True, Probe.FREE: False}.get(sight.probe),
            has_reported=bool(beat),
            paused=str(beat.get("paused") or ""),
            source=next((one for one in beat.get("sources", []) if one.get("name") == name), {}),
            source_name=name,
            max_retries=None if config is None else config.polling.max_retries,
            sources=None if config is None else self.places.names(),
            **_words(config),
            needs=self.places.needs(name),
            work={str(one.get("deliveryId")): one for one in works if isinstance(one, dict)},
            changed=self._changed(ref),
        )

    def _beat(self) -> dict[str, Any]:
        """The heartbeat; empty if there is none, or if it cannot be read, which is noted."""
        try:
            self._root.heartbeat.open("rb").close()
        except FileNotFoundError:
            pass
        except OSError as error:
            self._note("the heartbeat", error)
            return {}
        return read_heartbeat(self._root)

    def _changed(self, ref: str) -> tuple[str, ...]:
        """The logins of other accounts than before, of which something on the item waits for a decision."""
        try:
            waiting = waiting_authors(read_authors(self._root.authors))
        except AuthorsUnusable as error:
            self.unreadable.append(f"the accounts of authors: {error}")
            return ()
        return tuple(sorted({one.login for one in waiting if ref in one.refs}))

    def _output(self, seen: Seen, key: str) -> Output | None:
        """The end of what the receiver of this event printed, as far as it can be told apart."""
        try:
            if found := of_units(self._root, seen, key, self._uid):
                return found
        except OSError as error:
            self._note("the journal of its unit", error)
        try:
            return of_log(self._root, seen, key)
        except OSError as error:
            self._note("the output", error)
            return None

    # --- near misses ---

    def _suggestions(self, ref: str, key: str, ledger: Ledger | None) -> list[str]:
        if ledger is not None:
            return [delivery_id(ref, one) for one in _similar_keys(ledger, key)]
        try:
            found = self.places.similar(ref)
        except OSError as error:
            self._note("the list of items", error)
            return []
        return [delivery_id(one, key) if key else one for one in found]

    def _note(self, what: str, error: OSError) -> None:
        problem = f"{what}: {explain(error)}"
        if problem not in self.unreadable:
            self.unreadable.append(problem)


def _words(config: Config | None) -> dict[str, str]:
    if config is None:
        return {}
    words = config.routing.control
    return {"start_word": f"`{words.start}`", "resume_word": f"`{words.resume}`"}


def _similar_keys(ledger: Ledger, key: str) -> list[str]:
    """Events of the item with this id and another kind, or with an id like it."""
    known = [*ledger.poll.pending, *sorted(ledger.poll.seen_comments)]
    same = [one for one in known if one.partition(":")[2] == key.partition(":")[2]]
    return (same or difflib.get_close_matches(key, known, cutoff=0.8))[:3]


def _timeline(seen: Seen, key: str) -> list[Mapping[str, Any]]:
    """The events, and what the files say of the present offers, in the order of time."""
    shown = [event for event in seen.events if not key or _is_about(event, seen.ref, key)]
    for one, files in seen.files.items():
        if key in ("", one):
            shown += _facts(seen.ref, one, files)
    return sorted(shown, key=lambda event: epoch(event["time"]) or 0.0)


def _facts(ref: str, key: str, files: Files) -> list[Mapping[str, Any]]:
    by = f" by {files.payload['author']}" if files.payload.get("author") else ""
    told = [
        (epoch(files.payload.get("createdAt")), f"written{by}: {key}"),
        (files.begun_at, f"begun: {key}, attempt {files.payload.get('attempt')}"),
        (files.ended_at, f"ended: {key}, {files.outcome.verdict if files.outcome else ''}"),
    ]
    about = {"event": None, "ref": ref, "deliveryId": delivery_id(ref, key)}
    return [{"time": timestamp(moment), **about, "message": text} for moment, text in told if moment]


def _is_about(event: Mapping[str, Any], ref: str, key: str) -> bool:
    names = (ref, f"{ref}/{key.partition(':')[2]}") if "deliveryId" not in event else ()
    return event.get("ref") in names or event["event"] in _OF_THE_ITEM or event.get("deliveryId") == f"{ref}/{key}"


def _is_of(place: Any, ref: str) -> bool:
    """True for the item itself, what is below it (a file that cannot be read), and its events."""
    return isinstance(place, str) and (place == ref or place.startswith(f"{ref}/"))


def _latest(events: Sequence[Mapping[str, Any]], ref: str) -> str:
    """The event of the item that was told of last."""
    ids = (str(event.get("deliveryId", "")) for event in reversed(events))
    return next((one.removeprefix(f"{ref}/") for one in ids if one), "")


def _author(seen: Seen, key: str) -> str:
    return next((str(one["author"]) for one in reversed(seen.of(key)) if one.get("author")), "")


def _modified(path: Path) -> float | None:
    """When the file was written; None if it is gone. Raises OSError."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return None
