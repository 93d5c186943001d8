"""Roots that are full, read-only or somebody else's: the place is named, and what cannot be recorded is not done."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.poller import COMMAND, ME, Box, Started, starttime

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow

IS_ROOT = os.geteuid() == 0
# a mount namespace of our own; an ordinary user gets one along with a user namespace
UNSHARE = ["unshare", "--mount"] if IS_ROOT else ["unshare", "--mount", "--map-root-user"]
NOBODY = pwd.getpwnam("nobody")
AS_NOBODY = ["setpriv", f"--reuid={NOBODY.pw_uid}", f"--regid={NOBODY.pw_gid}", "--clear-groups", "--"]


def needed(works: bool, reason: str) -> None:
    """Skip on a laptop that cannot do it; in CI that is a failure."""
    if not works:
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)


def does(argv: list[str]) -> bool:
    return subprocess.run(argv, capture_output=True, check=False, timeout=60).returncode == 0


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Box]:
    """A box whose root is a small file system, which only its own processes see; `box.root` leads into it."""
    needed(does([*UNSHARE, "mount", "-t", "tmpfs", "none", str(tmp_path)]), "no private mounts")
    root = tmp_path / "box" / "root"
    root.mkdir(parents=True)
    script = f"mount -t tmpfs -o size=256k,mode=0700 none '{root}' && echo up && exec sleep 3600"
    holder = subprocess.Popen([*UNSHARE, "sh", "-c", script], stdout=subprocess.PIPE)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"up\n"
        with Box(tmp_path / "box") as box:
            within = [] if IS_ROOT else ["--user", "--preserve-credentials"]
            box.prefix = ["nsenter", f"--target={holder.pid}", "--mount", *within]
            box.root = Path(f"/proc/{holder.pid}/root{root}")
            box.inbox = tmp_path / "box" / "in"
            box.inbox.mkdir()
            source = {"provider": "directory", "path": str(box.inbox), "settleSeconds": 0}
            box.configure(sources=[source], routing={"authorizedUsers": [ME, "root"]})  # root: ourselves in there
            yield box
    finally:
        holder.kill()
        holder.communicate()


def fill(box: Box, free_pages: int) -> None:
    """Leave so many pages of the file system free; at 0 not even a new name can be made."""
    with (box.root / "filler").open("wb") as file:
        try:
            while True:
                os.write(file.fileno(), b"\1" * 4096)
        except OSError:
            pass
        os.ftruncate(file.fileno(), max(0, os.fstat(file.fileno()).st_size - free_pages * 4096))


@pytest.mark.parametrize("free_pages", [0, 1, 2, 3, 5, 8])
def test_disk_when_full_then_nothing_unrecorded_is_done_and_all_comes_once_when_there_is_room(
    small: Box, free_pages: int
) -> None:
    ref = small.item("a")
    assert small.once().code == 0
    fill(small, free_pages)
    small.comment("a", "c1")
    small.comment("a", "c2")
    new = small.item("b")

    poller = small.start(is_up=False)
    small.wait(lambda: "No space left" in poller.err or len(small.sink.ids()) >= 4, "the full disk to be noticed")
    small.wait(lambda: small.sink.ids().count(f"{ref}/comment:c1") <= 1, "nothing twice")
    (small.root / "filler").unlink()
    if not poller.is_alive:
        assert poller.wait() == 1
        assert "box/root" in poller.err, "the place is named"
        poller = small.start()
    small.wait(lambda: len(small.sink.ids()) >= 4 and not small.pending(), "all of it", 60)

    small.assert_once({ref: ["spawn:1", "comment:c1", "comment:c2"], new: ["spawn:1"]})
    assert poller.stop() == 0


def test_root_when_no_file_may_grow_then_1_and_said_without_a_traceback(box: Box) -> None:
    box.prefix = ["prlimit", "--fsize=0", "--"]

    done = box.once()

    assert done.code == 1
    assert "File too large" in done.err
    assert str(box.root) in done.err


def test_root_when_read_only_then_1_and_named_while_status_and_stop_work(box: Box) -> None:
    ref = box.item("a")
    assert box.once().code == 0
    script = f"mount --bind '{box.root}' '{box.root}' && mount -o remount,bind,ro '{box.root}' && exec \"$@\""
    needed(does([*UNSHARE, "sh", "-c", script, "sh", "true"]), "no private mounts")
    box.prefix = [*UNSHARE, "sh", "-c", script, "sh"]
    box.comment("a", "c1")

    done = box.once()

    assert done.code == 1
    assert str(box.root) in done.err
    assert "ead-only" in done.err
    assert box.run("poll", "status").code == 3
    assert box.run("poll", "stop").code == 3
    assert box.run("ledger", "show", ref).json()["ref"] == ref
    assert box.run("ledger", "reset", ref).code == 1
    assert box.run("events").code == 0
    box.prefix = []
    assert box.once().code == 0
    box.assert_once({ref: ["spawn:1", "comment:c1"]})


@contextmanager
def open_folder() -> Iterator[Path]:
    """A scratch folder that every user can reach, which those of the test runner are not."""
    folder = Path(tempfile.mkdtemp(prefix="the-loop-test-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@pytest.fixture
def theirs() -> Iterator[Box]:
    """A box of an ordinary user: `nobody` where we are root, else ourselves."""
    with open_folder() as folder, Box(folder / "box") as box:
        if IS_ROOT:
            needed(does([*AS_NOBODY, "sh", "-c", f"'{COMMAND}' --version"]), f"nobody cannot run {COMMAND}")
            box.prefix = AS_NOBODY
        box.configure(routing={"authorizedUsers": ["nobody" if IS_ROOT else ME]})
        box.item("a")
        give(box)
        yield box


def give(box: Box) -> None:
    """All that we made in their box is theirs."""
    for path in [box.folder, *box.folder.rglob("*")] if IS_ROOT else ():
        with suppress(FileNotFoundError):  # what the poller is done with
            os.chown(path, NOBODY.pw_uid, NOBODY.pw_gid, follow_symlinks=False)


def owners(box: Box) -> set[int]:
    return {path.lstat().st_uid for path in [box.root, *box.root.rglob("*")]}


def test_root_of_a_user_when_another_runs_on_it_then_refused_untouched_and_the_user_goes_on(theirs: Box) -> None:
    assert theirs.once().code == 0
    tree = {path: path.lstat().st_mtime_ns for path in theirs.root.rglob("*")}
    if IS_ROOT:
        theirs.prefix = []
        for arguments in (("poll", "start", "--once"), ("poll", "start"), ("ledger", "reset", "directory:inbox/a")):
            done = theirs.run(*arguments)
            assert done.code == 1
            assert f"uid {NOBODY.pw_uid}" in done.err
            assert str(theirs.root) in done.err
        assert {path: path.lstat().st_mtime_ns for path in theirs.root.rglob("*")} == tree
        theirs.prefix = AS_NOBODY
    theirs.comment("a", "c1")
    give(theirs)
    assert theirs.once().code == 0

    theirs.assert_once({"directory:inbox/a": ["spawn:1", "comment:c1"]})
    assert len(owners(theirs)) == 1


def test_pidfile_when_it_names_a_process_of_another_user_then_the_lock_decides(theirs: Box) -> None:
    (theirs.root / "poll.pid").write_text(f"1:{starttime(1)}\n")
    give(theirs)

    assert theirs.run("poll", "status").code == 3
    done = theirs.once()

    assert done.code == 0, done.err
    theirs.assert_once({"directory:inbox/a": ["spawn:1"]})


@pytest.mark.skipif(not IS_ROOT, reason="only root can stop another user's poller")
def test_poller_of_a_user_when_root_stops_it_then_stopped_and_no_file_changes_hands(theirs: Box) -> None:
    poller = theirs.start()
    theirs.prefix = []

    assert theirs.run("poll", "status").code == 0
    done = theirs.run("poll", "stop")

    assert done.code == 0, done.err
    assert poller.wait(1) == 0
    assert owners(theirs) == {NOBODY.pw_uid}


@pytest.mark.skipif(not IS_ROOT, reason="only root can ask another user's poller")
def test_poller_of_a_user_when_root_asks_then_it_does_it_and_no_file_changes_hands(theirs: Box) -> None:
    theirs.configure(polling={"intervalSeconds": 3600, "maxRetries": 1}, routing={"authorizedUsers": [NOBODY.pw_name]})
    ref = "directory:inbox/a"
    poller = theirs.start()
    theirs.wait(lambda: theirs.sink.ids() and not theirs.pending(), "the spawn")
    theirs.sink.behave(("*", {"code": 9}))
    theirs.comment("a", "c1")
    give(theirs)
    theirs.prefix = []

    assert theirs.run("poll", "wake", "inbox").code == 0
    theirs.wait(lambda: theirs.events("poll.comment_failed"), "the rejection")
    theirs.sink.behave()
    give(theirs)
    assert theirs.run("ledger", "retry", ref).code == 0
    theirs.wait(lambda: theirs.sink.keys(ref).count("comment:c1") == 2 and not theirs.pending(), "the event")
    assert theirs.run("ledger", "settle", ref, "comment:c1").code == 0
    assert theirs.run("ledger", "reset", ref).code == 0
    theirs.wait(lambda: theirs.sink.keys(ref)[-1] == "spawn:2" and not theirs.pending(), "the second start")
    assert theirs.run("poll", "stop").code == 0
    assert poller.wait(1) == 0
    assert theirs.run("ledger", "reset", ref).code == 1, "without a poller root would have to write itself"
    assert owners(theirs) == {NOBODY.pw_uid}


RESET = r"""
import socket, sys
peer = socket.socket(socket.AF_UNIX)
try:
    peer.connect(sys.argv[1])
    peer.sendall(b'{"verb": "reset", "ref": "directory:inbox/a"}\n')
