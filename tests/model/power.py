"""A power cut: what was written and not flushed may be lost, and so may names whose folder was not flushed.

    power = Power(folder, at=17)
    with power.recording():
        ...                                   # raises Crash before the 17th change, and before each one after it
    power.boot(choose)                        # the folder as the disk has it; `choose` decides what was lost

Below the folder every change is carried out, and remembered: of a file what it holds and what of that was flushed, of
names the changes that no flush of their folder has made durable. A rename is one change, also between two folders, as
file systems with a journal do it. Which of the changes that are not durable are there after the cut is free, and so is
how far a file is written that was not flushed.
"""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final, Protocol, Self
from unittest import mock

from support.fuse import Crash
from the_loop.runners import keeper as keeper_module

_FOLDER: Final = -1  # instead of a file's number


class Choice(Protocol):
    """What the disk has of what was not flushed."""

    def has(self) -> bool:
        """True if one more change of names is there."""

    def content(self, flushed: bytes, written: bytes, intact: int) -> bytes:
        """What a file holds; its first `intact` bytes were flushed and not written since."""


class Worst:
    """Nothing that was not flushed is there."""

    def has(self) -> bool:
        return False

    def content(self, flushed: bytes, written: bytes, intact: int) -> bytes:
        return flushed


class Best:
    """All of it is there."""

    def has(self) -> bool:
        return True

    def content(self, flushed: bytes, written: bytes, intact: int) -> bytes:
        return written


@dataclass
class Some:
    """Some of it, and files that are half written or full of zeros."""

    rng: Random

    def has(self) -> bool:
        return self.rng.random() < 0.5

    def content(self, flushed: bytes, written: bytes, intact: int) -> bytes:
        if flushed == written:
            return written
        torn = written[: self.rng.randrange(intact, len(written) + 1)]
        zeros = written[:intact] + bytes(len(written) - intact)
        return self.rng.choice((flushed, written, torn, zeros))


@dataclass
class _File:
    written: bytes = b""
    flushed: bytes = b""
    intact: int = 0  # so many bytes at the beginning were flushed, and not written since

    def put(self, data: bytes, start: int) -> None:
        self.written = self.written[:start] + data + self.written[start + len(data) :]
        self.intact = min(self.intact, start)

    def cut(self, length: int) -> None:
        self.written = self.written[:length]
        self.intact = min(self.intact, length)

    def flush(self) -> None:
        self.flushed, self.intact = self.written, len(self.written)


@dataclass
class _Change:
    """Names that are given (to a file, by its number) or taken away (None), all at once."""

    names: dict[Path, int | None]

    @property
    def folders(self) -> set[Path]:
        return {name.parent for name in self.names}


