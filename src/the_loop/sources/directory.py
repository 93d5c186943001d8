"""The `directory` source: each folder of an inbox is an item, each file in it its text or a comment on it.

A file counts once it is complete: not hidden or temporary, and unchanged for `settle_s` seconds. If a file is still
settling, a poll waits once for `settle_s` and scans again. Names are identities: the same content under a new name
is a rename, other content under a known name an edit; neither is delivered. Rule: contract R9. A file that was not
for us, because its author was not authorised when it was first read, has no renames: it was not delivered.

What may not be read is passed over: a new folder, or a file, is told once and shown as long as it is so. Any other
error is a fault, as is a folder that is an item and may not be read any more.

Cursor: ``{"inbox": "<device>:<inode>", "folders": {name: {"files": {name: [signature, hash, polls gone, author]},
"ignored": [name]}}, "missing": {ref: epoch seconds}, "overlooked": {path: reason}}``. Names of folders and files are
encoded by `encode_name`; `author` is null for one who was not authorised.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote_from_bytes, unquote_to_bytes

from the_loop.core.model import Entry, Kind, Note, Presence, WorkItem, clean, explain, timestamp
from the_loop.sources.base import Known, Listing, Sighting, SourceError, Thread
from the_loop.sources.ignored import Ignored
from the_loop.sources.textfiles import (
    NO_TEXT,
    File,
    Owners,
    Text,
    encode_name,
    read_text,
    signature_of,
    unquote_name,
)
from the_loop.turns import Turns

_BODY: Final = "item.md"
_REMEMBERED: Final = 2  # polls for which a file that is gone is remembered, to detect a rename
_LATEST: Final = 253_402_300_799.0  # the last second of the year 9999


@dataclass(slots=True)
class _Folder:
    """The result of one scan of a folder. Names are encoded."""

    files: dict[str, File] = field(default_factory=dict)
    settling: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)  # files on the list of what is ignored
    unnamed: dict[str, int] = field(default_factory=dict)  # files that wait until their owner, a uid, can be named
    problem: str = ""  # why it cannot be read; then it is neither listed nor missing
    is_forbidden: bool = False  # that is the reason


@dataclass(slots=True)
class _Found:
    """What a poll has found so far. `records`: the folders' parts of the cursor."""

    turns: Turns
    sightings: list[Sighting] = field(default_factory=list)
    records: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)
    faults: list[SourceError] = field(default_factory=list)
    overlooked: dict[str, str] = field(default_factory=dict)  # what may not be read, and why


