"""What the journal has of a poller in the user's manager, and what `the-loop events` reads back from it."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from support.container import COMMAND
from support.github.fake import FakeGitHub
from support.github.faults import hang
from support.http_server import FakeServer
from support.installed import REPO, Installed, github_source

if TYPE_CHECKING:
    from support.container import Container

SHIPPED = Path(__file__).parents[2] / "systemd"
CYCLE = "THE_LOOP_EVENT=poll.cycle"
HOSTILE = "evil\n<0>spoofed\x1b[31m\x07"
ECHO = "import json, sys; print(json.load(sys.stdin)['body'])"


def events(loop: Installed, *options: str) -> list[dict[str, Any]]:
    done = loop.the_loop(*loop.on_root("events", "--json", *options))
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_journal_when_a_cycle_is_cut_short_then_a_match_shows_that_one_and_only_that(container: Container) -> None:
    github = FakeGitHub(time.time)
    github.add_repo(REPO)
    with FakeServer(github) as server, Installed(container, sources=[github_source(server.url)]) as loop:
        loop.systemctl("start")
        loop.wait(lambda: loop.status()["lastGoodCycleAt"], "a whole cycle")
        fault = github.fail(r"GET /repos/octo/repo/issues\?", hang())
        loop.wait(lambda: fault.hits, "a listing that hangs")

        loop.systemctl("restart")

        (entry,) = loop.journal(CYCLE, "THE_LOOP_INTERRUPTED=1")
        loop.poll("wake")
        loop.wait(
            lambda: loop.journal(CYCLE, "THE_LOOP_INTERRUPTED=0"), "a cycle after the restart, told as it was woken"
        )
        assert loop.journal(CYCLE, "THE_LOOP_INTERRUPTED=1") == [entry]
        assert entry["MESSAGE"].endswith("interrupted")
        assert entry["THE_LOOP_STATE_ROOT"] == str(loop.root)
        assert entry["_SYSTEMD_USER_UNIT"] == loop.service
        assert [event["event"] for event in events(loop) if event.get("interrupted")] == ["poll.cycle"]


def test_journal_when_the_catalog_is_installed_then_each_event_has_its_text(container: Container) -> None:
    catalog = (SHIPPED / "the-loop.catalog").read_text()
    with Installed(container) as loop:
        place = "/usr/local/lib/systemd/catalog"
        container.run(f"mkdir -p {place} && cat >{place}/the-loop.catalog && journalctl --update-catalog", text=catalog)
        loop.item("a")
        loop.systemctl("start")
        loop.wait_until_settled(["directory:inbox/a/spawn:1"])

        shown = loop.run(["journalctl", "--user", "--catalog", "-t", "the-loop"]).stdout

        entries = loop.journal()
        assert {entry["THE_LOOP_EVENT"] for entry in entries} >= {"poller.started", "poll.spawned"}
        assert shown.count("░░ Defined-By: the-loop") == len(entries)
        assert f"░░ A poller took the lock of the state root {loop.root} and is running." in shown
        assert "░░ Subject: poll.spawned: directory:inbox/a" in shown


def test_journal_when_names_and_titles_are_hostile_then_each_event_is_one_harmless_entry_of_our_level(
    container: Container,
) -> None:
    github = FakeGitHub(time.time)
    github.add_repo(REPO)
    people = {"authorizedUsers": ["octocat"]}
    with FakeServer(github) as server:
        github_section = github_source(server.url, **people)
        inbox = {"provider": "directory", "path": "inbox", "settleSeconds": 0}
        with Installed(container, sources=[github_section, {**inbox, "authorizedUsers": []}]) as loop:
            loop.configure(polling={"sources": [github_section, {**inbox, "authorizedUsers": [loop.user.name]}]})
            github.add_issue(REPO, labels=["auto"], title="x" * 60_000, body="<0>spoofed\n" * 5000)
            github.add_issue(REPO, labels=["auto"], title=HOSTILE, body=HOSTILE)
            loop.item(HOSTILE)
            loop.comment(HOSTILE, f"{HOSTILE}.md", HOSTILE)
            loop.systemctl("start")
            loop.wait(lambda: len(loop.sink.ids()) >= 3 and not loop.pending(), "all of them")
            loop.comment(HOSTILE, f"more {HOSTILE}.md", HOSTILE)
            loop.wait(lambda: len(loop.sink.ids()) >= 4 and not loop.pending(), "the comment")

            everything = container.run(["journalctl", "--output=json", "--all", f"_UID={loop.user.uid}"]).stdout
            entries = [json.loads(line) for line in everything.splitlines()]
            assert [entry["MESSAGE"] for entry in entries if int(entry["PRIORITY"]) < 3] == []
            ours = [entry for entry in entries if entry.get("SYSLOG_IDENTIFIER") == "the-loop"]
            assert {entry["PRIORITY"] for entry in ours} <= {"3", "4", "5", "6"}
            assert all("THE_LOOP_EVENT" in entry for entry in ours)
            for entry in ours:  # a value with control characters would come as a list of bytes
                assert all(isinstance(value, str) and value.isprintable() for value in entry.values()), entry
            spawned = [entry for entry in ours if entry["THE_LOOP_EVENT"] == "poll.spawned"]
            assert len(spawned) == len({entry["THE_LOOP_REF"] for entry in spawned}) == 3
            forwarded = [entry for entry in ours if entry["THE_LOOP_EVENT"] == "poll.comment_forwarded"]
            assert len(forwarded) == 1


def test_journal_when_a_receiver_prints_what_it_was_given_then_no_line_of_it_is_a_log_level(
    container: Container,
) -> None:
    with Installed(container, session={"command": [sys.executable, "-c", ECHO]}) as loop:
        loop.item("a", "<0>spoofed\n<1>again\n")
        loop.systemctl("start")
        loop.wait(lambda: loop.journal("THE_LOOP_EVENT=poll.spawned"), "the delivery")

        done = container.run(["journalctl", "--output=json", f"_UID={loop.user.uid}"])

        entries = [json.loads(line) for line in done.stdout.splitlines()]
        printed = [entry for entry in entries if "spoofed" in str(entry["MESSAGE"])]
        assert [(entry["MESSAGE"], entry["PRIORITY"]) for entry in printed] == [("<0>spoofed", "6")]


def test_events_when_read_from_the_journal_then_they_are_the_entries_in_order_over_every_life(
    container: Container,
) -> None:
    with Installed(container) as loop:
        loop.item("a")
        loop.systemctl("start")
        loop.wait_until_settled(["directory:inbox/a/spawn:1"])
        loop.systemctl("stop")
        loop.systemctl("start")
        loop.systemctl("stop")

        found = events(loop)

        assert [event["event"] for event in found] == [entry["THE_LOOP_EVENT"] for entry in loop.journal()]
        assert [event["time"] for event in found] == sorted(event["time"] for event in found)
        assert [event["event"] for event in found].count("poller.started") == 2
        (spawned,) = events(loop, "--source", "session")
        assert (spawned["event"], spawned["ref"]) == ("session.started", "directory:inbox/a")
        second = [event for event in found if event["event"] == "poller.started"][1]["time"]
        since = events(loop, "--since", second)
        assert since == [event for event in found if event["time"] >= second]


def test_events_when_followed_then_what_comes_is_shown_as_it_comes(container: Container) -> None:
    with Installed(container) as loop:
        loop.systemctl("start")
        said = loop.home / "followed"
        follow = f"{loop.command_line('events', '--json', '--follow')} >{said}"
        with container.background(follow, user=loop.user.name):
            loop.wait(lambda: loop.seen(said).exists() and "poller.started" in loop.seen(said).read_text(), "the past")
            loop.item("a")

            loop.wait(lambda: "poll.spawned" in loop.seen(said).read_text(), "an event that comes")

            loop.systemctl("restart")
            loop.wait(lambda: loop.seen(said).read_text().count("poller.started") == 2, "the next life")
            lines = loop.seen(said).read_text().splitlines()
        assert len(lines) == len(set(lines))
        assert all(json.loads(line)["event"] for line in lines)


def test_events_when_a_root_never_had_a_poller_then_that_is_no_empty_answer(container: Container) -> None:
    with Installed(container) as loop:
        done = loop.run([str(COMMAND), "events", "--state-root", str(loop.home / "nowhere")], check=False)

        assert (done.returncode, done.stdout) == (1, "")
        assert str(loop.home / "nowhere") in done.stderr


def test_status_when_the_unit_runs_then_it_is_named_and_the_heartbeat_is_the_runtime_directory_s(
    container: Container,
) -> None:
    with Installed(container) as loop:
        loop.item("a")
        loop.systemctl("start")
        loop.wait_until_settled(["directory:inbox/a/spawn:1"])

        status = loop.status()

        unit = {"name": loop.service, "scope": "user", "activeState": "active", "subState": "running"}
        assert status["unit"] == unit
        assert (status["running"], status["pid"]) == (True, loop.main_pid())
        assert status["sources"][0]["lastCycle"]["interrupted"] is False
        beat = loop.seen(Path(f"/run/user/{loop.user.uid}/the-loop/the-loop-poll/poll-status.json"))
        assert json.loads(beat.read_text())["pid"] == loop.main_pid()
        loop.systemctl("stop")
        stopped = loop.status()
        assert (stopped["running"], stopped["unit"]["activeState"]) == (False, "inactive")
        assert stopped["sources"][0]["lastCycle"]
