"""At most one poller per state root: many starts at once, whatever the pidfile says or becomes."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import stat
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.poller import COMMAND, Box, Started, starttime, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow

ROUNDS = 300 if os.environ.get("THE_LOOP_FULL_SWEEP") else 20
STARTS = 50


@contextmanager
def looking_all_the_time(box: Box) -> Iterator[None]:
    """The product's own probe in a tight loop, and `poll status` beside it."""
    probe = (
        "import sys, pathlib; from the_loop.lock import look\nwhile True: look(pathlib.Path(sys.argv[1]), 'poll.pid')"
    )
    status = 'while :; do "$@" >/dev/null; done'
    argvs = [[sys.executable, "-c", probe, str(box.root)], ["sh", "-c", status, "sh", *box.argv("poll", "status")]]
    with ExitStack() as stack:
        for argv in argvs:
            process = stack.enter_context(subprocess.Popen(argv, env=box.environ, start_new_session=True))
            stack.callback(os.killpg, process.pid, signal.SIGKILL)
        yield


def names(box: Box) -> list[Path]:
    """The console script under names that no list of process names would have."""
    folder = box.folder / "bin"
    folder.mkdir()
    return [
        Path(shutil.copy2(COMMAND, folder / name)) for name in ("the-loop", "the-loop.old", "poller (2) x", "sleep")
    ]


def split(box: Box, starts: list[Started]) -> tuple[Started, list[Started]]:
    """The one that holds the lock, and the others once they have ended."""
    box.wait(lambda: sum(one.is_alive for one in starts) <= 1, "all but one to end", 60)
    winners = [one for one in starts if one.is_alive]
    assert len(winners) == 1, [(one.pid, one.wait(), one.err) for one in starts if one.wait() != 75]
    return winners[0], [one for one in starts if one is not winners[0]]


def has_started(poller: Started) -> bool:
    return "poller.started" in poller.err


def assert_refused(losers: list[Started], winner: Started, box: Box) -> None:
    for loser in losers:
        assert loser.wait() == 75, loser.err
        assert f"pid {winner.pid}," in loser.err
        assert str(box.root / "poll.pid") in loser.err
        assert "poll stop" in loser.err


def held_by(started: Started) -> str:
    return f"{started.pid}:{starttime(started.pid)}\n"


def test_fifty_starts_at_once_when_mixed_then_one_acts_and_names_itself_to_the_others(box: Box) -> None:
    assert box.once().code == 0  # so that there is a trail in which the refused ones can say so
    ref = box.item("a")
    box.sink.behave(("*", {"gate": box.sink.gate("open")}))
    commands = names(box)

    with looking_all_the_time(box):
        starts = [
            box.start(*(["--once"] if number % 2 else []), command=commands[number % len(commands)], is_up=False)
            for number in range(STARTS)
        ]
        winner, losers = split(box, starts)
        box.wait(box.sink.ids, "the delivery of the one that acts")
        before = (box.root / "poll.pid").stat()

    assert_refused(losers, winner, box)
    assert (box.root / "poll.pid").read_text() == held_by(winner)
    assert len(box.events("poller.blocked")) == STARTS - 1
    late = box.run("poll", "start", "--once")
    assert late.code == 75
    after = (box.root / "poll.pid").stat()
    assert (after.st_ino, after.st_mtime_ns, after.st_size) == (before.st_ino, before.st_mtime_ns, before.st_size)
    box.sink.open_gate("open")
    box.wait(lambda: not box.pending(), "the receipt")
    if winner.is_alive:
        winner.signal(signal.SIGTERM)
    assert winner.wait() == 0
    box.assert_once({ref: ["spawn:1"]})


def test_losing_start_when_refused_then_changes_nothing_in_the_root(box: Box) -> None:
    box.item("a")
    box.configure(polling={"intervalSeconds": 600})
    holder = box.start()
    box.wait(lambda: box.sink.ids() and not box.pending(), "the receipt")
    holder.signal(signal.SIGSTOP)  # it changes nothing now, and holds the lock all the same

    def tree() -> dict[Path, tuple[int, int, int]]:
        paths = [path for path in box.root.rglob("*") if path.parent.name != "logs"]
        return {path: (found.st_ino, found.st_mtime_ns, found.st_mode) for path in paths for found in [path.lstat()]}

    before = tree()
    assert box.once().code == 75
    assert box.run("poll", "start").code == 75

    assert tree() == before


