"""Stopping the system service: by whom, in every state it can be in, and whatever tries to bring it back."""

from __future__ import annotations

import re
import sys
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from support.container import COMMAND
from support.system_install import ONCE, TIMER, SystemInstall

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.container import Container, User

ROOT = "/var/lib/the-loop"
SPAWN = "directory:inbox/a/spawn:1"
SLOW = "[Service]\nRestartSec=2s\n"


@pytest.fixture
def loop(installed: SystemInstall) -> Iterator[SystemInstall]:
    installed.clear()
    yield installed
    assert installed.journal("-t", "the-loop", "--grep=Traceback") == []


@pytest.fixture(scope="module")
def bob(container: Container) -> Iterator[User]:
    yield container.add_user("bob-of-the-system", linger=False)
    container.remove_user("bob-of-the-system")


def up(loop: SystemInstall) -> int:
    loop.systemctl("start")
    return loop.main_pid()


def is_down(loop: SystemInstall) -> bool:
    return loop.is_active() == "inactive" and loop.property("ActiveState", loop.socket) == "inactive"


# --- by whom ---


def test_stop_when_root_asks_then_unit_and_socket_are_down_and_the_lock_is_free(loop: SystemInstall) -> None:
    pid = up(loop)

    done = loop.poll("stop")

    assert done.returncode == 0
    assert str(pid) in done.stderr
    assert is_down(loop)
    assert loop.is_lock_free()
    assert loop.poll("stop").returncode == 3
    assert loop.poll("status").returncode == 3
    assert loop.poll("restart").returncode == 3
    assert loop.poll("wake").returncode == 3


@pytest.mark.parametrize("verb", ["stop", "restart"])
def test_stop_when_the_services_own_user_asks_then_refuses_at_once_and_names_what_to_type(
    loop: SystemInstall, verb: str
) -> None:
    pid = up(loop)
    began = time.monotonic()

    done = loop.poll(verb, user="the-loop", env={"XDG_RUNTIME_DIR": None})

    assert done.returncode == 4
    assert time.monotonic() - began < 15
    assert f"systemctl --system {verb} the-loop-poll.service" in done.stderr
    assert "assword" not in done.stdout + done.stderr
    assert loop.main_pid() == pid


def test_stop_when_another_user_asks_then_refuses_and_names_the_unit(loop: SystemInstall, bob: User) -> None:
    pid = up(loop)

    done = loop.poll("stop", "--state-root", ROOT, user=bob.name)

    assert done.returncode == 4
    assert "the-loop-poll.service" in done.stderr
    assert loop.main_pid() == pid


def test_stop_and_status_when_another_user_asks_about_an_own_root_then_mention_the_systems_unit(
    loop: SystemInstall, bob: User
) -> None:
    up(loop)

    stop, status = (loop.poll(verb, user=bob.name) for verb in ("stop", "status"))

    assert (stop.returncode, status.returncode) == (3, 3)
    assert "the-loop-poll.service" in stop.stderr
    assert "the-loop-poll.service" in status.stdout + status.stderr
    assert loop.is_active() == "active"


def test_status_when_asked_then_tells_unit_and_holder_and_is_unknown_to_others(loop: SystemInstall, bob: User) -> None:
    pid = up(loop)
    loop.wait(lambda: loop.status()["lastGoodCycleAt"], "the first cycle")

    for user in (None, "the-loop"):
        status = loop.poll("status", "--json", user=user)
        value = loop.status()
        assert status.returncode == 0
        assert (value["running"], value["pid"], value["stateRoot"]) == (True, pid, ROOT)
        expected = {"name": loop.service, "scope": "system", "activeState": "active", "subState": "running"}
        assert value["unit"] == expected
    assert loop.poll("status", "--state-root", ROOT, user=bob.name).returncode == 4


