"""The files that hold one item's ledger, and the order in which they are written. Nothing is remembered here.

    portable/<slug>.json            the record; its `seenComments` has the latest settled ids, and names the log
    portable/<slug>.settled         the log of all others, for items with many (see `settled`)
    portable/<slug>.settled.next    a new generation of the log, until the record that names it is written
    portable/ended/<slug>.json      the record of an item that ended, with all its ids

**Settling.** Up to INLINE ids are in the record. One more, and all of them are appended to the log, which is flushed
before the record without them is renamed into place: a log may have more than its record says, never less. An id that
is settled in the log and pending in the record is settled.
**A new generation** (the log has ids that are not settled, or was changed by other hands) is written as `.next`, then
the record, then it takes the older one's name.
**Ending.** The record is written with all its ids, then it is moved in one rename, then the log is removed.
**Coming back.** The record is written into `portable/`, then the one in `ended/` is removed. Of two, the one in
`portable/` counts: this order never leaves an older one there. One that is older all the same (fewer starts) came by
other hands: its item is held.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from the_loop import settled
from the_loop.asides import held_reason, set_aside, starts_in
from the_loop.core.ledger import (
    SCHEMA,
    Ledger,
    UnreadableLedger,
    decode,
    from_tree,
    parse,
)
from the_loop.durable import IrregularFile, fsync_directory, read_regular, to_json_bytes, write_durably
from the_loop.settled import Log
from the_loop.state import NO_LEDGERS, StateRoot, slug, unslug


class Found(NamedTuple):
    """Where a record is, and what tells one state of it from another. Times are nanoseconds."""

    is_ended: bool
    inode: int
    size: int
    modified: int
    changed: int


@dataclass(frozen=True, slots=True)
class Stored:
    """A record as it was read or written: a ledger, or why it is held. `found` is None if that is not known."""

    found: Found | None
    ledger: Ledger | None = None
    held: str = ""
    log: Log | None = None  # that the record names
    logged: frozenset[str] | None = frozenset()  # the ids in it; None if the next write has to begin a new one
    is_next: bool = False  # the log did not take its name yet
    is_torn: bool = False  # something is behind what the record says of it
    is_double: bool = False  # an older record of the item is in `ended/`


class Records:
    """The records of one state root. `now` is epoch seconds. Without `is_alone` somebody else may write them."""

    def __init__(self, root: StateRoot, now: Callable[[], float], *, is_alone: bool) -> None:
        self._root = root
        self._now = now
        self._places = (False, True) if is_alone else (False, True, False)  # once more: it may be on its way back
        self._folders = (f"{root.portable}/", f"{root.ended}/")  # paths are slow to make, and looked at in each cycle

    def path(self, ref: str, *, is_ended: bool = False) -> Path:
        return self._root.ended_ledger(ref) if is_ended else self._root.ledger(ref)

    def names(self, *, is_ended: bool = False) -> list[str]:
        """The names of all files in `portable/` or in `ended/`, sorted. Raises OSError."""
        return sorted(_names(self._root.ended if is_ended else self._root.portable))

    def ref_in(self, name: str, *, is_ended: bool = False) -> str:
        """The item that a record is of: from its name, or, where that was cut, from inside.

        Raises OSError; ValueError if it does not say: it is held as soon as its item is met.
        """
        stem = name.removesuffix(".json")
        if (ref := unslug(stem)) is not None:
            return ref
        folder = self._root.ended if is_ended else self._root.portable
        try:
            inside = json.loads(read_regular(folder / name)).get("ref")
        except (AttributeError, RecursionError) as error:
            raise ValueError(f"it is not a ledger: {error}") from error
        if not isinstance(inside, str) or slug(inside) != stem:
            raise ValueError("it is not the ledger of an item with this file name")
        return inside

    def find(self, ref: str) -> Found | None:
        """Where the item's record is; None if it has none. Raises OSError if that cannot be found out."""
        for is_ended in self._places:
            with suppress(FileNotFoundError):
                found = os.lstat(f"{self._folders[is_ended]}{slug(ref)}.json")
                return Found(is_ended, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
        return None

    def read(self, ref: str, found: Found) -> Stored:
        """Raises UnreadableLedger, NewerLedger, IrregularFile, FileNotFoundError, OSError."""
        raw = read_regular(self.path(ref, is_ended=found.is_ended))
        if reason := held_reason(raw, ref):
            return Stored(found, held=reason)
        tree = parse(raw)
        log = settled.take_log(tree)
        ledger = from_tree(tree, ref)
        is_double = not found.is_ended and self._is_double(ledger)
        if log is None:
            return Stored(found, ledger, is_double=is_double)
        content, is_next = self._read_log(ref, log)
        joined = settled.join(ledger, content)
        logged = content.ids if joined.poll.pending == ledger.poll.pending else None
        return Stored(found, joined, "", log, logged, is_next, is_torn=content.is_torn, is_double=is_double)

    def write(self, ledger: Ledger, before: Stored | None) -> Stored:
        """Write the ledger durably, over what was stored `before`. Raises OSError, and the old one counts."""
        ref = ledger.ref
        if ledger.is_over:
            write_durably(self.path(ref), settled.to_bytes(ledger))
            return Stored(self._found(ref), ledger)
        after = self._write_log(ledger, before)
        write_durably(self.path(ref), settled.to_bytes(ledger, after.log, after.logged))
        with suppress(OSError):  # from here on it counts; what is left over does no harm
            if before is not None and (before.is_double or (before.found is not None and before.found.is_ended)):
                self.remove_double(ref)
        with suppress(OSError):
            if after.log is None:
                self.remove_logs(ref)
            elif after.is_next:
                self._rename_next(ref)
                after = replace(after, is_next=False)
        return replace(after, found=self._found(ref))

    def move_to_ended(self, refs: Iterable[str]) -> None:
        """Move the records of items that are over, durably. Raises OSError once all that can be moved are."""
        self._make_ended()
        moved, failed = [], None
        for ref in refs:
            try:
                name = f"{slug(ref)}.json"
                os.rename(f"{self._folders[False]}{name}", f"{self._folders[True]}{name}")
                moved.append(ref)
            except OSError as error:
                failed = error
        if moved:
            fsync_directory(self._root.ended)
            fsync_directory(self._root.portable)
        for ref in moved:
            self.remove_logs(ref)
        if failed is not None:
            raise failed

    def remove_logs(self, ref: str) -> None:
        """Remove the log of an item whose record names none. Raises OSError."""
        for suffix in ("settled", "settled.next"):
            place = f"{self._folders[False]}{slug(ref)}.{suffix}"
            if os.path.lexists(place):
                Path(place).unlink(missing_ok=True)

    def set_aside(self, ref: str, held: dict[str, str]) -> str:
        """Put a held record in the place of the item's; the name under which what was there is kept.

        The log stays where it is: a record that is repaired goes on with it. Raises OSError, and everything is as it
        was.
        """
        found = self.find(ref)
        path = self.path(ref, is_ended=found is not None and found.is_ended)
        aside = set_aside(path)
        try:
            write_durably(
                self.path(ref), to_json_bytes({"ref": ref, "schema": SCHEMA, "held": {**held, "aside": aside.name}})
            )
        except OSError:
            aside.unlink(missing_ok=True)
            raise
        if path != self.path(ref):
            with suppress(OSError):
                self.remove_double(ref)
        return aside.name

    def set_log_aside(self, ref: str) -> None:
        """Keep the log of an item that is held, before its record is given up. Raises OSError."""
        for path in self._logs(ref):
            with suppress(FileNotFoundError):
                set_aside(path)
                path.unlink()

    def starts_set_aside(self, ref: str) -> int:
        """How often the item was started, as far as the files that were set aside still tell. Raises OSError."""
        places = (self.path(ref), self.path(ref, is_ended=True))
        asides = [
            path.with_name(name)
            for path in places
            for name in _names(path.parent)
            if name.startswith(f"{path.name}.bad-")
        ]
        return max((starts_in(aside) for aside in asides), default=0)

    def remove_double(self, ref: str) -> None:
        """Remove the item's record in `ended/`, once the one in `portable/` counts. Raises OSError."""
        self.path(ref, is_ended=True).unlink(missing_ok=True)
        fsync_directory(self._root.ended)

    def remove_leftovers(self, names: Iterable[str]) -> None:
        """Remove the logs of items that ended, where that was cut off; `names` as in `portable/`. Raises OSError."""
        here = set(names)
        for name in here:
            stem = name.removesuffix(".next").removesuffix(".settled")
            if name.endswith((".settled", ".settled.next")) and f"{stem}.json" not in here:
                with suppress(FileNotFoundError):
                    os.lstat(self._root.ended / f"{stem}.json")
                    (self._root.portable / name).unlink()

    # --- the log ---

    def _logs(self, ref: str) -> tuple[Path, Path]:
        path = self._root.settled(ref)
        return path, path.with_name(f"{path.name}.next")

    def _read_log(self, ref: str, log: Log) -> tuple[settled.Content, bool]:
        """What is in it, and whether it has its name for the time being."""
        for is_next, path in zip((False, True), self._logs(ref), strict=True):
            with suppress(FileNotFoundError):
                if (content := settled.read(path, ref, log)) is not None:
                    return content, is_next
        name = self._root.settled(ref).name
        raise UnreadableLedger(f"its log '{name}' is missing, or is not generation {log.generation}")

    def _write_log(self, ledger: Ledger, before: Stored | None) -> Stored:
        """Have those settled ids in a log that the record is not to have. Raises OSError."""
        seen, ref = ledger.poll.seen_comments, ledger.ref
        path, beside = self._logs(ref)
        log = None if before is None else before.log
        if before is None or log is None:
            if len(seen) <= settled.INLINE:
                return Stored(None, ledger)
            return Stored(None, ledger, log=settled.begin(path, ref, int(max(self._now(), 1)), seen), logged=seen)
        if not seen:
            return Stored(None, ledger)
        if before.is_next:
            self._rename_next(ref)
        if before.logged is not None and before.logged <= seen:
            new = seen - before.logged
            is_full = len(new) > settled.INLINE
            if not is_full and not before.is_torn:
                return Stored(None, ledger, log=log, logged=before.logged)
            with suppress(FileNotFoundError, IrregularFile):  # taken away or changed by other hands: written anew
                log = settled.append(path, ref, log, sorted(new) if is_full else ())
                return Stored(None, ledger, log=log, logged=seen if is_full else before.logged)
        generation = max(int(self._now()), log.generation + 1)
        return Stored(None, ledger, log=settled.begin(beside, ref, generation, seen), logged=seen, is_next=True)

    def _rename_next(self, ref: str) -> None:
        path, beside = self._logs(ref)
        beside.rename(path)
        fsync_directory(path.parent)

    # --- ended items ---

    def _make_ended(self) -> None:
        with suppress(FileExistsError):
            self._root.ended.mkdir(mode=0o700)
            self._root.ended.chmod(0o700)
            fsync_directory(self._root.portable)

    def _is_double(self, ledger: Ledger) -> bool:
        """True if an older record of the item is in `ended/`. Raises OSError; UnreadableLedger if it is newer."""
        try:
            os.lstat(f"{self._folders[True]}{slug(ledger.ref)}.json")
            other = decode(read_regular(self.path(ledger.ref, is_ended=True)), ledger.ref)
        except (FileNotFoundError, IrregularFile, UnreadableLedger):
            return False
        if other.g > ledger.g:
            raise UnreadableLedger("the item has a newer record in 'ended'")
        return True

    def _found(self, ref: str) -> Found | None:
        """Of what was written just now; where it cannot be had, the next look reads the file."""
        with suppress(OSError):
            return self.find(ref)
        return None


def _names(folder: Path) -> list[str]:
    """The names in a folder, none if it is missing. Raises OSError."""
    try:
        return os.listdir(folder)  # noqa: PTH208 (`Path.glob` hides errors, and paths are slow)
    except FileNotFoundError:
        return []


def is_of_a_ledger(name: str) -> bool:
    """True for the names of records."""
    return name.endswith(".json") and not name.startswith(".") and name not in NO_LEDGERS
