"""`doctor`: the state root, good and bad."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from the_loop.doctor.logs import Seen, of_logs
from the_loop.doctor.storage import Room, examine_root, of_kind, of_room
from the_loop.findings import Finding, State
from the_loop.lock import RunLock
from the_loop.state import PIDFILE, StateRoot

if TYPE_CHECKING:
    from collections.abc import Mapping

PLACE = Path("/srv/the state")
MIB = 1 << 20


@pytest.fixture
def root(tmp_path: Path) -> StateRoot:
    root = StateRoot(tmp_path / "root")
    root.prepare_root()
    root.prepare_folders()
    return root


def found(root: StateRoot) -> Mapping[str, Finding]:
    return {finding.name: finding for finding in examine_root(root, "alice")}


def tree(path: Path) -> list[tuple[str, int, int]]:
    return sorted((str(one), one.lstat().st_mode, one.lstat().st_mtime_ns) for one in path.rglob("*"))


def test_root_when_it_is_good_then_all_is_and_nothing_is_changed(root: StateRoot) -> None:
    before = tree(root.path.parent)

    states = {name: finding.state for name, finding in found(root).items() if name not in ("space", "file system")}

    assert states == dict.fromkeys(("state root", "files of the state root", "lock"), State.OK)
    assert tree(root.path.parent) == before


def test_root_when_it_is_missing_then_a_start_makes_it_and_doctor_does_not(tmp_path: Path) -> None:
    seen = found(StateRoot(tmp_path / "a" / "b"))

    assert seen["state root"].state is State.OK
    assert list(tmp_path.iterdir()) == []


def test_root_when_it_cannot_be_made_then_fails_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)

    seen = found(StateRoot(Path("/proc/none/the-loop")))["state root"]

    assert (seen.state, seen.command) == (
        State.FAIL,
        "sudo install -d -m 0700 -o alice /proc/none/the-loop",
    )


def test_root_when_it_is_a_file_then_fails(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    assert "not a directory" in found(StateRoot(tmp_path / "file"))["state root"].detail


def test_root_when_others_may_enter_it_then_warns(root: StateRoot) -> None:
    root.path.chmod(0o755)

    seen = found(root)["state root"]

    assert (seen.state, seen.command) == (State.WARN, f"chmod 700 {root.path}")


def test_root_when_it_would_become_private_with_files_of_others_then_fails(root: StateRoot) -> None:
    root.path.chmod(0o755)
    (root.path / "letters.txt").write_text("")

    assert found(root)["state root"].state is State.FAIL


def test_file_when_others_may_read_it_then_fails_with_the_command(root: StateRoot) -> None:
    ledger = root.portable / "x.json"
    ledger.write_text("{}")
    ledger.chmod(0o644)

    seen = found(root)["files of the state root"]

    assert (seen.state, seen.command) == (State.FAIL, f"chmod -R go= {root.portable}")
    assert f"'{ledger}'" in seen.detail


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_file_when_it_belongs_to_another_then_fails_with_the_command(root: StateRoot) -> None:
    os.chown(root.logs, 12345, -1)

    seen = found(root)["files of the state root"]

    assert (seen.state, seen.command) == (State.FAIL, f"sudo chown -R 0:0 {root.logs}")


def test_file_of_the_inbox_when_it_is_open_then_is_no_business_of_ours(root: StateRoot) -> None:
    item = root.path / "inbox" / "a"
    item.mkdir(parents=True)
    item.chmod(0o777)

    assert found(root)["files of the state root"].state is State.OK


def test_lock_when_it_is_held_then_works_and_stays_held(root: StateRoot) -> None:
    lock = RunLock.attempt(root.path, PIDFILE)

    seen = found(root)["lock"]

    assert (seen.state, seen.detail) == (State.OK, "works there, and is held")
    assert lock.is_intact()
    lock.close()


def test_lock_when_its_file_is_a_link_then_fails(root: StateRoot) -> None:
    root.pidfile.symlink_to("/etc/passwd")

    assert found(root)["lock"].state is State.FAIL


@pytest.mark.parametrize(
    ("kind", "state"),
    [
        ("ext4", State.OK),
        ("btrfs", State.OK),
        ("tmpfs", State.FAIL),
        ("ramfs", State.FAIL),
        ("nfs4", State.FAIL),
        ("overlay", State.WARN),
        ("", State.UNKNOWN),
    ],
)
def test_file_system_when_it_is_of_a_kind_then_is_named(kind: str, state: State) -> None:
    seen = of_kind(kind, PLACE)

    assert seen.state is state
    assert kind in seen.detail
    assert seen.is_good == (state is not State.FAIL)


@pytest.mark.parametrize(
    ("room", "state", "command"),
    [
        (Room(900 * MIB, 5000), State.OK, ""),
        (Room(900 * MIB, None), State.OK, ""),
        (Room(100 * MIB, 5000), State.WARN, "df -h '/srv/the state'"),
        (Room(900 * MIB, 500), State.WARN, "df -i '/srv/the state'"),
        (Room(1 * MIB, 5000), State.FAIL, "df -h '/srv/the state'"),
        (Room(900 * MIB, 3), State.FAIL, "df -i '/srv/the state'"),
    ],
)
def test_space_when_bytes_or_inodes_run_out_then_is_told(room: Room, state: State, command: str) -> None:
    seen = of_room(room, PLACE)

    assert (seen.state, seen.command) == (state, command)


@pytest.mark.parametrize(
    ("seen", "state", "detail"),
    [
        (Seen(in_journal=True, in_log=False, is_kept=True), State.OK, "in the journal"),
        (Seen(in_journal=True, in_log=False, is_kept=False), State.WARN, "in the journal, which is lost at a reboot"),
        (Seen(in_journal=False, in_log=True, is_kept=False), State.OK, "in '/srv/the state/logs/events.jsonl'"),
        (
            Seen(in_journal=False, in_log=False, is_kept=True),
            State.UNKNOWN,
            "'bob' finds no event of this poller in the journal",
        ),
        (
            Seen(in_journal=False, in_log="Permission denied", is_kept=True),
            State.UNKNOWN,
            "cannot read '/srv/the state/logs/events.jsonl': Permission denied",
        ),
    ],
)
def test_event_log_of_a_unit_when_it_cannot_be_read_or_kept_then_is_told(seen: Seen, state: State, detail: str) -> None:
    found = of_logs(seen, StateRoot(PLACE), "bob", is_unit=True, is_running=True)

    assert (found.state, found.detail) == (state, detail)
    if "finds no event" in detail:
        assert found.command == "sudo usermod -aG systemd-journal bob"


def test_event_log_of_a_process_when_there_is_none_yet_then_is_good() -> None:
    seen = Seen(in_journal=False, in_log=False, is_kept=None)

    assert of_logs(seen, StateRoot(PLACE), "bob", is_unit=False, is_running=False).state is State.OK
