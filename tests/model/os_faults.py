"""System calls of the core that fail: the `at`-th of a life, once or for a while.

    faults = Faults(root, at=17, error=errno.EIO, times=3)
    with faults.in_force():
        ...
    faults.calls                              # every call by name and file, in order

Counted are the calls below `root`, those on descriptors that were opened there, and those that start or await
processes. Flushes reach no disk: a power cut is the matter of another layer.
"""

from __future__ import annotations

import errno
import fcntl
import io
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self
from unittest import mock

ERRORS: Final = (errno.EIO, errno.EMFILE, errno.ENOMEM, errno.EACCES, errno.EAGAIN)
_BY_PATH: Final = ("open", "stat", "lstat", "scandir", "listdir", "unlink", "rename", "link", "mkdir", "chmod")
_BY_DESCRIPTOR: Final = ("fstat", "fsync", "fchmod", "write", "dup")
_OF_PROCESSES: Final = ("posix_spawn", "waitid", "pidfd_open")


@dataclass
class Faults:
    root: Path
    at: int = 0  # which call fails first; 0: none
    error: int = errno.EIO
    times: int = 1  # how often the same call on the same file fails in a row
    place: str = ""  # instead of `at`: this call on this file, the `nth` time
    nth: int = 1
    calls: list[str] = field(default_factory=list)
    _files: dict[int, str] = field(default_factory=dict)  # by descriptor
    _left: int = 0
    _place: str = ""

    @property
    def has_struck(self) -> bool:
        return bool(self._place)

    @contextmanager
    def in_force(self) -> Iterator[None]:
        with ExitStack() as stack:
            for name in _BY_PATH:
                stack.enter_context(mock.patch.object(os, name, self._by_path(name, getattr(os, name))))
            for name in _BY_DESCRIPTOR:
                stack.enter_context(mock.patch.object(os, name, self._by_descriptor(name, getattr(os, name))))
            for name in _OF_PROCESSES:
                stack.enter_context(mock.patch.object(os, name, self._always(name, getattr(os, name))))
            stack.enter_context(mock.patch.object(fcntl, "flock", self._by_descriptor("flock", fcntl.flock)))
            stack.enter_context(mock.patch.object(os, "fdopen", self._reading(os.fdopen)))
            yield

    def _check(self, call: str, name: str) -> None:
        place = f"{call} {name}"
        self.calls.append(place)
        if len(self.calls) == self.at or (place == self.place and self.calls.count(place) == self.nth):
            self._place, self._left = place, self.times
        if self._left and place == self._place:
            self._left -= 1
            raise OSError(self.error, os.strerror(self.error), name)

    def _by_path(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def checked(path: Any, *arguments: Any, **options: Any) -> Any:
            if not self._is_ours(path):
                return call(path, *arguments, **options)
            self._check(name, Path(path).name)
            result = call(path, *arguments, **options)
            if name == "open":
                self._files[result] = Path(path).name
            return result

        return checked

    def _by_descriptor(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def checked(descriptor: Any, *arguments: Any, **options: Any) -> Any:
            if descriptor in self._files:
                self._check(name, self._files[descriptor])
                if name == "fsync":
                    return None
            return call(descriptor, *arguments, **options)

        return checked

    def _always(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def checked(*arguments: Any, **options: Any) -> Any:
            self._check(name, "")
            return call(*arguments, **options)

        return checked

    def _reading(self, fdopen: Callable[..., Any]) -> Callable[..., Any]:
        def checked(descriptor: int, *arguments: Any, **options: Any) -> Any:
            file = fdopen(descriptor, *arguments, **options)
            return _Read(self, file, self._files[descriptor]) if descriptor in self._files else file

        return checked

    def _is_ours(self, path: Any) -> bool:
        return isinstance(path, (str, os.PathLike)) and str(path).startswith(str(self.root))


@dataclass
class _Read:
    """An open file, each read of which is counted."""

    faults: Faults
    file: io.BufferedReader
    name: str

    def read(self, *arguments: Any) -> bytes:
        self.faults._check("read", self.name)
        return self.file.read(*arguments)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()
