"""A third party's source, installed as its users would, keeps what is asked of every source."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any, ClassVar

import pytest

from contract.source_suite import NAME, Bench, Reader, SourceSuite, departed, in_place, listed
from support.example_plugin import importable
from support.poller import ME
from the_loop.core.model import timestamp

_plugin = pytest.fixture(scope="module", autouse=True)(importable)

NOON = 1_700_000_000


class Items(Bench):
    provider = "jsonl"
    author = ME
    breaks = ("missing", "a file", "not mounted")
    endings: ClassVar = ("closed", "removed")

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.items = folder / "items"
        self.items.mkdir()
        self._broken: Path | None = None
        self._count = 0

    def section(self, name: str) -> dict[str, Any]:
        return {"path": str(self.items)}

    def add_item(self, part: int = 0) -> str:
        ref = f"jsonl:{NAME}/item-{self._count}"
        self._append(ref, {"title": "A title", "text": "please"})
        return ref

    def write(self, ref: str, text: str) -> str:
        return f"comment:{self._append(ref, {'text': text})}"

    def end(self, ref: str, how: str) -> None:
        if how == "closed":
            self._append(ref, {"closed": "done"})
        else:
            self._file(ref).unlink()

    def lose(self, ref: str) -> None:
        self.break_all("not mounted")

    def break_all(self, how: str) -> None:
        self.items.rename(self.folder / "aside")
        if how == "a file":
            self.items.write_text("")
        elif how == "not mounted":
            self.items.mkdir()

    def break_part(self, ref: str) -> None:
        self._broken = self._file(ref)
        self._broken.rename(self.folder / "whole")
        self._broken.mkdir()

    def mend(self) -> None:
        if self._broken is not None:
            self._broken.rmdir()
            (self.folder / "whole").rename(self._broken)
        if (self.folder / "aside").exists():
            if self.items.is_file():
                self.items.unlink()
            (self.folder / "aside").replace(self.items)

    def pass_time(self) -> None:
        """It needs none."""

    def close(self) -> None:
        """Nothing is open."""

    def _file(self, ref: str) -> Path:
        return self.items / f"{ref.partition('/')[2]}.jsonl"

    def _append(self, ref: str, line: dict[str, str]) -> str:
        """The id of the line's entry: its number, and a part of its hash."""
        self._count += 1
        file = self._file(ref)
        text = json.dumps({"at": timestamp(NOON + self._count), **line})
        with file.open("a") as opened:
            opened.write(f"{text}\n")
        file.chmod(0o644)
        return f"{len(file.read_text().splitlines())}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


class TestJsonl(SourceSuite):
    bench_type = Items

    @in_place
    async def test_item_that_another_folder_lacks_has_not_ended_by_that(self, bench: Bench) -> None:
        assert isinstance(bench, Items)
        reader = Reader(bench)
        await reader.poll()
        bench.break_all("not mounted")
        shutil.copy(bench.folder / "aside" / "item-1.jsonl", bench.items)

        listing = await reader.poll()

        assert (set(listed(listing)), departed(listing)) == ({self.two}, set())
