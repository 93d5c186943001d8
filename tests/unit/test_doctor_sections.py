"""`doctor`: what the built-in providers examine of a directory and of a receiver, good and bad."""

from __future__ import annotations

import os
import pwd
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from the_loop.findings import Finding, Site, State
from the_loop.runners import exec_provider, print_provider, tmux_provider
from the_loop.runners.examination import of_tmux
from the_loop.sources import directory_examination, directory_provider

if TYPE_CHECKING:
    from collections.abc import Callable

ME = pwd.getpwuid(os.geteuid()).pw_name
EDIT = "systemctl --user edit the-loop-poll.service"


@pytest.fixture
def inbox(tmp_path: Path) -> Path:
    inbox = tmp_path / "inbox"
    inbox.mkdir(0o700)
    return inbox


def site(root: Path, **more: Any) -> Site:
    given: dict[str, Any] = {
        "root": root,
        "environ": {"PATH": "/usr/bin:/bin"},
        "shell": {"PATH": "/usr/bin:/bin"},
        "user": ME,
        "limit_s": 5.0,
        "authorized": frozenset({ME}),
    }
    return Site(**given | more)


def examine_directory(path: Path, **more: Any) -> dict[str, Finding]:
    section = directory_provider.DirectorySection(provider="directory", path=str(path))
    found = list(directory_provider.examine(section, site(path.parent / "root", **more)))
    assert len({one.name for one in found}) == len(found)
    return {one.name: one for one in found}


def item(inbox: Path, name: str = "a", mode: int = 0o755, file_mode: int = 0o644) -> Path:
    folder = inbox / name
    folder.mkdir()
    (folder / "item.md").write_text("please")
    (folder / "item.md").chmod(file_mode)
    folder.chmod(mode)
    return folder


# --- a directory ---


def test_directory_when_it_is_good_then_all_is(inbox: Path) -> None:
    item(inbox)

    found = examine_directory(inbox)

    assert {name: one.state for name, one in found.items()} == dict.fromkeys(
        (f"user {ME}", "directory", "authors"), State.OK
    )
    assert found["authors"].detail == "1 item, all of authorised users"


@pytest.mark.parametrize(("mode", "file_mode"), [(0o775, 0o644), (0o755, 0o664), (0o757, 0o644)])
def test_authors_when_others_can_write_then_fails_with_the_chmod(inbox: Path, mode: int, file_mode: int) -> None:
    folder = item(inbox, "a b", mode, file_mode)

    found = examine_directory(inbox)["authors"]

    wrong = folder if mode & 0o022 else folder / "item.md"
    assert (found.state, found.command) == (State.FAIL, f"chmod g-w,o-w '{wrong}'")
    assert "set `umask 022`" in found.detail


def test_authors_when_a_file_has_a_second_name_then_fails(inbox: Path, tmp_path: Path) -> None:
    (tmp_path / "other").hardlink_to(item(inbox) / "item.md")

    found = examine_directory(inbox)["authors"]

    assert (found.state, f"'{inbox}/a/item.md' have several names" in found.detail) == (State.FAIL, True)


def test_authors_when_an_item_is_of_somebody_else_then_names_the_owner(inbox: Path) -> None:
    item(inbox)

    found = examine_directory(inbox, authorized=frozenset({"daemon"}))["authors"]

    assert found.state is State.WARN
    assert f"belong to '{ME}', who is not in `authorizedUsers`" in found.detail


def test_authors_when_a_file_is_on_the_list_of_what_is_ignored_then_is_not_judged(inbox: Path) -> None:
    (item(inbox) / "item.md.orig").write_text("old")
    (inbox / "a" / "item.md.orig").chmod(0o666)

    assert examine_directory(inbox)["authors"].state is State.OK


def test_user_when_there_is_none_of_that_name_then_is_not_good(inbox: Path) -> None:
    found = examine_directory(inbox, authorized=frozenset({"nobody-like-that"}))["user nobody-like-that"]

    assert not found.is_good
    assert "there is no user 'nobody-like-that'" in found.detail


def test_directory_when_it_is_missing_then_fails_unless_it_is_the_pollers_own(tmp_path: Path) -> None:
    found = examine_directory(tmp_path / "inbox")["directory"]
    own = examine_directory(tmp_path / "root" / "inbox")
    below = list(directory_examination.examine_directory(tmp_path / "x", None, site(tmp_path)))  # type: ignore[arg-type]

    assert (found.state, found.command) == (State.FAIL, f"install -d -m 0700 {tmp_path}/inbox")
    assert own["directory"].state is State.FAIL
    assert [one.state for one in below] == [State.OK]


def test_directory_when_it_is_another_than_the_poller_read_last_then_warns(inbox: Path) -> None:
    here = inbox.stat()

    same = examine_directory(inbox, cursor={"inbox": f"{here.st_dev}:{here.st_ino}"})["directory"]
    other = examine_directory(inbox, cursor={"inbox": f"{here.st_dev}:{here.st_ino + 1}"})["directory"]

    assert same.state is State.OK
    assert (other.state, other.command) == (State.WARN, f"findmnt -T {inbox}")


