"""The state root: whose it is, who may read it, what it lies on, and whether it can be locked. Nothing is written."""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from the_loop.core.model import LoopError, explain
from the_loop.findings import Finding, fail, ok, unknown, warn
from the_loop.lock import Probe, look
from the_loop.state import OWN_NAMES, PIDFILE, StateRoot

_IN_MEMORY: Final = frozenset({"tmpfs", "ramfs"})
_REMOTE: Final = frozenset({"nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "fuse.sshfs", "afs", "lustre", "glusterfs"})
_LITTLE: Final = {"fail": (16 << 20, 100), "warn": (256 << 20, 1000)}  # bytes and inodes
_SHOWN: Final = 3  # files in one line
_LOOKED_AT: Final = 20_000  # files of a root; the rest is as they are


@dataclass(frozen=True, slots=True)
class Room:
    """What is free for us on a file system; None: it has no such limit."""

    free_bytes: int
    free_inodes: int | None


def examine_root(root: StateRoot, user: str) -> Iterator[Finding]:
    """All there is to find about it, as its user."""
    place = root.path
    try:
        place.lstat()
    except FileNotFoundError:
        yield _to_be_made(place, user)
        place = next(parent for parent in place.parents if os.path.lexists(parent))
    except OSError as error:
        yield unknown("state root", f"'{place}': {explain(error)}", f"ls -ld {shlex.quote(str(place.parent))}")
        return
    else:
        yield of_owner(root, user)
        yield from _modes(root)
        yield from _lock(root)
    yield from _file_system(place)


def _to_be_made(path: Path, user: str) -> Finding:
    above = next(parent for parent in path.parents if os.path.lexists(parent))
    if os.access(above, os.W_OK | os.X_OK):
        return ok("state root", f"'{path}' does not exist yet, a start makes it")
    place = shlex.quote(str(path))
    make = f"sudo install -d -m 0700 -o {user} {place}"
    return fail("state root", f"'{path}' does not exist, and '{user}' cannot make it in '{above}'", make)


def of_owner(root: StateRoot, user: str) -> Finding:
    try:
        root.check_owner()
        found = root.path.stat()
        mode = stat.S_IMODE(found.st_mode)
    except (LoopError, OSError) as error:
        problem = str(error) if isinstance(error, LoopError) else f"'{root.path}': {explain(error)}"
        return fail("state root", problem, f"ls -la {shlex.quote(str(root.path))}")
    if mode & 0o700 != 0o700:
        return fail("state root", f"its mode is {mode:04o}", f"chmod 700 {shlex.quote(str(root.path))}")
    if mode != 0o700:
        detail = f"'{root.path}' has mode {mode:04o}, a start makes it 0700"
        return warn("state root", detail, f"chmod 700 {shlex.quote(str(root.path))}")
    return ok("state root", f"'{root.path}', of {user}, mode 0700")


def _modes(root: StateRoot) -> Iterator[Finding]:
    """What is ours in it: readable by nobody else, and written by nobody else."""
    open_ones, foreign, looked_at = [], [], 0
    unread: list[OSError] = []
    for path in _ours(root, unread):
        looked_at += 1
        try:
            found = path.lstat()
        except FileNotFoundError:
            continue
        if found.st_uid != os.geteuid():
            foreign.append(path)
        elif stat.S_IMODE(found.st_mode) & 0o077 and not stat.S_ISLNK(found.st_mode):
            open_ones.append(path)
    name = "files of the state root"
    whole = shlex.quote(str(root.path))
    if foreign:
        who = f"{os.geteuid()}:{os.getegid()}"
        own = " ".join(shlex.quote(str(root.path / one)) for one in sorted(_tops(root, foreign)))
        yield fail(name, f"belong to others: {_some(foreign)}", f"sudo chown -R {who} {own}")
    if open_ones:
        tops = " ".join(shlex.quote(str(root.path / one)) for one in sorted(_tops(root, open_ones)))
        yield fail(name, f"others may use: {_some(open_ones)}", f"chmod -R go= {tops}")
    if unread:
        yield unknown(name, f"cannot look into '{unread[0].filename}': {explain(unread[0])}", f"ls -la {whole}")
    if not (foreign or open_ones or unread):
        yield ok(name, f"for their owner only ({looked_at} looked at)")


def _ours(root: StateRoot, unread: list[OSError]) -> Iterator[Path]:
    """At most so many files and directories of ours."""
    left = _LOOKED_AT
    for top in sorted(OWN_NAMES):
        path = root.path / top
        if not os.path.lexists(path):
            continue
        yield path
        for folder, folders, files in os.walk(path, onerror=unread.append) if path.is_dir() else ():
            for name in (*folders, *files):
                left -= 1
                if left < 0:
                    return
                yield Path(folder, name)


def _tops(root: StateRoot, paths: list[Path]) -> set[str]:
    return {path.relative_to(root.path).parts[0] for path in paths}


def _some(paths: list[Path]) -> str:
    more = f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else ""
    return ", ".join(f"'{path}'" for path in paths[:_SHOWN]) + more


def _lock(root: StateRoot) -> Iterator[Finding]:
    """Whether locks work there: probing takes a shared one for a moment, which keeps no start out."""
    sight = look(root.path, PIDFILE)
    if os.path.lexists(root.pidfile) and not stat.S_ISREG(root.pidfile.lstat().st_mode):
        yield fail("lock", f"'{root.pidfile}' is not a regular file", f"ls -l {shlex.quote(str(root.pidfile))}")
    elif sight.probe is Probe.UNKNOWN:
        yield fail("lock", sight.cause, f"lslocks | grep {shlex.quote(str(root.path))}")
    elif os.access(root.path, os.W_OK):
        yield ok("lock", "works there" if sight.probe is Probe.FREE else "works there, and is held")


def _file_system(place: Path) -> Iterator[Finding]:
    kind = kind_of(place)
    yield of_kind(kind, place)
    try:
        found = os.statvfs(place)
    except OSError as error:
        yield unknown("space", f"'{place}': {explain(error)}")
        return
    if found.f_flag & os.ST_RDONLY:
        yield fail("file system", f"'{place}' is mounted read-only", f"findmnt -T {shlex.quote(str(place))}")
    inodes = found.f_favail if found.f_files else None  # some file systems have no limit
    yield of_room(Room(found.f_bavail * found.f_frsize, inodes), place)


def kind_of(place: Path) -> str:
    """The type of the file system that a path is on; "" if that cannot be found out."""
    try:
        descriptor = os.open(place, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        info = Path(f"/proc/self/fdinfo/{descriptor}").read_text("ascii")
        mount = info.partition("mnt_id:")[2].split()[0]
        table = Path("/proc/self/mountinfo").read_text("utf-8", "replace").splitlines()
    except (OSError, LookupError, ValueError):
        return ""
    finally:
        os.close(descriptor)
    row = next((row for row in table if row.startswith(f"{mount} ")), "")
    return row.partition(" - ")[2].partition(" ")[0]


def of_kind(kind: str, place: Path) -> Finding:
    """Whether state is safe on a file system of this type."""
    which = f"findmnt -T {shlex.quote(str(place))}"
    if not kind:
        return unknown("file system", f"the type of the one of '{place}' cannot be found out", matters=False)
    if kind in _IN_MEMORY:
        detail = f"'{place}' is on {kind}, in memory: everything is delivered again after a reboot; use a disk"
        return fail("file system", detail, which)
    if kind in _REMOTE:
        detail = f"'{place}' is on {kind}, over the network, where a directory cannot be locked; use a local disk"
        return fail("file system", detail, which)
    if kind == "overlay":
        detail = f"'{place}' is on overlay: if this is a container, its state goes with it; use a volume"
        return warn("file system", detail)
    return ok("file system", kind)


def of_room(room: Room, place: Path) -> Finding:
    mib = room.free_bytes >> 20
    files = "" if room.free_inodes is None else f", {room.free_inodes} files"
    detail = f"{mib} MiB{files} free for '{place}'"
    for level, finding in (("fail", fail), ("warn", warn)):
        least_bytes, least_inodes = _LITTLE[level]
        if room.free_bytes < least_bytes or (room.free_inodes is not None and room.free_inodes < least_inodes):
            which = "df -h" if room.free_bytes < least_bytes else "df -i"
            return finding("space", f"only {detail}", f"{which} {shlex.quote(str(place))}")
    return ok("space", detail)
