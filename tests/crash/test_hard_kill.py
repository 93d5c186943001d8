"""Kills and stops at chosen moments: what was processed stays, what was not comes, and no budget is spent."""

from __future__ import annotations

import os
import signal
import time
from functools import partial
from typing import TYPE_CHECKING

import pytest

from support.github.fake import FakeGitHub
from support.github.faults import Fault, hang, server_error
from support.http_server import FakeServer
from support.poller import Box, Started, starttime

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.crash]

REPO = "octo/repo"


@pytest.fixture
def github() -> Iterator[FakeGitHub]:
    github = FakeGitHub(time.time)
    github.add_repo(REPO)
    with FakeServer(github):
        yield github


def watch(box: Box, github: FakeGitHub, **settings: dict[str, object]) -> None:
    """Configure the one repository as the only source."""
    source = {"provider": "github", "repos": [REPO], "label": "auto", "apiUrl": github.base_url}
    box.configure(sources=[source], routing={"authorizedUsers": ["octocat"]}, **settings)


def ref_of(number: int) -> str:
    return f"github:127.0.0.1/{REPO}#{number}"


def last_cycle(box: Box) -> dict[str, object]:
    (source,) = box.run("poll", "status", "--json").json()["sources"]
    cycle: dict[str, object] = source["lastCycle"]
    return cycle


def test_sigkill_while_item_forty_is_processed_then_those_before_are_on_disk_and_everything_arrives_once(
    box: Box,
) -> None:
    refs = [box.item(f"item-{number:02}", early="with it") for number in range(50)]
    poller = box.start(is_up=False)
    portable = box.root / "portable"
    while not portable.is_dir() or len(os.listdir(portable)) < 40:  # noqa: PTH208 (as quick as can be)
        assert poller.is_alive
    poller.kill()

    on_disk = box.ledgers()  # all of them readable
    assert len(on_disk) + 1 >= 40
    assert sorted(on_disk) == refs[: len(on_disk)], "item after item, in order, each complete before the next"
    assert all(ledger["poll"]["pending"] or ledger["poll"]["phase"] == "live" for ledger in on_disk.values())
    poller = box.start()
    box.wait(lambda: len(box.sink.ids()) >= 50 and not box.pending(), "all of them")
    box.comment("item-00", "late")
    box.wait(lambda: len(box.sink.ids()) >= 51 and not box.pending(), "a comment")
    box.assert_once({ref: ["spawn:1", *(["comment:late"] if ref == refs[0] else [])] for ref in refs})
    assert poller.stop() == 0


def has_hit(fault: Fault, count: int) -> bool:
    return fault.hits >= count


def test_sigterm_in_mid_cycle_then_interrupted_is_said_and_the_next_start_goes_on(box: Box, github: FakeGitHub) -> None:
    numbers = [github.add_issue(REPO, labels=["auto"]) for _ in range(5)]
    watch(box, github)
    fault = github.fail(rf"/issues/{numbers[2]}/comments", hang(), times=None)
    for start in range(10):
        poller = box.start()
        box.wait(partial(has_hit, fault, start + 1), "the third item to hang")
        assert poller.stop(3) == 0
        assert box.events("poll.cycle")[-1]["interrupted"] is True
    assert last_cycle(box)["interrupted"] is True
    assert "interrupted" in box.run("poll", "status").out
    assert set(box.ledgers()) == {ref_of(number) for number in numbers[:2]}
    assert not box.events("session.closed")

    github.faults.clear()
    assert box.once().code == 0

    assert last_cycle(box)["interrupted"] is False
    box.assert_once({ref_of(number): ["spawn:1"] for number in numbers})


def test_listing_when_cut_short_then_nobody_on_the_missing_page_is_closed(box: Box, github: FakeGitHub) -> None:
    for _ in range(100):
        github.add_issue(REPO, author="stranger", labels=["auto"])
    last = github.add_issue(REPO, labels=["auto"])
    watch(box, github)
    for _ in range(3):  # at most 50 items are met for the first time in one cycle
        box.once()
    assert box.sink.ids() == [f"{ref_of(last)}/spawn:1"]
    github.add_issue(REPO, author="stranger", labels=["auto"])  # so that the pages are no longer known by validator

    github.fail(r"/issues\?.*[?&]page=2", server_error(), times=None)
    assert box.once().code == 1
    github.faults.clear()
    fault = github.fail(r"/issues\?.*[?&]page=2", hang(), times=None)
    poller = box.start()
    box.wait(lambda: fault.hits, "the second page to hang")
    assert poller.stop(3) == 0
    github.faults.clear()
    comment = github.comment(REPO, last)
    assert box.once().code == 0

    box.assert_once({ref_of(last): ["spawn:1", f"comment:{comment}"]})
    assert not box.events("session.closed")


