"""The timer in the place of cron: it goes on after every outcome, and never meets the daemon at work."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

import pytest

from support.system_install import ONCE, TIMER, SystemInstall

if TYPE_CHECKING:
    from collections.abc import Iterator


SPAWN = "directory:inbox/a/spawn:1"
COMMENT = "directory:inbox/a/comment:c1"
QUICK = """[Timer]
OnBootSec=
OnUnitInactiveSec=
OnBootSec=1s
OnUnitInactiveSec={pace}
RandomizedDelaySec=0
AccuracySec=1ms
"""


@pytest.fixture
def loop(installed: SystemInstall) -> Iterator[SystemInstall]:
    installed.clear()
    installed.add_drop_in("50-quick.conf", QUICK.format(pace="500ms"), TIMER)
    yield installed
    assert installed.journal("-t", "the-loop", "--grep=Traceback") == []


def enable(loop: SystemInstall) -> None:
    loop.root_does(["systemctl", "enable", "--now", TIMER], check=True)


def ticks(loop: SystemInstall) -> int:
    """How many times the manager has started a run so far."""
    return len(loop.journal(f"UNIT={ONCE}", "JOB_TYPE=start", "JOB_RESULT=done")) + len(
        loop.journal(f"UNIT={ONCE}", "JOB_TYPE=start", "JOB_RESULT=failed")
    )


def wait_for_ticks(loop: SystemInstall, more: int) -> None:
    before = ticks(loop)
    loop.wait(lambda: ticks(loop) >= before + more, f"{more} runs", 40)


def test_timer_when_enabled_then_runs_deliver_one_after_the_other(loop: SystemInstall) -> None:
    enable(loop)
    loop.item("a")
    loop.wait_until_settled([SPAWN])
    loop.comment("a", "c1")
    loop.wait_until_settled([SPAWN, COMMENT])

    wait_for_ticks(loop, 8)  # at this pace a start limit would have hit

    loop.assert_once([SPAWN, COMMENT])
    assert loop.failed() == []


@pytest.mark.parametrize("way", ["power cut", "halt"])
def test_timer_when_the_machine_boots_then_is_armed_again(loop: SystemInstall, way: str) -> None:
    enable(loop)
    wait_for_ticks(loop, 1)

    loop.container.down() if way == "power cut" else loop.container.halt()
    loop.container.up()

    loop.item("a")
    loop.wait_until_settled([SPAWN])
    wait_for_ticks(loop, 2)
    loop.assert_once([SPAWN])


def test_timer_when_a_run_was_refused_or_failed_or_was_killed_then_goes_on(loop: SystemInstall) -> None:
    enable(loop)
    wait_for_ticks(loop, 1)

    loop.systemctl("start")  # refused: 75
    wait_for_ticks(loop, 2)
    assert loop.failed() == []
    loop.systemctl("stop")

    loop.write(loop.config, "nonsense: [\n", owner=0)  # fails: 78
    wait_for_ticks(loop, 2)
    loop.configure(session={"command": ["sleep", "60"]})  # killed at work
    loop.item("b")
    loop.wait(lambda: loop.deliveries() != [], "a run at work", 40)
    loop.root_does(["systemctl", "kill", "--signal=KILL", ONCE])
    loop.configure()
    loop.run(["systemctl", "--user", "stop", *loop.deliveries()], check=False)

    loop.item("a")
    loop.wait(lambda: SPAWN in loop.sink.ids(), "a delivery of a later run", 40)


def test_daemon_when_the_timer_fires_all_the_time_then_it_alone_acts(loop: SystemInstall) -> None:
    loop.add_drop_in("51-pace.conf", "[Timer]\nOnUnitInactiveSec=100ms\n", TIMER)
    loop.systemctl("start")
    pid = loop.main_pid()
    enable(loop)
    expected = []
    for number in range(6):
        expected.append(loop.item(f"item{number}") + "/spawn:1")
        wait_for_ticks(loop, 2)

    loop.wait_until_settled(expected)

    loop.assert_once(expected)
    assert loop.main_pid() == pid
    assert loop.failed() == []
    blocked = loop.events("poller.blocked")
    assert len(blocked) >= 10
    assert {event["level"] for event in blocked} == {"info"}
    assert all(str(pid) in event["reason"] for event in blocked)
    entries = loop.journal("-t", "the-loop", f"_SYSTEMD_UNIT={ONCE}")
    assert {entry["PRIORITY"] for entry in entries} <= {"5", "6"}
    assert {entry.get("THE_LOOP_EVENT", "") for entry in entries} == {"poller.blocked", ""}


def test_daemon_when_started_while_a_run_is_at_work_then_waits_for_it_however_long_that_takes(
    loop: SystemInstall,
) -> None:
    loop.add_drop_in("60-patience.conf", "[Service]\nTimeoutStartSec=2s\n")
    loop.sink.behave(("*", {"gate": loop.gate("go")}))
    loop.item("a")
    loop.root_does(["systemctl", "start", "--no-block", ONCE])
    loop.wait(lambda: loop.sink.ids() == [SPAWN], "the run's delivery")
    holder = loop.property("MainPID", ONCE)

    loop.root_does(["systemctl", "start", "--no-block", loop.service])
    loop.wait(lambda: "waiting for" in loop.property("StatusText"), "the wait")
    began = time.monotonic()
    assert re.search(rf"\b{holder}\b", loop.property("StatusText"))
    while time.monotonic() - began < 4:  # longer than the start may take by itself
        assert loop.is_active() == "activating"
        time.sleep(0.2)
    loop.sink.open_gate("go")

    loop.wait_until_up()
    loop.comment("a", "c1")
    loop.wait_until_settled([SPAWN, COMMENT])
    loop.assert_once([SPAWN, COMMENT])
    assert loop.failed() == []


def test_run_when_stopped_at_work_then_its_delivery_goes_on_and_a_later_run_picks_it_up(loop: SystemInstall) -> None:
    loop.sink.behave(("*", {"gate": loop.gate("go")}))
    loop.item("a")
    loop.root_does(["systemctl", "start", "--no-block", ONCE])
    loop.wait(lambda: loop.sink.ids() == [SPAWN], "the delivery")

    loop.systemctl("stop", ONCE)
    assert loop.property("Result", ONCE) == "success"
    loop.sink.open_gate("go")
    loop.wait(lambda: loop.sink.runs()[0].end is not None, "its end")
    loop.systemctl("start", ONCE)

    assert loop.pending() == {}
    loop.assert_once([SPAWN])
