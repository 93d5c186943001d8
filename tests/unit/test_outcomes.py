"""What each outcome of a hand-over makes of its ledger (contract R5, R7.2, R7.5)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support import factories as make
from support.clock import NOON
from the_loop.core.ledger import Ledger, Pending, Phase, Spawn, Standing
from the_loop.core.model import Kind, Note, Outcome, Verdict, timestamp
from the_loop.core.outcomes import Policy, conclude, is_due

NOW = NOON
UNCOUNTED = (Verdict.LATER, Verdict.UNKNOWN, Verdict.UNSTARTABLE, Verdict.NEVER_BEGUN)


def run(
    ledger: Ledger, key: str, *verdicts: Verdict, policy: Policy | None = None, now: float = NOW
) -> tuple[Ledger, list[Note]]:
    """The ledger after these outcomes in a row, and all that was told."""
    told: list[Note] = []
    for verdict in verdicts:
        ledger, notes = conclude(ledger, key, Outcome(verdict, "because"), policy or make.policy(), now)
        told += notes
    return ledger, told


def entry_of(ledger: Ledger, key: str = "comment:1") -> Pending:
    return ledger.poll.pending[key]


def comment(state: Standing = Standing.QUEUED, **fields: Any) -> Ledger:
    return make.ledger(queue={"comment:1": make.pending("comment:1", state, **fields)})


def spawn(**fields: Any) -> Ledger:
    return make.ledger(Phase.STARTING, queue={"spawn:1": make.pending("spawn:1", carries=("comment:7",), **fields)})


# --- delivered -----------------------------------------------------------------------------------------------------


def test_delivered_comment_is_settled_and_told() -> None:
    ledger, told = run(comment(attempt=2), "comment:1", Verdict.DELIVERED)

    assert (ledger.poll.pending, ledger.poll.seen_comments) == ({}, frozenset({"comment:1"}))
    (note,) = told
    assert (note.name, note.fields["ref"], note.fields["kind"], note.fields["attempt"]) == (
        "poll.comment_forwarded",
        make.REF,
        "comment",
        2,
    )
    assert note.fields["deliveryId"] == f"{make.REF}/comment:1"


def test_delivered_spawn_makes_the_item_live_and_settles_what_it_carries() -> None:
    ledger, told = run(spawn(), "spawn:1", Verdict.DELIVERED)

    assert (ledger.poll.phase, ledger.poll.seen_comments) == (Phase.LIVE, frozenset({"spawn:1", "comment:7"}))
    assert [note.name for note in told] == ["poll.spawned"]


def test_delivered_close_ends_the_item() -> None:
    ledger, told = run(make.ledger(Phase.ENDING, reason="merged"), "close:1", Verdict.DELIVERED)

    assert (ledger.poll.phase, ledger.poll.reason) == (Phase.ENDED, "merged")
    assert [(note.name, note.fields["reason"]) for note in told] == [("session.closed", "merged")]


@pytest.mark.parametrize("state", [s for s in Standing if s not in (Standing.HELD, Standing.GAVE_UP, Standing.LOST)])
@pytest.mark.parametrize("verdict", list(Verdict))
def test_outcome_can_be_recorded_in_every_standing_that_is_offered(state: Standing, verdict: Verdict) -> None:
    """A stop or a crash may have changed the standing while the delivery went on."""
    run(comment(state), "comment:1", verdict)


# --- refused -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("interval_s", "pauses"),
    [
        (60.0, [60.0, 300.0, 900.0, 900.0, 900.0]),
        (10.0, [10.0, 50.0, 150.0, 150.0, 150.0]),
        (1.0, [1.0, 5.0, 15.0, 15.0, 15.0]),
        (600.0, [600.0, 900.0, 900.0, 900.0, 900.0]),
        (86_400.0, [900.0] * 5),
    ],
)
def test_refused_is_offered_again_after_growing_pauses(interval_s: float, pauses: Sequence[float]) -> None:
    policy = make.policy(max_retries=100, interval_s=interval_s)
    ledger = comment()

    for number, pause in enumerate(pauses, 1):
        ledger, told = run(ledger, "comment:1", Verdict.REFUSED, policy=policy)
        entry = entry_of(ledger)
        assert (entry.state, entry.pause, entry.retry_at) == (Standing.REFUSED, pause, NOW + pause)
        assert (entry.attempt, ledger.attempts("comment:1"), entry.offer) == (number + 1, number, number + 1)
        assert [(note.name, note.fields["willRetry"], note.fields["attempt"]) for note in told] == [
            ("poll.comment_failed", True, number)
        ]
        assert told[0].fields["reason"] == "because"


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
def test_refused_up_to_the_limit_is_given_up(limit: int) -> None:
    policy = make.policy(max_retries=limit, version="2.3")

    ledger, told = run(comment(), "comment:1", *[Verdict.REFUSED] * limit, policy=policy)

    assert entry_of(ledger).state is Standing.GAVE_UP
    assert ledger.poll.gave_up == {"comment:1": ("2.3",)}
    assert [note.fields["willRetry"] for note in told] == [True] * (limit - 1) + [False]
    assert ledger.poll.seen_comments == frozenset()


def test_refused_spawn_is_counted_by_itself_and_given_up() -> None:
    ledger, told = run(spawn(), "spawn:1", *[Verdict.REFUSED] * 3)

    assert (entry_of(ledger, "spawn:1").state, ledger.poll.phase) == (Standing.GAVE_UP, Phase.STARTING)
    assert ledger.poll.spawn == Spawn(attempts=3, gave_up=("1.0",))
    assert ledger.poll.comment_attempts == {}
    assert [note.name for note in told] == ["poll.spawn_failed"] * 3


def test_refused_close_that_is_given_up_ends_the_item() -> None:
    ledger, told = run(make.ledger(Phase.ENDING, reason="closed"), "close:1", *[Verdict.REFUSED] * 3)

    assert (ledger.poll.phase, ledger.poll.pending, ledger.poll.reason) == (Phase.ENDED, {}, "closed")
    assert [note.fields["willRetry"] for note in told] == [True, True, False]


def test_delivered_after_refusals_leaves_no_trace_of_them() -> None:
    ledger, _ = run(comment(), "comment:1", Verdict.REFUSED, Verdict.REFUSED, Verdict.DELIVERED)

    assert (ledger.poll.comment_attempts, ledger.poll.pending, ledger.poll.gave_up) == ({}, {}, {})


# --- a spawn while its item ends -----------------------------------------------------------------------------------


def ending(*, redelivery: bool) -> Ledger:
    queue = {
        "spawn:1": make.pending("spawn:1", redelivery=redelivery, carries=("comment:7",)),
        "close:1": make.pending("close:1"),
    }
    return make.ledger(Phase.ENDING, queue=queue, reason="stopped")


@pytest.mark.parametrize("verdict", [Verdict.REFUSED, Verdict.LATER, Verdict.UNSTARTABLE])
def test_spawn_that_did_not_arrive_while_its_item_ends_is_not_offered_again_and_there_is_nothing_to_close(
    verdict: Verdict,
) -> None:
    ledger, _ = run(ending(redelivery=False), "spawn:1", verdict)

    assert (ledger.poll.phase, ledger.poll.pending, ledger.poll.reason) == (Phase.ENDED, {}, "stopped")
    assert not ledger.poll.seen_comments & {"spawn:1", "comment:7"}


def test_spawn_that_was_refused_while_its_item_ends_is_closed_where_an_earlier_offer_may_have_arrived() -> None:
    ledger, _ = run(ending(redelivery=True), "spawn:1", Verdict.REFUSED)

    assert (ledger.poll.phase, list(ledger.poll.pending)) == (Phase.ENDING, ["close:1"])


@pytest.mark.parametrize("verdict", [Verdict.DELIVERED, Verdict.UNKNOWN])
def test_spawn_that_may_have_arrived_while_its_item_ends_is_closed(verdict: Verdict) -> None:
    ledger, _ = run(ending(redelivery=False), "spawn:1", verdict)

    assert ledger.poll.phase is Phase.ENDING
    assert list(ledger.poll.pending)[-1] == "close:1"


# --- not now, not startable, never begun ---------------------------------------------------------------------------


def test_later_is_offered_again_after_one_minute_doubling_to_fifteen() -> None:
    ledger = comment()

    for number, pause in enumerate([60.0, 120.0, 240.0, 480.0, 900.0, 900.0], 2):
        ledger, told = run(ledger, "comment:1", Verdict.LATER)
        entry = entry_of(ledger)
        assert (entry.state, entry.pause, entry.retry_at) == (Standing.LATER, pause, NOW + pause)
        assert (entry.attempt, entry.offer, entry.reason) == (1, number, "because")
        assert [(note.name, note.fields["until"]) for note in told] == [("poll.deferred", timestamp(NOW + pause))]


@pytest.mark.parametrize("verdict", UNCOUNTED)
@pytest.mark.parametrize("key", ["comment:1", "spawn:1"])
def test_what_is_no_refusal_spends_nothing(verdict: Verdict, key: str) -> None:
    before = comment(attempt=2) if key == "comment:1" else spawn(attempt=2)

    ledger, _ = run(before, key, *[verdict] * 2)

    assert ledger.poll.comment_attempts == before.poll.comment_attempts
    assert ledger.poll.spawn == before.poll.spawn
    assert entry_of(ledger, key).attempt == 2
    assert ledger.poll.seen_comments == frozenset()


@pytest.mark.parametrize("state", [Standing.QUEUED, Standing.REFUSED, Standing.UNCERTAIN, Standing.RELEASED])
def test_unstartable_is_a_new_offer_of_the_same_standing(state: Standing) -> None:
    ledger, told = run(comment(state), "comment:1", Verdict.UNSTARTABLE)

    assert (entry_of(ledger).state, entry_of(ledger).offer, told) == (state, 2, [])


@pytest.mark.parametrize(
    ("before", "redelivery", "after"),
    [
        (Standing.QUEUED, False, Standing.QUEUED),
        (Standing.RUNNING, False, Standing.RELEASED),
        (Standing.RUNNING, True, Standing.UNCERTAIN),
        (Standing.UNCERTAIN, True, Standing.UNCERTAIN),
        (Standing.LATER, False, Standing.LATER),
    ],
)
def test_never_begun_is_a_new_offer_and_keeps_the_mark_of_an_earlier_one(
    before: Standing, redelivery: bool, after: Standing
) -> None:
    ledger, told = run(comment(before, unknown=1, redelivery=redelivery), "comment:1", Verdict.NEVER_BEGUN)

    entry = entry_of(ledger)
    assert (entry.state, entry.offer, entry.unknown, entry.redelivery, told) == (after, 2, 1, redelivery, [])


def test_never_begun_spawn_is_built_anew_unless_an_earlier_offer_may_have_arrived() -> None:
    assert entry_of(run(spawn(), "spawn:1", Verdict.NEVER_BEGUN)[0], "spawn:1").state is Standing.RELEASED


# --- unknown -------------------------------------------------------------------------------------------------------


def test_unknown_is_offered_again_marked() -> None:
    ledger, told = run(comment(), "comment:1", Verdict.UNKNOWN)

    entry = entry_of(ledger)
    assert (entry.state, entry.redelivery, entry.unknown, entry.offer) == (Standing.UNCERTAIN, True, 1, 2)
    assert [note.name for note in told] == ["dispatch.uncertain"]


@pytest.mark.parametrize("limit", [1, 2, 3, 10])
def test_unknown_so_often_in_a_row_is_held_and_never_given_up(limit: int) -> None:
    ledger, told = run(comment(), "comment:1", *[Verdict.UNKNOWN] * limit, policy=make.policy(max_retries=limit))

    assert (entry_of(ledger).state, entry_of(ledger).unknown) == (Standing.HELD, limit)
    assert [note.name for note in told] == ["dispatch.uncertain"] * (limit - 1) + ["poll.comment_held"]
    assert (ledger.poll.gave_up, ledger.poll.comment_attempts) == ({}, {})


@pytest.mark.parametrize("between", [Verdict.REFUSED, Verdict.LATER])
def test_unknown_is_counted_in_a_row_only(between: Verdict) -> None:
    policy = make.policy(max_retries=2)
    ledger, told = run(comment(), "comment:1", Verdict.UNKNOWN, between, Verdict.UNKNOWN, policy=policy)

    assert (entry_of(ledger).state, entry_of(ledger).unknown) == (Standing.UNCERTAIN, 1)
    assert "poll.comment_held" not in [note.name for note in told]


@pytest.mark.parametrize("between", [Verdict.UNSTARTABLE, Verdict.NEVER_BEGUN])
def test_offers_that_reached_nobody_do_not_end_a_row_of_unknowns(between: Verdict) -> None:
    policy = make.policy(max_retries=2)
    ledger, _ = run(comment(), "comment:1", Verdict.UNKNOWN, between, Verdict.UNKNOWN, policy=policy)

    assert entry_of(ledger).state is Standing.HELD


@pytest.mark.parametrize("after", [Verdict.REFUSED, Verdict.LATER, Verdict.UNSTARTABLE])
def test_offer_after_an_unknown_one_stays_marked(after: Verdict) -> None:
    ledger, _ = run(comment(), "comment:1", Verdict.UNKNOWN, after)

    assert entry_of(ledger).redelivery


@pytest.mark.parametrize("key", ["comment:1", "spawn:1"])
def test_unknown_is_held_at_once_where_that_is_configured(key: str) -> None:
    before = comment() if key == "comment:1" else spawn()

    ledger, told = run(before, key, Verdict.UNKNOWN, policy=make.policy(holds_uncertain=True))

    assert entry_of(ledger, key).state is Standing.HELD
    assert [(note.name, note.fields["kind"]) for note in told] == [("poll.comment_held", key.partition(":")[0])]


def test_delivered_after_an_unknown_one_is_delivered() -> None:
    ledger, _ = run(comment(), "comment:1", Verdict.UNKNOWN, Verdict.DELIVERED)

    assert (ledger.poll.pending, ledger.poll.seen_comments) == ({}, frozenset({"comment:1"}))


# --- every outcome -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verdict", [v for v in Verdict if v not in (Verdict.DELIVERED, Verdict.NEVER_BEGUN)])
def test_every_outcome_of_a_begun_offer_makes_the_next_one_a_new_offer(verdict: Verdict) -> None:
    """Else the files of this offer would speak for the next one."""
    ledger, _ = run(comment(offer=5), "comment:1", verdict)

    assert entry_of(ledger).offer == 6


@pytest.mark.parametrize("verdict", list(Verdict))
def test_outcome_of_one_event_leaves_the_others_alone(verdict: Verdict) -> None:
    before = make.ledger(
        queue=["comment:1", "review:1", "comment:2"], seen=["comment:9"], comment_attempts={"comment:2": 1}
    )

    ledger, _ = run(before, "comment:1", verdict)

    for key in ("review:1", "comment:2"):
        assert ledger.poll.pending[key] == before.poll.pending[key]
    assert ledger.poll.comment_attempts["comment:2"] == 1
    assert ledger.poll.seen_comments >= before.poll.seen_comments


@given(st.lists(st.sampled_from([v for v in Verdict if v not in (Verdict.DELIVERED, Verdict.HELD)]), max_size=30))
def test_attempts_are_exactly_the_refusals_whatever_else_happens(verdicts: list[Verdict]) -> None:
    policy = make.policy(max_retries=100)
    ledger = comment()

    for number, verdict in enumerate(verdicts):
        ledger, _ = run(ledger, "comment:1", verdict, policy=policy)
        assert ledger.attempts("comment:1") == verdicts[: number + 1].count(Verdict.REFUSED)
        assert entry_of(ledger).attempt == ledger.attempts("comment:1") + 1


def test_held_when_nothing_was_begun_waits_for_a_person_without_a_mark() -> None:
    ledger, notes = run(comment(), "comment:1", Verdict.HELD)

    entry = entry_of(ledger)
    assert (entry.state, entry.redelivery, entry.reason) == (Standing.HELD, False, "because")
    assert ledger.attempts("comment:1") == 0
    assert [note.name for note in notes] == ["session.held"]


# --- when it is due ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("now", "due"),
    [
        (NOW, False),
        (NOW + 59.9, False),
        (NOW + 60, True),
        (NOW + 1e9, True),
        (NOW - 1e9, True),
        (0.0, True),
    ],
)
def test_wait_is_never_longer_than_it_was_when_it_was_set(now: float, *, due: bool) -> None:
    ledger, _ = run(comment(), "comment:1", Verdict.REFUSED)

    assert is_due(entry_of(ledger), now) is due


@pytest.mark.parametrize("kind", [Kind.COMMENT, Kind.SPAWN, Kind.CLOSE])
def test_event_without_a_wait_is_due(kind: Kind) -> None:
    assert is_due(make.pending(f"{kind}:1"), NOW)
