"""System calls on files that fail for a while, as on a broken disk or without descriptors.

with failing("lstat", errno.EIO, root.portable):
    ...                                  # each `os.lstat` of that folder, or of what is in it, fails
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock


@contextmanager
def failing(call: str, number: int, place: Path, *, times: int = 1 << 30) -> Iterator[list[str]]:
    """The first `times` calls of `os.<call>` on `place` or below it fail with this errno; their paths so far."""
    real = getattr(os, call)
    failed: list[str] = []

    def guarded(path: Any, *arguments: Any, **options: Any) -> Any:
        if not isinstance(path, int):
            here = Path(os.fsdecode(path))
            if (here == place or place in here.parents) and len(failed) < times:
                failed.append(here.name)
                raise OSError(number, os.strerror(number), str(here))
        return real(path, *arguments, **options)

    with mock.patch.object(os, call, guarded):
        yield failed
