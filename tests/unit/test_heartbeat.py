"""What the heartbeat and the one line for the manager say of a poller: how far it is, and what fails since when."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from support.clock import NOON, Clock, Clocks
from support.shelf import ledger
from the_loop.cli import cli
from the_loop.core.guards import Rules
from the_loop.core.ledger import Standing, move
from the_loop.core.model import epoch, span
from the_loop.cursors import Cursor
from the_loop.durable import read_json_object, to_json_bytes
from the_loop.heartbeat import Health, last_good_cycle_at
from the_loop.last_report import read_heartbeat
from the_loop.ledgers import Ledgers
from the_loop.processes import Identity
from the_loop.state import StateRoot
from the_loop.watched import Summary, Watched


def health_of(root: StateRoot) -> Health:
    return Health(root, Identity(1, 2), Clocks(Clock()))


def watched(**fields: Any) -> Watched:
    source: Any = SimpleNamespace(name="work", provider="github")
    rules = Rules(frozenset({"octocat"}), folds_case=True, words={})
    return Watched(source, rules, **fields)


class TestLine:
    def test_status_when_nothing_ran_yet_then_says_so(self, root: StateRoot) -> None:
        assert health_of(root).status([watched()]) == "first cycle"

    def test_status_when_all_is_well_then_tells_items_and_time(self, root: StateRoot) -> None:
        one = watched(items=7, last_cycle=Summary(NOON, 0.1, 7, 0, 0))

        assert health_of(root).status([one]) == "7 items, last cycle 2023-11-14T22:13:20.000Z"

    def test_status_when_a_first_sight_is_under_way_then_shows_how_far_it_is(self, root: StateRoot) -> None:
        owed = frozenset(f"github:octo/repo#{number}" for number in range(9950))
        one = watched(cursor=Cursor({}, owed), visited=(340, 10_000))

        line = health_of(root).status([one])
        assert line == "first cycle, 9950 need a full re-read, work: 340 of 10000 items processed"

    @pytest.mark.parametrize(
        ("last_good_at", "age"), [(None, "never"), (NOON - 42, "42 s ago"), (NOON - 7300, "2 h ago")]
    )
    def test_status_when_a_source_fails_then_tells_since_when_and_why(
        self, root: StateRoot, last_good_at: float | None, age: str
    ) -> None:
        one = watched(error="the credentials were rejected (401)", last_good_at=last_good_at)

        line = health_of(root).status([watched(), one])
        assert line == f"first cycle, work failing, last good {age}: the credentials were rejected (401)"


class TestCycles:
    @pytest.mark.parametrize(
        ("moments", "expected"),
        [([NOON], NOON), ([NOON, NOON - 60], NOON - 60), ([NOON, None], None), ([], None)],
    )
    def test_last_good_cycle_is_that_of_the_source_whose_is_oldest(
        self, moments: list[float | None], expected: float | None
    ) -> None:
        unread = Watched(watched().source, Rules(frozenset(), folds_case=True, words={}))

        found = last_good_cycle_at([unread, *(watched(last_good_at=moment) for moment in moments)])

        assert epoch(found) == expected

    def test_beat_when_a_source_was_not_polled_yet_then_shows_its_cycle_of_the_last_run(self, root: StateRoot) -> None:
        ledgers = Ledgers(root, lambda _: None, lambda: NOON)
        health_of(root).beat(ledgers, [watched(last_cycle=Summary(NOON, 0.1, 7, 3, 0))], "", is_last=True)
        health_of(root).beat(ledgers, [watched()], "")

        assert read_heartbeat(root)["sources"][0]["lastCycle"]["delivered"] == 3

    def test_beat_with_a_folder_in_memory_is_copied_when_an_outcome_changes_and_at_the_end(
        self, root: StateRoot, tmp_path: Path
    ) -> None:
        runtime = tmp_path / "runtime"
        runtime.mkdir()
        health = Health(root, Identity(1, 2), Clocks(clock := Clock()), runtime)
        ledgers = Ledgers(root, lambda _: None, clock)
        copied = []
        for errors, is_last in ((0, False), (0, False), (1, False), (1, False), (1, True)):
            clock.run(60)
            one = watched(last_cycle=Summary(clock.now, 0.1, 7, 0, errors))
            health.beat(ledgers, [one], "", is_last=is_last)
            copied.append(read_json_object(root.heartbeat) == read_json_object(runtime / root.heartbeat.name))

        assert copied == [True, False, True, False, True]


class TestLives:
    def test_last_good_moment_when_an_earlier_life_knew_it_then_is_known(self, root: StateRoot) -> None:
        """Elsewhere a restart made an outage of hours look like one of seconds."""
        sources = [{"name": "work", "lastGoodAt": "2023-11-14T20:13:20.000Z"}, {"name": "odd", "lastGoodAt": 7}, "x"]
        root.heartbeat.write_bytes(to_json_bytes({"writtenAt": "2023-11-14T22:00:00.000Z", "sources": sources}))
        health = health_of(root)

        assert health.last_good_at("work") == NOON - 7200
        assert health.last_good_at("odd") is None
        assert health.last_good_at("new") is None

    def test_source_when_items_are_owed_then_their_number_is_shown(self, root: StateRoot) -> None:
        one = watched(cursor=Cursor({}, frozenset({"a", "b"})), items=5)
        health_of(root).beat(Ledgers(root, lambda _: None, lambda: NOON), [one], "")

        (shown,) = read_heartbeat(root)["sources"]
        assert (shown["items"], shown["owed"]) == (5, 2)


class TestCounts:
    def test_queue_when_an_event_and_an_item_are_held_then_each_is_counted_by_itself(self, root: StateRoot) -> None:
        """An unreadable ledger has no events that could be counted; adding it to the held events hid both."""
        ledgers = Ledgers(root, lambda _: None, lambda: NOON)
        ledgers.save(move(ledger("directory:inbox/a"), "comment:2", Standing.HELD))
        root.ledger("directory:inbox/b").write_bytes(b"")
        ledgers.load()
        health_of(root).beat(ledgers, [], "")

        beat = read_heartbeat(root)
        shown = CliRunner().invoke(cli, ["--state-root", str(root.path), "poll", "status"]).output.splitlines()

        assert [beat[name] for name in ("pending", "uncertain", "held", "gaveUp")] == [0, 0, 1, 0]
        assert list(beat["heldItems"]) == ["directory:inbox/b"]
        assert "queue: 0 pending, 0 outcome unknown, 1 held, 0 given up" in shown
        assert "items held: 1" in shown


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(-5, "0 s"), (0, "0 s"), (59.9, "59 s"), (60, "1 min"), (3599, "59 min"), (7300, "2 h"), (200_000, "2 d")],
)
def test_span_then_is_in_its_largest_unit(seconds: float, words: str) -> None:
    assert span(seconds) == words