def test_honest_starts_when_status_runs_in_a_loop_then_none_is_refused(box: Box) -> None:
    with looking_all_the_time(box):
        done = [box.once() for _ in range(6)]

    assert [one.code for one in done] == [0] * 6, [one.err for one in done if one.code]


@pytest.mark.timeout(120 + 2 * ROUNDS)
def test_pairs_of_starts_when_the_pidfile_is_stale_then_one_each_time(box: Box) -> None:
    box.configure(polling={"intervalSeconds": 600})
    sleeper = subprocess.Popen(["sleep", "600"])
    contents = ["{dead}", "", f"{sleeper.pid}:{starttime(sleeper.pid)}\n", f"{sleeper.pid}:7\n", "no number"]
    try:
        last = "1:1\n"
        for number in range(ROUNDS):
            (box.root / "poll.pid").write_text(contents[number % len(contents)].replace("{dead}", last))
            pair = [box.start(is_up=False), box.start(is_up=False)]
            winner, losers = split(box, pair)
            box.wait(partial(has_started, winner), "the start")
            assert_refused(losers, winner, box)
            last = held_by(winner)
            assert (box.root / "poll.pid").read_text() == last
            winner.kill()
        assert sleeper.poll() is None
    finally:
        sleeper.kill()
        sleeper.wait()


def test_sigkill_when_a_delivery_runs_then_the_next_start_holds_the_lock_at_once(box: Box) -> None:
    ref = box.item("a")
    box.sink.behave(("*", {"gate": box.sink.gate("open"), "fork": 30}))
    for _ in range(5):
        poller = box.start()
        keeper = box.wait(box.keeper, "the keeper")
        box.wait(box.sink.runs, "the receiver")
        for pid in (keeper, box.sink.runs()[0].pid):
            open_files = {os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir()}
            assert not open_files & {str(box.root), str(box.root / "poll.pid")}
        poller.kill()
    box.sink.open_gate("open")
    box.start()
    box.wait(lambda: not box.pending(), "the receipt")

    box.assert_once({ref: ["spawn:1"]})


@pytest.mark.parametrize("change", ["delete", "rename", "replace", "empty", "link"])
def test_pidfile_when_taken_away_under_a_holder_then_nobody_gets_in_and_it_is_put_back(box: Box, change: str) -> None:
    poller = box.start()
    pidfile = box.root / "poll.pid"
    victim = box.folder / "victim"
    victim.write_text("mine")
    if change in ("rename", "replace", "link"):
        pidfile.rename(box.root / "elsewhere")
    if change == "delete":
        pidfile.unlink()
    elif change == "replace":
        pidfile.write_text(f"{os.getpid()}:{starttime(os.getpid())}\n")
    elif change == "empty":
        os.truncate(pidfile, 0)
    elif change == "link":
        pidfile.symlink_to(victim)

    refused = box.once()

    assert refused.code == 75
    assert f"pid {poller.pid}," in refused.err
    if change != "empty":
        box.wait(lambda: pidfile.exists() and pidfile.read_text() == held_by(poller), "the pidfile to be put back")
        assert stat.S_ISREG(pidfile.lstat().st_mode)
        assert box.once().code == 75
    assert victim.read_text() == "mine"
    assert poller.stop() == 0


