"""The notify protocol: every kind of socket, and a broken one that is said once and costs nothing (contract R8.2)."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest

from support.processes import LIMIT_S, python_argv
from the_loop.supervision.notify import Notifier

NAMES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")


class Manager:
    """The socket of a service manager, and what was sent to it."""

    def __init__(self, address: str | bytes) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(address)
        self.socket.settimeout(LIMIT_S)

    def told(self) -> list[bytes]:
        """The next message, line by line."""
        return self.socket.recv(65536).split(b"\n")

    def close(self) -> None:
        self.socket.close()


def fill(address: bytes) -> None:
    """Send until nobody can send any more: a sender's own buffer is full before the receiver's queue is."""
    with ExitStack() as stack:
        sent = 1
        while sent:
            sender = stack.enter_context(closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)))
            sender.settimeout(0)
            sender.connect(address)
            sent = 0
            with suppress(BlockingIOError):
                while True:
                    sent += sender.send(b"x" * 100)


Start = Callable[[str], tuple[Notifier, list[str]]]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Starts notifiers from the environment: each with the list of its complaints."""
    with ExitStack() as stack:

        def begin(address: str) -> tuple[Notifier, list[str]]:
            complaints: list[str] = []
            monkeypatch.setenv("NOTIFY_SOCKET", address)
            notifier = Notifier(os.environ, complaints.append)
            if notifier._notifier is not None:
                stack.callback(notifier._notifier.socket.close)
            return notifier, complaints

        yield begin


def test_notifier_without_a_socket_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    complaints: list[str] = []

    silent = Notifier(os.environ, complaints.append)
    silent.ready("x")
    silent.watchdog()
    silent.stopping()

    assert (silent.watchdog_s, complaints) == (None, [])


@pytest.mark.parametrize("kind", ["path", "abstract", "abstract with odd bytes"])
def test_messages_arrive_at_every_kind_of_socket(tmp_path: Path, start: Start, kind: str) -> None:
    name = f"loop-test-{os.getpid()}"
    match kind:
        case "path":
            address, bound = str(tmp_path / "notify"), str(tmp_path / "notify").encode()
        case "abstract":
            address, bound = f"@{name}", b"\0" + name.encode()
        case _:
            address, bound = f"@{name}/é:@x", b"\0" + f"{name}/é:@x".encode()
    with closing(Manager(bound)) as manager:
        sent, complaints = start(address)

        sent.ready("first cycle")
        sent.status("3 items")
        sent.watchdog()
        sent.reloading()
        sent.stopping()

        assert manager.told() == [b"READY=1", b"STATUS=first cycle"]
        assert manager.told() == [b"STATUS=3 items"]
        assert manager.told() == [b"WATCHDOG=1"]
        assert manager.told()[0] == b"RELOADING=1"
        assert manager.told() == [b"STOPPING=1"]
    assert complaints == []


def test_status_of_any_text_is_one_line_and_no_other_message(start: Start) -> None:
    address = f"@loop-test-{os.getpid()}"
    with closing(Manager(b"\0" + address[1:].encode())) as manager:
        sent, _ = start(address)

        sent.status("a\nWATCHDOG=trigger\r\0日本 \ud800é")

        (line,) = manager.told()
    assert re.fullmatch(rb"STATUS=a WATCHDOG=trigger  [ -~]*", line)


@pytest.mark.parametrize("kind", ["missing", "120 characters", "a file", "a directory", "a stream", "empty name"])
@pytest.mark.timeout(20)
# NB: the library leaves a socket that cannot be connected to the collector
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_broken_socket_is_said_once_and_nothing_hangs(tmp_path: Path, start: Start, kind: str) -> None:
    address = tmp_path / "notify"
    stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    match kind:
        case "120 characters":
            address = Path("/" + "x" * 119)
        case "a file":
            address.write_bytes(b"")
        case "a directory":
            address.mkdir()
        case "a stream":
            stream.bind(str(address))
            stream.listen()
        case "empty name":
            address = Path("@")
    began = time.monotonic()

    with closing(stream):
        sent, complaints = start(str(address))
        for _ in range(3):
            sent.ready("x")
            sent.status("y")
            sent.watchdog()

    assert time.monotonic() - began < 1
    assert len(complaints) == 1
    assert complaints[0].startswith("cannot notify the service manager: ")
    assert "NOTIFY_SOCKET" not in os.environ


