"""The source `jsonl`: each `<item>.jsonl` in a folder is an item, each line in it something that was written on it.

    {"at": "2026-01-31T12:00:00Z", "title": "Door", "text": "It squeaks."}      the first line: the item
    {"at": "2026-01-31T12:30:00Z", "text": "The one upstairs."}                 each further one: a comment
    {"closed": "done"}                                                          at the end: the item has ended

Lines are appended and never changed, and count once they end in a line feed. Their author is the owner of the file,
if nobody else can write to it. A file that is removed ends its item.

Cursor: ``{"folder": "<device>:<inode>", "lines": {item: lines that were told}}``.
"""

from __future__ import annotations

import hashlib
import json
import os
import pwd
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta

from the_loop.config import Config, Fault, SourceSection, path_faults
from the_loop.core.model import ENTRY_LIMIT, Entry, Kind, Presence, WorkItem, clean, epoch, explain, timestamp
from the_loop.sources.base import Known, Listing, Sighting, SourceError, SourceSite, Thread

_ITEM = re.compile(r"([A-Za-z0-9_-][A-Za-z0-9._-]*)\.jsonl")
_UNREADABLE = (OSError, ValueError, LookupError, RecursionError)


class Section(SourceSection, frozen=True, kw_only=True):
    path: Annotated[str, Meta(min_length=1)]


def check(section: Section, config: Config) -> list[Fault]:
    return path_faults(path=section.path)


def build(section: Section, site: SourceSite) -> JsonlSource:
    return JsonlSource(site.name, site.root / Path(section.path).expanduser())


@dataclass(frozen=True)
class _File:
    item: WorkItem
    entries: Mapping[int, Entry]  # by line
    lines: int
    closed: str  # why it ended; nothing while it has not


class JsonlSource:
    provider = "jsonl"
    folds_case = False

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self._folder = folder
        self._prefix = f"jsonl:{name}/"

    def owns(self, ref: str) -> bool:
        return ref.startswith(self._prefix)

    async def poll(self, cursor: Mapping[str, Any] | None, known: Mapping[str, Known]) -> Listing:
        old = cursor or {"folder": "", "lines": {}}
        folder, names = self._names()
        here = {self._prefix + name for name in names}
        is_open = {ref for ref, one in known.items() if one.is_open}
        if folder != old["folder"] and is_open and not is_open & here:
            raise SourceError(f"'{self._folder}' is another folder than before, without its items: not mounted?")
        sightings, faults, lines = [], [], dict[str, int]()
        for name in names:
            told = old["lines"].get(name, 0)
            try:
                file = self._read(name)
            except _UNREADABLE as error:
                faults.append(SourceError(f"cannot read '{self._path(name)}': {explain(error)}"))
                lines |= {name: told} if told else {}
                continue
            lines[name] = file.lines
            rows = [entry for number, entry in file.entries.items() if number > told or file.lines < told]
            if not file.closed:
                sightings.append(Sighting(file.item.ref, Presence.LISTED, file.item, rows=rows))
            elif file.item.ref in is_open:
                sightings.append(Sighting(file.item.ref, Presence.GONE, reason=file.closed, rows=rows))
        items = sum(sighting.presence is Presence.LISTED for sighting in sightings)
        if folder == old["folder"]:  # else what is missing may lie in the other folder
            sightings += [Sighting(ref, Presence.GONE, reason="deleted") for ref in sorted(is_open - here)]
        return Listing(sightings, {"folder": folder, "lines": lines}, items, faults)

    async def thread(self, ref: str) -> Thread:
        name = ref.removeprefix(self._prefix)
        try:
            file = self._read(name)
        except FileNotFoundError:
            return Thread(None, ())
        except _UNREADABLE as error:
            raise SourceError(f"cannot read '{self._path(name)}': {explain(error)}") from error
        return Thread(None if file.closed else file.item, list(file.entries.values()))

    async def close(self) -> None:
        """Nothing is held open."""

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.jsonl"

    def _names(self) -> tuple[str, list[str]]:
        try:
            found = self._folder.stat()
            names = sorted(match[1] for path in self._folder.iterdir() if (match := _ITEM.fullmatch(path.name)))
        except OSError as error:
            raise SourceError(f"cannot read '{self._folder}': {explain(error)}") from error
        return f"{found.st_dev}:{found.st_ino}", names

    def _read(self, name: str) -> _File:
        with os.fdopen(os.open(self._path(name), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as opened:
            found = os.fstat(opened.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise ValueError("it is not a regular file")
            *texts, _unfinished = opened.read().split(b"\n")
        is_private = found.st_nlink == 1 and not found.st_mode & 0o022
        author = pwd.getpwuid(found.st_uid).pw_name if is_private else None
        values = [json.loads(text) for text in texts]
        if not values or not all(isinstance(value, dict) for value in values):
            raise ValueError("it has no line, or one that is not an object")
        entries = {
            number: self._entry(name, number, text, value, author)
            for number, (text, value) in enumerate(zip(texts, values, strict=True), 1)
            if number == 1 or "closed" not in value
        }
        first, title = entries.pop(1), clean(str(values[0].get("title", name)))
        whole = (first.url, title, first.body, author, first.created_at, first.truncated)
        closed = str(values[-1].get("closed", ""))
        return _File(WorkItem(self._prefix + name, name, *whole), entries, len(texts), closed)

    def _entry(self, name: str, number: int, text: bytes, value: Mapping[str, Any], author: str | None) -> Entry:
        moment = epoch(value.get("at"))
        if moment is None or not isinstance(value.get("text"), str):
            raise ValueError(f"line {number} has no 'at' that is a moment, or no 'text'")
        body = clean(value["text"])
        is_long = len(body.encode()) > ENTRY_LIMIT
        id_ = f"{number}-{hashlib.sha256(text).hexdigest()[:12]}"  # a file may be removed and written anew
        url = f"{self._path(name).as_uri()}#{number}"
        return Entry(Kind.COMMENT, id_, author, "" if is_long else body, url, timestamp(moment), truncated=is_long)
