"""The shipped unit files: one source of truth for all four kinds, nothing too new, and nothing that runs as root."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from the_loop.eventlog import CATALOG, message_id
from the_loop.supervision import install

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

BIN: Final = Path(sys.executable).parent
SHIPPED: Final = Path(install.__file__).parents[1] / "systemd"
KINDS: Final = [(is_user, name) for is_user in (False, True) for name in (None, "two")]
# What a later systemd than 252 brought, and 252 ignores or refuses.
TOO_NEW: Final = {
    "BindLogSockets", "ConditionVersion", "CoredumpReceive", "DeferReactivation", "DelegateNamespaces",
    "DelegateSubgroup", "FileDescriptorStorePreserve", "ImportCredential", "LogFilterPatterns", "MemoryKSM",
    "MemoryPressureThresholdSec", "MemoryPressureWatch", "MemoryZSwapWriteback", "NFTSet", "OpenFile",
    "PassFileDescriptorsToExec", "PollLimitBurst", "PollLimitIntervalSec", "PrivateBPF", "PrivatePIDs",
    "RestartMaxDelaySec", "RestartMode", "RestartSteps", "RootEphemeral", "SetLoginEnvironment",
    "SurviveFinalKillSignal", "UserNamespacePath",
}  # fmt: skip
# What a user's manager refuses (218/CAPABILITIES, 216/GROUP), or what hides the user's own places from the poller.
FOR_ROOT: Final = {
    "AmbientCapabilities", "BindPaths", "CapabilityBoundingSet", "DevicePolicy", "DynamicUser", "Group",
    "PrivateDevices", "PrivateTmp", "PrivateUsers", "ProtectClock", "ProtectControlGroups", "ProtectHome",
    "ProtectHostname", "ProtectKernelLogs", "ProtectKernelModules", "ProtectKernelTunables", "ProtectProc",
    "PrivateNetwork", "ProtectSystem", "ReadWritePaths", "SocketUser", "StateDirectory", "SupplementaryGroups", "User",
}  # fmt: skip

FOLDER: Final = "/srv/my 100% metrics"

Setting = tuple[str, str, str]  # section, name, value


def settings(text: str) -> Iterator[Setting]:
    section = ""
    for line in text.splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif line and not line.startswith(("#", ";")):
            name, _, value = line.partition("=")
            yield section, name, value


def installed(*, is_user: bool, name: str | None, metrics: str | None = None) -> dict[str, str]:
    return install.unit_texts(BIN, is_user=is_user, name=name, named=install.Named(metrics=metrics))


def of(text: str, wanted: str) -> list[str]:
    return [value for _, name, value in settings(text) if name == wanted]


def every_text() -> list[tuple[str, str]]:
    return [
        (f"{'user' if is_user else 'system'} {file}", text)
        for is_user, name in KINDS
        for file, text in installed(is_user=is_user, name=name, metrics=FOLDER).items()
    ]


def services(*, is_user: bool) -> dict[str, str]:
    names = (None, "two")
    texts = {file: text for name in names for file, text in installed(is_user=is_user, name=name).items()}
    return {file: text for file, text in texts.items() if file.endswith(".service")}


# --- one source of truth ---


@pytest.mark.parametrize("base", [*install.BASES, *install.METRICS])
def test_template_when_shipped_then_is_made_of_its_plain_unit(base: str) -> None:
    shipped = (SHIPPED / install.template_name(base)).read_text()

    assert shipped == install.as_template(install.shipped(base))


def test_shipped_files_when_listed_then_none_is_left_that_nothing_installs() -> None:
    bases = (*install.BASES, *install.METRICS)
    units = {*bases, *map(install.template_name, bases), install.SLICE}
    others = {"the-loop.catalog", "the-loop.sysusers", "the-loop.tmpfiles", "credentials.conf"}

    assert {path.name for path in SHIPPED.iterdir() if path.is_file()} == units | others


def test_units_when_of_an_instance_then_nothing_is_shared_with_the_plain_ones() -> None:
    for is_user in (False, True):
        for file, text in installed(is_user=is_user, name="two", metrics=FOLDER).items():
            values = [value for _, name, value in settings(text) if name not in ("Description", "Slice")]
            ours = [value for value in values if "the-loop" in value.replace(f"{BIN}/the-loop", "")]

            assert [value for value in ours if "%i" not in value and "%N" not in value and value != "the-loop"] == [], (
                file
            )


@pytest.mark.parametrize(("is_user", "name"), KINDS)
def test_units_when_made_then_say_who_wrote_them_and_no_placeholder_is_left(is_user: bool, name: str | None) -> None:
    texts = installed(is_user=is_user, name=name)

    assert set(texts) == {
        install.SLICE,
        *(base if name is None else install.template_name(base) for base in install.BASES),
    }
    for text in texts.values():
        assert text.startswith(f"{install.MARK}\n")
        assert "@bindir@" not in text


@pytest.mark.parametrize(("is_user", "name"), KINDS)
def test_exec_lines_when_made_then_name_commands_by_their_whole_path(is_user: bool, name: str | None) -> None:
    for file, text in installed(is_user=is_user, name=name).items():
        for value in of(text, "ExecStart"):
            assert value.startswith(f"{BIN}/the-loop poll start"), file
            assert "--config" in value, file


@pytest.mark.parametrize(("is_user", "name"), KINDS)
def test_metrics_when_a_directory_is_named_then_are_written_there_under_the_name_of_the_instance(
    is_user: bool, name: str | None
) -> None:
    stem, file = ("the-loop-metrics", "the-loop") if name is None else ("the-loop-metrics@", "the-loop-%i")
    service = installed(is_user=is_user, name=name, metrics=FOLDER)[f"{stem}.service"]

    (line,) = of(service, "ExecStart")
    assert line.startswith(f"{BIN}/the-loop poll status --config ")
    assert line.endswith(f' --prometheus "/srv/my 100%% metrics/{file}.prom"')
    assert of(service, "ReadWritePaths") == ([] if is_user else ['"/srv/my 100%% metrics"'])
    assert of(service, "SuccessExitStatus") == ["3"]  # nothing runs: the metrics say so


def test_metrics_when_a_state_root_is_given_then_are_of_that() -> None:
    named = install.Named(root="/srv/a b", is_root_given=True, metrics="/m")
    service = install.unit_texts(BIN, is_user=False, name=None, named=named)["the-loop-metrics.service"]

    assert 'poll status --state-root "/srv/a b" --config' in of(service, "ExecStart")[0]


# --- what user units are ---


def test_user_units_when_made_then_have_nothing_that_needs_privilege() -> None:
    for name in (None, "two"):
        for file, text in installed(is_user=True, name=name, metrics=FOLDER).items():
            assert {option for _, option, _ in settings(text)} & FOR_ROOT == set(), file
            assert not re.search(r"=(/var/|/etc/|.*multi-user)", text), file


def test_user_units_when_made_then_live_in_the_users_own_places() -> None:
    plain, two = (installed(is_user=True, name=name) for name in (None, "two"))

    assert of(plain["the-loop-poll.service"], "Environment") == ["THE_LOOP_STATE_ROOT=%h/.local/state/the-loop"]
    assert of(two["the-loop-poll@.service"], "Environment") == ["THE_LOOP_STATE_ROOT=%h/.local/state/the-loop-%i"]
    assert (
        f"{BIN}/the-loop poll start --config %h/.config/the-loop/%i.yaml"
        in of(two["the-loop-poll@.service"], "ExecStart")[0]
    )
    assert of(plain["the-loop-poll.service"], "WantedBy") == ["default.target"]
    assert of(plain["the-loop-poll-once.timer"], "OnStartupSec") != []
    assert of(plain["the-loop-poll-once.timer"], "OnBootSec") == []


def test_user_units_when_made_then_no_comment_is_left_of_what_was_taken_out() -> None:
    text = installed(is_user=True, name=None)["the-loop-poll.service"]
    comments = [line for line in text.splitlines() if line.startswith("#")]

    assert [line for line in comments if re.search("Protect|PrivateUsers|/run/user|ProcSubset", line)] == []


# --- what every kind keeps to ---


def test_units_when_made_then_use_nothing_newer_than_systemd_252() -> None:
    for file, text in every_text():
        for _, name, value in settings(text):
            assert name not in TOO_NEW, f"{file}: {name}"
            assert (name, value) not in {("Type", "notify-reload"), ("PrivateTmp", "disconnected")}, file


def test_system_services_when_made_then_none_runs_as_root() -> None:
    texts = {file: text for file, text in every_text() if re.fullmatch(r"system .*\.service", file)}
    assert len(texts) == 6
    for file, text in texts.items():
        assert of(text, "User") == ["the-loop"], file
        for _, name, value in settings(text):
            assert not (name.startswith("Exec") and value.startswith(("+", "!"))), f"{file}: {name}={value}"
            assert name != "PermissionsStartOnly", file


@pytest.mark.parametrize("is_user", [False, True])
def test_services_when_made_then_tell_how_they_are_ended_and_what_is_not_tried_again(is_user: bool) -> None:
    for file, text in services(is_user=is_user).items():
        assert of(text, "KillMode") == ["mixed"], file
        assert of(text, "TimeoutStopSec") != [], file
        assert ("Unit", "StartLimitIntervalSec", "0") in list(settings(text)), file
        if "once" in file:
            assert of(text, "Type") == ["oneshot"], file
            assert of(text, "SuccessExitStatus") == ["75"], file
        else:
            assert of(text, "Type") == ["notify"], file
            assert of(text, "NotifyAccess") == ["main"], file
            assert of(text, "Restart") == ["on-failure"], file
            assert {"78", "243"} <= set(of(text, "RestartPreventExitStatus")[0].split()), file


@pytest.mark.parametrize("is_user", [False, True])
def test_socket_when_its_service_stops_then_stops_as_well(is_user: bool) -> None:
    for name, unit in ((None, "the-loop-poll"), ("two", "the-loop-poll@")):
        texts = installed(is_user=is_user, name=name)
        socket, service = texts[f"{unit}.socket"], texts[f"{unit}.service"]
        stem = unit if name is None else f"{unit}%i"

        assert of(socket, "StopPropagatedFrom") == [f"{stem}.service"]
        assert of(socket, "SocketMode") == ["0600"]
        assert f"{stem}.socket" in of(service, "Wants")
        # a restart removes the lowest level of the runtime directory only, so the socket is one above
        runtime = of(service, "RuntimeDirectory")[0]
        assert of(socket, "ListenDatagram") == [f"%t/{runtime.partition('/')[0]}/{stem}.wake"]
        assert runtime.endswith("/%N")


def test_timers_when_made_then_have_a_start_point_after_each_boot_and_no_calendar() -> None:
    for file, text in every_text():
        if not file.endswith(".timer"):
            continue
        names = {name for section, name, _ in settings(text) if section == "Timer"}
        assert names & {"OnBootSec", "OnStartupSec"}, file
        assert "OnUnitInactiveSec" in names, file
        assert "RandomizedDelaySec" in names, file
        assert not names & {"OnCalendar", "Persistent"}, file


def test_slice_when_named_then_is_no_child_of_another() -> None:
    assert "-" not in install.SLICE.removesuffix(".slice")


@pytest.mark.systemd
@pytest.mark.parametrize("manager", ["--system", "--user"])
def test_verify_when_asked_about_every_unit_then_is_silent(tmp_path: Path, manager: str) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze here")
    names = []
    for name in (None, "two"):
        for file, text in installed(is_user=manager == "--user", name=name, metrics="/tmp").items():
            (tmp_path / file).write_text(text)
            names.append(file)

    argv = ["systemd-analyze", manager, "verify", "--man=no", "--generators=no", *sorted(set(names))]
    environ = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}  # a user's manager wants one to look into
    done = subprocess.run(argv, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60, check=False)

    assert (done.stdout + done.stderr, done.returncode) == ("", 0)


# --- what comes with them ---


def catalog_entries() -> list[tuple[str, str, str]]:
    """Id, headers and text of each entry."""
    lines = [line for line in install.shipped("the-loop.catalog").splitlines() if not line.startswith("#")]
    _, *entries = re.split(r"^-- ", "\n".join(lines), flags=re.MULTILINE)
    found = []
    for entry in entries:
        id_, _, rest = entry.partition("\n")
        headers, _, text = rest.partition("\n\n")
        found.append((id_, headers, text))
    return found


def test_catalog_when_read_then_has_one_text_for_each_event() -> None:
    entries = catalog_entries()
    by_id = {message_id(name): name for name in CATALOG}

    assert Counter(id_ for id_, _, _ in entries) == Counter(by_id.keys())
    for id_, headers, text in entries:
        assert re.search(rf"^Subject: {re.escape(by_id[id_])}\b", headers, re.MULTILINE)
        assert "Defined-By: the-loop" in headers
        assert len(text.strip()) > 20, by_id[id_]


def test_catalog_when_it_names_a_field_then_events_have_one_of_that_name() -> None:
    fields = set(re.findall(r"@(THE_LOOP_\w+)@", install.shipped("the-loop.catalog")))

    assert fields <= {"THE_LOOP_STATE_ROOT", "THE_LOOP_REF", "THE_LOOP_DELIVERY_ID", "THE_LOOP_UNTIL"}


def test_sysusers_and_tmpfiles_when_read_then_make_the_user_its_root_and_its_lingering() -> None:
    people = lines_of("the-loop.sysusers")
    files = {line.split()[1]: line.split() for line in lines_of("the-loop.tmpfiles")}

    assert people == ['u the-loop - "the-loop poller" /var/lib/the-loop']
    assert files["/var/lib/the-loop"][:5] == ["d", "/var/lib/the-loop", "0700", "the-loop", "the-loop"]
    assert files["/var/lib/systemd/linger/the-loop"][0] == "f"
    # an age would have systemd-tmpfiles lock the root, and take files out of it
    assert {field for line in files.values() for field in line[5:]} <= {"-"}


def lines_of(name: str) -> list[str]:
    return [line for line in install.shipped(name).splitlines() if line and not line.startswith("#")]


def test_manager_drop_in_when_made_then_keeps_that_users_manager_up() -> None:
    found = list(settings(install.manager_drop_in(1234)))

    assert ("Unit", "Upholds", "user@1234.service") in found  # nothing else starts one that was killed
    assert ("Unit", "After", "user@1234.service") in found


def test_system_services_when_homes_are_hidden_then_the_folder_of_the_users_manager_is_not() -> None:
    for file, text in services(is_user=False).items():
        assert of(text, "ProtectHome") == ["tmpfs"], file
        # the folder above it: what a manager mounts that is started again has to be seen as well
        assert of(text, "BindPaths") == ["/run/user"], file


# --- putting them in place ---


def written(texts: Mapping[Path, str]) -> list[str]:
    return list(install.write_all(texts))


def test_write_when_repeated_then_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "x.service"
    texts = {path: f"{install.MARK}\n[Unit]\n"}

    assert written(texts) == [f"wrote {path}"]
    assert written(texts) == []
    assert path.stat().st_mode & 0o777 == 0o644
    assert [other.name for other in path.parent.iterdir()] == ["x.service"]


def test_write_when_a_file_is_somebody_elses_then_leaves_it_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "x.service"
    path.write_text("[Unit]\nDescription=mine\n")

    lines = written({path: f"{install.MARK}\n[Unit]\n"})

    assert lines == [f"kept {path}: it was not installed by `the-loop unit install`"]
    assert "mine" in path.read_text()


def test_write_when_our_own_file_is_of_an_older_version_then_replaces_it(tmp_path: Path) -> None:
    path = tmp_path / "x.service"
    path.write_text(f"{install.MARK}\n[Unit]\nDescription=old\n")

    assert written({path: f"{install.MARK}\n[Unit]\nDescription=new\n"}) == [f"wrote {path}"]
    assert "new" in path.read_text()


def test_make_install_when_staged_then_puts_the_same_texts_where_a_package_has_them(tmp_path: Path) -> None:
    repository = SHIPPED.parents[2]
    argv = ["make", "--silent", "install", f"PYTHON={sys.executable}", f"DESTDIR={tmp_path}", "PREFIX=/usr"]

    subprocess.run(argv, cwd=repository, check=True, timeout=60, capture_output=True)

    placed = {str(path.relative_to(tmp_path)): path for path in tmp_path.rglob("*") if path.is_file()}
    expected = {
        f"usr/lib/systemd/{'user' if is_user else 'system'}/{file}": text.removeprefix(f"{install.MARK}\n")
        for is_user, name in KINDS
        for file, text in install.unit_texts(Path("/usr/bin"), is_user=is_user, name=name).items()
        if is_user or file != install.SLICE
    }
    others = {f"usr/lib/{folder}.d/the-loop.conf" for folder in ("sysusers", "tmpfiles")}
    units = {name for name in placed if name.startswith("usr/lib/")}  # the rest: test_man_pages
    assert units == {*expected, *others, "usr/lib/systemd/catalog/the-loop.catalog"}
    assert {name: placed[name].read_text() for name in expected} == expected
    assert {path.stat().st_mode & 0o777 for path in placed.values()} == {0o644}
