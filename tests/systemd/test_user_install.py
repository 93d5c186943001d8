"""`unit install` and `unit uninstall` for a user: what is put in place, what is kept, what goes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.installed import SERVICE, SOCKET, Installed

if TYPE_CHECKING:
    from support.container import Container

FILES = {SERVICE, SOCKET, "the-loop-poll-once.service", "the-loop-poll-once.timer", "theloop.slice"}
TEMPLATES = {file.replace(".", "@.") for file in FILES if file != "theloop.slice"} | {"theloop.slice"}


def placed(loop: Installed) -> set[str]:
    """The names of the files in the manager's folder, without folders and links."""
    return {path.name for path in loop.seen(loop.units).iterdir() if path.is_file() and not path.is_symlink()}


@pytest.mark.parametrize(("name", "files"), [(None, FILES), ("second", TEMPLATES)])
def test_install_when_done_then_the_manager_has_nothing_to_complain_of(
    container: Container, name: str | None, files: set[str]
) -> None:
    with Installed(container, name=name, drop_in="") as loop:
        assert placed(loop) == files
        units = [file.replace("@.", f"@{name}.") for file in sorted(files)]

        done = loop.run(["systemd-analyze", "--user", "verify", *(str(loop.units / unit) for unit in units)])

        assert (done.stdout, done.stderr) == ("", "")
        said = container.run(["journalctl", "--quiet", "-p", "warning", "-o", "cat", f"_UID={loop.user.uid}"]).stdout
        assert "the-loop" not in said
        assert loop.run(["systemctl", "--user", "enable", "--now", loop.service]).returncode == 0
        assert loop.is_active() == "active"


def test_install_when_made_over_an_older_version_then_units_are_new_and_drop_ins_are_kept(container: Container) -> None:
    with Installed(container, drop_in="") as loop:
        unit = loop.units / SERVICE
        new = loop.seen(unit).read_text()
        loop.write(unit, new.replace("Restart=on-failure", "Restart=no"))
        loop.add_drop_in("mine.conf", "[Service]\nRestartSec=7\n")
        foreign = loop.units / "the-loop-poll-once.timer"
        loop.write(foreign, "[Timer]\nOnStartupSec=1h\n")

        done = loop.install()

        assert loop.seen(unit).read_text() == new
        assert loop.property("Restart") == "on-failure"
        assert loop.property("RestartUSec") == "7s"
        assert loop.seen(foreign).read_text() == "[Timer]\nOnStartupSec=1h\n"
        assert str(foreign) in done.stdout
        assert loop.install().stdout.count("wrote") == 0


def test_install_when_the_poller_runs_then_it_goes_on(container: Container) -> None:
    with Installed(container) as loop:
        loop.systemctl("start")
        pid = loop.main_pid()

        loop.install()

        assert loop.main_pid() == pid
        assert loop.is_active() == "active"


def test_install_when_lingering_is_off_then_it_warns_loudly_and_names_the_command(container: Container) -> None:
    with Installed(container) as loop:
        assert "linger" not in loop.install().stderr
        container.run(["loginctl", "disable-linger", loop.user.name])

        done = loop.install()

        assert "NOT COMPLETE" in done.stderr
        assert f"loginctl enable-linger {loop.user.name}" in done.stderr


