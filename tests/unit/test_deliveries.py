"""The lock of a delivery: a keeper's is respected, a look at it is waited for."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.processes import python
from the_loop.deliveries import beside, is_locked, locked

LOOKING = """
    import sys
    from pathlib import Path
    from the_loop.deliveries import is_locked
    print("looking", flush=True)
    while True:
        is_locked(Path(sys.argv[1]))
"""


@pytest.fixture
def stem(tmp_path: Path) -> Path:
    stem = tmp_path / "delivery"
    beside(stem, "lock").touch()
    return stem


def test_lock_when_somebody_looks_at_it_all_the_time_then_is_taken_all_the_same(stem: Path) -> None:
    """A look holds it shared for a moment; taken for a keeper's, the event would wait for one that never comes."""
    with python(LOOKING, stem) as looking:
        assert looking.line() == "looking"
        for _ in range(300):
            with locked(stem) as lock_fd:
                assert lock_fd is not None


def test_lock_when_a_keeper_has_it_then_is_not_taken(stem: Path) -> None:
    with locked(stem) as first, locked(stem) as second:
        assert first is not None
        assert second is None
        assert is_locked(stem)
    assert not is_locked(stem)
