"""The pidfile decides nothing: stale, planted, removed, it neither blocks nor lets in (contract R1.4, R1.7, R2.1)."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import signal
import socket
import stat
import time
from contextlib import ExitStack
from pathlib import Path
from typing import cast

import pytest

from support.locks import ACQUIRE, CLAIM, FLOCK, HOLDER, identity, take
from support.processes import (
    python,
    run_python,
)
from the_loop import lock as lock_module
from the_loop.charge import Charge
from the_loop.core.model import Note
from the_loop.lock import LockHeld, LockUnusable, Probe, RunLock, look, remove_stale_claim


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "root"
    path.mkdir()
    return path


# --- a pidfile that is taken away ---


@pytest.mark.parametrize("what", ["removed", "renamed", "replaced", "replaced and locked", "link", "emptied", "forged"])
def test_claim_when_tampered_with_lets_nobody_in_and_is_put_back(root: Path, what: str) -> None:
    claim, victim = root / CLAIM, root.parent / "victim"
    victim.write_bytes(b"precious")
    with ExitStack() as stack:
        holder = stack.enter_context(python(HOLDER, root))
        said = holder.line()
        match what:
            case "removed":
                claim.unlink()
            case "renamed":
                claim.rename(root / "elsewhere")
            case "replaced":
                (root / "new").write_text("1:1\n")
                (root / "new").rename(claim)
            case "replaced and locked":
                claim.unlink()
                claim.write_text("1:1\n")
                stack.enter_context(python(FLOCK, claim, "LOCK_EX")).line()
            case "link":
                claim.unlink()
                claim.symlink_to(victim)
            case "emptied":
                claim.write_bytes(b"")
            case "forged":
                claim.write_text("1:1\n")
        is_another_file = what not in ("emptied", "forged")

        assert not any(take(root) for _ in range(20))
        sight = look(root, CLAIM)
        assert (sight.probe, sight.holder) == (Probe.HELD, identity(holder))
        assert holder.ask("restore_claim") == str(is_another_file)
        assert holder.ask("restore_claim") == "False"
        assert not is_another_file or claim.read_text() == f"{said}\n"
        assert not claim.is_symlink()
        assert look(root, CLAIM).verified
        with pytest.raises(LockHeld, match=f"pid {holder.pid}"):
            RunLock.attempt(root, CLAIM)
        holder.kill()
        assert take(root)
    assert victim.read_bytes() == b"precious"


def test_restore_leaves_nothing_beside_the_claim(root: Path) -> None:
    with python(HOLDER, root) as holder:
        holder.line()
        (root / CLAIM).unlink()

        holder.ask("restore_claim")

        assert [path.name for path in root.iterdir()] == [CLAIM]
        assert stat.S_IMODE((root / CLAIM).stat().st_mode) == 0o600


def test_restored_claim_is_locked_like_the_one_it_replaces(root: Path) -> None:
    """`attempt` and `look` ask the claim as well: unlocked, it would make a poller pass for a foreign lock."""
    with python(HOLDER, root) as holder:
        holder.line()
        (root / CLAIM).unlink()

        assert holder.ask("restore_claim") == "True"

        with (root / CLAIM).open("rb") as claim, pytest.raises(BlockingIOError):
            fcntl.flock(claim, fcntl.LOCK_SH | fcntl.LOCK_NB)
        holder.kill()
        assert take(root)


def test_is_intact_when_the_path_leads_to_another_directory_is_false(root: Path) -> None:
    with python(HOLDER, root) as holder:
        holder.line()
        assert holder.ask("is_intact") == "True"

        root.rename(root.parent / "moved")
        assert holder.ask("is_intact") == "False"
        root.mkdir()
        assert holder.ask("is_intact") == "False"

        assert take(root)
        assert not take(root.parent / "moved")


def test_look_when_the_claim_cannot_be_opened_is_unknown(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was "free": an older build locks the claim alone."""
    opened = os.open

    def refuse(path: str | Path, *flags: int) -> int:
        if Path(path) == root / CLAIM:
            raise OSError(errno.EMFILE, "Too many open files")
        return opened(path, *flags)

    monkeypatch.setattr("the_loop.lock.os.open", refuse)

    assert look(root, CLAIM).probe is Probe.UNKNOWN


class Claims:
    """A lock whose path cannot be looked at, or leads elsewhere."""

    def __init__(self, answer: bool | OSError) -> None:
        self.directory, self.claim = Path("/root"), Path("/root/poll.pid")
        self.answer = answer

    def is_intact(self) -> bool:
        if isinstance(self.answer, OSError):
            raise self.answer
        return self.answer

    def restore_claim(self) -> bool:
        return False


def test_charge_when_the_path_cannot_be_looked_at_is_not_lost_and_says_so_once() -> None:
    """One EIO ended a healthy poller."""
    lock = Claims(OSError(errno.EIO, "Input/output error"))
    told: list[Note] = []
    lost: list[bool] = []
    charge = Charge(cast("RunLock", lock), told.append, lambda: lost.append(True))

    assert [charge.check(), charge.check()] == [True, True]
    assert [note.name for note in told] == ["item.failed"]
    lock.answer = False
    assert not charge.check()
    assert (lost, charge.is_lost) == ([True], True)


