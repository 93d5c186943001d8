"""The ledgers of one state root, kept in memory and on disk alike.

A ledger is read once; afterwards one `stat` tells whether the file still is what was read or written, so that an
idle cycle opens none. A file that is not a ledger is never taken for "no ledger": the item is *held* until a readable
one is put back (or it is reset), over any restart. Only ENOENT means "no ledger"; after any other error it is not known
whether there is one: nothing changes, it is told once, and looked at again.

Items that ended are not read at the start, and not counted among the others: one is found when it is asked for, and
remembered for as long as it is asked for again (its source may go on listing it).
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from the_loop.core.ledger import Ledger, NewerLedger, Phase, UnreadableLedger, forgotten, new_ledger
from the_loop.core.model import LoopError, Note, WorkItem, explain, timestamp
from the_loop.durable import IrregularFile
from the_loop.records import Found, Records, Stored, is_of_a_ledger
from the_loop.state import StateRoot, StateRootError

_REMEMBERED_S: Final = 3600.0  # an ended item after it was last asked for
_MOVED_AT_ONCE: Final = 256  # ended items that an earlier version left among the others
_TRIES: Final = 5  # of reading a record that is being written


class HeldItem(LoopError):
    """The item's ledger cannot be used; nothing may be decided about it."""

    def __init__(self, ref: str, path: Path, reason: str) -> None:
        super().__init__(
            f"item '{ref}' is held, its ledger '{path}' cannot be used: {reason}",
            f"put a readable ledger back, or forget it with `the-loop ledger reset '{ref}'`",
        )
        self.ref = ref
        self.reason = reason


class UnreadItem(OSError):
    """It could not be found out what the item's ledger says. This was told; callers change nothing."""


