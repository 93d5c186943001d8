"""Identities of processes, `(pid, starttime)` within one boot, and handles that are safe against pid reuse."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
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
    """The identity of the process `pid`; None if it is not visible, which does not mean that it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    fields = stat[stat.rindex(b")") + 2 :].split()  # the name may contain blanks and brackets
    return Identity(pid, int(fields[19]))


@dataclass(frozen=True, slots=True)
class Execution:
    """What a process was executed with. `directory`: its working directory now."""

    argv: tuple[str, ...]
    environ: Mapping[str, str]
    directory: Path


def execution_of(pid: int) -> Execution:
    """How the process `pid` was executed. Raises OSError: it is gone, or another user's."""
    folder = Path(f"/proc/{pid}")
    argv = (folder / "cmdline").read_bytes().split(b"\0")[:-1]
    environ = (os.fsdecode(pair).partition("=")[::2] for pair in (folder / "environ").read_bytes().split(b"\0") if pair)
    return Execution(tuple(map(os.fsdecode, argv)), dict(environ), (folder / "cwd").readlink())


def own_identity() -> Identity:
    """The identity of this process; its start time is 0 if /proc is not mounted."""
    return identity_of(os.getpid()) or Identity(os.getpid(), 0)


def is_main_of_unit(environ: Mapping[str, str]) -> bool:
    """True if a service manager executed this very process, and not one that started it (systemd.exec(5))."""
    return environ.get("SYSTEMD_EXEC_PID") == str(os.getpid())


def parse_identity(text: str) -> Identity | None:
    """The identity in a line `<pid>:<starttime>`; None if malformed, also for pid 0 and negative ones."""
    pid, colon, starttime = text.strip().partition(":")
    if not (colon and pid.isascii() and pid.isdigit() and starttime.isascii() and starttime.isdigit()):
        return None
    if len(pid) > 10 or len(starttime) > 20 or int(pid) <= 0:
        return None
    return Identity(int(pid), int(starttime))


@contextlib.contextmanager
def pinned(identity: Identity) -> Iterator[int | None]:
    """A pidfd of exactly this process; None if it is gone or its pid was reused."""
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
    """The kernel's id of this boot; "" if it cannot be read."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return ""


def control_group(pid: int | str) -> str:
    """The path of the process's control group, as the manager made it; "" if it is in none, or gone. Raises OSError."""
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text("utf-8", "surrogateescape").splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    paths = [line.partition("::")[2] for line in lines if line.startswith("0::")]
    paths += [line.partition(":name=systemd:")[2] for line in lines if ":name=systemd:" in line]
    return next((path for path in paths if path.strip("/")), "")
