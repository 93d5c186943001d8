"""The record of one item: what may become of what."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from support import factories as make
from the_loop.core.ledger import (
    PHASES,
    STANDINGS,
    Ledger,
    Pending,
    Phase,
    Spawn,
    Standing,
    accept,
    after_receipt,
    change,
    count_refusal,
    encode,
    end,
    forgotten,
    give_up,
    move,
    new_ledger,
    rearm,
    restarted,
    settle,
    withdraw,
)
from the_loop.core.model import Kind


def holding(state: Standing, key: str = "comment:1", **fields: Any) -> Ledger:
    """A live item with one pending event in this standing."""
    return make.ledger(queue={key: make.pending(key, state, **fields)})


def refuses(action: Callable[[], Ledger]) -> bool:
    try:
        action()
    except ValueError:
        return True
    return False


# --- the two tables ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", list(Phase))
@pytest.mark.parametrize("before", list(Phase))
def test_change_of_phase_is_allowed_exactly_by_the_table(before: Phase, after: Phase) -> None:
    allowed = after is before or after in PHASES[before]

    assert refuses(lambda: change(make.ledger(before), phase=after)) is not allowed


@pytest.mark.parametrize("phase", list(Phase))
def test_a_ledger_begins_in_a_phase_of_the_table(phase: Phase) -> None:
    assert refuses(lambda: new_ledger(make.item(), phase)) is (phase not in PHASES[None])


@pytest.mark.parametrize("after", list(Standing))
@pytest.mark.parametrize("before", list(Standing))
def test_change_of_standing_is_allowed_exactly_by_the_table(before: Standing, after: Standing) -> None:
    allowed = after is before or after in STANDINGS[before]

    assert refuses(lambda: move(holding(before), "comment:1", after)) is not allowed


@pytest.mark.parametrize("before", list(Standing))
@pytest.mark.parametrize("key", ["comment:1", "spawn:1"])
def test_rearm_is_for_what_gave_up(before: Standing, key: str) -> None:
    """The other standings that could get queued lose their history by it: nobody asks for that."""
    state = Standing.RELEASED if key == "spawn:1" else Standing.QUEUED
    allowed = state is before or state in STANDINGS[before]

    assert refuses(lambda: rearm(holding(before, key), key)) is not allowed


def test_tables_name_every_phase_and_standing() -> None:
    assert set(PHASES) == {None, *Phase}
    assert set(STANDINGS) == set(Standing)


def test_every_phase_and_standing_can_be_reached_and_left() -> None:
    assert set().union(*PHASES.values()) == set(Phase)
    assert set().union(*STANDINGS.values()) == set(Standing)
    assert all(PHASES.values())
    assert all(STANDINGS.values())


@pytest.mark.parametrize("state", list(Standing))
def test_only_what_ran_may_have_begun(state: Standing) -> None:
    assert state.may_have_begun is (state in (Standing.RUNNING, Standing.UNCERTAIN, Standing.HELD))


# --- transitions ------------------------------------------------------------------------------------------------------


def test_accept_queues_an_event_with_its_first_attempt() -> None:
    ledger = accept(make.ledger(queue=["comment:1"]), "review:2", "alice")

    assert list(ledger.poll.pending) == ["comment:1", "review:2"]
    assert ledger.poll.pending["review:2"] == Pending(Kind.REVIEW, 1, Standing.QUEUED, author="alice")


def test_accept_goes_on_with_the_attempts_that_were_counted() -> None:
    ledger = accept(make.ledger(comment_attempts={"comment:1": 2}), "comment:1", "alice")

    assert ledger.poll.pending["comment:1"].attempt == 3


@pytest.mark.parametrize(("redelivery", "state"), [(False, Standing.QUEUED), (True, Standing.UNCERTAIN)])
def test_accept_of_a_lost_event_keeps_its_history(*, redelivery: bool, state: Standing) -> None:
    ledger = accept(holding(Standing.LOST, attempt=3, offer=4, redelivery=redelivery), "comment:1", "alice")

    entry = ledger.poll.pending["comment:1"]
    assert (entry.state, entry.attempt, entry.offer, entry.redelivery) == (state, 3, 4, redelivery)


def test_values_are_never_changed_in_place() -> None:
    before = make.ledger(queue=["comment:1", "comment:2"], comment_attempts={"comment:1": 1}, seen=["comment:9"])
    tree = encode(before)

    after = settle(count_refusal(accept(before, "comment:3", "bob"), "comment:1"), "comment:2")

    assert encode(before) == tree
    assert after != before


def test_settle_forgets_everything_but_the_fact() -> None:
    before = make.ledger(
        queue=["comment:1", "comment:2"],
        seen=["comment:9"],
        obeyed=frozenset({"comment:1", "body"}),
        comment_attempts={"comment:1": 2, "comment:2": 1},
        gave_up={"comment:1": ("1.0",), "comment:2": ("1.0",)},
    )

    poll = settle(before, "comment:1").poll

    assert poll.seen_comments == {"comment:1", "comment:9"}
    assert list(poll.pending) == ["comment:2"]
    assert (poll.obeyed, poll.comment_attempts) == (frozenset({"body"}), {"comment:2": 1})
    assert poll.gave_up == {"comment:2": ("1.0",)}


def test_receipt_of_a_spawn_settles_what_it_carries_and_makes_the_item_live() -> None:
    spawn = make.pending("spawn:1", carries=("comment:1", "review:2"))
    before = make.ledger(
        Phase.STARTING, queue={"spawn:1": spawn}, spawn=Spawn(attempts=2, gave_up=("0.9",)), paused=True
    )

    after = after_receipt(before, "spawn:1")

    assert after.poll.phase is Phase.LIVE
    assert after.poll.seen_comments == {"spawn:1", "comment:1", "review:2"}
    assert (after.poll.pending, after.poll.spawn, after.poll.paused) == ({}, Spawn(), True)


def test_receipt_of_a_spawn_while_the_item_ends_leaves_it_ending() -> None:
    before = make.ledger(Phase.ENDING, queue=["spawn:1", "close:1"])

    after = after_receipt(before, "spawn:1")

    assert (after.poll.phase, list(after.poll.pending)) == (Phase.ENDING, ["close:1"])


def test_receipt_of_a_close_ends_the_item_and_withdraws_what_gave_up() -> None:
    queue = {"comment:1": make.pending("comment:1", Standing.GAVE_UP), "close:1": make.pending("close:1")}
    before = make.ledger(
        Phase.ENDING, queue=queue, reason="closed", comment_attempts={"comment:1": 3}, paused=True, away=True
    )

    poll = after_receipt(before, "close:1").poll

    assert (poll.phase, poll.reason, poll.pending) == (Phase.ENDED, "closed", {})
    assert (poll.seen_comments, poll.comment_attempts) == (frozenset({"close:1"}), {})
    assert not poll.paused
    assert not poll.away


def test_withdraw_unsettles_and_uncounts() -> None:
    before = make.ledger(
        Phase.STARTING, queue=["spawn:1", "comment:1"], comment_attempts={"comment:1": 2}, spawn=Spawn(attempts=2)
    )

    poll = withdraw(before, "spawn:1", "comment:1").poll

    assert (poll.pending, poll.seen_comments, poll.comment_attempts) == ({}, frozenset(), {})
    assert poll.spawn.attempts == 0


def test_count_refusal_counts_spawns_and_comments_apart() -> None:
    ledger = make.ledger(Phase.STARTING, queue=["spawn:1", "comment:1"])

    spawned = count_refusal(count_refusal(ledger, "spawn:1"), "spawn:1")
    assert (spawned.attempts("spawn:1"), spawned.attempts("comment:1")) == (2, 0)
    assert spawned.poll.pending["spawn:1"].attempt == 3

    commented = count_refusal(ledger, "comment:1")
    assert (commented.attempts("comment:1"), commented.attempts("spawn:1")) == (1, 0)
    assert commented.poll.pending["comment:1"].attempt == 2


@pytest.mark.parametrize("key", ["comment:1", "spawn:1"])
def test_give_up_and_rearm_start_over_and_remember_the_versions(key: str) -> None:
    ledger = count_refusal(holding(Standing.REFUSED, key, pause=900.0, retry_at=9.0, unknown=1), key)
    given_up = give_up(ledger, key, "1.0")
    assert given_up.poll.pending[key].state is Standing.GAVE_UP

    again = rearm(given_up, key)

    entry = again.poll.pending[key]
    assert (entry.attempt, entry.unknown, entry.pause, entry.retry_at) == (1, 0, 0.0, 0.0)
    assert again.attempts(key) == 0
    versions = again.poll.spawn.gave_up if key == "spawn:1" else again.poll.gave_up[key]
    assert versions == ("1.0",)


def test_restarted_counts_and_takes_the_items_present_row() -> None:
    ledger = restarted(make.ledger(Phase.ENDED, g=4), make.item(title="new", url="https://new", id="node-15"))

    assert (ledger.g, ledger.title, ledger.url) == (5, "new", "https://new")
    assert (ledger.spawn_key, ledger.close_key) == ("spawn:5", "close:5")


def test_forgotten_keeps_the_count_of_starts_only() -> None:
    ledger = forgotten(make.ledger(g=3, seen=["comment:1"], queue=["comment:2"]))

    assert (ledger.g, ledger.poll.phase, ledger.poll.behind) == (3, Phase.WAITING, True)
    assert (ledger.poll.seen_comments, ledger.poll.pending) == (frozenset(), {})


@pytest.mark.parametrize("phase", [Phase.WAITING, Phase.STARTING, Phase.ENDING])
def test_end_leaves_nothing_pending(phase: Phase) -> None:
    poll = end(make.ledger(phase), "closed").poll

    assert (poll.phase, poll.reason, poll.pending) == (Phase.ENDED, "closed", {})


def test_knows_what_is_settled_pending_or_carried_and_not_what_was_lost() -> None:
    spawn = make.pending("spawn:1", carries=("comment:3",))
    queue = {
        "spawn:1": spawn,
        "comment:2": make.pending("comment:2"),
        "comment:4": make.pending("comment:4", Standing.LOST),
    }
    ledger = make.ledger(Phase.STARTING, queue=queue, seen=["comment:1"])

    known = [number for number in range(1, 6) if ledger.knows(f"comment:{number}")]

    assert known == [1, 2, 3]
    assert not ledger.knows("review:1")
