"""`the-loop init`: from options or answers to a file with which the first item arrives."""

from __future__ import annotations

import os
import pty
import shlex
import stat
import subprocess
import time
from typing import TYPE_CHECKING

import pytest

from support.github.fake import FakeGitHub
from support.http_server import FakeServer
from support.poller import COMMAND, ME, Box
from the_loop.config import Config
from the_loop.config_file import load

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

REPO = "octo/repo"


def receiver(box: Box) -> list[str]:
    return ["--command", shlex.join(box.sink.argv())]


def config(box: Box) -> Config:
    return load(box.config).config


def answer(box: Box, options: Sequence[str], answers: Sequence[tuple[str, str]], **env: str) -> tuple[int, str]:
    """Run `init` on a terminal; each answer is typed once its question is there. The exit code, and what was shown."""
    ours, theirs = pty.openpty()
    said = b""
    argv = box.argv("init", *options)
    with subprocess.Popen(
        argv,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={"TERM": "xterm", **box.environ, **env},
        cwd=box.folder,
        start_new_session=True,
    ) as process:
        os.close(theirs)
        left = list(answers)
        while part := _read(ours):
            said += part
            if left and left[0][0].encode() in said:
                question, text = left.pop(0)
                said = said.replace(question.encode(), b"(asked)", 1)
                os.write(ours, f"{text}\n".encode())
    os.close(ours)
    shown = said.decode("utf-8", "replace")
    assert left == [], shown
    assert "Traceback" not in shown
    return process.returncode, shown


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # the other end is closed
        return b""


def test_init_when_it_is_given_a_directory_then_its_first_item_arrives(box: Box) -> None:
    box.config.unlink()
    inbox = box.folder / "in box"

    done = box.run("init", "--path", str(inbox), *receiver(box))

    assert (done.code, done.err) == (0, f"the-loop: made '{inbox}'\n")
    assert stat.S_IMODE(box.config.stat().st_mode) == 0o600
    assert f"wrote '{box.config}'" in done.out
    typed = [line[4:] for line in done.out.splitlines() if line.startswith("  $ ")]
    subprocess.run(["sh", "-c", typed[0]], check=True)
    assert typed[1] == f"the-loop --config {box.config} --state-root {box.root} poll start --once"
    assert typed[2] == f"the-loop --config {box.config} --state-root {box.root} unit install"
    assert box.once().code == 0
    assert box.sink.ids() == ["directory:in box/first/spawn:1"]


def test_init_when_it_is_given_a_repository_then_its_first_issue_and_comment_arrive(box: Box) -> None:
    box.config.unlink()
    github = FakeGitHub(time.time)
    github.add_repo(REPO)
    number = github.add_issue(REPO, labels=["auto"])
    token = box.folder / "token"
    token.write_text("secret\n")
    token.chmod(0o600)
    with FakeServer(github):
        options = ["--repo", REPO, "--user", "octocat", "--api-url", github.base_url, "--token-file", str(token)]
        done = box.run("init", *options, "--yes", *receiver(box))
        assert done.code == 0, done.err + done.out
        assert f"put the label 'auto' on an issue of {REPO}" in done.out
        assert box.once().code == 0
        github.comment(REPO, number)
        assert box.once().code == 0

    ids = box.sink.ids()
    assert ids[0] == f"github:127.0.0.1/{REPO}#{number}/spawn:1"
    assert [one.split("/")[-1].split(":")[0] for one in ids] == [["spawn", "1"][0], "comment"]


