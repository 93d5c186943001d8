"""Whatever systemd, an operator or the power does to the poller, and whenever: each event arrives exactly once.

A delivery that is cut off together with the machine is the one exception: it begins a second time, and says so.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from support.github.fake import FakeGitHub
from support.github.faults import hang
from support.http_server import FakeServer
from support.installed import REPO, Installed, github_source, ref

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from support.container import Container

CUTS = ("power cut", "halt", "restart of the manager")  # these end deliveries as well


@contextmanager
def working(container: Container) -> Iterator[tuple[Installed, FakeGitHub]]:
    """A poller that watches a repository and comes up with the machine; two of its deliveries may run at once."""
    github = FakeGitHub(time.time)
    github.add_repo(REPO)
    with FakeServer(github) as server:
        sources = [github_source(server.url)]
        with Installed(container, sources=sources, routing={"maxConcurrentDispatches": 2}) as loop:
            loop.add_drop_in("60-watchdog.conf", "[Service]\nWatchdogSec=2\n")
            loop.run(["systemctl", "--user", "enable", "--now", "--quiet", "--", loop.service])
            yield loop, github


def stop_and_start(loop: Installed) -> None:
    loop.systemctl("stop")
    assert loop.is_active() == "inactive"
    assert loop.is_lock_free()
    loop.systemctl("start")


def restart(loop: Installed) -> None:
    loop.systemctl("restart")


def crash(loop: Installed) -> None:
    with _another_process(loop):
        loop.container.run(["kill", "-SEGV", str(loop.main_pid())])


def kill(loop: Installed) -> None:
    with _another_process(loop):
        loop.run(["systemctl", "--user", "kill", "--signal=KILL", "--", loop.service])


def power_cut(loop: Installed) -> None:
    loop.container.down()
    _boot(loop)


def halt(loop: Installed) -> None:
    loop.container.halt()
    _boot(loop)


def restart_manager(loop: Installed) -> None:
    loop.container.run(["systemctl", "restart", f"user@{loop.user.uid}.service"])
    loop.container.wait_for_manager(loop.user.name)
    loop.wait(lambda: loop.is_active() == "active", "the start with the manager")


def hang_up(loop: Installed) -> None:
    """The poller stands still: the watchdog ends it, `Restart=` brings it back."""
    with _another_process(loop):
        loop.container.run(["kill", "-STOP", str(loop.main_pid())])


@contextmanager
def _another_process(loop: Installed) -> Iterator[None]:
    """`Restart=` brings it back under another pid."""
    before = loop.main_pid()
    yield
    loop.wait(lambda: loop.is_active() == "active" and loop.main_pid() not in (0, before), "the automatic restart")


def _boot(loop: Installed) -> None:
    loop.container.up()
    loop.container.wait_for_manager(loop.user.name)
    loop.wait(lambda: loop.is_active() == "active", "the start at boot")


HITS: dict[str, Callable[[Installed], None]] = {
    "stop and start": stop_and_start,
    "restart": restart,
    "crash": crash,
    "kill": kill,
    "watchdog": hang_up,
    "power cut": power_cut,
    "halt": halt,
    "restart of the manager": restart_manager,
}


@pytest.mark.parametrize("hit", ["stop and start", "restart", "crash", "kill", "power cut"])
def test_events_when_hit_in_mid_listing_then_each_arrives_once(container: Container, hit: str) -> None:
    with working(container) as (loop, github):
        github.add_issue(REPO, labels=["auto"])
        loop.wait_until_settled([ref(1, "spawn:1")])
        fault = github.fail(r"GET /repos/octo/repo/issues\?", hang())
        comment = github.comment(REPO, 1)
        github.add_issue(REPO, labels=["auto"])
        loop.wait(lambda: fault.hits, "a listing that hangs")

        HITS[hit](loop)

        expected = [ref(1, "spawn:1"), ref(1, f"comment:{comment}"), ref(2, "spawn:1")]
        loop.wait_until_settled(expected)
        loop.assert_once(expected)


@pytest.mark.parametrize("hit", ["stop and start", "restart", "crash", "kill", "power cut"])
def test_events_when_hit_in_mid_cycle_then_each_arrives_once(container: Container, hit: str) -> None:
    with working(container) as (loop, github):
        fault = github.fail(r"GET /repos/octo/repo/issues/3/comments", hang())
        for _ in range(4):
            github.add_issue(REPO, labels=["auto"])
        loop.wait(lambda: fault.hits, "an item whose thread hangs")
        loop.wait_until_settled([ref(1, "spawn:1"), ref(2, "spawn:1")])

        HITS[hit](loop)

        expected = [ref(number, "spawn:1") for number in range(1, 5)]
        loop.wait_until_settled(expected)
        loop.assert_once(expected)


@pytest.mark.parametrize("hit", HITS)
def test_deliveries_when_hit_in_their_middle_then_only_a_dead_machine_repeats_them(
    container: Container, hit: str
) -> None:
    with working(container) as (loop, github):
        github.add_issue(REPO, labels=["auto"])
        loop.wait_until_settled([ref(1, "spawn:1")])
        running = [ref(2, "spawn:1"), ref(3, "spawn:1")]
        loop.sink.behave(*((id_, {"gate": loop.gate("gate")}) for id_ in running))
        for _ in range(3):  # the third finds no slot and does not begin
            github.add_issue(REPO, labels=["auto"])
        loop.wait(lambda: loop.pending().keys() >= {*running, ref(4, "spawn:1")}, "three events that were taken up")
        loop.wait(lambda: set(loop.sink.ids()) >= set(running), "two deliveries that run")
        units = loop.deliveries()

        HITS[hit](loop)

        if hit not in CUTS:
            assert loop.deliveries() == units
            assert len(units) == 2
        comment = github.comment(REPO, 2)
        loop.sink.open_gate("gate")
        once = [ref(1, "spawn:1"), ref(4, "spawn:1"), ref(2, f"comment:{comment}")]
        loop.wait_until_settled([*once, *running])
        if hit not in CUTS:
            loop.assert_once([*once, *running])
            return
        assert sorted(loop.sink.ids()) == sorted([*once, *running, *running])
        again = [(got.delivery_id, got.attempt) for got in loop.sink.got() if got.redelivery]
        assert sorted(again) == [(id_, 1) for id_ in running]
        assert loop.attempts() == {}


def test_stop_when_a_delivery_runs_then_it_takes_less_than_a_second_and_leaves_it_alone(container: Container) -> None:
    with working(container) as (loop, github):
        loop.sink.behave(("*", {"gate": loop.gate("gate")}))
        github.add_issue(REPO, labels=["auto"])
        loop.wait(loop.sink.ids, "a delivery that runs")

        loop.systemctl("stop")

        began, ended = (int(loop.property(f"{name}TimestampMonotonic")) for name in ("ActiveExit", "InactiveEnter"))
        assert (ended - began) / 1e6 < 1
        assert loop.property("Result") == "success"
        (unit,) = loop.deliveries()
        assert loop.property("ActiveState", unit) == "active"
        loop.sink.open_gate("gate")
        loop.wait(lambda: not loop.deliveries(), "the end of the delivery, with nobody there")
        loop.systemctl("start")
        loop.wait_until_settled([ref(1, "spawn:1")])
        loop.assert_once([ref(1, "spawn:1")])


def test_deliveries_when_uncertain_ones_are_to_be_held_then_a_power_cut_repeats_none(container: Container) -> None:
    with Installed(container, session={"onUncertain": "hold"}) as loop:
        loop.sink.behave(("*/spawn:1", {"gate": loop.gate("gate")}))
        loop.item("a")
        loop.run(["systemctl", "--user", "enable", "--now", "--quiet", "--", loop.service])
        loop.wait(loop.sink.ids, "a delivery that runs")

        power_cut(loop)

        loop.wait(lambda: loop.status()["uncertain"] or loop.status()["held"], "an event that is held")
        loop.item("b")
        loop.wait(lambda: "directory:inbox/b/spawn:1" in loop.sink.ids(), "another item's event")
        assert loop.sink.ids().count("directory:inbox/a/spawn:1") == 1
        loop.sink.open_gate("gate")
        assert loop.the_loop(*loop.on_root("ledger", "retry", "directory:inbox/a"), check=False).returncode in (0, 75)
