"""The ledgers of one state root, kept in memory and on disk alike.

A ledger is read once; afterwards one `stat` tells whether the file still is what was read or written, so that an
idle cycle opens none. A file that is no ledger is never taken for "no ledger": the item is *held* until somebody puts
a readable one back (or resets it), over any restart.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Callable, Iterable
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
from the_loop.state import StateRoot, slug, unslug

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


@dataclass(frozen=True, slots=True)
class _Known:
    signature: _Signature | None
    ledger: Ledger | None = None
    held: str = ""


class Ledgers:
    """Reads and writes ledgers. `tell` is given a note whenever an item gets held; `now` is epoch seconds.

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
        self._pending: set[str] = set()

    def is_ours(self) -> bool:
        """False once the root is somebody else's."""
        return self._guard()

    def load(self) -> None:
        """Read every ledger there is."""
        for path in sorted(self._root.portable.glob("*.json"), key=str):  # paths themselves compare slowly
            if path != self._root.repositories and (ref := _ref_of(path)) is not None:
                with contextlib.suppress(HeldItem, OSError):
                    self.get(ref)

    def get(self, ref: str) -> Ledger | None:
        """The item's ledger as it is on disk, None if it has none. Raises HeldItem; OSError where it cannot tell."""
        path = self._root.ledger(ref)
        signature = _signature(path)
        known = self._known.get(ref)
        if known is None or known.signature != signature:
            known = self._read(ref, path, signature)
        if known.held:
            raise HeldItem(ref, path, known.held)
        return known.ledger

    def save(self, ledger: Ledger) -> None:
        """Write the ledger durably. Raises OSError, and the old one stays in force."""
        if not self.is_ours():
            raise PermissionError(errno.EPERM, "this root is not ours any more")
        path = self._root.ledger(ledger.ref)
        write_durably(path, to_json_bytes(encode(ledger)))
        self._remember(ledger.ref, _Known(_signature(path), ledger))

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
        self._remember(ref, _Known(_signature(path), held=reason))
        self._tell(Note("ledger.held", {"ref": ref, "reason": reason, "aside": aside}))
        return HeldItem(ref, path, reason)

    def reset_held(self, ref: str) -> None:
        """Let a held item start over. Its starts are counted on where the file that was set aside still tells them."""
        path = self._root.ledger(ref)
        starts = max((_starts_in(aside) for aside in path.parent.glob(f"{path.name}.bad-*")), default=0)
        item = WorkItem(ref=ref, id="", url="", title="", body="", author=None, created_at="")
        self.save(forgotten(new_ledger(item, Phase.WAITING, starts)))

    def forget(self, ref: str) -> None:
        """Drop what is remembered of the item; the next look reads the disk."""
        self._known.pop(ref, None)
        self._held.pop(ref, None)
        self._pending.discard(ref)

    def refs(self) -> Iterable[str]:
        """Every item with a ledger, held ones too."""
        return list(self._known)

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
    try:
        found = path.lstat()
    except OSError:
        return None
    return (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def _ref_of(path: Path) -> str | None:
    """The item that this file is of: from its name, or, where that was cut, from inside."""
    ref = unslug(path.stem)
    if ref is not None:
        return ref
    try:
        inside = json.loads(read_regular(path)).get("ref")
    except (OSError, ValueError, AttributeError, RecursionError):
        return None
    return inside if isinstance(inside, str) and slug(inside) == path.stem else None


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
