"""The box itself: what the other tests in this folder take for granted."""

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
    from support.container import Box

TESTS = Path(__file__).parents[1]
BOOT = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from support.container import Box
box = Box(Path(sys.argv[2]))
box.up()
print(box._leader, box._cgroup, flush=True)
time.sleep(1000)
"""


def test_box_when_up_then_nothing_in_it_has_failed_and_the_command_can_be_run_by_anybody(box: Box) -> None:
    user = box.add_user("anybody")

    assert box.run(["systemctl", "--failed", "--quiet", "--plain", "--no-legend"]).stdout == ""
    done = box.run([COMMAND, "--version"], user=user.name)
    assert done.stdout.startswith("the-loop ")
    assert box.run("cat; id --user --name", user=user.name, text="said\n").stdout == "said\nanybody\n"
    box.remove_user(user.name)
    assert not box.path(user.home).exists()


def test_box_when_the_power_is_cut_then_the_disk_is_kept_and_every_process_is_gone(box: Box) -> None:
    box.run("echo kept >/root/kept; sync")
    with box.background(["sleep", "1000"]):
        wait_for(lambda: box.run(["pgrep", "-x", "sleep"], check=False).stdout, "a process")

        box.down()
        box.up()

    assert box.run(["pgrep", "-x", "sleep"], check=False).stdout == ""
    assert box.run(["cat", "/root/kept"]).stdout == "kept\n"


def test_box_when_it_changes_the_disk_then_this_machine_does_not(box: Box, tmp_path: Path) -> None:
    box.run("rm /etc/debian_version; echo mine >/etc/mine; chmod 700 /srv")

    assert Path("/etc/debian_version").exists()
    assert not Path("/etc/mine").exists()
    assert Path("/srv").stat().st_mode & 0o777 == 0o755
    assert not box.path(tmp_path).exists()


def test_box_when_who_booted_it_is_killed_then_it_is_gone_without_a_trace(box: Box, tmp_path: Path) -> None:
    argv = [sys.executable, "-c", BOOT, str(TESTS), str(tmp_path / "other")]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        leader, cgroup = process.stdout.readline().decode().split()
        assert Path("/proc", leader).exists()

        os.kill(process.pid, signal.SIGKILL)

    wait_for(lambda: not Path("/proc", leader).exists(), "the end of the box")
    wait_for(lambda: "populated 0" in Path(cgroup, "cgroup.events").read_text(), "the end of its processes")
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()
    assert box.is_up
