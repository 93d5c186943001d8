"""A D-Bus peer on a socket, as a service manager is one: authenticates, takes descriptors, answers by a script.

with Peer(path, answer) as peer:       # answer(member, body) -> a body, an `Error`, or None for no answer
    ...
peer.calls                             # (member, body), descriptors as what they are open on
"""

from __future__ import annotations

import array
import contextlib
import os
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from jeepney.low_level import HeaderFields, Message, Parser
from jeepney.wrappers import new_error, new_method_return


@dataclass(frozen=True)
class Error:
    name: str
    text: str = "no"


@dataclass(frozen=True)
class Body:
    signature: str
    values: tuple[Any, ...]


Answer = Body | Error | None


class Peer:
    """Serves every connection in a thread of its own until the context ends."""

    def __init__(self, path: Path, answer: Callable[[str, tuple[Any, ...]], Answer], *, agrees: bool = True) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.connections = 0
        self.refuses = False  # connections are ended before a word
        self._answer = answer
        self._agrees = agrees
        path.parent.mkdir(parents=True, exist_ok=True)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.hang_up()
        for thread in self._threads:
            thread.join(10)

    def hang_up(self) -> None:
        """End every connection."""
        for channel in self._open:
            with contextlib.suppress(OSError):  # it is closed already
                channel.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                channel, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._open.append(channel)
            thread = threading.Thread(target=self._serve, args=(channel,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, channel: socket.socket) -> None:
        with channel:
            if not self.refuses and self._authenticate(channel):
                parser = Parser()
                while (message := _next(channel, parser)) is not None:
                    self._handle(channel, message)

    def _authenticate(self, channel: socket.socket) -> bool:
        agreement = b"AGREE_UNIX_FD\r\n" if self._agrees else b"ERROR\r\n"
        replies = {b"\0AUTH": b"OK 0123\r\n", b"NEGOTIATE_UNIX_FD": agreement}
        line = b""
        while not line.endswith(b"BEGIN\r\n"):
            data = channel.recv(1)  # what follows BEGIN is a message already
            if not data:
                return False
            line += data
            for start, reply in replies.items():
                if line.startswith(start) and line.endswith(b"\r\n"):
                    channel.sendall(reply)
                    line = b""
        return True

    def _handle(self, channel: socket.socket, message: Message) -> None:
        member = message.header.fields[HeaderFields.member]
        self.calls.append((member, _shown(message.body)))
        answer = self._answer(member, message.body)
        if answer is None:
            return
        if isinstance(answer, Error):
            reply = new_error(message, answer.name, "s", (answer.text,))
        else:
            reply = new_method_return(message, answer.signature, answer.values)
        channel.sendall(reply.serialise(serial=len(self.calls)))


def _next(channel: socket.socket, parser: Parser) -> Message | None:
    while (message := parser.get_next_message()) is None:
        try:
            data, ancillary, _, _ = channel.recvmsg(parser.bytes_desired(), socket.CMSG_SPACE(64))
        except OSError:
            return None
        if not data:
            return None
        descriptors = array.array("i")
        for _, _, content in ancillary:
            descriptors.frombytes(content[: len(content) - len(content) % descriptors.itemsize])
        parser.add_data(data, list(descriptors))
    return message


def _shown(value: Any) -> Any:
    """The body with every descriptor as the file that it is open on."""
    if isinstance(value, tuple) and len(value) == 2 and value[0] == "h":
        return ("h", Path(os.readlink(f"/proc/self/fd/{value[1]}")))
    if isinstance(value, (tuple, list)):
        return type(value)(_shown(part) for part in value)
    return value
