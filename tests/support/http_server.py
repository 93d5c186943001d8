"""A real HTTP/1.1 server on 127.0.0.1 for fakes, with answers that hang, drip or break off.

It runs an event loop in a daemon thread. Leaving the context ends it at once, whatever hangs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from http import HTTPStatus
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from support.github.fake import FakeGitHub
    from support.github.values import Answer

    Handler = Callable[[str, str, Mapping[str, str], bytes], Answer | Coroutine[Any, Any, Answer]]

_LONGEST_HEAD = 1 << 16
_JOIN_S = 10.0
_BODILESS = {204, 304}


class HttpServer:
    """Serves `handle(method, target, headers, body)`; `url` holds from the entry of the context on.

    `port` 0 takes a free one; the port of an earlier server serves its clients again. The handler runs in the
    server's thread, one call at a time; what it raises closes the connection and is raised again at the exit. One that
    is a coroutine may wait; it is cancelled when its client is gone.
    """

    def __init__(self, handle: Handler, *, port: int = 0) -> None:
        self.port = port
        self._handle = handle
        self._thread = Thread(target=self._run, name="http-server", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._is_up = Event()
        self._stop = asyncio.Event()
        self._failure: BaseException | None = None

    @property
    def url(self) -> str:
        """The origin, without a closing slash."""
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        self._is_up.wait(_JOIN_S)
        self._raise_failure()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_rest: object) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(_JOIN_S)
        if self._thread.is_alive():
            raise RuntimeError("the handler does not return, the server cannot be ended")
        if kind is None:
            self._raise_failure()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except OSError as exc:  # the port is taken
            self._failure = exc
        finally:
            self._is_up.set()

    async def _main(self) -> None:
        server = await asyncio.start_server(self._connect, "127.0.0.1", self.port, limit=_LONGEST_HEAD)
        self.port = server.sockets[0].getsockname()[1]
        self._loop = asyncio.get_running_loop()
        self._is_up.set()
        await self._stop.wait()
        server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                while await self._serve_one(reader, writer):
                    pass
        finally:
            self._connections.discard(task)
            writer.transport.abort() if self._stop.is_set() else writer.close()

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Whether the connection may be used again after one request and its answer."""
        method, target, headers = _parse_head(await reader.readuntil(b"\r\n\r\n"))
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        try:
            made = self._handle(method, target, headers, body)
            answer = await _unless_gone(made, reader) if isinstance(made, Awaitable) else made
        except asyncio.CancelledError:
            raise
        except BaseException as exc:
            self._failure = exc
            raise ConnectionAbortedError from exc
        if answer is None:
            return False
        if answer.hang:
            await reader.read(1)  # returns when the client has had enough
            return False
        await _send(writer, answer)
        return not answer.cut and headers.get("connection", "").lower() != "close"


class FakeServer(HttpServer):
    """Serves a FakeGitHub and tells it where it is; a path in its `base_url` (`/api/v3`) stays."""

    def __init__(self, github: FakeGitHub, *, port: int = 0) -> None:
        super().__init__(github.handle, port=port)
        self._github = github

    @property
    def url(self) -> str:
        """What a client takes as the address of the API."""
        return super().url + urlsplit(self._github.base_url).path

    def __enter__(self) -> Self:
        super().__enter__()
        self._github.base_url = self.url
        return self


async def _unless_gone(answer: Coroutine[Any, Any, Answer], reader: asyncio.StreamReader) -> Answer | None:
    """The answer once there is one; None if the client closes the connection before."""
    task, gone = asyncio.ensure_future(answer), asyncio.ensure_future(reader.read(1))
    try:
        await asyncio.wait([task, gone], return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        for one in (task, gone):
            one.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


def _parse_head(raw: bytes) -> tuple[str, str, dict[str, str]]:
    first, *lines = raw.decode("latin-1").rstrip("\r\n").split("\r\n")
    method, target, _version = first.split(" ")
    pairs = (line.partition(":") for line in lines)
    return method, target, {name.strip().lower(): value.strip() for name, _, value in pairs}


async def _send(writer: asyncio.StreamWriter, answer: Answer) -> None:
    headers = dict(answer.headers)
    if answer.status not in _BODILESS:
        headers["Content-Length"] = str(len(answer.body))
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    body = answer.body[: len(answer.body) // 2] if answer.cut else answer.body
    raw = f"HTTP/1.1 {answer.status} {_reason(answer.status)}\r\n{head}\r\n".encode("latin-1") + body
    if not answer.drip_s:
        writer.write(raw)
        await writer.drain()
        return
    for byte in raw:
        writer.write(bytes((byte,)))
        await writer.drain()
        await asyncio.sleep(answer.drip_s)


def _reason(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"
