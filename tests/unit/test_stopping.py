"""Stopping a unit that runs the poller: what its manager is asked, how, and what its answers are taken for."""

from __future__ import annotations

import os
import pwd
import signal
import time
from typing import TYPE_CHECKING, Final

import pytest

from support.locks import CLAIM
from support.systemctl import CANCELED, HANGS, MINE, NO_BUS, REFUSED, SYSTEM, Ctl, holding, record
from the_loop.state import StateRoot
from the_loop.supervision.stopping import Code, Result, mention_other_units, restart, stop
from the_loop.supervision.unit import Unit, systemctl

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

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


# --- a unit runs it ---


@pytest.mark.parametrize("theirs", [SYSTEM, MINE], ids=str)
def test_stop_when_a_unit_runs_it_then_its_manager_stops_it(root: StateRoot, ctl: Ctl, theirs: Unit) -> None:
    ctl.belongs(theirs)
    with holding(root) as holder:
        ctl.is_("active", "running", holder.pid)
        ctl.on("stop", ctl.turns("inactive", holder.pid))

        result = stop(root, CLAIM, 20)

        assert (result.code, str(holder.pid) in result.message) == (Code.DONE, True)
        assert holder.process.wait(5) == -signal.SIGKILL  # by the manager; we sent nothing
    [call] = ctl.calls("stop")
    assert call.argv == [f"--{theirs.scope}", "--no-ask-password", "stop", "--", "the-loop-poll.service"]


