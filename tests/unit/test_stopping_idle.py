"""Stopping where nobody holds the lock, restarting, and whose unit a process is in."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from support.locks import CLAIM
from support.processes import python, wait_until
from support.systemctl import CANCELED, MINE, NO_BUS, REFUSED, SYSTEM, Ctl, holding, record
from the_loop.cli.common import NotChecked
from the_loop.config import ConfigError, Fault
from the_loop.core.model import LoopError
from the_loop.last_report import read_heartbeat
from the_loop.processes import Identity
from the_loop.state import StateRoot
from the_loop.subprocesses import run_blocking
from the_loop.supervision import unit, waking
from the_loop.supervision.sockets import send_wake
from the_loop.supervision.stopping import Code, Result, restart, stop
from the_loop.supervision.unit import Unit, state_of, systemctl, unit_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.processes import Child

ME: Final = os.geteuid()


@pytest.fixture
def ctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ctl:
    return Ctl(tmp_path, monkeypatch)


def timed(act: Callable[[], Result], limit_s: float) -> Result:
    began = time.monotonic()
    result = act()
    assert time.monotonic() - began < limit_s, f"{result} took {time.monotonic() - began:.1f} s"
    return result


def is_alive(child: Child) -> bool:
    return child.process.poll() is None


# --- nobody holds the lock ---


@pytest.mark.parametrize(
    ("active", "sub"),
    [
        ("activating", "auto-restart"),
        ("activating", "start"),
        ("deactivating", "stop-sigterm"),
        ("reloading", "reload"),
    ],
)
def test_stop_when_the_last_unit_is_on_its_way_then_is_stopped_too(
    root: StateRoot, ctl: Ctl, active: str, sub: str
) -> None:
    record(root)
    ctl.is_(active, sub, environment=f"THE_LOOP_STATE_ROOT={root.path}")
    ctl.on("stop", ctl.turns("inactive"))

    result = stop(root, CLAIM, 10)

    assert (result.code, "the-loop-poll.service" in result.message) == (Code.DONE, True)
    assert len(ctl.calls("stop")) == 1


@pytest.mark.parametrize("state", ["inactive", "failed"])
def test_stop_when_the_last_unit_is_down_then_nothing_runs(root: StateRoot, ctl: Ctl, state: str) -> None:
    record(root)
    ctl.is_(state)

    assert stop(root, CLAIM, 10).code is Code.NOTHING_RUNS
    assert ctl.calls("stop") == []


def test_stop_when_the_last_unit_cannot_be_asked_about_then_is_no_success(root: StateRoot, ctl: Ctl) -> None:
    record(root)
    ctl.on("show", NO_BUS)

    result = stop(root, CLAIM, 10)

    assert result.code is Code.STILL_THERE
    assert "cannot be asked" in result.message


def test_stop_when_a_manager_does_not_list_its_units_then_is_no_success(root: StateRoot, ctl: Ctl) -> None:
    """A unit of its that is about to start would be overlooked (contract R2.4)."""
    ctl.lists(unknown=["the user manager: timed out"])

    result = stop(root, CLAIM, 10)

    assert result == Result(Code.STILL_THERE, "the user manager: timed out")


@pytest.mark.parametrize(("answer", "is_known"), [("exit 0", True), (NO_BUS, False)])
def test_units_when_listed_then_the_manager_that_does_not_answer_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, is_known: bool
) -> None:
    listed = unit._listed  # before the stub replaces it
    ctl = Ctl(tmp_path, monkeypatch)
    ctl.on("list-units", answer)
    monkeypatch.setattr(Path, "is_dir", lambda _: True)
    monkeypatch.setattr(Path, "exists", lambda _: False)

    units, unknown = listed("the-loop-poll*.service", 10)

    assert units == []
    assert [reason.split(":")[1] for reason in unknown] == ([] if is_known else [" the system manager"])


@pytest.mark.parametrize(
    ("environment", "is_ours"),
    [
        ("THE_LOOP_STATE_ROOT={root}", True),
        ("A=b THE_LOOP_STATE_ROOT={root} C=d", True),
        ("THE_LOOP_STATE_ROOT={root}/../root/", True),
        ("THE_LOOP_STATE_ROOT={root}/..", False),
        ("THE_LOOP_STATE_ROOT={root}2", False),
        ("OLD_THE_LOOP_STATE_ROOT={root}", False),
        ("", False),
    ],
)
@pytest.mark.parametrize("name", ["the-loop-poll@two.service", "the-loop-poll-once.service"])
def test_stop_when_a_unit_is_on_its_way_then_is_stopped_if_it_is_of_this_root(
    root: StateRoot, ctl: Ctl, name: str, environment: str, is_ours: bool
) -> None:
    ctl.lists(Unit(name, "system"))
    ctl.is_("activating", "auto-restart", environment=environment.format(root=root.path))
    ctl.on("stop", ctl.turns("inactive"))

    code = stop(root, CLAIM, 10).code

    assert code is (Code.DONE if is_ours else Code.NOTHING_RUNS)
    assert len(ctl.calls("stop")) == int(is_ours)


def test_stop_when_the_path_of_the_root_has_spaces_then_its_unit_is_known_all_the_same(
    tmp_path: Path, ctl: Ctl
) -> None:
    path = tmp_path / 'my "own" root'
    path.mkdir(mode=0o700)
    ctl.lists(SYSTEM)
    escaped = str(path).replace('"', '\\"')
    ctl.is_("activating", "auto-restart", environment=f'"THE_LOOP_STATE_ROOT={escaped}" A=b')  # as systemd 252 says it
    ctl.on("stop", ctl.turns("inactive"))

    assert stop(StateRoot(path), CLAIM, 10).code is Code.DONE


def test_stop_when_the_unit_that_was_written_down_still_is_that_run_then_is_stopped(root: StateRoot, ctl: Ctl) -> None:
    record(root, "my-own.service", invocation="a" * 32)
    ctl.is_("activating", "auto-restart", invocation="a" * 32)
    ctl.on("stop", ctl.turns("inactive"))

    assert stop(root, CLAIM, 10).code is Code.DONE


@pytest.mark.parametrize(
    ("name", "command", "user"),
    [
        ("ssh.service", "/usr/sbin/sshd -D", str(ME)),
        ("my-own.service", "/usr/bin/the-loop poll start --state-root /elsewhere", str(ME)),
        ("my-own.service", "/usr/bin/the-loop poll start", str(ME + 1)),
        ("my-own.service", "/usr/bin/the-loop poll start --state-root {root}", str(ME + 1)),
        ("my-own.service", "/usr/bin/the-loop poll start", "daemon"),
    ],
)
def test_stop_when_the_note_has_a_units_true_invocation_then_that_alone_is_no_proof(
    root: StateRoot, ctl: Ctl, name: str, command: str, user: str
) -> None:
    """Everybody can read an invocation id, and the note is the word of the root's owner: root must not act on it."""
    record(root, name, invocation="a" * 32)
    ctl.is_("activating", "auto-restart", invocation="a" * 32, command=command.format(root=root.path), user=user)

    result = stop(root, CLAIM, 10)

    assert (result.code, ctl.calls("stop")) == (Code.NOTHING_RUNS, [])


