"""The event log: the name, level and sentence of every event, and where events are written.

Events are an interface (docs/usage/events.md): a changed name or field needs a note in the changelog. Text from
outside goes into fields only, escaped and capped at FIELD_LIMIT characters.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shlex
import stat
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol, TextIO

from the_loop.core.model import Note, delivery_id, printable, timestamp, with_given

FIELD_LIMIT: Final = 2000  # characters
LOG_LIMIT: Final = 10 << 20  # bytes; one older file is kept
INFO, WARNING, ERROR, NOTICE = "info", "warning", "error", "notice"
LEVELS: Final = (INFO, NOTICE, WARNING, ERROR)


_MESSAGE_IDS: Final = uuid.UUID("5d0c9d3e-6f0f-4c3c-9d55-2b1f3a8f7c41")  # the namespace of all message ids


def message_id(name: str) -> str:
    """The fixed MESSAGE_ID of an event, 32 hexadecimal digits; the message catalog has a text for each."""
    return uuid.uuid5(_MESSAGE_IDS, name).hex


@dataclass(frozen=True, slots=True)
class Form:
    """The level and sentence of an event. `sentence` is formatted with its fields; a missing one is empty."""

    level: str
    sentence: str


CATALOG: Final[Mapping[str, Form]] = {
    "poller.started": Form(NOTICE, "holding {path} as pid {pid}, uid {uid}"),
    "poller.blocked": Form(INFO, "not started: {reason}"),
    "poller.stopping": Form(NOTICE, "stopping: {reason}"),
    "poller.restored": Form(WARNING, "put {path} back: it was removed or replaced"),
    "poll.cycle": Form(INFO, "cycle: {items} items, {delivered} delivered, {errors} errors in {seconds} s{suffix}"),
    "poll.accepted": Form(INFO, "accepted {deliveryId} of {author}"),
    "poll.deferred": Form(INFO, "{deliveryId} was deferred until {until}: {reason}"),
    "poll.spawned": Form(INFO, "started {ref}"),
    "poll.comment_forwarded": Form(INFO, "delivered {deliveryId}"),
    "poll.comment_failed": Form(WARNING, "{deliveryId} was rejected (attempt {attempt}): {reason}{suffix}"),
    "poll.comment_held": Form(WARNING, "holding {deliveryId}, its outcome is unknown: {reason}"),
    "poll.spawn_failed": Form(WARNING, "{deliveryId} was rejected (attempt {attempt}): {reason}{suffix}"),
    "poll.give_up_told": Form(INFO, "posted a notice on {ref}: {deliveryId} was given up"),
    "poll.give_up_untold": Form(WARNING, "cannot post a notice on {ref} that {deliveryId} was given up: {reason}"),
    "poll.rearmed": Form(NOTICE, "retrying {deliveryId}: {reason}"),
    "poll.breaker": Form(
        WARNING,
        "{ref} pauses: more than {count} events within an hour "
        "(write `the-loop resume` on it, or run `the-loop ledger retry '{ref}'`)",
    ),
    "poll.waiting": Form(NOTICE, "{ref} does not start by itself: {reason}"),
    "poll.attempts_released": Form(INFO, "requeued {count} events that were not begun, no attempt counted"),
    "poll.edited": Form(INFO, "not delivered again: {deliveryId} was {reason}"),
    "dispatch.abandoned": Form(INFO, "accepted but not begun: {deliveryId}"),
    "dispatch.left_running": Form(NOTICE, "left running: {deliveryId}"),
    "dispatch.adopted": Form(NOTICE, "waiting for a delivery of an earlier run: {deliveryId}"),
    "dispatch.dropped": Form(INFO, "not delivered ({reason}): {deliveryId}"),
    "dispatch.paused": Form(ERROR, "all deliveries paused for {seconds} s: {reason}"),
    "dispatch.no_manager": Form(INFO, "deliveries run as plain processes, not in units: {reason}"),
    "dispatch.uncertain": Form(WARNING, "the outcome of {deliveryId} is unknown: {reason}"),
    "control.applied": Form(NOTICE, "applied {reason} to {ref}, as {deliveryId} says"),
    "control.ambiguous": Form(WARNING, "ignoring the control words of {deliveryId}: it says {reason}"),
    "session.started": Form(INFO, "starting the session of {ref}"),
    "session.held": Form(WARNING, "holding {deliveryId}, it was not begun: {reason}"),
    "session.closed": Form(INFO, "session of {ref} closed: {reason}"),
    "ledger.held": Form(ERROR, "holding {ref}, cannot use its ledger: {reason}"),
    "item.failed": Form(ERROR, "cannot process {ref}: {reason}"),
    "author.changed": Form(
        WARNING,
        "{author} is another account than before ({account}, not {pinned}), what it writes waits "
        "(run `the-loop authors accept '{author}'` or `the-loop authors reject '{author}'`)",
    ),
    "source.failed": Form(WARNING, "source {source} failed: {reason}"),
    "source.waiting": Form(WARNING, "source {source} is waiting until {until}: {reason}"),
    "source.anonymous": Form(WARNING, "source {source} has no token: {reason}"),
    "source.exposed": Form(WARNING, "source {source}: {reason}"),
    "source.gap": Form(WARNING, "source {source}: {reason}"),
    "source.recovered": Form(NOTICE, "source {source} recovered"),
    "claim.taken": Form(NOTICE, "source {source} holds the claim {path} as {owner}"),
    "claim.refused": Form(NOTICE, "source {source} is on standby: {owner} holds the claim {path}"),
    "claim.lost": Form(WARNING, "source {source} lost the claim {path}, which it held as {owner}: {reason}"),
    "config.reloaded": Form(NOTICE, "loaded the configuration '{path}'"),
    "config.rejected": Form(ERROR, "keeping the previous configuration: {reason}"),
}


class Sink(Protocol):
    """A place where events are written."""

    def write(self, event: Mapping[str, Any]) -> None:
        """Write one event. Raises OSError."""

    def drop_log(self) -> None:
        """Stop writing to the log file."""

    def check(self) -> None:
        """Called once per cycle, for work that is not urgent. Raises OSError."""


class Trail:
    """Writes events to a sink. A failed write is reported once on stderr and otherwise ignored.

    `given`: the options, quoted for a shell, of the commands that messages tell to run.
    """

    def __init__(self, sink: Sink, now: Callable[[], float], given: str = "") -> None:
        self._sink = sink
        self._given = given
        self._now = now
        self._is_broken = False

    def detach(self) -> None:
        """Stop writing to the log file: the state root is no longer the one that we hold."""
        self._sink.drop_log()

    def check(self) -> None:
        """Let the sink find out where its events can be read back. Raises OSError."""
        self._sink.check()

    def tell(self, note: Note) -> None:
        """Write the event of `note`, with the current time."""
        event = compose(note, self._now())
        event["message"] = with_given(event["message"], self._given)
        try:
            self._sink.write(event)
            self._is_broken = False
        except OSError as error:
            if not self._is_broken:
                say(f"the-loop: cannot write the event log: {error.strerror or error}, ignoring")
            self._is_broken = True


def compose(note: Note, now: float) -> dict[str, Any]:
    """The event as `events --json` prints it: `time`, `event`, `level`, `message` and the fields that apply.

    `now` is epoch seconds.
    """
    form = CATALOG[note.name]
    fields = {name: _safe(value) for name, value in note.fields.items() if value is not None}
    key = fields.pop("key", None)
    if key is not None and "ref" in fields:
        fields.setdefault("deliveryId", delivery_id(fields["ref"], key))
    suffix = ", interrupted" if fields.get("interrupted") else ""
    if fields.get("errors"):
        suffix += f", last good cycle: {fields.get('lastGoodCycleAt', 'never')}"
    if fields.get("willRetry") is False:
        suffix = f"; given up (run `the-loop ledger retry {shlex.quote(str(fields.get('ref')))}`)"
    message = form.sentence.format_map(_Blank({**fields, "suffix": suffix}))
    return {"time": timestamp(now), "event": note.name, "level": form.level, "message": message, **fields}


class _Blank(dict[str, Any]):
    def __missing__(self, key: str) -> str:
        return ""


def _safe(value: Any) -> Any:
    """`value`, if text with control characters and line breaks escaped and capped at FIELD_LIMIT characters."""
    if not isinstance(value, str):
        return value
    text = printable(value[: FIELD_LIMIT + 1])
    return text if len(text) <= FIELD_LIMIT else text[: FIELD_LIMIT - 1] + "…"


class JsonLog:
    """`logs/events.jsonl`: one JSON object per line, in ASCII; rotated to `.1` above LOG_LIMIT bytes."""

    def __init__(self, path: Path) -> None:
        self._path: Path | None = path

    def drop_log(self) -> None:
        self._path = None

    def check(self) -> None:
        """Does nothing: a file can be read back."""

    def write(self, event: Mapping[str, Any]) -> None:
        if self._path is None:
            return
        _rotate_closed(self._path)
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.fchmod(descriptor, 0o600)
            size = os.fstat(descriptor).st_size
            # a full disk or a crash may have cut the last line: start a new one, so that only that line is lost
            is_cut = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
            line = b"\n" * is_cut + json.dumps(event).encode("ascii") + b"\n"
            if os.write(descriptor, line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            os.close(descriptor)


_ON_A_TERMINAL: Final = frozenset(
    {
        *("session.started", "poll.spawned", "poll.comment_forwarded", "poll.deferred", "session.closed"),
        *("dispatch.dropped", "dispatch.adopted"),
    }
)


class Teller:
    """Prints events for people on a stream, one line each, and passes them on to another sink.

    Events of level info are printed only if `verbose`; on a terminal also those that tell what is handed over.
    `make_room` is called before a line is printed.
    """

    def __init__(
        self,
        sink: Sink,
        stream: TextIO | None,
        *,
        verbose: bool,
        make_room: Callable[[], None] = lambda: None,
    ) -> None:
        self._sink = sink
        self._stream = stream
        self._verbose = verbose
        self._make_room = make_room
        self._is_terminal = False
        with contextlib.suppress(ValueError):  # closed
            self._is_terminal = stream is not None and stream.isatty()

    def drop_log(self) -> None:
        self._sink.drop_log()

    def check(self) -> None:
        self._sink.check()

    def write(self, event: Mapping[str, Any]) -> None:
        if self._verbose or event["level"] != INFO or (self._is_terminal and event["event"] in _ON_A_TERMINAL):
            self._make_room()
            with contextlib.suppress(OSError, ValueError):
                print(f"the-loop: {event['event']}: {event['message']}", file=self._stream, flush=True)
        self._sink.write(event)


def rotate(path: Path) -> None:
    """Move the content of a log of more than LOG_LIMIT bytes to `.1`, for programs that keep the log open.

    The last LOG_LIMIT bytes are copied and the log is emptied in place, so that a program that appends to it goes on
    in the empty log: neither file grows without limit, however long it runs. What it writes in the instant between
    the two is lost. Does not raise: a log that cannot be rotated goes on growing, and that is said once on stderr.
    """
    with _said_once(path):
        _copy_and_empty(path)


def _rotate_closed(path: Path) -> None:
    """Rename a log of more than LOG_LIMIT bytes that no program keeps open to `.1`. Does not raise, as `rotate`."""
    size = 0
    with contextlib.suppress(OSError):  # then it cannot be opened either, and that is an error
        size = path.stat().st_size
    if size > LOG_LIMIT:
        with _said_once(path):
            path.rename(_older(path))


_UNROTATED: Final[set[Path]] = set()  # logs whose rotation failed last time, which was said


@contextlib.contextmanager
def _said_once(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if path not in _UNROTATED:
            say(f"the-loop: cannot rotate '{path}': {error.strerror or error}, it goes on growing")
        _UNROTATED.add(path)
    else:
        _UNROTATED.discard(path)


def _copy_and_empty(path: Path) -> None:
    try:
        log = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        found = os.fstat(log)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        if found.st_size > LOG_LIMIT:
            _copy(log, found.st_size - LOG_LIMIT, _older(path))
            os.ftruncate(log, 0)
    finally:
        os.close(log)


def _copy(log: int, start: int, target: Path) -> None:
    """Replace `target` by the content of `log` from `start` on, at most 2 * LOG_LIMIT bytes of it."""
    beside = target.with_name(f".{target.name}.tmp")
    copy = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        at = start
        while at < start + 2 * LOG_LIMIT and (count := os.sendfile(copy, log, at, LOG_LIMIT)):
            at += count
        beside.rename(target)
    except OSError:
        beside.unlink(missing_ok=True)
        raise
    finally:
        os.close(copy)


def _older(path: Path) -> Path:
    return path.with_name(f"{path.name}.1")


def read_log(path: Path, naming: str = "") -> Iterator[dict[str, Any]]:
    """The events in a log and its rotated part, oldest first. Lines that are cut or garbled are skipped.

    With `naming` only events that have this text in a field, or in a part of one. Raises OSError for a log that cannot
    be read; a missing one has no events.
    """
    needle = json.dumps(naming)[1:-1].encode("ascii")
    for file in (_older(path), path):
        try:
            lines = _opened(file)
        except FileNotFoundError:
            continue
        with lines:
            for line in lines:
                event = parse_line(line) if needle in line else None
                if event is not None:
                    yield event


def _opened(path: Path) -> BinaryIO:
    """The file, to be read; one that could make us wait, as a fifo does, is not. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is a fifo")
    return os.fdopen(descriptor, "rb")


