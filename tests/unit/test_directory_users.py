"""Users of a folder that do not exist: an error where all users are in local files, else a warning."""

from __future__ import annotations

import getpass
from typing import TYPE_CHECKING

import pytest
import yaml

from support.configs import tree
from the_loop.config import ConfigError
from the_loop.config_file import doubts, load
from the_loop.sources import directory_provider

if TYPE_CHECKING:
    from pathlib import Path

NOBODY = "no-such-user-here"
INBOX = {"provider": "directory", "path": "inbox"}


@pytest.fixture
def services(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that says where users come from."""
    file = tmp_path / "nsswitch.conf"
    file.write_text("group: files\npasswd:  files systemd # local\n")
    monkeypatch.setattr(directory_provider, "_NSSWITCH", file)
    return file


def written(tmp_path: Path, *names: str) -> Path:
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump({**tree(INBOX), "routing": {"authorizedUsers": list(names)}}))
    return file


@pytest.mark.usefixtures("services")
def test_load_when_a_user_does_not_exist_then_is_an_error_with_the_line(tmp_path: Path) -> None:
    file = written(tmp_path, getpass.getuser(), f"directory:{NOBODY}")

    with pytest.raises(ConfigError, match=rf"line \d+: routing\.authorizedUsers\[1\]: there is no user '{NOBODY}'"):
        load(file)


@pytest.mark.usefixtures("services")
def test_load_when_users_exist_or_are_numbers_then_is_right(tmp_path: Path) -> None:
    assert doubts(load(written(tmp_path, getpass.getuser(), "54321")).config) == []


@pytest.mark.parametrize("text", ["passwd: files sss\n", "group: files\n", None])
def test_load_when_a_name_service_may_be_out_then_it_is_a_warning(
    tmp_path: Path, services: Path, text: str | None
) -> None:
    if text is None:
        services.unlink()
    else:
        services.write_text(text)

    [doubt] = doubts(load(written(tmp_path, NOBODY)).config)

    assert doubt.path == "routing.authorizedUsers[0]"
    assert f"no user '{NOBODY}'" in doubt.problem
    assert "unless the name service is out" in doubt.problem