def test_directory_when_its_device_is_not_mounted_then_fails(inbox: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = {
        "/etc/fstab": [f"UUID=1 {inbox} ext4 defaults 0 2", "# a comment", "UUID=2 none swap sw 0 0"],
        "/proc/self/mountinfo": ["22 1 0:1 / / rw - ext4 /dev/x rw"],
        "/proc/self/status": ["Umask:\t0022"],
    }
    monkeypatch.setattr(directory_examination, "_lines", lambda path: tables[str(path)])

    found = examine_directory(inbox)["directory"]
    tables["/proc/self/mountinfo"].append(f"23 22 0:2 / {inbox} rw - ext4 /dev/y rw")
    mounted = examine_directory(inbox)["directory"]

    assert (found.state, found.command) == (State.FAIL, f"sudo mount {inbox}")
    assert mounted.state is State.OK


def test_directory_when_it_is_a_file_or_hidden_from_the_service_then_fails(inbox: Path) -> None:
    file = inbox / "file"
    file.touch()

    hidden = examine_directory(inbox, hides=lambda path: path == inbox, edit="systemctl edit x")["directory"]

    assert examine_directory(file)["directory"].state is State.FAIL
    assert (hidden.state, hidden.command) == (State.FAIL, "systemctl edit x")
    assert f"BindPaths={inbox}" in hidden.detail


@pytest.mark.parametrize(("umask", "is_told"), [(0o002, True), (0o022, False), (0o077, False)])
def test_umask_when_the_caller_writes_items_and_others_could_too_then_warns(
    inbox: Path, umask: int, *, is_told: bool
) -> None:
    def told(user: str) -> list[Finding]:
        return list(directory_examination.of_umask(umask, site(inbox, shell={"USER": user})))

    assert [(one.state, one.command) for one in told(ME)] == ([(State.WARN, "umask 022")] if is_told else [])
    assert told("somebody-else") == []


# --- a receiver ---


@pytest.fixture
def program(tmp_path: Path) -> Callable[..., Path]:
    def make(name: str = "bin/my-agent", text: str = "#!/bin/sh\n", mode: int = 0o755) -> Path:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(mode)
        return path

    return make


def examine_receiver(
    tmp_path: Path, command: str, workdir: str | None = "/", section: dict[str, Any] | None = None, **more: Any
) -> dict[str, Finding]:
    given: dict[str, Any] = {"runner": "exec", "command": (command, "x"), "workdir": workdir, **(section or {})}
    return {
        one.name: one for one in exec_provider.examine(exec_provider.CommandSession(**given), site(tmp_path, **more))
    }


def test_command_when_it_is_on_the_pollers_path_then_is_good(tmp_path: Path, program: Callable[..., Path]) -> None:
    path = program()

    found = examine_receiver(tmp_path, "my-agent", environ={"PATH": f"{path.parent}:/usr/bin"})

    assert [one.state for one in found.values()] == [State.OK, State.OK]
    assert found["command"].detail == f"'my-agent' is '{path}'"


@pytest.mark.parametrize("edit", ["", EDIT])
def test_command_when_it_is_on_the_path_of_the_shell_only_then_says_where(
    tmp_path: Path, program: Callable[..., Path], edit: str
) -> None:
    path = program()

    found = examine_receiver(tmp_path, "my-agent", shell={"PATH": f"/usr/bin:{path.parent}"}, edit=edit)["command"]

    assert (found.state, found.command) == (State.FAIL, edit)
    assert f"write `session.command: [{path}, …]`" in found.detail
    assert (f"add `Environment=PATH={path.parent}:/usr/local/bin:/usr/bin:/bin`" in found.detail) == bool(edit)


def test_command_when_it_is_nowhere_then_names_the_path(tmp_path: Path) -> None:
    found = examine_receiver(tmp_path, "my-agent")["command"]

    assert (found.state, found.command) == (State.FAIL, "type my-agent")
    assert "(/usr/bin, /bin)" in found.detail


def test_command_when_it_is_a_path_then_has_to_be_an_executable_file(
    tmp_path: Path, program: Callable[..., Path]
) -> None:
    good = examine_receiver(tmp_path, str(program()))["command"]
    plain = examine_receiver(tmp_path, str(program("plain", mode=0o644)))["command"]
    missing = examine_receiver(tmp_path, str(tmp_path / "none"))["command"]
    folder = examine_receiver(tmp_path, str(tmp_path))["command"]

    assert good.state is State.OK
    assert (plain.state, plain.command) == (State.FAIL, f"chmod +x {tmp_path}/plain")
    assert (missing.state, "does not exist" in missing.detail) == (State.FAIL, True)
    assert folder.state is State.FAIL


def test_interpreter_when_the_poller_does_not_find_it_then_fails(tmp_path: Path, program: Callable[..., Path]) -> None:
    node = program("shell/node-of-ours")
    script = program(text="#!/usr/bin/env node-of-ours\n")
    gone = program("bin/gone", text="#!/opt/none/bin/python3\n")

    by_shell = examine_receiver(tmp_path, str(script), shell={"PATH": str(node.parent)}, edit=EDIT)["interpreter"]
    nowhere = examine_receiver(tmp_path, str(script))["interpreter"]
    broken = examine_receiver(tmp_path, str(gone))["interpreter"]

    assert (by_shell.state, by_shell.command) == (State.FAIL, EDIT)
    assert f"'node-of-ours' is on the PATH of this shell, in '{node.parent}'" in by_shell.detail
    assert (nowhere.state, nowhere.command) == (State.FAIL, "type node-of-ours")
    assert "'/opt/none/bin/python3', which is not there" in broken.detail
    assert "interpreter" not in examine_receiver(tmp_path, str(script), environ={"PATH": str(node.parent)})


def test_command_when_the_session_sets_its_path_then_that_counts(tmp_path: Path, program: Callable[..., Path]) -> None:
    folder, file = program().parent, tmp_path / "variables"
    file.write_text(f"PATH={folder}\n")
    file.chmod(0o600)

    by_value = examine_receiver(tmp_path, "my-agent", section={"environment": {"PATH": str(folder)}})
    by_file = examine_receiver(tmp_path, "my-agent", section={"environment_file": str(file)})

    assert by_value["command"].state is State.OK
    assert [by_file[name].state for name in ("command", "environment")] == [State.OK, State.OK]


def test_environment_when_a_file_or_variable_is_missing_then_is_told(
    tmp_path: Path, program: Callable[..., Path]
) -> None:
    path = str(program())

    section = {"environment_file": "/none/env"}
    file = examine_receiver(tmp_path, path, section=section)["environment"]
    hidden = examine_receiver(tmp_path, path, section=section, hides=lambda path: path == Path("/none/env"))
    assert "the service does not see '/none/env'" in hidden["environment"].detail
    passed = {"pass_environment": ("HOME", "API_KEY")}
    key = examine_receiver(tmp_path, path, section=passed, shell={"API_KEY": "x"}, environ={"HOME": "/"})["environment"]

    assert (file.state, "'/none/env': No such file" in file.detail) == (State.FAIL, True)
    assert (key.state, key.detail) == (
        State.WARN,
        "not set for the poller: API_KEY (API_KEY: set in this shell only)",
    )


def test_workdir_when_it_is_missing_or_no_directory_then_fails(tmp_path: Path, program: Callable[..., Path]) -> None:
    path = program()

    missing = examine_receiver(tmp_path, str(path), workdir=str(tmp_path / "a b"))["workdir"]
    file = examine_receiver(tmp_path, str(path), workdir=str(path))["workdir"]
    home = examine_receiver(tmp_path, str(path), workdir=None, environ={"HOME": str(tmp_path)})["workdir"]

    assert (missing.state, missing.command) == (State.FAIL, f"mkdir -p '{tmp_path}/a b'")
    assert file.state is State.FAIL
    assert (home.state, home.detail) == (State.OK, f"'{tmp_path}'")


@pytest.mark.parametrize(
    ("version", "state"),
    [
        ("tmux 3.3a", State.OK),
        ("tmux 3.5", State.OK),
        ("tmux next-3.6", State.OK),
        ("tmux 3.3", State.FAIL),
        ("tmux 2.9a", State.FAIL),
        ("tmux master", State.UNKNOWN),
    ],
)
def test_tmux_when_it_is_too_old_then_fails(version: str, state: State) -> None:
    assert of_tmux(version).state is state


def test_tmux_when_it_is_the_runner_then_it_and_both_programs_are_examined(
    tmp_path: Path, program: Callable[..., Path]
) -> None:
    tmux = program("bin/tmux", text="#!/bin/sh\necho tmux 3.4\n")
    section = tmux_provider.Section(
        runner="tmux", command=("sh",), resume_command=("/none/agent", "--resume"), workdir="/"
    )

    found = list(tmux_provider.examine(section, site(tmp_path, environ={"PATH": f"{tmux.parent}:/usr/bin:/bin"})))
    without = list(tmux_provider.examine(section, site(tmp_path, environ={"PATH": "/none"})))

    assert [(one.name, one.state) for one in found] == [
        ("tmux", State.OK),
        ("command", State.OK),
        ("command", State.FAIL),
        ("workdir", State.OK),
    ]
    assert (without[0].name, without[0].state) == ("tmux", State.FAIL)


def test_printer_when_it_is_the_runner_then_says_that_nothing_is_started(tmp_path: Path) -> None:
    section = print_provider.Section(runner="print", workdir="/")

    found = list(print_provider.examine(section, site(tmp_path)))

    assert [one.state for one in found] == [State.WARN, State.OK]
