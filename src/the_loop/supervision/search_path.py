"""The caller's PATH for the units, without what other users could put programs into."""

from __future__ import annotations

import grp
import os
import pwd
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class SearchPath:
    """The entries that may stay, in order, and those left out, each with the reason."""

    kept: tuple[str, ...]
    dropped: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        return ":".join(self.kept)


def safe_path(path: str, uid: int) -> SearchPath:
    """`path` as user `uid` can trust it: no relative entry, and none that anybody but this user and root can change.

    That goes for the directory, links to it, and all above. A missing directory stays if only they can make it.
    """
    found = {entry: _problem(entry, uid) for entry in dict.fromkeys(path.split(":"))}
    kept = (entry for entry, problem in found.items() if not problem)
    return SearchPath(tuple(kept), tuple((entry, problem) for entry, problem in found.items() if problem))


def _problem(entry: str, uid: int) -> str:
    if not entry.startswith("/"):
        return "it is relative" if entry else "it is empty, which means the working directory"
    if not entry.isprintable():
        return "it has a control character in it"
    named, real = Path(os.path.normpath(entry)), Path(os.path.realpath(entry))
    is_last = True  # of what there is: a new program, or the missing directory, is made in it
    try:
        for place in (real, *real.parents):
            with suppress(FileNotFoundError):
                if problem := _foreign(place, place.stat(), uid, is_last=is_last):
                    return problem
                is_last = False
        for place in (named, *named.parents):
            with suppress(FileNotFoundError):
                if problem := _foreign(place, place.lstat(), uid, is_last=False):
                    return problem
    except OSError as error:
        return f"cannot find out who can change it: {error.strerror}"
    return ""


def _foreign(place: Path, there: os.stat_result, uid: int, *, is_last: bool) -> str:
    """Who else can change this place; nothing if nobody can. In a sticky directory that is the owner of each name."""
    if there.st_uid not in (0, uid):
        return f"'{place}' belongs to {_user(there.st_uid)}"
    if stat.S_ISLNK(there.st_mode):
        return ""
    if not stat.S_ISDIR(there.st_mode):
        return f"'{place}' is not a directory"
    if there.st_mode & stat.S_ISVTX and not is_last:
        return ""
    if there.st_mode & stat.S_IWOTH:
        return f"everybody can write to '{place}'"
    if there.st_mode & stat.S_IWGRP and (others := _others(there.st_gid, place, uid)):
        return f"{others} can write to '{place}'"
    return ""


def _others(gid: int, place: Path, uid: int) -> str:
    """Who is in the group besides this user and root, or has an entry of an access control list."""
    if "system.posix_acl_access" in os.listxattr(place):
        return "others (by its access control list)"
    try:
        group = grp.getgrgid(gid)
    except KeyError:
        return f"gid {gid}"
    members = {*group.gr_mem, *(user.pw_name for user in pwd.getpwall() if user.pw_gid == gid)}
    return f"the group '{group.gr_name}'" if members - {_user(0), _user(uid)} else ""


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"
