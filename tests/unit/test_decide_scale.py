"""A decision costs as much as it has rows: twice the rows, twice the work (contract R6.9)."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from support import factories as make
from the_loop.core import decide as decide_module
from the_loop.core import ledger as ledger_module
from the_loop.core.decide import Decision, View, decide
from the_loop.core.ledger import Ledger, Standing, accept_all, move
from the_loop.core.model import Entry, Presence

ROWS = 200


def strangers(count: int) -> list[Entry]:
    return [make.entry(number, author=make.STRANGER) for number in range(count)]


def comments(count: int) -> list[Entry]:
    return [make.entry(number) for number in range(count)]


def rebuilt(count: int) -> Decision:
    thread = comments(count)
    first = decide(None, View(make.REF, Presence.LISTED, make.item(), thread=thread), make.rules())
    assert first.ledger is not None
    released = move(first.ledger, "spawn:1", Standing.RELEASED)
    return decide(released, View(make.REF, Presence.LISTED, make.item(), thread=thread), make.rules())


def rows(entries: Sequence[Entry]) -> Decision:
    return decide(make.ledger(), View(make.REF, Presence.LISTED, make.item(), rows=entries), make.rules())


def vanished(count: int) -> Decision:
    queue = {f"comment:{number}": make.pending(f"comment:{number}", Standing.LOST) for number in range(count)}
    lost = make.ledger(queue=queue, behind=True)
    return decide(lost, View(make.REF, Presence.LISTED, make.item(), thread=()), make.rules())


STORIES: dict[str, Callable[[int], Decision]] = {
    "strangers": lambda count: rows(strangers(count)),
    "comments": lambda count: rows(comments(count)),
    "spawn rebuilt": rebuilt,
    "vanished": vanished,
}


def calls_in(work: Callable[[], object]) -> tuple[int, Counter[str]]:
    """The number of calls, and how often each function of `core.ledger` and `core.decide` was called."""
    total, ours = 0, Counter[str]()
    files = {ledger_module.__file__, decide_module.__file__}

    def count(frame: Any, event: str, _: object) -> None:
        nonlocal total
        total += event in ("call", "c_call")
        if event == "call" and frame.f_code.co_filename in files:
            ours[frame.f_code.co_name] += 1

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return total, ours


@pytest.mark.parametrize("story", STORIES)
def test_rows_when_twice_as_many_take_twice_as_many_steps_and_one_copy_of_the_ledger(story: str) -> None:
    """Each row copied the ledger, or asked every pending event what it carries: 10,000 rows took seconds."""
    work = STORIES[story]
    work(1)

    few, _ = calls_in(lambda: work(ROWS))
    many, ours = calls_in(lambda: work(2 * ROWS))

    assert many < 2.3 * few
    assert ours["change"] < 15
    assert ours["unknown"] < 10
    assert ours["knows"] == 0


def test_rows_of_one_moment_are_accepted_in_the_order_of_the_answer() -> None:
    at_once = [make.entry(1, kind=kind) for kind in ("review_comment", "comment", "review")]

    decision = rows(at_once)

    assert [event.key for event in decision.events] == [entry.key for entry in at_once]


def test_accept_all_is_accept_one_by_one() -> None:
    before = make.ledger(queue={"comment:1": make.pending("comment:1", Standing.LOST, redelivery=True)})
    authors = {"comment:2": "alice", "comment:1": "bob", "review:1": None}

    one_by_one: Ledger = before
    for key, author in authors.items():
        one_by_one = ledger_module.accept(one_by_one, key, author)

    facts = {key: {"author": author} for key, author in authors.items()}
    assert accept_all(before, facts) == one_by_one
    assert list(accept_all(before, facts).poll.pending) == ["comment:1", "comment:2", "review:1"]
    assert accept_all(before, {}) is before


def test_knows_what_is_settled_queued_or_carried_and_not_what_was_lost() -> None:
    queue = {
        "spawn:1": make.pending("spawn:1", carries=("comment:1",)),
        "comment:2": make.pending("comment:2"),
        "comment:3": make.pending("comment:3", Standing.LOST),
    }
    ledger = make.ledger(queue=queue, seen=["comment:4"])

    keys = [f"comment:{number}" for number in range(6)]

    assert [key for key in keys if ledger.knows(key)] == ["comment:1", "comment:2", "comment:4"]
    assert ledger.unknown(reversed(keys)) == ["comment:5", "comment:3", "comment:0"]
