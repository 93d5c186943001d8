"""The files of one delivery in `local/deliveries/`, and what they tell. One writer each.

    <stem>.payload.json    what the receiver reads (poller)
    <stem>.given           what else it gets at this start (poller; its keeper removes it), see `runners/given.py`
    <stem>.lock            held from the moment the delivery is accepted until its keeper has ended
    <stem>.started.json    the start mark: this offer was begun (keeper)
    <stem>.outcome.json    what became of it (keeper)

Marks carry the number of the offer they belong to: one of an earlier offer says nothing about the present one.
Only a file that is missing means "none"; any other error is raised, and nothing is concluded from it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from the_loop.core.model import Kind, Outcome, Verdict, delivery_id
from the_loop.durable import (
    IrregularFile,
    fsync_directory,
    read_json_object,
    read_regular,
    to_json_line,
    write_durably,
)
from the_loop.processes import Identity, boot_id, parse_identity
from the_loop.state import StateRoot, unslug

_MARKS: Final = ("started.json", "outcome.json", "outcome.json.tmp")
_PROBES: Final = 200  # that may be met while the lock is wanted
_KINDS: Final = frozenset(map(str, Kind))
_PARTS: Final = (*_MARKS, "given", "payload.json", "lock")


def beside(stem: Path, part: str) -> Path:
    """One of the delivery's files."""
    return stem.with_name(f"{stem.name}.{part}")


def stem_of(path: Path) -> Path:
    """The delivery that a file belongs to; the file itself where it is none of ours."""
    for part in sorted(_PARTS, key=len, reverse=True):
        if path.name.endswith(f".{part}"):
            return path.with_name(path.name.removesuffix(f".{part}"))
    return path


class DeliveryRuns(Exception):
    """The delivery was accepted, runs, or ended unrecorded: it must not be taken for one that never begins."""


