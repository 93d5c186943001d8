"""The control socket, a command's side: ask the running poller, and tell the three ways in which that can fail.

`NothingServes`: no poller answers requests on this root. `NoAnswer`: one is there, or could not be looked for, and
gave no answer in time; whether it did what it was asked is unknown, and asking again is safe. `Refused`: it answered,
and said no.
"""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from the_loop.core.model import LoopError, explain
from the_loop.durable import read_json_object, to_json_line
from the_loop.state import StateRoot
from the_loop.supervision.sockets import ASKING_LIMIT_S, CONTROL_NAME, LINE_LIMIT, peer_uid, short_path

_PAUSE_S: Final = 0.05
_CHUNK: Final = 16 << 10


class NothingServes(LoopError):
    """Nothing answers requests on this root; a poller may still hold its lock."""

    exit_code = 3


class NoAnswer(LoopError):
    """There was no answer: the request may have been carried out or not."""

    exit_code = 4


class Refused(LoopError):
    """The poller's own answer. `exit_code` is the one that it named."""

    def __init__(self, problem: str, hint: str = "", exit_code: int = 1) -> None:
        super().__init__(problem, hint)
        self.exit_code = exit_code


class _CutOff(Exception):
    """The connection ended before its answer: the poller stopped, or another one is starting."""


def ask(root: StateRoot, verb: str, fields: Mapping[str, Any], limit_s: float = ASKING_LIMIT_S) -> dict[str, Any]:
    """The answer of the poller on this root, within `limit_s`. Raises NothingServes, NoAnswer, Refused.

    All text in it is printable. A connection that is cut off is made again: the poller may be restarting.
    """
    until = time.monotonic() + limit_s
    line = to_json_line({**fields, "verb": verb, "root": str(root.path)})
    if len(line) > LINE_LIMIT:
        raise Refused(f"cannot ask for '{verb}': the request has more than {LINE_LIMIT} bytes")
    while True:
        try:
            return _ask_once(root, verb, line, until)
        except (_CutOff, TimeoutError) as error:
            if time.monotonic() >= until:
                problem = f"no answer to '{verb}' from the poller on '{root.path}' within {limit_s:.0f} s"
                raise NoAnswer(problem, "it may have been carried out; asking again is safe") from error
        except OSError as error:
            problem = f"cannot ask the poller on '{root.path}' for '{verb}': {explain(error)}"
            raise (Refused if isinstance(error, PermissionError) else NoAnswer)(problem) from error
        time.sleep(_PAUSE_S)


def _ask_once(root: StateRoot, verb: str, line: bytes, until: float) -> dict[str, Any]:
    for path in _places(root):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError, ConnectionRefusedError):
            with _connected(path, until) as connection:
                _check_owner(connection, path, root)
                answer = _exchanged(connection, line, until)
            if answer.get("root", str(root.path)) == str(root.path):
                return _accepted(answer)
    raise NothingServes(f"cannot ask for '{verb}': no poller answers on '{root.path}'")


def _places(root: StateRoot) -> Iterator[Path]:
    """Paths of control sockets: the one in the runtime directory, if the record names one, then that in the root."""
    with contextlib.suppress(FileNotFoundError, ValueError):
        recorded = read_json_object(root.unit_record).get("control")
        if isinstance(recorded, str) and recorded.startswith("/") and "\0" not in recorded:
            yield Path(recorded)
    yield root.path / CONTROL_NAME


@contextlib.contextmanager
def _connected(path: Path, until: float) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection, short_path(path) as short:
        while True:
            connection.settimeout(_left_s(until))
            try:
                connection.connect(short)
                break
            except BlockingIOError:  # its queue is full
                time.sleep(_PAUSE_S)
        yield connection


def _check_owner(connection: socket.socket, path: Path, root: StateRoot) -> None:
    """Say nothing to another user's process: the record that names the path belongs to the owner of the root."""
    uid, owner = peer_uid(connection), root.path.stat().st_uid
    if uid != owner:
        raise Refused(f"'{path}' is served by uid {uid}, but '{root.path}' belongs to uid {owner}")


def _exchanged(connection: socket.socket, line: bytes, until: float) -> dict[str, Any]:
    """What was answered. Raises _CutOff, TimeoutError, OSError."""
    try:
        connection.settimeout(_left_s(until))
        with contextlib.suppress(BrokenPipeError):  # it may have answered before it read everything
            connection.sendall(line)
        answer = _read(connection, until)
    except ConnectionError as error:
        raise _CutOff from error
    try:
        value = json.loads(answer)
    except (ValueError, RecursionError) as error:
        raise _CutOff from error
    if not isinstance(value, dict):
        raise _CutOff
    return value


def _read(connection: socket.socket, until: float) -> bytes:
    read = b""
    while not read.endswith(b"\n"):
        connection.settimeout(_left_s(until))
        chunk = connection.recv(_CHUNK)
        if not chunk or len(read) > LINE_LIMIT:
            raise _CutOff
        read += chunk
    return read


def _left_s(until: float) -> float:
    """Seconds that are left. Raises TimeoutError if none are: a socket's timeout of 0 would mean "do not wait"."""
    left_s = until - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    return left_s


def _accepted(answer: dict[str, Any]) -> dict[str, Any]:
    """The answer, if it is not a refusal. Raises Refused."""
    try:
        shown: dict[str, Any] = _printable(answer)
    except RecursionError as error:
        raise Refused("cannot use the answer of the poller: it is nested too deeply") from error
    if "error" not in shown:
        return shown
    code = shown.get("code")
    exit_code = code if isinstance(code, int) and 0 < code < 126 else 1
    raise Refused(str(shown["error"]), str(shown.get("hint", "")), exit_code)


def _printable(value: Any) -> Any:
    """`value` with all control characters in its texts escaped: root asks pollers of other users, too."""
    if isinstance(value, str):
        return "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in value)
    if isinstance(value, list):
        return [_printable(one) for one in value]
    return {name: _printable(one) for name, one in value.items()} if isinstance(value, dict) else value
