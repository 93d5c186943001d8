"""What the manager sees of the service, and what an administrator sees of it: reloads, the watchdog, the trail."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest

from support.github.fake import FakeGitHub
from support.github.faults import hang, reply
from support.http_server import FakeServer
from support.installed import REPO
from support.system_install import SystemInstall
from the_loop.eventlog import message_id

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.container import Container, User

ROOT = "/var/lib/the-loop"
SPAWN = "directory:inbox/a/spawn:1"
COMMENT = "directory:inbox/a/comment:c1"
BITES = "[Service]\nWatchdogSec=2s\n"
BROKEN = ("polling: [\n", "pollling: {}\n", "\0")


@pytest.fixture
def loop(installed: SystemInstall) -> Iterator[SystemInstall]:
    installed.clear()
    yield installed
    assert installed.journal("-t", "the-loop", "--grep=Traceback") == []


@pytest.fixture(scope="module")
def bob(container: Container) -> Iterator[User]:
    yield container.add_user("bob-the-reader", linger=False)
    container.remove_user("bob-the-reader")


@pytest.fixture
def github() -> Iterator[tuple[FakeGitHub, str]]:
    fake = FakeGitHub(time.time)
    fake.add_repo(REPO)
    with FakeServer(fake) as server:
        yield fake, server.url


def up(loop: SystemInstall) -> int:
    loop.systemctl("start")
    return loop.main_pid()


def use(loop: SystemInstall, url: str) -> None:
    section = {"provider": "github", "name": "work", "repos": [REPO], "label": "auto", "apiUrl": url}
    loop.configure(sources=[section])


# --- starting and reloading ---


def test_start_when_the_service_is_up_then_the_lock_is_held_and_a_cycle_was_made_at_once(loop: SystemInstall) -> None:
    loop.configure(polling={"intervalSeconds": 86400})
    loop.item("a")

    up(loop)

    assert not loop.is_lock_free()  # READY comes after the lock
    loop.wait_until_settled([SPAWN])
    loop.wait(lambda: "items" in loop.property("StatusText"), "what the manager is told")


def test_reload_when_the_file_is_good_then_it_is_in_force_in_the_same_process(loop: SystemInstall) -> None:
    pid = up(loop)
    loop.item("a")
    loop.wait_until_settled([SPAWN])
    loop.configure(session={"command": ["sh", "-c", "cat >/srv/sink/elsewhere"]})

    loop.systemctl("reload")
    loop.wait(lambda: loop.events("config.reloaded"), "the new configuration")
    loop.comment("a", "c1")

    loop.wait(lambda: loop.seen(loop.units.parents[2] / "srv/sink/elsewhere").exists(), "the other receiver")
    loop.wait(lambda: not loop.pending(), "its settling")
    assert loop.sink.ids() == [SPAWN]  # nothing is replayed
    assert loop.main_pid() == pid
    assert loop.is_active() == "active"


@pytest.mark.parametrize("content", BROKEN)
def test_reload_when_the_file_is_broken_then_fails_and_the_old_one_stays_in_force(
    loop: SystemInstall, content: str
) -> None:
    pid = up(loop)
    loop.write(loop.config, content, owner=0)

    done = loop.systemctl("reload", check=False)
    loop.root_does(["kill", "-HUP", str(pid)], check=True)  # who asks past the manager hears of it as well

    assert done.returncode != 0
    [rejected] = loop.wait(lambda: loop.events("config.rejected"), "the refusal")
    assert (rejected["level"], str(loop.config) in rejected["reason"]) == ("error", True)
    loop.item("a")
    loop.wait_until_settled([SPAWN])
    assert loop.main_pid() == pid
    assert loop.is_active() == "active"


# --- the watchdog ---


def test_watchdog_when_the_loop_hangs_then_it_is_killed_and_started_again_and_nothing_is_repeated(
    loop: SystemInstall,
) -> None:
    loop.add_drop_in("60-watchdog.conf", BITES)
    loop.sink.behave((SPAWN, {"gate": loop.gate("go")}))
    pid = up(loop)
    loop.item("a")
    loop.wait(lambda: loop.sink.ids() == [SPAWN], "the delivery")

    loop.root_does(["kill", "-STOP", str(pid)], check=True)

    loop.wait(lambda: loop.main_pid() not in (0, pid) and loop.is_active() == "active", "another process")
    assert int(loop.property("NRestarts")) >= 1
    loop.sink.open_gate("go")
    loop.comment("a", "c1")
    loop.wait_until_settled([SPAWN, COMMENT])
    loop.assert_once([SPAWN, COMMENT])


def test_watchdog_when_waiting_an_hour_for_a_limit_then_lets_it_wait(
    loop: SystemInstall, github: tuple[FakeGitHub, str]
) -> None:
    fake, url = github
    use(loop, url)
    limit = reply(403, {"message": "You have exceeded a secondary rate limit"}, {"Retry-After": "3600"})
    fake.fail(r"/repos/", limit, times=None)
    loop.add_drop_in("60-watchdog.conf", BITES)
    pid = up(loop)
    loop.wait(lambda: loop.events("source.waiting"), "the wait")
    asked = fake.requests

    time.sleep(4.5)  # more than twice the watchdog's time
    loop.poll("wake")
    cycles = len(loop.events("poll.cycle"))
    loop.systemctl("restart")  # nor is the limit forgotten over a restart
    loop.wait(lambda: loop.status()["pid"] not in (pid, None), "the next life")
    loop.wait(lambda: len(loop.events("poll.cycle")) > cycles, "a cycle of it")

    assert fake.requests == asked
    assert loop.property("NRestarts") == "0"
    assert loop.journal(f"UNIT={loop.service}", "--grep=Watchdog timeout") == []
    [source] = loop.status()["sources"]
    assert source["waitingUntil"] is not None


@pytest.mark.parametrize("what", ["idle", "a long delivery", "a hanging server"])
def test_watchdog_when_the_loop_is_well_then_never_bites(
    loop: SystemInstall, github: tuple[FakeGitHub, str], what: str
) -> None:
    fake, url = github
    loop.add_drop_in("60-watchdog.conf", "[Service]\nWatchdogSec=1s\n")
    loop.configure(polling={"intervalSeconds": 3600})
    if what == "a hanging server":
        use(loop, url)
        fake.fail(r"/repos/", hang(), times=None)
    loop.sink.behave((SPAWN, {"gate": loop.gate("go")}))
    loop.item("a")
    pid = up(loop)
    if what == "a long delivery":
        loop.wait(lambda: loop.sink.ids() == [SPAWN], "the delivery")

    time.sleep(2.5)

    assert (loop.main_pid(), loop.property("NRestarts")) == (pid, "0")


# --- stopping at work ---


def test_stop_when_a_listing_hangs_then_is_done_at_once_and_the_cycle_says_that_it_was_cut_short(
    loop: SystemInstall, github: tuple[FakeGitHub, str]
) -> None:
    fake, url = github
    use(loop, url)
    fake.fail(r"/repos/", hang(), times=None)
    up(loop)
    loop.wait(lambda: fake.requests > 0, "a request")
    began = time.monotonic()

    loop.systemctl("stop")

    assert time.monotonic() - began < 5
    assert loop.property("Result") == "success"
    found = loop.journal("-t", "the-loop", "THE_LOOP_EVENT=poll.cycle", "THE_LOOP_INTERRUPTED=1")
    assert len(found) == 1
    value = loop.status()
    assert (value["running"], value["sources"][0]["lastCycle"]["interrupted"]) == (False, True)


# --- the trail ---


def test_trail_when_read_by_root_and_by_the_services_user_then_is_the_same(loop: SystemInstall) -> None:
    up(loop)
    loop.item("a")
    loop.wait_until_settled([SPAWN])
    loop.systemctl("stop")

    ours = [loop.told(user) for user in (None, "the-loop")]

    assert ours[0] == ours[1]
    names = [event["event"] for event in ours[0]]
    assert [names.count(name) for name in ("poller.started", "poll.spawned", "poller.stopping")] == [1, 1, 1]


def test_trail_when_it_cannot_be_read_then_is_an_error_and_no_empty_answer(loop: SystemInstall, bob: User) -> None:
    up(loop)

    done = loop.the_loop("events", "--json", "--state-root", ROOT, user=bob.name, check=False)

    assert (done.returncode, done.stdout) == (1, "")
    assert ROOT in done.stderr


def test_trail_when_somebody_else_writes_entries_like_ours_then_they_are_not_believed(
    loop: SystemInstall, bob: User
) -> None:
    up(loop)
    loop.item("a")
    loop.wait_until_settled([SPAWN])
    made_up = json.dumps(
        {"time": "2099-01-01T00:00:00.000Z", "event": "poll.spawned", "level": "info", "ref": "forged"}
    )
    fields = f"SYSLOG_IDENTIFIER=the-loop\\nTHE_LOOP_STATE_ROOT={ROOT}\\nMESSAGE=x\\nTHE_LOOP_EVENT=poll.spawned\\n"
    for value in (made_up, "[" * 20000, '{"time": 7, "event": 7}'):
        text = fields.replace("\\n", "\n") + f"THE_LOOP_JSON={value}\n"
        loop.run(["logger", "--journald"], user=bob.name, text=text)

    found = [event["ref"] for event in loop.told() if event["event"] == "poll.spawned"]

    assert found == ["directory:inbox/a"]


def test_journal_when_an_event_is_told_then_is_one_entry_with_its_fields_and_catalog_text(loop: SystemInstall) -> None:
    pid = up(loop)
    loop.item("a")
    loop.wait_until_settled([SPAWN])

    [entry] = loop.wait(
        lambda: loop.journal("-t", "the-loop", "THE_LOOP_EVENT=poll.spawned", "THE_LOOP_REF=directory:inbox/a"),
        "the entry",
    )
    assert entry["MESSAGE_ID"] == message_id("poll.spawned")
    assert entry["THE_LOOP_STATE_ROOT"] == ROOT
    assert entry["THE_LOOP_SOURCE"] == "inbox"
    assert entry["THE_LOOP_DELIVERY_ID"] == SPAWN
    assert (entry["PRIORITY"], entry["_PID"], entry["_SYSTEMD_UNIT"]) == ("6", str(pid), loop.service)
    started = loop.journal("-t", "the-loop", "THE_LOOP_EVENT=poller.started")
    assert [f"{ROOT}/poll.pid" in one["MESSAGE"] for one in started] == [True]
    explained = loop.root_does(["journalctl", "-x", "--quiet", "-t", "the-loop", f"--since={loop.since}"]).stdout
    assert "The item was delivered to a new session" in explained


def test_journal_when_many_items_come_at_once_then_no_event_is_dropped(loop: SystemInstall) -> None:
    loop.configure(session={"command": ["true"]}, routing={"maxConcurrentDispatches": 1})
    for number in range(40):
        loop.item(f"item{number}")
    up(loop)

    loop.wait(lambda: len(loop.journal("THE_LOOP_EVENT=poll.spawned")) == 40, "all of them", 60)
    assert loop.journal("--grep=Suppressed") == []


def test_journal_when_its_daemon_is_killed_then_the_service_goes_on_and_is_heard_again(loop: SystemInstall) -> None:
    pid = up(loop)

    loop.root_does(["systemctl", "kill", "--signal=KILL", "systemd-journald.service"], check=True)
    loop.item("a")

    loop.wait_until_settled([SPAWN])
    assert loop.main_pid() == pid
    loop.wait(lambda: loop.events("poll.cycle"), "a later event")
    assert [event["event"] for event in loop.told() if event["event"] == "poll.spawned"] == ["poll.spawned"]


def test_heartbeat_when_the_service_runs_then_is_in_its_runtime_directory(loop: SystemInstall) -> None:
    up(loop)
    loop.wait(lambda: loop.status()["lastGoodCycleAt"], "a cycle")

    beat = json.loads(loop.container.path("/run/the-loop/the-loop-poll/poll-status.json").read_bytes())

    assert beat["pid"] == loop.main_pid()
    loop.systemctl("stop")
    left = json.loads(loop.container.path(f"{ROOT}/poll-status.json").read_bytes())
    assert left["sources"][0]["lastCycle"] == loop.status()["sources"][0]["lastCycle"]


def test_inbox_of_others_when_the_service_reads_it_then_their_items_are_theirs(loop: SystemInstall, bob: User) -> None:
    section = {"provider": "directory", "name": "desk", "path": "/srv/desk", "settleSeconds": 0}
    loop.configure(sources=[section], routing={"authorizedUsers": [bob.name]})
    script = "install -d -m 755 -o {0} /srv/desk/x && echo please >/srv/desk/x/item.md && chown -R {0} /srv/desk"
    loop.root_does(script.format(bob.name), check=True)

    up(loop)

    loop.wait_until_settled(["directory:desk/x/spawn:1"])
    loop.root_does("rm -r /srv/desk")