def parse_line(line: bytes | str) -> dict[str, Any] | None:
    """The event in one line of a log; None if the line is not a complete event."""
    try:
        event = json.loads(line)
        moment = datetime.fromisoformat(event["time"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    texts = ("event", "level", "message")
    is_whole = isinstance(event, dict) and moment.tzinfo is not None
    is_whole = is_whole and all(isinstance(event.get(name, ""), str) for name in texts) and "event" in event
    return event if is_whole else None


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which events are shown. `source`: a group (`poll` for `poll.*`) or a source; `ref`: an item or a delivery id."""

    source: str | None = None
    ref: str | None = None
    level: str | None = None  # this one and above
    since: datetime | None = None
    has_quiet: bool = True  # also cycles in which nothing happened


def matches(event: Mapping[str, Any], wanted: Wanted) -> bool:
    """True if the event is wanted."""
    if wanted.source and wanted.source not in (event["event"].partition(".")[0], event.get("source")):
        return False
    if wanted.ref and not {wanted.ref, wanted.ref.lower()} & {event.get("ref"), event.get("deliveryId")}:
        return False
    if wanted.level and LEVELS.index(wanted.level) > _rank(event.get("level")):
        return False
    if not wanted.has_quiet and _is_quiet(event):
        return False
    return wanted.since is None or datetime.fromisoformat(event["time"]) >= wanted.since


def _rank(level: Any) -> int:
    return LEVELS.index(level) if level in LEVELS else len(LEVELS)  # of another version: shown


def _is_quiet(event: Mapping[str, Any]) -> bool:
    told = ("delivered", "errors", "interrupted")
    return event["event"] == "poll.cycle" and not any(event.get(name) for name in told)


def say(text: str) -> None:
    """Print a message for people on stderr; a closed stderr is ignored."""
    with contextlib.suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)
