"""A stub `systemctl`, first on PATH: it writes down how it was called and plays scripts. The locks around it are real.

ctl = Ctl(tmp_path, monkeypatch)
ctl.is_("active", "running", holder.pid)     # what `show` tells
ctl.on("stop", REFUSED)                      # what happens when a stop is asked for
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import TYPE_CHECKING, Final

from support.locks import HOLDER
from support.processes import python
from the_loop.state import StateRoot
from the_loop.supervision import stopping, unit
from the_loop.supervision.unit import Unit

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import pytest

    from support.processes import Child

SYSTEM: Final = Unit("the-loop-poll.service", "system")
MINE: Final = Unit("the-loop-poll.service", "user", os.geteuid())
REFUSED: Final = "echo 'Failed to stop the-loop-poll.service: Interactive authentication required.' >&2; exit 1"
CANCELED: Final = "echo 'Job for the-loop-poll.service canceled.' >&2; exit 1"
NO_BUS: Final = "echo 'Failed to connect to bus: No such file or directory' >&2; exit 1"
HANGS: Final = "exec sleep 60"

_VERBS: Final = ("show", "stop", "restart", "is-active", "list-units")
_STUB: Final = """#!/bin/sh
folder='{folder}'
for word in "$@"; do
    case $word in {verbs}) verb=$word; break;; esac
done
{python} -IS "$folder/record.py" "$folder/calls" "$@"
[ ! -e "$folder/$verb" ] || . "$folder/$verb"
"""
_RECORD: Final = """
import json, os, sys
call = {"argv": sys.argv[2:], "env": dict(os.environ), "stdin": os.readlink("/proc/self/fd/0")}
with open(sys.argv[1], "a") as file:
    file.write(json.dumps(call) + chr(10))
"""


@dataclass(frozen=True)
class Call:
    """One call of the stub."""

    argv: list[str]
    env: dict[str, str]
    stdin: str

    @property
    def verb(self) -> str:
        return next(word for word in self.argv if word in _VERBS)


class Ctl:
    """The stub's answers and what it was asked. A unit is inactive until it is said otherwise.

    No unit of this machine's own takes part, and a stop does not wait long for somebody to start the poller again.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder / "ctl"
        self._monkeypatch = monkeypatch
        bin_ = self.folder / "bin"
        bin_.mkdir(parents=True)
        stub = bin_ / "systemctl"
        stub.write_text(_STUB.format(folder=self.folder, python=sys.executable, verbs="|".join(_VERBS)))
        stub.chmod(0o755)
        (self.folder / "record.py").write_text(_RECORD)
        monkeypatch.setenv("PATH", f"{bin_}:{os.environ['PATH']}")
        monkeypatch.setattr(stopping, "_STAYS_FREE_S", 0.1)
        self.lists()
        self.is_("inactive")

    def on(self, verb: str, script: str) -> None:
        """What the stub does when asked that."""
        beside = self.folder / f"{verb}.new"
        beside.write_text(f"{script}\n")
        beside.rename(self.folder / verb)

    def is_(
        self,
        active: str,
        sub: str = "dead",
        main_pid: int = 0,
        environment: str = "",
        invocation: str = "",
        *,
        user: str = str(os.geteuid()),
        command: str = "/usr/bin/the-loop poll start --wait",
    ) -> None:
        """What `show` tells of every unit."""
        values = {"ActiveState": active, "SubState": sub, "MainPID": main_pid, "Environment": environment}
        values |= {"InvocationID": invocation, "User": user}
        values["ExecStart"] = f"{{ path=x ; argv[]={command} ; ignore_errors=no ; pid=0 ; code=(null) ; status=0/0 }}"
        (self.folder / "state").write_text("".join(f"{name}={value}\n" for name, value in values.items()))
        self.on("show", 'cat "$folder/state"')

    def lists(self, *units: Unit, unknown: Sequence[str] = ()) -> None:
        """The units of ours that all managers have loaded and active, and why some could not be asked."""

        def listed(pattern: str, *_: object) -> tuple[list[Unit], list[str]]:
            return [one for one in units if fnmatch(one.name, pattern)], list(unknown)

        self._monkeypatch.setattr(unit, "_listed", listed)

    def belongs(self, theirs: Unit | None, *, us: Unit | None = None) -> None:
        """Have every process but this one belong to that unit; this one belongs to `us`."""
        self._monkeypatch.setattr(stopping, "unit_of", lambda pid: us if pid == "self" else theirs)

    def calls(self, verb: str = "") -> list[Call]:
        try:
            lines = (self.folder / "calls").read_text().splitlines()
        except FileNotFoundError:
            return []
        found = [Call(**json.loads(line)) for line in lines]
        return [call for call in found if verb in ("", call.verb)]

    @staticmethod
    def turns(active: str, pid: int = 0) -> str:
        """For a script: end that process, if any; from now on the unit is in that state."""
        kill = f"kill -KILL {pid}; " if pid else ""
        text = f"ActiveState={active}\\nSubState=x\\nMainPID=0\\n"
        return f'{kill}printf "{text}" >"$folder/state.new"; mv "$folder/state.new" "$folder/state"'


def record(root: StateRoot, name: str = SYSTEM.name, invocation: str = "f" * 32) -> None:
    """Write down which unit of the system ran the last poller."""
    value = {"schema": 1, "name": name, "scope": "system", "uid": 0, "invocationId": invocation}
    (root.path / "local" / "unit.json").write_text(json.dumps(value))


@contextmanager
def holding(root: StateRoot) -> Iterator[Child]:
    """A process that holds the lock until it is ended."""
    with python(HOLDER, root.path) as child:
        child.line()
        yield child