def _sigterm(_box: Box, poller: Started) -> None:
    assert poller.stop() == 0


def _sigkill(_box: Box, poller: Started) -> None:
    poller.kill()


def _stop_command(box: Box, poller: Started) -> None:
    assert box.run("poll", "stop").code == 0
    assert not poller.is_alive


@pytest.mark.parametrize("end", [_sigterm, _sigkill, _stop_command])
def test_ten_ends_during_one_slow_delivery_then_delivered_once_with_a_whole_budget(
    box: Box, end: Callable[[Box, Started], None]
) -> None:
    box.configure(polling={"maxRetries": 1})
    ref, other = box.item("a"), box.item("b")
    assert box.once().code == 0
    box.sink.behave(("*/comment:slow", {"gate": box.sink.gate("open")}))
    box.comment("a", "slow")
    box.comment("a", "then")
    for _ in range(4 if end is _stop_command else 10):  # that one watches for a second whether the lock stays free
        poller = box.start()
        box.wait(lambda: len(box.sink.runs()) == 3, "the slow delivery")
        end(box, poller)
    assert box.attempts() == {}
    box.comment("b", "quick")
    box.sink.open_gate("open")
    box.start()
    box.wait(lambda: len(box.sink.ids()) >= 5 and not box.pending(), "the rest")

    box.assert_once({ref: ["spawn:1", "comment:slow", "comment:then"], other: ["spawn:1", "comment:quick"]})
    assert not box.events("poll.comment_failed", "poll.comment_held")


def test_ten_ends_before_a_delivery_has_begun_then_delivered_once_with_a_whole_budget(box: Box) -> None:
    box.configure(polling={"maxRetries": 1}, routing={"maxConcurrentDispatches": 1})
    box.sink.behave(("*/a/*", {"gate": box.sink.gate("open")}))
    first, second = box.item("a"), box.item("b")
    for number in range(10):
        poller = box.start()
        box.wait(lambda: len(box.ledgers()) == 2 and box.sink.runs(), "both to be accepted")
        if number % 2:
            poller.kill()
        else:
            assert poller.stop() == 0
    box.sink.open_gate("open")
    assert box.once().code == 0

    box.assert_once({first: ["spawn:1"], second: ["spawn:1"]})


def test_refusal_when_restarted_in_between_then_one_attempt_is_counted_and_the_second_succeeds(box: Box) -> None:
    ref = box.item("a")
    box.sink.behave(("*", {"fail": 1}))
    assert box.once().code == 0, "a refusal is in the trail, and no fault of the run"
    assert box.attempts() == {f"{ref}/spawn": 1}
    assert [(event["attempt"], event["willRetry"]) for event in box.events("poll.spawn_failed")] == [(1, True)]

    assert box.once().code == 0

    assert [(got.key, got.attempt, got.redelivery) for got in box.sink.got()] == [
        ("spawn:1", 1, False),
        ("spawn:1", 2, False),
    ]
    assert box.attempts() == {}


def _kill_command(box: Box, _poller: Started) -> None:
    os.kill(box.sink.runs()[-1].pid, signal.SIGKILL)


def _kill_keeper(box: Box, _poller: Started) -> None:
    os.kill(box.keeper() or 0, signal.SIGKILL)


def _end_keeper(box: Box, _poller: Started) -> None:
    os.kill(box.keeper() or 0, signal.SIGTERM)


def _kill_all(box: Box, poller: Started) -> None:
    keeper = box.keeper() or 0
    poller.kill()
    os.kill(keeper, signal.SIGKILL)


