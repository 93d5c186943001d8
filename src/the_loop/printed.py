"""The end of what a receiver printed: in the journal of its unit, or in the log that all deliveries write to."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from typing import Final

from the_loop.core.model import delivery_id
from the_loop.durable import IrregularFile
from the_loop.runners.unit_names import unit_name
from the_loop.seen import Files, Seen
from the_loop.state import StateRoot
from the_loop.supervision.journal import last_lines_of

_OFFERS: Final = 16  # of an event that is done with: its units are looked for by their numbers
_LINES: Final = 10
_TAIL: Final = 8192  # bytes


@dataclass(frozen=True, slots=True)
class Output:
    """The last lines of what the receiver printed. `place` says where from; `is_shared` by all deliveries."""

    place: str
    lines: tuple[str, ...]
    is_shared: bool = False


def of_units(root: StateRoot, seen: Seen, key: str, uid: int) -> Output | None:
    """What the units of this event printed, in the manager of this user. Raises OSError."""
    pending = {} if seen.ledger is None else seen.ledger.poll.pending
    offers = max(_OFFERS, pending[key].offer) if key in pending else _OFFERS
    event = delivery_id(seen.ref, key)
    lines = last_lines_of([unit_name(root.path, event, number) for number in range(1, offers + 1)], uid, _LINES)
    return Output("the journal of its unit", tuple(lines)) if lines else None


def of_log(root: StateRoot, seen: Seen, key: str) -> Output | None:
    """The end of the log, if it was written last while the receiver of this event was running. Raises OSError."""
    log = root.logs / "output.log"
    try:
        descriptor = os.open(log, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise IrregularFile(f"'{log}' is not a regular file")
        if not _is_within(found.st_mtime, seen, key):
            return None
        file.seek(max(0, found.st_size - _TAIL))
        lines = file.read().decode("utf-8", "replace").splitlines()[-_LINES:]
    return Output(str(log), tuple(lines), is_shared=True) if lines else None


def _is_within(moment: float, seen: Seen, key: str) -> bool:
    """True if the receiver was running then, as far as files and the event log tell."""
    files = seen.files.get(key, Files())
    if files.is_locked and files.begun_at:
        return moment >= files.begun_at - 1
    moments = [at for at in (files.begun_at, files.ended_at, *seen.moments(key)) if at]
    return bool(moments) and min(moments) - 1 <= moment <= max(moments) + 2
