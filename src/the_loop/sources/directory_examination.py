"""What must hold for a directory of items: it is there and can be read, and authorised users alone can write in it.

The rule of authors, contract R9: a file counts as its owner's if nobody else could have written it, and its folder is
an authorised user's that nobody else may write.
"""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from the_loop.core.model import explain
from the_loop.findings import Finding, Site, fail, ok, warn
from the_loop.sources.ignored import Ignored
from the_loop.sources.textfiles import Owners

if TYPE_CHECKING:
    from collections.abc import Mapping

_LOOKED_AT: Final = 5000  # files
_SHOWN: Final = 3
_OTHERS_WRITE: Final = 0o022


@dataclass(slots=True)
class Authors:
    """Folders and files whose author does not count, by reason. The paths of each are in the order met."""

    count: int = 0  # items looked at
    writable: list[Path] = field(default_factory=list)  # by group or others
    linked: list[Path] = field(default_factory=list)  # files with another name somewhere, under which others may write
    foreign: dict[str, list[Path]] = field(default_factory=dict)  # by their owner, who is not authorised
    unread: dict[str, Path] = field(default_factory=dict)  # by the cause


def examine_directory(path: Path, ignored: Ignored, site: Site) -> Iterator[Finding]:
    if site.hides(path):
        detail = f"the service does not see '{path}'; add `BindPaths={path}`"
        yield fail("directory", detail, site.edit)
        return
    try:
        found = path.stat()
    except FileNotFoundError:
        yield _missing(path, site)
        return
    except OSError as error:
        yield fail("directory", f"'{path}': {explain(error)}", f"namei -l {shlex.quote(str(path))}")
        return
    yield of_directory(path, found, _last_seen(site.cursor))
    if stat.S_ISDIR(found.st_mode):
        yield from of_authors(_authors(path, site.authorized, ignored))
        yield from of_umask(_umask(), site)


def _missing(path: Path, site: Site) -> Finding:
    make = f"install -d -m 0700 {shlex.quote(str(path))}"
    if path.is_relative_to(site.root):
        return ok("directory", f"'{path}' does not exist yet, a start makes it")
    if mount := unmounted(path):
        return fail("directory", f"'{path}' does not exist, and '{mount}' is not mounted", f"sudo mount {mount}")
    return fail("directory", f"'{path}' does not exist", make)


def of_directory(path: Path, found: os.stat_result, last_seen: str) -> Finding:
    """The directory itself. `last_seen`: device and inode that the poller read last, "" if none."""
    where = shlex.quote(str(path))
    if not stat.S_ISDIR(found.st_mode):
        return fail("directory", f"'{path}' is not a directory", f"ls -ld {where}")
    if mount := unmounted(path):
        return fail("directory", f"'{mount}' is not mounted", f"sudo mount {shlex.quote(mount)}")
    if last_seen and last_seen != f"{found.st_dev}:{found.st_ino}":
        detail = f"'{path}' is another directory than the poller read last; is its device mounted?"
        return warn("directory", detail, f"findmnt -T {where}")
    if not os.access(path, os.R_OK | os.X_OK):
        return fail("directory", f"'{path}' cannot be read by the poller", f"namei -l {where}")
    return ok("directory", f"'{path}' can be read")


def unmounted(path: Path) -> str:
    """The mount point above or at `path` that is in /etc/fstab and not mounted; "" if there is none, or who knows."""
    try:
        wanted = [line.split()[1] for line in _lines(Path("/etc/fstab")) if _is_mount(line)]
        mounted = {line.split()[4] for line in _lines(Path("/proc/self/mountinfo"))}
    except (OSError, IndexError):
        return ""
    return next((point for point in wanted if point != "/" and point not in mounted and path.is_relative_to(point)), "")


def _lines(path: Path) -> list[str]:
    return path.read_text("utf-8", "replace").splitlines()


def _is_mount(line: str) -> bool:
    return len(line.split()) > 1 and line.split()[1].startswith("/")


def _last_seen(cursor: Mapping[str, object] | None) -> str:
    seen = (cursor or {}).get("inbox")
    return seen if isinstance(seen, str) else ""


def _authors(path: Path, authorized: frozenset[str], ignored: Ignored) -> Authors:
    authors, owners, left = Authors(), Owners(authorized), _LOOKED_AT
    for folder in _entries(path, authors):
        if not folder.is_dir(follow_symlinks=False) or ignored.folder(os.fsencode(folder.name)):
            continue
        authors.count += 1
        _judge(authors, folder, owners, authorized)
        for file in _entries(Path(folder.path), authors):
            left -= 1
            is_ignored = ignored.file(os.fsencode(folder.name), os.fsencode(file.name))
            if file.is_file(follow_symlinks=False) and not is_ignored:
                _judge(authors, file, owners, authorized)
        if left < 0:
            break
    return authors


def _entries(path: Path, authors: Authors) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            yield from sorted(entries, key=lambda entry: entry.name)
    except FileNotFoundError:
        return
    except OSError as error:
        authors.unread.setdefault(explain(error), path)


def _judge(authors: Authors, entry: os.DirEntry[str], owners: Owners, authorized: frozenset[str]) -> None:
    try:
        found = entry.stat(follow_symlinks=False)
    except OSError:
        return
    owner = owners.name(found.st_uid) or f"uid {found.st_uid}"
    if found.st_mode & _OTHERS_WRITE:
        authors.writable.append(Path(entry.path))
    elif found.st_nlink > 1 and stat.S_ISREG(found.st_mode):
        authors.linked.append(Path(entry.path))
    elif owner not in authorized:
        authors.foreign.setdefault(owner, []).append(Path(entry.path))


def of_authors(authors: Authors) -> Iterator[Finding]:
    name = "authors"
    if authors.writable:
        detail = f"others can write {_some(authors.writable)}, so their author is unknown and they do not count"
        paths = " ".join(shlex.quote(str(path)) for path in authors.writable[: 2 * _SHOWN])
        rest = "; set `umask 022` where they are made"
        yield fail(name, f"{detail}{rest}", f"chmod g-w,o-w {paths}")
    if authors.linked:
        detail = f"{_some(authors.linked)} have several names (hard links), so their author is unknown: copy them"
        yield fail(name, detail, f"find {shlex.quote(str(authors.linked[0].parent))} -links +1 -type f")
    for owner, theirs in authors.foreign.items():
        yield warn(name, f"{_some(theirs)} belong to '{owner}', who is not in `authorizedUsers`")
    for cause, path in authors.unread.items():
        yield warn(name, f"the poller passes over '{path}': {cause}", f"namei -l {shlex.quote(str(path))}")
    if not (authors.writable or authors.linked or authors.foreign or authors.unread):
        items = "1 item" if authors.count == 1 else f"{authors.count} items"
        yield ok(name, f"{items}, all of authorised users")


def of_umask(umask: int, site: Site) -> Iterator[Finding]:
    """The umask of the caller, if the caller writes items."""
    if site.shell.get("USER") in site.authorized and umask & _OTHERS_WRITE != _OTHERS_WRITE:
        detail = f"yours is {umask:04o}: others can write what you put into the directory, so that it does not count"
        yield warn("umask", detail, "umask 022")


def _umask() -> int:
    """The umask of this process, which does not change."""
    for line in _lines(Path("/proc/self/status")):
        if line.startswith("Umask:"):
            return int(line.split()[1], 8)
    return _OTHERS_WRITE


def _some(paths: list[Path]) -> str:
    more = f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else ""
    return ", ".join(f"'{path}'" for path in paths[:_SHOWN]) + more