@pytest.mark.parametrize("option", ["--state-root {root}", "--state-root={root}/../root"])
def test_stop_when_the_units_command_names_the_root_then_is_stopped(root: StateRoot, ctl: Ctl, option: str) -> None:
    record(root, "my-own.service", invocation="of an earlier run")
    ctl.is_("activating", "auto-restart", command=f"/usr/bin/the-loop poll start {option.format(root=root.path)}")
    ctl.on("stop", ctl.turns("inactive"))

    assert stop(root, CLAIM, 10).code is Code.DONE


def test_stop_when_the_units_user_has_no_uid_now_then_that_is_said_and_nothing_stopped(
    root: StateRoot, ctl: Ctl
) -> None:
    ctl.lists(SYSTEM)
    ctl.is_("activating", "auto-restart", environment=f"THE_LOOP_STATE_ROOT={root.path}", user="no-such-user")

    result = stop(root, CLAIM, 10)

    assert (result.code, ctl.calls("stop")) == (Code.STILL_THERE, [])
    assert "there is no user 'no-such-user' now" in result.message


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        '{"name": 7}',
        '{"name": "x.timer", "scope": "system", "uid": 0}',
        "\0" * 50,
        '{"name": "a.service"}',
        '{"name": "a\\u0000.service", "scope": "system", "uid": 0}',
        '{"name": "a\\udcff.service", "scope": "system", "uid": 0}',
        '{"name": "a b.service", "scope": "system", "uid": 0}',
        '{"name": "-H.service", "scope": "system", "uid": 0}',
        '{"name": "a.service", "scope": "user", "uid": true}',
        '{"name": "a.service", "scope": "user", "uid": -1}',
        '{"name": "a.service", "scope": "user", "uid": %s}' % ("9" * 400),
        '{"wake": "/\\u0000", "heartbeat": "/\\u0000", "name": 1}',
    ],
)
def test_stop_when_the_note_about_the_unit_is_garbage_then_is_as_good_as_none(
    root: StateRoot, ctl: Ctl, content: str
) -> None:
    (root.path / "local" / "unit.json").write_text(content)
    ctl.is_("activating")

    assert stop(root, CLAIM, 10).code is Code.NOTHING_RUNS
    assert ctl.calls("stop") == []
    assert read_heartbeat(root)["sources"] == []
    assert not any(send_wake(path) for path in waking._places(root))


