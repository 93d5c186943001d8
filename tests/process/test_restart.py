"""`poll restart`: the same poller again, under the same pid, with nothing repeated and nothing lost."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from support.poller import COMMAND, Box

pytestmark = pytest.mark.slow


def test_restart_when_receivers_run_then_same_pid_new_start_and_nothing_repeated(box: Box) -> None:
    refs = [box.item(f"item-{number}") for number in range(8)]
    box.configure(routing={"maxConcurrentDispatches": 8})
    box.sink.behave(("*", {"gate": box.sink.gate("open")}))
    poller = box.start(env={"MARK_OF_THE_STARTER": "yes"})
    box.wait(lambda: len(box.sink.runs()) == 8, "eight receivers")
    box.wait_for_cycles()

    done = box.run("poll", "restart")

    assert done.code == 0, done.err
    assert done.seconds < 5, "blocked deliveries are not waited for, let alone one after the other"
    status = box.run("poll", "status", "--json")
    assert (status.code, status.json()["pid"]) == (0, poller.pid)
    assert poller.is_alive
    started = [event["message"] for event in box.events("poller.started")]
    assert len(started) == 2
    assert b"MARK_OF_THE_STARTER=yes" in _environ(poller.pid)
    assert not [name for name in _environ(poller.pid) if name.startswith(b"THE_LOOP")]
    box.sink.open_gate("open")
    box.wait(lambda: not box.pending(), "the receipts")
    box.assert_once({ref: ["spawn:1"] for ref in refs})
    assert poller.stop() == 0


def _environ(pid: int) -> list[bytes]:
    return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")


@pytest.mark.parametrize("named", ["by an option", "by a relative path", "by the environment", "by its place"])
def test_restart_when_the_configuration_is_broken_then_refused_and_the_poller_goes_on(
    box: Box, tmp_path: Path, named: str
) -> None:
    """The file is the one that the poller would load, whatever the caller's own is."""
    file = tmp_path / "poller" / "the-loop" / "config.yaml"
    file.parent.mkdir(parents=True)
    file.write_bytes(box.config.read_bytes())
    start = f"exec {COMMAND} --config nowhere poll start --state-root {box.root}"
    relative = os.path.relpath(file, box.folder)
    commands = {
        "by an option": f"{start} --config={file}",
        "by a relative path": f"{start} --config {relative}",
        "by the environment": f"THE_LOOP_CONFIG={relative} {start.replace('--config nowhere', '')}",
        "by its place": f"XDG_CONFIG_HOME={tmp_path / 'poller'} {start.replace('--config nowhere', '')}",
    }
    poller = box.start(before=["sh", "-c", commands[named]])
    file.write_text("polling: {intervalSeconds: soon}")
    before = box.events("poller.started")

    done = box.run("poll", "restart", "--timeout", "10")

    assert (done.code, poller.is_alive) == (78, True)
    assert f"not restarted, pid {poller.pid} goes on: cannot use configuration '" in done.err
    assert "polling.intervalSeconds: " in done.err
    file.write_bytes(box.config.read_bytes())
    assert box.run("poll", "restart").code == 0
    assert len(box.events("poller.started")) == len(before) + 1
    assert poller.stop() == 0


def test_restart_ten_times_when_events_keep_coming_then_everything_once(box: Box) -> None:
    ref = box.item("a")
    poller = box.start()
    box.wait(lambda: box.events("poll.spawned"), "the spawn")
    for number in range(10):
        box.comment("a", f"c{number}")
        done = box.run("poll", "restart")
        assert done.code == 0, done.err
        assert poller.is_alive
    box.wait(lambda: len(box.sink.ids()) >= 11 and not box.pending(), "all of it")

    box.assert_once({ref: ["spawn:1", *(f"comment:c{number}" for number in range(10))]})


def test_restart_by_signal_when_the_configuration_is_broken_then_the_poller_goes_on(box: Box) -> None:
    ref = box.item("a")
    poller = box.start()
    box.wait(lambda: box.sink.ids() and not box.pending(), "the spawn")
    good = box.config.read_text()
    box.config.write_text("polling: [")

    poller.signal(signal.SIGUSR2)
    box.wait(lambda: box.events("config.rejected"), "the refusal")

    box.config.write_text(good)
    box.comment("a", "c1")
    box.wait(lambda: len(box.sink.ids()) == 2 and not box.pending(), "a comment, delivered by the same life")
    assert len(box.events("poller.started")) == 1
    assert poller.stop() == 0
    box.assert_once({ref: ["spawn:1", "comment:c1"]})
