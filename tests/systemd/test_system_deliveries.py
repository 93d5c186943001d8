"""The system service at work: where its deliveries run, and that nothing that happens to it repeats or loses one."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from support.github.fake import FakeGitHub
from support.http_server import FakeServer
from support.installed import REPO, ref
from support.system_install import CREDENTIAL, SystemInstall

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


SPAWN = "directory:inbox/a/spawn:1"
COMMENT = "directory:inbox/a/comment:c1"
SECRET = "ghp-secret-of-the-system"


@pytest.fixture
def loop(installed: SystemInstall) -> Iterator[SystemInstall]:
    installed.clear()
    yield installed
    assert installed.journal("-t", "the-loop", "--grep=Traceback") == []


def begin(loop: SystemInstall, delivery: str = SPAWN) -> int:
    """Start the service and an item, wait until its delivery runs and hangs at the gate `go`; the receiver's pid."""
    loop.sink.behave((delivery, {"gate": loop.gate("go")}))
    loop.systemctl("start")
    loop.item("a")
    loop.wait(lambda: loop.sink.ids() == [delivery], "the delivery")
    return loop.sink.runs()[0].pid


def finish(loop: SystemInstall) -> None:
    """Let it go on, with something new behind it; all of it arrived once."""
    loop.sink.open_gate("go")
    loop.comment("a", "c1")
    loop.wait_until_settled([SPAWN, COMMENT])
    loop.assert_once([SPAWN, COMMENT])


def test_delivery_when_made_then_runs_in_a_unit_of_the_services_user(loop: SystemInstall) -> None:
    pid = begin(loop)

    place = loop.control_group(pid)

    assert f"/user@{loop.user.uid}.service/theloop.slice/theloop-" in place
    status = loop.container.path(f"/proc/{pid}/status").read_text()
    assert f"Uid:\t{loop.user.uid}\t" in status
    poller = loop.control_group(loop.main_pid())
    assert poller == "/system.slice/the-loop-poll.service"
    assert [unit for unit in loop.deliveries() if unit.startswith("theloop-")] != []
    finish(loop)
    loop.wait(lambda: loop.deliveries() == [], "the end of its units")


def stop_and_start(loop: SystemInstall) -> None:
    loop.systemctl("stop")
    assert loop.is_active() == "inactive"
    assert loop.is_lock_free()
    loop.systemctl("start")


def restart(loop: SystemInstall) -> None:
    loop.systemctl("restart")


def kill(loop: SystemInstall) -> None:
    before = loop.main_pid()
    loop.root_does(["systemctl", "kill", "--signal=KILL", loop.service], check=True)
    loop.wait(lambda: loop.is_active() == "active" and loop.main_pid() not in (0, before), "the automatic restart")


def poll_restart(loop: SystemInstall) -> None:
    assert loop.poll("restart").returncode == 0


def poll_stop(loop: SystemInstall) -> None:
    assert loop.poll("stop").returncode == 0
    loop.systemctl("start")


@pytest.mark.parametrize("cut", [stop_and_start, restart, kill, poll_restart, poll_stop])
def test_delivery_when_the_service_is_cut_off_then_arrives_once(
    loop: SystemInstall, cut: Callable[[SystemInstall], None]
) -> None:
    pid = begin(loop)

    cut(loop)
    cut(loop)

    assert loop.container.path(f"/proc/{pid}").exists()
    finish(loop)
    assert loop.failed() == []


def test_delivery_when_its_outcome_came_while_the_service_was_down_then_is_picked_up(loop: SystemInstall) -> None:
    begin(loop)
    loop.systemctl("stop")
    loop.sink.open_gate("go")
    loop.wait(lambda: loop.sink.runs()[0].end is not None, "its end")

    loop.systemctl("start")

    loop.wait(lambda: not loop.pending(), "its settling")
    loop.assert_once([SPAWN])


def test_delivery_when_the_users_manager_is_restarted_then_is_uncertain_and_the_service_goes_on(
    loop: SystemInstall,
) -> None:
    begin(loop)
    loop.comment("a", "c1")
    before = loop.main_pid()

    loop.sink.open_gate("go")  # for the second offer
    loop.sink.behave()
    loop.systemctl("restart", f"user@{loop.user.uid}.service")

    loop.wait_until_settled([SPAWN, COMMENT])
    assert loop.main_pid() == before
    spawns = [got for got in loop.sink.got() if got.delivery_id == SPAWN]
    assert [got.redelivery for got in spawns] in ([False], [False, True])  # it may have ended in the last moment
    assert [got.attempt for got in loop.sink.got()] == [1] * len(loop.sink.got())
    assert [got.delivery_id for got in loop.sink.got()].count(COMMENT) == 1
    assert loop.attempts() == {}


def test_delivery_when_the_users_manager_is_away_then_waits_for_it_and_runs_in_a_unit(loop: SystemInstall) -> None:
    loop.systemctl("start")
    loop.wait_until_up()
    manager = f"user@{loop.user.uid}.service"
    loop.root_does(f"systemctl mask --runtime {manager} && systemctl stop {manager}", check=True)
    loop.item("a")
    try:
        loop.wait(lambda: loop.events("dispatch.paused"), "the pause")
        assert loop.sink.ids() == []
    finally:
        loop.root_does(f"systemctl unmask --runtime {manager} && systemctl start {manager}", check=True)

    loop.sink.behave((SPAWN, {"gate": loop.gate("go")}))
    loop.poll("wake")

    loop.wait(lambda: loop.sink.ids() == [SPAWN], "the delivery", 40)
    assert "theloop.slice" in loop.control_group(loop.sink.runs()[0].pid)
    finish(loop)


