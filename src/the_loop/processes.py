"""Who a process is: `(pid, starttime)` on this boot, and handles that cannot come to mean another one."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Identity:
    """A process: its pid and its start time in clock ticks since boot (field 22 of /proc/<pid>/stat)."""

    pid: int
    starttime: int

    def __str__(self) -> str:
        return f"{self.pid}:{self.starttime}"


def identity_of(pid: int) -> Identity | None:
    """Who `pid` is now; None when it cannot be seen, which is not the same as gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    fields = stat[stat.rindex(b")") + 2 :].split()  # the name may hold blanks and brackets
    return Identity(pid, int(fields[19]))


def own_identity() -> Identity:
    """This process. Falls back to start time 0 where /proc is not mounted."""
    return identity_of(os.getpid()) or Identity(os.getpid(), 0)


def parse_identity(text: str) -> Identity | None:
    """The identity that one line `<pid>:<starttime>` names, or None: garbage, pid 0 and minus one name nobody."""
    pid, colon, starttime = text.strip().partition(":")
    if not (colon and pid.isascii() and pid.isdigit() and starttime.isascii() and starttime.isdigit()):
        return None
    if len(pid) > 10 or len(starttime) > 20 or int(pid) <= 0:
        return None
    return Identity(int(pid), int(starttime))


@contextlib.contextmanager
def pinned(identity: Identity) -> Iterator[int | None]:
    """A pidfd of exactly this process, or None when it is gone (or its number means another one by now)."""
    try:
        descriptor = os.pidfd_open(identity.pid)
    except (OSError, OverflowError):
        yield None
        return
    try:
        yield descriptor if identity_of(identity.pid) == identity else None
    finally:
        os.close(descriptor)


def boot_id() -> str:
    """The kernel's name for this boot; empty where it cannot be read."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return ""
