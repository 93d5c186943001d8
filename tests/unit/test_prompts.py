"""The texts that a session is given."""

from __future__ import annotations

from typing import Any

import pytest

from the_loop.core.guards import OWN_MARKER
from the_loop.runners import prompts
from the_loop.runners.prompts import Prompts, fault_of


def payload(kind: str = "comment", **fields: Any) -> dict[str, Any]:
    whole = {
        "deliveryId": f"github:octo/repo#15/{kind}:9",
        "kind": kind,
        "ref": "github:octo/repo#15",
        "url": "https://github.com/octo/repo/issues/15",
        "title": "A title",
        "author": "alice",
        "body": "please",
        "createdAt": "2026-01-31T12:00:00.000Z",
        "attempt": 1,
        "redelivery": False,
        "thread": [],
        "omitted": 0,
    }
    return {**whole, **fields}


@pytest.mark.parametrize("name", ["SPAWN", "COMMENT", "REVIEW", "RESUME"])
def test_template_of_ours_when_checked_is_valid(name: str) -> None:
    assert fault_of(getattr(prompts, name)) == ""


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("$body costs 5$", "'$$' for a dollar"),
        ("$nobody", "'$nobody' is not a placeholder"),
        ("${bodyx}", "'$bodyx' is not a placeholder"),
        ("$bödy", "'$$' for a dollar"),
    ],
)
def test_template_when_it_cannot_be_filled_says_why(text: str, problem: str) -> None:
    assert problem in fault_of(text) or "is not a placeholder" in fault_of(text)


def test_text_when_ours_begins_with_a_head_fences_what_others_wrote_and_explains_the_mark() -> None:
    for kind in ("spawn", "comment", "review", "review_comment"):
        text = Prompts().text(payload(kind))
        assert text.startswith("[the-loop] delivery github:octo/repo#15/")
        assert "\n```\nplease\n```\n" in text
        assert text.endswith(OWN_MARKER)


def test_text_when_it_may_have_arrived_says_so() -> None:
    assert "delivered again" in Prompts().text(payload(redelivery=True))
    assert "delivered again" not in Prompts().text(payload())


@pytest.mark.parametrize("body", ["a ``` b", "````", "`", "$body ${title} $$"])
def test_text_when_it_has_fences_of_its_own_is_within_longer_ones(body: str) -> None:
    lines = Prompts().text(payload(body=body)).split("\n")

    fences = [line for line in lines if set(line) == {"`"} and line not in body]
    assert len(fences) == 2
    assert len(set(fences)) == 1
    assert fences[0] not in body
    assert body in lines


def test_text_when_names_have_controls_in_them_shows_them_as_codes() -> None:
    text = Prompts(comment="$title $author $url").text(payload(title="a\x1bb\nc", author="\x07", url="x\r"))

    assert text == "a\\x1bb\\x0ac \\x07 x\\x0d"


def test_text_when_it_has_a_thread_names_each_author() -> None:
    entry = {"id": "7", "kind": "comment", "author": "bob", "url": "u", "body": "and this", "createdAt": "t"}
    text = Prompts().text(payload("spawn", thread=[entry, {**entry, "author": None, "truncated": True}], omitted=2))

    assert "Comment by bob (u):\n```\nand this\n```\n" in text
    assert "Comment by an unknown author (u):\n```\n(too long to be shown" in text
    assert "(2 more of other authors" in text


def test_text_when_its_template_is_empty_is_empty() -> None:
    assert Prompts(comment="").text(payload()) == ""
    assert Prompts().text(payload("close")) == ""


def test_resumed_when_things_were_told_has_them_in_order_and_not_the_new_one() -> None:
    told = [payload("spawn", body="first"), payload(deliveryId="x", body="second")]
    text = Prompts().resumed(payload(body="third"), told)

    assert text.index("A title") < text.index("first") < text.index("second")
    assert "third" not in text
    assert Prompts(resume="").resumed(payload(), told) == ""
