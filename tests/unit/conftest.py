from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.fakes import FakeRunner, FakeSource
from support.life import quick_root

if TYPE_CHECKING:
    from pathlib import Path

    from the_loop.state import StateRoot


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StateRoot:
    """An empty state root, below `tmp_path`, whose files are flushed nowhere."""
    return quick_root(tmp_path, monkeypatch)


@pytest.fixture
def runner() -> FakeRunner:
    return FakeRunner()


@pytest.fixture
def source() -> FakeSource:
    return FakeSource()
