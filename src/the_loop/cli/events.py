"""`the-loop events`: the decision trail."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import click

from the_loop.cli.common import Options, with_options
from the_loop.events import matches, parse_line, read_log
from the_loop.model import LoopError

_LOOK_AGAIN_S: Final = 0.25
_AGO: Final = re.compile(r"^-?(\d+) ?(s|sec|seconds?|m|min|minutes?|h|hours?|d|days?)( ago)?$")
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


@click.command("events")
@click.option("--source", metavar="S", help="Only this part of the trail (poll, dispatch, …) or this source.")
@click.option("--since", metavar="T", help="Only from this moment on: ISO 8601, or as in '2h ago'.")
@click.option("--follow", is_flag=True, help="Go on with what comes.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
@with_options
def command(options: Options, *, source: str | None, since: str | None, follow: bool, as_json: bool) -> None:
    """Show what was decided, oldest first."""
    path = options.root().logs / "events.jsonl"
    after = None if since is None else parse_moment(since, datetime.now(UTC))
    try:
        for event in _follow(path) if follow else _all(path):
            if matches(event, source, after):
                print(json.dumps(event) if as_json else _in_words(event), flush=follow)
    except OSError as error:
        raise LoopError(
            f"cannot read the event log '{path}': {error.strerror}", "is this the right --state-root?"
        ) from error


def parse_moment(text: str, now: datetime) -> datetime:
    """A moment in UTC: ISO 8601 (local where it says no zone), or so long ago. Raises click.BadParameter."""
    if ago := _AGO.match(text.strip().lower()):
        return now - timedelta(**{_UNITS[ago[2][0]]: int(ago[1])})
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except ValueError:
        raise click.BadParameter(
            f"'{text}' is no moment; write 2026-01-31T12:00, or '2h ago'", param_hint="--since"
        ) from None


def _all(path: Path) -> Iterator[dict[str, Any]]:
    path.stat()  # a log that is not there was not read: that is no empty answer
    return read_log(path)


def _follow(path: Path) -> Iterator[dict[str, Any]]:
    """Everything, then what is appended; goes on with the new file when the log is rotated."""
    yield from read_log(path)
    while not path.exists():
        time.sleep(_LOOK_AGAIN_S)
    while True:
        with path.open("rb") as file:
            inode = path.stat().st_ino
            yield from _tail(path, file, inode)


def _tail(path: Path, file: Any, inode: int) -> Iterator[dict[str, Any]]:
    file.seek(0, 2)
    rest = b""
    while True:
        rest += file.read()
        *lines, rest = rest.split(b"\n")
        for line in lines:
            if (event := parse_line(line)) is not None:
                yield event
        if not lines:
            try:
                if path.stat().st_ino != inode:
                    return
            except FileNotFoundError:
                return
            time.sleep(_LOOK_AGAIN_S)


def _in_words(event: dict[str, Any]) -> str:
    return f"{event['time']} {event['level']:7} {event['event']}: {event.get('message', '')}"
