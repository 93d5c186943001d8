"""A booted systemd for these tests: one container for each worker, with users of their own for each test."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.container import Container
from support.container_host import obstacle
from support.system_install import SystemInstall

if TYPE_CHECKING:
    from collections.abc import Iterator


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.systemd)


@pytest.fixture(scope="session", autouse=True)
def open_umask() -> None:
    """What root writes for a container's users can be read by them, whatever this process was started with."""
    os.umask(0o022)


@pytest.fixture(scope="session")
def container(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Container]:
    """A running container. It is shared: a test removes its users, and leaves the container up."""
    folder = tmp_path_factory.mktemp("container")
    if reason := obstacle(folder):
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    with Container(folder) as container:
        yield container


@pytest.fixture(scope="module")
def installed(container: Container) -> Iterator[SystemInstall]:
    """The system's installation in that container; a test clears what the one before it left."""
    with SystemInstall(container) as loop:
        yield loop