def test_uninstall_when_the_poller_runs_then_no_trace_is_left_but_state_and_configuration(container: Container) -> None:
    with Installed(container, drop_in="") as loop:
        loop.item("a")
        for unit in (SERVICE, "the-loop-poll-once.timer"):
            loop.run(["systemctl", "--user", "enable", "--now", "--", unit])
        loop.wait_until_settled(["directory:inbox/a/spawn:1"])

        loop.the_loop("unit", "uninstall", "--user")

        assert loop.is_lock_free()
        argv = ["systemctl", "--user", "list-unit-files", "--no-legend", "the-loop*", "theloop*"]
        assert loop.run(argv, check=False).stdout == ""
        argv = ["systemctl", "--user", "list-units", "--all", "--plain", "--no-legend", "the-loop*"]
        assert loop.run(argv).stdout == ""
        folders = [loop.units, Path(f"/run/user/{loop.user.uid}/systemd"), Path(f"/run/user/{loop.user.uid}/the-loop")]
        places = " ".join(str(folder) for folder in folders)
        assert loop.run(f"find {places} -name 'the*loop*' 2>/dev/null", check=False).stdout == ""
        assert loop.ledgers().keys() == {"directory:inbox/a"}
        assert loop.seen(loop.config).exists()
        loop.install()
        loop.systemctl("start")
        loop.comment("a", "more")
        loop.wait_until_settled(["directory:inbox/a/comment:more"])
        loop.assert_once(["directory:inbox/a/spawn:1", "directory:inbox/a/comment:more"])


def test_uninstall_when_an_operator_wrote_drop_ins_then_these_stay(container: Container) -> None:
    with Installed(container, drop_in="") as loop:
        loop.add_drop_in("mine.conf", "[Service]\nRestartSec=7\n")

        loop.the_loop("unit", "uninstall", "--user")

        assert placed(loop) == set()
        assert loop.seen(loop.units / f"{SERVICE}.d" / "mine.conf").exists()


def test_uninstall_of_an_instance_when_another_one_runs_then_that_one_keeps_its_units(container: Container) -> None:
    with Installed(container, name="first") as loop:
        loop.systemctl("start")
        loop.the_loop("unit", "install", "--user", "--name", "second")

        loop.the_loop("unit", "uninstall", "--user", "--name", "second")

        assert placed(loop) == TEMPLATES
        assert loop.is_active() == "active"
        loop.systemctl("restart")
        assert loop.is_active() == "active"


def test_instances_when_two_run_beside_the_plain_one_then_each_has_its_own_root_and_configuration(
    container: Container,
) -> None:
    with Installed(container, name="first") as loop:
        loop.item("a")
        second = loop.config.with_name("second.yaml")
        loop.write(second, loop.seen(loop.config).read_text())
        loop.run(["systemctl", "--user", "start", "--", loop.service, "the-loop-poll@second.service"])

        loop.wait_until_settled(["directory:inbox/a/spawn:1"])
        other = loop.the_loop("poll", "status", "--json", "--state-root", f"{loop.root.parent}/the-loop-second")

        assert loop.status()["unit"]["name"] == "the-loop-poll@first.service"
        assert json.loads(other.stdout)["unit"]["name"] == "the-loop-poll@second.service"
        assert loop.is_active() == "active"
        assert loop.property("ActiveState", "the-loop-poll@second.service") == "active"
        assert loop.poll("stop").returncode == 0
        assert loop.is_active() == "inactive"
        assert loop.property("ActiveState", "the-loop-poll@second.service") == "active"


def test_timer_when_installed_then_its_run_delivers_and_is_refused_beside_the_daemon_without_a_failed_unit(
    container: Container,
) -> None:
    with Installed(container) as loop:
        quick = (
            "[Timer]\nOnStartupSec=\nOnStartupSec=0\nOnUnitInactiveSec=1s\nAccuracySec=100ms\nRandomizedDelaySec=0\n"
        )
        loop.add_drop_in("60-quick.conf", quick, "the-loop-poll-once.timer")
        loop.item("a")
        loop.run(["systemctl", "--user", "enable", "--now", "--", "the-loop-poll-once.timer"])
        loop.wait_until_settled(["directory:inbox/a/spawn:1"])
        loop.comment("a", "more")
        loop.wait_until_settled(["directory:inbox/a/comment:more"])

        loop.systemctl("start")
        loop.wait(lambda: loop.journal("THE_LOOP_EVENT=poller.blocked"), "a tick that is refused")

        assert loop.property("Result", "the-loop-poll-once.service") == "success"
        assert loop.failed() == []
        assert loop.is_active() == "active"
        loop.assert_once(["directory:inbox/a/spawn:1", "directory:inbox/a/comment:more"])