def test_stop_when_the_note_about_the_unit_cannot_be_read_then_that_is_not_none(
    root: StateRoot, ctl: Ctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path) -> dict[str, object]:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    monkeypatch.setattr("the_loop.supervision.unit.read_json_object", fail)
    ctl.is_("activating")

    result = stop(root, CLAIM, 10)

    assert result.code is Code.STILL_THERE
    assert result.message == f"cannot find out which unit runs it: '{root.path}/local/unit.json': Input/output error"


@pytest.mark.parametrize("name", ["sshd.service", "--force.service", "user@0.service"])
def test_stop_when_the_note_names_a_unit_that_never_ran_this_root_then_it_is_left_alone(
    root: StateRoot, ctl: Ctl, name: str
) -> None:
    # nothing is stopped on the word of a file: the root may have been copied, or the unit be another one today
    record(root, name)
    ctl.is_("reloading", "reload", environment="OTHER=x")

    stop(root, CLAIM, 3)

    assert ctl.calls("stop") == []


@pytest.mark.parametrize("is_held", [True, False])
def test_stop_when_timer_and_socket_would_start_it_again_then_names_those_of_this_root(
    root: StateRoot, ctl: Ctl, is_held: bool
) -> None:
    timer, socket = (Unit(f"the-loop-poll-once.{kind}", "system") for kind in ("timer", "socket"))
    ctl.lists(timer, socket)
    ours = f"THE_LOOP_STATE_ROOT={root.path}"
    ctl.is_("inactive", environment=ours)
    if is_held:
        ctl.belongs(SYSTEM)
        with holding(root) as holder:
            ctl.is_("active", "running", holder.pid, ours)
            ctl.on("stop", f"kill -KILL {holder.pid}; sed -i s/=active/=inactive/ $folder/state")
            result = stop(root, CLAIM, 20)
    else:
        result = stop(root, CLAIM, 20)

    assert result.code is (Code.DONE if is_held else Code.NOTHING_RUNS)
    assert "the-loop-poll-once.timer and the-loop-poll-once.socket" in result.message
    ctl.is_("inactive", environment="THE_LOOP_STATE_ROOT=/elsewhere")
    assert "the-loop-poll-once" not in stop(root, CLAIM, 20).message


# --- restarting ---


def test_restart_when_a_unit_runs_it_then_its_manager_does_it(root: StateRoot, ctl: Ctl) -> None:
    ctl.belongs(MINE)
    with holding(root) as first, python(WAITER, root.path) as second:
        ctl.is_("active", "running", first.pid)
        ctl.on("restart", f"kill -KILL {first.pid}")

        result = restart(root, CLAIM, 20)

        assert result == Result(Code.DONE, f"restarted as pid {second.pid}")
    assert ctl.calls("restart")[0].argv[-3:] == ["restart", "--", "the-loop-poll.service"]


@pytest.mark.parametrize(
    ("error", "code"), [(ConfigError("c.yaml", [Fault("a", "b")]), 78), (NotChecked("cannot find out"), 4)], ids=str
)
@pytest.mark.parametrize("unit", [None, MINE], ids=["a plain process", "a unit"])
def test_restart_when_it_would_not_start_again_then_it_goes_on(
    root: StateRoot, ctl: Ctl, error: LoopError, code: int, unit: Unit | None
) -> None:
    ctl.belongs(unit)

    def refuse(_: Identity) -> None:
        raise error

    with holding(root) as holder:
        ctl.is_("active", "running", holder.pid)

        result = restart(root, CLAIM, 3, refuse)

        assert (result.code, is_alive(holder)) == (code, True)
        assert f"not restarted, pid {holder.pid} goes on: {error}" in result.message
        assert ("systemctl --user restart" in result.message) == (unit is not None)
    assert ctl.calls("restart") == []