@dataclass
class Power:
    folder: Path
    at: int = 0  # 0: no cut
    changes: list[str] = field(default_factory=list)
    is_off: bool = False
    _files: dict[int, _File] = field(default_factory=dict)
    _names: dict[Path, int] = field(default_factory=dict)  # as they are now
    _durable: dict[Path, int] = field(default_factory=dict)
    _open_changes: list[_Change] = field(default_factory=list)  # of names, not durable
    _descriptors: dict[int, tuple[Path, int]] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    @contextmanager
    def recording(self) -> Iterator[None]:
        calls: dict[str, Callable[..., Any]] = {
            "open": self._open,
            "close": self._close,
            "write": self._write,
            "pwrite": self._pwrite,
            "ftruncate": self._ftruncate,
            "fsync": self._fsync,
            "rename": self._rename,
            "unlink": self._unlink,
            "link": self._link,
            "mkdir": self._mkdir,
        }
        with ExitStack() as stack:
            for name, call in calls.items():
                stack.enter_context(mock.patch.object(os, name, _over(call, getattr(os, name))))
            opened = _over(self._keeper_open, open)
            stack.enter_context(mock.patch.object(keeper_module, "open", opened, create=True))
            yield

    def boot(self, choice: Choice) -> None:
        """Put on the disk what is there after the cut; from now on there is power."""
        names = dict(self._durable)
        for change in self._open_changes:
            if choice.has():
                _apply(change, names)
        for path in self.folder.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        self._descriptors.clear()
        self._open_changes.clear()
        self._names = {}
        for path, number in sorted(names.items()):
            if path.parent != self.folder and self._names.get(path.parent) != _FOLDER:
                continue  # its folder is not there
            self._names[path] = number
            if number == _FOLDER:
                path.mkdir(mode=0o700)
                continue
            file = self._files[number]
            file.written = choice.content(file.flushed, file.written, file.intact)
            file.flush()
            path.write_bytes(file.written)
            path.chmod(0o600)
        self._durable = dict(self._names)
        self.is_off, self.at = False, 0

    # --- changes ---

    def _step(self, what: str, path: Path) -> None:
        if self.is_off:
            raise Crash
        self.changes.append(f"{what} {path.name}")
        if len(self.changes) == self.at:
            self.is_off = True
            raise Crash

    def _rename_names(self, names: dict[Path, int | None]) -> None:
        change = _Change(names)
        self._open_changes.append(change)
        _apply(change, self._names)

    def _is_ours(self, path: Any) -> bool:
        return isinstance(path, (str, os.PathLike)) and Path(path).is_relative_to(self.folder)

    # --- the calls; `call` is the real one ---

    def _open(self, call: Callable[..., int], path: Any, flags: int, *more: Any, **options: Any) -> int:
        if not self._is_ours(path):
            return call(path, flags, *more, **options)
        name = Path(path)
        number = self._names.get(name)
        is_new = number is None and flags & os.O_CREAT
        if is_new or (flags & os.O_TRUNC and number is not None and self._files[number].written):
            self._step("create" if is_new else "truncate", name)
        descriptor = call(path, flags, *more, **options)
        if is_new:
            number = next(self._numbers)
            self._files[number] = _File()
            self._rename_names({name: number})
        elif flags & os.O_TRUNC and number is not None:
            self._files[number].cut(0)
        self._descriptors[descriptor] = (name, _FOLDER if number is None else number)
        return descriptor

    def _close(self, call: Callable[..., None], descriptor: int) -> None:
        self._descriptors.pop(descriptor, None)
        call(descriptor)

    def _write(self, call: Callable[..., int], descriptor: int, data: Any) -> int:
        if descriptor not in self._descriptors:
            return call(descriptor, data)
        self._put(descriptor, bytes(data))
        return call(descriptor, data)

    def _put(self, descriptor: int, data: bytes, at: int | None = None) -> None:
        name, number = self._descriptors[descriptor]
        self._step("write", name)
        file = self._files[number]
        file.put(data, len(file.written) if at is None else at)

    def _pwrite(self, call: Callable[..., int], descriptor: int, data: Any, at: int) -> int:
        self._put(descriptor, bytes(data), at)
        return call(descriptor, data, at)

    def _ftruncate(self, call: Callable[..., None], descriptor: int, length: int) -> None:
        name, number = self._descriptors[descriptor]
        self._step("truncate", name)
        self._files[number].cut(length)
        call(descriptor, length)

    def _fsync(self, call: Callable[..., None], descriptor: int) -> None:
        if descriptor not in self._descriptors:
            call(descriptor)
            return
        name, number = self._descriptors[descriptor]
        self._step("flush", name)
        if number != _FOLDER:
            self._files[number].flush()
            return
        left = []
        for change in self._open_changes:
            if name in change.folders:
                _apply(change, self._durable)
            else:
                left.append(change)
        self._open_changes = left

    def _rename(self, call: Callable[..., None], source: Any, target: Any) -> None:
        before, after = Path(source), Path(target)
        if self._is_ours(source) and before in self._names:
            self._step("rename", after)
            self._rename_names({after: self._names[before], before: None})
        call(source, target)

    def _unlink(self, call: Callable[..., None], path: Any, **options: Any) -> None:
        name = Path(path)
        if self._is_ours(path) and name in self._names:
            self._step("remove", name)
            self._rename_names({name: None})
        call(path, **options)

    def _link(self, call: Callable[..., None], source: Any, target: Any, **options: Any) -> None:
        call(source, target, **options)
        self._step("link", Path(target))
        self._rename_names({Path(target): self._names[Path(source)]})

    def _mkdir(self, call: Callable[..., None], path: Any, *more: Any, **options: Any) -> None:
        name = Path(path)
        if self._is_ours(path) and name not in self._names:
            self._step("make", name)
            self._rename_names({name: _FOLDER})
        call(path, *more, **options)

    def _keeper_open(self, call: Callable[..., Any], file: Any, *more: Any, **options: Any) -> Any:
        """The keeper writes through a file object."""
        opened = call(file, *more, **options)
        return _Written(self, opened) if isinstance(file, int) and file in self._descriptors else opened


@dataclass
class _Written:
    power: Power
    file: Any

    def write(self, data: bytes) -> None:
        self.power._put(self.file.fileno(), data)
        self.file.write(data)

    def flush(self) -> None:
        self.file.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.power._descriptors.pop(self.file.fileno(), None)
        self.file.close()


def _over(call: Callable[..., Any], real: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *arguments, **options: call(real, *arguments, **options)


def _apply(change: _Change, names: dict[Path, int]) -> None:
    for name, number in change.names.items():
        if number is None:
            names.pop(name, None)
        else:
            names[name] = number
