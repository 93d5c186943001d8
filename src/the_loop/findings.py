"""What `the-loop doctor` finds, one value for each thing that must hold, and what a provider gets to examine its own.

A provider of sources or runners may have a function `examine(section, site)` beside `check` and `build`. It yields
findings as it comes to them and blocks as it likes: it runs in a thread of its own that is given up after `limit_s`
seconds, and what was found by then counts. It changes nothing, neither here nor on the other side.

Provisional until 1.0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any


class State(StrEnum):
    """How a thing is. `UNKNOWN`: it could not be found out, which is neither good nor bad."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that must hold. `command`: what to type if it does not, "" if that is no command.

    `matters`: False for a thing that is unknown and that no delivery depends on.
    """

    name: str
    state: State
    detail: str
    command: str = ""
    matters: bool = True

    @property
    def is_good(self) -> bool:
        """True if nothing has to be done: a warning is good, as the poller works with it."""
        return self.state in (State.OK, State.WARN) or (self.state is State.UNKNOWN and not self.matters)


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Where a section is examined: as the poller's user, with what the poller has, not what the caller's shell has."""

    root: Path  # the state root
    environ: Mapping[str, str]  # the poller's, or what its unit would give it
    shell: Mapping[str, str]  # the caller's: to tell what is set there only
    user: str  # the poller's
    limit_s: float  # for all of it
    hides: Callable[[Path], bool] = lambda _path: False  # True for a path that the poller's unit does not see
    config: Path | None = None  # the configuration in force; None for the built-in default
    edit: str = ""  # the command that changes the environment of the poller's unit; "" without one
    name: str = ""  # of the source
    authorized: frozenset[str] = frozenset()  # its users, as configured
    is_written_to: bool = False  # `polling.reportGiveUps`
    cursor: Mapping[str, Any] | None = None  # the stored one


def ok(name: str, detail: str) -> Finding:
    return Finding(name, State.OK, detail)


def warn(name: str, detail: str, command: str = "") -> Finding:
    return Finding(name, State.WARN, detail, command)


def fail(name: str, detail: str, command: str = "") -> Finding:
    return Finding(name, State.FAIL, detail, command)


def unknown(name: str, detail: str, command: str = "", *, matters: bool = True) -> Finding:
    return Finding(name, State.UNKNOWN, detail, command, matters)