def is_locked(stem: Path) -> bool:
    """True while this delivery is accepted or runs. Takes a shared lock for a moment. Raises OSError."""
    try:
        descriptor = _open_lock(stem, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        return not _flock(descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


class Deliveries:
    """The deliveries of one state root, as the poller's side writes them."""

    def __init__(self, root: StateRoot) -> None:
        self._root = root

    def stem(self, ref: str, key: str) -> Path:
        """Where the files of this event are; `.payload.json` and so on are appended to its name."""
        return self._root.delivery(delivery_id(ref, key))

    def stems(self) -> set[Path]:
        """Every delivery that has files. Raises OSError."""
        return {stem_of(path) for path in self._root.deliveries.iterdir()}

    def stems_of(self, ref: str) -> set[Path]:
        """Every delivery of this item that has files, pending or not. Raises OSError."""
        return {stem for stem in self.stems() if self._is_of(stem, ref)}

    def _is_of(self, stem: Path, ref: str) -> bool:
        name = unslug(stem.name)
        if name is None:  # it was cut: only the payload names its item
            return (self.payload(stem) or {}).get("ref") == ref
        return name.startswith(f"{ref}/") and name[len(ref) + 1 :].partition(":")[0] in _KINDS

    def payload(self, stem: Path) -> dict[str, Any] | None:
        """What the receiver reads; None if there is none, or none that a keeper could read. Raises OSError."""
        try:
            return read_json_object(beside(stem, "payload.json"))
        except (FileNotFoundError, IrregularFile, ValueError):
            return None

    def write(self, stem: Path, payload: Mapping[str, Any]) -> None:
        """Replace the payload, under the lock if the event was offered before. Raises DeliveryRuns, OSError.

        The one it replaces is of the number below, and must not have begun. A payload of a new event is durable after
        the next `flush`: many are written with one.
        """
        if not _was_offered(stem):
            write_durably(beside(stem, "payload.json"), to_payload(payload), flushes_name=False)
            return
        with claim(stem):
            _expect_not_begun(stem, payload["offer"] - 1)
            _write_payload(stem, payload)

    def flush(self) -> None:
        """Have the names of all payloads on disk. Raises OSError."""
        fsync_directory(self._root.deliveries)

    def make_ready(self, stem: Path, payload: Mapping[str, Any]) -> None:
        """Have this payload in place, in the form that the keeper reads. Raises DeliveryRuns, OSError."""
        with claim(stem):
            try:
                is_there = read_regular(beside(stem, "payload.json")) == to_payload(payload)
            except (FileNotFoundError, IrregularFile):
                is_there = False
            if not is_there:
                _write_payload(stem, payload)

    def withdraw_offer(self, stem: Path, number: int) -> int:
        """Make sure that offer `number` can never begin; the number under which the event is offered next.

        The number in the payload is a fencing token: a keeper that comes late finds a higher one and does nothing. It
        is raised under the lock, before anything is concluded. Raises DeliveryRuns, OSError.
        """
        if not _was_offered(stem):
            return number
        with claim(stem):
            _expect_not_begun(stem, number)
            return self._raised(stem, number)

    def forbid(self, stem: Path, number: int) -> None:
        """Have the offer not begin any more, whatever it left: an operator decided. Raises DeliveryRuns, OSError."""
        if _was_offered(stem):
            with claim(stem):
                self._raised(stem, number)

    def _raised(self, stem: Path, number: int) -> int:
        """The number that the payload has now, above this one."""
        payload = self.payload(stem)
        present = None if payload is None else payload.get("offer")
        if isinstance(present, int) and present > number:
            return present
        if payload is not None:
            _write_payload(stem, {**payload, "offer": number + 1})
        return number + 1

    def remove_marks(self, stem: Path) -> None:
        """Forget what the keeper wrote, once it is recorded. Raises OSError."""
        for part in _MARKS:
            beside(stem, part).unlink(missing_ok=True)

    def remove(self, stem: Path) -> None:
        """Forget a delivery whole. Raises OSError."""
        remove_all(stem)


@contextlib.contextmanager
def claim(stem: Path) -> Iterator[int]:
    """The delivery's lock, as a descriptor that a keeper can be given. Raises DeliveryRuns, OSError."""
    descriptor = _open_lock(stem, os.O_RDWR | os.O_CREAT)
    try:
        os.fchmod(descriptor, 0o600)
        if not _take(descriptor):
            raise DeliveryRuns(stem.name)
        yield descriptor
    finally:
        os.close(descriptor)


def remove_old_marks(stem: Path, offer: int) -> None:
    """Forget start mark and outcome of earlier offers, which a crash left, once the payload is of this one.

    In that order: a keeper that comes late finds its own mark or another offer's payload, never neither.
    """
    if any((_mark(stem, part) or {}).get("offer") == offer for part in _MARKS):
        return
    for part in _MARKS:
        beside(stem, part).unlink(missing_ok=True)


def _expect_not_begun(stem: Path, number: int) -> None:
    """Raise DeliveryRuns if this offer left a mark: it began, and that is to be recorded first. Raises OSError."""
    if is_started(stem, number) or outcome_of(stem, number) is not None:
        raise DeliveryRuns(stem.name)


def to_payload(payload: Mapping[str, Any]) -> bytes:
    """The content of a payload file. It begins with the number of the offer, which the keeper compares."""
    return to_json_line({"schema": 1, "offer": payload.get("offer"), **payload})


def _write_payload(stem: Path, payload: Mapping[str, Any]) -> None:
    write_durably(beside(stem, "payload.json"), to_payload(payload))


def _was_offered(stem: Path) -> bool:
    """False if the event was never handed over: there is no lock yet."""
    try:
        beside(stem, "lock").lstat()
    except FileNotFoundError:
        return False
    return True


def _open_lock(stem: Path, flags: int) -> int:
    """Raises OSError; IrregularFile for what cannot be a lock."""
    path = beside(stem, "lock")
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise IrregularFile(f"'{path}' is not a regular file")
    return descriptor


def _take(descriptor: int) -> bool:
    """True once the lock is ours; False if it is held. A probe has it shared, for a moment."""
    for _ in range(_PROBES):
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
    """What the keeper wrote of this very offer. Raises OSError."""
    mark = _mark(stem, "outcome.json")
    if mark is None or mark.get("offer") != offer:
        return None
    try:
        verdict, reason, line = Verdict(mark["outcome"]), str(mark.get("reason", "")), str(mark.get("lastLine", ""))
        return Outcome(verdict, f"{reason}: {line}" if line and verdict is not Verdict.DELIVERED else reason)
    except (KeyError, ValueError):
        return None  # of a version that knew more: to this one it says nothing


def is_started(stem: Path, offer: int) -> bool:
    """True if this offer was begun. A mark that says nothing (power cut) is taken for one of the present offer."""
    mark = _mark(stem, "started.json")
    return mark is not None and mark.get("offer", offer) == offer


def begun_at(stem: Path) -> float | None:
    """When the present offer was begun, epoch seconds; None if it was not, or that cannot be found out."""
    try:
        return beside(stem, "started.json").stat().st_mtime
    except OSError:
        return None


def keeper_of(stem: Path) -> Identity | None:
    """The keeper that the start mark names, if that was on this boot. Raises OSError."""
    mark = _mark(stem, "started.json") or {}
    process, _, boot = str(mark.get("keeper", "")).rpartition(":")
    return parse_identity(process) if boot and boot == boot_id() else None


def remove_all(stem: Path) -> None:
    """Forget a delivery whole."""
    for part in _PARTS:
        beside(stem, part).unlink(missing_ok=True)


def _mark(stem: Path, part: str) -> dict[str, Any] | None:
    """None if there is no such mark, an empty one if it says nothing. Raises OSError."""
    try:
        return read_json_object(beside(stem, part))
    except FileNotFoundError:
        return None
    except ValueError:
        return {}
