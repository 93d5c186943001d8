"""What every source has to do, whatever it reads: `the_loop.sources.base` as tests. One that passes keeps the promise.

A source comes with a `Bench`: one place outside, sources that read it, and what can happen there.

    class TestMine(SourceSuite):
        bench_type = MyBench
"""

from __future__ import annotations

import asyncio
import copy
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterator, Mapping
from functools import wraps
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar

import pytest

from contract.cancelling import CancelledAt, is_cancelled
from the_loop.core.model import Entry, Presence, epoch, in_order
from the_loop.plugins import SOURCES
from the_loop.sources.base import Known, Listing, Sighting, Source, SourceError, SourceSite, Thread
from the_loop.sources.limits import RateLimiters

T = TypeVar("T")
NAME = "mine"
_AWAITS = 400  # at which a poll of a bench is cancelled, one after the other; none of them has as many
_QUIET = 9  # polls after which a cursor stays as it is while nothing happens
_CYCLES = 6  # in which an item that ended has been said to be gone
_GARBAGE: tuple[dict[str, Any], ...] = ({}, {"of": ["another", "shape"]}, {"repos": 5, "folders": 5, "lines": 5})


class Bench(ABC):
    """One place with items in two parts, which can fail by themselves, and people who write there.

    Times and ids are the place's own. `breaks` and `endings` name what `break_all` and `end` know.
    """

    provider: ClassVar[str]
    breaks: ClassVar[tuple[str, ...]]
    endings: ClassVar[tuple[str, ...]]
    author: ClassVar[str]  # of everything
    shows_again: ClassVar[bool] = False  # rows that were told before, together with new ones

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.built: list[Source] = []

    @abstractmethod
    def section(self, name: str) -> dict[str, Any]:
        """What the operator would write for this place, without the provider."""

    @abstractmethod
    def add_item(self, part: int = 0) -> str:
        """A new item; its ref."""

    @abstractmethod
    def write(self, ref: str, text: str) -> str:
        """Somebody writes this on an item; the entry's key."""

    @abstractmethod
    def end(self, ref: str, how: str) -> None:
        """The item ends in a way that can be seen."""

    @abstractmethod
    def lose(self, ref: str) -> None:
        """The item is there, and the place does not show it."""

    @abstractmethod
    def break_all(self, how: str) -> None:
        """Nothing of the place can be read, until `mend`."""

    @abstractmethod
    def break_part(self, ref: str) -> None:
        """The part with this item cannot be read, until `mend`; the other one can."""

    @abstractmethod
    def mend(self) -> None: ...

    @abstractmethod
    def pass_time(self) -> None:
        """As much time as there is between two polls, and more than the place needs to be sure of anything."""

    @abstractmethod
    def close(self) -> None:
        """Put away what the bench itself has open."""

    def source(self, cursor: Mapping[str, Any] | None = None, name: str = NAME) -> Source:
        """A source as a start builds it, by its provider's own hand."""
        provider = SOURCES.get(self.provider)
        fields: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in self.section(name).items()
        }
        section = provider.Section(provider=self.provider, name=name, **fields)
        site = SourceSite(
            name=name,
            root=self.folder / "root",
            folder=self.folder / "root" / "local" / "sources" / f"{name}.d",
            environ={"HOME": str(self.folder)},
            authorized=frozenset({self.author}),
            linger_s=0.0,
            limiters=RateLimiters(lambda: 0.0),
            cursor=cursor,
        )
        source = provider.build(section, site)
        self.built.append(source)
        return source


