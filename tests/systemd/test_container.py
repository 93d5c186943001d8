"""The container itself: what the other tests in this folder take for granted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from support.container import COMMAND
from support.poller import wait_for

if TYPE_CHECKING:
    from support.container import Container

TESTS = Path(__file__).parents[1]
BOOT = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from support.container import Container
container = Container(Path(sys.argv[2]))
container.up()
print(container._leader, container._cgroup, flush=True)
time.sleep(1000)
"""


def test_container_when_up_then_nothing_in_it_has_failed_and_the_command_can_be_run_by_anybody(
    container: Container,
) -> None:
    user = container.add_user("anybody")

    assert container.run(["systemctl", "--failed", "--quiet", "--plain", "--no-legend"]).stdout == ""
    done = container.run([COMMAND, "--version"], user=user.name)
    assert done.stdout.startswith("the-loop ")
    assert container.run("cat; id --user --name", user=user.name, text="said\n").stdout == "said\nanybody\n"
    container.remove_user(user.name)
    assert not container.path(user.home).exists()


def test_container_when_the_power_is_cut_then_the_disk_is_kept_and_every_process_is_gone(container: Container) -> None:
    container.run("echo kept >/root/kept; sync")
    with container.background(["sleep", "1000"]):
        wait_for(lambda: container.run(["pgrep", "-x", "sleep"], check=False).stdout, "a process")

        container.down()
        container.up()

    assert container.run(["pgrep", "-x", "sleep"], check=False).stdout == ""
    assert container.run(["cat", "/root/kept"]).stdout == "kept\n"


def test_container_when_it_changes_the_disk_then_this_machine_does_not(container: Container, tmp_path: Path) -> None:
    container.run("rm /etc/debian_version; echo mine >/etc/mine; chmod 700 /mnt")

    assert Path("/etc/debian_version").exists()
    assert not Path("/etc/mine").exists()
    assert Path("/mnt").stat().st_mode & 0o777 == 0o755
    assert not container.path(tmp_path).exists()


def test_container_when_who_booted_it_is_killed_then_it_is_gone_without_a_trace(
    container: Container, tmp_path: Path
) -> None:
    argv = [sys.executable, "-c", BOOT, str(TESTS), str(tmp_path / "other")]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        leader, cgroup = process.stdout.readline().decode().split()
        assert Path("/proc", leader).exists()

        os.kill(process.pid, signal.SIGKILL)

    wait_for(lambda: not Path("/proc", leader).exists(), "the end of the container")
    wait_for(lambda: "populated 0" in Path(cgroup, "cgroup.events").read_text(), "the end of its processes")
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()
    assert container.is_up
