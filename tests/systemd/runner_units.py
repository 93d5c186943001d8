"""The runner `exec` in transient units, by the suite for every runner. Run in a container by test_user_contract.py."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from contract.commands import Commands
from contract.runner_suite import LastingBench, LastingRunnerSuite, begun, in_limited_loop, until
from the_loop.runners.base import Offer
from the_loop.runners.units import Units


class UnitCommands(Commands):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.environ = dict(os.environ)

    def units(self) -> list[str]:
        argv = ["systemctl", "--user", "list-units", "--all", "--plain", "--no-legend", "theloop-*.service"]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=True)
        return [line.split()[0] for line in done.stdout.splitlines() if line.split()]


class TestExecInUnits(LastingRunnerSuite):
    bench_type = UnitCommands

    @in_limited_loop
    async def test_delivery_that_runs_is_in_a_unit_and_leaves_none(self, lasting: LastingBench) -> None:
        assert isinstance(lasting, UnitCommands)
        offer: Offer = lasting.put()
        delivery = await begun(lasting, offer)

        assert lasting.units() == [Units(lasting.root.path, {}).name(offer)]

        lasting.let_go()
        await delivery
        await until(lambda: not lasting.units(), "the end of its unit")
