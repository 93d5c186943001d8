"""`the-loop doctor` as a newcomer meets it: one wrong move after the other, each answered with what to type."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.github.fake import FakeGitHub
from support.http_server import FakeServer
from support.poller import COMMAND, ME, Box

if TYPE_CHECKING:
    from collections.abc import Mapping

Finding = dict[str, str]


def doctor(box: Box, *options: str) -> tuple[int, dict[str, Finding]]:
    """The exit code, and the findings by name: the worst one, where a name comes twice."""
    done = box.run("doctor", "--json", *options)
    assert done.err == ""
    found: dict[str, Finding] = {}
    for finding in done.json():
        assert set(finding) == {"name", "state", "detail", "command"}
        if found.get(finding["name"], {"state": "ok"})["state"] == "ok":
            found[finding["name"]] = finding
    return done.code, found


def bad(found: Mapping[str, Finding]) -> list[str]:
    return [name for name, finding in found.items() if finding["state"] in ("fail", "unknown")]


def disk(folder: Path) -> list[tuple[Any, ...]]:
    files = [folder, *folder.rglob("*")]
    return sorted((str(one), one.lstat().st_mode, one.lstat().st_ino, one.lstat().st_mtime_ns) for one in files)


def test_doctor_when_a_poller_runs_well_then_is_good_and_changes_nothing(box: Box) -> None:
    box.item("a", "please")
    poller = box.start()
    box.wait(box.sink.ids, "the delivery")
    box.wait(lambda: not list((box.root / "local/deliveries").iterdir()), "its record")
    poller.signal(signal.SIGSTOP)  # so that it does not write meanwhile
    before = disk(box.root)

    code, found = doctor(box)

    assert disk(box.root) == before
    assert [name for name in bad(found) if name != "file system"] == []
    assert code == (1 if found["file system"]["state"] == "fail" else 0)
    assert found["poller"]["detail"] == f"running, pid {poller.pid}"
    poller.signal(signal.SIGCONT)
    assert poller.stop() == 0


def test_doctor_when_nothing_runs_then_says_how_to_start_this_one(box: Box) -> None:
    code, found = doctor(box)

    assert code == 1
    assert bad(found)[0] == "poller"
    assert found["poller"]["command"] == f"the-loop --config {box.config} --state-root {box.root} poll start"


def test_doctor_when_there_is_no_root_then_makes_none(box: Box, tmp_path: Path) -> None:
    root = tmp_path / "elsewhere" / "root"

    code, found = doctor(box, "--state-root", str(root))

    assert (code, found["state root"]["state"]) == (1, "ok")
    assert not root.parent.exists()


def test_doctor_when_the_umask_was_002_then_gives_the_chmod_that_helps(box: Box) -> None:
    box.item("a", "please")
    folder = box.inbox / "a"
    folder.chmod(0o775)

    _, found = doctor(box)
    wrong = found["source inbox: authors"]
    subprocess.run(wrong["command"], shell=True, check=True)

    assert (wrong["state"], str(folder) in wrong["detail"]) == ("fail", True)
    assert doctor(box)[1]["source inbox: authors"]["state"] == "ok"


def test_doctor_when_the_user_is_misspelt_or_the_item_anothers_then_names_both(box: Box) -> None:
    box.item("a", "please")
    box.configure(routing={"authorizedUsers": ["daemon"]})

    _, found = doctor(box)

    assert f"belong to '{ME}', who is not in `authorizedUsers`" in found["source inbox: authors"]["detail"]
    box.configure(routing={"authorizedUsers": ["nobody-like-that"]})
    code, found = doctor(box)
    assert (code, bad(found)[0]) == (1, "configuration")
    assert "there is no user 'nobody-like-that'" in found["configuration"]["detail"]


def test_doctor_when_nobody_is_authorised_then_says_that_the_source_is_not_read(box: Box) -> None:
    box.configure(routing={"authorizedUsers": []})

    assert "no user is authorised" in doctor(box)[1]["source inbox"]["detail"]


def test_doctor_when_a_poller_runs_with_another_path_then_that_one_counts(box: Box, tmp_path: Path) -> None:
    agent = tmp_path / "bin" / "my-agent"
    agent.parent.mkdir()
    agent.write_text("#!/bin/sh\n")
    agent.chmod(0o755)
    box.configure(session={"command": ["my-agent"]})
    poller = box.start()
    box.environ["PATH"] += f":{agent.parent}"

    code, found = doctor(box)

    assert (code, found["receiver: command"]["state"]) == (1, "fail")
    assert (
        f"is on the PATH of this shell, in '{agent.parent}', and not on the poller's"
        in (found["receiver: command"]["detail"])
    )
    assert poller.stop() == 0
    assert doctor(box)[1]["receiver: command"]["state"] == "ok"


def test_doctor_when_label_token_and_login_are_wrong_then_says_each(tmp_path: Path) -> None:
    github = FakeGitHub(lambda: 1_770_000_000.0)
    github.add_repo("octo/repo")
    github.unknown_logins.add("octocta")
    with FakeServer(github) as server:
        github.base_url = server.url
        source = {"provider": "github", "name": "work", "repos": ["octo/repo"], "label": "atuo", "apiUrl": server.url}
        with Box(tmp_path, sources=[source], routing={"authorizedUsers": ["octocta"]}) as box:
            code, found = doctor(box)

    assert code == 1
    assert found["source work: token"]["state"] == "warn"
    assert "did you mean 'auto'?" in found["source work: octo/repo, label 'atuo'"]["detail"]
    assert found["source work: user octocta"]["state"] == "fail"
    assert found["source work: clock"]["state"] == "warn"


@pytest.mark.parametrize("text", ["polling: {", "[]", "polling: {sources: []}\nrouting: {x: 1}\n"])
def test_doctor_when_the_configuration_is_broken_then_the_rest_is_examined(box: Box, text: str) -> None:
    box.config.write_text(text)

    code, found = doctor(box)

    assert code == 1
    assert found["configuration"]["state"] == "fail"
    assert (found["sources"]["state"], found["state root"]["state"]) == ("unknown", "ok")


def test_doctor_when_it_is_for_people_fits_the_page_and_has_colours_on_a_terminal_only(box: Box) -> None:
    plain = box.run("doctor")

    argv = [str(COMMAND), "--config", str(box.config), "--state-root", str(box.root), "doctor"]
    coloured, uncoloured = (on_a_terminal(argv, box.environ | more) for more in ({}, {"NO_COLOR": "1"}))

    assert plain.code == 1
    assert "\x1b" not in plain.out
    assert all(len(line) <= 80 or line.lstrip().startswith(("$ ", "/", "'/")) for line in plain.out.splitlines())
    assert plain.out.splitlines()[-1].endswith("are not good")
    assert "\x1b[31mFAIL" in coloured
    assert "FAIL  poller: not running" in uncoloured
    assert "\x1b" not in uncoloured


def on_a_terminal(argv: list[str], environ: Mapping[str, str]) -> str:
    ours, theirs = pty.openpty()
    with subprocess.Popen(argv, stdin=theirs, stdout=theirs, stderr=theirs, env={"TERM": "xterm", **environ}):
        os.close(theirs)
        said = b""
        while True:
            try:
                part = os.read(ours, 1 << 16)
            except OSError:  # the other end is closed
                break
            said += part
    os.close(ours)
    return said.decode("utf-8", "replace")


def test_doctor_when_a_unit_is_asked_for_that_is_not_there_then_says_so(box: Box) -> None:
    done = box.run("doctor", "--system", "--name", "no-such-instance")

    assert (done.code, done.out) == (1, "")
    assert "no such unit is installed" in done.err
    assert box.run("doctor", "--system", "--user").code == 2