@pytest.mark.parametrize("cut_off", [_kill_command, _kill_keeper, _end_keeper, _kill_all])
def test_delivery_when_cut_off_then_it_comes_a_second_time_marked_and_uncounted(
    box: Box, cut_off: Callable[[Box, Started], None]
) -> None:
    box.configure(polling={"maxRetries": 2})
    ref = box.item("a")
    assert box.once().code == 0
    box.comment("a", "c1")
    box.comment("a", "c2")
    box.sink.behave(("*/comment:c1", {"gate": box.sink.gate("open")}))
    poller = box.start()
    box.wait(lambda: len(box.sink.runs()) == 2 and box.keeper(), "the delivery")
    first = box.sink.runs()[-1].pid
    box.sink.behave()

    cut_off(box, poller)

    if not poller.is_alive:
        poller = box.start()
    box.wait(lambda: len(box.sink.ids()) >= 4 and not box.pending(), "the rest")
    assert poller.stop() == 0
    assert [(got.key, got.attempt, got.redelivery) for got in box.sink.got() if got.ref == ref] == [
        ("spawn:1", 1, False),
        ("comment:c1", 1, False),
        ("comment:c1", 1, True),
        ("comment:c2", 1, False),
    ]
    assert starttime(first) is None, "the cut-off command runs on beside its second life"
    assert len(box.events("dispatch.uncertain")) == 1


def test_delivery_when_it_kills_its_receiver_each_time_then_held_and_the_operator_decides(box: Box) -> None:
    ref = box.item("a")
    assert box.once().code == 0
    box.comment("a", "bad")
    box.comment("a", "good")
    box.sink.behave(("*/comment:bad", {"die": signal.SIGKILL}))
    poller = box.start()
    box.wait(lambda: box.events("poll.comment_held"), "the third time")
    box.wait(lambda: box.run("poll", "status", "--json").json()["held"] == 1, "the status to show it")
    assert poller.stop() == 0
    assert [got.redelivery for got in box.sink.got() if got.key == "comment:bad"] == [False, True, True]
    assert box.once().code == 0
    assert len(box.sink.ids()) == 4, "a held event is not offered again, and holds back those behind it"

    box.sink.behave()
    assert box.run("ledger", "retry", ref).code == 0
    assert box.once().code == 0

    assert box.sink.keys(ref) == ["spawn:1", *["comment:bad"] * 4, "comment:good"]
    assert box.pending() == {}
    assert box.attempts() == {}


def test_delivery_when_cut_off_under_hold_then_held_at_once_until_settled(box: Box) -> None:
    box.configure(session={"onUncertain": "hold"})
    ref = box.item("a")
    assert box.once().code == 0
    box.comment("a", "c1")
    box.comment("a", "c2")
    box.sink.behave(("*/comment:c1", {"die": signal.SIGTERM}))
    box.once()
    assert len(box.events("poll.comment_held")) == 1

    assert box.run("ledger", "settle", ref, "comment:c1").code == 0
    assert box.once().code == 0

    box.assert_once({ref: ["spawn:1", "comment:c1", "comment:c2"]})
    assert box.pending() == {}


def test_once_when_its_receiver_takes_long_then_it_waits_and_if_killed_the_next_run_picks_up(box: Box) -> None:
    ref = box.item("a")
    box.sink.behave(("*", {"gate": box.sink.gate("open")}))
    run = box.start("--once")
    box.wait(box.sink.runs, "the receiver")
    box.wait(box.keeper, "its mark")
    run.kill()
    again = box.start("--once")
    box.wait(lambda: box.events("dispatch.adopted"), "the adoption")
    assert again.is_alive
    box.sink.open_gate("open")

    assert again.wait() == 0

    box.assert_once({ref: ["spawn:1"]})
    assert box.pending() == {}


def test_restarts_when_everything_is_settled_then_nothing_is_delivered_again(box: Box, github: FakeGitHub) -> None:
    numbers = [github.add_issue(REPO, labels=["auto"]) for _ in range(20)]
    for number in numbers:
        for _ in range(3):
            github.comment(REPO, number)
    watch(box, github)
    assert box.once().code == 0
    comments = {number: github.comment(REPO, number) for number in numbers[:5]}
    github.close(REPO, numbers[-1])
    assert box.once().code == 0
    box.once()
    calls = box.sink.ids()
    assert len(calls) == 20 + 5 + 1
    for number in range(5):
        poller = box.start()
        box.wait_for_cycles()
        _sigkill(box, poller) if number % 2 else _sigterm(box, poller)
        for path in (box.root / "local" / "sources").iterdir() if number == 2 else ():
            path.unlink()  # as after a move of portable/ to another machine
        assert box.once().code == 0

    assert box.sink.ids() == calls
    assert {ref_of(number) for number in comments} < set(box.sink.entries())
