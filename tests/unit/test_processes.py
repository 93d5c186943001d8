"""Who a process is: never a name, never a bare number (contract R1.8)."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.processes import LIMIT_S, python, wait_until
from the_loop.processes import Identity, boot_id, identity_of, own_identity, parse_identity, pinned

SLEEP = "import time; print('up', flush=True); time.sleep(600)"
RENAME = """
    import ctypes, sys
    for line in sys.stdin:
        ctypes.CDLL(None).prctl(15, line.rstrip("\\n").encode(), 0, 0, 0)
        print("renamed", flush=True)
"""


@pytest.mark.parametrize(
    ("text", "identity"),
    [
        ("12:34", Identity(12, 34)),
        ("12:34\n", Identity(12, 34)),
        ("1:0", Identity(1, 0)),
        ("", None),
        ("\0" * 8, None),
        ("12", None),
        ("12:", None),
        (":34", None),
        ("0:5", None),
        ("-1:5", None),
        ("1:-5", None),
        ("1:x", None),
        ("1 2:3", None),
        ("1:2:3", None),
        ("12:34\n56:78\n", None),
        ("+1:5", None),
        ("1_0:5", None),
        ("\u0661:5", None),  # a digit, but none of ours
        ("\u00b2:5", None),
        ("9" * 1_000_000, None),
        ("9" * 1_000_000 + ":5", None),
        ("5:" + "9" * 1_000_000, None),
    ],
)
def test_parse_identity_of_one_well_formed_line_only(text: str, identity: Identity | None) -> None:
    assert parse_identity(text) == identity


@settings(deadline=None)
@given(st.text() | st.from_regex(r"[0-9:\n -]{0,40}"))
def test_parse_identity_of_any_text_never_names_a_group_or_everybody(text: str) -> None:
    identity = parse_identity(text)

    assert identity is None or identity.pid > 0


@settings(deadline=None)
@given(st.integers(1, 2**22), st.integers(0, 2**64 - 1))
def test_parse_identity_reads_back_what_it_was_written_as(pid: int, starttime: int) -> None:
    assert parse_identity(f"{Identity(pid, starttime)}\n") == Identity(pid, starttime)


def test_identity_of_a_young_process_is_of_this_very_moment() -> None:
    ticks_s = os.sysconf("SC_CLK_TCK")
    before = time.clock_gettime(time.CLOCK_BOOTTIME)

    with python(SLEEP) as child:
        child.line()
        found = identity_of(child.pid)
        after = time.clock_gettime(time.CLOCK_BOOTTIME)

    assert found is not None
    assert found.pid == child.pid
    assert before - 0.1 <= found.starttime / ticks_s <= after + 0.1


@pytest.mark.parametrize("name", ["x) R 1 1 (y", ")", "a b", "(", ") ) ) 5 6 7"])
def test_identity_of_a_process_with_an_odd_name_is_the_same(name: str) -> None:
    with python(RENAME) as child:
        child.ask("plain")
        before = identity_of(child.pid)
        child.ask(name)

        assert Path(f"/proc/{child.pid}/comm").read_text().rstrip("\n") == name
        assert identity_of(child.pid) == before is not None


def test_identity_of_an_ended_process_is_none() -> None:
    with python(SLEEP) as child:
        child.line()
        child.kill()

    assert identity_of(child.pid) is None


def test_own_identity_is_what_others_see() -> None:
    assert own_identity() == identity_of(os.getpid())


def test_pinned_of_a_living_process_is_a_handle_of_it() -> None:
    with python(SLEEP) as child:
        child.line()
        identity = identity_of(child.pid)
        assert identity is not None

        with pinned(identity) as descriptor:
            assert descriptor is not None
            signal.pidfd_send_signal(descriptor, signal.SIGTERM)

        assert child.process.wait(LIMIT_S) == -signal.SIGTERM


def test_pinned_of_a_number_that_means_another_process_by_now_is_none() -> None:
    with python(SLEEP) as child:
        child.line()
        identity = identity_of(child.pid)
        assert identity is not None

        with pinned(Identity(child.pid, identity.starttime + 1)) as descriptor:
            assert descriptor is None


@pytest.mark.parametrize("pid", [2**22 + 1, 9_999_999_999])
def test_pinned_of_a_number_that_no_process_can_have_is_none(pid: int) -> None:
    with pinned(Identity(pid, 5)) as descriptor:
        assert descriptor is None


def test_pinned_leaves_no_descriptor_behind() -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))

    with pinned(own_identity()) as descriptor:
        assert descriptor is not None

    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_boot_id_is_the_kernels() -> None:
    assert boot_id() == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert len(boot_id()) == 36


def test_wait_until_of_what_never_comes_fails_and_says_what() -> None:
    with pytest.raises(AssertionError, match="did not come within 0 s: the moon"):
        wait_until(lambda: False, "the moon", limit_s=0.05)
