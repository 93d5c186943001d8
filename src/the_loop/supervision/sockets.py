"""The sockets of a poller, as its own side and the commands both know them.

The wake socket: a datagram on it starts a cycle at once. It is the manager's, or our own in the state root.

The manager keeps its socket open over a restart, so that the next poller serves a wake-up that was sent meanwhile.
The content of a datagram is ignored.

The control socket (`control`, `asking`) takes requests and answers them.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import stat
import struct
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Final

OWN_NAME: Final = "poll.wake"
CONTROL_NAME: Final = "control.sock"
LINE_LIMIT: Final = 64 << 10  # bytes of a request or an answer on the control socket, with the line break
ASKING_LIMIT_S: Final = 10.0  # from the connection to the last byte of the answer
_FIRST_FD: Final = 3
_CREDENTIALS: Final = struct.Struct("iII")  # struct ucred: pid, uid, gid


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
        with short_path(root / OWN_NAME) as path:
            with contextlib.suppress(FileNotFoundError):
                Path(path).unlink()
            bind_privately(made, path)
    except OSError:
        made.close()
        return None
    made.setblocking(False)
    return made


def bind_privately(made: socket.socket, path: str) -> None:
    """Bind to `path`, 0600 whatever the umask, and never more than that. Raises OSError."""
    os.fchmod(made.fileno(), 0o600)  # what the new file has, less what the umask takes
    made.bind(path)
    Path(path).chmod(0o600)


def peer_uid(connection: socket.socket) -> int:
    """The user at the other end: who connected, or, for the one who connected, who listens. Raises OSError."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    uid: int = _CREDENTIALS.unpack(credentials)[1]
    return uid


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
            with short_path(path) as short:
                sender.sendto(b"wake", short)
        except BlockingIOError:
            return True  # the queue is full of wake-ups already
        except (OSError, ValueError):  # ValueError: a path that is none, out of a damaged record
            return False
    return True


@contextlib.contextmanager
def short_path(path: Path) -> Iterator[str]:
    """A name for `path` that fits into a socket address (107 bytes), however long the path is. Raises OSError."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
