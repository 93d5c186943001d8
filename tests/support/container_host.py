"""What a container takes of the machine it runs on: whether it can boot there, what it must see, its control group.

The groups are named by the process that made them; those of runs that were killed are removed by the next one.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

_REPOSITORY: Final = Path(__file__).parents[2]
_PROGRAMS: Final = ("unshare", "nsenter", "setpriv", "useradd", "systemctl", "journalctl", "dbus-daemon")
_FILES: Final = ("/lib/systemd/systemd", "/lib/systemd/system/user@.service", "/usr/share/dbus-1/system.conf")
_PREFIX: Final = "the-loop-container-"
_LIMIT_S: Final = 20.0
_LOOK_AGAIN_S: Final = 0.01


@functools.cache
def obstacle(folder: Path) -> str:
    """Why no container can boot with its disk in `folder`; empty if one can."""
    if os.geteuid() != 0:
        return "a container needs root"
    missing = [name for name in _PROGRAMS if shutil.which(name) is None]
    missing += [path for path in _FILES if not Path(path).exists()]
    if missing:
        return f"a container needs {', '.join(missing)}"
    if cgroup_root() is None:
        return "a container needs a cgroup2 that it may write to"
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        script = (
            'cd "$0" && mkdir u w r && mount -t overlay overlay -o lowerdir=/,upperdir=u,workdir=w r && test -d r/etc'
        )
        argv = ["unshare", "--mount", "--pid", "--fork", "--cgroup", "sh", "-c", script, scratch]
        done = subprocess.run(argv, check=False, capture_output=True, text=True)
    return f"a container needs an overlay on '{folder}': {done.stderr.strip()}" if done.returncode else ""


def needed_folders() -> list[str]:
    """Folders that the container has to see: the interpreter's, the environment's, the repository."""
    return sorted({str(path) for path in (_REPOSITORY, Path(sys.prefix), Path(sys.base_prefix).resolve())})


def cgroup_root() -> Path | None:
    """Where version 2 of the hierarchy is mounted, if we may write there."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, place, kind, *_ = line.split()
        if kind == "cgroup2" and os.access(place, os.W_OK):
            return Path(place)
    return None


def new_cgroup() -> Path:
    root = cgroup_root()
    assert root is not None, "there is no cgroup2"
    _remove_leftovers(root)
    for number in itertools.count():
        made = root / f"{_PREFIX}{os.getpid()}-{number}"
        with contextlib.suppress(FileExistsError):
            made.mkdir()
            return made
    raise AssertionError


def remove_cgroup(path: Path) -> None:
    """Remove a group and those below it, once their last processes have been reaped."""
    until = time.monotonic() + _LIMIT_S
    while path.exists() and time.monotonic() < until:
        for folder, _, _ in os.walk(path, topdown=False):
            with contextlib.suppress(OSError):
                Path(folder).rmdir()
        time.sleep(_LOOK_AGAIN_S if path.exists() else 0)


def _remove_leftovers(root: Path) -> None:
    """Groups of test runs that were killed; whatever still has a process in it cannot be removed and stays."""
    for path in root.glob(f"{_PREFIX}*-*"):
        maker = path.name.removeprefix(_PREFIX).partition("-")[0]
        is_orphan = not Path("/proc", maker).exists()
        if is_orphan and "populated 0" in (path / "cgroup.events").read_text():
            remove_cgroup(path)