@pytest.mark.parametrize(
    ("options", "variables", "file"),
    [
        ([], {}, "~/.config/the-loop/token"),
        ([], {"GH_TOKEN": "x"}, None),
        (["--token-file", ""], {}, None),
        (["--token-file", "/t"], {"GITHUB_TOKEN": "x"}, "/t"),
    ],
)
def test_init_when_no_token_file_is_named_then_it_is_the_usual_one_or_the_variable(
    box: Box, options: list[str], variables: dict[str, str], file: str | None
) -> None:
    github = FakeGitHub(time.time)
    github.add_repo(REPO)
    with FakeServer(github):
        given = ["--repo", REPO, "--user", "octocat", "--api-url", github.base_url, "--command", "cat"]
        done = box.run("init", "--force", "--yes", *given, *options, env=variables)

    assert done.code == 0
    assert config(box).polling.sources[0].token_file == file  # type: ignore[attr-defined]
    assert ("FAIL  source github: token" in done.out) == (file is not None)


def test_init_when_nothing_is_named_then_is_written_where_it_is_found(tmp_path: Path, box: Box) -> None:
    home = tmp_path / "home"
    home.mkdir()
    argv = [str(COMMAND), "init", "--path", "inbox", "--command", "cat"]
    env = {**box.environ, "HOME": str(home), "THE_LOOP_STATE_ROOT": str(box.root)}

    out = subprocess.run(argv, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True)

    written = home / ".config" / "the-loop" / "config.yaml"
    assert written.parent.stat().st_mode & 0o777 == 0o700
    assert load(written).config.session.command == ("cat",)  # type: ignore[attr-defined]
    assert "  $ the-loop poll start --once\n  $ the-loop unit install\n" in out.stdout.decode()
    assert f"mkdir -p {box.inbox}/first" in out.stdout.decode()


def test_init_when_the_file_exists_then_it_stays_unless_it_is_forced(box: Box) -> None:
    before = box.config.read_bytes()
    link = box.folder / "link.yaml"
    link.symlink_to(box.config)

    refused = box.run("init", "--path", "inbox", "--command", "cat")
    dangling = box.folder / "dangling.yaml"
    dangling.symlink_to(box.folder / "nowhere")
    also = box.run("init", "--output", str(dangling), "--path", "inbox", "--command", "cat")

    assert (refused.code, refused.out) == (1, "")
    assert "it exists (name another with --output, or replace it with --force)" in refused.err
    assert (also.code, dangling.is_symlink(), dangling.exists()) == (1, True, False)
    assert box.config.read_bytes() == before
    assert box.run("init", "--output", str(link), "--path", "inbox", "--command", "cat", "--force").code == 0
    assert link.is_symlink()
    assert config(box).session.command == ("cat",)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "missing without a terminal: --repo or --path, --command"),
        (["--repo", REPO], "missing without a terminal: --user, --command"),
        (["--provider", "github", "--runner", "print"], "missing without a terminal: --repo, --user"),
        (["--path", "x"], "missing without a terminal: --command"),
        (["--path", "x", "--label", "y", "--command", "cat"], "one source is configured, of one provider"),
        (["--provider", "directory", "--repo", REPO, "--command", "cat"], "one source is configured, of one provider"),
        (["--repo", "octo", "--user", "a", "--command", "cat"], "--repo: "),
        (["--repo", REPO, "--user", "@a", "--command", "cat"], "--user: '@a' is not a login; did you mean 'a'?"),
        (["--repo", REPO, "--user", "a", "--label", "b,c", "--command", "cat"], "--label: "),
        (["--repo", REPO, "--user", "a", "--api-url", "ftp://x", "--command", "cat"], "polling.sources[0].apiUrl: "),
        (["--path", "x", "--command", ""], "--command: is missing"),
        (["--path", "x", "--command", "cat 'x"], "--command: No closing quotation"),
        (["--path", "x", "--command", "sh -c {text}"], "--command: "),
        (["--path", "x", "--user", "no-such-user", "--command", "cat"], "--user: there is no user 'no-such-user'"),
    ],
)
def test_init_when_options_are_wrong_or_missing_then_2_and_says_which(box: Box, options: list[str], said: str) -> None:
    box.config.unlink()

    done = box.run("init", *options)

    assert (done.code, done.out) == (2, "")
    assert said in done.err
    assert not box.config.exists()


