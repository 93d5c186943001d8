"""The event log in the journal: one entry per event, with fields to match on.

Fields: `MESSAGE_ID`, `PRIORITY`, `THE_LOOP_EVENT`, `THE_LOOP_STATE_ROOT`, and each field of the event in upper case
(`deliveryId` is `THE_LOOP_DELIVERY_ID`; true and false are 1 and 0). `THE_LOOP_JSON` contains the complete event,
which `the-loop events` reads back.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from systemd import journal
from the_loop.eventlog import JsonLog, message_id, parse_line

IDENTIFIER: Final = "the-loop"
_PRIORITIES: Final = {"error": 3, "warning": 4, "notice": 5, "info": 6}
_HUMP: Final = re.compile(r"(?<=[a-z])(?=[A-Z])")
_CHECKS: Final = 5


def is_connected(environ: Mapping[str, str]) -> bool:
    """True if our standard error is connected to the journal (`$JOURNAL_STREAM` names its device and inode)."""
    device, _, inode = environ.get("JOURNAL_STREAM", "").partition(":")
    try:
        found = os.fstat(2)
    except OSError:
        return False
    return (device, inode) == (str(found.st_dev), str(found.st_ino))


class JournalSink:
    """Sends events to the journal, and also to the log file until one was read back from the journal.

    The user of a system service may not be allowed to read its own entries; then the log file is kept.
    """

    def __init__(self, root: Path, log: JsonLog | None) -> None:
        self._root = root
        self._log = log
        self._checks = 0

    def write(self, event: Mapping[str, Any]) -> None:
        journal.send(event["message"], **entry_fields(event, self._root))
        if self._log is not None:
            self._log.write(event)

    def drop_log(self) -> None:
        self._log = None

    def check(self) -> None:
        """Find out whether our entries can be read back; after five failed checks it is assumed that they cannot."""
        if self._log is None or self._checks >= _CHECKS:
            return
        self._checks += 1
        with journal.Reader() as reader:
            reader.add_match(_PID=str(os.getpid()))
            reader.add_match(THE_LOOP_STATE_ROOT=str(self._root))
            if reader.get_next():
                self._log = None


def entry_fields(event: Mapping[str, Any], root: Path) -> dict[str, Any]:
    """The journal's fields for an event; its values were escaped and capped when it was composed."""
    fields: dict[str, Any] = {
        "MESSAGE_ID": message_id(event["event"]),
        "PRIORITY": _PRIORITIES[event["level"]],
        "SYSLOG_IDENTIFIER": IDENTIFIER,
        "THE_LOOP_STATE_ROOT": str(root),
        "THE_LOOP_JSON": json.dumps(event),
    }
    for name, value in event.items():
        if name not in ("time", "level", "message") and isinstance(value, str | int | float):
            field = f"THE_LOOP_{_HUMP.sub('_', name).upper()}"
            fields[field] = str(int(value)) if isinstance(value, bool) else str(value)
    return fields


def read_journal(root: Path, since: datetime | None) -> Iterator[dict[str, Any]]:
    """The events of this root in the journal as far as we may read it, oldest first. Raises OSError."""
    with open_reader(root) as reader:
        if since is not None:
            reader.seek_realtime(since)
        yield from new_events(reader)


def read_journal_about(root: Path, ref: str, deliveries: Iterable[str]) -> Iterator[dict[str, Any]]:
    """The events of this root that name the item or one of these deliveries, oldest first. Raises OSError."""
    with open_reader(root) as reader:
        reader.add_match(THE_LOOP_REF=ref)
        if names := sorted(set(deliveries)):
            reader.add_disjunction()
            _match_events(reader, root)
            for name in names:
                reader.add_match(THE_LOOP_DELIVERY_ID=name)
        yield from new_events(reader)


def last_lines_of(units: Iterable[str], uid: int, count: int) -> list[str]:
    """The last lines that these units of a user's manager wrote into the journal, oldest first. Raises OSError."""
    opened: Any = journal.Reader()
    with opened as reader:
        for name in units:
            reader.add_match(_SYSTEMD_USER_UNIT=name)
        reader.add_match(_UID=str(uid))  # a manager of another user may have units of that name
        reader.seek_tail()
        lines: list[str] = []
        while len(lines) < count and (entry := reader.get_previous()):
            message = entry.get("MESSAGE", "")
            lines.append(message.decode("utf-8", "replace") if isinstance(message, bytes) else str(message))
        return lines[::-1]


def open_reader(root: Path) -> Any:
    """A journal reader of this root's events. Raises OSError if there is no journal to read."""
    reader = journal.Reader()
    _match_events(reader, root)
    return reader


def _match_events(reader: Any, root: Path) -> None:
    reader.add_match(SYSLOG_IDENTIFIER=IDENTIFIER)
    reader.add_match(THE_LOOP_STATE_ROOT=str(root))
    with suppress(OSError):
        reader.add_match(_UID=str(root.stat().st_uid))  # any user can write entries like ours


def new_events(reader: Any) -> Iterator[dict[str, Any]]:
    """The events since the last call, or since the reader's start."""
    reader.process()
    for entry in reader:
        event = parse_line(entry.get("THE_LOOP_JSON", ""))
        if event is not None:
            yield event
