"""The ledgers of one state root, kept in memory and on disk alike.

A ledger is read once; afterwards one `stat` tells whether the file still is what was read or written, so that an
idle cycle opens none. A file that is not a ledger is never taken for "no ledger": the item is *held* until a readable
one is put back (or it is reset), over any restart. Only ENOENT means "no ledger"; after any other error it is not known
whether there is one: nothing changes, it is told once, and looked at again.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from the_loop.core.ledger import (
    SCHEMA,
    Ledger,
    NewerLedger,
    Phase,
    UnreadableLedger,
    decode,
    encode,
    forgotten,
    new_ledger,
)
from the_loop.core.model import LoopError, Note, WorkItem, explain, timestamp
from the_loop.durable import IrregularFile, fsync_directory, read_regular, to_json_bytes, write_durably
from the_loop.state import NO_LEDGERS, StateRoot, StateRootError, slug, unslug

_Signature = tuple[int, int, int, int]  # inode, size, times of data and of anything, in nanoseconds


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


@dataclass(frozen=True, slots=True)
class _Known:
    signature: _Signature | None
    ledger: Ledger | None = None
    held: str = ""


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
        self._tell = tell
        self._now = now
        self._known: dict[str, _Known] = {}
        self._held: dict[str, str] = {}
        self._unread: dict[str, str] = {}  # by ref, and why
        self._nameless: dict[str, str] = {}  # files that do not say which item they are of, and why
        self._pending: set[str] = set()

    def is_ours(self) -> bool:
        """False once the root is somebody else's."""
        return self._guard()

    def load(self) -> None:
        """Read every ledger there is; one that cannot be read is in `unread`. Raises StateRootError."""
        try:
            names = sorted(name for name in _names(self._root.portable) if _is_of_a_ledger(name))
        except OSError as error:
            hint = f"check it with `ls -ld '{self._root.portable}'`"
            raise StateRootError(f"cannot list '{self._root.portable}': {explain(error)}", hint) from error
        for name in names:
            self._load(name)

    def look_again(self) -> None:
        """Read what was held or could not be read; what was repaired is known again."""
        for ref in [*self._held, *self._unread]:
            with suppress(HeldItem, OSError):
                self.get(ref)
        for name in list(self._nameless):
            self._load(name)

    def get(self, ref: str) -> Ledger | None:
        """The item's ledger as it is on disk, None if it has none.

        Raises HeldItem; UnreadItem (an OSError) if that could not be found out.
        """
        path = self._root.ledger(ref)
        try:
            known = self._look(ref, path)
        except OSError as error:
            self._cannot_read(self._unread, ref, explain(error))
            raise UnreadItem(error.errno, explain(error), str(path)) from error
        self._unread.pop(ref, None)
        if known.held:
            raise HeldItem(ref, path, known.held)
        return known.ledger

    def save(self, ledger: Ledger) -> None:
        """Write the ledger durably. Raises OSError, and the old one stays in force."""
        if not self.is_ours():
            raise PermissionError(errno.EPERM, "this root is not ours any more")
        path = self._root.ledger(ledger.ref)
        write_durably(path, to_json_bytes(encode(ledger)))
        self._remember(ledger.ref, _Known(_signature_or_none(path), ledger))

    def hold(self, ref: str, reason: str) -> HeldItem:
        """Set the item's file aside and put a held record in its place; what cannot be written is left as it is."""
        path = self._root.ledger(ref)
        aside = ""
        try:
            may_write = self._may_write and self.is_ours()
            aside = _set_aside(path) if may_write else ""
            held = {"reason": reason, "since": timestamp(self._now()), "aside": aside}
            if may_write:
                _replace_by_record(path, aside, {"ref": ref, "schema": SCHEMA, "held": held})
        except OSError as error:
            reason = f"{reason} (and it cannot be set aside: {error.strerror})"
        self._remember(ref, _Known(_signature_or_none(path), held=reason))
        self._tell(Note("ledger.held", {"ref": ref, "reason": reason, "aside": aside}))
        return HeldItem(ref, path, reason)

    def reset_held(self, ref: str) -> None:
        """Let a held item start over. Its starts are counted on where the file that was set aside still tells them.

        Raises OSError.
        """
        path = self._root.ledger(ref)
        aside = [name for name in _names(path.parent) if name.startswith(f"{path.name}.bad-")]
        starts = max((_starts_in(path.with_name(name)) for name in aside), default=0)
        item = WorkItem(ref=ref, id="", url="", title="", body="", author=None, created_at="")
        self.save(forgotten(new_ledger(item, Phase.WAITING, starts)))

    def forget(self, ref: str) -> None:
        """Drop what is remembered of the item; the next look reads the disk."""
        self._known.pop(ref, None)
        self._held.pop(ref, None)
        self._pending.discard(ref)

    def refs(self) -> Iterable[str]:
        """Every item with a ledger, also if it is held or could not be read."""
        return {**self._known, **self._unread}.keys()

    def unread(self) -> dict[str, str]:
        """What could not be read, and why: by item, or by file name where the item is not known either."""
        return {**self._nameless, **self._unread}

    def held(self) -> dict[str, str]:
        """The held items and their reasons."""
        return dict(self._held)

    def all(self) -> Iterable[Ledger]:
        """Every readable ledger, as last seen."""
        return [known.ledger for known in self._known.values() if known.ledger is not None]

    def with_pending(self) -> list[Ledger]:
        """The ledgers in which something is pending."""
        known = (self._known[ref].ledger for ref in sorted(self._pending))
        return [ledger for ledger in known if ledger is not None]

    def _remember(self, ref: str, known: _Known) -> None:
        self._known[ref] = known
        self._held.pop(ref, None)
        if known.held:
            self._held[ref] = known.held
        if known.ledger is not None and known.ledger.poll.pending:
            self._pending.add(ref)
        else:
            self._pending.discard(ref)

    def _load(self, name: str) -> None:
        try:
            ref = _ref_in(self._root.portable / name)
        except FileNotFoundError:
            ref = None
        except (OSError, ValueError) as error:
            self._cannot_read(self._nameless, name, explain(error))
            return
        self._nameless.pop(name, None)
        if ref is not None:
            with suppress(HeldItem, OSError):
                self.get(ref)

    def _look(self, ref: str, path: Path) -> _Known:
        signature = _signature(path)
        known = self._known.get(ref)
        if known is None or known.signature != signature:
            known = self._read(ref, path, signature)
        return known

    def _cannot_read(self, unread: dict[str, str], place: str, reason: str) -> None:
        if place not in unread:
            self._tell(Note("item.failed", {"ref": place, "reason": f"cannot read its ledger: {reason}"}))
        unread[place] = reason

    def _read(self, ref: str, path: Path, signature: _Signature | None) -> _Known:
        if signature is None:
            self.forget(ref)
            return _Known(None)
        try:
            content = read_regular(path)
            reason = _held_reason(content, ref)
            known = _Known(signature, held=reason) if reason else _Known(signature, decode(content, ref))
        except NewerLedger as error:
            known = _Known(signature, held=str(error))
            self._tell(Note("ledger.held", {"ref": ref, "reason": str(error), "aside": ""}))
        except (UnreadableLedger, IrregularFile) as error:  # any other OSError: could not find out, changes nothing
            self.hold(ref, explain(error))
            return self._known[ref]
        self._remember(ref, known)
        return known


