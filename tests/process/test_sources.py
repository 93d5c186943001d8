"""Sources that are slow, broken or half there, seen from outside: each costs itself only, and nothing is cut short."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest

from support.github.fake import FakeGitHub
from support.github.faults import drip, hang, reply, secondary_limit
from support.http_server import FakeServer
from support.poller import ME, Box

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow

REPO = "octo/repo"


@pytest.fixture
def github() -> Iterator[FakeGitHub]:
    github = FakeGitHub(time.time)
    github.add_repo(REPO)
    with FakeServer(github):
        yield github


def watch(box: Box, github: FakeGitHub, *repos: str, **settings: dict[str, Any]) -> None:
    sources: list[dict[str, Any]] = [
        {"provider": "github", "repos": list(repos or [REPO]), "label": "auto", "apiUrl": github.base_url},
        {"provider": "directory", "path": "inbox", "settleSeconds": 0},
    ]
    people = ["github:octocat", f"directory:{ME}"]
    box.configure(sources=sources, routing={"authorizedUsers": people}, **settings)


def sources(box: Box) -> dict[str, dict[str, Any]]:
    report = box.run("poll", "status", "--json").json()
    return {source["name"]: source for source in report["sources"]}


def inbox_cycled(box: Box) -> bool:
    """True once the running poller had a cycle of its directory."""
    beat = box.heartbeat()
    found = {source["name"]: source["lastCycle"] for source in beat.get("sources", [])}
    return bool(found.get("inbox")) and found["inbox"]["startedAt"] >= beat["since"]


def ref_of(number: int, repo: str = REPO) -> str:
    return f"github:127.0.0.1/{repo}#{number}"


@pytest.mark.parametrize("fault", [hang(), drip(5.0)], ids=["hang", "drip"])
def test_peer_when_it_never_answers_then_the_other_source_is_served_and_stop_works(
    box: Box, github: FakeGitHub, fault: Any
) -> None:
    number = github.add_issue(REPO, labels=["auto"])
    watch(box, github)
    hit = github.fail(".", fault, times=None)
    ref = box.item("a")
    poller = box.start()
    box.wait(lambda: hit.hits and box.sink.ids(), "the other source, meanwhile")
    assert box.run("poll", "stop").code == 0
    assert poller.wait(1) == 0
    github.faults.clear()
    assert box.once().code == 0

    box.assert_once({ref_of(number): ["spawn:1"], ref: ["spawn:1"]})


def test_repository_when_missing_then_the_other_two_are_served_and_it_is_named(box: Box, github: FakeGitHub) -> None:
    github.add_repo("octo/other")
    one, other = github.add_issue(REPO, labels=["auto"]), github.add_issue("octo/other", labels=["auto"])
    watch(box, github, REPO, "octo/gone", "octo/other")

    done = box.once()

    assert done.code == 1
    assert "octo/gone" in done.err
    assert "octo/gone" in sources(box)["github"]["error"]
    comment = github.comment("octo/other", other)
    assert box.once().code == 1
    box.assert_once({ref_of(one): ["spawn:1"], ref_of(other, "octo/other"): ["spawn:1", f"comment:{comment}"]})


def test_limit_when_it_names_a_moment_then_silence_until_then_also_over_restarts(box: Box, github: FakeGitHub) -> None:
    number = github.add_issue(REPO, labels=["auto"])
    watch(box, github)
    github.fail(".", secondary_limit(10), times=1)
    poller = box.start()
    box.wait(lambda: box.events("source.waiting"), "the wait")
    seen = box.wait(lambda: sources(box), "the heartbeat")
    if time.time() < github.log[0].time + 10:  # else this machine is too slow to see it in time
        assert (seen["github"]["state"], seen["inbox"]["state"]) == ("waiting", "ok")
        assert seen["github"]["waitingUntil"]
    for _ in range(3):
        poller.kill()
        poller = box.start()
        box.wait(lambda: inbox_cycled(box), "a cycle of the other source")
    box.wait(lambda: box.sink.ids() and not box.pending(), "the spawn, once the wait is over")

    assert github.log[1].time - github.log[0].time >= 9.9, "asked in spite of the limit"
    box.assert_once({ref_of(number): ["spawn:1"]})


def test_answers_when_garbage_then_nothing_ends_and_nothing_comes_twice(box: Box, github: FakeGitHub) -> None:
    number = github.add_issue(REPO, labels=["auto"])
    watch(box, github)
    assert box.once().code == 0
    for effect in (reply(200, b"[]x"), reply(200, {"message": "no list"}), reply(500), reply(200, b""), reply(204)):
        github.fail(".", effect, times=None)
        assert box.once().code == 1
        github.faults.clear()
    comment = github.comment(REPO, number)
    assert box.once().code == 0

    box.assert_once({ref_of(number): ["spawn:1", f"comment:{comment}"]})
    assert not box.events("session.closed")


def test_token_when_it_cannot_be_read_then_said_how_to_give_it_and_nothing_changes(
    box: Box, github: FakeGitHub
) -> None:
    github.add_issue(REPO, labels=["auto"])
    source = {"provider": "github", "repos": [REPO], "label": "auto", "apiUrl": github.base_url}
    missing = box.folder / "token"
    box.configure(sources=[{**source, "tokenFile": str(missing)}], routing={"authorizedUsers": ["octocat"]})

    done = box.once()

    assert done.code == 1
    assert str(missing) in done.err
    assert box.ledgers() == {}
    assert github.requests == 0, "without its token it would see less than there is"
    missing.write_text("ghp_x\n")
    missing.chmod(0o600)
    assert box.once().code == 0
    assert github.log[0].headers["authorization"].endswith(" ghp_x")


# --- directories ---


def test_file_when_written_slowly_then_it_comes_once_as_it_stood_when_it_settled(box: Box) -> None:
    settle = {"provider": "directory", "path": "inbox", "settleSeconds": 1}
    box.configure(sources=[settle])
    ref = box.item("a")
    poller = box.start()
    box.wait(lambda: box.sink.ids() and not box.pending(), "the spawn")
    slow = box.inbox / "a" / "slow"
    with slow.open("w") as file:
        slow.chmod(0o600)
        for _ in range(8):
            file.write("0123456789")
            file.flush()
            time.sleep(0.4)  # the pace of the writer, below the settling time
    box.comment("a", "aside", "at once")
    box.wait(lambda: len(box.sink.ids()) == 3 and not box.pending(), "both")
    with slow.open("a") as file:
        file.write("after a pause")
    box.wait(lambda: box.events("poll.edited"), "the edit to be told")
    box.wait_for_cycles(2, since=time.time())
    assert poller.stop() == 0

    assert {got.key: got.length for got in box.sink.got()}["comment:slow"] == 80
    assert sorted(box.sink.keys(ref)) == ["comment:aside", "comment:slow", "spawn:1"]
    assert [event["deliveryId"] for event in box.events("poll.edited")] == [f"{ref}/comment:slow"]


def test_files_when_of_odd_kinds_and_times_then_content_once_and_no_hang(box: Box) -> None:
    ref = box.item("a")
    assert box.once().code == 0
    folder = box.inbox / "a"
    for number, moment in enumerate([1.0, time.time() - 31_536_000, time.time() + 31_536_000, 2**33]):
        box.comment("a", f"{number}")
        os.utime(folder / f"{number}", (moment, moment))
    box.comment("a", "two\nlines")
    os.mkfifo(folder / "fifo")
    (folder / ".hidden").write_text("no")
    (folder / "backup~").write_text("no")
    (folder / "link").symlink_to("/etc/hostname")
    (folder / "folder").mkdir()
    (folder / "folder" / "inside").write_text("no")
    for _ in range(3):
        assert box.once(timeout_s=20).code == 0
    poller = box.start()
    box.wait_for_cycles(3)
    poller.signal(signal.SIGTERM)
    assert poller.wait() == 0

    keys = box.sink.keys(ref)
    assert keys[0] == "spawn:1"
    assert sorted(keys[1:]) == ["comment:0", "comment:1", "comment:2", "comment:3", "comment:two%0Alines"]
    ignored = [event["deliveryId"] for event in box.events("dispatch.dropped")]
    assert sorted(ignored) == sorted(f"{ref}/{name}" for name in ("fifo", "link", "folder"))
