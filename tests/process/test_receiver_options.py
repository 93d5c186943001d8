"""What a session may say of its receiver, with a real poller: text, kinds, variables, the last line (contract R7.1)."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from support.poller import COMMAND, Box

pytestmark = pytest.mark.slow


def script(box: Box, text: str) -> list[str]:
    file = box.folder / "receiver"
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o700)
    return [str(file)]


def notes(box: Box, name: str) -> list[str]:
    path = box.folder / name
    return path.read_text().splitlines() if path.exists() else []


def test_receiver_gets_text_and_placeholders_and_a_repeated_event_the_same(box: Box) -> None:
    command = [*script(box, 'printf "%s\\n" "$#" "$1" "$2" >> ~/words; cat >> ~/text'), "{title}", "{ref}"]
    box.configure(session={"command": command, "input": "text"})
    box.item("-rf $(touch pwned)", "the text\n")

    assert box.once().code == 0

    assert notes(box, "words") == ["2", " -rf $(touch pwned)", "directory:inbox/-rf $(touch pwned)"]
    text = notes(box, "text")
    assert text[0].endswith(" spawn of directory:inbox/-rf $(touch pwned)")
    assert text[-1] == "the text"
    assert not list(box.folder.rglob("pwned"))
    assert [path.suffix for path in (box.root / "local/deliveries").iterdir()] == []


def test_kinds_that_are_left_out_are_settled_and_the_item_goes_its_way(box: Box) -> None:
    box.configure(session={"kinds": ["comment"]})
    ref = box.item("a", **{"01": "first", "02": "second"})
    for _ in range(2):
        assert box.once().code == 0

    assert box.sink.keys(ref) == ["comment:01", "comment:02"]
    (box.inbox / "a").rename(box.folder / "gone")
    box.wait(lambda: box.once().code == 0 and box.ledgers()[ref]["poll"]["phase"] == "ended", "the end")

    assert box.sink.keys(ref) == ["comment:01", "comment:02"]
    dropped = [(event["deliveryId"], event["reason"]) for event in box.events("dispatch.dropped")]
    assert dropped == [(f"{ref}/spawn:1", "kind"), (f"{ref}/close:1", "kind")]
    assert len(box.events("session.closed")) == 1
    assert box.pending() == {}


def test_kinds_are_in_force_with_a_reload(box: Box) -> None:
    ref = box.item("a")
    poller = box.start()
    box.wait(lambda: box.sink.keys(ref) == ["spawn:1"], "the spawn")
    box.configure(session={"kinds": ["spawn", "close"]})
    poller.signal(1)
    box.wait(lambda: box.events("config.reloaded"), "the reload")

    box.comment("a", "01")

    box.wait(lambda: [event["reason"] for event in box.events("dispatch.dropped")] == ["kind"], "that it is dropped")
    assert box.sink.keys(ref) == ["spawn:1"]
    assert poller.stop() == 0


def test_variables_reach_the_receiver_and_a_token_only_if_it_is_named(box: Box) -> None:
    secrets = box.folder / "agent.env"
    secrets.write_text("KEY=from-file\n")
    secrets.chmod(0o600)
    session = {"environment": {"MODE": "fast"}, "environmentFile": str(secrets), "passEnvironment": ["GITHUB_TOKEN"]}
    box.environ |= {"GITHUB_TOKEN": "ghp_named", "GH_TOKEN": "ghp_not_named", "NOTIFY_SOCKET": "@x"}
    box.configure(session={"command": script(box, "env > ~/environment"), **session})
    box.item("a")

    assert box.once().code == 0

    found = dict(line.partition("=")[::2] for line in notes(box, "environment"))
    assert {"MODE": "fast", "KEY": "from-file", "GITHUB_TOKEN": "ghp_named"}.items() <= found.items()
    assert not set(found) & {"GH_TOKEN", "NOTIFY_SOCKET", "THE_LOOP_GIVEN"}
    for path in (path for path in box.root.rglob("*") if path.is_file()):
        assert not [secret for secret in (b"ghp_named", b"from-file") if secret in path.read_bytes()], path


def test_file_of_variables_that_others_can_read_is_78_at_the_start_and_a_pause_later(box: Box) -> None:
    secrets = box.folder / "agent.env"
    secrets.write_text("KEY=s3cret\n")
    secrets.chmod(0o644)
    box.configure(session={"environmentFile": str(secrets)})
    for words in (("poll", "start", "--once"), ("config", "check")):
        done = box.run(*words)
        assert (done.code, "session.environmentFile" in done.err, "s3cret" in done.err) == (78, True, False)

    secrets.chmod(0o600)
    poller = box.start()
    box.wait_for_cycles()
    secrets.chmod(0o644)
    ref = box.item("a")
    box.wait(lambda: box.events("dispatch.paused"), "the pause")
    assert "mode 0644" in box.events("dispatch.paused")[0]["reason"]
    secrets.chmod(0o600)
    box.run("poll", "wake")
    box.wait(lambda: box.sink.keys(ref) == ["spawn:1"], "the delivery")
    assert poller.stop() == 0
    box.assert_once({ref: ["spawn:1"]})


def test_placeholder_in_a_shell_command_is_78(box: Box) -> None:
    box.configure(session={"command": ["env", "A=b", "sh", "-c", 'echo "$1"', "sh", "{text}"]})

    done = box.run("poll", "start", "--once")

    assert done.code == 78
    assert "session.command: {text} has no place in a command that runs code ('sh -c')" in done.err


def test_reason_of_a_rejection_names_the_last_line_in_events_and_status(box: Box) -> None:
    box.configure(session={"command": script(box, "echo starting; echo 'cannot connect\x1b[0m' >&2; exit 1")})
    ref = box.item("a")

    assert box.once().code == 0

    (event,) = box.events("poll.spawn_failed")
    assert event["reason"] == "exit status 1: cannot connect\\x1b[0m"
    assert event["deliveryId"] == f"{ref}/spawn:1"
    assert sorted(notes(box, "root/logs/output.log")) == ["cannot connect\x1b[0m", "starting"]


def test_receiver_under_once_does_not_run_twice_at_once_when_its_delivery_is_killed(box: Box) -> None:
    box.environ["PATH"] = f"{Path(COMMAND).parent}:{box.environ['PATH']}"
    work = "echo $$ >> ~/runs; until [ -e ~/go ]; do sleep 0.05; done"
    once = f'the-loop --state-root {box.root} once "$THE_LOOP_DELIVERY_ID"'
    box.configure(session={"command": script(box, f"exec {once} -- sh -c '{work}'")})
    box.item("a")
    poller = box.start()
    (pid,) = box.wait(lambda: notes(box, "runs"), "the first run")
    subprocess.run(["kill", "-KILL", str(box.wait(box.keeper, "the keeper"))], check=True)

    # the keeper takes `once` along, and not what that runs
    (deferred,) = box.wait(lambda: box.events("poll.deferred"), "that it is offered again, and deferred")

    assert f"is still running, as process {pid}" in deferred["reason"]
    assert notes(box, "runs") == [pid]
    (box.folder / "go").touch()
    assert poller.stop() == 0
