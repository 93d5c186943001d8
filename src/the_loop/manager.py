"""The user's service manager over D-Bus: transient units that are given a descriptor, and the states of units.

    ManagerError          base
      NoManager           no connection could be made: nothing was asked
      Refused             the manager answered with an error, by `name`: it did not accept the call
      NoAnswer            the call was sent, or part of it, and no answer came: it may have been accepted

The manager's private socket comes first (it works without a session bus), then the bus. Messages are written and
parsed by jeepney; the socket is ours, since its asyncio layer passes no descriptors.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import itertools
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from jeepney.auth import BEGIN, NEGOTIATE_UNIX_FD, make_auth_external
from jeepney.bus import get_connectable_addresses
from jeepney.low_level import HeaderFields, Message, MessageType, calc_msg_size
from jeepney.wrappers import DBusAddress, new_method_call

from the_loop.core.model import LoopError

Property = tuple[str, tuple[str, Any]]  # name, (signature, value)

CALL_LIMIT_S: Final = 30.0
_CONNECT_LIMIT_S: Final = 10.0
_CHUNK: Final = 1 << 16
_HEADER: Final = 16  # bytes that tell a message's size
_ANSWERS: Final = 2  # lines: who we are, and descriptors
_SYSTEMD: Final = "org.freedesktop.systemd1"
_MANAGER: Final = DBusAddress("/org/freedesktop/systemd1", _SYSTEMD, f"{_SYSTEMD}.Manager")
_PROPERTIES: Final = _MANAGER.with_interface("org.freedesktop.DBus.Properties")
_BUS: Final = DBusAddress("/org/freedesktop/DBus", "org.freedesktop.DBus", "org.freedesktop.DBus")
UNIT_EXISTS: Final = f"{_SYSTEMD}.UnitExists"
_ERRORS: Final = "org.freedesktop.DBus.Error"
_NOBODY_THERE: Final = (f"{_ERRORS}.ServiceUnknown", f"{_ERRORS}.NameHasNoOwner")
_NO_REPLY: Final = (f"{_ERRORS}.NoReply", f"{_ERRORS}.Disconnected", f"{_ERRORS}.Timeout", f"{_ERRORS}.TimedOut")


class ManagerError(LoopError):
    """The service manager could not be asked, or said no."""


class NoManager(ManagerError):
    """There is no connection to a service manager; nothing was sent."""


class NoAnswer(ManagerError):
    """The call may have been accepted: the connection ended, or the time was over, before an answer came."""


class Refused(ManagerError):
    """The manager answered with an error; `name` is its D-Bus error name."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"the service manager refused: {message or name}")
        self.name = name


