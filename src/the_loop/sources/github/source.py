"""The `github` source: labelled issues and pull requests of some repositories, at minimal cost.

For each repository a poll requests, in this order: the labelled items, page by page; the comments of the whole
repository since a time, and if there are pull requests the review comments; each item that left the listing, by
itself; the reviews of the pull requests that are due. Unchanged responses do not count towards the rate limit (they
have validators), and an idle poll requests nothing else. The cursor is ``{"repos": {name: record.Record}}``.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as replace_sighting
from itertools import islice
from typing import Any

from msgspec.structs import replace

from the_loop.authors import Authors, AuthorsUnusable, Met
from the_loop.config import source_name
from the_loop.core.guards import Pin
from the_loop.core.model import Entry, Kind, Note, WorkItem
from the_loop.sources.base import GiveUp, Known, Limited, Listing, Sighting, Silent, SourceError, Thread, in_few_words
from the_loop.sources.github.client import Client
from the_loop.sources.github.departures import ask_about_missing
from the_loop.sources.github.give_ups import is_written, write_notice
from the_loop.sources.github.identity import AnotherRepository, ask_repository, confirm, find_again, is_elsewhere
from the_loop.sources.github.listing import has_label, is_another_repository, list_items
from the_loop.sources.github.poll import SWEEP, Budget, RepositoryPoll
from the_loop.sources.github.record import Record, Reviews, read_record, write_record
from the_loop.sources.github.repositories import Repositories
from the_loop.sources.github.reviews import read_reviews, to_page
from the_loop.sources.github.rows import Change, Comment, Issue, Review, many, one, to_entries, to_item, to_reviews
from the_loop.sources.github.section import GithubSection
from the_loop.sources.github.streams import read_streams
from the_loop.sources.github.walk import Walk, walk_on


@dataclass(frozen=True, slots=True)
class _Place:
    """A repository: its stable id, and its present name, under which it is requested."""

    id: int
    name: str


@dataclass(frozen=True, slots=True)
class _Seen:
    """What the last poll found of an item, for reading its thread. `item` is present if its whole row was read."""

    is_pull: bool
    id: str
    item: WorkItem | None = None
    is_readable: bool = True  # false for deleted and transferred items


class GithubSource:
    """Implements `Source`, `Reporting` and `Metered` of `sources.base`."""

    provider = "github"
    folds_case = True

    def __init__(
        self,
        section: GithubSection,
        client: Client,
        repositories: Repositories,
        *,
        linger_s: float,
        cursor: Mapping[str, Any] | None = None,
        notes: Sequence[Note] = (),
        authors: Authors | None = None,
    ) -> None:
        """`cursor`: the stored one; it is needed to know its own items before the first poll. `linger_s`: seconds.

        `notes` are told with the first listing. `authors`: which accounts the authorised logins belong to.
        """
        self.name = source_name(section)
        self._section = section
        self._client = client
        self.usage = client.usage
        self._repositories = repositories
        self._linger_s = linger_s
        self._notes = tuple(notes)
        self._authors = authors
        self._host = section.host
        self._root = "github:" if self._host == "api.github.com" else f"github:{self._host}/"
        self._filed: dict[str, str] = {}  # by configured name
        self._places: dict[str, _Place] = {}  # by filed name
        self._seen: dict[str, _Seen] = {}
        self._kept: dict[str, dict[int, WorkItem]] = {}  # by prefix: whole items that are not known to the core yet
        self._heard: dict[
            str, dict[int, list[Reviews]]
        ] = {}  # by prefix: reviews read with a thread since the last poll
        self._odd: dict[str, list[str]] = {}  # by path: rows of the last answer that are not as expected
        self._overlooked: dict[str, str] = {}  # what was told of them
        self._turns: dict[str, int] = {}  # by prefix: the turn of the last successful poll
        self._asked = 0  # polls in this run
        self._polls: dict[str, int] = {}  # by prefix: number of successful polls in this run
        self._unlabelled: dict[str, str] = {}  # by prefix: what is wrong
        self._configured = {repo.lower() for repo in section.repos}
        self._owned = self._configured
        self._records(cursor)

    @property
    def pins(self) -> Mapping[str, Pin]:
        """The accounts of authorised logins as of the last poll or thread; changed in place."""
        return self._authors.pins if self._authors is not None else {}

    def owns(self, ref: str) -> bool:
        place, _, number = ref.partition("#")
        name = place.removeprefix(self._root)
        return bool(number) and place != name and name in self._owned

    async def poll(self, cursor: Mapping[str, Any] | None, known: Mapping[str, Known]) -> Listing:
        reread = self._begin(cursor)
        records = self._records(cursor)
        by_prefix = _KnownByPrefix(known)
        self._seen.clear()
        sightings: list[Sighting] = []
        faults: list[SourceError] = []
        failed = items = 0
        budget = Budget()
        for repo in self._in_turn(records):
            if any(isinstance(fault, Limited | Silent) for fault in faults):
                failed += 1
                continue
            try:
                poll = await self._poll_repo(repo, records.get(repo.lower()), by_prefix, budget)
            except SourceError as error:
                failed += 1
                faults.append(_named(repo, error))
                continue
            sightings += poll.sightings(self._linger_s)
            records[repo.lower()] = poll.record(self._polls.get(poll.prefix, 0))
            items += len(poll.listed)
            faults += [_named(repo, fault) for fault in poll.faults]
            self._remember(repo, poll)
        if failed == len(self._section.repos):
            raise next((fault for fault in faults if isinstance(fault, Limited)), None) or _together(faults)
        written = {repo: write_record(record) for repo, record in records.items() if record is not None}
        self._meet(person for sighting in sightings for person in _people(sighting.ref, sighting.item, sighting.rows))
        again = {sighting.ref for sighting in sightings} & reread
        sightings = [replace_sighting(one, is_owed=True) if one.ref in again else one for one in sightings]
        new = {"repos": written}
        if self._authors is not None:
            self._authors.end(frozenset(again), new)
        overlooked = self._look_over()
        notes, self._notes = self._notes, ()
        return Listing(sightings, new, items, faults, notes, is_short=self._client.is_short, overlooked=overlooked)

    async def thread(self, ref: str) -> Thread:
        place, number = self._place_of(ref)
        seen = self._seen[ref]
        item = seen.item
        if item is None:
            issue = await self._ask_issue(place, number, seen.id) if seen.is_readable else None
            if issue is None:
                return Thread(None, ())
            item = to_item(ref, issue) if issue.state == "open" else None
        entries, gap = await self._entries(ref, place, is_pull=seen.is_pull)
        self._meet(_people(ref, item, entries))
        return Thread(item, entries, gap=gap)

    async def labelled_by(self, ref: str) -> dict[str, tuple[str | None, int | None]]:
        place, number = self._place_of(ref)
        path = f"/repos/{place.name}/issues/{number}/timeline"
        found: dict[str, tuple[str | None, int | None]] = {}
        changes = await walk_on(self._client, path)
        if changes.gap:
            raise SourceError(f"{path}: {changes.gap}")
        for row in many(changes.rows, Change, path):
            name = (row.label.name or "").casefold() if row.label else ""
            if row.event == "labeled":
                found[name] = (row.actor.login, row.actor.id) if row.actor else (None, None)
            elif row.event == "unlabeled":
                found.pop(name, None)
        self._meet(Met(ref, login, id_) for login, id_ in found.values())
        return found

    async def report(self, report: GiveUp) -> str:
        place, number = self._place_of(report.ref)
        return await write_notice(self._client, place.name, number, report)

    async def is_reported(self, report: GiveUp) -> bool:
        place, number = self._place_of(report.ref)
        return await is_written(self._client, place.name, number, report)

    async def close(self) -> None:
        await self._client.close()

    def _look_over(self) -> dict[str, str]:
        """Rows that cannot be read, a label that does not exist: no faults, as all else is served. Told once each."""
        found = {
            path.removeprefix("/repos/").partition("?")[0]: "; ".join(odd) for path, odd in self._odd.items() if odd
        }
        found |= {prefix.removeprefix(self._root): text for prefix, text in self._unlabelled.items()}
        new = [(place, reason) for place, reason in found.items() if self._overlooked.get(place) != reason]
        told = (Note("item.failed", {"source": self.name, "ref": place, "reason": reason}) for place, reason in new)
        self._notes = (*self._notes, *told)
        self._overlooked = found
        return found

    # --- authors ---

    def _begin(self, cursor: Mapping[str, Any] | None) -> frozenset[str]:
        """The items that need a full re-read, as the operator has decided about an author. Raises SourceError."""
        try:
            return self._authors.begin(cursor) if self._authors is not None else frozenset()
        except AuthorsUnusable as error:
            raise SourceError(error.problem, error.hint) from error

    def _meet(self, people: Iterable[Met]) -> None:
        """Pin the accounts of these authors before the core sees what they wrote. Raises SourceError."""
        if self._authors is None:
            return
        try:
            self._notes = (*self._notes, *self._authors.meet(people))
        except AuthorsUnusable as error:
            raise SourceError(error.problem, error.hint) from error

    # --- one repository ---

    def _place_of(self, ref: str) -> tuple[_Place, str]:
        filed, _, number = ref.removeprefix(self._root).partition("#")
        if filed not in self._places:
            raise SourceError(f"cannot find '{filed}': it was not polled yet")
        return self._places[filed], number

    def _records(self, cursor: Mapping[str, Any] | None) -> dict[str, Record | None]:
        """The stored record of each configured name; None if its repository is configured under its new name, too."""
        stored = (cursor or {}).get("repos")
        records: dict[str, Record | None] = {}
        for repo in sorted(self._configured):
            record = read_record(stored.get(repo)) if isinstance(stored, Mapping) else None
            if record is not None and self._is_configured_otherwise(record.name, repo):
                record = None
            records[repo] = record
            if record is not None:
                self._file(repo, record.filed, _Place(record.id, record.name))
        return records

    def _in_turn(self, records: Mapping[str, Record | None]) -> list[str]:
        """The repositories, with another one first in each poll: a limit or a silence cuts off the last ones."""
        repos = list(self._section.repos)
        written = sum(record.turn for record in records.values() if record is not None)
        first = (written + self._asked) % len(repos)
        self._asked += 1
        return repos[first:] + repos[:first]

    def _is_configured_otherwise(self, name: str, repo: str) -> bool:
        return name.lower() != repo.lower() and name.lower() in self._configured

    def _file(self, repo: str, filed: str, place: _Place) -> None:
        self._filed[repo.lower()] = filed
        self._owned = {self._filed.get(configured, configured) for configured in self._configured}
        self._places[filed] = place

    async def _poll_repo(
        self, repo: str, record: Record | None, known: _KnownByPrefix, budget: Budget
    ) -> RepositoryPoll:
        try:
            return await self._poll_once(record or await self._introduce(repo), known, budget)
        except AnotherRepository:
            if record is None:
                raise
        # its name was taken over: go on under its new name, or with the new repository
        name = await find_again(self._client, record)
        if name is None or self._is_configured_otherwise(name, repo):
            return await self._poll_once(await self._introduce(repo), known, budget)
        return await self._poll_once(replace(record, name=name), known, budget)

    async def _poll_once(self, old: Record, known: _KnownByPrefix, budget: Budget) -> RepositoryPoll:
        prefix = self._prefix(old.filed)
        poll = RepositoryPoll(
            old,
            prefix,
            self._turns.get(prefix, old.turn) + 1,
            known.of(prefix),
            old.name,
            budget,
            kept=self._kept.get(prefix, {}),
            heard=self._heard.get(prefix, {}),
        )
        if await list_items(self._client, self._section, poll):
            poll.name = (await confirm(self._client, poll)).full_name
        elif is_another_repository(poll):
            await confirm(self._client, poll)
        await self._look_for_label(poll)
        await read_streams(self._client, poll)
        self._odd |= poll.odd
        if poll.is_doubtful:
            await confirm(self._client, poll)
        await ask_about_missing(self._client, self._section, poll)
        await read_reviews(self._client, poll)
        return poll

    async def _look_for_label(self, poll: RepositoryPoll) -> None:
        """Without an item: is there such a label? Asked once, and again every SWEEP polls while it is missing.

        So it is when the last item is gone: the label may be gone with it.
        """
        label = self._section.label
        if poll.rows or (poll.old.label == label and not poll.before):
            poll.label = label
            self._unlabelled.pop(poll.prefix, None)
            return
        if poll.prefix in self._unlabelled and poll.turn % SWEEP:
            return
        try:
            is_there = await has_label(self._client, self._section, poll.name)
        except SourceError as fault:
            poll.label = ""
            poll.faults.append(fault)
            return
        poll.label = label if is_there else ""
        if is_there:
            self._unlabelled.pop(poll.prefix, None)
        else:
            self._unlabelled[poll.prefix] = f"it has no label '{label}'"

    async def _introduce(self, repo: str) -> Record:
        """The first record of a repository: its stable id, its present name, and its name in refs."""
        found = await ask_repository(self._client, repo)
        if self._is_configured_otherwise(found.full_name, repo):
            raise SourceError(f"it is a former name of '{found.full_name}'", "remove it from `repos`")
        return Record(found.id, found.full_name, self._repositories.filed_name(self._host, found.id, repo))

    def _remember(self, repo: str, poll: RepositoryPoll) -> None:
        """Keep what is needed to read the thread of a reported item, and to request less in the next poll."""
        self._file(repo, poll.old.filed, _Place(poll.old.id, poll.name))
        self._turns[poll.prefix] = poll.turn
        self._polls[poll.prefix] = self._polls.get(poll.prefix, 0) + 1
        whole = {**poll.kept, **poll.fresh}
        for number in poll.listed:
            row = poll.rows[number]
            self._seen[poll.ref(number)] = _Seen(row.is_pull, row.id, whole.get(number))
        for number, (item, is_pull) in poll.unlisted.items():
            self._seen[poll.ref(number)] = _Seen(is_pull, item.id, item)
        for number, left in poll.left.items():
            self._seen[poll.ref(number)] = _Seen(left.pull, poll.known[number].id, is_readable=left.is_readable)
        waiting = {number for number in poll.listed if number not in poll.known}
        self._kept[poll.prefix] = {number: item for number, item in whole.items() if number in waiting}
        self._heard[poll.prefix] = {}

    # --- one item by itself ---

    async def _ask_issue(self, place: _Place, number: str, node_id: str) -> Issue | None:
        """The present item; None if it is deleted or transferred. Raises SourceError."""
        path = f"/repos/{place.name}/issues/{number}"
        answer = await self._client.get(path)
        if answer.status == 410 or await is_elsewhere(self._client, answer, place.id, place.name):
            return None
        if answer.status == 404:
            await ask_repository(self._client, place.name)
            return None
        issue = one(answer.value, Issue, path)
        if node_id not in ("", issue.node_id):
            raise SourceError(f"{path} is not the item that had this number before")
        return issue

    async def _entries(self, ref: str, place: _Place, *, is_pull: bool) -> tuple[list[Entry], str]:
        """The comments and reviews of an item, and why there may be more, "" if these are all. Raises SourceError."""
        prefix, _, number = ref.partition("#")
        repo = f"/repos/{place.name}"
        comments = await walk_on(self._client, f"{repo}/issues/{number}/comments")
        entries, gap = to_entries(many(comments.rows, Comment, repo), Kind.COMMENT), comments.gap
        if is_pull:
            comments = await walk_on(self._client, f"{repo}/pulls/{number}/comments")
            entries += to_entries(many(comments.rows, Comment, repo), Kind.REVIEW_COMMENT)
            reviews = await walk_on(self._client, f"{repo}/pulls/{number}/reviews")
            entries += to_reviews(many(reviews.rows, Review, repo))
            gap = gap or comments.gap or reviews.gap
            self._heard.setdefault(prefix, {})[int(number)] = _pages_of(reviews)
        return entries, gap

    def _prefix(self, filed: str) -> str:
        return f"{self._root}{filed}".lower()


class _KnownHere(Mapping[int, Known]):
    """The known items of one repository by number; as with those of the source, an ended one has to be looked up."""

    def __init__(self, known: Mapping[str, Known], prefix: str, here: Mapping[int, Known]) -> None:
        self._known = known
        self._prefix = prefix
        self._open = here

    def __getitem__(self, number: int) -> Known:
        return self._open.get(number) or self._known[f"{self._prefix}#{number}"]

    def __contains__(self, number: object) -> bool:
        return number in self._open or f"{self._prefix}#{number}" in self._known

    def __iter__(self) -> Iterator[int]:
        return iter(self._open)

    def __len__(self) -> int:
        return len(self._open)

    def items(self) -> ItemsView[int, Known]:
        return self._open.items()


class _KnownByPrefix:
    """The known items of each repository."""

    def __init__(self, known: Mapping[str, Known]) -> None:
        self._known = known
        self._grouped: dict[str, dict[int, Known]] = {}
        for ref, one_known in known.items():
            prefix, _, number = ref.partition("#")
            if number.isascii() and number.isdigit():
                self._grouped.setdefault(prefix, {})[int(number)] = one_known

    def of(self, prefix: str) -> Mapping[int, Known]:
        return _KnownHere(self._known, prefix, self._grouped.get(prefix, {}))


def _pages_of(found: Walk) -> list[Reviews]:
    """The pages of reviews that were read as a whole."""
    rows = iter(found.rows)
    return [to_page(page, many(list(islice(rows, page.size)), Review, page.path)) for page in found.pages]


def _people(ref: str, item: WorkItem | None, entries: Iterable[Entry]) -> Iterator[Met]:
    """The authors of this item and these entries, not of an item of an unchanged page: they were met with that page."""
    if item is not None and item.url:
        yield Met(ref, item.author, item.author_id)
    for entry in entries:
        yield Met(ref, entry.author, entry.author_id)


def _together(faults: list[SourceError]) -> SourceError:
    """The error if every repository failed: the only one, or all of them in one sentence."""
    return faults[0] if len(faults) == 1 else SourceError(in_few_words(faults))


def _named(repo: str, error: SourceError) -> SourceError:
    if isinstance(error, Limited):
        return error
    return SourceError(f"{repo}: {error.problem}", error.hint)
