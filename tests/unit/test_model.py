"""Values: what receivers read of them, and the order and size rules of contract R6.2 and R6.9."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from the_loop.core.model import (
    THREAD_LIMIT,
    Entry,
    Event,
    Kind,
    LoopError,
    bounded,
    clean,
    delivery_id,
    in_order,
    timestamp,
)


def entry(**fields: Any) -> Entry:
    known: dict[str, Any] = {
        "kind": Kind.COMMENT,
        "id": "1",
        "author": "alice",
        "body": "text",
        "url": "https://host/1",
        "created_at": "2026-01-01T00:00:00Z",
    }
    return Entry(**{**known, **fields})


def event(**fields: Any) -> Event:
    known: dict[str, Any] = {
        "ref": "github:octo/repo#15",
        "key": "comment:7",
        "url": "https://host/7",
        "title": "Title",
        "author": "alice",
        "body": "text",
        "created_at": "2026-01-01T00:00:00Z",
    }
    return Event(**{**known, **fields})


@settings(deadline=None)
@given(st.text())
def test_clean_of_any_text_can_be_encoded_and_holds_no_nul(text: str) -> None:
    cleaned = clean(text)

    assert "\0" not in cleaned
    assert len(cleaned) == len(text)
    cleaned.encode()


@settings(deadline=None)
@given(st.text(alphabet=st.characters(exclude_characters="\0", exclude_categories=["Cs"])))
def test_clean_of_sound_text_changes_nothing(text: str) -> None:
    assert clean(text) == text


def test_clean_of_nul_and_surrogate_shows_where_they_were() -> None:
    assert clean("a\0b\ud800c") == "a\u2400b\ufffdc"


@pytest.mark.parametrize(
    ("epoch_s", "text"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (1_700_000_000.1239, "2023-11-14T22:13:20.123Z"),
        (1_700_000_000, "2023-11-14T22:13:20.000Z"),
    ],
)
def test_timestamp_is_utc_in_milliseconds(epoch_s: float, text: str) -> None:
    assert timestamp(epoch_s) == text


def test_error_with_a_hint_says_both() -> None:
    assert str(LoopError("cannot do it")) == "cannot do it"
    assert str(LoopError("cannot do it", "try that")) == "cannot do it (try that)"


def test_key_of_two_streams_that_share_a_number_differs() -> None:
    comment, review_comment = entry(id="9001"), entry(id="9001", kind=Kind.REVIEW_COMMENT)

    assert (comment.key, review_comment.key) == ("comment:9001", "review_comment:9001")


def test_delivery_id_is_ref_and_key() -> None:
    assert event().delivery_id == "github:octo/repo#15/comment:7"
    assert delivery_id("directory:inbox/a", "spawn:1") == "directory:inbox/a/spawn:1"


@pytest.mark.parametrize("kind", list(Kind))
def test_kind_of_an_event_is_the_first_part_of_its_key(kind: Kind) -> None:
    assert event(key=f"{kind}:a:b").kind is kind


def test_payload_has_exactly_the_documented_fields() -> None:
    payload = event(thread=(entry(),), omitted=2).to_json(attempt=2, redelivery=True)

    assert payload == {
        "deliveryId": "github:octo/repo#15/comment:7",
        "kind": "comment",
        "ref": "github:octo/repo#15",
        "url": "https://host/7",
        "title": "Title",
        "author": "alice",
        "body": "text",
        "createdAt": "2026-01-01T00:00:00Z",
        "attempt": 2,
        "redelivery": True,
        "thread": [
            {
                "id": "1",
                "kind": "comment",
                "author": "alice",
                "url": "https://host/1",
                "body": "text",
                "createdAt": "2026-01-01T00:00:00Z",
            }
        ],
        "omitted": 2,
    }
    assert json.loads(json.dumps(payload)) == payload


def test_payload_of_a_close_carries_its_reason() -> None:
    assert event(key="close:1", reason="merged").to_json(attempt=1, redelivery=False)["reason"] == "merged"


def test_payload_of_a_truncated_event_says_so() -> None:
    assert event(truncated=True, body="").to_json(attempt=1, redelivery=False)["truncated"] is True


def test_entry_that_was_truncated_is_carried_without_body() -> None:
    shown = entry(truncated=True, body="").to_json()

    assert shown == {"id": "1", "kind": "comment", "author": "alice", "url": "https://host/1", "truncated": True}


def test_thread_at_the_limit_is_carried_whole() -> None:
    thread = (entry(body="é" * (THREAD_LIMIT // 4)), entry(id="2", body="x" * (THREAD_LIMIT // 2)))

    assert bounded(thread) == thread


def test_thread_over_the_limit_is_carried_without_bodies_and_nothing_is_left_out() -> None:
    thread = (entry(body="é" * (THREAD_LIMIT // 4)), entry(id="2", body="x" * (THREAD_LIMIT // 2 + 1)))

    carried = event(thread=thread).to_json(attempt=1, redelivery=False)["thread"]

    assert [(one["id"], one["truncated"], "body" in one) for one in carried] == [("1", True, False), ("2", True, False)]


def test_order_within_one_second_is_by_number_not_by_text() -> None:
    same = "2026-01-01T00:00:00Z"
    entries = [entry(id="10", created_at=same), entry(id="9", created_at=same), entry(id="100", created_at="2025")]

    assert [one.id for one in in_order(entries)] == ["100", "9", "10"]


@settings(deadline=None)
@given(st.lists(st.builds(entry, id=st.text(max_size=4), created_at=st.sampled_from(["a", "b"])), max_size=8))
def test_order_of_any_entries_depends_on_nothing_but_them(entries: list[Entry]) -> None:
    ordered = in_order(entries)

    assert [one.created_at for one in ordered] == sorted(one.created_at for one in entries)
    assert {one.key for one in ordered} == {one.key for one in entries}
    assert [one.key for one in in_order(entries[::-1])] == [one.key for one in ordered]