# --- what an earlier life left ---

STALE = [
    b"",
    b"\0" * 8,
    b"12:34\n56:78\n",
    b"-1:5\n",
    b"0:5\n",
    b"1:x\n",
    b"9" * 1_000_000,
    b"\xff\xfe\x80:1\n",
    b"12\n",
]


@pytest.mark.parametrize("content", STALE, ids=range(len(STALE)))
def test_stale_claim_of_any_content_never_blocks(root: Path, content: bytes) -> None:
    (root / CLAIM).write_bytes(content)

    assert look(root, CLAIM) == lock_module.Sight(Probe.FREE)
    with python(HOLDER, root) as holder:
        said = holder.line()

        assert (root / CLAIM).read_text() == f"{said}\n"


def test_stale_claim_that_names_a_living_process_never_blocks(root: Path) -> None:
    with python(FLOCK, root.parent, "LOCK_SH") as bystander:
        bystander.line()
        (root / CLAIM).write_text(f"{identity(bystander)}\n")

        sight = look(root, CLAIM)

        assert (sight.probe, sight.holder, sight.note) == (Probe.FREE, None, identity(bystander))
        assert take(root)


@pytest.mark.parametrize("kind", ["link", "dangling link", "fifo", "directory", "socket"])
@pytest.mark.timeout(20)
def test_planted_claim_is_refused_at_once_and_not_followed(root: Path, kind: str) -> None:
    claim, victim = root / CLAIM, root.parent / "victim"
    match kind:
        case "link":
            victim.write_bytes(b"precious")
            claim.symlink_to(victim)
        case "dangling link":
            claim.symlink_to(victim)
        case "fifo":
            os.mkfifo(claim)
        case "directory":
            claim.mkdir()
        case "socket":
            with socket.socket(socket.AF_UNIX) as listening:
                listening.bind(str(claim))
    began = time.monotonic()

    assert look(root, CLAIM).probe is Probe.FREE
    with pytest.raises(LockUnusable, match=re.escape(f"cannot lock '{claim}'")):
        RunLock.attempt(root, CLAIM)

    assert time.monotonic() - began < 1
    assert victim.exists() is (kind == "link")
    assert kind != "link" or victim.read_bytes() == b"precious"
    claim.rename(root / "aside")  # the refused start holds nothing back
    assert take(root)


# --- stale pidfiles are cleared by `poll stop` ---


def test_remove_stale_claim_removes_it(root: Path) -> None:
    (root / CLAIM).write_text("12:34\n")

    assert remove_stale_claim(root, CLAIM) is None

    assert list(root.iterdir()) == []


def test_remove_stale_claim_when_there_is_none_does_nothing(root: Path) -> None:
    assert remove_stale_claim(root, CLAIM) is None


@pytest.mark.parametrize("part", ["", CLAIM], ids=["directory", "claim"])
def test_remove_stale_claim_of_a_held_lock_leaves_it(root: Path, part: str) -> None:
    (root / CLAIM).write_text("12:34\n")
    with python(FLOCK, root / part, "LOCK_EX") as holder:
        holder.line()

        found = remove_stale_claim(root, CLAIM)

    assert found is not None
    assert found.probe is Probe.HELD
    assert (root / CLAIM).read_text() == "12:34\n"


@pytest.mark.parametrize("kind", ["link", "fifo", "directory"])
def test_remove_stale_claim_of_something_else_leaves_it_and_says_so(root: Path, kind: str) -> None:
    victim = root.parent / "victim"
    victim.write_bytes(b"precious")
    match kind:
        case "link":
            (root / CLAIM).symlink_to(victim)
        case "fifo":
            os.mkfifo(root / CLAIM)
        case "directory":
            (root / CLAIM).mkdir()

    found = remove_stale_claim(root, CLAIM)

    assert found is not None
    assert "not a regular file, leaving it alone" in found.cause
    assert os.path.lexists(root / CLAIM)
    assert victim.read_bytes() == b"precious"


def test_remove_stale_claim_when_it_is_replaced_meanwhile_leaves_the_new_one(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = root / CLAIM
    claim.write_text("12:34\n")
    flock = lock_module._flock

    def replace_then_flock(descriptor: int, operation: int, path: Path) -> bool:
        if path == claim:
            (root / "new").write_text("56:78\n")
            (root / "new").rename(claim)
        return flock(descriptor, operation, path)

    monkeypatch.setattr(lock_module, "_flock", replace_then_flock)

    remove_stale_claim(root, CLAIM)

    assert claim.read_text() == "56:78\n"


def test_removing_in_a_loop_makes_no_start_fail(root: Path) -> None:
    removing = """
    from the_loop.lock import remove_stale_claim
    print("removing", flush=True)
    while True:
        remove_stale_claim(Path(sys.argv[1]), "poll.pid")
    """
    starting = """
    for _ in range(30):
        lock = acquire(sys.argv[1])
        assert look(Path(sys.argv[1]), "poll.pid").verified
        lock.close()
    print("started", flush=True)
    """
    with python(ACQUIRE + removing, root) as remover:
        remover.line()

        assert run_python(ACQUIRE + starting, root) == "started\n"
        assert remover.kill(signal.SIGKILL) == -signal.SIGKILL