@pytest.mark.timeout(20)
def test_full_queue_is_said_once_and_messages_arrive_again_when_it_is_read(start: Start) -> None:
    address = f"@loop-test-{os.getpid()}"
    with closing(Manager(b"\0" + address[1:].encode())) as manager:
        fill(b"\0" + address[1:].encode())
        sent, complaints = start(address)
        began = time.monotonic()

        for _ in range(3):
            sent.watchdog()

        assert time.monotonic() - began < 1
        assert len(complaints) == 1
        manager.socket.setblocking(False)
        with suppress(BlockingIOError):
            while True:
                manager.told()
        manager.socket.settimeout(LIMIT_S)
        sent.status("back")
        assert manager.told() == [b"STATUS=back"]


@pytest.mark.timeout(20)
def test_manager_that_went_away_is_said_once(start: Start) -> None:
    address = f"@loop-test-{os.getpid()}"
    with closing(Manager(b"\0" + address[1:].encode())):
        sent, complaints = start(address)

    for _ in range(3):
        sent.watchdog()

    assert len(complaints) == 1


def test_children_inherit_neither_variables_nor_the_socket(monkeypatch: pytest.MonkeyPatch, start: Start) -> None:
    address = f"@loop-test-{os.getpid()}"
    monkeypatch.setenv("WATCHDOG_USEC", "2000000")
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
    script = """
        import os
        from pathlib import Path
        print(sorted(os.environ))
        for number in range(3, 256):
            link = Path(f"/proc/self/fd/{number}")
            if link.is_symlink():
                print(link.readlink())
    """
    with closing(Manager(b"\0" + address[1:].encode())):
        sent, _ = start(address)
        inode = os.fstat(sent._notifier.socket.fileno()).st_ino if sent._notifier else 0

        done = subprocess.run(
            python_argv(script), capture_output=True, text=True, timeout=LIMIT_S, check=True, close_fds=False
        )

    assert sent.watchdog_s == 1.0
    assert not any(name in os.environ for name in NAMES)
    assert not any(name in done.stdout for name in NAMES)
    assert inode
    assert f"socket:[{inode}]" not in done.stdout


@pytest.mark.parametrize(
    ("usec", "half_s"),
    [
        ("500000", 0.25),
        ("2000000", 1.0),
        ("1", 0.5e-6),
        ("0", None),
        ("-5", None),
        ("abc", None),
        ("", None),
        ("1e6", None),
        ("5.0", None),
        ("²", None),
        (" 5", None),
        ("9" * 400, None),
        ("9" * 5000, None),
    ],
)
def test_watchdog_period_is_half_the_managers_and_none_for_a_bad_value(usec: str, half_s: float | None) -> None:
    assert Notifier({"WATCHDOG_USEC": usec}, print).watchdog_s == half_s


@pytest.mark.parametrize("pid", [1, 0, -1, os.getppid()])
def test_watchdog_meant_for_another_process_is_not_obeyed(pid: int) -> None:
    assert Notifier({"WATCHDOG_USEC": "500000", "WATCHDOG_PID": str(pid)}, print).watchdog_s is None


def test_watchdog_meant_for_us_is_obeyed() -> None:
    assert Notifier({"WATCHDOG_USEC": "500000", "WATCHDOG_PID": str(os.getpid())}, print).watchdog_s == 0.25


@pytest.mark.parametrize("pid", ["abc", "12 34", "9" * 5000])
def test_watchdog_pid_that_is_garbage_is_not_ours(pid: str) -> None:
    assert Notifier({"WATCHDOG_USEC": "500000", "WATCHDOG_PID": pid}, print).watchdog_s is None
