"""`doctor`: the unit, its files and what lives beside it, good and bad."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from the_loop import __version__
from the_loop.doctor import checkup
from the_loop.doctor import service as service_module
from the_loop.doctor import subject as subject_module
from the_loop.doctor.parts import Part, examine_all
from the_loop.doctor.service import (
    examine_lingering,
    examine_program,
    hidden_by,
    install_again,
    of_files,
    of_lock,
    of_no_manager,
    of_unit,
    of_version,
)
from the_loop.doctor.subject import Service, Subject, Unasked, environment_of, service_of
from the_loop.findings import Finding, Site, State
from the_loop.lock import Probe, Sight
from the_loop.processes import Identity
from the_loop.subprocesses import Finished
from the_loop.supervision.install import Named, unit_texts
from the_loop.supervision.unit import Unit

HELD, FREE = Sight(Probe.HELD, Identity(77, 1)), Sight(Probe.FREE)
SERVICE = Service(
    Unit("the-loop-poll.service", "user", os.geteuid()),
    active="active",
    sub="running",
    enabled="enabled",
    main_pid=77,
    fragment=Path("/home/alice/.config/systemd/user/the-loop-poll.service"),
    needs_reload=False,
    command="/opt/my loop/bin/the-loop poll start --config /home/alice/my loop.yaml --state-root /srv/x --wait",
    environment={},
    user="alice",
    systemctl="systemctl --user",
)
TIMER = replace(SERVICE, unit=Unit("the-loop-poll-once.timer", "user", 1001), sub="waiting", main_pid=0)
DOWN = replace(SERVICE, active="inactive", sub="dead", main_pid=0)
SUBJECT = Subject(SERVICE, user="alice", uid=1001, environ={}, shell={})


# --- the poller and its unit ---


@pytest.mark.parametrize(
    ("sight", "service", "timer", "state", "command"),
    [
        (HELD, SERVICE, None, State.OK, ""),
        (HELD, None, None, State.OK, ""),
        (HELD, replace(SERVICE, main_pid=12), None, State.WARN, ""),
        (FREE, None, None, State.FAIL, "the-loop poll start"),
        (FREE, DOWN, None, State.FAIL, "systemctl --user enable --now the-loop-poll.service"),
        (FREE, DOWN, TIMER, State.OK, ""),
        (
            FREE,
            DOWN,
            replace(TIMER, active="inactive"),
            State.FAIL,
            "systemctl --user enable --now the-loop-poll.service",
        ),
        (Sight(Probe.UNKNOWN, cause="cannot lock it"), DOWN, None, State.UNKNOWN, ""),
    ],
)
def test_poller_when_it_runs_or_not_then_says_what_starts_it(
    sight: Sight, service: Service | None, timer: Service | None, state: State, command: str
) -> None:
    found = of_lock(sight, service, timer)

    assert (found.state, found.command) == (state, command)


@pytest.mark.parametrize(
    ("service", "timer", "state", "command"),
    [
        (SERVICE, None, State.OK, ""),
        (replace(SERVICE, enabled="disabled"), None, State.WARN, "systemctl --user enable the-loop-poll.service"),
        (replace(DOWN, enabled="disabled"), TIMER, State.OK, ""),
        (replace(DOWN, enabled="masked"), None, State.FAIL, "systemctl --user unmask the-loop-poll.service"),
        (
            replace(SERVICE, active="failed", sub="failed"),
            None,
            State.FAIL,
            "journalctl --user -u the-loop-poll.service -n 50",
        ),
        (
            replace(SERVICE, active="activating", sub="auto-restart", unit=Unit("the-loop-poll.service", "system")),
            None,
            State.FAIL,
            "journalctl -u the-loop-poll.service -n 50",
        ),
    ],
)
def test_unit_when_it_fails_or_does_not_start_at_boot_then_says_what_to_type(
    service: Service, timer: Service | None, state: State, command: str
) -> None:
    found = of_unit(service, timer)

    assert (found.state, found.command) == (state, command)


def test_option_when_its_value_has_blanks_then_goes_up_to_the_next_option() -> None:
    assert SERVICE.option("--config") == "/home/alice/my loop.yaml"
    assert SERVICE.option("--state-root") == "/srv/x"
    assert SERVICE.option("--verbose-not") is None


# --- its files ---


@pytest.mark.parametrize("is_user", [True, False])
@pytest.mark.parametrize("name", [None, "two"])
@pytest.mark.parametrize(
    "named",
    [
        Named(),
        Named("/srv/my loop.yaml", "/srv/x y", is_root_given=True),
        Named(None, "/srv/x", path="/opt/a b:/usr/bin"),
    ],
)
def test_files_when_this_version_wrote_them_for_any_place_then_are_good(
    named: Named, name: str | None, *, is_user: bool
) -> None:
    if name is not None and (named.config or named.root):
        return  # an instance names its own
    here = unit_texts(Path("/opt/my loop/bin"), is_user=is_user, name=name, named=named)
    texts = unit_texts(Path("/"), is_user=is_user, name=name)

    found = of_files({Path("/etc/x") / file: text for file, text in here.items()}, texts, "install")

    assert (found.state, found.detail.partition(" writes")[0]) == (State.OK, f"as version {__version__}")


def test_files_when_another_version_wrote_them_or_one_is_missing_then_says_what_to_type() -> None:
    texts = unit_texts(Path("/"), is_user=True, name=None)
    files: dict[Path, str | None] = {Path("/etc/x") / file: text for file, text in texts.items()}
    service = Path("/etc/x/the-loop-poll.service")
    older = {**files, service: str(files[service]).replace("WatchdogSec=3min", "WatchdogSec=9min")}

    changed = of_files(older, texts, "the-loop unit install --user")
    missing = of_files({**files, service: None}, texts, "the-loop unit install --user")

    assert (changed.state, changed.command) == (State.WARN, "the-loop unit install --user")
    assert changed.detail.endswith(str(service))
    assert (missing.state, missing.detail) == (State.FAIL, f"missing: {service}")


@pytest.mark.parametrize(
    ("service", "command"),
    [
        (SERVICE, "--user --config '/home/alice/my loop.yaml'"),
        (
            replace(
                SERVICE, environment={"THE_LOOP_STATE_ROOT": "/srv/x", "PATH": "/a"}, command="the-loop poll start"
            ),
            "--user --state-root /srv/x --path",
        ),
        (replace(SERVICE, unit=Unit("the-loop-poll@two.service", "user", 1)), "--user --name two"),
        (
            replace(
                SERVICE,
                unit=Unit("the-loop-poll.service", "system"),
                command="the-loop poll start --config /etc/the-loop/config.yaml",
                environment={"THE_LOOP_STATE_ROOT": "/var/lib/the-loop"},
            ),
            "--system",
        ),
    ],
)
def test_install_when_it_is_to_be_done_again_then_names_what_the_unit_names(service: Service, command: str) -> None:
    assert install_again(replace(service, user="root")) == f"the-loop unit install {command}"


# --- around it ---


def test_lingering_when_on_or_off_or_not_to_be_found_out_then_says_which(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_module, "_LINGER", tmp_path)
    (tmp_path / "alice").touch()
    (tmp_path / "file").touch()

    (on,) = examine_lingering("alice", is_poller_in_it=True)
    (off,) = examine_lingering("bob", is_poller_in_it=False)
    monkeypatch.setattr(service_module, "_LINGER", tmp_path / "file")
    (odd,) = examine_lingering("alice", is_poller_in_it=True)

    assert on.state is State.OK
    assert (off.state, off.command) == (State.FAIL, "sudo loginctl enable-linger bob")
    assert (odd.state, odd.is_good) == (State.UNKNOWN, False)


@pytest.mark.parametrize(
    ("version", "state"),
    [("252.39-1~deb12u2", State.OK), ("257", State.OK), ("249.11", State.FAIL), ("odd", State.UNKNOWN)],
)
def test_version_of_systemd_when_it_is_too_old_then_fails(version: str, state: State) -> None:
    found = of_version(version, "the-loop 1")

    assert found.state is state
    assert version in found.detail


def test_manager_when_it_cannot_be_reached_then_matters_for_a_unit_only() -> None:
    of_a_unit = of_no_manager("no socket", SUBJECT)
    of_a_process = of_no_manager("no socket", replace(SUBJECT, service=None))

    assert (of_a_unit.state, of_a_unit.command) == (State.FAIL, "sudo systemctl start user@1001.service")
    assert of_a_process.state is State.OK


def test_program_when_it_is_missing_or_not_executable_then_fails(tmp_path: Path) -> None:
    program = tmp_path / "my loop" / "the-loop"
    command = f"{program} poll start --wait"

    (missing,) = examine_program(command, "alice")
    program.parent.mkdir()
    program.touch()
    (plain,) = examine_program(command, "alice")
    program.chmod(0o755)
    (good,) = examine_program(f"/usr/bin/env {command}", "alice")

    assert [missing.state, plain.state, good.state] == [State.FAIL, State.FAIL, State.OK]
    assert good.detail == str(program)


def test_places_in_homes_when_the_service_is_the_systems_then_are_hidden(tmp_path: Path) -> None:
    system = replace(SERVICE, unit=Unit("the-loop-poll.service", "system"), fragment=tmp_path / "the-loop-poll.service")
    drop_in = tmp_path / "the-loop-poll.service.d" / "9.conf"
    drop_in.parent.mkdir()
    inbox = Path("/home/alice/inbox")

    assert hidden_by([inbox, Path("/srv/inbox")], system) == [inbox]
    assert hidden_by([inbox], SERVICE) == []
    drop_in.write_text("[Service]\nBindPaths=/home/alice/inbox\n")
    assert hidden_by([inbox], system) == []


# --- what its manager says ---

SHOWN = """LoadState=loaded
ActiveState=active
SubState=running
UnitFileState=enabled
MainPID=77
FragmentPath=/etc/systemd/system/the-loop-poll.service
NeedDaemonReload=no
ExecStart={ path=/usr/bin/x ; argv[]=/usr/bin/the-loop poll start --config /etc/x y.yaml ; ignore_errors=no }
Environment=THE_LOOP_STATE_ROOT=/var/lib/the-loop "PATH=/a b:/c"
EnvironmentFiles=ENV (ignore_errors=yes)
User=root"""


def test_service_when_its_manager_shows_it_then_has_command_and_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = tmp_path / "env"
    variables.write_text("# a comment\nGITHUB_TOKEN='x y'\nODD\n")
    answers = {
        "show": SHOWN.replace("ENV", str(variables)),
        "show-environment": "LANG=C.UTF-8\nPATH=/usr/bin\nX=$'a b'",
    }
    monkeypatch.setattr(
        subject_module, "systemctl", lambda _unit, verb, *_words, **_options: Finished((), 0, answers[verb], "")
    )

    service = service_of(Unit("the-loop-poll.service", "system"))

    assert service is not None
    assert (service.main_pid, service.enabled, service.user) == (77, "enabled", "root")
    assert service.option("--config") == "/etc/x y.yaml"
    environ = environment_of(service)
    assert (environ["PATH"], environ["GITHUB_TOKEN"]) == ("/a b:/c", "x y")
    assert (environ["X"], environ["HOME"], environ["USER"]) == ("a b", "/root", "root")


def test_service_when_it_is_not_installed_or_its_manager_is_silent_then_these_differ(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = [Finished((), 0, "LoadState=not-found\n", ""), Finished(("systemctl",), 1, "", "no bus")]
    monkeypatch.setattr(subject_module, "systemctl", lambda *_words, **_options: answers.pop(0))

    assert service_of(Unit("the-loop-poll.service", "system")) is None
    with pytest.raises(Unasked, match="no bus"):
        service_of(Unit("the-loop-poll.service", "system"))


# --- providers ---


def test_provider_when_it_examines_nothing_or_raises_then_that_is_said(tmp_path: Path) -> None:
    def broken(_section: object, _site: object) -> list[Finding]:
        raise OSError(5, "Input/output error")

    provider = SimpleNamespace()
    registry: Any = SimpleNamespace(get=lambda _name: provider)
    site = Site(root=tmp_path, environ={}, shell={}, user="alice", limit_s=1)
    examine = partial(checkup._examined, registry, "odd", object(), site, "source odd")

    (silent,) = examine()
    provider.examine = broken
    ((raised,),) = examine_all([Part("source odd", examine)], 5)

    assert (silent.state, silent.is_good) == (State.UNKNOWN, True)
    assert (raised.state, raised.is_good) == (State.UNKNOWN, False)
    assert raised.detail == "cannot be examined: OSError: Input/output error"
