"""The source `directory` keeps what is asked of every source."""

from __future__ import annotations

import errno
import os
import shutil
import time
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

from contract.source_suite import NAME, Bench, SourceSuite
from support.poller import ME

SETTLE_S = 0.02  # a poll waits that long for what is new, and so has a place where it can be cancelled


class Inbox(Bench):
    provider = "directory"
    author = ME
    breaks = ("missing", "a file", "not mounted")
    endings: ClassVar = ("removed",)

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.inbox = folder / "inbox"
        self.inbox.mkdir()
        self._patch: Any = None
        self._count = 0

    def section(self, name: str) -> dict[str, Any]:
        return {"path": str(self.inbox), "settle_seconds": SETTLE_S}

    def add_item(self, part: int = 0) -> str:
        self._count += 1
        folder = self.inbox / f"item {self._count}"
        folder.mkdir(mode=0o755)
        self._put(folder / "item.md", "please")
        return f"directory:{NAME}/{folder.name}"

    def write(self, ref: str, text: str) -> str:
        self._count += 1
        name = f"{self._count:03}.md"
        self._put(self._folder(ref) / name, text)
        return f"comment:{name}"

    def end(self, ref: str, how: str) -> None:
        shutil.rmtree(self._folder(ref))

    def lose(self, ref: str) -> None:
        self.break_all("not mounted")

    def break_all(self, how: str) -> None:
        self.inbox.rename(self.folder / "aside")
        if how == "a file":
            self.inbox.write_text("")
        elif how == "not mounted":
            self.inbox.mkdir()

    def break_part(self, ref: str) -> None:
        scandir, broken = os.scandir, os.fsencode(self._folder(ref))

        def failing(path: bytes) -> Any:
            if path == broken:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return scandir(path)

        self._patch = mock.patch.object(os, "scandir", failing)  # root can read whatever its mode
        self._patch.start()

    def mend(self) -> None:
        if self._patch is not None:
            self._patch.stop()
            self._patch = None
        if (self.folder / "aside").exists():
            if self.inbox.is_file():
                self.inbox.unlink()
            (self.folder / "aside").replace(self.inbox)

    def pass_time(self) -> None:
        until = time.time() + 2 * SETTLE_S
        while time.time() < until:
            time.sleep(SETTLE_S)

    def close(self) -> None:
        self.mend()

    def _folder(self, ref: str) -> Path:
        return self.inbox / ref.partition("/")[2]

    def _put(self, path: Path, text: str) -> None:
        beside = path.with_name(f".{path.name}")
        beside.write_text(text)
        beside.chmod(0o644)
        beside.rename(path)


class TestDirectory(SourceSuite):
    bench_type = Inbox
