"""`poll stop`: signals the holder of the lock and nobody else, and returns when it is gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from itertools import groupby
from typing import TYPE_CHECKING

import pytest

from support.github.fake import FakeGitHub
from support.github.faults import hang, secondary_limit
from support.http_server import FakeServer
from support.poller import Box, Started, starttime
from support.sink import Run, overlapping

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow

AT_ONCE_S = 1.5  # "within a second", and what a busy machine adds

FOREIGN = """
import fcntl, os, signal, sys, time
root = sys.argv[1]
signal.signal(signal.SIGTERM, lambda *_: os.write(1, b"TERM"))
directory = os.open(root, os.O_RDONLY)
claim = os.open(root + "/poll.pid", os.O_RDWR | os.O_CREAT, 0o600)
fcntl.flock(directory, fcntl.LOCK_EX)
fcntl.flock(claim, fcntl.LOCK_EX)
os.write(claim, (sys.argv[2] or str(os.getpid())).encode())
print("held", flush=True)
while True:
    time.sleep(60)
"""


@contextmanager
def sleeping() -> Iterator[subprocess.Popen[bytes]]:
    """A stranger, who has to survive."""
    process = subprocess.Popen(["sleep", "600"])
    try:
        yield process
        assert process.poll() is None, "a stranger was signalled"
    finally:
        process.kill()
        process.wait()


@contextmanager
def foreign_holder(box: Box, note: str = "") -> Iterator[subprocess.Popen[str]]:
    """Something that holds both locks and writes `note`, or its bare pid, into the pidfile."""
    argv = [sys.executable, "-c", FOREIGN, str(box.root), note]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    try:
        yield process
        assert process.poll() is None
    finally:
        process.kill()
        assert "TERM" not in process.communicate()[0], "it was signalled"


def seconds_to_stop(poller: Started) -> float:
    began = time.monotonic()
    assert poller.stop() == 0
    return time.monotonic() - began


def wait_for_cycles(box: Box, number: int = 1) -> None:
    box.wait_for_cycles(number)


@pytest.mark.parametrize("kind", ["dead", "garbage", "stranger", "stranger-link", "self", "init"])
def test_stop_when_nobody_holds_the_lock_then_signals_nobody(box: Box, kind: str) -> None:
    pidfile = box.root / "poll.pid"
    with sleeping() as stranger:
        named = {
            "dead": "4194303:12345\n",
            "garbage": "stop me\n",
            "self": f"{os.getpid()}:{starttime(os.getpid())}\n",
            "init": f"1:{starttime(1)}\n",
        }.get(kind, f"{stranger.pid}:{starttime(stranger.pid)}\n")
        place = box.folder / "planted" if kind == "stranger-link" else pidfile
        place.write_text(named)
        if kind == "stranger-link":
            pidfile.symlink_to(place)

        done = box.run("poll", "stop")

        assert done.code == 3
        assert "no poller is running" in done.err
        assert str(box.root) in done.err
        assert ("leaving it alone" if kind == "stranger-link" else "stale") in done.err
        if kind == "stranger-link":
            assert place.read_text() == named
        else:
            assert not pidfile.exists()
    assert box.run("poll", "stop").code == 3
    assert box.run("poll", "status").code == 3
    assert box.run("poll", "restart").code == 3


@pytest.mark.parametrize("content", ["", "{stranger}", "0:1\n", "-1:1\n"])
def test_stop_when_the_pidfile_is_overwritten_then_the_holder_is_stopped_and_nobody_else(
    box: Box, content: str
) -> None:
    with sleeping() as stranger:
        poller = box.start()
        text = content.format(stranger=f"{stranger.pid}:{starttime(stranger.pid)}\n")
        (box.root / "poll.pid").write_text(text)

        done = box.run("poll", "stop")

        assert done.code == 0
        assert f"pid {poller.pid}" in done.err
        assert poller.wait(1) == 0


@pytest.mark.parametrize("note", ["", "{stranger}"])
def test_stop_when_a_bare_pid_holds_the_lock_then_it_is_not_signalled_and_said(box: Box, note: str) -> None:
    with sleeping() as stranger, foreign_holder(box, note.format(stranger=stranger.pid)) as holder:
        done = box.run("poll", "stop", "--timeout", "1")

        assert done.code == 4
        assert f"pid {holder.pid}" in done.err
        assert "not signalled" in done.err
        assert box.run("poll", "restart", "--timeout", "1").code == 4
        assert box.run("poll", "status", "--json").json()["running"] is True
        started = box.once()
        assert started.code == 75
        assert f"pid {holder.pid}," in started.err


def test_stop_when_the_poller_does_not_answer_then_says_so_and_that_a_stop_is_under_way(box: Box) -> None:
    poller = box.start()
    poller.signal(signal.SIGSTOP)

    done = box.run("poll", "stop", "--timeout", "1")

    assert done.code == 4
    assert f"pid {poller.pid}" in done.err
    assert "under way" in done.err
    assert done.seconds < 4
    poller.signal(signal.SIGCONT)
    assert poller.wait() == 0
    assert box.run("poll", "stop").code == 3


def test_stop_then_start_ten_times_when_the_receiver_takes_two_seconds_then_everything_once(box: Box) -> None:
    refs = [box.item(f"item-{number}") for number in range(5)]
    box.sink.behave(("*", {"sleep": 2}))
    poller = box.start()
    for number in range(10):
        box.comment(f"item-{number % 5}", f"c{number}")
        stopped = box.run("poll", "stop")
        assert stopped.code == 0, stopped.err
        assert not poller.is_alive, "stop returned before the poller was gone"
        poller = box.start()
    box.wait(lambda: sum(map(len, box.sink.entries().values())) >= 15 and not box.pending(), "all of it", 60)

    assert {ref: sorted(keys) for ref, keys in box.sink.entries().items()} == {
        ref: sorted(["spawn:1", f"comment:c{number}", f"comment:c{number + 5}"]) for number, ref in enumerate(refs)
    }
    assert not [got for got in box.sink.got() if got.redelivery or got.attempt != 1]
    assert box.attempts() == {}
    by_item = groupby(sorted(box.sink.runs(), key=_item), _item)
    assert [pair for _, runs in by_item for pair in overlapping(list(runs))] == []
    assert poller.stop() == 0


def _item(run: Run) -> str:
    return run.delivery_id.rpartition("/")[0]


def test_stop_when_idle_or_backing_off_then_gone_within_a_second(box: Box, tmp_path: Path) -> None:
    missing = {"provider": "directory", "path": str(tmp_path / "missing"), "settleSeconds": 0}
    box.configure(polling={"intervalSeconds": 600})
    idle = box.start()
    wait_for_cycles(box)
    assert seconds_to_stop(idle) < AT_ONCE_S

    box.configure(polling={"intervalSeconds": 600}, sources=[missing])
    backing_off = box.start()
    wait_for_cycles(box)
    assert box.events("source.failed")
    assert seconds_to_stop(backing_off) < AT_ONCE_S
    assert [event["interrupted"] for event in box.events("poll.cycle")] == [False]


@pytest.mark.parametrize("fault", ["hang", "limit"])
def test_stop_when_the_server_hangs_or_limits_then_gone_within_a_second(box: Box, fault: str) -> None:
    github = FakeGitHub(time.time)
    github.add_repo("octo/repo")
    github.add_issue("octo/repo", labels=["auto"])
    github.fail(".", hang() if fault == "hang" else secondary_limit(3600), times=None)
    with FakeServer(github) as server:
        box.configure(
            sources=[{"provider": "github", "repos": ["octo/repo"], "label": "auto", "apiUrl": server.url}],
            routing={"authorizedUsers": ["octocat"]},
        )
        poller = box.start()
        box.wait(lambda: github.requests, "a request")
        if fault == "limit":
            box.wait(lambda: box.events("source.waiting"), "the wait")
        assert seconds_to_stop(poller) < AT_ONCE_S
        again = box.start()
        if fault == "hang":
            box.wait(lambda: github.requests > 1, "a request")
        else:
            wait_for_cycles(box)
            assert github.requests == 1, "asked before the moment that the limit named"
        stopped = box.run("poll", "stop")
        assert stopped.code == 0
        assert again.wait(1) == 0


def test_stop_when_a_long_command_runs_then_it_goes_on_and_its_outcome_is_picked_up(box: Box) -> None:
    ref = box.item("a")
    box.sink.behave(("*", {"gate": box.sink.gate("open")}))
    poller = box.start()
    box.wait(box.sink.runs, "the receiver")
    box.comment("a", "c1")
    wait_for_cycles(box, 2)

    assert seconds_to_stop(poller) < AT_ONCE_S
    assert [event["deliveryId"] for event in box.events("dispatch.left_running")] == [f"{ref}/spawn:1"]
    again = box.start()
    wait_for_cycles(box)
    assert len(box.sink.runs()) == 1
    assert seconds_to_stop(again) < AT_ONCE_S
    box.sink.open_gate("open")
    box.wait(lambda: box.sink.runs()[0].end, "the receiver to end without a poller")
    box.start()
    box.wait(lambda: len(box.sink.ids()) >= 2 and not box.pending(), "the rest")

    assert box.sink.entries() == {ref: ["spawn:1", "comment:c1"]}
    assert box.attempts() == {}
    assert len(box.events("poll.spawned")) == 1


def test_stop_when_the_receiver_ignores_term_and_never_ends_then_that_entry_stays_and_others_are_recorded(
    box: Box,
) -> None:
    wedged, fine = box.item("wedged"), box.item("fine")
    box.sink.behave(("*wedged*", {"ignore_term": True, "hang": True}))
    box.start()
    box.wait(lambda: len(box.sink.ids()) == 2 and box.events("poll.spawned"), "both")

    done = box.run("poll", "stop")

    assert done.code == 0
    assert done.seconds < 4
    assert list(box.pending()) == [f"{wedged}/spawn:1"]
    assert box.ledgers()[fine]["poll"]["phase"] == "live"
    assert box.attempts() == {}


def test_stop_when_slots_are_taken_then_what_waits_is_abandoned_not_counted_and_comes_once(box: Box) -> None:
    refs = [box.item(f"item-{number}") for number in range(5)]
    box.sink.behave(("*", {"gate": box.sink.gate("open")}))
    poller = box.start()
    box.wait(lambda: len(box.sink.runs()) == 4, "four receivers")
    wait_for_cycles(box)

    assert poller.stop() == 0

    assert [event["deliveryId"] for event in box.events("dispatch.abandoned")] == [f"{refs[4]}/spawn:1"]
    assert [event["count"] for event in box.events("poll.attempts_released")] == [1]
    box.sink.open_gate("open")
    assert box.once().code == 0
    box.assert_once({ref: ["spawn:1"] for ref in refs})


def test_stop_after_the_third_of_twenty_queued_comments_then_the_others_follow_in_order(box: Box) -> None:
    refs = [box.item("a"), box.item("b")]
    assert box.once().code == 0
    box.sink.behave(("*/comment:03", {"gate": box.sink.gate("open")}))
    names = [f"{number:02}" for number in range(1, 11)]
    for folder in ("a", "b"):
        for name in names:
            box.comment(folder, name)
    poller = box.start()
    box.wait(lambda: sum(got.key == "comment:03" for got in box.sink.got()) == 2, "the third ones")
    assert seconds_to_stop(poller) < AT_ONCE_S
    box.sink.open_gate("open")
    box.start()
    box.wait(lambda: not box.pending(), "the rest")

    box.assert_once({ref: ["spawn:1", *(f"comment:{name}" for name in names)] for ref in refs})