def test_stop_when_a_delivery_asks_then_returns_in_seconds_and_is_not_repeated(loop: SystemInstall) -> None:
    script = f"{COMMAND} poll stop --state-root {ROOT} >/srv/sink/said 2>&1; echo $? >/srv/sink/code"
    loop.configure(session={"command": ["sh", "-c", script]})
    pid = up(loop)
    loop.item("a")

    code = loop.container.path("/srv/sink/code")
    loop.wait(lambda: code.exists() and code.read_text(), "its end")  # made first, and written then

    assert code.read_text() == "4\n"
    assert "systemctl --system stop the-loop-poll.service" in loop.container.path("/srv/sink/said").read_text()
    loop.wait(lambda: not loop.pending(), "its settling")
    assert loop.main_pid() == pid
    assert loop.attempts() == {}
    assert len(loop.events("poll.spawned")) == 1


def test_stop_when_asked_from_inside_the_services_control_group_then_refuses_and_names_what_to_type(
    loop: SystemInstall,
) -> None:
    pid = up(loop)
    group = "/sys/fs/cgroup/system.slice/the-loop-poll.service/cgroup.procs"

    done = loop.root_does(f"echo $$ >{group} && exec {COMMAND} poll stop --state-root {ROOT}")

    assert done.returncode == 4
    assert "systemctl --system stop the-loop-poll.service" in done.stderr
    assert "outside" in done.stderr
    assert loop.main_pid() == pid


@pytest.mark.parametrize("user", ["the-loop", None])
def test_takeover_when_its_user_cannot_stop_the_unit_or_may_not_use_the_root_then_the_service_goes_on(
    loop: SystemInstall, user: str | None
) -> None:
    pid = up(loop)

    done = loop.poll("start", "--takeover", "--once", "--state-root", ROOT, user=user)

    assert done.returncode == (4 if user else 1)
    assert ("systemctl --system stop the-loop-poll.service" if user else "belongs to") in done.stderr
    assert loop.main_pid() == pid
    assert len(loop.events("poller.started")) == 1


# --- in every state ---


def test_stop_when_between_a_crash_and_the_next_start_then_it_does_not_come_back(loop: SystemInstall) -> None:
    loop.add_drop_in("60-slow.conf", SLOW)
    up(loop)
    loop.root_does(["systemctl", "kill", "--signal=KILL", loop.service])
    loop.wait(lambda: loop.property("SubState") == "auto-restart", "the pause before the restart")

    done = loop.poll("stop")

    assert done.returncode == 0
    assert loop.service in done.stderr
    assert is_down(loop)
    time.sleep(2.5)  # longer than the pause was
    assert is_down(loop)


def test_stop_when_the_service_waits_for_the_lock_then_both_are_ended(loop: SystemInstall) -> None:
    with loop.background([COMMAND, "poll", "start", "--state-root", ROOT], user="the-loop") as plain:
        loop.wait(lambda: not loop.is_lock_free(), "the plain poller")
        loop.root_does(["systemctl", "start", "--no-block", loop.service])
        loop.wait(lambda: "waiting for" in loop.property("StatusText"), "the wait for the lock")
        assert re.search(r"waiting for .*\d+", loop.property("StatusText"))

        done = loop.poll("stop")

        assert done.returncode == 0
        assert plain.wait(10) is not None
    assert is_down(loop)
    assert loop.is_lock_free()


def test_stop_when_a_reload_is_under_way_then_it_is_stopped(loop: SystemInstall) -> None:
    """The reload goes on to its second command when the first one is ended by the stop: nobody is left to signal."""
    for moment_s in (0.0, 0.1, 0.2, 0.3, 0.4):
        up(loop)
        for _ in range(3):
            loop.root_does(["systemctl", "reload", "--no-block", loop.service])
        time.sleep(moment_s)  # somewhere in the three reloads, whichever way

        assert loop.poll("stop").returncode == 0
        assert is_down(loop), moment_s


def test_stop_when_others_stop_it_too_then_all_of_them_succeed(loop: SystemInstall) -> None:
    up(loop)
    with ExitStack() as stack:
        asking = [stack.enter_context(loop.background([COMMAND, "poll", "stop"])) for _ in range(3)]
        codes = [one.wait(60) for one in asking]

    assert set(codes) <= {0, 3}
    assert 0 in codes
    assert is_down(loop)


