"""The files of one delivery in `local/deliveries/`, and what they tell. One writer each.

    <stem>.payload.json    what the receiver reads (poller)
    <stem>.lock            held by the keeper while it lives, from before it is started
    <stem>.started.json    the start mark: this offer was begun (keeper)
    <stem>.outcome.json    what became of it (keeper)

Marks carry the number of the offer they belong to: one of an earlier offer says nothing about the present one.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from the_loop.core.model import Outcome, Verdict
from the_loop.durable import read_json_object
from the_loop.processes import Identity, boot_id, parse_identity

_MARKS: Final = ("started.json", "outcome.json", "outcome.json.tmp")
_LOOKS: Final = 200  # that somebody else may take at the lock while we want it
_PARTS: Final = (*_MARKS, "payload.json", "lock")


def beside(stem: Path, part: str) -> Path:
    """One of the delivery's files."""
    return stem.with_name(f"{stem.name}.{part}")


def stem_of(path: Path) -> Path:
    """The delivery that a file belongs to; the file itself where it is none of ours."""
    for part in sorted(_PARTS, key=len, reverse=True):
        if path.name.endswith(f".{part}"):
            return path.with_name(path.name.removesuffix(f".{part}"))
    return path


def is_locked(stem: Path) -> bool:
    """True while a keeper lives that has this delivery. Takes a shared lock for a moment."""
    try:
        descriptor = os.open(beside(stem, "lock"), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


@contextlib.contextmanager
def locked(stem: Path) -> Iterator[int | None]:
    """The delivery's lock as a descriptor that a child may be given, or None where a keeper has it."""
    descriptor = os.open(beside(stem, "lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(descriptor, 0o600)
        yield descriptor if _take(descriptor) else None
    finally:
        os.close(descriptor)


def _take(descriptor: int) -> bool:
    """True once the lock is ours; False if a keeper has it. Whoever only looks has it shared, for a moment."""
    for _ in range(_LOOKS):
        if _flock(descriptor, fcntl.LOCK_EX):
            return True
        if not _flock(descriptor, fcntl.LOCK_SH):
            return False
        time.sleep(0.001)
    return False


def _flock(descriptor: int, how: int) -> bool:
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def outcome_of(stem: Path, offer: int) -> Outcome | None:
    """What the keeper wrote of this very offer."""
    mark = _mark(stem, "outcome.json")
    if mark is None or mark.get("offer") != offer:
        return None
    try:
        return Outcome(Verdict(mark["outcome"]), str(mark.get("reason", "")))
    except (KeyError, ValueError):
        return None  # of a version that knew more: nobody here can tell


def is_started(stem: Path, offer: int) -> bool:
    """True if this offer was begun. A mark that says nothing (power cut) stands for the present offer."""
    mark = _mark(stem, "started.json")
    return mark is not None and mark.get("offer", offer) == offer


def keeper_of(stem: Path) -> Identity | None:
    """The keeper that the start mark names, if that was on this boot."""
    mark = _mark(stem, "started.json") or {}
    process, _, boot = str(mark.get("keeper", "")).rpartition(":")
    return parse_identity(process) if boot and boot == boot_id() else None


def remove_old_marks(stem: Path, offer: int) -> None:
    """Forget start mark and outcome of earlier offers, once the payload says that it is of this one.

    In that order: a keeper that comes late finds its own mark or another offer's payload, never neither.
    """
    if any((_mark(stem, part) or {}).get("offer") == offer for part in _MARKS):
        return
    for part in _MARKS:  # one that says nothing was judged when its offer was
        beside(stem, part).unlink(missing_ok=True)


def remove_all(stem: Path) -> None:
    """Forget a delivery whole."""
    for part in _PARTS:
        beside(stem, part).unlink(missing_ok=True)


def _mark(stem: Path, part: str) -> dict[str, Any] | None:
    try:
        return read_json_object(beside(stem, part))
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        return {}