class Reader:
    """What the core does with a source, and remembers from poll to poll and from life to life."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.cursor: dict[str, Any] | None = None
        self.known: dict[str, Known] = {}
        self.source = bench.source()

    async def poll(self) -> Listing:
        """One poll; its cursor is stored, and what it says of the items is known from now on."""
        listing = await self.look()
        self.take(listing)
        return listing

    async def look(self, at: int = 0) -> Listing:
        """A poll that is not recorded. Cancelled at its await number `at`, if that is not 0."""
        before = copy.deepcopy((self.cursor, self.known))
        known = MappingProxyType(self.known)
        try:
            return await CancelledAt(self.source.poll(self.cursor, known), at)
        finally:
            assert (self.cursor, self.known) == before, "what it was given is not its own"

    def take(self, listing: Listing) -> None:
        self.cursor = json.loads(json.dumps(listing.cursor))
        self.known = dict(self.known)
        for sighting in listing.sightings:
            if sighting.item is not None:
                self.known[sighting.ref] = Known(True, False, sighting.item.url, sighting.item.id)
            elif sighting.presence is Presence.GONE:
                self.known[sighting.ref] = Known(False, False, self.known[sighting.ref].url)

    async def thread(self, ref: str) -> Thread:
        return await self.source.thread(ref)

    async def restart(self) -> None:
        """The next life, from what is on disk."""
        await self.source.close()
        self.source = self.bench.source(self.cursor)


def listed(listing: Listing) -> dict[str, Sighting]:
    return {one.ref: one for one in listing.sightings if one.presence is Presence.LISTED}


def departed(listing: Listing) -> set[str]:
    return {one.ref for one in listing.sightings if one.presence is not Presence.LISTED}


def keys(entries: Any) -> list[str]:
    return [entry.key for entry in in_order(entries)]


def rows(listing: Listing) -> dict[str, list[str]]:
    """The keys of the new rows of each item that has any, in order."""
    return {one.ref: keys(one.rows) for one in listing.sightings if one.rows}


def in_place(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test in an event loop, and close the sources that its bench has built before that ends."""

    @wraps(test)
    def running(self: SourceSuite, bench: Bench, **arguments: Any) -> None:
        async def whole() -> None:
            try:
                await test(self, bench, **arguments)
            finally:
                for source in bench.built:
                    await source.close()

        asyncio.run(whole())

    return running