def test_stop_when_somebody_restarts_it_meanwhile_then_is_no_false_success(loop: SystemInstall) -> None:
    up(loop)
    with loop.background("for i in 1 2 3; do systemctl restart the-loop-poll.service; done") as restarting:
        done = loop.poll("stop", "--timeout", "30")
        is_active = loop.is_active()  # no restart but those three can have come since
        restarting.wait(60)

    assert done.returncode in (0, 4)
    if done.returncode == 0 and is_active != "active":
        assert loop.poll("stop").returncode in (0, 3)
    assert loop.poll("stop").returncode in (0, 3)
    assert is_down(loop)


# --- what would bring it back ---

STORM = """
import socket, sys, time
sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
sender.setblocking(False)
until = time.monotonic() + float(sys.argv[2])
accepted = 0
while time.monotonic() < until:
    try:
        sender.sendto(b"wake", sys.argv[1])
        accepted += 1
    except OSError:
        pass
    time.sleep(0.002)
print(accepted)
"""


def test_wake_when_a_storm_of_them_surrounds_a_stop_then_it_stays_stopped(loop: SystemInstall) -> None:
    up(loop)
    storm = [sys.executable, "-IS", "-c", STORM, str(loop.wake_path), "4"]
    with loop.background(storm) as storming:
        time.sleep(0.3)  # some of them before

        assert loop.poll("stop").returncode == 0

        out, _ = storming.communicate(timeout=30)
    assert int(out) > 0
    assert is_down(loop)
    assert loop.property("Result", loop.socket) == "success"
    assert len(loop.events("poller.started")) == 1


def test_wake_when_sent_to_a_running_service_then_makes_a_cycle_at_once_also_after_a_restart(
    loop: SystemInstall,
) -> None:
    loop.configure(polling={"intervalSeconds": 86400})
    up(loop)
    loop.item("a")
    loop.wait(lambda: loop.status()["lastGoodCycleAt"], "the first cycle")
    assert loop.poll("wake").returncode == 0
    loop.wait_until_settled([SPAWN])

    storm = [sys.executable, "-IS", "-c", STORM, str(loop.wake_path), "2"]
    with loop.background(storm) as storming:
        loop.systemctl("restart")
        storming.wait(30)
    loop.comment("a", "c1")
    assert loop.poll("wake", user="the-loop").returncode == 0

    loop.wait_until_settled([SPAWN, "directory:inbox/a/comment:c1"])
    assert loop.property("ActiveState", loop.socket) == "active"
    assert loop.property("NRestarts") == "0"


def test_wake_when_the_service_crashed_then_waits_for_its_restart(loop: SystemInstall) -> None:
    loop.add_drop_in("60-slow.conf", SLOW)
    up(loop)
    loop.root_does(["systemctl", "kill", "--signal=KILL", loop.service])
    loop.wait(lambda: loop.property("SubState") == "auto-restart", "the pause before the restart")

    assert loop.poll("wake").returncode == 0
    assert loop.is_active() == "active"


def test_stop_when_an_enabled_timer_would_start_it_again_then_names_it(loop: SystemInstall) -> None:
    loop.root_does(["systemctl", "enable", "--now", TIMER], check=True)
    loop.systemctl("start", ONCE)  # a tick held the lock last
    assert TIMER in loop.poll("stop").stderr

    up(loop)

    done = loop.poll("stop")
    assert done.returncode == 0
    assert TIMER in done.stderr


# --- what is not tried again ---


def test_start_when_the_configuration_is_wrong_then_fails_once_and_nothing_storms(loop: SystemInstall) -> None:
    loop.write(loop.config, "polling: [\n", owner=0)

    loop.systemctl("start", check=False)
    loop.wait(lambda: loop.is_active() == "failed", "the failure")
    for _ in range(20):
        loop.wake()
    time.sleep(0.5)  # more than the pause before a restart

    assert (loop.property("ExecMainStatus"), loop.property("NRestarts")) == ("78", "0")
    assert loop.property("ActiveState", loop.socket) == "inactive"
    assert loop.property("Result", loop.socket) == "success"
    assert loop.poll("stop", "--state-root", ROOT).returncode == 3
    loop.configure()
    loop.systemctl("start")
    assert loop.is_active() == "active"
