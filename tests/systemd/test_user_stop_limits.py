"""`poll stop` on a user install where it must not, cannot or can hardly stop the poller: it says what is the case."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.installed import Installed

if TYPE_CHECKING:
    from support.container import Container


def test_poll_stop_when_made_inside_the_unit_then_it_refuses_and_names_the_command(container: Container) -> None:
    script = "sh -c '{} >%h/said 2>&1; echo $$? >%h/code'"
    with Installed(container) as loop:
        stop = loop.command_line("poll", "stop", "--timeout", "5")
        loop.add_drop_in("60-inside.conf", f"[Service]\nExecStartPost={script.format(stop)}\n")

        loop.systemctl("start")

        assert loop.run("cat code").stdout.strip() == "4"
        assert f"systemctl --user stop {loop.service}" in loop.run("cat said").stdout
        assert loop.is_active() == "active"
        assert not loop.is_lock_free()


def test_poll_stop_when_the_manager_cannot_be_asked_then_nothing_is_signalled_and_it_says_so(
    container: Container,
) -> None:
    with Installed(container) as loop:
        loop.systemctl("start")
        pid = loop.main_pid()
        run = f"/run/user/{loop.user.uid}"
        container.run(f"mv {run}/bus {run}/bus.away && mv {run}/systemd/private {run}/systemd/private.away")

        done = loop.poll("stop", "--timeout", "3")

        assert done.returncode == 4, done
        assert "systemctl --user stop the-loop-poll.service" in done.stderr
        assert container.run(["kill", "-0", str(pid)], check=False).returncode == 0
        assert not loop.is_lock_free()
        container.run(f"mv {run}/bus.away {run}/bus && mv {run}/systemd/private.away {run}/systemd/private")
        assert loop.main_pid() == pid
        assert loop.poll("stop").returncode == 0


def test_poll_stop_when_the_poller_does_not_end_in_time_then_it_says_that_a_stop_is_under_way(
    container: Container,
) -> None:
    with Installed(container) as loop:
        loop.add_drop_in("60-slow.conf", "[Service]\nExecStop=/bin/sleep 4\n")
        loop.systemctl("start")

        done = loop.poll("stop", "--timeout", "1")

        assert done.returncode == 4, done
        assert "under way" in done.stderr
        assert not loop.is_lock_free()
        loop.wait(lambda: loop.is_active() == "inactive", "the end of the stop")


def test_poll_stop_when_somebody_restarts_it_meanwhile_then_it_ends_with_the_truth(container: Container) -> None:
    with Installed(container) as loop:
        loop.systemctl("start")
        with container.background("while systemctl --user restart the-loop-poll; do :; done", user=loop.user.name):
            done = loop.poll("stop", "--timeout", "8")
            free, state = loop.is_lock_free(), loop.is_active()

    assert done.returncode in (0, 4), done
    assert done.returncode == 4 or (free and state in ("inactive", "activating")), done


@pytest.mark.parametrize("after_s", [0.5, 0.8, 0.9, 1.0, 1.1])
def test_poll_stop_when_made_around_an_automatic_restart_then_it_is_stopped_all_the_same(
    container: Container, after_s: float
) -> None:
    with Installed(container, drop_in="[Service]\nRestartSec=1\n") as loop:
        loop.systemctl("start")
        stop = loop.command_line("poll", "stop")
        kill = f"systemctl --user kill --signal=KILL {loop.service}; sleep {after_s}; exec {stop}"

        done = loop.run(kill, check=False)

        assert (done.returncode, loop.is_lock_free(), loop.is_active()) == (0, True, "inactive"), done


def test_poll_stop_when_a_crashed_unit_s_manager_cannot_be_asked_then_it_is_no_success(container: Container) -> None:
    with Installed(container, drop_in="[Service]\nRestartSec=60\n") as loop:
        loop.systemctl("start")
        loop.run(["systemctl", "--user", "kill", "--signal=KILL", "--", loop.service])
        loop.wait(lambda: loop.property("SubState") == "auto-restart", "the pause after a crash")
        run = f"/run/user/{loop.user.uid}"
        container.run(f"mv {run}/bus {run}/bus.away && mv {run}/systemd/private {run}/systemd/private.away")

        done = loop.poll("stop", "--timeout", "3")

        assert done.returncode == 4, done
        assert loop.service in done.stderr


def test_poll_stop_when_the_poller_is_another_user_s_then_nobody_is_signalled(container: Container) -> None:
    with Installed(container) as loop, Installed(container, is_installed=False) as other:
        loop.systemctl("start")
        pid = loop.main_pid()

        done = other.the_loop("poll", "stop", "--state-root", str(loop.root), check=False)

        assert done.returncode == 4, done
        assert str(loop.root) in done.stderr
        assert loop.main_pid() == pid
        assert not loop.is_lock_free()
