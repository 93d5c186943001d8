"""Standard error on its way through the keeper: its last line is kept, nothing is lost, nothing waits for it."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from support.keepers import Delivery, Scene, ends, read, tell
from support.processes import is_alive, wait_until
from the_loop.core.model import Outcome, Verdict
from the_loop.deliveries import claim

SH = ("/bin/sh", "-c")


@pytest.fixture
def delivery(tmp_path: Path) -> Delivery:
    return Delivery(tmp_path)


def last_line(delivery: Delivery) -> str | None:
    found = read(delivery.file("outcome.json"))
    assert found is not None
    line: str | None = found.get("lastLine")
    return line


@pytest.mark.parametrize(
    ("script", "line"),
    [
        ("echo one >&2; echo two >&2; exit 1", "two"),
        ("echo out; exit 1", None),
        ("printf 'no end' >&2; exit 1", "no end"),
        ("printf 'text\\n\\n  \\n' >&2; exit 1", "text"),
        ("printf ' 10 %%\\r 20 %%\\r' >&2; exit 1", "20 %"),
        ("printf 'a\\033[31mred\\007' >&2; exit 1", "a\\x1b[31mred\\x07"),
        ("printf '\\377\\376 odd' >&2; exit 1", "\\xff\\xfe odd"),
        ("printf 'gr\\303\\274n \\342\\200\\256x' >&2; exit 1", "grün \\u202ex"),
        ("head -c 100000 /dev/zero | tr '\\0' x >&2; echo >&2; exit 1", "x" * 500),
        ("head -c 300000 /dev/zero | tr '\\0' '\\n' >&2; exit 1", None),
        ("echo fine >&2; exit 0", "fine"),
        ("echo later >&2; exit 75", "later"),
        ("echo killed >&2; kill -KILL $$", "killed"),
    ],
)
def test_last_line_of_standard_error_is_kept_with_the_outcome(
    delivery: Delivery, script: str, line: str | None
) -> None:
    assert delivery.keep(*SH, script, run={"errors": "replace"}) == 0

    assert last_line(delivery) == line


def test_last_line_when_the_limit_is_over_is_what_was_said_before(delivery: Delivery) -> None:
    delivery.keep(*SH, "echo waiting for the lock >&2; exec sleep 60", limit_s=0.5)

    assert (delivery.outcome[0], last_line(delivery)) == ("refused", "waiting for the lock")


def test_reason_of_a_rejection_has_the_last_line(tmp_path: Path) -> None:
    scene = Scene(tmp_path)

    assert scene.deliver("echo cannot connect >&2; exit 1") == Outcome(Verdict.REFUSED, "exit status 1: cannot connect")
    assert scene.deliver("no-such-program", number=2).reason.startswith(
        "exit status 127 (command not found in the script): "
    )
    assert scene.deliver("echo no quota left >&2; exit 75", number=3) == Outcome(
        Verdict.LATER, "exit status 75: no quota left"
    )
    assert scene.deliver("echo all is well >&2", number=4) == Outcome(Verdict.DELIVERED, "exit status 0")


def test_megabytes_of_standard_error_arrive_whole_and_before_the_outcome(tmp_path: Path) -> None:
    scene = Scene(tmp_path)

    scene.deliver("i=0; while [ $i -lt 100 ]; do head -c 100000 /dev/zero | tr '\\0' y >&2; i=$((i+1)); done; exit 3")

    assert (scene.folder / "output.log").read_bytes() == b"y" * 10_000_000


def test_command_does_not_wait_for_a_log_that_takes_nothing_and_is_ended_at_its_limit(delivery: Delivery) -> None:
    readable, writable = os.pipe()  # nobody reads: it is full after 64 KiB
    with claim(delivery.stem) as lock:
        script = "head -c 100000 /dev/zero | tr '\\0' z >&2; echo all > said; exec sleep 60"
        keeper = subprocess.Popen(delivery.argv(*SH, script, limit_s=1), stdin=lock, stderr=writable)
    try:
        assert delivery.said("said") == "all"
        wait_until(lambda: not delivery.is_locked, "the lock is let go")

        assert delivery.outcome == ("refused", "did not end within 1 s")
    finally:
        os.close(writable)
        with os.fdopen(readable, "rb") as log:
            written = log.read()
        assert keeper.wait(30) == 0
    assert written == b"z" * 100_000


def test_command_whose_log_is_gone_is_not_stopped_by_that(delivery: Delivery) -> None:
    readable, writable = os.pipe()
    os.close(readable)
    script = "echo a >&2; echo b >&2; sleep 0.1; echo c >&2; exit 7"
    with claim(delivery.stem) as lock:
        keeper = subprocess.Popen(delivery.argv(*SH, script), stdin=lock, stderr=writable)
    os.close(writable)

    assert keeper.wait(30) == 0

    assert (delivery.outcome, last_line(delivery)) == (("refused", "exit status 7"), "c")


def test_child_that_is_left_in_the_group_holds_up_the_outcome_no_longer_than_before(delivery: Delivery) -> None:
    began = time.monotonic()

    delivery.keep(*SH, "sleep 60 & echo $! > other; echo last >&2; exit 7")

    assert time.monotonic() - began < 5
    assert (delivery.outcome, last_line(delivery)) == (("refused", "exit status 7"), "last")
    assert ends(delivery.pid("other"))


def test_child_in_a_session_of_its_own_goes_on_writing_after_the_outcome_and_nothing_is_lost(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    left = "echo $$ > other; until [ -e go ]; do sleep 0.02; done; echo late >&2; echo later >&2; echo $? > wrote"

    outcome = scene.deliver(f"setsid sh -c '{left}' & until [ -e other ]; do sleep 0.02; done; echo now >&2; exit 7")

    assert outcome == Outcome(Verdict.REFUSED, "exit status 7: now")
    wait_until(lambda: not scene.is_locked, "the lock is let go")
    scene.let_go()
    assert scene.said("wrote") == "0"
    log = scene.folder / "output.log"
    wait_until(lambda: log.read_text() == "now\nlate\nlater\n", "what it wrote is in the log")


def test_keeper_that_stays_for_such_a_child_ends_when_it_is_told_to(delivery: Delivery) -> None:
    left = "echo $$ > other; exec sleep 60"
    with delivery.keeping(*SH, f"setsid sh -c '{left}' & until [ -e other ]; do sleep 0.02; done; exit 0") as keeper:
        other = delivery.pid("other")
        wait_until(lambda: delivery.outcome[0] == "delivered" and not delivery.is_locked, "the outcome")
        assert is_alive(keeper.pid)

        tell(keeper.pid, signal.SIGTERM)

        assert keeper.process.wait(30) == -signal.SIGTERM
        assert is_alive(other)
        tell(other, signal.SIGKILL)


@pytest.mark.parametrize("call", ["pipe", "thread"])
def test_keeper_that_cannot_read_standard_error_begins_nothing(delivery: Delivery, call: str) -> None:
    fault = {
        "pipe": "keeper.os.pipe = fail(OSError(24, 'Too many open files'))",
        "thread": 'keeper._thread.start_new_thread = fail(RuntimeError("can\'t start new thread"))',
    }[call]
    script = f"""
import sys
sys.path.append({str(Path(__file__).parents[2] / "src/the_loop/runners")!r})
import keeper
def fail(error):
    def failing(*_):
        raise error
    return failing
{fault}
sys.exit(keeper.main(sys.argv[1:]))
"""

    assert delivery.keep(*SH, "echo ran > ran", python=("-X", "utf8", "-c", script)) == 0

    assert delivery.outcome[0] == "unstartable"
    assert "cannot start a" in delivery.outcome[1]
    assert not (delivery.workdir / "ran").exists()
