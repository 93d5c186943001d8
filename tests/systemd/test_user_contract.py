"""The suite for every runner, over `exec` in transient units: within a container, as a user who has a manager."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from support.container import Container

MODULE = Path(__file__).with_name("runner_units.py")


@pytest.mark.timeout(300)
def test_exec_in_units_keeps_what_is_asked_of_every_runner(container: Container) -> None:
    user = container.add_user("contract")
    try:
        pytest_ = [sys.executable, "-B", "-m", "pytest", "-q", "-rsx", "-p", "no:cacheprovider"]
        where = [f"--rootdir={MODULE.parents[2]}", f"--basetemp={user.home}/tmp", str(MODULE)]

        done = container.run([*pytest_, *where], user=user.name, check=False, limit_s=280)

        assert done.returncode == 0, done.stdout + done.stderr
        counts = {what: int(number) for number, what in re.findall(r"(\d+) (\w+)", done.stdout.splitlines()[-1])}
        assert counts.keys() <= {"passed", "xfailed", "xpassed"}, done.stdout
        assert counts["passed"] > 35
    finally:
        container.remove_user(user.name)
