"""A third party's runner, installed as its users would, keeps what is asked of every runner."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from contract.runner_suite import Bench, RunnerSuite
from support.example_plugin import importable
from the_loop.core.model import Verdict
from the_loop.deliveries import beside
from the_loop.runners.base import Offer

_plugin = pytest.fixture(scope="module", autouse=True)(importable)


class Spool(Bench):
    runner = "spool"
    answers = {"yes": Verdict.DELIVERED, "full": Verdict.LATER, "missing": Verdict.UNSTARTABLE}  # noqa: RUF012

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        for name in ("spool", "full"):
            (folder / name).mkdir()
        (folder / "full" / "waits.json").touch()

    def section(self, says: str) -> dict[str, Any]:
        return {"path": str(self.folder / ("spool" if says == "yes" else says)), "most": 1 if says == "full" else 1000}

    def arrived(self) -> list[str]:
        return [json.loads(path.read_bytes())["deliveryId"] for path in (self.folder / "spool").iterdir()]

    def has_whole(self, offer: Offer) -> bool:
        found = [path.read_bytes() for path in (self.folder / "spool").iterdir()]
        return beside(offer.stem, "payload.json").read_bytes() in found

    def close(self) -> None:
        """Nothing is open."""


class TestSpool(RunnerSuite):
    bench_type = Spool
