"""Restart, take-over, queueing and wakes of a poller in the user's manager."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from support.container import COMMAND
from support.github.fake import FakeGitHub
from support.http_server import FakeServer
from support.installed import QUICK, REPO, TOKEN, Installed, github_source, ref

if TYPE_CHECKING:
    from support.container import Container

HOURLY = {"intervalSeconds": 3600}
A_SPAWN = "directory:inbox/a/spawn:1"
B_SPAWN = "directory:inbox/b/spawn:1"


def test_poll_restart_when_a_unit_runs_then_its_manager_restarts_it_and_the_delivery_goes_on(
    container: Container,
) -> None:
    with Installed(container) as loop:
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


def test_poll_restart_when_nothing_runs_then_nothing_is_started(container: Container) -> None:
    with Installed(container) as loop:
        done = loop.poll("restart")

        assert done.returncode == 3, done
        assert loop.is_active() == "inactive"


def test_poll_restart_when_the_new_start_fails_then_it_is_no_success(container: Container) -> None:
    with Installed(container, drop_in="[Service]\nRestartSec=60\n") as loop:
        loop.systemctl("start")
        loop.add_drop_in("60-broken.conf", "[Service]\nExecStartPre=/bin/false\n")

        done = loop.poll("restart", "--timeout", "10")

        assert done.returncode in (1, 4), done
        assert done.stderr.strip()


def test_takeover_when_a_unit_holds_the_lock_then_the_unit_is_stopped_first(container: Container) -> None:
    with Installed(container) as loop:
        loop.item("a")
        loop.systemctl("start")
        loop.wait_until_settled([A_SPAWN])

        with container.background([COMMAND, *loop.on_root("poll", "start", "--takeover")], user=loop.user.name):
            loop.wait(lambda: loop.is_active() == "inactive" and not loop.is_lock_free(), "another holder")

            status = loop.status()
            assert status["running"]
            assert status["unit"] is None
            loop.comment("a", "more")
            loop.wait_until_settled(["directory:inbox/a/comment:more"])
            loop.assert_once([A_SPAWN, "directory:inbox/a/comment:more"])


def test_takeover_when_the_unit_does_it_then_the_plain_poller_leaves_and_its_delivery_goes_on(
    container: Container,
) -> None:
    with Installed(container) as loop:
        loop.sink.behave(("*", {"gate": loop.gate("gate")}))
        loop.item("a")
        start = loop.command_line("poll", "start", "--takeover")
        loop.add_drop_in("60-takeover.conf", f"[Service]\nExecStart=\nExecStart={start}\n")
        with container.background([COMMAND, *loop.on_root("poll", "start")], user=loop.user.name):
            loop.wait(loop.sink.ids, "a delivery that runs")

            loop.systemctl("start")

            assert loop.status()["pid"] == loop.main_pid()
            loop.sink.open_gate("gate")
            loop.wait_until_settled([A_SPAWN])
            loop.assert_once([A_SPAWN])


def test_unit_when_another_poller_holds_the_lock_then_it_queues_and_is_ready_only_once_it_holds_it(
    container: Container,
) -> None:
    with Installed(container, drop_in="[Service]\nTimeoutStartSec=2\n") as loop:
        with container.background([COMMAND, *loop.on_root("poll", "start")], user=loop.user.name):
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


def test_wake_when_the_unit_runs_then_a_cycle_is_made_at_once(container: Container) -> None:
    with Installed(container, polling=HOURLY) as loop:
        loop.systemctl("start")
        loop.wait(lambda: loop.status()["lastGoodCycleAt"], "the first cycle")
        loop.item("a")

        done = loop.poll("wake")

        assert done.returncode == 0, done
        loop.wait_until_settled([A_SPAWN])
        loop.comment("a", "more")
        loop.wake()
        loop.wait_until_settled(["directory:inbox/a/comment:more"])
        loop.assert_once([A_SPAWN, "directory:inbox/a/comment:more"])


def test_wake_when_the_unit_is_being_restarted_then_it_is_served_by_the_next_poller(container: Container) -> None:
    with Installed(container, polling=HOURLY, drop_in="[Service]\nExecStopPost=/bin/sleep 2\n") as loop:
        loop.systemctl("start")
        loop.wait(lambda: loop.status()["lastGoodCycleAt"], "the first cycle")
        node = loop.seen(loop.wake_path).stat().st_ino
        loop.run(["systemctl", "--user", "restart", "--no-block", "--", loop.service])
        loop.wait(lambda: loop.property("SubState") == "stop-post", "the middle of a restart")

        loop.wake()
        done = loop.poll("wake")

        assert done.returncode == 0, done
        assert loop.seen(loop.wake_path).stat().st_ino == node
        loop.wait(lambda: loop.is_active() == "active", "the end of the restart")
        loop.wait(
            lambda: loop.journal("THE_LOOP_EVENT=poll.cycle"), "the cycle of the wake: that of a start is not told"
        )


def test_wake_when_the_unit_waits_to_be_started_again_then_it_is_accepted_and_served(container: Container) -> None:
    with Installed(container, polling=HOURLY, drop_in="[Service]\nRestartSec=3\n") as loop:
        loop.systemctl("start")
        loop.wait(lambda: loop.status()["lastGoodCycleAt"], "the first cycle")
        loop.run(["systemctl", "--user", "kill", "--signal=KILL", "--", loop.service])
        loop.wait(lambda: loop.property("SubState") == "auto-restart", "the pause after a crash")
        loop.item("a")

        done = loop.poll("wake")

        assert done.returncode == 0, done
        loop.wait_until_settled([A_SPAWN])
        loop.assert_once([A_SPAWN])


def test_wake_when_sent_around_an_automatic_restart_then_it_is_accepted_whenever_it_comes(container: Container) -> None:
    with Installed(container, polling=HOURLY, drop_in="[Service]\nRestartSec=1\n") as loop:
        loop.systemctl("start")
        wake = loop.command_line("poll", "wake")
        codes = {}
        for after_s in (0.5, 0.9, 1.0, 1.1):
            kill = f"systemctl --user kill --signal=KILL {loop.service}; sleep {after_s}; exec {wake}"
            codes[after_s] = loop.run(kill, check=False).returncode
            loop.wait(lambda: loop.is_active() == "active", "the automatic restart")

        assert codes == dict.fromkeys(codes, 0)


def test_wake_when_nothing_runs_then_it_says_so_and_starts_nothing(container: Container) -> None:
    with Installed(container) as loop:
        assert loop.poll("wake").returncode == 3
        loop.systemctl("start")
        loop.systemctl("stop")

        assert loop.poll("wake").returncode == 3
        loop.wake()
        assert loop.is_active() == "inactive"
        assert loop.is_lock_free()


def test_socket_when_it_is_started_alone_then_a_wake_starts_the_poller(container: Container) -> None:
    with Installed(container) as loop:
        loop.item("a")
        loop.run(["systemctl", "--user", "start", "--", loop.socket])
        assert loop.is_active() == "inactive"

        loop.wake()

        loop.wait_until_settled([A_SPAWN])
        assert loop.is_active() == "active"


def test_watchdog_when_the_poller_is_idle_or_waits_for_a_delivery_then_it_is_content(container: Container) -> None:
    with Installed(container, polling=HOURLY, drop_in="[Service]\nWatchdogSec=1\n") as loop:
        loop.sink.behave(("*", {"gate": loop.gate("gate")}))
        loop.item("a")
        loop.systemctl("start")
        loop.wait(loop.sink.ids, "a delivery that runs")
        pid, began = loop.main_pid(), time.monotonic()

        loop.wait(lambda: time.monotonic() - began > 3, "three periods of the watchdog")

        assert loop.main_pid() == pid
        assert loop.property("NRestarts") == "0"
        loop.sink.open_gate("gate")
        loop.wait_until_settled([A_SPAWN])


def test_reload_when_the_configuration_is_good_or_broken_then_it_is_taken_as_a_whole_or_not_at_all(
    container: Container,
) -> None:
    with Installed(container, polling=HOURLY) as loop:
        loop.item("a")
        loop.systemctl("start")
        loop.wait_until_settled([A_SPAWN])
        pid = loop.main_pid()
        good = loop.seen(loop.config).read_text()
        loop.write(loop.config, good.replace("intervalSeconds", "intervallSeconds"))

        assert loop.systemctl("reload", check=False).returncode != 0
        assert (loop.is_active(), loop.main_pid()) == ("active", pid)

        loop.item("b")
        loop.configure(polling={"intervalSeconds": 1})
        loop.systemctl("reload")
        loop.wait_until_settled([B_SPAWN])
        loop.comment("b", "more")
        loop.wait_until_settled(["directory:inbox/b/comment:more"])
        assert loop.main_pid() == pid
        loop.assert_once([A_SPAWN, B_SPAWN, "directory:inbox/b/comment:more"])


@pytest.mark.parametrize(
    ("drop_in", "status"),
    [
        ("ExecStartPre=/bin/sh -c 'echo nonsense: >%h/.config/the-loop/config.yaml'", "78"),
        ("LoadCredential=github-token:%h/not-there", "243"),
    ],
    ids=["configuration", "credential"],
)
def test_unit_when_it_can_never_work_then_it_fails_once_and_no_wake_makes_a_storm(
    container: Container, drop_in: str, status: str
) -> None:
    with Installed(container, drop_in=f"{QUICK}{drop_in}\n") as loop:
        loop.systemctl("start", check=False)
        loop.wait(lambda: loop.is_active() == "failed", "the failure")

        for _ in range(5):
            loop.wake()

        assert loop.property("ExecMainStatus") == status
        assert loop.property("NRestarts") == "0"
        assert loop.is_active() == "failed"
        said = container.run(["journalctl", "--quiet", "--output=cat", f"_UID={loop.user.uid}"]).stdout
        assert said.count(f"Starting {loop.service}") == 1


def test_credential_when_the_unit_loads_it_then_the_source_asks_with_it(container: Container) -> None:
    github = FakeGitHub(time.time, tokens={TOKEN: "octocat"})
    github.add_repo(REPO)
    github.add_issue(REPO, labels=["auto"])
    drop_in = "[Service]\nLoadCredential=github-token:%h/.config/the-loop/token\n"
    with FakeServer(github) as server:
        source = {**github_source(server.url), "credential": "github-token"}
        del source["tokenFile"]
        with Installed(container, sources=[source], drop_in=drop_in) as loop:
            loop.systemctl("start")

            loop.wait_until_settled([ref(1, "spawn:1")])

            loop.assert_once([ref(1, "spawn:1")])


def test_helpers_of_systemd_when_a_delivery_is_made_then_none_is_called(container: Container) -> None:
    dump = '#!/bin/sh\nenv >>"$HOME/helped"\nexec "/usr/bin/$(basename "$0")" "$@"\n'
    drop_in = f"[Service]\nEnvironment=GITHUB_TOKEN={TOKEN}\nEnvironment=PATH=%h/bin:/usr/bin:/bin\n"
    with Installed(container, drop_in=drop_in) as loop:
        for name in ("systemctl", "systemd-run"):
            loop.write(loop.home / "bin" / name, dump, mode=0o755)
        loop.item("a")
        loop.systemctl("start")
        loop.wait_until_settled([A_SPAWN])

        assert loop.run(["cat", "helped"], check=False).returncode == 1, "a delivery needs none"
