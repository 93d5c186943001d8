"""Receivers of sources and of labels, with a real poller (contract R7.9)."""

from __future__ import annotations

from typing import Any

import pytest

from support.github.fake import FakeGitHub
from support.http_server import FakeServer
from support.poller import ME, Box

pytestmark = pytest.mark.slow


def noting(box: Box, name: str, wait: str = "") -> list[str]:
    """A command that notes its delivery in the file `name`, and waits for `wait`."""
    file = box.folder / f"{name}.sh"
    loop = f"until [ -e {box.folder}/{wait} ]; do sleep 0.02; done\n" if wait else ""
    file.write_text(f'#!/bin/sh\necho "$THE_LOOP_DELIVERY_ID" >> {box.folder}/{name}\n{loop}')
    file.chmod(0o700)
    return [str(file)]


def got(box: Box, name: str) -> list[str]:
    path = box.folder / name
    return path.read_text().splitlines() if path.exists() else []


def test_source_with_a_session_of_its_own_is_served_by_that_and_the_others_as_before(box: Box) -> None:
    second = box.folder / "second"
    second.mkdir()
    inbox = {"provider": "directory", "path": "inbox", "settleSeconds": 0}
    own = {**inbox, "path": str(second), "session": {"command": noting(box, "own"), "kinds": ["spawn"]}}
    box.configure(sources=[inbox, own], session={"command": noting(box, "shared")})
    box.item("a")
    box.comment("a", "01")
    (second / "b").mkdir()
    for name in ("item.md", "01"):
        (second / "b" / name).write_text("x")
    assert box.once().code == 0
    box.comment("a", "02")
    (second / "b" / "02").write_text("y")
    assert box.once().code == 0

    assert got(box, "shared") == ["directory:inbox/a/spawn:1", "directory:inbox/a/comment:02"]
    assert got(box, "own") == ["directory:second/b/spawn:1"]
    assert [event["deliveryId"] for event in box.events("dispatch.dropped")] == ["directory:second/b/comment:02"]
    assert len(box.events("dispatch.no_manager")) == 1


@pytest.fixture
def github() -> FakeGitHub:
    github = FakeGitHub(lambda: 1_800_000_000.0)
    github.add_repo("octo/repo")
    return github


def configure(box: Box, server: FakeServer, by_label: dict[str, Any]) -> None:
    source = {"provider": "github", "repos": ["octo/repo"], "label": "auto", "apiUrl": server.url}
    session = {"command": noting(box, "small"), "trustLabels": True, "byLabel": by_label}
    box.environ["GITHUB_TOKEN"] = "secret"
    box.configure(sources=[source], routing={"authorizedUsers": ["octocat"]}, session=session)


def test_label_chooses_the_receiver_until_the_session_ends_also_over_kills_and_a_lost_entry(
    box: Box, github: FakeGitHub
) -> None:
    number = github.add_issue("octo/repo", labels=["auto", "heavy"])
    github.add_issue("octo/repo", labels=["auto"])
    with FakeServer(github) as server:
        ref = f"github:127.0.0.1/octo/repo#{number}"
        heavy = {"heavy": {"command": noting(box, "big", wait="go")}}
        configure(box, server, heavy)
        poller = box.start()
        box.wait(lambda: got(box, "big") and got(box, "small"), "both")
        assert got(box, "big") == [f"{ref}/spawn:1"]
        poller.kill()

        poller = box.start()
        (box.folder / "go").touch()
        box.wait(lambda: not box.pending(), "its outcome")
        configure(box, server, {"light": {"command": noting(box, "light")}})
        poller.signal(1)
        box.wait(lambda: box.events("config.reloaded"), "the reload")
        key = github.comment("octo/repo", number, body="and this")
        status = box.wait(lambda: _missing(box, ref), "that it waits")
        assert status["state"] == "no-receiver"
        assert got(box, "big") == [f"{ref}/spawn:1"]

        configure(box, server, heavy)
        poller.signal(1)
        box.wait(lambda: len(got(box, "big")) == 2, "the comment")
        assert poller.stop() == 0

    assert got(box, "big")[1] == f"{ref}/comment:{key}"
    assert got(box, "small") == [f"{ref[:-1]}{number + 1}/spawn:1"]
    assert got(box, "light") == []
    assert box.attempts() == {}


def _missing(box: Box, ref: str) -> dict[str, Any]:
    shown = [one for one in box.heartbeat().get("attention", []) if one.get("ref") == ref]
    return shown[0] if shown else {}


def test_configuration_of_receivers_is_checked_and_shown(box: Box) -> None:
    inbox = {"provider": "directory", "path": "inbox", "authorizedUsers": [ME]}
    box.configure(sources=[{**inbox, "session": {"command": ["x"], "byLabel": {"heavy": {"slice": "a"}}}}])
    done = box.run("config", "check")
    assert (done.code, "polling.sources[0].session.byLabel.heavy.slice" in done.err) == (78, True)

    entry = {"command": ["big"], "slice": "theloop-heavy.slice"}
    box.configure(sources=[{**inbox, "session": {"command": ["x"], "byLabel": {"heavy": entry}}}])
    for words in (("config", "check"), ("config", "show"), ("config", "schema"), ("poll", "status")):
        done = box.run(*words)
        assert done.code in (0, 3), (words, done.err)
    assert "theloop-heavy.slice" in box.run("config", "show").out
