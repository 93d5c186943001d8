"""The wake socket: a datagram on it starts a cycle at once. It is the manager's, or our own in the state root.

The manager keeps its socket open over a restart, so that the next poller serves a wake-up that was sent meanwhile.
The content of a datagram is ignored.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import stat
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Final

OWN_NAME: Final = "poll.wake"
_FIRST_FD: Final = 3


def inherited_socket(environ: MutableMapping[str, str]) -> socket.socket | None:
    """The socket that the manager passed, if any. Removes its variables, so that no child inherits them."""
    values = {name: environ.pop(name, "") for name in ("LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES")}
    if values["LISTEN_PID"] != str(os.getpid()) or not re.fullmatch("[1-9][0-9]{0,3}", values["LISTEN_FDS"]):
        return None
    try:
        if not stat.S_ISSOCK(os.fstat(_FIRST_FD).st_mode):
            return None
    except OSError:
        return None
    os.set_inheritable(_FIRST_FD, False)
    found = socket.socket(fileno=_FIRST_FD)
    if (found.family, found.type) != (socket.AF_UNIX, socket.SOCK_DGRAM):
        found.detach()  # the socket unit was changed: not a socket that we can read from
        return None
    found.setblocking(False)
    return found


def own_socket(root: Path) -> socket.socket | None:
    """Our own socket in the root, for a poller without a manager. The caller must hold the root's lock.

    None if the file system does not support sockets: the poller then works, but cannot be woken.
    """
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        with _short(root / OWN_NAME) as path:
            with contextlib.suppress(FileNotFoundError):
                Path(path).unlink()
            made.bind(path)
            Path(path).chmod(0o600)
    except OSError:
        made.close()
        return None
    made.setblocking(False)
    return made


def drain(wakes: socket.socket) -> None:
    """Read all waiting wake-ups: one cycle serves them together."""
    with contextlib.suppress(OSError):
        while True:
            wakes.recv(64)


def send_wake(path: Path) -> bool:
    """Send a wake-up to the socket at `path`; True if a process listens there."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)
        try:
            with _short(path) as short:
                sender.sendto(b"wake", short)
        except BlockingIOError:
            return True  # the queue is full of wake-ups already
        except (OSError, ValueError):  # ValueError: a path that is none, out of a damaged record
            return False
    return True


@contextlib.contextmanager
def _short(path: Path) -> Iterator[str]:
    """A name for `path` that fits into a socket address (108 bytes), however long the path is. Raises OSError."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