WAITER: Final = """
    import sys, time
    from pathlib import Path
    from the_loop.lock import LockBusy, LockHeld, RunLock
    while True:
        try:
            lock = RunLock.attempt(Path(sys.argv[1]), "poll.pid")
            break
        except (LockHeld, LockBusy):
            time.sleep(0.02)
    sys.stdin.read()
"""


@pytest.mark.parametrize("answer", [REFUSED, CANCELED])
def test_restart_when_its_manager_refuses_then_names_what_to_type(root: StateRoot, ctl: Ctl, answer: str) -> None:
    ctl.belongs(SYSTEM)
    with holding(root) as holder:
        ctl.is_("active", "running", holder.pid)
        ctl.on("restart", answer)

        result = restart(root, CLAIM, 3)

        assert result.code is Code.STILL_THERE
        assert "systemctl --system restart the-loop-poll.service" in result.message
        assert is_alive(holder)


# --- which unit a process is of ---

DEEP: Final = "/user.slice/user-1001.slice/user@1001.service"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("0::/system.slice/the-loop-poll.service\n", Unit("the-loop-poll.service", "system")),
        (f"0::{DEEP}/app.slice/the-loop-poll.service\n", Unit("the-loop-poll.service", "user", 1001)),
        (
            "0::/system.slice/system-x.slice/the-loop-poll@-srv-my\\x20root.service\n",
            Unit("the-loop-poll@-srv-my\\x20root.service", "system"),
        ),
        (
            "12:pids:/user.slice\n1:name=systemd:/system.slice/a.service\n0::/\n",
            Unit("a.service", "system"),
        ),
        ("12:pids:/x.service\n0::/system.slice/a.service\n", Unit("a.service", "system")),
        ("0::/user.slice/user-1001.slice/session-c2.scope\n", None),
        (f"0::{DEEP}\n", None),
        (f"0::{DEEP}/init.scope\n", None),
        ("0::/system.slice\n", None),
        ("0::/\n", None),
        ("4:memory:/a.service\n", None),
        ("", None),
    ],
)
def test_unit_when_read_from_a_control_group_then_is_a_service_or_none(
    tmp_path: Path, content: str, expected: Unit | None
) -> None:
    (tmp_path / "cgroup").write_text(content)

    assert unit_of(f"..{tmp_path}") == expected


def test_unit_when_the_process_is_gone_then_is_none() -> None:
    assert unit_of(2**22) is None


def test_unit_when_it_cannot_be_read_then_that_is_not_none(tmp_path: Path) -> None:
    """It was taken for a plain process: signalled, and started again by its manager."""
    (tmp_path / "cgroup").mkdir()

    with pytest.raises(IsADirectoryError):
        unit_of(f"..{tmp_path}")


def test_state_when_the_manager_answers_then_is_read_from_its_properties(ctl: Ctl) -> None:
    ctl.is_("activating", "auto-restart", 0, "THE_LOOP_STATE_ROOT=/srv/a", "abc", user="alice", command="x poll")

    state = state_of(SYSTEM)

    assert state is not None
    assert (state.active, state.sub, state.main_pid) == ("activating", "auto-restart", 0)
    assert (state.environment, state.invocation, state.user) == ("THE_LOOP_STATE_ROOT=/srv/a", "abc", "alice")
    assert " argv[]=x poll ; " in state.command


@pytest.mark.parametrize("answer", ["exit 4", NO_BUS, "kill -KILL $$"])
def test_state_when_the_manager_does_not_answer_then_is_unknown(ctl: Ctl, answer: str) -> None:
    ctl.on("show", answer)

    assert state_of(SYSTEM) is None


def test_command_when_it_cannot_be_started_then_says_why(tmp_path: Path) -> None:
    finished = run_blocking([str(tmp_path / "missing")], {}, limit_s=1)

    assert finished.code is None
    assert "No such file" in finished.problem


def test_command_when_it_ends_then_nothing_of_it_is_left_running(ctl: Ctl) -> None:
    ctl.on("show", 'echo $$ >"$folder/pid"; exec sleep 60')

    systemctl(MINE, "show", limit_s=0.5)

    pid = int((ctl.folder / "pid").read_text())
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), "the end of the call", 5)
