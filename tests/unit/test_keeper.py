"""The keeper, run for real: what it makes of every end of its command (the table of contract R7.2), and its order."""

from __future__ import annotations

import os
import signal
import stat
import time
from pathlib import Path

import pytest

from support.keepers import HURRIED, Delivery, ends, tell
from support.processes import command, end, is_alive
from the_loop.deliveries import claim
from the_loop.processes import boot_id, identity_of, parse_identity

SH = ("/bin/sh", "-c")
STOPS = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]
TO_SLEEP = "echo $$ > pid; exec sleep 60"


@pytest.fixture
def delivery(tmp_path: Path) -> Delivery:
    return Delivery(tmp_path)


# --- the table ---


@pytest.mark.parametrize(
    ("script", "outcome", "reason"),
    [
        ("exit 0", "delivered", "exit status 0"),
        ("exit 7", "refused", "exit status 7"),
        ("exit 1", "refused", "exit status 1"),
        ("exit 126", "refused", "exit status 126 (not executable)"),
        ("exit 127", "refused", "exit status 127 (command not found in the script)"),
        ("exit 255", "refused", "exit status 255"),
        ("exit 75", "later", "exit status 75"),
        ("kill -SEGV $$", "refused", "killed by SIGSEGV"),
        ("kill -ABRT $$", "refused", "killed by SIGABRT"),
        ("kill -PIPE $$", "refused", "killed by SIGPIPE"),
        ("kill -40 $$", "refused", "killed by signal 40"),
        ("kill -TERM $$; sleep 9", "unknown", "killed by SIGTERM"),
        ("kill -KILL $$; sleep 9", "unknown", "killed by SIGKILL"),
    ],
)
def test_end_of_the_command_decides_the_outcome(delivery: Delivery, script: str, outcome: str, reason: str) -> None:
    assert delivery.keep(*SH, script) == 0

    assert delivery.outcome == (outcome, reason)
    assert not delivery.is_locked


@pytest.mark.parametrize("number", [*STOPS, signal.SIGKILL])
def test_command_that_somebody_else_ends_is_unknown(delivery: Delivery, number: signal.Signals) -> None:
    with delivery.keeping(*SH, TO_SLEEP) as keeper:
        tell(delivery.pid(), number)

        assert keeper.process.wait(30) == 0
    assert delivery.outcome == ("unknown", f"killed by {number.name}")


@pytest.mark.parametrize("number", STOPS)
def test_keeper_that_is_told_to_stop_ends_the_command_and_does_not_know(
    delivery: Delivery, number: signal.Signals
) -> None:
    with delivery.keeping(*SH, "trap 'echo told > word; exit 0' TERM; echo $$ > pid; sleep 60 & wait") as keeper:
        pid = delivery.pid()
        assert delivery.is_locked
        assert delivery.outcome == ("", "")

        tell(keeper.pid, number)

        assert keeper.process.wait(30) == 0
    assert delivery.outcome == ("unknown", f"told to stop by {number.name}")
    assert delivery.said("word") == "told"
    assert ends(pid)


def test_command_past_its_limit_is_refused_and_its_whole_group_ended(delivery: Delivery) -> None:
    began = time.monotonic()

    assert delivery.keep(*SH, "sleep 60 & echo $! > other; echo $$ > pid; wait", limit_s=0.5) == 0

    assert 0.5 <= time.monotonic() - began < 8
    assert delivery.outcome == ("refused", "did not end within 0 s")
    assert ends(delivery.pid())
    assert ends(delivery.pid("other"))


def test_command_past_its_limit_that_ignores_term_is_killed_with_its_group(delivery: Delivery) -> None:
    script = "trap '' TERM; sh -c 'sleep 60; sleep 60' & echo $! > other; echo $$ > pid; wait; sleep 60"

    assert delivery.keep(*SH, script, limit_s=0.5, python=("-X", "utf8", "-c", HURRIED)) == 0

    assert delivery.outcome[0] == "refused"
    assert ends(delivery.pid())
    assert ends(delivery.pid("other"))


def test_command_that_leaves_something_behind_is_delivered_and_the_rest_is_ended(delivery: Delivery) -> None:
    assert delivery.keep(*SH, "sleep 60 & echo $! > other; exit 0") == 0

    assert delivery.outcome[0] == "delivered"
    assert ends(delivery.pid("other"))


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("not found", "session.command 'no-such-program': not found"),
        ("not executable", "session.command '{work}/program': Permission denied"),
        ("directory", "session.command '{work}': Permission denied"),
        ("no program", "session.command '{work}/program': Exec format error"),
        ("interpreter missing", "session.command '{work}/program': not found"),
        ("no workdir", "session.workdir '{work}/missing': not found"),
        ("workdir is a file", "session.workdir '{work}/program': Not a directory"),
    ],
)
def test_command_that_cannot_be_started_says_which_setting_is_to_blame(
    delivery: Delivery, kind: str, reason: str
) -> None:
    program = delivery.workdir / "program"
    program.write_bytes(b"#!/no/such/interpreter\n" if kind == "interpreter missing" else b"\0\0\0\0")
    program.chmod(0o600 if kind == "not executable" else 0o700)
    called: Path | str = program
    workdir = delivery.workdir
    match kind:
        case "not found":
            called = "no-such-program"
        case "directory":
            called = delivery.workdir
        case "no workdir":
            workdir, called = delivery.workdir / "missing", "true"
        case "workdir is a file":
            workdir, called = program, "true"

    # a folder of PATH that may not be searched would be a fault of its own
    assert delivery.keep(called, workdir=workdir, run={"env": {"PATH": "/usr/bin:/bin"}}) == 0

    assert delivery.outcome == ("unstartable", reason.format(work=delivery.workdir))


