"""A booted systemd for these tests: one box for each worker, with users of their own for each test."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.container import Box
from support.container_host import obstacle
from support.system_install import SystemInstall

if TYPE_CHECKING:
    from collections.abc import Iterator


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.systemd)


@pytest.fixture(scope="session")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    """A running box. It is shared: a test removes its users, and leaves the box up."""
    folder = tmp_path_factory.mktemp("box")
    if reason := obstacle(folder):
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    with Box(folder) as box:
        yield box


@pytest.fixture(scope="module")
def installed(box: Box) -> Iterator[SystemInstall]:
    """The system's installation in that box; a test clears what the one before it left."""
    with SystemInstall(box) as loop:
        yield loop
