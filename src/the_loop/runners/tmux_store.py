"""What the runner `tmux` keeps on disk of its sessions.

    local/sessions/<slug>.json              the handle: where the session is, since when, what it was given last
    local/runners/tmux/told/<slug>.jsonl    the payloads that it was given, for a program that is started again
    local/runners/tmux/texts/<slug>.txt     texts for programs that read lines

A handle is written before what it says is done, and lost handles do no harm: sessions are found by their names.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from the_loop.core.model import THREAD_LIMIT, timestamp
from the_loop.durable import read_json_object, read_regular, replace_file, to_json_bytes, to_json_line, write_durably
from the_loop.state import slug

_KEPT: Final = ("deliveryId", "kind", "ref", "url", "title", "author", "body", "createdAt", "thread", "omitted")


@dataclass(frozen=True, slots=True)
class Handle:
    """One session. `resumes`: how often in a row its program was started again without being given anything."""

    ref: str
    name: str
    since: float  # epoch seconds
    url: str = ""
    title: str = ""
    resumes: int = 0
    counted: str = ""  # the end of a program that was counted last
    socket: str = ""
    server: str = ""  # "pid:starttime:boot"
    unit: str | None = None
    pane: str = ""
    program: str = ""  # "pid:starttime:boot"
    last: str = ""  # delivery id
    last_at: float = 0.0

    def changed(self, **changes: Any) -> Handle:
        return replace(self, **changes)

    def to_json(self) -> dict[str, Any]:
        where = {"socket": self.socket, "server": self.server, "unit": self.unit, "pane": self.pane}
        last = {"lastDelivery": self.last or None, "lastDeliveryAt": timestamp(self.last_at) if self.last_at else None}
        return {
            "schema": 1,
            "ref": self.ref,
            "runner": "tmux",
            "url": self.url,
            "title": self.title,
            "name": self.name,
            "since": timestamp(self.since),
            "sinceEpoch": self.since,
            "resumes": self.resumes,
            "counted": self.counted,
            **where,
            "program": self.program,
            **last,
            "lastDeliveryEpoch": self.last_at,
        }


def handle_of(said: Mapping[str, Any]) -> Handle | None:
    """The handle in this JSON; None if it is not one of a session of ours."""
    if said.get("runner") != "tmux" or not isinstance(said.get("ref"), str) or not isinstance(said.get("name"), str):
        return None
    resumes, since, last_at = said.get("resumes"), said.get("sinceEpoch"), said.get("lastDeliveryEpoch")
    return Handle(
        ref=said["ref"],
        name=said["name"],
        since=float(since) if isinstance(since, int | float) else 0.0,
        url=str(said.get("url") or ""),
        title=str(said.get("title") or ""),
        resumes=resumes if isinstance(resumes, int) else 0,
        counted=str(said.get("counted") or ""),
        socket=str(said.get("socket") or ""),
        server=str(said.get("server") or ""),
        unit=str(said["unit"]) if said.get("unit") else None,
        pane=str(said.get("pane") or ""),
        program=str(said.get("program") or ""),
        last=str(said.get("lastDelivery") or ""),
        last_at=float(last_at) if isinstance(last_at, int | float) else 0.0,
    )


class Store:
    """The files of one state root's sessions."""

    def __init__(self, root: Path, folder: Path) -> None:
        self._sessions = root / "local" / "sessions"
        self._folder = folder

    def handle(self, ref: str) -> Handle | None:
        """None if there is none that can be used. Raises OSError."""
        try:
            return handle_of(read_json_object(self._handle(ref)))
        except (FileNotFoundError, ValueError):
            return None

    def save(self, handle: Handle) -> None:
        """Raises OSError."""
        self._sessions.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_durably(self._handle(handle.ref), to_json_bytes(handle.to_json()))

    def told(self, ref: str) -> list[dict[str, Any]]:
        """What the session was given so far, oldest first, each once. Raises OSError."""
        try:
            lines = read_regular(self._told(ref)).splitlines()
        except FileNotFoundError:
            return []
        said: dict[str, dict[str, Any]] = {}
        for line in lines:
            try:
                one = json.loads(line)
            except ValueError:
                continue  # a power cut left a part of it
            if isinstance(one, dict):
                said[str(one.get("deliveryId"))] = one
        return list(said.values())

    def tell(self, ref: str, payload: Mapping[str, Any]) -> None:
        """Note that the session was given this. The oldest go once it is over the limit of a thread. Raises OSError."""
        if not payload:
            return
        path = self._told(ref)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        line = to_json_line({name: payload[name] for name in _KEPT if name in payload})
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, line)
            os.fsync(descriptor)
            size = os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)
        if size > 2 * THREAD_LIMIT:
            self._shorten(ref)

    def _shorten(self, ref: str) -> None:
        told, size = self.told(ref), 0
        kept: list[bytes] = []
        omitted = 0
        for one in reversed(told):
            line = to_json_line(one)
            size += len(line)
            if size > THREAD_LIMIT and kept:
                omitted += 1
                continue
            kept.append(line)
        if kept and omitted:
            oldest = json.loads(kept[-1])
            kept[-1] = to_json_line({**oldest, "omitted": int(oldest.get("omitted") or 0) + omitted})
        write_durably(self._told(ref), b"".join(reversed(kept)))

    def keep_text(self, name: str, text: str) -> Path:
        """A file with this text; its path. Raises OSError."""
        path = self._folder / "texts" / f"{name}.txt"
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(path, text.encode(), sync=False)
        return path

    def handles(self) -> list[Handle]:
        """All that can be used, by ref. Raises OSError."""
        found = []
        try:
            names = sorted(self._sessions.glob("*.json"))
        except FileNotFoundError:
            return []
        for path in names:
            with contextlib.suppress(FileNotFoundError, ValueError):
                if (handle := handle_of(read_json_object(path))) is not None:
                    found.append(handle)
        return sorted(found, key=lambda one: one.ref)

    def forget(self, ref: str, *, keeps_told: bool) -> None:
        """Raises OSError."""
        self._handle(ref).unlink(missing_ok=True)
        if not keeps_told:
            self._told(ref).unlink(missing_ok=True)
        for path in (self._folder / "texts").glob(f"{glob.escape(slug(f'{ref}/'))}*.txt"):
            path.unlink(missing_ok=True)

    def _handle(self, ref: str) -> Path:
        return self._sessions / f"{slug(ref)}.json"

    def _told(self, ref: str) -> Path:
        return self._folder / "told" / f"{slug(ref)}.jsonl"