def test_stop_when_asked_then_every_call_is_without_prompt_input_or_our_sockets(
    root: StateRoot, ctl: Ctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    ctl.belongs(MINE)
    monkeypatch.setenv("NOTIFY_SOCKET", "/run/systemd/notify")
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    record(root)
    with holding(root) as holder:
        ctl.is_("active", "running", holder.pid)
        ctl.on("stop", ctl.turns("inactive", holder.pid))
        stop(root, CLAIM, 20)
    with holding(root) as holder:
        ctl.is_("active", "running", holder.pid)
        ctl.on("restart", REFUSED)
        restart(root, CLAIM, 20)

    assert {call.verb for call in ctl.calls()} == {"show", "stop", "restart"}
    for call in ctl.calls():
        assert "--no-ask-password" in call.argv
        assert call.stdin == "/dev/null"
        assert call.env["LC_ALL"] == "C.UTF-8"
        assert "NOTIFY_SOCKET" not in call.env
        assert "--" in call.argv


def test_stop_when_the_unit_belongs_to_another_user_then_goes_through_that_users_manager(
    root: StateRoot, ctl: Ctl
) -> None:
    other = next(entry for entry in pwd.getpwall() if entry.pw_uid not in (0, ME))
    ctl.belongs(Unit("the-loop-poll.service", "user", other.pw_uid))
    with holding(root) as holder:
        ctl.is_("active", "running", holder.pid)
        ctl.on("stop", ctl.turns("inactive", holder.pid))

        assert stop(root, CLAIM, 20).code is Code.DONE

    assert ctl.calls("stop")[0].argv[:3] == ["--user", "-M", f"{other.pw_name}@"]


def test_stop_when_authentication_is_asked_for_then_fails_at_once_and_names_what_to_type(
    root: StateRoot, ctl: Ctl
) -> None:
    ctl.belongs(SYSTEM)
    with holding(root) as holder:
        ctl.is_("active", "running", holder.pid)
        ctl.on("stop", REFUSED)

        result = timed(lambda: stop(root, CLAIM, 30), 5)

        assert result.code is Code.STILL_THERE
        assert "Interactive authentication required" in result.message
        assert "systemctl --system stop the-loop-poll.service" in result.message
        assert is_alive(holder)
        assert len(ctl.calls("stop")) == 1


def test_stop_when_its_job_is_canceled_then_is_asked_for_again(root: StateRoot, ctl: Ctl) -> None:
    ctl.belongs(MINE)
    with holding(root) as holder:
        ctl.is_("active", "running", holder.pid)
        second = ctl.turns("inactive", holder.pid)
        ctl.on("stop", f'[ -e "$folder/once" ] && {{ {second}; exit 0; }}; touch "$folder/once"; {CANCELED}')

        assert stop(root, CLAIM, 20).code is Code.DONE

    assert len(ctl.calls("stop")) == 2


def test_stop_when_its_job_is_canceled_for_ever_then_ends_with_the_timeout(root: StateRoot, ctl: Ctl) -> None:
    ctl.belongs(MINE)
    with holding(root) as holder:
        ctl.is_("active", "running", holder.pid)
        ctl.on("stop", CANCELED)

        result = timed(lambda: stop(root, CLAIM, 1), 3)

        assert result.code is Code.STILL_THERE
        assert "the-loop-poll.service" in result.message
        assert is_alive(holder)


@pytest.mark.parametrize("state", ["active", "deactivating", "reloading"])
def test_stop_when_the_lock_is_free_but_the_unit_is_not_down_then_is_no_success(
    root: StateRoot, ctl: Ctl, state: str
) -> None:
    ctl.belongs(MINE)
    with holding(root) as holder:
        ctl.is_("active", "running", holder.pid)
        text = f"ActiveState={state}\\nSubState=x\\nMainPID={holder.pid}\\n"
        ctl.on("stop", f'kill -KILL {holder.pid}; printf "{text}" >"$folder/state"')

        result = timed(lambda: stop(root, CLAIM, 1), 3)

        assert result.code is Code.STILL_THERE
        assert "the-loop-poll.service" in result.message


# --- answers that do not come ---


@pytest.mark.parametrize("verb", ["stop", "show"])
def test_stop_when_systemctl_hangs_then_ends_with_the_timeout(root: StateRoot, ctl: Ctl, verb: str) -> None:
    ctl.belongs(MINE)
    with holding(root) as holder:
        ctl.is_("active", "running", holder.pid)
        ctl.on(verb, HANGS)

        result = timed(lambda: stop(root, CLAIM, 1), 4)

        assert result.code is Code.STILL_THERE
        expected = "under way" if verb == "stop" else "systemctl --user stop the-loop-poll.service"
        assert expected in result.message
        assert is_alive(holder)


def test_stop_when_systemctl_hangs_before_a_start_then_ends_with_the_timeout(root: StateRoot, ctl: Ctl) -> None:
    record(root)
    ctl.on("show", HANGS)

    result = timed(lambda: stop(root, CLAIM, 1), 4)

    assert result.code is Code.STILL_THERE


def test_restart_when_systemctl_hangs_then_ends_with_the_timeout(root: StateRoot, ctl: Ctl) -> None:
    ctl.belongs(MINE)
    with holding(root) as holder:
        ctl.is_("active", "running", holder.pid)
        ctl.on("restart", HANGS)

        result = timed(lambda: restart(root, CLAIM, 1), 4)

        assert result.code is Code.STILL_THERE
        assert is_alive(holder)


def test_call_when_it_hangs_with_a_child_that_keeps_its_output_open_then_ends_all_the_same(ctl: Ctl) -> None:
    ctl.on("show", "sleep 60 & wait")

    began = time.monotonic()
    finished = systemctl(MINE, "show", limit_s=0.5)

    assert finished.code is None
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("answer", [NO_BUS, "exit 1", "kill -KILL $$"])
def test_stop_when_the_manager_cannot_be_asked_then_says_so_and_signals_nobody(
    root: StateRoot, ctl: Ctl, answer: str
) -> None:
    ctl.belongs(MINE)
    with holding(root) as holder:
        ctl.on("show", answer)

        for act in (stop, restart):
            result = timed(lambda act=act: act(root, CLAIM, 30), 5)  # type: ignore[misc]
            assert result.code is Code.STILL_THERE
            assert "cannot be asked" in result.message
            assert "systemctl --user stop the-loop-poll.service" in result.message
        assert is_alive(holder)
    assert ctl.calls("stop") == []


def test_stop_when_there_is_no_systemctl_then_says_so_and_signals_nobody(
    root: StateRoot, ctl: Ctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    ctl.belongs(MINE)
    with holding(root) as holder:
        monkeypatch.setenv("PATH", str(ctl.folder))

        assert stop(root, CLAIM, 5).code is Code.STILL_THERE
        assert is_alive(holder)


# --- a unit that has the holder without running it ---


def test_stop_when_the_holder_is_not_the_units_main_process_then_is_ended_as_a_plain_process(
    root: StateRoot, ctl: Ctl
) -> None:
    ctl.belongs(Unit("cron.service", "system"))  # stopping that would end something else
    with holding(root) as holder:
        ctl.is_("active", "running", 1)

        assert stop(root, CLAIM, 20).code is Code.DONE
        assert holder.process.wait(5) == -signal.SIGTERM
    assert ctl.calls("stop") == []


def test_stop_when_this_command_runs_inside_that_unit_then_refuses_and_says_what_to_type_outside(
    root: StateRoot, ctl: Ctl
) -> None:
    ctl.belongs(MINE, us=MINE)
    with holding(root) as holder:
        ctl.is_("active", "running", holder.pid)

        for act in (stop, restart):
            result = act(root, CLAIM, 10)
            assert result.code is Code.STILL_THERE
            assert "systemctl --user stop the-loop-poll.service" in result.message
            assert "outside" in result.message
        assert is_alive(holder)
    assert [call.verb for call in ctl.calls() if call.verb != "show"] == []


def test_stop_when_this_command_runs_in_a_unit_of_its_own_then_stops_as_from_anywhere(
    root: StateRoot, ctl: Ctl
) -> None:
    ctl.belongs(MINE, us=Unit("theloop-aaaaaaaaaaaa-bbbbbbbbbbbb-1.service", "user", ME))
    with holding(root) as holder:
        ctl.is_("active", "running", holder.pid)
        ctl.on("stop", ctl.turns("inactive", holder.pid))

        assert stop(root, CLAIM, 20).code is Code.DONE


# --- units on other roots ---


def test_stop_when_nothing_runs_here_then_my_active_unit_on_another_root_is_named(
    root: StateRoot, ctl: Ctl, tmp_path: Path
) -> None:
    elsewhere = StateRoot(tmp_path / "elsewhere")
    elsewhere.prepare_root()
    ctl.lists(MINE)
    with holding(elsewhere) as holder:
        ctl.is_("active", "running", holder.pid, f"THE_LOOP_STATE_ROOT={elsewhere.path}")

        result = stop(root, CLAIM, 5)

    assert result.code == Code.NOTHING_RUNS
    assert (
        f"; the user unit '{MINE.name}' is active on '{elsewhere.path}' "
        f"(run `systemctl --user stop {MINE.name}` to stop it)"
    ) in result.message


def test_stop_when_the_active_unit_is_on_this_root_then_it_is_not_another_one(root: StateRoot, ctl: Ctl) -> None:
    ctl.lists(MINE)
    with holding(root) as holder:
        ctl.is_("active", "running", holder.pid)

        assert mention_other_units(root) == ""
