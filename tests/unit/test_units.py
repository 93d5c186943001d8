"""Deliveries in transient units: what the manager is asked for, and the names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import pytest

from the_loop.manager import Refused
from the_loop.runners.base import Offer
from the_loop.runners.exec import Command, keeper_argv
from the_loop.runners.units import SLICE, Units, find_units, properties
from the_loop.state import StateRoot
from the_loop.subprocesses import manager_environment

ROOT: Final = Path("/srv/root")
NASTY: Final = "`touch x` $(id) ${HOME} $$ %h %% \"'\\ --uid=0 \n\r\x1b[31m ; & | ünïcode"


def offer(delivery_id: str = "directory:inbox/a/spawn:1", number: int = 1, attempt: int = 1) -> Offer:
    ref, _, key = delivery_id.rpartition("/")
    return Offer(ref, key, ROOT / "local" / "deliveries" / "directory,inbox+a+spawn,1", number, attempt)


def unit(*argv: str, **variables: str) -> dict[str, Any]:
    asked = properties("what", argv, limit_s=1800, variables=variables, lock_fd=7)
    return {name: value for name, (_, value) in asked}


# --- what is asked for ---


def test_unit_when_asked_for_then_has_the_lock_as_standard_input_and_is_collected() -> None:
    found = unit("keeper")

    assert found["StandardInputFileDescriptor"] == 7
    assert (found["Slice"], found["CollectMode"], found["Type"]) == (SLICE, "inactive-or-failed", "exec")


def test_unit_when_asked_for_then_the_keeper_hears_of_a_stop_first_and_a_hanging_one_ends() -> None:
    found = unit("keeper")

    assert found["KillMode"] == "mixed"
    assert found["RuntimeMaxUSec"] > 1800 * 1_000_000
    assert 10 <= found["TimeoutStopUSec"] / 1_000_000 <= 60


def test_unit_when_a_part_has_a_dollar_or_a_percent_then_the_manager_leaves_it_as_it_is() -> None:
    parts = ("keeper", "$HOME", "${X}", "%h", "a b", "", "--", "-x")

    assert unit(*parts)["ExecStartEx"] == [("keeper", list(parts), ["no-env-expand"])]


def test_unit_when_variables_are_given_then_has_these_and_no_odd_ones() -> None:
    assert unit("keeper", PATH="/bin:$x", LANG="C", HOME="/\udc80")["Environment"] == ["LANG=C", "PATH=/bin:$x"]


def test_unit_when_the_command_is_no_text_then_is_not_asked_for() -> None:
    with pytest.raises(Refused, match="not UTF-8"):
        unit("keeper", "/srv/\udc80")


def test_unit_when_the_event_has_text_from_outside_then_has_none_of_it() -> None:
    # author, title, body and url travel in the payload; a ref is in a file name, and there it is a slug
    ref, key = f"directory:inbox/{NASTY}", f"comment:{NASTY}"
    one = Offer(ref, key, StateRoot(ROOT).delivery(f"{ref}/{key}"), 1, 1)
    command = Command(("agent", "--stdin"), Path("/work"), 1800, {}, None)

    for part in [*keeper_argv(command, one), one.stem.name, Units(ROOT, {}).name(one)]:
        assert re.fullmatch(r"[\w./,+@%~=:-]*", part, re.ASCII), part


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
