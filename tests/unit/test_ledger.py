"""The record of one item: what may become of what, and its file format."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support import factories as make
from the_loop.ledger import (
    PHASES,
    SCHEMA,
    STANDINGS,
    Ledger,
    NewerLedger,
    Pending,
    Phase,
    Poll,
    Spawn,
    Standing,
    UnreadableLedger,
    accept,
    after_receipt,
    change,
    count_refusal,
    decode,
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
from the_loop.model import Kind
from the_loop.state import to_json_bytes


def holding(state: Standing, key: str = "comment:1", **fields: Any) -> Ledger:
    """A live item with one pending event in this standing."""
    return make.ledger(queue={key: make.pending(key, state, **fields)})


def refuses(action: Callable[[], Ledger]) -> bool:
    try:
        action()
    except ValueError:
        return True
    return False


# --- the two tables ------------------------------------------------------------------------------------------------


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


# --- transitions ---------------------------------------------------------------------------------------------------


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
    assert (poll.obeyed, poll.comment_attempts) == ({"body"}, {"comment:2": 1})
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
    assert (poll.seen_comments, poll.comment_attempts) == ({"close:1"}, {})
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


# --- the file ------------------------------------------------------------------------------------------------------

TEXT = st.text(max_size=20)
KEYS = st.builds("{}:{}".format, st.sampled_from(list(Kind)), st.text(min_size=1, max_size=8))
COUNTS = st.integers(0, 1 << 40)
SECONDS = st.floats(0, 4e9, allow_nan=False)
UNKNOWN = st.dictionaries(
    st.text(max_size=8).map("x-{}".format),
    st.recursive(st.none() | st.booleans() | COUNTS | TEXT, st.lists),
    max_size=3,
)
PENDING = st.builds(
    Pending,
    kind=st.sampled_from(list(Kind)),
    attempt=COUNTS,
    state=st.sampled_from(list(Standing)),
    offer=COUNTS,
    unknown=COUNTS,
    redelivery=st.booleans(),
    author=st.none() | TEXT,
    carries=st.lists(KEYS, max_size=3).map(tuple),
    pause=SECONDS,
    retry_at=SECONDS,
    extra=UNKNOWN,
)
POLL = st.builds(
    Poll,
    phase=st.sampled_from(list(Phase)),
    reason=TEXT,
    paused=st.booleans(),
    away=st.booleans(),
    behind=st.booleans(),
    seen_comments=st.frozensets(KEYS, max_size=5),
    obeyed=st.frozensets(KEYS, max_size=5),
    comment_attempts=st.dictionaries(KEYS, COUNTS, max_size=3),
    gave_up=st.dictionaries(KEYS, st.lists(TEXT, max_size=2).map(tuple), max_size=3),
    spawn=st.builds(Spawn, attempts=COUNTS, gave_up=st.lists(TEXT, max_size=2).map(tuple), extra=UNKNOWN),
    pending=st.dictionaries(KEYS, PENDING, max_size=4),
    extra=UNKNOWN,
)
LEDGERS = st.builds(Ledger, ref=TEXT, id=TEXT, url=TEXT, title=TEXT, g=COUNTS, poll=POLL, extra=UNKNOWN)


@given(LEDGERS)
def test_what_is_encoded_is_decoded_again_in_its_order(ledger: Ledger) -> None:
    content = to_json_bytes(encode(ledger))

    again = decode(content, ledger.ref)

    assert again == ledger
    assert list(again.poll.pending) == list(ledger.poll.pending)
    assert to_json_bytes(encode(again)) == content


def tree(**changes: Any) -> dict[str, Any]:
    """A small ledger file as it stands on disk."""
    queue = {"comment:3": make.pending("comment:3", Standing.REFUSED, attempt=2)}
    return {**json.loads(to_json_bytes(encode(make.ledger(queue=queue, seen=["comment:1"])))), **changes}


def poll_tree(**changes: Any) -> dict[str, Any]:
    whole = tree()
    return {**whole, "poll": {**whole["poll"], **changes}}


def read(value: object, ref: str | None = make.REF) -> Ledger:
    return decode(json.dumps(value).encode(), ref)


def test_file_has_the_names_of_the_contract() -> None:
    whole = tree()

    assert whole.keys() >= {"schema", "ref", "id", "url", "g", "poll"}
    assert whole["schema"] == SCHEMA
    poll = whole["poll"]
    assert poll["seenComments"] == ["comment:1"]
    assert poll["commentAttempts"] == {}
    assert poll["spawn"] == {"attempts": 0, "gaveUp": []}
    assert poll["pending"]["comment:3"] == {"kind": "comment", "attempt": 2, "state": "refused", "author": "alice"}


def test_unknown_keys_survive_a_rewrite_on_every_level() -> None:
    whole = tree(later={"a": [1]}, extra=7)
    whole["poll"] |= {"later": 1, "extra": {"extra": 2}}
    whole["poll"]["spawn"] |= {"later": None}
    whole["poll"]["pending"]["comment:3"] |= {"later": [[]], "extra": "x"}

    ledger = accept(read(whole), "comment:4", "alice")
    after = encode(ledger)

    assert (after["later"], after["extra"]) == ({"a": [1]}, 7)
    assert (after["poll"]["later"], after["poll"]["extra"]) == (1, {"extra": 2})
    assert after["poll"]["spawn"]["later"] is None
    assert after["poll"]["pending"]["comment:3"]["later"] == [[]]
    assert after["poll"]["pending"]["comment:3"]["extra"] == "x"


def test_unknown_keys_of_the_spawn_survive_its_receipt() -> None:
    whole = tree()
    whole["poll"]["spawn"] |= {"later": 1}

    assert encode(settle(read(whole), "spawn:1"))["poll"]["spawn"]["later"] == 1


def test_missing_parts_have_their_defaults() -> None:
    ledger = read({"schema": 1, "ref": "r", "id": "i", "url": "", "title": "", "g": 1, "poll": {"phase": "live"}}, "r")

    assert ledger.poll == Poll(phase=Phase.LIVE)


@pytest.mark.parametrize("schema", [2, 99])
def test_newer_file_is_told_apart(schema: int) -> None:
    with pytest.raises(NewerLedger, match=f"schema {schema}"):
        read({"schema": schema, "anything": []})


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\0" * 20, b"\xff\xfe", b"[]", b"5", b"null", b'"text"', b"{}", b'{"schema": 1}', b"[" * 100_000],
    ids=lambda content: repr(content[:12]),
)
def test_file_that_is_no_ledger_is_said_to_be_none(content: bytes) -> None:
    with pytest.raises(UnreadableLedger) as error:
        decode(content)
    assert not isinstance(error.value, NewerLedger)


@pytest.mark.parametrize(
    "value",
    [
        tree(schema=0),
        tree(schema="1"),
        tree(schema=None),
        tree(schema=True),
        tree(schema=[]),
        tree(ref=5),
        tree(g="1"),
        tree(g=None),
        tree(id=None),
        tree(poll=None),
        tree(poll=[]),
        tree(poll=5),
        tree(poll={}),
        poll_tree(phase="sleeping"),
        poll_tree(phase=None),
        poll_tree(seenComments=5),
        poll_tree(seenComments="comment:1"),
        poll_tree(seenComments=[5]),
        poll_tree(seenComments={"comment:1": 1}),
        poll_tree(pending=[]),
        poll_tree(pending={"comment:1": []}),
        poll_tree(pending={"comment:1": 5}),
        poll_tree(pending={"comment:1": {}}),
        poll_tree(pending={"comment:1": {"kind": "comment", "attempt": 1, "state": "odd"}}),
        poll_tree(pending={"comment:1": {"kind": "odd", "attempt": 1, "state": "queued"}}),
        poll_tree(pending={"comment:1": {"kind": "comment", "attempt": "1", "state": "queued"}}),
        poll_tree(pending={"comment:1": {"kind": "comment", "attempt": 1, "state": "queued", "carries": 5}}),
        poll_tree(spawn=[]),
        poll_tree(spawn=5),
        poll_tree(spawn={"attempts": "x"}),
        poll_tree(commentAttempts=[]),
        poll_tree(commentAttempts={"comment:1": "x"}),
        poll_tree(gaveUp={"comment:1": 5}),
        poll_tree(paused="no"),
    ],
    ids=lambda value: str({**value, **value["poll"]} if isinstance(value["poll"], dict) else value)[-40:],
)
def test_file_of_another_shape_is_said_to_be_none(value: dict[str, Any]) -> None:
    with pytest.raises(UnreadableLedger) as error:
        read(value)
    assert not isinstance(error.value, NewerLedger)
    assert "\n" not in str(error.value)


def test_ledger_of_another_item_is_not_taken() -> None:
    with pytest.raises(UnreadableLedger, match="ledger of 'github:octo/repo#15'"):
        read(tree(), "github:octo/repo#16")


@given(
    st.recursive(st.none() | st.booleans() | COUNTS | TEXT, lambda part: st.lists(part) | st.dictionaries(TEXT, part))
)
def test_any_json_is_a_ledger_or_none(value: object) -> None:
    with pytest.raises(UnreadableLedger):
        read(value)


@given(st.sampled_from(sorted(tree()["poll"])), st.none() | st.integers() | TEXT | st.lists(st.integers(), max_size=2))
def test_any_value_in_one_place_is_read_or_refused(name: str, value: object) -> None:
    try:
        ledger = read(poll_tree(**{name: value}))
    except UnreadableLedger:
        return
    assert decode(to_json_bytes(encode(ledger))) == ledger


def test_ledgers_are_frozen() -> None:
    ledger = make.ledger()

    with pytest.raises(AttributeError):
        ledger.g = 5  # type: ignore[misc]
    assert msgspec.structs.replace(ledger, g=5) is not ledger
