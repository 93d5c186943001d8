"""Every event of the decision trail: its name, level and sentence, and where it is written.

An event is an interface (documented in docs/usage/events.md): names and fields change with a note in the changelog.
Text from outside travels in fields only, made printable and capped; a sentence is built from names we chose.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Protocol, TextIO

from the_loop.core.model import Note, delivery_id, timestamp

FIELD_LIMIT: Final = 2000  # characters
LOG_LIMIT: Final = 10 << 20  # bytes; one older file is kept
INFO, WARNING, ERROR, NOTICE = "info", "warning", "error", "notice"


_MESSAGE_IDS: Final = uuid.UUID("5d0c9d3e-6f0f-4c3c-9d55-2b1f3a8f7c41")  # the namespace that all ids are made in


def message_id(name: str) -> str:
    """The journal's fixed id of an event, 32 hexadecimal digits; the message catalog has a text under each."""
    return uuid.uuid5(_MESSAGE_IDS, name).hex


@dataclass(frozen=True, slots=True)
class Form:
    """How an event is told: `sentence` is formatted with the event's fields, missing ones empty."""

    level: str
    sentence: str


CATALOG: Final[Mapping[str, Form]] = {
    "poller.started": Form(NOTICE, "holding {path} as pid {pid}, uid {uid}"),
    "poller.blocked": Form(INFO, "not started: {reason}"),
    "poller.stopping": Form(NOTICE, "stopping: {reason}"),
    "poller.restored": Form(WARNING, "put {path} back: it was removed or replaced"),
    "poll.cycle": Form(INFO, "cycle: {items} items, {delivered} delivered, {errors} errors in {seconds} s{suffix}"),
    "poll.spawned": Form(INFO, "started {ref}"),
    "poll.comment_forwarded": Form(INFO, "delivered {deliveryId}"),
    "poll.comment_failed": Form(WARNING, "refused {deliveryId} (attempt {attempt}): {reason}{suffix}"),
    "poll.comment_held": Form(WARNING, "holding {deliveryId}, nobody can tell whether it arrived: {reason}"),
    "poll.spawn_failed": Form(WARNING, "refused {deliveryId} (attempt {attempt}): {reason}{suffix}"),
    "poll.give_up_told": Form(INFO, "told on {ref} that {deliveryId} was given up"),
    "poll.give_up_untold": Form(WARNING, "cannot tell on {ref} that {deliveryId} was given up: {reason}"),
    "poll.rearmed": Form(NOTICE, "trying {deliveryId} again: {reason}"),
    "poll.attempts_released": Form(INFO, "put {count} events back, their budgets unchanged"),
    "poll.edited": Form(INFO, "not delivered again, {deliveryId} was {reason}"),
    "dispatch.abandoned": Form(INFO, "accepted but not begun: {deliveryId}"),
    "dispatch.left_running": Form(NOTICE, "left running: {deliveryId}"),
    "dispatch.adopted": Form(NOTICE, "waiting for a delivery of an earlier run: {deliveryId}"),
    "dispatch.dropped": Form(INFO, "not delivered ({reason}): {deliveryId}"),
    "dispatch.paused": Form(ERROR, "all deliveries wait {seconds} s: {reason}"),
    "dispatch.no_manager": Form(INFO, "deliveries run as plain processes from now on: {reason}"),
    "dispatch.uncertain": Form(WARNING, "nobody can tell whether {deliveryId} arrived: {reason}"),
    "control.applied": Form(NOTICE, "{reason} for {ref}, by {deliveryId}"),
    "control.ambiguous": Form(WARNING, "{deliveryId} says {reason}, so neither"),
    "session.started": Form(INFO, "session of {ref} started"),
    "session.closed": Form(INFO, "session of {ref} closed: {reason}"),
    "ledger.held": Form(ERROR, "holding {ref}, its ledger cannot be used: {reason}"),
    "item.failed": Form(ERROR, "cannot process {ref}: {reason}"),
    "source.failed": Form(WARNING, "source {source}: {reason}"),
    "source.waiting": Form(WARNING, "source {source} waits until {until}: {reason}"),
    "source.recovered": Form(NOTICE, "source {source} answers again"),
    "config.reloaded": Form(NOTICE, "configuration '{path}' is in force"),
    "config.rejected": Form(ERROR, "configuration kept as it was: {reason}"),
}


class Sink(Protocol):
    def write(self, event: Mapping[str, Any]) -> None:
        """Record one event. Raises OSError."""

    def drop_log(self) -> None:
        """Write no file any more."""

    def check(self) -> None:
        """Called now and then."""


