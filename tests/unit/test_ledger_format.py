"""The ledger's file format: what is written, what is read, and what is said to be no ledger (contract section 3)."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support import factories as make
from the_loop.core.ledger import (
    SCHEMA,
    Ledger,
    NewerLedger,
    Pending,
    Phase,
    Poll,
    Spawn,
    Standing,
    UnreadableLedger,
    accept,
    decode,
    encode,
    settle,
)
from the_loop.core.model import Kind
from the_loop.durable import to_json_bytes

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
    with pytest.raises(NewerLedger, match=f"schema is {schema}"):
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