class Manager:
    """One user's service manager. The connection is made when it is first needed, and again after it was lost.

    `environ` tells where: `XDG_RUNTIME_DIR`, `DBUS_SESSION_BUS_ADDRESS`. Calls may run side by side; every call
    raises ManagerError, and ends within `limit_s` seconds.
    """

    def __init__(self, environ: Mapping[str, str], *, limit_s: float = CALL_LIMIT_S) -> None:
        self._environ = environ
        self._limit_s = limit_s
        self._connection: _Connection | None = None
        self._connecting = asyncio.Lock()

    async def start_transient_unit(self, name: str, properties: Sequence[Property]) -> None:
        """Have the manager accept a new unit. Descriptors in `properties` are its own from then on.

        Raises Refused with `name == UNIT_EXISTS` while a unit of that name is loaded.
        """
        await self._call("StartTransientUnit", "ssa(sv)a(sa(sv))", (name, "fail", list(properties), []))

    async def version(self) -> str:
        """The manager's version, as in `252.39-1~deb12u2`."""
        ((_, version),) = await self._call("Get", "ss", (_MANAGER.interface, "Version"), _PROPERTIES)
        return str(version)

    def close(self) -> None:
        """Drop the connection; calls that wait for an answer get NoAnswer."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    async def _call(
        self, member: str, signature: str, body: tuple[Any, ...], address: DBusAddress = _MANAGER
    ) -> tuple[Any, ...]:
        connection = await self._connected()
        try:
            async with asyncio.timeout(self._limit_s):
                return await connection.call(new_method_call(address, member, signature, body))
        except TimeoutError as error:
            self.close()  # part of the message may still be unsent, and a late answer is of no use
            raise NoAnswer(f"the service manager did not answer within {self._limit_s:.0f} s") from error

    async def _connected(self) -> _Connection:
        async with self._connecting:
            if self._connection is None or self._connection.is_lost:
                self._connection = await _connect(self._environ)
            return self._connection


class _Connection:
    """A connected and authenticated socket: sends calls, and hands each answer to the call that waits for it."""

    def __init__(self, channel: socket.socket, received: bytes) -> None:
        self.is_lost = False
        self._channel = channel
        self._received = bytearray(received)
        self._serials = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Message | None]] = {}  # None: the connection ended
        self._sending = asyncio.Lock()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(channel, self._receive)

    async def call(self, message: Message) -> tuple[Any, ...]:
        """The body of the answer. Raises Refused, NoAnswer."""
        serial = next(self._serials)
        answer = self._waiting[serial] = self._loop.create_future()
        try:
            await self._send(message, serial)
            reply = await answer
        except OSError as error:
            self.close()
            raise NoAnswer(f"the connection to the service manager ended: {error.strerror or error}") from error
        finally:
            self._waiting.pop(serial, None)
        if reply is None:
            raise NoAnswer("the connection to the service manager ended")
        if reply.header.message_type is MessageType.error:
            text = reply.body[0] if reply.body and isinstance(reply.body[0], str) else ""
            raise _error(str(reply.header.fields.get(HeaderFields.error_name, "")), text)
        return tuple(reply.body)

    def close(self) -> None:
        if self.is_lost:
            return
        self.is_lost = True
        self._loop.remove_reader(self._channel)
        self._channel.close()
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_result(None)

    async def _send(self, message: Message, serial: int) -> None:
        """Descriptors travel with the first byte; whatever does not fit into the socket's buffer follows."""
        descriptors = array.array("i")
        data = message.serialise(serial, descriptors)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)] if descriptors else []
        async with self._sending:
            while not (sent := _sent(self._channel, data, rights)):
                await _writable(self._loop, self._channel)
            try:
                await self._loop.sock_sendall(self._channel, data[sent:])
            except BaseException:
                self.close()  # after half a message nothing else can be sent
                raise

    def _receive(self) -> None:
        try:
            data = self._channel.recv(_CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._received += data
        try:
            for message in _messages(self._received):
                self._hand_to_its_call(message)
        except Exception:  # noqa: BLE001 (it is not D-Bus: what follows cannot be read either)
            data = b""
        if not data:
            self.close()

    def _hand_to_its_call(self, message: Message) -> None:
        answer = self._waiting.get(message.header.fields.get(HeaderFields.reply_serial, 0))
        if answer is not None and not answer.done():
            answer.set_result(message)


def _messages(received: bytearray) -> Iterator[Message]:
    """Take the whole messages out of what was received; signals, of which a private socket is full, are passed over."""
    while len(received) >= _HEADER and len(received) >= (size := calc_msg_size(received)):
        raw = bytes(received[:size])
        del received[:size]
        if raw[1] != MessageType.signal.value:
            yield Message.from_buffer(raw)


def _error(name: str, text: str) -> ManagerError:
    """What an error by this name says of the call; a bus answers for a manager that is not there, or went."""
    if name in _NOBODY_THERE:
        return NoManager(f"the bus knows no service manager: {text or name}")
    if name in _NO_REPLY:
        return NoAnswer(f"the service manager did not answer: {text or name}")
    return Refused(name, text)


async def _connect(environ: Mapping[str, str]) -> _Connection:
    """The first address that answers. Raises NoManager."""
    problem = "XDG_RUNTIME_DIR is not set"
    for address, is_bus in _addresses(environ):
        try:
            async with asyncio.timeout(_CONNECT_LIMIT_S):
                return await _open(address, is_bus=is_bus)
        except TimeoutError:
            problem = f"'{address}' does not answer"
        except (OSError, ManagerError) as error:
            problem = f"'{address}': {getattr(error, 'strerror', None) or error}"
    raise NoManager(f"cannot reach the user's service manager: {problem}")


def _addresses(environ: Mapping[str, str]) -> Iterator[tuple[str, bool]]:
    """Sockets to try, and whether each is a message bus."""
    runtime = environ.get("XDG_RUNTIME_DIR")
    if runtime:
        yield str(Path(runtime, "systemd", "private")), False
    if bus := environ.get("DBUS_SESSION_BUS_ADDRESS"):
        with contextlib.suppress(ValueError, RuntimeError):  # of another form, or no socket
            for address in get_connectable_addresses(bus):
                yield address, True
    elif runtime:
        yield str(Path(runtime, "bus")), True


async def _open(address: str, *, is_bus: bool) -> _Connection:
    loop = asyncio.get_running_loop()
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        await loop.sock_connect(channel, address)
        rest = await _authenticate(loop, channel)
        connection = _Connection(channel, rest)
        if is_bus:
            await connection.call(new_method_call(_BUS, "Hello"))
    except BaseException:
        channel.close()
        raise
    return connection


async def _authenticate(loop: asyncio.AbstractEventLoop, channel: socket.socket) -> bytes:
    """Agree on who we are and that descriptors may come; what was received behind that. Raises OSError.

    NB: all at once, as systemd's own clients do. The manager drops a connection that brings a descriptor together with
    BEGIN, and does not look at a message that came together with it: its answer shows that BEGIN was read.
    """
    await loop.sock_sendall(channel, b"\0" + make_auth_external() + NEGOTIATE_UNIX_FD + BEGIN)
    received = b""
    while received.count(b"\r\n") < _ANSWERS:
        data = await loop.sock_recv(channel, _CHUNK)
        if not data:
            raise ConnectionResetError(104, "closed during authentication")
        received += data
    accepted, agreed, rest = received.split(b"\r\n", _ANSWERS)
    if not accepted.startswith(b"OK ") or agreed != b"AGREE_UNIX_FD":
        raise PermissionError(1, "this user, or passing descriptors, is not accepted")
    return rest


def _sent(channel: socket.socket, data: bytes, rights: list[tuple[int, int, Any]]) -> int:
    """How many bytes went; 0 if the other side takes none right now."""
    try:
        return channel.sendmsg([data], rights)
    except BlockingIOError:
        return 0


async def _writable(loop: asyncio.AbstractEventLoop, channel: socket.socket) -> None:
    ready = asyncio.Event()
    loop.add_writer(channel, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_writer(channel)