class Trail:
    """Tells events to a sink; what cannot be written is said on stderr once, and costs nothing else."""

    def __init__(self, sink: Sink, now: Callable[[], float]) -> None:
        self._sink = sink
        self._now = now
        self._is_broken = False

    def detach(self) -> None:
        """Write no file any more, only say it: the place where it was kept is somebody else's now."""
        self._sink.drop_log()

    def check(self) -> None:
        """Give the sink a chance to find out where its events can be read."""
        self._sink.check()

    def tell(self, note: Note) -> None:
        event = compose(note, self._now())
        try:
            self._sink.write(event)
            self._is_broken = False
        except OSError as error:
            if not self._is_broken:
                say(f"the-loop: cannot write the event log: {error.strerror or error}")
            self._is_broken = True


def compose(note: Note, now: float) -> dict[str, Any]:
    """The event as `events --json` shows it: `time`, `event`, `level`, `message` and the fields that apply."""
    form = CATALOG[note.name]
    fields = {name: _safe(value) for name, value in note.fields.items() if value is not None}
    key = fields.pop("key", None)
    if key is not None and "ref" in fields:
        fields.setdefault("deliveryId", delivery_id(fields["ref"], key))
    suffix = ", interrupted" if fields.get("interrupted") else ""
    if fields.get("errors"):
        suffix += f", the last good one at {fields.get('lastGoodCycleAt', 'no time')}"
    if fields.get("willRetry") is False:
        suffix = f"; given up, `the-loop ledger retry {fields.get('ref')}` tries it again"
    message = form.sentence.format_map(_Blank({**fields, "suffix": suffix}))
    return {"time": timestamp(now), "event": note.name, "level": form.level, "message": message, **fields}


class _Blank(dict[str, Any]):
    def __missing__(self, key: str) -> str:
        return ""


def _safe(value: Any) -> Any:
    """Text without line breaks and control characters, and not longer than FIELD_LIMIT; numbers as they are."""
    if not isinstance(value, str):
        return value
    text = "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in value[: FIELD_LIMIT + 1])
    return text if len(text) <= FIELD_LIMIT else text[: FIELD_LIMIT - 1] + "…"


class JsonLog:
    """`logs/events.jsonl`: one object a line, in ASCII; rotated to `.1` above LOG_LIMIT."""

    def __init__(self, path: Path) -> None:
        self._path: Path | None = path

    def drop_log(self) -> None:
        self._path = None

    def check(self) -> None:
        """What is in a file can be read."""

    def write(self, event: Mapping[str, Any]) -> None:
        if self._path is None:
            return
        rotate(self._path)
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.fchmod(descriptor, 0o600)
            size = os.fstat(descriptor).st_size
            # a full disk or a kill may have cut the last line: that costs that line only
            is_cut = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
            line = b"\n" * is_cut + json.dumps(event).encode("ascii") + b"\n"
            if os.write(descriptor, line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            os.close(descriptor)


class Teller:
    """Messages for people on a stream, one line an event, beside the sink that keeps them."""

    def __init__(self, sink: Sink, stream: TextIO | None, *, verbose: bool) -> None:
        self._sink = sink
        self._stream = stream
        self._verbose = verbose

    def drop_log(self) -> None:
        self._sink.drop_log()

    def check(self) -> None:
        self._sink.check()

    def write(self, event: Mapping[str, Any]) -> None:
        if self._verbose or event["level"] != INFO:
            with contextlib.suppress(OSError, ValueError):
                print(f"the-loop: {event['event']}: {event['message']}", file=self._stream, flush=True)
        self._sink.write(event)


def rotate(path: Path) -> None:
    """Move a log over its limit to `.1`."""
    with contextlib.suppress(FileNotFoundError):
        if path.stat().st_size > LOG_LIMIT:
            path.rename(path.with_name(f"{path.name}.1"))


def read_log(path: Path) -> Iterator[dict[str, Any]]:
    """The events in a log and its older part, oldest first; a line that is cut or garbled is passed over.

    Raises OSError for a log that cannot be read; a missing one has no events.
    """
    for file in (path.with_name(f"{path.name}.1"), path):
        try:
            lines = file.open("rb")
        except FileNotFoundError:
            continue
        with lines:
            for line in lines:
                event = parse_line(line)
                if event is not None:
                    yield event


def parse_line(line: bytes | str) -> dict[str, Any] | None:
    """One line of a log, or None where it is not a whole event."""
    try:
        event = json.loads(line)
        moment = datetime.fromisoformat(event["time"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    texts = ("event", "level", "message")
    is_whole = isinstance(event, dict) and moment.tzinfo is not None
    is_whole = is_whole and all(isinstance(event.get(name, ""), str) for name in texts) and "event" in event
    return event if is_whole else None


def matches(event: Mapping[str, Any], source: str | None, since: datetime | None) -> bool:
    """True if the event is of this part of the trail (`poll` as in `poll.*`, or a source's name) and not older."""
    if source and source not in (event["event"].partition(".")[0], event.get("source")):
        return False
    return since is None or datetime.fromisoformat(event["time"]) >= since


def say(text: str) -> None:
    """A message for people; a closed stderr is no reason to fail."""
    with contextlib.suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)
