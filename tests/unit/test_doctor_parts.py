"""`doctor`: several things are examined at once, and one that hangs or fails costs its own answer only."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from the_loop.cli.doctor import lines_of
from the_loop.cli.page import rows
from the_loop.doctor.parts import Part, examine_all
from the_loop.findings import Finding, State, fail, ok, unknown, warn

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest


def test_parts_when_examined_then_their_findings_come_in_order() -> None:
    parts = [Part("a", lambda: [ok("a", "1"), fail("a", "2")]), Part("b", lambda: iter([warn("b", "3")]))]

    assert [[one.detail for one in several] for several in examine_all(parts, 10)] == [["1", "2"], ["3"]]


def test_part_when_it_hangs_then_what_it_found_counts_and_the_others_are_whole() -> None:
    never = threading.Event()

    def hangs() -> Iterator[Finding]:
        yield ok("slow", "found")
        never.wait()

    began = time.monotonic()
    first, second = examine_all([Part("slow", hangs), Part("quick", lambda: [ok("quick", "there")])], 0.2)

    assert time.monotonic() - began < 5
    assert first == [ok("slow", "found"), unknown("slow", "no answer within 0 s")]
    assert second == [ok("quick", "there")]
    never.set()


def test_part_when_it_raises_then_that_is_unknown_with_the_reason() -> None:
    def breaks() -> Iterator[Finding]:
        yield ok("odd", "found")
        raise ValueError("no such thing")

    (found,) = examine_all([Part("odd", breaks)], 10)

    assert found == [ok("odd", "found"), unknown("odd", "cannot be examined: ValueError: no such thing")]


def test_part_when_no_thread_can_be_started_then_is_examined_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def cannot(_self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", cannot)

    assert list(examine_all([Part("a", lambda: [ok("a", "1")])], 10)) == [[ok("a", "1")]]


def test_finding_when_it_is_unknown_is_good_only_if_it_does_not_matter() -> None:
    assert not unknown("a", "why").is_good
    assert unknown("a", "why", matters=False).is_good
    assert warn("a", "works").is_good
    assert not fail("a", "no").is_good


def test_finding_when_shown_fits_the_page_and_its_command_stays_in_one_piece() -> None:
    command = "chown -R " + " ".join(f"/a/long/path/{number}" for number in range(9))
    shown = rows(lines_of(fail("name", "some words " * 20, command)), 80)

    assert shown[0].startswith("FAIL  name: some words")
    assert all(len(line) <= 80 and line.startswith(" " * 6) for line in shown[1:-1])
    assert shown[-1] == f"      $ {command}"


def test_finding_when_it_is_good_shows_no_command() -> None:
    assert rows(lines_of(Finding("name", State.OK, "there", "rm -r x")), 80) == ["ok    name: there"]
