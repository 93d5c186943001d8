from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.fakes import FakeRunner, FakeSource
from support.life import quick_root
from support.shelf import Shelf

if TYPE_CHECKING:
    from pathlib import Path

    from the_loop.state import StateRoot


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StateRoot:
    """An empty state root, below `tmp_path`, whose files are flushed nowhere."""
    return quick_root(tmp_path, monkeypatch)


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    """A state root below `tmp_path`, and ledgers on it."""
    return Shelf(tmp_path)


@pytest.fixture
def runner() -> FakeRunner:
    return FakeRunner()


@pytest.fixture
def source() -> FakeSource:
    return FakeSource()
