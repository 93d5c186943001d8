"""What the service manager is told, by whom, and when; and that no child hears of its socket."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import struct
import threading
import time
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from support.poller import Box, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow


@dataclass
class Manager:
    """The receiving end of NOTIFY_SOCKET: messages with their moment and sender."""

    address: str
    messages: list[tuple[float, int, str]] = field(default_factory=list)

    def texts(self) -> list[str]:
        return [text for _, _, text in list(self.messages)]

    def times(self, part: str) -> list[float]:
        return [moment for moment, _, text in list(self.messages) if part in text]

    def senders(self) -> set[int]:
        return {pid for _, pid, _ in self.messages}


def _listen(receiver: socket.socket, manager: Manager) -> None:
    space = socket.CMSG_SPACE(struct.calcsize("3i"))
    while True:
        data, ancillary, _, _ = receiver.recvmsg(65536, space)
        if data == b"end of the test":
            return
        pid = struct.unpack("3i", ancillary[0][2])[0]
        manager.messages.append((time.monotonic(), pid, data.decode()))


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Manager]:
    name = (
        str(tmp_path / "notify") if request.param == "path" else f"@the-loop-test-{os.getpid()}-{time.monotonic_ns()}"
    )
    bound = name.replace("@", "\0", 1)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(bound)
        receiver.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        found = Manager(name)
        thread = threading.Thread(target=_listen, args=(receiver, found), daemon=True)
        thread.start()
        yield found
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ender:
            ender.sendto(b"end of the test", bound)
        thread.join(5)


def test_manager_when_the_poller_lives_then_ready_status_watchdog_and_stopping_come_from_it(
    box: Box, manager: Manager
) -> None:
    box.item("a")
    box.sink.behave(("*", {"env": True}))
    box.configure(polling={"intervalSeconds": 60})
    (box.folder / "credentials").mkdir()
    extra = {
        "NOTIFY_SOCKET": manager.address,
        "WATCHDOG_USEC": "2000000",
        "LISTEN_PID": "1",
        "LISTEN_FDS": "1",
        "LISTEN_FDNAMES": "x",
        "FDSTORE": "8",
        "CREDENTIALS_DIRECTORY": str(box.folder / "credentials"),
        "GITHUB_TOKEN": "a-secret",
        "THE_LOOP_STATE_ROOT": str(box.root),
        "INVOCATION_ID": "0" * 32,
        "JOURNAL_STREAM": "1:2",
    }
    poller = box.start(env=extra)
    box.wait(lambda: box.sink.ids() and not box.pending(), "the delivery")
    box.wait(lambda: len(manager.times("WATCHDOG=1")) >= 4, "four pings")
    assert poller.stop() == 0
    wait_for(lambda: "STOPPING=1" in " ".join(manager.texts()), "STOPPING")

    assert manager.senders() == {poller.pid}
    texts = manager.texts()
    first_cycle = next(
        number for number, text in enumerate(texts) if re.search("^STATUS=.*1 items", text, re.MULTILINE)
    )
    assert any("READY=1" in text for text in texts[:first_cycle]), "ready before the first cycle"
    pings = manager.times("WATCHDOG=1")
    assert max(later - earlier for earlier, later in pairwise(pings)) < 1.5, "half of two seconds"
    environment = json.loads(next(box.sink.folder.glob("env.*.json")).read_text())
    assert not set(environment) & (set(extra) | {"WATCHDOG_PID"})
    assert "a-secret" not in json.dumps(environment)
    text = "".join(path.read_text("utf-8", "replace") for path in box.root.rglob("*") if path.is_file())
    assert "a-secret" not in text


def test_manager_when_a_receiver_is_slow_or_wedged_then_pings_go_on(box: Box, manager: Manager) -> None:
    box.item("a")
    box.sink.behave(("*", {"hang": True, "ignore_term": True}))
    box.start(env={"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "500000"})
    box.wait(box.sink.ids, "the receiver")
    before = len(manager.times("WATCHDOG=1"))
    box.wait(lambda: len(manager.times("WATCHDOG=1")) >= before + 6, "six more pings")


def test_manager_when_reloaded_and_restarted_then_told_so(box: Box, manager: Manager) -> None:
    poller = box.start(env={"NOTIFY_SOCKET": manager.address})
    box.wait_for_cycles()
    poller.signal(signal.SIGHUP)
    box.wait(lambda: box.events("config.reloaded"), "the reload")
    box.wait(lambda: manager.times("RELOADING=1"), "RELOADING")
    assert len(box.wait(lambda: manager.times("READY=1")[1:], "READY after the reload")) == 1
    assert box.run("poll", "restart").code == 0
    box.wait(lambda: len(manager.times("READY=1")) == 3, "READY of the new start, which has the socket again")
    assert poller.stop() == 0

    assert manager.senders() == {poller.pid}


@pytest.mark.parametrize("address", ["/nowhere/notify", "relative", "@", "@nobody-listens-here", "x" * 200])
def test_poller_when_the_notify_socket_is_broken_then_it_works_and_says_so_at_most_once(box: Box, address: str) -> None:
    ref = box.item("a")

    done = box.once(env={"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "nonsense"})

    assert done.code == 0
    assert done.err.count("notify") <= 2  # one sentence, which may name the path
    box.assert_once({ref: ["spawn:1"]})


def test_poller_when_the_manager_reads_nothing_then_it_does_not_block(box: Box) -> None:
    ref = box.item("a")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(box.folder / "notify"))
        poller = box.start(env={"NOTIFY_SOCKET": str(box.folder / "notify"), "WATCHDOG_USEC": "20000"})
        box.wait_for_cycles(3)
        box.wait(lambda: not box.pending(), "the delivery")
        assert poller.stop() == 0
    box.assert_once({ref: ["spawn:1"]})


def test_watchdog_when_meant_for_another_process_then_no_pings(box: Box, manager: Manager) -> None:
    env = {"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "100000", "WATCHDOG_PID": str(os.getpid())}
    poller = box.start(env=env)
    box.wait_for_cycles(2)
    assert poller.stop() == 0

    assert manager.times("WATCHDOG=1") == []
