"""`the-loop events`: the event log, read from the journal and from the log file."""

from __future__ import annotations

import heapq
import json
import re
import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import click

from the_loop.cli.common import Options, with_options
from the_loop.cli.completion import deliveries, groups_and_sources
from the_loop.cli.help import examples
from the_loop.core.model import LoopError, printable
from the_loop.eventlog import LEVELS, Wanted, matches, parse_line, read_log
from the_loop.supervision.journal import new_events, open_reader, read_journal

_FOLLOW_INTERVAL_S: Final = 0.25
_AGO: Final = re.compile(r"^-?(\d+) ?(s|sec|seconds?|m|min|minutes?|h|hours?|d|days?)( ago)?$")
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}

Event = dict[str, Any]


@click.command(
    "events",
    epilog=examples(
        "the-loop events --since '2h ago' --level warning", "the-loop events --ref 'github:octo/repo#15' --follow"
    ),
)
@click.option(
    "--source",
    metavar="S",
    shell_complete=groups_and_sources,
    help="Only events of this group (poll, dispatch, …) or of this source.",
)
@click.option(
    "--ref", metavar="REF", shell_complete=deliveries, help="Only events of this item, or of this event of it."
)
@click.option("--level", type=click.Choice(LEVELS), help="Only events of at least this level.")
@click.option("--all", "has_quiet", is_flag=True, help="For people: also cycles in which nothing happened.")
@click.option("--since", metavar="T", help="Only events since then: ISO 8601, or relative as in '2h ago'.")
@click.option("--follow", is_flag=True, help="Keep running and print new events.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
@with_options
def command(options: Options, *, since: str | None, follow: bool, as_json: bool, **chosen: Any) -> None:
    """Show the event log, oldest event first."""
    root = options.root()
    log = root.logs / "events.jsonl"
    after = None if since is None else parse_moment(since, datetime.now(UTC))
    wanted = Wanted(since=after, **{**chosen, "has_quiet": chosen["has_quiet"] or as_json})
    try:
        for event in _follow(root.path, log) if follow else read_events(root.path, log, after):
            if matches(event, wanted):
                print(json.dumps(event) if as_json else _in_words(event), flush=follow)
    except OSError as error:
        problem = f"cannot read the events of '{root.path}': {error.strerror}"
        raise LoopError(problem, "name the right one with --state-root DIR") from error


def parse_moment(text: str, now: datetime) -> datetime:
    """The time in UTC: ISO 8601 (local time without a zone) or an age as in `2h ago`. Raises click.BadParameter."""
    try:
        if ago := _AGO.match(text.strip().lower()):
            return now - timedelta(**{_UNITS[ago[2][0]]: int(ago[1])})
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        problem = f"'{text}' is not a time; write it as in '2026-01-31T12:00' or '2h ago'"
        raise click.BadParameter(problem, param_hint="--since") from None


def read_events(root: Path, log: Path, since: datetime | None) -> Iterator[Event]:
    """The events of journal and log, merged. Raises OSError if there is neither a log nor a journal entry."""
    journal = list(read_journal(root, since))
    if not journal and not any(read_journal(root, None)):
        log.stat()
    return _once_each(heapq.merge(journal, read_log(log), key=lambda event: event["time"]))


def _once_each(events: Iterable[Event]) -> Iterator[Event]:
    """Drop the second copy of events that are in both places."""
    moment = ""
    here: set[str] = set()
    for event in events:
        if event["time"] != moment:
            moment, here = event["time"], set()
        text = json.dumps(event, sort_keys=True)
        if text not in here:
            here.add(text)
            yield event


def _follow(root: Path, log: Path) -> Iterator[Event]:
    """All events, then new ones as they arrive; follows the log over a rotation."""
    with open_reader(root) as reader:
        tail = _Tail(log)
        yield from _once_each(heapq.merge(list(new_events(reader)), read_log(log), key=lambda event: event["time"]))
        while True:
            yield from _once_each(sorted([*new_events(reader), *tail.lines()], key=lambda event: event["time"]))
            time.sleep(_FOLLOW_INTERVAL_S)


class _Tail:
    """Lines that are appended to a file from now on, also after it is replaced."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._place = self._size()
        self._rest = b""

    def lines(self) -> Iterator[Event]:
        inode, size = self._size()
        if inode != self._place[0] or size < self._place[1]:
            self._place, self._rest = (inode, 0), b""
        if size == self._place[1]:
            return
        with self._path.open("rb") as file:
            file.seek(self._place[1])
            *lines, self._rest = (self._rest + file.read()).split(b"\n")
            self._place = (inode, file.tell())
        yield from (event for line in lines if (event := parse_line(line)) is not None)

    def _size(self) -> tuple[int, int]:
        try:
            found = self._path.stat()
        except OSError:
            return (0, 0)
        return (found.st_ino, found.st_size)


def _in_words(event: Event) -> str:
    return printable(f"{event['time']} {event['level']:7} {event['event']}: {event.get('message', '')}")
