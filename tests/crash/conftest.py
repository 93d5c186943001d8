from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.poller import Box

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    with Box(tmp_path) as box:
        yield box
