"""A control socket that is really served, in an event loop of its own, and peers that talk to it byte by byte.

with Served(root, echo=echo) as served:
    assert served.say(b'{"verb": "echo"}\n') == {"asked": "echo"}
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Self

from the_loop.supervision.control import ControlServer, Handler, Listening, listen
from the_loop.supervision.sockets import short_path

PATIENCE_S: Final = 30.0


class Served:
    """Listens in `root` (or `runtime`) from the entry of the context to its end."""

    def __init__(
        self,
        root: Path,
        *,
        runtime: Path | None = None,
        limit_s: float = 10.0,
        uid: int | None = None,
        **verbs: Handler,
    ) -> None:
        self.got: list[Mapping[str, Any]] = []  # requests that reached the verb `note`
        self._root = root
        self._runtime = runtime
        self._limit_s = limit_s
        self._uid = os.geteuid() if uid is None else uid
        self._verbs: dict[str, Handler] = {"note": self._note, **verbs}
        self._is_up = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._is_up.wait(PATIENCE_S)
        return self

    def __exit__(self, *_rest: object) -> None:
        self.close()

    def close(self) -> None:
        """A clean stop, which must not take long whatever the peers do."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(PATIENCE_S)
            assert not self._thread.is_alive()

    def connect(self) -> socket.socket:
        return connect(self.listening.path)

    def say(self, content: bytes) -> Any:
        """What is answered to these bytes on a connection of their own."""
        with self.connect() as connection:
            with contextlib.suppress(BrokenPipeError):  # a refusal does not wait for the request
                connection.sendall(content)
            return answer_on(connection)

    async def _note(self, request: Mapping[str, Any]) -> dict[str, Any]:
        self.got.append(request)
        return {"noted": len(self.got)}

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self.listening: Listening = listen(self._root, self._runtime)
        server = ControlServer(
            self.listening, self._root, self._verbs, limit_s=self._limit_s, uid_of=lambda _: self._uid
        )
        self._is_up.set()
        await self._stop.wait()
        await server.close()


def connect(path: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(PATIENCE_S)
    try:
        with short_path(path) as short:
            connection.connect(short)
    except BaseException:
        connection.close()
        raise
    return connection


def line(**request: Any) -> bytes:
    return json.dumps(request).encode() + b"\n"


def answer_on(connection: socket.socket) -> Any:
    """The one line that the other side sends before it closes; None if it sends nothing."""
    read = b""
    try:
        while chunk := connection.recv(4096):
            read += chunk
    except ConnectionResetError:
        pass
    assert read == b"" or read.endswith(b"\n")
    assert read.count(b"\n") <= 1
    return json.loads(read) if read else None
