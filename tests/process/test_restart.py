"""`poll restart`: the same poller again, under the same pid, with nothing repeated and nothing lost."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.poller import Box

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


def test_restart_when_the_configuration_broke_meanwhile_then_no_success_is_claimed(box: Box) -> None:
    poller = box.start()
    box.write_config("polling: [")

    done = box.run("poll", "restart", "--timeout", "10")

    assert done.code in (1, 4)
    assert poller.wait() == 78
    assert re.search(r"did not start again|cannot use", done.err)


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
