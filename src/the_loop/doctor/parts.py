"""Examining several things at once, each with a time limit: one that hangs costs nothing but its own answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from the_loop.core.model import explain
from the_loop.findings import Finding, unknown


@dataclass(frozen=True, slots=True)
class Part:
    """`examine` yields what it finds; `name` is for what it cannot find."""

    name: str
    examine: Callable[[], Iterable[Finding]]


@dataclass(slots=True)
class _Running:
    part: Part
    found: list[Finding] = field(default_factory=list)
    thread: threading.Thread | None = None

    def run(self) -> None:
        try:
            for finding in self.part.examine():
                self.found.append(finding)  # counts whatever comes after it
        except Exception as error:  # noqa: BLE001 (the border: a provider may be third-party code)
            self.found.append(unknown(self.part.name, f"cannot be examined: {type(error).__name__}: {explain(error)}"))


def examine_all(parts: Sequence[Part], limit_s: float) -> Iterator[list[Finding]]:
    """What each part finds, in their order, all at once and for `limit_s` seconds at most.

    A thread that does not end in time is left alone, so the caller should end the process without waiting for it.
    """
    until = time.monotonic() + limit_s
    running = [_started(part) for part in parts]
    for one in running:
        if one.thread is not None:
            one.thread.join(max(0.0, until - time.monotonic()))
            if one.thread.is_alive():
                yield [*one.found, unknown(one.part.name, f"no answer within {limit_s:.0f} s")]
                continue
        yield one.found


def _started(part: Part) -> _Running:
    running = _Running(part)
    thread = threading.Thread(target=running.run, daemon=True)
    try:
        thread.start()
    except RuntimeError:  # a limit on processes: one after the other, then
        running.run()
    else:
        running.thread = thread
    return running
