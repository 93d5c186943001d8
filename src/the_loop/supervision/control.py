"""The control socket, the poller's side: requests of commands, answered by the poller that holds the lock.

`control.sock` is a stream socket, 0600. One connection carries one request and its answer, each a JSON object on one
line::

    {"verb": "wake", "source": "inbox", "root": "/var/lib/the-loop"}
    {"woken": "inbox"}
    {"error": "cannot wake 'inbox': no such source", "hint": "the sources are 'work'", "code": 2}

A line has at most LINE_LIMIT bytes and a connection lasts at most ASKING_LIMIT_S. The peer must be the owner of the
poller or uid 0, which the kernel tells. `root` is optional: a poller on another state root does nothing, and answers
with its own. `code` is the exit code for the command. A request may be carried out although its answer is lost, so
every verb is idempotent.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import socket
import stat
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from the_loop.core.model import LoopError, explain
from the_loop.durable import to_json_line
from the_loop.supervision.sockets import ASKING_LIMIT_S, CONTROL_NAME, LINE_LIMIT, bind_privately, peer_uid, short_path

Handler = Callable[[Mapping[str, Any]], Awaitable[dict[str, Any]]]

_MOST_AT_ONCE: Final = 8  # further connections wait in the kernel's queue
_BACKLOG: Final = 64
_CHUNK: Final = 16 << 10
_PAUSE_S: Final = 1.0  # after a connection that could not be accepted


@dataclass(frozen=True, slots=True)
class Listening:
    """A control socket that is bound to `path` and listens there. `node` is device and inode of its file."""

    path: Path
    socket: socket.socket
    node: tuple[int, int]

    def close(self) -> None:
        """Stop listening, and remove the file unless another socket has taken its place."""
        self.socket.close()
        with contextlib.suppress(OSError):
            if _node(self.path) == self.node:
                self.path.unlink()


def listen(root: Path, runtime: Path | None) -> Listening:
    """Listen in the runtime directory of the unit, if there is one, else in the root. Raises OSError.

    The caller must hold the root's lock, so a socket in the root is a leftover, and is replaced. Pollers of two roots
    may have been given one runtime directory: a socket there that still answers is left alone.
    """
    if runtime is not None:
        path = runtime / CONTROL_NAME
        with contextlib.suppress(OSError):
            if not _is_answering(path):
                return _bound(path)
    return _bound(root / CONTROL_NAME)


class ControlServer:
    """Answers requests until it is closed; made within the event loop. `verbs` are the handlers by name.

    A handler returns the answer, or raises LoopError or OSError. It is cancelled at an await when the connection's
    time is over or the server is closed, and answers nothing then.
    """

    def __init__(
        self,
        listening: Listening,
        root: Path,
        verbs: Mapping[str, Handler],
        *,
        limit_s: float = ASKING_LIMIT_S,
        uid_of: Callable[[socket.socket], int] = peer_uid,
    ) -> None:
        self._listening = listening
        self._root = root
        self._verbs = verbs
        self._limit_s = limit_s
        self._uid_of = uid_of
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._pause: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._accept_more()

    @property
    def path(self) -> Path:
        return self._listening.path

    async def close(self) -> None:
        """Cut every connection, and remove the socket. Waits for no peer."""
        self._is_closed = True
        self._loop.remove_reader(self._listening.socket)
        if self._pause is not None:
            self._pause.cancel()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._listening.close()

    def _accept_more(self) -> None:
        if not self._is_closed:
            self._loop.add_reader(self._listening.socket, self._accept)

    def _accept(self) -> None:
        try:
            connection, _ = self._listening.socket.accept()
        except BlockingIOError:
            return  # the peer went away
        except OSError:  # no descriptor left: the socket stays readable, so look away for a while
            self._loop.remove_reader(self._listening.socket)
            self._pause = self._loop.call_later(_PAUSE_S, self._accept_more)
            return
        connection.setblocking(False)
        task = self._loop.create_task(self._serve(connection))
        self._tasks.add(task)
        task.add_done_callback(lambda task: self._is_served(task, connection))
        if len(self._tasks) >= _MOST_AT_ONCE:
            self._loop.remove_reader(self._listening.socket)

    def _is_served(self, task: asyncio.Task[None], connection: socket.socket) -> None:
        connection.close()  # here, as a task that is cancelled before it began runs no code of its own
        self._tasks.discard(task)
        self._accept_more()

    async def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):  # a peer that is gone or takes no answer
            try:
                async with asyncio.timeout(self._limit_s):
                    await self._loop.sock_sendall(connection, _line(await self._answer(connection)))
            except TimeoutError:
                late = LoopError(f"the request took longer than {self._limit_s:.0f} s")
                connection.send(_line(_refusal(late)))

    async def _answer(self, connection: socket.socket) -> Mapping[str, Any]:
        try:
            self._check_peer(connection)
            request = _request(await self._read(connection))
            if request.get("root", str(self._root)) != str(self._root):
                other = LoopError(f"this poller runs on '{self._root}'", "name that one with --state-root")
                return {**_refusal(other), "root": str(self._root)}
            return await self._handler(request)(request)
        except LoopError as error:
            return _refusal(error)
        except OSError as error:
            return _refusal(LoopError(explain(error)))
        except Exception as error:  # noqa: BLE001 (the border: a request never ends the poller)
            return _refusal(LoopError(f"unexpected: {type(error).__name__}: {error}"))

    def _check_peer(self, connection: socket.socket) -> None:
        uid, owner = self._uid_of(connection), os.geteuid()
        if uid not in (0, owner):
            raise LoopError(f"uid {uid} may not ask this poller, which belongs to uid {owner}", "ask as that user")

    async def _read(self, connection: socket.socket) -> bytes:
        """The first line, without its line break. Raises LoopError for anything else."""
        read = bytearray()
        while len(read) < LINE_LIMIT:
            chunk = await self._loop.sock_recv(connection, min(_CHUNK, LINE_LIMIT - len(read)))
            read += chunk
            if b"\n" in chunk:
                return bytes(read[: read.index(b"\n")])
            if not chunk:
                raise LoopError("the request has no line break at its end")
        raise LoopError(f"the request has more than {LINE_LIMIT} bytes")

    def _handler(self, request: Mapping[str, Any]) -> Handler:
        verb = request.get("verb")
        handler = self._verbs.get(verb) if isinstance(verb, str) else None
        if handler is None:
            raise LoopError(f"the running poller has no verb {verb!r:.80}", "restart it if it is of an older version")
        return handler


def _request(line: bytes) -> Mapping[str, Any]:
    try:
        request = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise LoopError("the request is not JSON") from error
    if not isinstance(request, dict):
        raise LoopError("the request is not a JSON object")
    return request


def _refusal(error: LoopError) -> dict[str, Any]:
    return {"error": error.problem[:_CHUNK], "hint": error.hint[:_CHUNK], "code": error.exit_code}


def _line(answer: Mapping[str, Any]) -> bytes:
    line = to_json_line(answer)
    if len(line) <= LINE_LIMIT:
        return line
    return to_json_line(_refusal(LoopError("done, but the answer is too long to be sent")))


def _is_answering(path: Path) -> bool:
    """True if a process listens at `path`. Raises OSError where that cannot be found out."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            with short_path(path) as short:
                probe.connect(short)
        except BlockingIOError:
            return True  # its queue is full
        except (ConnectionRefusedError, FileNotFoundError):
            return False
    return True


def _bound(path: Path) -> Listening:
    """A socket that listens at `path`, in place of a leftover. Raises OSError, also if there is another file."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with short_path(path) as short:
            _remove_leftover(Path(short))
            bind_privately(made, short)
        made.listen(_BACKLOG)
        made.setblocking(False)
        return Listening(path, made, _node(path))
    except BaseException:
        made.close()
        raise


def _remove_leftover(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise FileExistsError(errno.EEXIST, "it is not a socket")
    path.unlink()


def _node(path: Path) -> tuple[int, int]:
    found = path.lstat()
    return found.st_dev, found.st_ino
