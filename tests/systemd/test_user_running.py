"""Restart, take-over, queueing and wakes of a poller in the user's manager."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from support.box import COMMAND
from support.installed import Installed

if TYPE_CHECKING:
    from support.box import Box

HOURLY = {"intervalSeconds": 3600}
A_SPAWN = "directory:inbox/a/spawn:1"


def test_poll_restart_when_a_unit_runs_then_its_manager_restarts_it_and_the_delivery_goes_on(box: Box) -> None:
    with Installed(box) as loop:
        loop.sink.behave(("*", {"gate": loop.gate("gate")}))
        loop.item("a")
        loop.systemctl("start")
        loop.wait(loop.sink.ids, "a delivery that runs")
        before, pid, units = loop.property("InvocationID"), loop.main_pid(), loop.deliveries()

        done = loop.poll("restart")

        assert done.returncode == 0, done
        assert loop.property("InvocationID") != before
        assert loop.main_pid() not in (0, pid)
        assert loop.is_active() == "active"
        assert loop.status()["pid"] == loop.main_pid()
        assert loop.deliveries() == units
        loop.sink.open_gate("gate")
        loop.wait_until_settled([A_SPAWN])
        loop.assert_once([A_SPAWN])


def test_poll_restart_when_nothing_runs_then_nothing_is_started(box: Box) -> None:
    with Installed(box) as loop:
        done = loop.poll("restart")

        assert done.returncode == 3, done
        assert loop.is_active() == "inactive"


def test_poll_restart_when_the_new_start_fails_then_it_is_no_success(box: Box) -> None:
    with Installed(box, drop_in="[Service]\nRestartSec=60\n") as loop:
        loop.systemctl("start")
        loop.add_drop_in("60-broken.conf", "[Service]\nExecStartPre=/bin/false\n")

        done = loop.poll("restart", "--timeout", "10")

        assert done.returncode in (1, 4), done
        assert done.stderr.strip()


def test_takeover_when_a_unit_holds_the_lock_then_the_unit_is_stopped_first(box: Box) -> None:
    with Installed(box) as loop:
        loop.item("a")
        loop.systemctl("start")
        loop.wait_until_settled([A_SPAWN])

        with box.background([COMMAND, *loop.on_root("poll", "start", "--takeover")], user=loop.user.name):
            loop.wait(lambda: loop.is_active() == "inactive" and not loop.is_lock_free(), "another holder")

            status = loop.status()
            assert status["running"]
            assert status["unit"] is None
            loop.comment("a", "more")
            loop.wait_until_settled(["directory:inbox/a/comment:more"])
            loop.assert_once([A_SPAWN, "directory:inbox/a/comment:more"])


def test_takeover_when_the_unit_does_it_then_the_plain_poller_leaves_and_its_delivery_goes_on(box: Box) -> None:
    with Installed(box) as loop:
        loop.sink.behave(("*", {"gate": loop.gate("gate")}))
        loop.item("a")
        start = loop.command_line("poll", "start", "--takeover")
        loop.add_drop_in("60-takeover.conf", f"[Service]\nExecStart=\nExecStart={start}\n")
        with box.background([COMMAND, *loop.on_root("poll", "start")], user=loop.user.name):
            loop.wait(loop.sink.ids, "a delivery that runs")

            loop.systemctl("start")

            assert loop.status()["pid"] == loop.main_pid()
            loop.sink.open_gate("gate")
            loop.wait_until_settled([A_SPAWN])
            loop.assert_once([A_SPAWN])


def test_unit_when_another_poller_holds_the_lock_then_it_queues_and_is_ready_only_once_it_holds_it(box: Box) -> None:
    with Installed(box, drop_in="[Service]\nTimeoutStartSec=2\n") as loop:
        with box.background([COMMAND, *loop.on_root("poll", "start")], user=loop.user.name):
            loop.wait(lambda: not loop.is_lock_free(), "a poller in the foreground")
            holder = loop.status()["pid"]
            began = time.monotonic()
            loop.run(["systemctl", "--user", "start", "--no-block", "--", loop.service])

            loop.wait(lambda: str(holder) in loop.property("StatusText"), "a status that names the holder")
            loop.wait(lambda: time.monotonic() - began > 4, "twice the time that a start may take")
            assert loop.is_active() == "activating"
            assert loop.status()["pid"] == holder

        loop.wait(lambda: loop.is_active() == "active", "the start of the unit that queued")
        assert loop.status()["pid"] == loop.main_pid()


def test_wake_when_the_unit_runs_then_a_cycle_is_made_at_once(box: Box) -> None:
    with Installed(box, polling=HOURLY) as loop:
        loop.systemctl("start")
        loop.wait(lambda: loop.journal("THE_LOOP_EVENT=poll.cycle"), "the first cycle")
        loop.item("a")

        done = loop.poll("wake")

        assert done.returncode == 0, done
        loop.wait_until_settled([A_SPAWN])
        loop.comment("a", "more")
        loop.wake()
        loop.wait_until_settled(["directory:inbox/a/comment:more"])
        loop.assert_once([A_SPAWN, "directory:inbox/a/comment:more"])


def test_wake_when_the_unit_is_being_restarted_then_it_is_served_by_the_next_poller(box: Box) -> None:
    with Installed(box, polling=HOURLY, drop_in="[Service]\nExecStopPost=/bin/sleep 2\n") as loop:
        loop.systemctl("start")
        loop.wait(lambda: loop.journal("THE_LOOP_EVENT=poll.cycle"), "the first cycle")
        node = loop.seen(loop.wake_path).stat().st_ino
        loop.run(["systemctl", "--user", "restart", "--no-block", "--", loop.service])
        loop.wait(lambda: loop.property("SubState") == "stop-post", "the middle of a restart")

        loop.wake()
        done = loop.poll("wake")

        assert done.returncode == 0, done
        assert loop.seen(loop.wake_path).stat().st_ino == node
        loop.wait(lambda: loop.is_active() == "active", "the end of the restart")
        # the cycle that every start makes, and the one that was asked for
        loop.wait(lambda: len(loop.journal("THE_LOOP_EVENT=poll.cycle")) >= 3, "the cycle of the wake")


def test_wake_when_the_unit_waits_to_be_started_again_then_it_is_accepted_and_served(box: Box) -> None:
    with Installed(box, polling=HOURLY, drop_in="[Service]\nRestartSec=3\n") as loop:
        loop.systemctl("start")
        loop.wait(lambda: loop.journal("THE_LOOP_EVENT=poll.cycle"), "the first cycle")
        loop.run(["systemctl", "--user", "kill", "--signal=KILL", "--", loop.service])
        loop.wait(lambda: loop.property("SubState") == "auto-restart", "the pause after a crash")
        loop.item("a")

        done = loop.poll("wake")

        assert done.returncode == 0, done
        loop.wait_until_settled([A_SPAWN])
        loop.assert_once([A_SPAWN])


def test_wake_when_nothing_runs_then_it_says_so_and_starts_nothing(box: Box) -> None:
    with Installed(box) as loop:
        assert loop.poll("wake").returncode == 3
        loop.systemctl("start")
        loop.systemctl("stop")

        assert loop.poll("wake").returncode == 3
        loop.wake()
        assert loop.is_active() == "inactive"
        assert loop.is_lock_free()


def test_socket_when_it_is_started_alone_then_a_wake_starts_the_poller(box: Box) -> None:
    with Installed(box) as loop:
        loop.item("a")
        loop.run(["systemctl", "--user", "start", "--", loop.socket])
        assert loop.is_active() == "inactive"

        loop.wake()

        loop.wait_until_settled([A_SPAWN])
        assert loop.is_active() == "active"
