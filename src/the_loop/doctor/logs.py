"""Where the events of this poller can be read back: the journal, or the log file in its place."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from the_loop.core.model import explain
from the_loop.findings import Finding, ok, unknown, warn
from the_loop.state import StateRoot
from the_loop.supervision.journal import open_reader

_KEPT: Final = Path("/var/log/journal")
_VOLATILE: Final = Path("/run/log/journal")
_KEEP: Final = "sudo mkdir -p /var/log/journal && sudo systemctl restart systemd-journald"


@dataclass(frozen=True, slots=True)
class Seen:
    """What can be read: events of the root in the journal, and its log file. A text says why one cannot be."""

    in_journal: bool | str
    in_log: bool | str
    is_kept: bool | None  # the journal, over a reboot; None: there is no journal


def examine_logs(root: StateRoot, user: str, *, is_unit: bool, is_running: bool) -> Iterator[Finding]:
    seen = Seen(_journal(root), _readable(root.logs / "events.jsonl"), _is_kept())
    yield of_logs(seen, root, user, is_unit=is_unit, is_running=is_running)


def of_logs(seen: Seen, root: StateRoot, user: str, *, is_unit: bool, is_running: bool) -> Finding:
    """`is_unit`: the poller writes to the journal, and to the log file while it cannot read that back."""
    log = root.logs / "events.jsonl"
    if isinstance(seen.in_log, str):
        return unknown("event log", f"cannot read '{log}': {seen.in_log}", f"ls -l {shlex.quote(str(log))}")
    if seen.in_log:
        return ok("event log", f"in '{log}'")
    if not is_unit:
        return ok("event log", f"none yet, a start writes '{log}'")
    if seen.in_journal is not True and is_running:
        cause = f": {seen.in_journal}" if isinstance(seen.in_journal, str) else ""
        join = f"sudo usermod -aG systemd-journal {user}"
        return unknown(
            "event log", f"'{user}' finds no event of this poller in the journal{cause}", join, matters=False
        )
    if seen.is_kept is False:
        return warn("event log", "in the journal, which is lost at a reboot", _KEEP)
    return ok("event log", "in the journal")


def _journal(root: StateRoot) -> bool | str:
    try:
        with open_reader(root.path) as reader:
            return bool(reader.get_next())
    except OSError as error:
        return explain(error)


def _readable(path: Path) -> bool | str:
    try:
        path.lstat()
    except FileNotFoundError:
        return False
    except OSError as error:
        return explain(error)
    return os.access(path, os.R_OK) or "permission denied"


def _is_kept() -> bool | None:
    if _KEPT.is_dir():
        return True
    return False if _VOLATILE.is_dir() else None
