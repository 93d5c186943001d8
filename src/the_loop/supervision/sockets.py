"""The wake socket: a datagram on it starts a full cycle at once. The manager's, or one of our own in the state root.

The manager keeps its socket over a restart, so that a wake sent meanwhile is served by the next poller. What a
datagram says does not matter.
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
    """The manager's socket, if it gave us one; the variables are taken out, so that no child believes in them."""
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
        found.detach()  # somebody changed the socket unit: nothing we could read wakes from
        return None
    found.setblocking(False)
    return found


def own_socket(root: Path) -> socket.socket | None:
    """Our own socket in the root, for a poller without a manager. Only the holder of the root's lock may ask.

    None where the file system has no sockets: then nobody can wake the poller, and it works all the same.
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
    """Take every wake that waits: one cycle serves them all."""
    with contextlib.suppress(OSError):
        while True:
            wakes.recv(64)


def send_wake(path: Path) -> bool:
    """True if somebody listens there."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)
        try:
            with _short(path) as short:
                sender.sendto(b"wake", short)
        except BlockingIOError:
            return True  # as many wakes as fit are waiting already
        except OSError:
            return False
    return True


@contextlib.contextmanager
def _short(path: Path) -> Iterator[str]:
    """A name for `path` that fits into a socket's address, however deep it lies."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
