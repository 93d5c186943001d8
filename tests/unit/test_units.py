"""Deliveries in transient units: the call, the names, and what the manager's answers mean."""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from the_loop.runners.base import Offer
from the_loop.runners.exec import Command, keeper_argv
from the_loop.runners.units import SLICE, Units, find_units, is_name_taken, is_no_manager, start_argv
from the_loop.state import StateRoot
from the_loop.subprocesses import Finished, manager_environment

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT: Final = Path("/srv/root")
NASTY: Final = "`touch x` $(id) ${HOME} $$ %h %% \"'\\ --uid=0 \n\r\x1b[31m ; & | ünïcode"


def offer(delivery_id: str = "directory:inbox/a/spawn:1", number: int = 1, attempt: int = 1) -> Offer:
    ref, _, key = delivery_id.rpartition("/")
    return Offer(ref, key, ROOT / "local" / "deliveries" / "directory,inbox+a+spawn,1", number, attempt)


def argv_of(command: Sequence[str], **variables: str) -> list[str]:
    return start_argv("u.service", "what", command, limit_s=1800, variables=variables)


def options(argv: Sequence[str]) -> list[str]:
    return list(argv[: list(argv).index("--")])


def properties(argv: Sequence[str]) -> dict[str, str]:
    found = options(argv)
    pairs = [found[place + 1].partition("=") for place, option in enumerate(found) if option == "-p"]
    return {name: value for name, _, value in pairs}


# --- the call ---


def test_argv_when_made_then_asks_the_users_manager_and_never_a_person() -> None:
    found = options(argv_of(["keeper"]))

    assert found[0] == "systemd-run"
    assert {"--user", "--quiet", "--collect", "--no-ask-password", f"--slice={SLICE}", "--unit=u.service"} <= set(found)


def test_argv_when_made_then_the_keeper_hears_of_a_stop_first_and_a_hanging_one_ends() -> None:
    found = properties(argv_of(["keeper"]))

    assert found["Type"] == "exec"
    assert found["KillMode"] == "mixed"
    assert found["StandardInput"] == "null"
    assert int(found["RuntimeMaxSec"]) > 1800
    assert 10 <= int(found["TimeoutStopSec"]) <= 60


@pytest.mark.parametrize(
    ("part", "expected"),
    [("$HOME", "$$HOME"), ("${X}", "$${X}"), ("$$", "$$$$"), ("a$", "a$$"), ("%h", "%h"), ("a b", "a b"), ("", "")],
)
def test_argv_when_a_part_has_a_dollar_then_the_manager_leaves_it_as_it_is(part: str, expected: str) -> None:
    argv = argv_of(["keeper", part, "--", "-x"])

    assert argv[argv.index("--") + 1 :] == ["keeper", expected, "--", "-x"]


def test_argv_when_variables_are_given_then_are_set_and_nothing_else_is() -> None:
    argv = argv_of(["keeper"], PATH="/bin:$x", LANG="C.UTF-8")

    assert [part for part in argv if part.startswith("--setenv")] == ["--setenv=LANG=C.UTF-8", "--setenv=PATH=/bin:$x"]


def test_start_when_the_poller_has_secrets_then_none_is_handed_on(tmp_path: Path) -> None:
    argv_file = tmp_path / "argv"
    stub = tmp_path / "systemd-run"
    stub.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >{argv_file}\nenv >>{argv_file}\n')
    stub.chmod(0o755)
    environ = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "HOME": "/home/alice",
        "GITHUB_TOKEN": "hidden-token",
        "CREDENTIALS_DIRECTORY": "/run/credentials/x",
        "NOTIFY_SOCKET": "/run/notify",
        "LISTEN_FDS": "1",
        "LISTEN_PID": "1",
        "THE_LOOP_STATE_ROOT": "/srv/root",
    }
    lock_fd = os.open(tmp_path, os.O_RDONLY)

    try:
        finished = asyncio.run(Units(ROOT, environ).start(offer(), ["keeper"], limit_s=5, lock_fd=lock_fd))
    finally:
        os.close(lock_fd)

    arguments, _, environment = argv_file.read_text().partition("\nkeeper\n")
    assert finished.is_good
    assert "--setenv=HOME=/home/alice" in arguments.split("\n")
    for name in ("GITHUB_TOKEN", "CREDENTIALS_DIRECTORY", "NOTIFY_SOCKET", "LISTEN_FDS"):
        assert f"--setenv={name}" not in arguments
    assert "hidden-token" not in arguments
    assert "NOTIFY_SOCKET" not in environment
    assert "LISTEN_" not in environment


def test_argv_when_the_event_has_text_from_outside_then_none_of_it_is_in_the_call() -> None:
    # author, title, body and url travel in the payload; a ref is in a file name, and there it is a slug
    units = Units(ROOT, {})
    ref, key = f"directory:inbox/{NASTY}", f"comment:{NASTY}"
    one = Offer(ref, key, StateRoot(ROOT).delivery(f"{ref}/{key}"), 1, 1)
    command = Command(("agent", "--stdin"), Path("/work"), 1800, {}, None)

    argv = start_argv(units.name(one), one.stem.name, keeper_argv(command, one, None), limit_s=5, variables={})

    for part in argv:
        assert re.fullmatch(r"[\w./,+@%~=:-]*|--description=the-loop delivery [\w.,+@%~-]*", part, re.ASCII), part


