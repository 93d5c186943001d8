"""The whole program beside GitHub: what operators see of its trouble, and what a reload changes."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.github.fake import FakeGitHub
from support.github.faults import bad_credentials, secondary_limit
from support.http_server import FakeServer
from support.poller import ME, Box, Started

pytestmark = pytest.mark.slow

REPO = "octo/repo"
REF = f"github:127.0.0.1/{REPO}#1"


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    with Box(tmp_path) as box:
        yield box


@pytest.fixture
def github() -> Iterator[FakeGitHub]:
    github = FakeGitHub(time.time)
    github.add_repo(REPO)
    github.add_issue(REPO, labels=["auto"])
    with FakeServer(github):
        yield github


def source_of(github: FakeGitHub) -> dict[str, Any]:
    return {"provider": "github", "repos": [REPO], "label": "auto", "apiUrl": github.base_url}


def status_of(box: Box) -> dict[str, Any]:
    """What `poll status` says of the source, once it says anything."""
    report = box.run("poll", "status", "--json").json()
    return next((source for source in report["sources"] if source["provider"] == "github"), {})


def reload(box: Box, poller: Started) -> None:
    before = len(box.events("config.reloaded"))
    poller.signal(signal.SIGHUP)
    box.wait(lambda: len(box.events("config.reloaded")) > before, "the reload")


def test_token_when_revoked_then_status_and_exit_code_say_since_when_and_why(box: Box, github: FakeGitHub) -> None:
    """Elsewhere polling had failed for hours while everything looked fine."""
    box.configure(sources=[source_of(github)], routing={"authorizedUsers": ["octocat"]})
    poller = box.start()
    box.wait(lambda: status_of(box).get("lastGoodAt") and box.sink.ids(), "a good round")
    github.fail(".", bad_credentials(), times=None)
    seen = box.wait(lambda: (now := status_of(box))["state"] == "failing" and now, "the trouble to be shown")
    reload(box, poller)
    after = status_of(box)
    assert poller.stop() == 0
    done = box.once()

    assert "rejected (401)" in seen["error"]
    assert seen["lastGoodAt"]
    assert after["lastGoodAt"] == seen["lastGoodAt"], "a reload is no good round"
    assert (done.code, "rejected (401)" in done.err) == (1, True)
    (failed, *_) = box.events("source.failed")
    assert (failed["source"], failed["level"] != "info") == ("github", True)
    box.assert_once({REF: ["spawn:1"]})


def test_comment_when_written_just_before_a_reload_then_arrives_once_and_nothing_is_replayed(
    box: Box, github: FakeGitHub
) -> None:
    """Elsewhere a reload reset the positions in memory, and what came between two polls was skipped."""
    settings: dict[str, Any] = {"routing": {"authorizedUsers": ["github:octocat", "github:hubot", f"directory:{ME}"]}}
    box.configure(sources=[source_of(github)], polling={"intervalSeconds": 2}, **settings)
    poller = box.start()
    box.wait(lambda: f"{REF}/spawn:1" in box.sink.ids(), "the spawn")
    github.comment(REPO, 1)
    inbox = {"provider": "directory", "path": "inbox", "settleSeconds": 0}
    box.configure(sources=[inbox, source_of(github)], polling={"intervalSeconds": 1}, **settings)
    reload(box, poller)
    other = box.item("a")
    box.wait(lambda: {f"{REF}/comment:1001", f"{other}/spawn:1"} <= set(box.sink.ids()), "both")
    reload(box, poller)
    github.comment(REPO, 1, "hubot")
    box.wait(lambda: f"{REF}/comment:1002" in box.sink.ids() and not box.pending(), "the second")
    assert poller.stop() == 0

    box.assert_once({REF: ["spawn:1", "comment:1001", "comment:1002"], other: ["spawn:1"]})


def test_login_when_taken_off_the_list_by_a_reload_then_is_not_served_from_the_next_cycle_on(
    box: Box, github: FakeGitHub
) -> None:
    """Elsewhere a login taken off the list was served until a restart."""
    box.configure(sources=[source_of(github)], routing={"authorizedUsers": ["OctoCat", "hubot"]})
    box.sink.behave(("*/comment:1001", {"gate": box.sink.gate("first")}))
    poller = box.start()
    box.wait(lambda: box.sink.ids() and not box.pending(), "the spawn")
    github.comment(REPO, 1, "octocat", "Held for a while.")
    box.wait(lambda: f"{REF}/comment:1001" in box.sink.ids(), "the first to begin")
    github.comment(REPO, 1, "hubot", "Accepted.")
    box.wait(lambda: f"{REF}/comment:1002" in box.pending(), "the second to be accepted")
    box.configure(sources=[source_of(github)], routing={"authorizedUsers": ["octocat"]})
    reload(box, poller)
    github.comment(REPO, 1, "hubot", "Too late.")
    github.comment(REPO, 1, "OCTOCAT", "The last.")
    box.sink.open_gate("first")
    box.wait(lambda: f"{REF}/comment:1004" in box.sink.ids() and not box.pending(), "the last")
    assert poller.stop() == 0

    assert box.sink.keys(REF) == ["spawn:1", "comment:1001", "comment:1004"]


def test_run_when_a_limit_of_the_last_one_is_in_force_then_is_no_good_one(box: Box, github: FakeGitHub) -> None:
    """From a timer, an hour without a single question would look like one in which all was well."""
    github.fail(".", secondary_limit(600), times=None)
    box.configure(sources=[source_of(github)], routing={"authorizedUsers": ["octocat"]})
    codes = [box.run("poll", "start", "--once").code for _ in range(2)]
    report = box.run("poll", "status", "--json").json()

    assert codes == [1, 1]
    assert github.requests == 1
    assert report["lastGoodCycleAt"] is None
    (source,) = report["sources"]
    assert source["state"] == "waiting"
    assert "rate limit" in source["error"]


def test_settle_when_nothing_is_known_of_the_event_then_is_refused(box: Box, github: FakeGitHub) -> None:
    """A slip of the pen must not swallow what somebody writes tomorrow."""
    box.configure(sources=[source_of(github)], routing={"authorizedUsers": ["octocat"]})
    assert box.run("poll", "start", "--once").code == 0
    done = box.run("ledger", "settle", REF, "comment:1001")
    assert done.code == 1
    assert "cannot settle 'comment:1001'" in done.err
    github.comment(REPO, 1)
    assert box.run("poll", "start", "--once").code == 0

    assert box.sink.ids()[-1] == f"{REF}/comment:1001"


def test_token_when_every_repository_rejects_it_then_none_of_them_is_left_out(box: Box, github: FakeGitHub) -> None:
    github.add_repo("octo/other")
    github.fail(".", bad_credentials(), times=None)
    source = {**source_of(github), "repos": [REPO, "octo/other"]}
    box.configure(sources=[source], routing={"authorizedUsers": ["octocat"]})
    box.run("poll", "start", "--once")

    error = status_of(box)["error"]
    assert f"{REPO}: " in error
    assert "octo/other: " in error