class DirectorySource:
    """Implements `sources.base.Source`. `authorized`: the user names that may write items and comments."""

    provider = "directory"
    folds_case = False

    def __init__(
        self,
        name: str,
        path: Path,
        *,
        settle_s: float,
        authorized: frozenset[str],
        is_ours: bool = False,
        ignored: Ignored | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.name = name
        self._path = path
        self._settle_s = settle_s
        self._authorized = authorized
        self._is_ours = is_ours  # below the state root: created if it is missing at the first poll
        self._ignored = ignored or Ignored()
        self._now = now
        self._prefix = f"directory:{encode_name(os.fsencode(name))}/"
        self._bodies: dict[str, str] = {}  # by ref: the file that was chosen as body in the initial sync
        self._owners = Owners(authorized)
        self._seen_since: dict[Path, tuple[tuple[int, int, int, int], float]] = {}

    def owns(self, ref: str) -> bool:
        return ref.startswith(self._prefix)

    async def poll(self, cursor: Mapping[str, Any] | None, known: Mapping[str, Known]) -> Listing:
        if cursor is None and not known and self._is_ours:
            with contextlib.suppress(OSError):
                self._path.mkdir(mode=0o700, exist_ok=True)
        self._owners = Owners(self._authorized)
        old = cursor or {}
        inbox = self._identity()
        turns = Turns()
        folders = await self._scan(turns)
        if self._needs_rescan(folders, known):
            await asyncio.sleep(self._settle_s)
            folders = await self._scan(turns)
        await turns.are_given()
        is_same = inbox == old.get("inbox")
        if not is_same:
            self._check_place(folders, known)
        missing = self._missing(folders, known, old.get("missing", {}) if is_same else {})
        found = _Found(turns)
        before = _object(old.get("folders"))
        for name, folder in sorted(folders.items()):
            await turns.are_given()
            await self._see(found, name, folder, known.get(self._ref(name)), _object(before.get(name)))
        await turns.are_given()
        new = {"inbox": inbox, "folders": found.records, "missing": missing, "overlooked": found.overlooked}
        listed = len(found.sightings)
        found.sightings += self._departures(missing)
        found.notes += self._about(found.overlooked, _object(old.get("overlooked")))
        return Listing(found.sightings, new, listed, found.faults, found.notes, overlooked=found.overlooked)

    async def _see(
        self, found: _Found, name: str, folder: _Folder, one: Known | None, before: Mapping[str, Any]
    ) -> None:
        """Add what one folder shows. `one`: what is known of its item; `before`: its part of the cursor."""
        if folder.unnamed:
            found.faults.append(self._unnamed_fault(name, folder))
        if folder.is_forbidden and (one is None or not one.is_open):
            found.overlooked[name] = folder.problem
            return
        item = None if folder.problem else self._sight(name, folder, one)
        try:
            if folder.problem:
                raise OSError(folder.problem)
            if item is None:
                return
            rows, record, notes = await self._compare(folder, before, item, found)
        except OSError as error:
            found.faults.append(SourceError(f"cannot read '{self._folder_path(name)}': {explain(error)}"))
            found.records[name] = before
            return
        if one is None and f"{name}/{_name_in(item.url)}" in found.overlooked:
            return  # a new item whose text may not be read
        self._bodies[item.ref] = _name_in(item.url)
        found.sightings.append(Sighting(item.ref, Presence.LISTED, item, rows=rows))
        found.records[name] = record
        found.notes += notes

    def _check_place(self, folders: Mapping[str, _Folder], known: Mapping[str, Known]) -> None:
        """Raise SourceError if another directory is in the place of the inbox, with none of its items."""
        expected = {ref for ref, one in known.items() if one.is_open and not self._is_left_alone(ref)}
        if expected and not any(self._ref(name) in expected for name in folders):
            problem = f"cannot read '{self._path}': it is another directory than before and has none of its items"
            raise SourceError(problem, f"not mounted? check it with `findmnt -T '{self._path}'`")

    async def thread(self, ref: str) -> Thread:
        name = ref.removeprefix(self._prefix)
        turns = Turns()
        folder = await self._scan_folder(self._folder_path(name), turns)
        if folder is not None and folder.problem:
            raise SourceError(f"cannot read '{self._folder_path(name)}': {folder.problem}")
        if folder is not None and folder.unnamed:
            raise self._unnamed_fault(name, folder)  # what is missing in a thread counts as deleted
        item = self._item(name, folder, self._bodies.get(ref, "")) if folder is not None else None
        if folder is None or item is None:
            return Thread(None, ())
        chosen = _name_in(item.url)
        entries = []
        for file in folder.files.values():
            await turns.are_given()
            with contextlib.suppress(PermissionError):  # told by the poll
                if file.name != chosen and (text := read_text(file)) is not None:
                    entries.append(_as_entry(file, text, renamed_from=()))
        body = read_text(folder.files[chosen]) if chosen in folder.files else NO_TEXT
        return Thread(_with_body(item, body), entries)

    async def close(self) -> None:
        """Does nothing: no file is kept open."""

    # --- scanning ---

    def _identity(self) -> str:
        try:
            found = self._path.stat()
        except OSError as error:
            raise SourceError(f"cannot read '{self._path}': {error.strerror}") from error
        return f"{found.st_dev}:{found.st_ino}"

    async def _scan(self, turns: Turns) -> dict[str, _Folder]:
        try:
            with os.scandir(os.fsencode(self._path)) as entries:
                names = [
                    e.name for e in entries if e.is_dir(follow_symlinks=False) and not self._ignored.folder(e.name)
                ]
        except OSError as error:
            raise SourceError(f"cannot read '{self._path}': {error.strerror}") from error
        found = {}
        for name in names:
            await turns.are_given()
            if self._ignored.folder(name):
                continue
            folder = await self._scan_folder(self._path / os.fsdecode(name), turns)
            if folder is not None:
                found[encode_name(name)] = folder
        return found

    async def _scan_folder(self, path: Path, turns: Turns) -> _Folder | None:
        """The files of one folder, or why they cannot be read; None if the folder is gone."""
        folder = _Folder()
        try:
            found = os.lstat(path)
            doubt = self._doubt_of(path, found)
            if doubt is None:
                return _Folder(problem=_unnamed(found.st_uid))
            with os.scandir(os.fsencode(path)) as entries:
                for entry in entries:
                    await turns.are_given()
                    with contextlib.suppress(FileNotFoundError):
                        self._sort_in(folder, path, entry, doubt)
        except FileNotFoundError:
            return None
        except OSError as error:
            return _Folder(problem=explain(error), is_forbidden=isinstance(error, PermissionError))
        return folder

    def _sort_in(self, folder: _Folder, path: Path, entry: os.DirEntry[bytes], doubt: str) -> None:
        """`doubt`: why nobody is the author of what is in this folder, "" if the owners of its files are."""
        name = encode_name(entry.name)
        if self._ignored.file(os.fsencode(path.name), entry.name):
            folder.left.append(name)
            return
        found = entry.stat(follow_symlinks=False)
        if not stat.S_ISREG(found.st_mode):
            folder.ignored.append(name)
            return
        signature = signature_of(found)
        here = path / os.fsdecode(entry.name)
        if not self._is_settled(here, signature):
            folder.settling.append(name)
            return
        author, doubt = None, doubt or _doubt_of_file(here, found)
        if not doubt:
            author = self._owners.name(found.st_uid)
            if author is None:
                folder.unnamed[name] = found.st_uid
                return
        folder.files[name] = File(here, name, signature, author, found.st_mtime, doubt)

    def _is_settled(self, path: Path, signature: tuple[int, int, int, int]) -> bool:
        """True once unchanged for `settle_s`: by its ctime, or, if that is in the future, by our own observation."""
        age_s = time.time() - signature[3] / 1e9
        if age_s >= self._settle_s:
            self._seen_since.pop(path, None)
            return True
        before, since = self._seen_since.get(path, (None, 0.0))
        if before != signature:
            self._seen_since[path] = (signature, time.monotonic())
            return self._settle_s == 0
        return time.monotonic() - since >= self._settle_s

    def _needs_rescan(self, folders: Mapping[str, _Folder], known: Mapping[str, Known]) -> bool:
        here = {self._ref(name) for name in folders}
        return any(folder.settling for folder in folders.values()) or any(
            one.is_open and ref not in here and not self._is_left_alone(ref) for ref, one in known.items()
        )

    def _doubt_of(self, path: Path, folder: os.stat_result) -> str | None:
        """How another than an authorised user can have put a file into this folder; None: that cannot be found out."""
        if folder.st_mode & 0o022:
            return _writable(path)
        owner = self._owners.name(folder.st_uid)
        if owner is None or owner in self._authorized:
            return None if owner is None else ""
        return f"'{path}' belongs to '{owner}', who is not authorised"

    def _may_speak(self, file: File) -> bool:
        return file.author in self._authorized

    def _unnamed_fault(self, name: str, folder: _Folder) -> SourceError:
        file, uid = min(folder.unnamed.items())
        return SourceError(f"cannot read '{self._folder_path(name) / unquote_name(file)}': {_unnamed(uid)}")

    # --- interpretation ---

    def _sight(self, name: str, folder: _Folder, one: Known | None) -> WorkItem | None:
        """The item of a folder; None while it has no files, or if it is new and some of its files are not complete."""
        if one is None and (folder.settling or folder.unnamed or not folder.files):
            return None
        return self._item(name, folder, _name_in(one.url) if one else "")

    def _item(self, name: str, folder: _Folder, chosen: str) -> WorkItem | None:
        """The folder as an item, without its body's text. Its url records the file that is its body."""
        if not chosen:
            chosen = _BODY if _BODY in folder.files else min(folder.files, default="")
        file = folder.files.get(chosen)
        if not chosen:
            return None
        return WorkItem(
            ref=self._ref(name),
            id=name,
            url=f"file://{quote_from_bytes(os.fsencode(self._path))}{_url_part(name, chosen)}",
            title=clean(os.fsencode(unquote_name(name)).decode("utf-8", "replace")),
            body="",
            author=file.author if file else None,
            author_doubt=file.doubt if file else "",
            created_at=_when(file.modified_s) if file else "",
        )

    async def _compare(
        self, folder: _Folder, before: Mapping[str, Any], item: WorkItem, found: _Found
    ) -> tuple[list[Entry], dict[str, Any], list[Note]]:
        """The new rows of a folder, its new part of the cursor, and the edits and ignored files to log.

        A file that may not be read goes into `found.overlooked`. Raises OSError for any other.
        """
        old = {key: value for key, value in _object(before.get("files")).items() if isinstance(value, list)}
        missed = {key: _missed(value) for key, value in old.items() if key not in folder.files}
        there = {*folder.settling, *folder.unnamed, *folder.left}  # not complete or not read, and not gone either
        gone = _gone(old, {key: polls for key, polls in missed.items() if key not in there})
        files: dict[str, Any] = {
            key: [*value[:2], missed[key] + 1 if key in missed and key not in there else 0, *value[3:]]
            for key, value in old.items()
            if missed.get(key, 0) < _REMEMBERED
        }
        rows, notes = [], []
        for file in folder.files.values():
            await found.turns.are_given()
            signature, digest = (old[file.name][0], old[file.name][1]) if file.name in old else (None, None)
            if signature == list(file.signature):
                continue
            try:
                text = read_text(file)
            except PermissionError as error:
                found.overlooked[f"{item.id}/{file.name}"] = explain(error)
                continue
            if text is None:
                continue  # changed or removed while it was read
            spoke = old[file.name][3:] if file.name in old else [file.author if self._may_speak(file) else None]
            files[file.name] = [list(file.signature), text.digest, 0, *spoke]
            if digest is not None:
                if digest != text.digest:
                    notes.append(
                        Note("poll.edited", {"ref": item.ref, "key": f"comment:{file.name}", "reason": "edited"})
                    )
            elif file.name != _name_in(item.url):
                rows.append(_as_entry(file, text, renamed_from=gone.get((text.digest, file.author), ())))
        ignored = _object(before).get("ignored", [])
        for name in folder.ignored:
            if name not in ignored:
                fields = {"ref": item.ref, "deliveryId": f"{item.ref}/{name}", "reason": "not a regular file"}
                notes.append(Note("dispatch.dropped", fields))
        return rows, {"files": files, "ignored": sorted(folder.ignored)}, notes

    def _about(self, overlooked: Mapping[str, str], before: Mapping[str, Any]) -> Iterator[Note]:
        """What is passed over is told once."""
        for place, reason in overlooked.items():
            if before.get(place) != reason:
                why = f"it is passed over: {reason}; check its owner and mode"
                yield Note("item.failed", {"ref": self._ref(place), "reason": why})

    def _missing(
        self, folders: Mapping[str, _Folder], known: Mapping[str, Known], before: Mapping[str, float]
    ) -> dict[str, float]:
        """Open items without a folder, and since when (epoch seconds)."""
        here = {self._ref(name) for name in folders}
        now = self._now()
        first = before if isinstance(before, dict) else {}
        gone = (ref for ref, one in known.items() if one.is_open and ref not in here)
        return {ref: min(first.get(ref, now), now) for ref in gone if not self._is_left_alone(ref)}

    def _departures(self, missing: Mapping[str, float]) -> Iterator[Sighting]:
        """Items that were missing in two scans at least `settle_s` apart; they have no thread to read a last time."""
        for ref, since in missing.items():
            if self._now() - since >= self._settle_s:
                yield Sighting(ref, Presence.GONE, reason="deleted")

    def _is_left_alone(self, ref: str) -> bool:
        """True for an item whose folder is ignored since: like one that is not configured any more, it did not end."""
        return self._ignored.folder(os.fsencode(unquote_name(ref.removeprefix(self._prefix))))

    def _ref(self, name: str) -> str:
        return f"{self._prefix}{name}"

    def _folder_path(self, name: str) -> Path:
        return self._path / unquote_name(name)


def _doubt_of_file(path: Path, found: os.stat_result) -> str:
    """How another than its owner can have written this file; "" if nobody else can."""
    if found.st_nlink != 1:
        return f"'{path}' has {found.st_nlink} links"
    return _writable(path) if found.st_mode & 0o022 else ""


def _writable(path: Path) -> str:
    return f"others than its owner may write to '{path}' (run `chmod go-w {shlex.quote(str(path))}`)"


def _unnamed(uid: int) -> str:
    return f"its owner, uid {uid}, has no user name now, see `getent passwd {uid}`"


def _gone(old: Mapping[str, list[Any]], missed: Mapping[str, int]) -> dict[tuple[str, str | None], tuple[str, ...]]:
    """By hash and author: the keys of files that are gone. One poll longer, since a new name may have been settling."""
    gone: dict[tuple[str, str | None], tuple[str, ...]] = {}
    for name, polls in missed.items():
        author = old[name][3] if len(old[name]) > 3 else None
        if polls < _REMEMBERED and author is not None:
            place = (old[name][1], author)
            gone[place] = (*gone.get(place, ()), f"{Kind.COMMENT}:{name}")
    return gone


def _missed(record: list[Any]) -> int:
    """The number of polls for which a recorded file has been gone."""
    return int(record[2]) if len(record) > 2 else 0


def _as_entry(file: File, text: Text, *, renamed_from: tuple[str, ...]) -> Entry:
    return Entry(
        kind=Kind.COMMENT,
        id=file.name,
        author=file.author,
        body=text.body,
        url=f"file://{quote_from_bytes(os.fsencode(file.path))}",
        created_at=_when(file.modified_s),
        truncated=text.truncated,
        renamed_from=renamed_from,
    )


def _with_body(item: WorkItem, text: Text | None) -> WorkItem | None:
    if text is None:
        return None
    return WorkItem(
        item.ref, item.id, item.url, item.title, text.body, item.author, item.created_at, truncated=text.truncated
    )


def _url_part(folder: str, file: str) -> str:
    names = (os.fsencode(unquote_name(folder)), os.fsencode(unquote_name(file)))
    return "".join(f"/{quote_from_bytes(name, safe='')}" for name in names)


def _name_in(url: str) -> str:
    """The encoded name of the file in the last part of an item's url."""
    return encode_name(unquote_to_bytes(url.rpartition("/")[2]))


def _when(epoch_s: float) -> str:
    return timestamp(min(max(epoch_s, 0.0), _LATEST))


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
