"""The system service takes requests: its socket is in the runtime directory, and root asks for the service's user."""

from __future__ import annotations

import json
import stat
from typing import TYPE_CHECKING

import pytest

from support.system_install import SystemInstall

if TYPE_CHECKING:
    from collections.abc import Iterator

REF = "directory:inbox/a"


@pytest.fixture
def loop(installed: SystemInstall) -> Iterator[SystemInstall]:
    installed.clear()
    yield installed
    assert installed.journal("-t", "the-loop", "--grep=Traceback") == []


def ledger(loop: SystemInstall, *arguments: str) -> tuple[int, str]:
    """`the-loop ledger …` as root, with the built-in defaults."""
    done = loop.the_loop("ledger", *arguments, user=None, check=False)
    return done.returncode, done.stdout


def test_root_when_the_service_runs_then_its_requests_are_carried_out_and_no_file_is_roots(loop: SystemInstall) -> None:
    loop.configure(polling={"intervalSeconds": 86400, "maxRetries": 1})
    loop.sink.behave(("*", {"code": 9}))
    loop.item("a")
    loop.systemctl("start")
    loop.wait(lambda: loop.events("poll.spawn_failed"), "the rejection")
    record = json.loads(loop.seen(loop.root / "local" / "unit.json").read_bytes())
    socket = loop.seen(loop.wake_path.parent / "the-loop-poll" / "control.sock").lstat()
    assert record["control"] == "/run/the-loop/the-loop-poll/control.sock"
    assert (stat.S_IMODE(socket.st_mode), socket.st_uid) == (0o600, loop.user.uid)
    loop.sink.behave()

    assert ledger(loop, "retry", REF) == (0, f"to be retried: {REF}/spawn:1\n")
    loop.wait(lambda: loop.sink.ids() == [f"{REF}/spawn:1"] * 2, "the event, retried")
    loop.wait_until_settled([f"{REF}/spawn:1"])
    assert ledger(loop, "settle", REF, "spawn:1")[0] == 0
    assert ledger(loop, "reset", REF)[0] == 0
    loop.wait(lambda: loop.sink.ids()[-1] == f"{REF}/spawn:2", "the second start")
    loop.item("b")
    assert loop.poll("wake", "inbox").returncode == 0
    assert loop.poll("wake", "nowhere").returncode == 2
    loop.wait(lambda: loop.sink.ids()[-1] == "directory:inbox/b/spawn:1", "the item of the wake")

    loop.systemctl("stop")
    assert not loop.seen(loop.wake_path.parent / "the-loop-poll" / "control.sock").exists()
    assert ledger(loop, "reset", REF)[0] == 1, "root does not write there itself"
    found = loop.root_does(["find", str(loop.root), "!", "-user", "the-loop"])
    assert found.stdout == ""


def test_socket_when_the_service_was_killed_then_the_next_start_serves(loop: SystemInstall) -> None:
    loop.configure(polling={"intervalSeconds": 86400})
    loop.systemctl("start")
    loop.root_does(["systemctl", "kill", "--signal=KILL", loop.service])
    loop.wait(lambda: loop.property("SubState") == "auto-restart", "the pause before the restart")
    loop.item("a")

    assert loop.poll("wake", "inbox").returncode in (0, 3)  # 3: the pause is as long as a wake waits
    loop.wait(lambda: loop.is_active() == "active", "the restart")

    assert loop.poll("wake", "inbox").returncode == 0
    loop.wait_until_settled([f"{REF}/spawn:1"])


def test_trace_when_root_asks_about_the_system_service_then_it_is_told_as_to_its_user(loop: SystemInstall) -> None:
    loop.sink.behave(("*", {"gate": loop.gate("go")}))
    loop.systemctl("start")
    loop.item("a")
    loop.wait(loop.sink.ids, "a delivery that runs")

    for user in (None, "the-loop"):
        done = loop.the_loop("trace", "directory:inbox/a/spawn:1", "--json", user=user)
        found = json.loads(done.stdout)
        (unit,) = [one for one in loop.deliveries() if one.startswith("theloop-")]
        assert (found["state"], found["unit"], found["unreadable"]) == ("running", unit, [])
        assert f"in {unit}, active (running)" in found["summary"]
        assert "session.started" in [event["event"] for event in found["timeline"]]
        if user is None:
            assert unit in loop.root_does(found["commands"][0]).stdout
    loop.sink.open_gate("go")
    loop.wait_until_settled(["directory:inbox/a/spawn:1"])
