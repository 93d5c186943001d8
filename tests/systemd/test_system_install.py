"""`the-loop unit install --system`: what an administrator gets, and what is left when it is taken away again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.container import COMMAND
from support.system_install import ONCE, SystemInstall

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator


ROOT = Path("/var/lib/the-loop")
REPOSITORY = Path(__file__).resolve().parents[2]
SPAWN = "directory:inbox/a/spawn:1"
WRITTEN = (
    "/etc/systemd/system/the-loop-poll*",
    "/etc/systemd/user/theloop.slice",
    "/etc/sysusers.d/the-loop.conf",
    "/etc/tmpfiles.d/the-loop.conf",
    "/etc/systemd/catalog/the-loop.catalog",
)


@pytest.fixture
def loop(installed: SystemInstall) -> Iterator[SystemInstall]:
    installed.clear()
    yield installed
    installed.root_does(
        "rm -f /etc/systemd/system/the-loop-poll*@* /etc/systemd/system/the-loop-poll*@*.d/10-manager.conf"
    )
    if not installed.seen(installed.units / installed.service).exists():
        installed.install()
    assert installed.journal("-t", "the-loop", "--grep=Traceback") == []


def unit(loop: SystemInstall, *words: str) -> subprocess.CompletedProcess[str]:
    done = loop.root_does([COMMAND, "unit", *words])
    assert "Traceback" not in done.stderr
    return done


# --- what is there ---


def test_install_when_done_then_there_is_a_user_with_a_home_no_shell_and_a_lingering_manager(
    loop: SystemInstall,
) -> None:
    [_, _, uid, _, _, home, shell] = loop.root_does(["getent", "passwd", "the-loop"]).stdout.strip().split(":")

    assert int(uid) not in (0, 65534)
    assert home == str(ROOT)
    assert shell.endswith("nologin")
    assert loop.root_does(["loginctl", "show-user", "the-loop", "-P", "Linger"]).stdout == "yes\n"
    assert loop.property("ActiveState", f"user@{uid}.service") == "active"


@pytest.mark.parametrize("service", ["the-loop-poll.service", ONCE, "the-loop-poll@two.service"])
def test_service_when_analysed_then_is_exposed_less_than_1_5(loop: SystemInstall, service: str) -> None:
    if "@" in service:
        unit(loop, "install", "--system", "--name", "two")

    done = loop.root_does(["systemd-analyze", "security", "--no-pager", "--threshold=14", service])

    assert done.returncode == 0, done.stdout[-200:]


def test_units_when_in_place_then_the_manager_finds_nothing_to_complain_of(loop: SystemInstall) -> None:
    unit(loop, "install", "--system", "--name", "two")

    done = loop.root_does(
        "cd /etc/systemd/system && systemd-analyze verify --man=no $(ls -d the-loop-poll*[a-z] | grep -v [.]d$)"
    )

    files = loop.root_does("ls -d /etc/systemd/system/the-loop-poll*.service").stdout.split()
    assert len(files) == 4
    assert (done.stdout + done.stderr, done.returncode) == ("", 0)
    said = loop.root_does(["journalctl", "-b", "--quiet", "_PID=1", "--grep", "Unknown key|Failed to parse|ignoring"])
    assert [line for line in said.stdout.splitlines() if "the-loop" in line] == []


def test_metrics_when_installed_then_are_written_by_the_service_whether_a_poller_runs_or_not(
    loop: SystemInstall,
) -> None:
    folder, service = Path("/srv/metrics"), "the-loop-metrics.service"
    file = loop.seen(folder / "the-loop.prom")
    loop.root_does(f"cp -r {loop.units}/the-loop-poll.service.d {loop.units}/{service}.d && mkdir -m 0755 {folder}")
    refused = unit(loop, "install", "--system", "--metrics", str(folder))
    mend = f"chgrp the-loop {folder} && chmod g+w {folder}"
    assert refused.returncode == 1
    assert f"NOT COMPLETE: the metrics cannot be written into '{folder}' (run `{mend}`)" in refused.stderr
    loop.root_does(mend)

    done = unit(loop, "install", "--system", "--metrics", str(folder))
    assert (done.returncode, done.stderr) == (0, "")
    loop.systemctl("start", service)
    assert 'the_loop_up{state_root="/var/lib/the-loop"} 0\n' in file.read_text()
    loop.systemctl("start")

    def shows_counters() -> bool:
        loop.systemctl("start", service)
        return "the_loop_cycles_total{" in file.read_text()

    loop.wait(shows_counters, "the counters")
    assert 'the_loop_up{state_root="/var/lib/the-loop"} 1\n' in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o644
    file.unlink()
    loop.systemctl("start", "the-loop-metrics.timer")
    loop.wait(file.exists, "the file of the timer", timeout_s=40)

    done = loop.root_does(["systemd-analyze", "security", "--no-pager", "--threshold=14", service])
    assert done.returncode == 0, done.stdout[-200:]
    assert loop.journal("-u", service) == []
    loop.systemctl("stop", "the-loop-metrics.timer")
    loop.root_does(f"rm -r {folder} {loop.units}/the-loop-metrics*; systemctl daemon-reload")


def test_install_when_repeated_then_changes_nothing(loop: SystemInstall) -> None:
    again = unit(loop, "install", "--system")

    assert again.returncode == 0
    assert [line for line in again.stdout.splitlines() if line.startswith("wrote")] == []
    assert "systemctl enable --now the-loop-poll.service" in again.stdout
    assert "the-loop-poll-once.timer" in unit(loop, "install", "--system", "--timer").stdout


def test_show_when_asked_then_prints_what_is_in_place(loop: SystemInstall) -> None:
    shown = unit(loop, "show", "--system").stdout

    for path in ("/etc/systemd/system/the-loop-poll.service", "/etc/systemd/user/theloop.slice"):
        assert f"# {path}\n{loop.container.path(path).read_text()}" in shown


def test_deliveries_when_run_then_their_slice_is_ours(loop: SystemInstall) -> None:
    done = loop.run(["systemctl", "--user", "show", "-P", "Description", "theloop.slice"])

    assert "the-loop" in done.stdout


def test_catalog_when_installed_then_the_journal_explains_every_event(loop: SystemInstall) -> None:
    texts = loop.root_does(["journalctl", "--dump-catalog"]).stdout

    assert texts.count("Defined-By: the-loop") >= 30


# --- what is refused, and what is warned of ---


def test_install_when_not_root_then_is_refused_with_what_to_do(loop: SystemInstall) -> None:
    for verb in ("install", "uninstall"):
        done = loop.the_loop("unit", verb, "--system", check=False)
        assert done.returncode == 1
        assert "--user" in done.stderr


@pytest.mark.parametrize("name", ["a b", "../x", "", "x/y", "x@y", "%h", "-x", "a\nb", "$x", "x" * 300])
def test_install_when_the_name_is_no_name_of_an_instance_then_is_wrong_usage(loop: SystemInstall, name: str) -> None:
    done = unit(loop, "install", "--system", f"--name={name}")

    assert done.returncode == 2
    assert "wrote" not in done.stdout


@pytest.mark.parametrize("path", ["/home/alice/inbox", "/root/inbox", "~/inbox"])
def test_install_when_an_inbox_lies_in_a_home_then_warns_that_the_service_cannot_see_it(
    loop: SystemInstall, path: str
) -> None:
    loop.configure(sources=[{"provider": "directory", "path": path}])

    done = unit(loop, "install", "--system")

    assert done.returncode == 0
    assert f"'{path}'" in done.stderr
    assert "BindPaths=" in done.stderr


def test_install_when_a_unit_file_is_somebody_elses_then_leaves_it(loop: SystemInstall) -> None:
    path = Path("/etc/systemd/system/the-loop-poll-once.timer")
    mine = "[Timer]\nOnCalendar=daily\n"
    loop.write(path, mine, owner=0)

    done = unit(loop, "install", "--system")

    assert str(path) in next(line for line in done.stdout.splitlines() if "not installed by" in line)
    assert loop.container.path(path).read_text() == mine
    loop.root_does(["rm", str(path)])
    unit(loop, "install", "--system")


# --- instances ---


def test_instance_when_installed_then_has_its_own_root_and_configuration_beside_the_plain_one(
    loop: SystemInstall,
) -> None:
    unit(loop, "install", "--system", "--name", "two")
    text = loop.seen(loop.config).read_text()
    loop.write(loop.config.with_name("two.yaml"), text, owner=0)
    two = "the-loop-poll@two.service"

    loop.systemctl("start", loop.service, two)

    status = loop.poll("status", "--json", "--state-root", "/var/lib/the-loop-two")
    assert status.returncode == 0
    assert f'"name": "{two}"' in status.stdout
    assert loop.poll("stop", "--state-root", "/var/lib/the-loop-two").returncode == 0
    assert loop.property("ActiveState", two) == "inactive"
    assert loop.property("ActiveState", "the-loop-poll@two.socket") == "inactive"
    assert loop.is_active() == "active"


def test_uninstall_when_of_one_instance_then_the_others_go_on(loop: SystemInstall) -> None:
    text = loop.seen(loop.config).read_text()
    for name in ("two", "three"):
        unit(loop, "install", "--system", "--name", name)
        loop.write(loop.config.with_name(f"{name}.yaml"), text, owner=0)
    three = "the-loop-poll@three.service"
    loop.systemctl("start", loop.service, three)

    assert unit(loop, "uninstall", "--system", "--name", "two").returncode == 0

    loop.systemctl("restart", three)
    loop.systemctl("restart")
    assert [loop.property("ActiveState", name) for name in (loop.service, three)] == ["active", "active"]
    unit(loop, "uninstall", "--system", "--name", "three")
    assert loop.property("ActiveState", three) == "inactive"
    left = loop.root_does(
        "cd /etc/systemd/system && find . -path '*the-loop-poll*@*' -type f ! -name 40-test.conf"
    ).stdout
    assert left == ""
    assert loop.is_active() == "active"


# --- taking it away ---


def test_uninstall_when_done_then_all_that_was_written_is_gone_and_state_and_configuration_stay(
    loop: SystemInstall,
) -> None:
    loop.root_does(["systemctl", "enable", "--now", loop.service], check=True)
    loop.item("a")
    loop.wait_until_settled([SPAWN])
    before = loop.root_does(f"ls -d {' '.join(WRITTEN)}").stdout.split()
    assert len(before) >= 9

    done = unit(loop, "uninstall", "--system")

    assert done.returncode == 0
    left = loop.root_does(f"find {' '.join(WRITTEN)} -type f 2>/dev/null").stdout.split()
    assert [path for path in left if "test" not in path and "quick" not in path] == []  # the tests' own drop-ins
    assert loop.property("LoadState") in ("not-found", "masked")
    assert loop.property("ActiveState") == "inactive"
    assert loop.root_does("ls /etc/systemd/system/*.wants | grep -c the-loop").stdout.strip() == "0"
    assert loop.ledgers() != {}
    assert loop.container.path(loop.config).exists()
    assert unit(loop, "uninstall", "--system").returncode == 0  # nothing is left to be done


# --- as a package ---


def test_package_when_its_files_are_all_that_there_is_then_the_service_delivers(loop: SystemInstall) -> None:
    unit(loop, "uninstall", "--system")
    script = f"""
        cd {REPOSITORY} && make --silent install PYTHON={COMMAND.parent}/python DESTDIR= PREFIX=/usr &&
        ln -s {COMMAND} /usr/bin/the-loop && systemd-sysusers && systemd-tmpfiles --create the-loop.conf &&
        systemctl daemon-reload && systemctl restart systemd-logind
    """
    try:
        loop.root_does(script, check=True)
        loop.root_does(["systemctl", "enable", "--now", loop.service], check=True)
        loop.item("a")
        loop.wait_until_settled([SPAWN])
        assert loop.root_does("systemctl cat the-loop-poll | grep 10-manager").stdout == ""

        loop.container.down()
        loop.container.up()
        loop.comment("a", "c1")
        loop.wait_until_settled([SPAWN, "directory:inbox/a/comment:c1"])
        loop.assert_once([SPAWN, "directory:inbox/a/comment:c1"])
    finally:
        loop.root_does(["systemctl", "disable", "--now", loop.service])
        loop.root_does("rm -rf /usr/bin/the-loop /usr/lib/systemd/*/the-loop-poll* /usr/lib/systemd/user/theloop.slice")
        loop.root_does(["systemctl", "daemon-reload"])