except BrokenPipeError:
    pass
except OSError as error:
    sys.exit(str(error))
print(peer.recv(4096).decode())
"""


def said_by_nobody(path: Path) -> str:
    """What another user's program gets from a socket."""
    argv = [*AS_NOBODY, sys.executable, "-I", "-S", "-c", RESET, str(path)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=30, cwd="/")
    return done.stdout + done.stderr


def started_by_root(theirs: Box) -> Started:
    """A poller on their folder, which belongs to root now, once it has delivered the spawn."""
    for path in [theirs.root, *theirs.root.rglob("*")]:
        os.chown(path, 0, 0, follow_symlinks=False)
    theirs.configure()
    theirs.prefix = []
    poller = theirs.start()
    theirs.wait(lambda: theirs.sink.ids() and not theirs.pending(), "the spawn")
    return poller


@pytest.mark.skipif(not IS_ROOT, reason="it takes a second user, whom only root can be")
def test_poller_when_another_user_asks_then_refused_and_nothing_is_done(theirs: Box) -> None:
    poller = started_by_root(theirs)
    theirs.root.chmod(0o755)
    theirs.prefix = AS_NOBODY
    for arguments in (("ledger", "reset", "directory:inbox/a"), ("poll", "wake")):
        done = theirs.run(*arguments)
        assert done.code in (1, 3), done.err
    assert "ermission denied" in said_by_nobody(theirs.root / "control.sock")
    (theirs.root / "control.sock").chmod(0o666)
    assert f"uid {NOBODY.pw_uid} may not ask" in said_by_nobody(theirs.root / "control.sock")
    theirs.prefix = []
    assert theirs.sink.ids() == ["directory:inbox/a/spawn:1"]
    assert poller.stop() == 0


@pytest.mark.skipif(not IS_ROOT, reason="it takes a second user, whom only root can be")
def test_poller_when_another_user_wants_to_stop_it_then_4_and_not_signalled(theirs: Box) -> None:
    poller = started_by_root(theirs)
    theirs.prefix = AS_NOBODY
    for mode in (0o700, 0o755):  # out of sight, and in sight
        theirs.root.chmod(mode)

        done = theirs.run("poll", "stop", "--timeout", "2")

        assert done.code == 4, done.err
        assert "ermission" in done.err or f"pid {poller.pid}" in done.err
        assert poller.is_alive
        assert theirs.once().code != 0
    theirs.root.chmod(0o700)
    assert poller.stop() == 0
    theirs.assert_once({"directory:inbox/a": ["spawn:1"]})
