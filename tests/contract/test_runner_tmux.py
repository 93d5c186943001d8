"""The runner `tmux` keeps what is asked of every runner; here with a server that is a daemon."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from contract.panes import Panes
from contract.runner_suite import Bench, LastingRunnerSuite
from the_loop.runners import units


class TestTmux(LastingRunnerSuite):
    bench_type = Panes

    @pytest.fixture
    def bench(self, tmp_path: Path) -> Iterator[Bench]:
        with mock.patch.object(units, "find_units", return_value=None):  # also where this user has a manager
            bench = Panes(tmp_path)
            try:
                yield bench
            finally:
                bench.close()