def test_init_when_a_check_fails_then_writes_only_if_it_is_told_to(box: Box) -> None:
    box.config.unlink()
    options = ["init", "--path", "inbox", "--command", "no-such-program"]

    refused = box.run(*options)

    assert refused.code == 1
    assert "FAIL  receiver: command: 'no-such-program' is not found" in refused.out
    assert "is not written, as not everything is good" in refused.err
    assert not box.config.exists()
    forced = box.run(*options, "--yes")
    assert (forced.code, box.config.exists()) == (0, True)
    assert "FAIL  receiver: command" in forced.out


@pytest.mark.parametrize("path", ["missing/inbox", "config.yaml/inbox", "x" * 300, "inbox\udc80"])
def test_init_when_the_directory_cannot_be_made_then_the_check_says_so(box: Box, path: str) -> None:
    options = ["--path", f"{box.folder}/{path}", "--command", "cat", "--output", f"{box.folder}/new.yaml"]

    done = box.run("init", *options)

    assert done.code in (1, 2)
    assert "FAIL  source" in done.out or "is no text" in done.err, done.err
    assert not (box.folder / "new.yaml").exists()
    assert "internal error" not in done.err


def test_init_when_it_runs_on_a_terminal_then_asks_until_answers_are_right(box: Box) -> None:
    box.config.unlink()
    github = FakeGitHub(time.time)
    github.add_repo(REPO)
    token = box.folder / "a token"
    with FakeServer(github):
        code, shown = answer(
            box,
            ["--api-url", github.base_url],
            [
                ("Repositories, as owner/name:", "octo"),
                ("Repositories, as owner/name:", f"{REPO}, octo/other"),
                ("Label of the issues to work on [auto]:", ""),
                ("File with the token [~/.config/the-loop/token]:", str(token)),
                ("Logins of those whose issues and comments count:", "@octocat"),
                ("Logins of those whose issues and comments count:", "octocat hubot"),
                ("Command to run for each event:", "cat 'x"),
                ("Command to run for each event:", "cat -u"),
                ("it is not shown; empty: later):", "very-secret"),
                ("Not everything is good. Write the file?", "y"),  # there is no octo/other
            ],
        )

    assert code == 0, shown
    assert "did you mean 'octocat'?" in shown
    assert "very-secret" not in shown
    assert (token.read_text(), token.stat().st_mode & 0o777) == ("very-secret\n", 0o600)
    (source,) = config(box).polling.sources
    assert (source.repos, source.label) == ((REPO, "octo/other"), "auto")  # type: ignore[attr-defined]
    assert config(box).routing.authorized_users == ("octocat", "hubot")
    assert config(box).session.command == ("cat", "-u")  # type: ignore[attr-defined]


def test_init_when_it_runs_on_a_terminal_then_offers_what_is_usual(box: Box) -> None:
    box.config.unlink()
    answers = [
        ("Where do items come from?", "directory"),
        ("Directory of the items [~/inbox]:", ""),
        (f"Users whose files count [{ME}]:", ""),
        ("Command to run for each event:", "cat"),
    ]

    code, shown = answer(box, [], answers)

    assert code == 0, shown
    assert (box.folder / "inbox").stat().st_mode & 0o777 == 0o700
    (source,) = config(box).polling.sources
    assert source.path == "~/inbox"  # type: ignore[attr-defined]
    assert config(box).routing.authorized_users == (ME,)


def test_init_when_it_is_interrupted_then_130_and_nothing_is_written(box: Box) -> None:
    box.config.unlink()
    before = sorted(one.name for one in box.folder.iterdir())

    code, shown = answer(box, [], [("Where do items come from?", "\x04")])

    assert code == 130, shown
    assert not box.config.exists()
    assert sorted(one.name for one in box.folder.iterdir()) == before