@pytest.mark.parametrize("way", ["stop", "kill --signal=KILL"])
def test_manager_of_the_user_when_somebody_ends_it_then_is_back_and_deliveries_go_on(
    loop: SystemInstall, way: str
) -> None:
    loop.systemctl("start")
    loop.wait_until_up()
    before = loop.main_pid()

    loop.root_does(f"systemctl {way} user@{loop.user.uid}.service", check=True)
    loop.item("a")

    loop.wait_until_settled([SPAWN])
    loop.assert_once([SPAWN])
    assert loop.main_pid() == before


@pytest.mark.parametrize("way", ["power cut", "halt"])
def test_service_when_enabled_and_the_machine_boots_then_runs_and_delivers(loop: SystemInstall, way: str) -> None:
    loop.systemctl("enable")
    loop.systemctl("start")
    loop.item("a")
    loop.wait_until_settled([SPAWN])

    loop.container.down() if way == "power cut" else loop.container.halt()
    loop.container.up()

    loop.wait_until_up()
    loop.comment("a", "c1")
    loop.wait_until_settled([SPAWN, COMMENT])
    loop.assert_once([SPAWN, COMMENT])
    assert loop.failed() == []


def test_command_when_it_has_dollars_percents_and_quotes_then_arrives_as_written(loop: SystemInstall) -> None:
    words = ["$HOME", "${X}", "$$", "%h", "%%", "a b", '"q"', "'s'", "back\\slash", "-x", "--", "ünï", "", "tab\there"]
    script = '{ printf "[%s]\\n" "$@"; } > /srv/sink/words'
    loop.configure(session={"command": ["sh", "-c", script, "sh", *words]})
    loop.systemctl("start")
    loop.item("a")

    loop.wait(lambda: loop.seen(loop.root).joinpath("portable").exists() and not loop.pending(), "the delivery")
    loop.wait(lambda: loop.seen(loop.units.parents[2] / "srv/sink/words").exists(), "what it wrote")
    assert loop.container.path("/srv/sink/words").read_text().splitlines() == [f"[{word}]" for word in words]


# --- with a credential ---


@pytest.fixture
def github() -> Iterator[tuple[FakeGitHub, str]]:
    fake = FakeGitHub(time.time, tokens={SECRET: "octocat"})
    fake.add_repo(REPO)
    with FakeServer(fake) as server:
        yield fake, server.url


def use(loop: SystemInstall, url: str) -> None:
    section = {"provider": "github", "name": "work", "repos": [REPO], "label": "auto", "apiUrl": url}
    loop.configure(sources=[{**section, "credential": CREDENTIAL}])
    loop.add_drop_in("60-credentials.conf", f"[Service]\nLoadCredential={CREDENTIAL}:/etc/the-loop/{CREDENTIAL}\n")


def test_credential_when_loaded_by_the_manager_then_is_used_and_shown_nowhere(
    loop: SystemInstall, github: tuple[FakeGitHub, str]
) -> None:
    fake, url = github
    use(loop, url)
    loop.write(loop.config.parent / CREDENTIAL, f"{SECRET}\n", 0o600, owner=0)
    number = fake.add_issue(REPO, labels=["auto"])
    delivery = ref(number, "spawn:1")
    loop.sink.behave(("*", {"env": True, "gate": loop.gate("go")}))

    loop.systemctl("start")
    loop.wait(lambda: loop.sink.ids() == [delivery], "the delivery")

    shown = "grep -rlas {} /proc/[0-9]*/environ /proc/[0-9]*/cmdline /var/lib/the-loop /srv/sink /run/the-loop || true"
    places = loop.root_does(shown.format(f"{SECRET[:-1]}[{SECRET[-1]}]")).stdout.split()
    assert places == []
    assert SECRET not in loop.root_does(["journalctl", "--all", "--output=export"]).stdout
    loop.sink.open_gate("go")
    loop.wait_until_settled([delivery])
    loop.assert_once([delivery])


def test_credential_when_missing_then_the_service_fails_once_and_nothing_storms(
    loop: SystemInstall, github: tuple[FakeGitHub, str]
) -> None:
    fake, url = github
    use(loop, url)

    loop.systemctl("start", check=False)
    loop.wait(lambda: loop.is_active() == "failed", "the failure")
    for _ in range(20):
        loop.wake()

    assert loop.property("ExecMainStatus") == "243"
    assert loop.property("NRestarts") == "0"
    assert loop.property("ActiveState", loop.socket) == "inactive"
    assert loop.property("Result", loop.socket) == "success"
    assert fake.requests == 0
    assert loop.poll("stop").returncode == 3
    loop.write(loop.config.parent / CREDENTIAL, SECRET, 0o600, owner=0)
    loop.systemctl("start")
    loop.wait(lambda: fake.points > 0, "its use")


def test_credential_when_it_cannot_be_read_then_the_source_says_so_and_spends_nothing(
    loop: SystemInstall, github: tuple[FakeGitHub, str]
) -> None:
    fake, url = github
    use(loop, url)
    loop.write(loop.config.parent / CREDENTIAL, "two\nlines\n", 0o600, owner=0)
    fake.add_issue(REPO, labels=["auto"])

    loop.systemctl("start")

    said = loop.wait(lambda: loop.events("source.failed"), "the failure")
    assert CREDENTIAL in said[0]["reason"]
    assert "two" not in said[0]["reason"]
    assert fake.requests == 0
    assert loop.is_active() == "active"
    assert loop.status()["lastGoodCycleAt"] is None