class Ledgers:
    """Reads and writes ledgers. `tell` is given a note when an item gets held or cannot be read; `now`: epoch seconds.

    Without `may_write` a bad file is held in memory only, and stays where it is. `guard` is asked before each write:
    once it says no, the root is somebody else's.
    """

    def __init__(
        self,
        root: StateRoot,
        tell: Callable[[Note], None],
        now: Callable[[], float],
        *,
        may_write: bool = True,
        guard: Callable[[], bool] = lambda: True,
    ) -> None:
        self._guard = guard
        self._may_write = may_write
        self._root = root
        self._records = Records(root, now, is_alone=may_write)
        self._tell = tell
        self._now = now
        self._known: dict[str, Stored] = {}
        self._ended: dict[str, tuple[float, Stored]] = {}  # with when it was last asked for; the latest at the end
        self._held: dict[str, str] = {}
        self._unread: dict[str, str] = {}  # by ref, and why
        self._nameless: dict[str, str] = {}  # files that do not say which item they are of, and why
        self._pending: set[str] = set()
        self._waiting: set[str] = set()
        self._over: set[str] = set()  # ended, and not moved yet

    def is_ours(self) -> bool:
        """False once the root is somebody else's."""
        return self._guard()

    def load(self) -> None:
        """Read every ledger in `portable/`; one that cannot be read is in `unread`. Raises StateRootError."""
        for _ in self.loading(self.names()):
            pass

    def names(self) -> list[str]:
        """The names of the files in `portable/`. Raises StateRootError."""
        try:
            return self._records.names()
        except OSError as error:
            hint = f"check it with `ls -ld '{self._root.portable}'`"
            raise StateRootError(f"cannot list '{self._root.portable}': {explain(error)}", hint) from error

    def loading(self, names: Iterable[str]) -> Iterator[None]:
        """Like `load`, one ledger of these `names` a step."""
        for name in filter(is_of_a_ledger, names):
            self._load(name)
            if len(self._over) >= _MOVED_AT_ONCE:
                self._move_those_over()
            yield
        self._move_those_over()
        if self._may_write and self.is_ours():
            with suppress(OSError):
                self._records.remove_leftovers(names)

    def look_again(self) -> None:
        """Read what was held or could not be read; what was repaired is known again."""
        for ref in [*self._held, *self._unread]:
            with suppress(HeldItem, OSError):
                self.get(ref)
        for name in list(self._nameless):
            self._load(name)
        self._move_those_over()

    def get(self, ref: str) -> Ledger | None:
        """The item's ledger as it is on disk, None if it has none.

        Raises HeldItem; UnreadItem (an OSError) if that could not be found out.
        """
        try:
            stored = self._look(ref)
        except OSError as error:
            self._cannot_read(self._unread, ref, explain(error))
            raise UnreadItem(error.errno, explain(error), str(self._records.path(ref))) from error
        self._unread.pop(ref, None)
        if stored is not None and stored.held:
            raise HeldItem(ref, self._records.path(ref), stored.held)
        return None if stored is None else stored.ledger

    def save(self, ledger: Ledger) -> None:
        """Write the ledger durably. Raises OSError, and the old one stays in force."""
        self._must_be_ours()
        ref = ledger.ref
        before = self._known.get(ref) or self._ended_one(ref)
        if before is None or before.is_torn:
            before = self._look(ref)
        try:
            stored = self._records.write(ledger, before)
        except OSError:
            if before is not None:
                self._remember(ref, replace(before, is_torn=True))
            raise
        self._remember(ref, stored)
        self._move_those_over()

    def hold(self, ref: str, reason: str) -> HeldItem:
        """Set the item's file aside and put a held record in its place; what cannot be written is left as it is."""
        aside = ""
        try:
            if self._may_write and self.is_ours():
                aside = self._records.set_aside(ref, {"reason": reason, "since": timestamp(self._now())})
        except OSError as error:
            reason = f"{reason} (and it cannot be set aside: {error.strerror})"
        found: Found | None = None
        with suppress(OSError):
            found = self._records.find(ref)
        self._remember(ref, Stored(found, held=reason))
        self._tell(Note("ledger.held", {"ref": ref, "reason": reason, "aside": aside}))
        return HeldItem(ref, self._records.path(ref), reason)

    def reset_held(self, ref: str) -> None:
        """Let a held item start over. Its starts are counted on where the file that was set aside still tells them.

        Raises OSError.
        """
        self._must_be_ours()
        starts = self._records.starts_set_aside(ref)
        self._records.set_log_aside(ref)
        item = WorkItem(ref=ref, id="", url="", title="", body="", author=None, created_at="")
        self.save(forgotten(new_ledger(item, Phase.WAITING, starts)))

    def forget(self, ref: str) -> None:
        """Drop what is remembered of the item; the next look reads the disk."""
        self._known.pop(ref, None)
        self._ended.pop(ref, None)
        self._held.pop(ref, None)
        self._pending.discard(ref)
        self._waiting.discard(ref)
        self._over.discard(ref)

    def refs(self) -> Iterable[str]:
        """Every item with a ledger that did not end, also if it is held or could not be read."""
        return {**self._known, **self._unread}.keys()

    def unread(self) -> dict[str, str]:
        """What could not be read, and why: by item, or by file name where the item is not known either."""
        return {**self._nameless, **self._unread}

    def held(self) -> dict[str, str]:
        """The held items and their reasons."""
        return dict(self._held)

    def all(self) -> Iterable[Ledger]:
        """Every readable ledger, as last seen, of items that did not end."""
        return [stored.ledger for stored in self._known.values() if stored.ledger is not None]

    def with_pending(self) -> list[Ledger]:
        """The ledgers in which something is pending."""
        ledgers = (self._known[ref].ledger for ref in sorted(self._pending))
        return [ledger for ledger in ledgers if ledger is not None]

    def waiting(self) -> Iterator[Ledger]:
        """The ledgers of the items that were met and do not start, in order."""
        ledgers = (self._known[ref].ledger for ref in sorted(self._waiting))
        return (ledger for ledger in ledgers if ledger is not None)

    def count_ended(self) -> int:
        """The number of items that ended. Raises OSError."""
        return sum(map(is_of_a_ledger, self._records.names(is_ended=True)))

    def ended(self) -> Iterator[Ledger]:
        """The ledgers of the items that ended, read one by one; what cannot be read is in `unread`. Raises OSError."""
        for name in self._records.names(is_ended=True):
            if is_of_a_ledger(name) and (ref := self._ref_in(name, is_ended=True)) is not None:
                with suppress(HeldItem, UnreadItem):
                    ledger = self.get(ref)
                    if ref not in self._known and ledger is not None:
                        yield ledger
                    self._ended.pop(ref, None)

    # --- what is on disk ---

    def _load(self, name: str) -> None:
        ref = self._ref_in(name)
        if ref is not None:
            with suppress(HeldItem, OSError):
                self.get(ref)

    def _ref_in(self, name: str, *, is_ended: bool = False) -> str | None:
        try:
            ref = self._records.ref_in(name, is_ended=is_ended)
        except FileNotFoundError:
            ref = None
        except (OSError, ValueError) as error:
            self._cannot_read(self._nameless, name, explain(error))
            return None
        self._nameless.pop(name, None)
        return ref

    def _look(self, ref: str) -> Stored | None:
        """What is stored of the item. Raises OSError if that cannot be found out."""
        found = self._records.find(ref)
        for _ in range(_TRIES):
            if found is None:
                self.forget(ref)
                return None
            stored = self._known.get(ref) or self._ended_one(ref)
            if stored is not None and stored.found == found:
                return stored
            try:
                stored = self._records.read(ref, found)
            except (OSError, UnreadableLedger) as error:
                before, found = found, self._records.find(ref)
                if found == before:  # else it was written meanwhile
                    return self._without(ref, found, error)
                continue
            self._remember(ref, stored)
            return self._tidied(ref, stored)
        raise OSError(errno.EAGAIN, "it changes all the time")

    def _without(self, ref: str, found: Found, error: Exception) -> Stored:
        """What is stored of an item whose record cannot be used. Raises `error` if that says nothing about it."""
        if isinstance(error, NewerLedger):
            self._remember(ref, Stored(found, held=str(error)))
            self._tell(Note("ledger.held", {"ref": ref, "reason": str(error), "aside": ""}))
        elif isinstance(error, UnreadableLedger | IrregularFile):
            self.hold(ref, explain(error))
        else:
            raise error
        return self._known[ref]

    def _tidied(self, ref: str, stored: Stored) -> Stored:
        """Finish what was cut off while the record was written; where that fails, a later write does it."""
        if not (self._may_write and self.is_ours()):
            return stored
        with suppress(OSError):
            if stored.ledger is not None and stored.log is not None and stored.logged is None:
                self.save(stored.ledger)  # what its log has settled
            elif stored.is_double:
                self._records.remove_double(ref)
        return self._known.get(ref) or self._ended_one(ref) or stored

    def _move_those_over(self) -> None:
        """Move the records of ended items out of the way; what fails is tried again with the next cycle."""
        if not (self._over and self._may_write and self.is_ours()):
            return
        refs = sorted(self._over)
        with suppress(OSError):
            self._records.move_to_ended(refs)
        for ref in refs:
            with suppress(OSError):
                found = self._records.find(ref)
                if found is not None and found.is_ended and ref in self._known:
                    self._remember(ref, Stored(found, self._known[ref].ledger))

    # --- what is remembered ---

    def _remember(self, ref: str, stored: Stored) -> None:
        self.forget(ref)
        if stored.held:
            self._held[ref] = stored.held
        elif stored.found is not None and stored.found.is_ended:
            self._ended[ref] = (time.monotonic(), stored)
            return
        self._known[ref] = stored
        if stored.ledger is not None and stored.ledger.poll.pending:
            self._pending.add(ref)
        if stored.ledger is not None and stored.ledger.poll.phase is Phase.WAITING:
            self._waiting.add(ref)
        if stored.ledger is not None and stored.ledger.is_over:
            self._over.add(ref)

    def _ended_one(self, ref: str) -> Stored | None:
        """An ended item as it is remembered; others are forgotten where they were not asked for in a while."""
        _, stored = self._ended.pop(ref, (0.0, None))
        now = time.monotonic()
        if stored is not None:
            self._ended[ref] = (now, stored)
        while self._ended and next(iter(self._ended.values()))[0] < now - _REMEMBERED_S:
            del self._ended[next(iter(self._ended))]
        return stored

    def _cannot_read(self, unread: dict[str, str], place: str, reason: str) -> None:
        if place not in unread:
            self._tell(Note("item.failed", {"ref": place, "reason": f"cannot read its ledger: {reason}"}))
        unread[place] = reason

    def _must_be_ours(self) -> None:
        if not self.is_ours():
            raise PermissionError(errno.EPERM, "this root is not ours any more")