class SourceSuite:
    """The tests. Each begins with two items, one in each part, the first of which has two comments."""

    bench_type: ClassVar[type[Bench]]

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        for name, values in (("ending", self.bench_type.endings), ("damage", self.bench_type.breaks)):
            if name in metafunc.fixturenames:
                metafunc.parametrize(name, values)

    @pytest.fixture
    def bench(self, tmp_path: Path) -> Iterator[Bench]:
        bench = self.bench_type(tmp_path)
        self.one, self.two = bench.add_item(0), bench.add_item(1)
        self.old = [bench.write(self.one, "the first"), bench.write(self.one, "the second")]
        bench.pass_time()
        yield bench
        bench.close()

    # --- what it shows ---

    @in_place
    async def test_first_poll_lists_every_item_and_nothing_else(self, bench: Bench) -> None:
        listing = await Reader(bench).poll()

        assert set(listed(listing)) == {self.one, self.two}
        assert (departed(listing), list(listing.faults), listing.items) == (set(), [], 2)

    @in_place
    async def test_item_has_all_its_fields_and_a_valid_ref(self, bench: Bench) -> None:
        reader = Reader(bench)
        sightings = listed(await reader.poll())

        for ref, sighting in sightings.items():
            thread = await reader.thread(ref)
            assert sighting.item is not None
            assert thread.item is not None
            for item in (sighting.item, thread.item):
                assert (item.ref, item.author) == (ref, bench.author)
                assert (item.id, item.url) == (thread.item.id, thread.item.url)
                assert item.id
                assert "://" in item.url
            assert thread.item.title
            assert thread.item.body
            assert is_moment(thread.item.created_at)
            place, slash, name = ref.removeprefix(f"{bench.provider}:").rpartition("/")
            assert (ref.partition(":")[0], slash) == (bench.provider, "/")
            assert place
            assert name
            assert ref.isprintable()
            assert ref == ref.strip()

    @in_place
    async def test_source_is_named_as_configured(self, bench: Bench) -> None:
        source = bench.source()

        assert (source.name, source.provider, type(source.folds_case)) == (NAME, bench.provider, bool)

    @in_place
    async def test_thread_has_every_entry_as_it_was_written(self, bench: Bench) -> None:
        reader = Reader(bench)
        await reader.poll()

        entries = in_order((await reader.thread(self.one)).entries)

        assert [entry.body for entry in entries] == ["the first", "the second"]
        assert [entry.key for entry in entries] == self.old
        assert {entry.author for entry in entries} == {bench.author}
        for entry in entries:
            assert is_moment(entry.created_at)
            assert "://" in entry.url
            assert "/" not in entry.id
            assert entry.id.isprintable()
        assert (await reader.thread(self.two)).entries in ([], ())

    @in_place
    async def test_odd_text_arrives_made_safe(self, bench: Bench) -> None:
        reader = Reader(bench)
        key = bench.write(self.one, "a\u202eb \U0001f4a9 -->\n# `c`\n")
        bench.pass_time()
        await reader.poll()

        entries = {entry.key: entry for entry in (await reader.thread(self.one)).entries}

        assert entries[key].body == "a\u202eb \U0001f4a9 -->\n# `c`\n"
        json.dumps(entries[key].to_json(), ensure_ascii=False).encode()

    # --- whose it is ---

    @in_place
    async def test_owns_its_items_and_their_deliveries_from_the_start_of_each_life(self, bench: Bench) -> None:
        reader = Reader(bench)
        await reader.poll()
        await reader.restart()

        for ref in (self.one, self.two):
            assert reader.source.owns(ref)
            assert reader.source.owns(f"{ref}/spawn:1")
            assert reader.source.owns(f"{ref}/{self.old[0]}")

    @in_place
    async def test_owns_nothing_of_others_and_takes_any_text(self, bench: Bench) -> None:
        source = bench.source()
        neighbour = bench.source(name="another")

        assert not neighbour.owns(self.one)
        place = self.one.removeprefix(f"{bench.provider}:")
        for text in ("", ":", "/", "#", bench.provider, f"{bench.provider}:", f"x{self.one}", f"other:{place}", "\0"):
            assert not source.owns(text), text

    # --- from poll to poll ---

    @in_place
    async def test_quiet_poll_lists_all_again_tells_nothing_new_and_leaves_the_cursor(self, bench: Bench) -> None:
        reader = Reader(bench)
        await reader.poll()
        cursors = []
        for _ in range(_QUIET):
            bench.pass_time()
            listing = await reader.poll()
            cursors.append(reader.cursor)

            assert set(listed(listing)) == {self.one, self.two}
            assert (rows(listing), departed(listing), list(listing.notes)) == ({}, set(), [])
        assert cursors[-1] == cursors[-2] == cursors[-3]

    @in_place
    async def test_new_entries_come_once_and_in_order(self, bench: Bench) -> None:
        reader = Reader(bench)
        await reader.poll()
        new = {self.one: [], self.two: []}  # type: dict[str, list[str]]
        for ref in (self.two, self.one, self.one, self.two, self.one):
            new[ref].append(bench.write(ref, f"news on {ref}"))
        bench.pass_time()

        first = rows(await reader.poll())
        bench.pass_time()
        second = rows(await reader.poll())

        assert self.without_old(bench, first) == new
        assert second == {} or (bench.shows_again and self.without(second, first) == {})

    @in_place
    async def test_new_item_is_listed_with_what_is_on_it(self, bench: Bench) -> None:
        reader = Reader(bench)
        await reader.poll()
        ref = bench.add_item()
        key = bench.write(ref, "at once")
        bench.pass_time()

        listing = await reader.poll()

        assert ref in listed(listing)
        assert keys((await reader.thread(ref)).entries) == [key]

    @in_place
    async def test_each_life_goes_on_where_the_last_one_stopped(self, bench: Bench) -> None:
        reader = Reader(bench)
        await reader.poll()
        ids = {ref: one.id for ref, one in reader.known.items()}
        before = keys((await reader.thread(self.one)).entries)
        new = bench.write(self.one, "while nothing ran")
        bench.pass_time()
        await reader.restart()

        listing = await reader.poll()

        assert self.without_old(bench, rows(listing)) == {self.one: [new]}
        assert {ref: one.item.id for ref, one in listed(listing).items() if one.item} == ids
        assert keys((await reader.thread(self.one)).entries) == [*before, new]

    @in_place
    async def test_without_a_cursor_everything_is_listed_and_nothing_has_ended(self, bench: Bench) -> None:
        reader = Reader(bench)
        await reader.poll()
        new = bench.write(self.two, "unseen")
        bench.pass_time()
        reader.cursor = None
        await reader.restart()

        listing = await reader.poll()

        assert (set(listed(listing)), departed(listing)) == ({self.one, self.two}, set())
        assert keys((await reader.thread(self.one)).entries) == self.old
        assert keys((await reader.thread(self.two)).entries) == [new]

    @pytest.mark.parametrize("cursor", _GARBAGE, ids=["empty", "unknown", "garbage"])
    @in_place
    async def test_cursor_that_it_cannot_read_lists_everything_or_is_refused(
        self, bench: Bench, cursor: dict[str, Any]
    ) -> None:
        reader = Reader(bench)
        await reader.poll()
        reader.cursor = cursor

        try:
            listing = await reader.look()
        except SourceError:
            pytest.fail("that would keep the cursor for ever")
        except Exception:  # noqa: BLE001 (the core forgets such a cursor)
            reader.cursor = None
            listing = await reader.look()

        assert (set(listed(listing)), departed(listing)) == ({self.one, self.two}, set())

    # --- cut short, or failed ---

    @in_place
    async def test_poll_that_is_cancelled_at_any_await_changes_nothing(self, bench: Bench) -> None:
        reader = Reader(bench)
        await reader.poll()
        new = {self.one: [bench.write(self.one, "news")], self.two: [bench.write(self.two, "more")]}
        for number in range(1, _AWAITS):
            if not await is_cancelled(reader.look(number)):
                break
        else:
            pytest.fail("a poll that never ends")
        bench.pass_time()

        listing = await reader.poll()

        assert self.without_old(bench, rows(listing)) == new
        assert (set(listed(listing)), departed(listing), list(listing.faults)) == ({self.one, self.two}, set(), [])

    @in_place
    async def test_thread_that_is_cancelled_at_any_await_can_be_read_again(self, bench: Bench) -> None:
        reader = Reader(bench)
        await reader.poll()
        for number in range(1, _AWAITS):
            if not await is_cancelled(CancelledAt(reader.source.thread(self.one), number)):
                break
        else:
            pytest.fail("a thread that never ends")

        assert keys((await reader.thread(self.one)).entries) == self.old

    @in_place
    async def test_poll_that_fails_is_a_source_error_and_loses_nothing(self, bench: Bench, damage: str) -> None:
        reader = Reader(bench)
        await reader.poll()
        new = bench.write(self.one, "while it was broken")
        bench.break_all(damage)
        bench.pass_time()
        for _ in range(3):
            with pytest.raises(SourceError) as caught:
                await reader.poll()
            assert caught.value.problem
            bench.pass_time()
        with pytest.raises(SourceError):
            await bench.source().poll(None, reader.known)
        bench.mend()

        listing = await reader.poll()

        assert self.without_old(bench, rows(listing)) == {self.one: [new]}
        assert (set(listed(listing)), departed(listing), list(listing.faults)) == ({self.one, self.two}, set(), [])

    @in_place
    async def test_part_that_fails_is_named_and_keeps_its_part_of_the_cursor(self, bench: Bench) -> None:
        reader = Reader(bench)
        await reader.poll()
        missed, new = bench.write(self.one, "unseen"), bench.write(self.two, "seen")
        bench.pass_time()
        bench.break_part(self.one)
        for number in range(3):
            listing = await reader.poll()
            assert listing.faults
            assert all(isinstance(fault, SourceError) for fault in listing.faults)
            assert (set(listed(listing)), departed(listing)) == ({self.two}, set())
            found = self.without_old(bench, rows(listing))
            assert found == {self.two: [new]} or (number and (not found or bench.shows_again))
            await reader.restart()
            bench.pass_time()
        bench.mend()

        listing = await reader.poll()

        assert list(listing.faults) == []
        assert set(listed(listing)) == {self.one, self.two}
        assert self.without_old(bench, rows(listing))[self.one] == [missed]

    # --- endings ---

    @in_place
    async def test_item_that_ended_is_told_until_that_is_known(self, bench: Bench, ending: str) -> None:
        reader = Reader(bench)
        await reader.poll()
        bench.end(self.one, ending)
        for _ in range(_CYCLES):
            bench.pass_time()
            listing = await reader.look()
            assert departed(listing) <= {self.one}
            assert self.two in listed(listing)
            if any(one.presence is Presence.GONE for one in listing.sightings):
                break
            reader.take(listing)
        else:
            pytest.fail("it is not said to be gone")

        is_open = dict(reader.known)
        for is_another_life in (False, True):  # the core was cut off, or its disk refused, before that was written
            reader.take(listing)
            reader.known = is_open
            if is_another_life:
                await reader.restart()
            listing = await reader.look()
            (gone,) = (one for one in listing.sightings if one.ref == self.one)
            assert gone.presence is Presence.GONE
            assert gone.reason
            assert (await reader.thread(self.one)).item is None
        reader.take(listing)
        for _ in range(2):
            bench.pass_time()
            assert (set(listed(await reader.poll())), reader.known[self.one].is_open) == ({self.two}, False)

    @in_place
    async def test_item_that_is_not_shown_has_not_ended(self, bench: Bench) -> None:
        reader = Reader(bench)
        await reader.poll()
        bench.lose(self.one)

        for _ in range(_CYCLES):
            bench.pass_time()
            try:
                listing = await reader.poll()
            except SourceError:
                continue
            assert not departed(listing)
        bench.mend()

        assert set(listed(await reader.poll())) == {self.one, self.two}

    @in_place
    async def test_item_that_vanishes_between_poll_and_thread_has_a_thread_without_it(
        self, bench: Bench, ending: str
    ) -> None:
        reader = Reader(bench)
        await reader.poll()
        bench.end(self.one, ending)
        bench.pass_time()

        try:
            thread = await reader.thread(self.one)
        except SourceError:
            return  # it could not be found out at this moment

        assert thread.item is None or thread.item.ref == self.one

    @in_place
    async def test_close_lets_go_whatever_came_before(self, bench: Bench) -> None:
        unused, used = bench.source(), Reader(bench)
        await used.poll()

        for source in (unused, used.source, used.source):
            await source.close()

    # --- how rows are compared ---

    def without_old(self, bench: Bench, found: Mapping[str, list[str]]) -> dict[str, list[str]]:
        """Rows without the two that every item begins with, where the place shows such ones again."""
        return self.without(found, {self.one: self.old}) if bench.shows_again else dict(found)

    def without(self, found: Mapping[str, list[str]], told: Mapping[str, list[str]]) -> dict[str, list[str]]:
        left = {ref: [key for key in keys if key not in told.get(ref, ())] for ref, keys in found.items()}
        return {ref: keys for ref, keys in left.items() if keys}


def is_moment(text: str) -> bool:
    return text.endswith("Z") and epoch(text) is not None


__all__ = ["NAME", "Bench", "Entry", "SourceSuite"]
