"""RunLock with real processes: at most one holder, and looks that disturb nobody (contract R1)."""

from __future__ import annotations

import os
import stat
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from support.locks import ACQUIRE, CLAIM, FLOCK, HOLDER, identity, take
from support.processes import (
    LIMIT_S,
    Child,
    end,
    is_alive,
    python,
    python_argv,
    run_python,
    wait_until,
)
from the_loop import lock as lock_module
from the_loop.lock import LockBusy, LockHeld, Probe, RunLock, look


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "root"
    path.mkdir()
    return path


# --- one holder ---


def test_attempt_when_free_writes_one_line_and_says_who_holds(root: Path) -> None:
    with python(HOLDER, root) as holder:
        said = holder.line()

        assert said == str(identity(holder))
        assert (root / CLAIM).read_bytes() == f"{said}\n".encode()
        assert look(root, CLAIM) == lock_module.Sight(Probe.HELD, identity(holder), identity(holder), verified=True)


@pytest.mark.parametrize("umask", [0o000, 0o077, 0o777])
def test_attempt_makes_a_private_claim_whatever_the_umask(root: Path, umask: int) -> None:
    with python(HOLDER, root, umask=umask) as holder:
        holder.line()

        assert stat.S_IMODE((root / CLAIM).stat().st_mode) == 0o600


def test_attempt_when_held_names_pid_and_pidfile_and_changes_nothing(root: Path) -> None:
    with python(HOLDER, root) as holder:
        holder.line()
        before = [(path.name, path.stat().st_mtime_ns, path.read_bytes()) for path in root.iterdir()]

        with pytest.raises(LockHeld) as caught:
            RunLock.attempt(root, CLAIM)

        assert caught.value.holder == identity(holder)
        assert caught.value.exit_code == 75
        for part in (f"pid {holder.pid}", str(root / CLAIM), "the-loop poll stop"):
            assert part in str(caught.value)
        assert [(path.name, path.stat().st_mtime_ns, path.read_bytes()) for path in root.iterdir()] == before


@pytest.mark.parametrize("spelling", ["link", "link to link", "dots", "other name of the folder above"])
def test_attempt_by_another_spelling_is_the_same_lock(root: Path, spelling: str) -> None:
    above = root.parent
    match spelling:
        case "link":
            other = above / "link"
            other.symlink_to(root)
        case "link to link":
            (above / "first").symlink_to(root)
            other = above / "second"
            other.symlink_to(above / "first")
        case "dots":
            (root / "sub").mkdir()
            other = root / "sub" / ".."
        case _:
            (above.parent / f"{above.name}-link").symlink_to(above)
            other = above.parent / f"{above.name}-link" / "root"
    with python(HOLDER, other) as holder:
        holder.line()

        with pytest.raises(LockHeld):
            RunLock.attempt(root, CLAIM)
    assert take(root)


