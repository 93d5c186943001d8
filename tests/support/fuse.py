"""The end of a life at a chosen step: before a request, a file change or a hand-over.

fuse = Fuse(at=7)
with fuse.watching_files():
    ...                      # raises Crash before the seventh step, and before each one after it
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from the_loop import durable


class Crash(BaseException):
    """What SIGKILL is to the code that it hits; no handler of ours takes it for an error."""


@dataclass
class Fuse:
    """Counts requests, file changes and hand-overs, and blows *before* the one with the number `at`.

    What has blown lets nothing through any more. `error`: what the blow looks like; a `CancelledError` is a stop.
    `steps` has the kind of each step that counted, `log` the names of those that were let through.
    """

    at: int | None = None
    error: type[BaseException] = Crash
    kinds: frozenset[str] = frozenset({"request", "change", "hand-over"})
    steps: list[str] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    is_blown: bool = False

    def step(self, kind: str, name: str = "") -> None:
        if self.is_blown:
            raise Crash
        if kind in self.kinds:
            self.steps.append(kind)
            if len(self.steps) == self.at:
                self.is_blown = self.error is Crash
                raise self.error
        self.log.append(name or kind)

    @contextmanager
    def watching_files(self) -> Iterator[None]:
        """Every file that the poller replaces, appends to, moves or removes is a step; an append may end half-way."""
        replace_file, unlink = durable.replace_file, Path.unlink
        rename, link, truncate, pwrite = os.rename, os.link, os.ftruncate, os.pwrite

        def replacing(path: Path, content: bytes, *, sync: bool) -> None:
            self.step("change", f"write {path.name}")
            replace_file(path, content, sync=sync)

        def unlinking(path: Path, missing_ok: bool = False) -> None:
            if path.exists() or path.is_symlink():
                self.step("change", f"remove {path.name}")
            unlink(path, missing_ok=missing_ok)

        def renaming(old: Any, new: Any) -> None:
            if not str(old).endswith(".tmp"):  # else it is a part of a write
                self.step("change", f"move {Path(old).name} to {Path(new).parent.name}/{Path(new).name}")
            rename(old, new)

        def linking(old: Any, new: Any, **options: Any) -> None:
            self.step("change", f"link {Path(new).name}")
            link(old, new, **options)

        def truncating(descriptor: int, length: int) -> None:
            self.step("change", f"cut at {length}")
            truncate(descriptor, length)

        def appending(descriptor: int, content: Any, at: int) -> int:
            self.step("change", f"append at {at}")
            half = len(content) // 2
            pwrite(descriptor, content[:half], at)
            self.step("change", f"append at {at + half}")
            return half + pwrite(descriptor, content[half:], at + half)

        with (
            mock.patch.object(durable, "replace_file", replacing),
            mock.patch.object(Path, "unlink", unlinking),
            mock.patch.object(os, "rename", renaming),
            mock.patch.object(os, "link", linking),
            mock.patch.object(os, "ftruncate", truncating),
            mock.patch.object(os, "pwrite", appending),
        ):
            yield
