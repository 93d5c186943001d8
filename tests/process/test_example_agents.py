"""The receivers in examples/agents: each event answered once, with the mark; later if the agent is out of quota."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from support.poller import Box
from the_loop.core.guards import OWN_MARKER, is_own_notice

pytestmark = pytest.mark.slow

AGENTS = Path(__file__).parents[2] / "examples" / "agents"
BIN = Path(sys.executable).parent
# an agent: notes its prompt, then does what `behave` says
AGENT = """#!/bin/sh
n=$(ls "$HOME" | grep -c '^prompt') ; cat > "$HOME/prompt$n"
[ ! -e "$HOME/behave" ] || . "$HOME/behave"
echo "answer $n to $1"
"""
# gh as far as it is used: notes its arguments, keeps comments as files, fails as `gh-behave` says
GH = """#!/bin/sh
printf '%s\\n' "$*" >> "$HOME/gh-calls"
[ ! -e "$HOME/gh-behave" ] || . "$HOME/gh-behave"
n=$(ls "$HOME" | grep -c '^comment')
case "$*" in
*POST*) for word; do case $word in body=@*) cat "${word#body=@}" > "$HOME/comment$n";; esac; done;;
*) cat "$HOME"/comment* 2>/dev/null;;
esac
[ ! -e "$HOME/gh-after" ] || . "$HOME/gh-after"
"""


class Desk:
    """A home with an agent and a `gh`, and deliveries to the example."""

    def __init__(self, home: Path) -> None:
        self.home = home
        (home / "bin").mkdir()
        for name, text in (("my-agent", AGENT), ("gh", GH)):
            (home / "bin" / name).write_text(text)
            (home / "bin" / name).chmod(0o700)

    def deliver(
        self, key: str = "comment:1", text: str = "please", ref: str = "github:octo/repo#15", limit_s: float = 30
    ) -> subprocess.CompletedProcess[str]:
        environ = {
            "HOME": str(self.home),
            "PATH": f"{self.home / 'bin'}:{BIN}:/usr/bin:/bin",
            "THE_LOOP_DELIVERY_ID": f"{ref}/{key}",
            "THE_LOOP_DELIVERY_REF": ref,
            "THE_LOOP_DELIVERY_KIND": key.partition(":")[0],
            "THE_LOOP_MARK": OWN_MARKER,
            "THE_LOOP_STATE_ROOT": str(self.home / "root"),
        }
        argv = [str(AGENTS / "answer-on-github"), "my-agent", "$(touch pwned)"]
        return subprocess.run(
            argv, input=text, env=environ, cwd=self.home, capture_output=True, text=True, check=False, timeout=limit_s
        )

    def behave(self, script: str, name: str = "behave") -> None:
        (self.home / name).write_text(script)

    def go_on(self, name: str = "behave") -> None:
        (self.home / name).unlink()

    def files(self, prefix: str) -> list[str]:
        names = sorted((path for path in self.home.glob(f"{prefix}*")), key=lambda path: int(path.name[len(prefix) :]))
        return [path.read_text() for path in names]

    @property
    def comments(self) -> list[str]:
        return self.files("comment")

    @property
    def prompts(self) -> list[str]:
        return self.files("prompt")

    @property
    def calls(self) -> list[str]:
        path = self.home / "gh-calls"
        return path.read_text().splitlines() if path.exists() else []

    def age(self, minutes: float) -> None:
        """The comment may have been written so long ago."""
        (sent,) = self.home.glob(".local/state/answer-on-github/*/*/sent")
        moment = time.time() - 60 * minutes
        os.utime(sent, (moment, moment))


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_event_is_answered_once_with_the_mark_however_often_it_comes(desk: Desk) -> None:
    assert [desk.deliver().returncode for _ in range(3)] == [0, 0, 0]

    (comment,) = desk.comments
    assert comment.startswith("answer 0 to $(touch pwned)\n")
    assert comment.splitlines()[-1] == OWN_MARKER
    assert is_own_notice(comment)
    assert desk.prompts == ["please"]
    assert "api --hostname github.com --method POST repos/octo/repo/issues/15/comments" in desk.calls[0]
    assert not list(desk.home.rglob("pwned"))


def test_next_event_comes_with_what_was_said_before_and_a_new_start_without(desk: Desk) -> None:
    desk.deliver("spawn:1", "the item\n")
    desk.deliver("comment:1", "and this\n")
    desk.deliver("comment:1", "and this\n", ref="github:octo/repo#150")
    desk.deliver("spawn:2", "the item again\n")

    assert desk.prompts == [
        "the item\n",
        "the item\n\nYour answer:\n\nanswer 0 to $(touch pwned)\n\nand this\n",
        "and this\n",
        "the item again\n",
    ]
    assert len(desk.comments) == 4


def test_item_on_another_host_is_answered_there(desk: Desk) -> None:
    assert desk.deliver(ref="github:ghe.example/octo/repo#7").returncode == 0

    assert desk.calls[0].startswith("api --hostname ghe.example --method POST repos/octo/repo/issues/7/comments ")


@pytest.mark.parametrize("said", ["echo 'Error: Rate limit reached' >&2", "echo 'your usage limit is reached'"])
def test_agent_that_is_out_of_quota_is_asked_later(desk: Desk, said: str) -> None:
    desk.behave(f"{said}; exit 1")
    done = desk.deliver()
    assert (done.returncode, done.stderr.splitlines()[-1]) == (75, "the agent is out of quota")
    assert desk.comments == []

    desk.go_on()
    assert desk.deliver().returncode == 0
    assert len(desk.comments) == 1


@pytest.mark.parametrize(
    ("script", "code", "last"),
    [
        ("echo broken >&2; exit 3", 3, "broken"),
        ("exec true", 1, "the agent gave no answer"),
        ("echo later >&2; exit 75", 75, "later"),
    ],
)
def test_agent_that_fails_is_a_rejection_and_asked_again(desk: Desk, script: str, code: int, last: str) -> None:
    desk.behave(script)
    done = desk.deliver()
    assert (done.returncode, done.stderr.splitlines()[-1], desk.calls) == (code, last, [])

    desk.go_on()
    assert desk.deliver().returncode == 0
    assert len(desk.comments) == 1


@pytest.mark.parametrize("is_written", [True, False])
def test_run_that_is_killed_while_it_writes_looks_for_the_comment_before_it_writes_again(
    desk: Desk, is_written: bool
) -> None:
    to_kill = 'kill -KILL "$(ps -o ppid= -p $$ | tr -d " ")"; sleep 0.2; exit 1'
    desk.behave(to_kill, "gh-after" if is_written else "gh-behave")
    assert desk.deliver().returncode == -9
    desk.go_on("gh-after" if is_written else "gh-behave")

    assert desk.deliver().returncode == 75  # it may be there, and not be shown yet
    desk.age(5)
    assert desk.deliver().returncode == 0

    assert len(desk.comments) == 1
    assert len(desk.prompts) == 1  # the answer was there
    assert desk.deliver().returncode == 0
    assert len(desk.comments) == 1


def test_answer_that_github_cannot_take_now_is_written_later_and_one_that_it_refuses_is_a_rejection(desk: Desk) -> None:
    desk.behave("echo 'error connecting to api.github.com' >&2; exit 1", "gh-behave")
    assert desk.deliver().returncode == 75
    desk.age(5)
    desk.go_on("gh-behave")
    assert desk.deliver().returncode == 0
    assert len(desk.comments) == 1

    desk.behave("echo 'gh: Validation Failed (HTTP 422)' >&2; exit 1", "gh-behave")
    done = desk.deliver("comment:2")
    assert (done.returncode, done.stderr.splitlines()[-1]) == (1, "gh: Validation Failed (HTTP 422)")
    desk.behave("echo 'gh: API rate limit exceeded (HTTP 403)' >&2; exit 1", "gh-behave")
    assert desk.deliver("comment:2").returncode == 75


@pytest.mark.parametrize(
    "answer",
    [
        "```sh\nls",
        "text\n\n  ~~~~\ncode\n~~~",
        "````\n```\n",
        "```\na\n```\n",
        "no fence",
        "```a`b``` in a line",
        "    ```",
    ],
)
def test_mark_is_recognised_below_any_answer(desk: Desk, answer: str) -> None:
    (desk.home / "text").write_text(answer)
    desk.behave('cat "$HOME/text"; exit 0')

    assert desk.deliver().returncode == 0

    (comment,) = desk.comments
    assert is_own_notice(comment)
    assert comment.startswith(answer.rstrip("\n"))


# --- in a folder, by a real poller ---


def answer_in_folder(box: Box, script: str) -> None:
    agent = box.folder / "my-agent"
    agent.write_text(f"#!/bin/sh\n{script}\n")
    agent.chmod(0o700)
    command = [sys.executable, str(AGENTS / "answer-in-folder"), str(agent)]
    box.configure(session={"command": command, "kinds": ["spawn", "comment"]})


def answers(box: Box) -> list[str]:
    return sorted(path.read_text() for path in (box.inbox / "a").glob("answer-*.md"))


def test_folder_is_answered_once_per_event_and_answers_are_not_delivered(box: Box) -> None:
    answer_in_folder(box, "grep -q squeaks && echo '```'; echo oil")
    box.item("a", "The door squeaks.")

    for _ in range(3):
        assert box.once().code == 0
    box.comment("a", "01.md", "and the window")
    for _ in range(3):
        assert box.once().code == 0

    first, second = answers(box)
    assert first == f"```\noil\n```\n\n{OWN_MARKER}\n"
    assert second == f"oil\n\n{OWN_MARKER}\n"
    dropped = [event["reason"] for event in box.events("dispatch.dropped")]
    assert dropped == ["own", "own"]
    assert box.pending() == {}


def test_folder_whose_agent_is_out_of_quota_waits_and_is_not_charged(box: Box) -> None:
    answer_in_folder(box, 'echo "quota exceeded" >&2; exit 1')
    ref = box.item("a")

    assert box.once().code == 0

    ((delivery, entry),) = box.pending().items()
    assert (delivery, entry["state"], box.attempts()) == (f"{ref}/spawn:1", "later", {})
    assert [event["reason"] for event in box.events("poll.deferred")] == ["exit status 75: quota exceeded"]
    assert answers(box) == []


def test_answer_that_is_there_is_not_asked_for_again(tmp_path: Path) -> None:
    payload: dict[str, Any] = {"kind": "spawn", "title": "t", "author": "a", "body": "b", "thread": []}
    folder = tmp_path / "my item"
    folder.mkdir()
    event = {**payload, "deliveryId": "d:1/spawn:1", "url": (folder / "item.md").as_uri()}
    argv = [sys.executable, str(AGENTS / "answer-in-folder"), "sh", "-c", f"echo x >> {tmp_path}/asked; echo yes"]

    for _ in range(2):
        environ = {"PATH": os.environ["PATH"], "THE_LOOP_MARK": OWN_MARKER}
        subprocess.run(argv, input=json.dumps(event), text=True, env=environ, check=True, timeout=30)

    assert (tmp_path / "asked").read_text() == "x\n"
    assert [path.name[:7] for path in folder.iterdir()] == ["answer-"]