def test_program_is_looked_up_in_the_path_and_in_the_workdir_by_its_own_rules(delivery: Delivery) -> None:
    program = delivery.workdir / "program"
    program.write_text("#!/bin/sh\npwd > where\n")
    program.chmod(0o700)

    assert delivery.keep("./program") == 0

    assert delivery.outcome[0] == "delivered"
    assert delivery.said("where") == str(delivery.workdir)


# --- once ---


def test_marks_say_what_was_started_by_whom_and_are_private(delivery: Delivery) -> None:
    delivery.write_payload(offer=3)
    with delivery.keeping(*SH, f"{TO_SLEEP}", offer=3) as keeper:
        delivery.pid()
        mark = delivery.mark
        keeper.process.terminate()
        keeper.process.wait(30)

    assert mark is not None
    process, _, boot = mark["keeper"].rpartition(":")
    identity = parse_identity(process)
    assert identity is not None
    assert (mark["schema"], mark["offer"], mark["attempt"]) == (1, 3, 1)
    assert (identity.pid, boot) == (keeper.pid, boot_id())
    assert delivery.outcome[0] == "unknown"


def test_start_mark_names_the_keeper_as_others_see_it(delivery: Delivery) -> None:
    with delivery.keeping(*SH, TO_SLEEP) as keeper:
        delivery.pid()

        assert delivery.mark is not None
        assert delivery.mark["keeper"] == f"{identity_of(keeper.pid)}:{boot_id()}"


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_files_of_the_keeper_are_private_whatever_the_umask(delivery: Delivery, umask: int) -> None:
    delivery.keep(*SH, "exit 0", run={"umask": umask})

    for part in ("started.json", "outcome.json"):
        assert stat.S_IMODE(delivery.file(part).stat().st_mode) == 0o600
    assert not delivery.file("outcome.json.tmp").exists()


def test_second_keeper_of_an_offer_refuses_and_runs_nothing(delivery: Delivery) -> None:
    assert delivery.keep(*SH, "echo ran >> runs; exit 7") == 0
    before = (delivery.mark, delivery.outcome)

    assert delivery.keep(*SH, "echo ran >> runs; exit 0") == 75

    assert (delivery.mark, delivery.outcome) == before
    assert delivery.said("runs") == "ran"


@pytest.mark.parametrize("content", ["", "{}", "\0" * 20])
def test_keeper_that_finds_any_start_mark_refuses(delivery: Delivery, content: str) -> None:
    delivery.file("started.json").write_text(content)

    assert delivery.keep(*SH, "echo ran > runs") == 75

    assert delivery.file("started.json").read_text() == content
    assert not (delivery.workdir / "runs").exists()


def test_start_mark_that_is_a_planted_link_is_not_followed(delivery: Delivery) -> None:
    delivery.file("started.json").symlink_to(delivery.folder / "victim")

    assert delivery.keep(*SH, "echo ran > runs") == 75

    assert not (delivery.folder / "victim").exists()
    assert not (delivery.workdir / "runs").exists()


def test_keeper_beside_another_that_has_the_lock_refuses(delivery: Delivery) -> None:
    with delivery.keeping(*SH, TO_SLEEP):
        delivery.pid()
        descriptor = os.open(delivery.file("lock"), os.O_RDWR)
        try:
            code = delivery.keep(*SH, "echo ran > runs", run={"stdin": descriptor})
        finally:
            os.close(descriptor)

    assert code == 75
    assert not (delivery.workdir / "runs").exists()


def test_keeper_of_an_offer_that_is_over_refuses_and_leaves_no_mark(delivery: Delivery) -> None:
    delivery.write_payload(offer=2)

    assert delivery.keep(*SH, "echo ran > runs", offer=1) == 75

    assert delivery.mark is None
    assert not (delivery.workdir / "runs").exists()


@pytest.mark.parametrize("content", [None, b"", b"{", b"[]", b"5", b"\xff\xfe", b"[" * 100_000])
def test_keeper_without_a_payload_that_can_be_read_begins_nothing(delivery: Delivery, content: bytes | None) -> None:
    delivery.file("payload.json").unlink()
    if content is not None:
        delivery.file("payload.json").write_bytes(content)

    assert delivery.keep(*SH, "echo ran > runs") == 1

    assert delivery.mark is None
    assert not (delivery.workdir / "runs").exists()


def test_two_keepers_at_one_instant_run_the_command_once(delivery: Delivery) -> None:
    for number in range(1, 4):
        delivery.write_payload(offer=number)
        for part in ("started.json", "outcome.json"):
            delivery.file(part).unlink(missing_ok=True)
        argv = delivery.argv(*SH, f"echo ran >> runs{number}", offer=number)
        with claim(delivery.stem) as lock, command(argv, stdin=lock) as one, command(argv, stdin=lock) as other:
            codes = sorted(child.process.wait(30) for child in (one, other))

        assert codes == [0, 75]
        assert delivery.said(f"runs{number}") == "ran"


# --- a keeper that is killed ---


def test_keeper_that_is_killed_takes_its_command_along_and_leaves_a_mark(delivery: Delivery) -> None:
    with delivery.keeping(*SH, TO_SLEEP) as keeper:
        pid = delivery.pid()

        keeper.kill()

        assert ends(pid)
    assert not delivery.is_locked
    assert delivery.mark is not None
    assert delivery.outcome == ("", "")


def test_lock_of_a_killed_keeper_is_kept_by_nobody(delivery: Delivery) -> None:
    with delivery.keeping(*SH, "sleep 60 & echo $! > other; echo $$ > pid; wait") as keeper:
        pid, other = delivery.pid(), delivery.pid("other")
        try:
            keeper.kill()
            assert ends(pid)

            assert is_alive(other)
            assert not delivery.is_locked
        finally:
            end(other)