def test_two_roots_do_not_know_each_other(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    with python(HOLDER, tmp_path / "a") as holder:
        holder.line()

        assert take(tmp_path / "b")


def test_attempt_of_pairs_at_one_instant_on_a_stale_pidfile_lets_one_in(root: Path) -> None:
    script = """
    for line in sys.stdin:
        moment = float(line)
        while time.monotonic() < moment:
            pass
        try:
            lock = acquire(sys.argv[1])
        except LockHeld as held:
            print("refused", flush=True)
            continue
        print("won", flush=True)
        sys.stdin.readline()
        lock.close()
        print("released", flush=True)
    """
    with python(ACQUIRE + script, root) as one, python(ACQUIRE + script, root) as other:
        for number in range(100):
            (root / CLAIM).write_text(f"{2**22 - number}:1\n")
            moment = time.monotonic() + 0.005
            for child in (one, other):
                child.tell(str(moment))

            said = {child: child.line() for child in (one, other)}

            assert sorted(said.values()) == ["refused", "won"], f"round {number}"
            winner = one if said[one] == "won" else other
            assert winner.ask("release") == "released"


# --- the end of a holder, and its children ---


def test_lock_when_the_holder_is_killed_is_free_at_once(root: Path) -> None:
    for _ in range(5):
        with python(HOLDER, root) as holder:
            holder.line()
            holder.kill()

            assert look(root, CLAIM).probe is Probe.FREE
            assert take(root)


def test_lock_when_the_holder_is_killed_is_not_kept_by_its_children(root: Path) -> None:
    script = """
        import asyncio, json, os, subprocess, sys
        from pathlib import Path
        from the_loop.lock import RunLock
        from the_loop.runners.base import Offer
        from the_loop.runners.exec import Command, ExecRunner
        root = Path(sys.argv[1])
        lock = RunLock.attempt(root, "poll.pid")
        kept = subprocess.Popen(["sleep", "600"], close_fds=False)
        (root / "x.payload.json").write_text(json.dumps({"schema": 1, "offer": 1, "deliveryId": "x"}))
        command = Command(("sh", "-c", "echo $$ > command; exec sleep 60"), root, 600, os.environ, root / "out")
        print(kept.pid, flush=True)
        asyncio.run(ExecRunner(command).deliver(Offer("x", "comment:1", root / "x", 1, 1)))
    """
    children: list[int] = []
    try:
        with python(script, root) as holder:
            children.append(int(holder.line()))
            wait_until(lambda: (root / "command").exists() and (root / "command").read_text(), "the command runs")
            command = int((root / "command").read_text())
            keeper = int(Path(f"/proc/{command}/stat").read_text().rpartition(")")[2].split()[1])
            children += [command, keeper]

            holder.kill()

            assert all(map(is_alive, children))
            for child in children:
                open_there = [os.readlink(link) for link in Path(f"/proc/{child}/fd").iterdir()]
                assert not {str(root), str(root / CLAIM)} & set(open_there)
            assert take(root)
    finally:
        end(*children)


# --- looks ---


def test_looks_in_a_loop_make_no_start_fail(root: Path) -> None:
    looking = """
    enough = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.readline(), enough.set())).start()
    count = 0
    while not enough.is_set():
        look(Path(sys.argv[1]), "poll.pid")
        count += 1
        if count == 1:
            print("looking", flush=True)
    print(count, flush=True)
    """
    starting = """
    for _ in range(60):
        acquire(sys.argv[1]).close()
    print("started 60 times", flush=True)
    """
    with ExitStack() as stack:
        lookers = [stack.enter_context(python(ACQUIRE + looking, root)) for _ in range(4)]
        for looker in lookers:
            looker.line()

        said = run_python(ACQUIRE + starting, root)

        assert said == "started 60 times\n"
        assert all(int(looker.ask("enough")) > 50 for looker in lookers)


def test_look_of_a_missing_directory_is_free_and_makes_nothing(tmp_path: Path) -> None:
    assert look(tmp_path / "missing", CLAIM).probe is Probe.FREE
    assert list(tmp_path.iterdir()) == []


def test_look_of_a_file_in_its_place_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")

    sight = look(tmp_path / "file", CLAIM)

    assert sight.probe is Probe.UNKNOWN
    assert str(tmp_path / "file") in sight.cause


def test_look_at_a_bare_pid_of_an_older_build_is_held_and_not_verified(root: Path) -> None:
    (root / CLAIM).write_text("77\n")
    with python(FLOCK, root / CLAIM, "LOCK_EX") as holder:
        holder.line()

        sight = look(root, CLAIM)

        assert (sight.probe, sight.holder, sight.verified) == (Probe.HELD, identity(holder), False)
        assert "older build" in sight.cause
        with pytest.raises(LockHeld, match=f"pid {holder.pid}"):
            RunLock.attempt(root, CLAIM)
        assert (root / CLAIM).read_text() == "77\n"


def test_look_at_a_holder_in_another_pid_namespace_does_not_take_it_for_gone(root: Path) -> None:
    ways = ["--pid", "--fork", "--mount-proc"] if os.geteuid() == 0 else ["-U", "-r", "--pid", "--fork", "--mount-proc"]
    script = """
        import sys
        from pathlib import Path
        from the_loop.lock import *
        print(repr(look(Path(sys.argv[1]), "poll.pid")))
        try:
            RunLock.attempt(Path(sys.argv[1]), "poll.pid")
        except LockHeld as held:
            print(held.holder, held)
    """
    with python(HOLDER, root) as holder:
        holder.line()

        argv = ["unshare", *ways, *python_argv(script, root)]
        said = subprocess.run(argv, capture_output=True, text=True, timeout=LIMIT_S, check=True).stdout

    sight, refusal = said.splitlines()
    assert "Probe.HELD" in sight
    assert "holder=None" in sight
    assert "pid namespace" in sight
    assert refusal.startswith("None cannot lock")
    assert "another poller holds it" in refusal


def test_look_from_outside_at_a_holder_in_a_pid_namespace_knows_its_pid_here(root: Path) -> None:
    ways = ["--pid", "--fork", "--mount-proc"] if os.geteuid() == 0 else ["-U", "-r", "--pid", "--fork", "--mount-proc"]
    argv = ["unshare", *ways, "--kill-child", *python_argv(HOLDER, root)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as process:
        try:
            note = Child(process).line()
            sight = look(root, CLAIM)
        finally:
            process.kill()

    assert note.startswith("1:")
    assert sight.holder is not None
    assert sight.holder.pid > 1
    assert sight.verified


# --- what is no poller ---


def test_attempt_on_a_directory_that_something_else_locks_is_busy_and_names_it(root: Path) -> None:
    with python(FLOCK, root, "LOCK_EX") as foreign:
        foreign.line()

        with pytest.raises(LockBusy, match=f"pid {foreign.pid}, which is not a poller") as caught:
            RunLock.attempt(root, CLAIM)

        assert (caught.value.shared, caught.value.exit_code) == (False, 1)
        assert list(root.iterdir()) == []
        sight = look(root, CLAIM)
        assert (sight.probe, sight.holder, sight.verified) == (Probe.HELD, identity(foreign), False)


@pytest.mark.parametrize("part", ["directory", "claim"])
def test_attempt_on_what_something_looks_at_is_busy_for_a_moment(root: Path, part: str) -> None:
    (root / CLAIM).write_text("12:34\n")
    with python(FLOCK, root if part == "directory" else root / CLAIM, "LOCK_SH") as looker:
        looker.line()

        with pytest.raises(LockBusy) as caught:
            RunLock.attempt(root, CLAIM)

        assert caught.value.shared
        assert (root / CLAIM).read_text() == "12:34\n"


@pytest.mark.parametrize("obstacles", [["LOCK_EX", "LOCK_SH"], ["LOCK_SH", "LOCK_EX", "LOCK_SH"]])
def test_start_behind_looks_and_a_foreign_lock_waits_for_each(root: Path, obstacles: list[str]) -> None:
    script = """
    print("starting", flush=True)
    acquire(sys.argv[1]).close()
    print("started", flush=True)
    """
    lasts_s = {"LOCK_EX": 1.3, "LOCK_SH": 0.3}  # longer than a look is waited for, shorter than a foreign lock
    with python(FLOCK, root, *obstacles, "LOCK_UN") as other:
        other.line()
        with python(ACQUIRE + script, root) as start:
            start.line()
            for obstacle in obstacles:
                time.sleep(lasts_s[obstacle])
                other.ask("")

            assert start.line() == "started"


@pytest.mark.parametrize(("operation", "patience_s"), [("LOCK_SH", 1.0), ("LOCK_EX", 5.0)])
def test_start_behind_a_lock_that_stays_gives_up_in_its_time(root: Path, operation: str, patience_s: float) -> None:
    script = """
    began = time.monotonic()
    try:
        acquire(sys.argv[1])
    except LockBusy as busy:
        print(time.monotonic() - began)
    """
    with python(FLOCK, root, operation) as other:
        other.line()

        waited_s = float(run_python(ACQUIRE + script, root))

    assert patience_s <= waited_s < patience_s + 2