@pytest.mark.parametrize(
    "content",
    [b"", b"\0" * 8, b"17:5\n18:6\n", b"-1:5", b"0:5", b"1:x", b"9" * (1 << 20), b"\xff\xfe:\xfd", b"-1", b"1:1:1"],
    ids=lambda content: repr(content[:12]),
)
def test_pidfile_when_garbage_then_every_command_does_its_work(box: Box, content: bytes) -> None:
    pidfile = box.root / "poll.pid"
    pidfile.write_bytes(content)

    assert box.run("poll", "status").code == 3
    stopped = box.run("poll", "stop")
    assert stopped.code == 3
    assert "stale" in stopped.err
    pidfile.write_bytes(content)
    assert box.once().code == 0

    pid, _, moment = pidfile.read_text().partition(":")
    assert pid.isdigit()
    assert moment.strip().isdigit()


@pytest.mark.parametrize("kind", ["link", "dangling", "fifo", "directory"])
def test_pidfile_when_it_is_no_file_then_refused_and_not_followed(box: Box, kind: str) -> None:
    pidfile, victim = box.root / "poll.pid", box.folder / "victim.txt"
    if kind == "link":
        victim.write_text("mine")
        pidfile.symlink_to(victim)
    elif kind == "dangling":
        pidfile.symlink_to(victim)
    elif kind == "fifo":
        os.mkfifo(pidfile)
    else:
        pidfile.mkdir()

    done = box.once()

    assert done.code == 1
    assert str(pidfile) in done.err
    assert done.seconds < 5
    assert victim.exists() is (kind == "link")
    if kind == "link":
        assert victim.read_text() == "mine"
    assert box.run("poll", "status").code == 3
    assert box.run("poll", "stop").code == 3
    assert os.path.lexists(pidfile), "what is not ours is left where it is"


def test_root_when_spelled_in_three_ways_then_it_is_one_instance(box: Box) -> None:
    poller = box.start()
    (box.folder / "link").symlink_to(box.root)
    (box.folder / "link2").symlink_to(box.folder / "link")

    for spelling in (box.folder / "link", box.folder / "link2", box.root / ".." / "root", Path("root")):
        done = box.run("--state-root", str(spelling), "poll", "start", "--once")
        assert done.code == 75, done.err
        assert f"pid {poller.pid}," in done.err


def test_two_roots_when_started_together_then_both_run(box: Box, tmp_path: Path) -> None:
    with Box(tmp_path / "second") as second:
        one, other = box.start(), second.start()
        assert one.stop() == 0
        assert other.is_alive
        assert other.stop() == 0


def test_directory_when_locked_by_no_poller_then_waited_for_and_named(box: Box) -> None:
    descriptor = os.open(box.root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        done = box.once()
        assert done.code == 1
        assert f"pid {os.getpid()}" in done.err
        assert done.seconds > 4.5
        waiting = box.start(is_up=False)
        wait_for(lambda: any(_waits_for_lock(waiting, box)), "the start to try")
        assert waiting.stop(2.0) == 0, "told to stop while it waited"
        waiting = box.start(is_up=False)
        wait_for(lambda: any(_waits_for_lock(waiting, box)), "the start to try")
    finally:
        os.close(descriptor)
    box.wait(lambda: "poller.started" in waiting.err, "the start, once the directory is free")


def _waits_for_lock(started: Started, box: Box) -> Iterator[bool]:
    """Whether it has come as far as the handlers: it catches SIGTERM."""
    status = Path(f"/proc/{started.pid}/status").read_text()
    caught = int(status.partition("SigCgt:")[2].split()[0], 16)
    yield bool(caught >> (signal.SIGTERM - 1) & 1) and box.root.exists()


def test_root_when_replaced_under_a_holder_then_it_hands_over_nothing_more_and_leaves(box: Box) -> None:
    box.configure(polling={"intervalSeconds": 1}, sources=[{"provider": "directory", "path": str(box.folder / "in")}])
    (box.folder / "in").mkdir()
    poller = box.start()
    box.wait_for_cycles()

    box.root.rename(box.folder / "moved")
    box.root.mkdir(mode=0o700)
    (box.folder / "in" / "a").mkdir()
    (box.folder / "in" / "a" / "item.md").write_text("please")

    assert poller.wait() == 1
    assert "another directory" in poller.err
    assert box.sink.ids() == []
    assert list(box.root.rglob("*.json")) == [], "nothing of the displaced holder in the new root"