# --- names ---


def test_name_when_derived_then_is_a_unit_name_whatever_the_delivery_is_called() -> None:
    units = Units(ROOT, {})

    for delivery in (NASTY, "a" * 5000, "../../etc", "x@y.service", "\udc80"):
        name = units.name(offer(delivery))
        assert re.fullmatch(r"theloop-[0-9a-f]{12}-[0-9a-f]{12}-1\.service", name), name


def test_name_when_root_delivery_or_offer_differ_then_differs() -> None:
    names = {
        Units(ROOT, {}).name(offer()),
        Units(Path("/srv/other"), {}).name(offer()),
        Units(ROOT, {}).name(offer("directory:inbox/a/spawn:2")),
        Units(ROOT, {}).name(offer(number=2)),
    }

    assert len(names) == 4
    assert Units(ROOT, {}).name(offer()) == Units(ROOT, {"X": "y"}).name(offer(attempt=3))


# --- answers: as systemd-run 252 gives them ---

TAKEN: Final = (
    "Failed to start transient service unit: Unit theloop-a-b-1.service was already loaded or has a fragment file.",
    "Failed to start transient service unit: Unit theloop-a-b-1.service already exists.",
)
NOBODY: Final = (
    "Failed to connect to bus: No medium found",
    "Failed to connect to bus: No such file or directory",
    "Failed to connect to bus: Permission denied",
    "Failed to connect to bus: Connection refused",
    "Failed to connect to bus: $DBUS_SESSION_BUS_ADDRESS and $XDG_RUNTIME_DIR not defined (consider using --machine=)",
    "System has not been booted with systemd as init system (PID 1).\nFailed to connect to bus: Host is down",
)
OTHER: Final = (
    "Failed to start transient service unit: Access denied",
    "Failed to find executable /opt/venv/bin/python3: No such file or directory",
    "Job for theloop-a-b-1.service failed because the control process exited with error code.",
    "Failed to start transient service unit: Unit name theloop-a.b-1 is not valid.",
    "Failed to start transient service unit: Connection timed out",
    "",
)


def answer(text: str, code: int | None = 1) -> Finished:
    return Finished(("systemd-run",), code, "", text)


@pytest.mark.parametrize("text", TAKEN)
def test_answer_when_the_name_is_taken_then_is_no_failure(text: str) -> None:
    assert is_name_taken(answer(text))
    assert not is_no_manager(answer(text))


@pytest.mark.parametrize("text", NOBODY)
def test_answer_when_there_is_no_manager_then_is_known_as_that(text: str) -> None:
    assert is_no_manager(answer(text))
    assert not is_name_taken(answer(text))


@pytest.mark.parametrize("text", OTHER)
def test_answer_when_a_manager_refuses_then_is_neither(text: str) -> None:
    assert not is_no_manager(answer(text))
    assert not is_name_taken(answer(text))


@pytest.mark.parametrize("text", [*TAKEN, *NOBODY])
def test_answer_when_it_went_well_then_words_on_stderr_mean_nothing(text: str) -> None:
    assert not is_no_manager(answer(text, 0))
    assert not is_name_taken(answer(text, 0))


def test_answer_when_there_is_no_program_to_ask_with_then_there_is_no_manager(tmp_path: Path) -> None:
    lock_fd = os.open(tmp_path, os.O_RDONLY)

    try:
        units = Units(ROOT, {"PATH": str(tmp_path)})
        finished = asyncio.run(units.start(offer(), ["keeper"], limit_s=5, lock_fd=lock_fd))
    finally:
        os.close(lock_fd)

    assert is_no_manager(finished)


# --- is there one? ---


@pytest.mark.parametrize("sign", ["bus", "systemd/private"])
def test_manager_when_its_socket_is_there_then_is_found(tmp_path: Path, sign: str) -> None:
    (tmp_path / sign).parent.mkdir(exist_ok=True)
    (tmp_path / sign).touch()

    assert find_units(ROOT, {"XDG_RUNTIME_DIR": str(tmp_path)}) is not None


def test_manager_when_its_directory_is_empty_or_missing_then_there_is_none(tmp_path: Path) -> None:
    assert find_units(ROOT, {"XDG_RUNTIME_DIR": str(tmp_path)}) is None
    assert find_units(ROOT, {"XDG_RUNTIME_DIR": str(tmp_path / "missing")}) is None


def test_environment_of_helpers_when_made_then_is_plain_and_without_our_sockets() -> None:
    ours = {"NOTIFY_SOCKET": "x", "LISTEN_FDS": "1", "LISTEN_PID": "1", "LC_ALL": "de_DE", "XDG_RUNTIME_DIR": "/r"}

    assert manager_environment(ours) == {"LC_ALL": "C.UTF-8", "XDG_RUNTIME_DIR": "/r"}
    assert "NOTIFY_SOCKET" in ours
