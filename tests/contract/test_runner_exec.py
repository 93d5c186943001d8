"""The runner `exec` keeps what is asked of every runner; here in process groups, in units in tests/systemd/."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from contract.commands import Commands
from contract.runner_suite import Bench, LastingRunnerSuite
from the_loop.runners import units


class TestExecInGroups(LastingRunnerSuite):
    bench_type = Commands

    @pytest.fixture
    def bench(self, tmp_path: Path) -> Iterator[Bench]:
        with mock.patch.object(units, "find_units", return_value=None):  # also where this user has a manager
            bench = Commands(tmp_path)
            try:
                yield bench
            finally:
                bench.close()