def _signature(path: Path) -> _Signature | None:
    """What tells one state of the file from another; None if there is none. Raises OSError."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return None
    return (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def _signature_or_none(path: Path) -> _Signature | None:
    """The signature of what was written just now; where it cannot be had, the next look reads the file."""
    with suppress(OSError):
        return _signature(path)
    return None


def _names(folder: Path) -> list[str]:
    """The names in a folder, none if it is missing. Raises OSError."""
    try:
        return os.listdir(folder)  # noqa: PTH208 (`Path.glob` hides errors, and paths are slow)
    except FileNotFoundError:
        return []


def _is_of_a_ledger(name: str) -> bool:
    return name.endswith(".json") and not name.startswith(".") and name not in NO_LEDGERS


def _ref_in(path: Path) -> str:
    """The item that this file is of: from its name, or, where that was cut, from inside.

    Raises OSError; ValueError if it does not say: it is held as soon as its item is met.
    """
    ref = unslug(path.stem)
    if ref is not None:
        return ref
    try:
        inside = json.loads(read_regular(path)).get("ref")
    except (AttributeError, RecursionError) as error:
        raise ValueError(f"it is not a ledger: {error}") from error
    if not isinstance(inside, str) or slug(inside) != path.stem:
        raise ValueError("it is not the ledger of an item with this file name")
    return inside


def _held_reason(content: bytes, ref: str) -> str:
    """Why this record is held; empty for anything but a held record of this item."""
    try:
        tree = json.loads(content)
        return str(tree["held"]["reason"]) if tree["ref"] == ref else ""
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""


def _starts_in(path: Path) -> int:
    """The count of starts in a file that may be anything."""
    try:
        starts = json.loads(read_regular(path))["g"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return 0
    return starts if isinstance(starts, int) and starts > 0 else 0


def _replace_by_record(path: Path, aside: str, record: dict[str, object]) -> None:
    """Put the record in the file's place, or leave everything as it was."""
    try:
        write_durably(path, to_json_bytes(record))
    except OSError:
        path.with_name(aside).unlink(missing_ok=True)
        raise


def _set_aside(path: Path) -> str:
    """Give the file a second name, `<name>.bad-<n>`; that name."""
    for number in range(1, 1000):
        aside = path.with_name(f"{path.name}.bad-{number}")
        try:
            os.link(path, aside, follow_symlinks=False)
        except FileExistsError:
            continue
        fsync_directory(path.parent)
        return aside.name
    raise OSError(28, "a thousand files are set aside already")
