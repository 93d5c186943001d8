"""The lock of a delivery, and the number in its payload that keeps a late keeper from beginning."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from support.processes import python
from the_loop import deliveries as deliveries_module
from the_loop.deliveries import (
    Deliveries,
    DeliveryRuns,
    beside,
    claim,
    is_locked,
    is_started,
    outcome_of,
    remove_old_marks,
)
from the_loop.state import StateRoot

LOOKING = """
    import sys
    from pathlib import Path
    from the_loop.deliveries import is_locked
    print("looking", flush=True)
    while True:
        is_locked(Path(sys.argv[1]))
"""
REF, KEY = "fake:1", "comment:1"


@pytest.fixture
def deliveries(tmp_path: Path) -> Deliveries:
    root = StateRoot(tmp_path)
    root.deliveries.mkdir(parents=True)
    return Deliveries(root)


@pytest.fixture
def stem(deliveries: Deliveries) -> Path:
    stem = deliveries.stem(REF, KEY)
    beside(stem, "lock").touch()
    return stem


def test_lock_when_it_is_probed_all_the_time_then_is_taken_all_the_same(stem: Path) -> None:
    """A probe holds it shared for a moment; taken for a keeper's, the event would wait for one that never comes."""
    with python(LOOKING, stem) as looking:
        assert looking.line() == "looking"
        for _ in range(300):
            with claim(stem):
                assert True


def test_lock_when_it_is_held_then_is_not_taken(stem: Path) -> None:
    with claim(stem):
        with pytest.raises(DeliveryRuns), claim(stem):
            pytest.fail("taken twice")
        assert is_locked(stem)
    assert not is_locked(stem)


def test_lock_that_a_child_was_given_is_held_until_its_last_copy_is_closed(stem: Path) -> None:
    with claim(stem) as descriptor:
        copy = os.dup(descriptor)
    assert is_locked(stem)
    os.close(copy)
    assert not is_locked(stem)


@pytest.mark.parametrize("kind", ["fifo", "folder", "link"])
def test_lock_that_is_no_file_is_an_error_at_once(stem: Path, kind: str) -> None:
    lock = beside(stem, "lock")
    lock.unlink()
    {"fifo": os.mkfifo, "folder": os.mkdir, "link": lambda path: path.symlink_to("x")}[kind](lock)

    with pytest.raises(OSError):  # noqa: PT011 (one of several, and no DeliveryRuns)
        is_locked(stem)
    with pytest.raises(OSError), claim(stem):  # noqa: PT011
        pytest.fail("taken")


@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE, errno.EACCES, errno.ENOMEM])
@pytest.mark.parametrize("question", [is_started, outcome_of])
def test_mark_that_cannot_be_read_is_neither_there_nor_missing(
    stem: Path, monkeypatch: pytest.MonkeyPatch, question: Any, number: int
) -> None:
    def refuse(_: Path) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(deliveries_module, "read_json_object", refuse)

    with pytest.raises(OSError, match=os.strerror(number)):
        question(stem, 1)


# --- the number as a fencing token ---


def test_offer_that_was_withdrawn_has_a_higher_number_in_its_payload(deliveries: Deliveries, stem: Path) -> None:
    deliveries.write(stem, {"offer": 3, "body": "text"})

    assert deliveries.withdraw_offer(stem, 3) == 4
    assert deliveries.payload(stem) == {"schema": 1, "offer": 4, "body": "text"}


def test_offer_when_it_was_withdrawn_before_a_crash_is_not_counted_twice(deliveries: Deliveries, stem: Path) -> None:
    deliveries.write(stem, {"offer": 3})
    deliveries.withdraw_offer(stem, 3)

    assert deliveries.withdraw_offer(stem, 3) == 4


def test_offer_of_an_event_that_was_never_handed_over_keeps_its_number(deliveries: Deliveries, stem: Path) -> None:
    beside(stem, "lock").unlink()
    deliveries.write(stem, {"offer": 1})

    assert deliveries.withdraw_offer(stem, 1) == 1
    assert deliveries.payload(stem) == {"schema": 1, "offer": 1}


def test_offer_that_is_under_way_is_neither_withdrawn_nor_written_anew(deliveries: Deliveries, stem: Path) -> None:
    deliveries.write(stem, {"offer": 1})

    with claim(stem):
        with pytest.raises(DeliveryRuns):
            deliveries.withdraw_offer(stem, 1)
        with pytest.raises(DeliveryRuns):
            deliveries.write(stem, {"offer": 2})

    assert deliveries.payload(stem) == {"schema": 1, "offer": 1}


def test_marks_of_another_offer_are_removed_and_those_of_this_one_are_not(stem: Path) -> None:
    beside(stem, "started.json").write_text('{"offer": 1}')
    remove_old_marks(stem, 1)
    assert is_started(stem, 1)
    remove_old_marks(stem, 2)
    assert not beside(stem, "started.json").exists()
