"""The `github` source: labelled issues and pull requests of some repositories, at minimal cost.

For each repository one look asks, in this order: the labelled items, page by page; the comments, and if there are
pull requests the review comments, of the whole repository since a moment; each item that left the listing, by
itself. Unchanged answers cost no points (validators), and an idle look asks nothing else.

Position::

    {"repos": {name: {"id", "name", "filed",
                      "pages": [{"path", "etag", "size", "rows": [[number, node id, is a pull request, author]]}],
                      "excluded": [number], "comment", "review_comment": {"since", "path", "etag"},
                      "left": {number: {"reason", "at", "pull"}}, "missing": [number]}}}

Times are the server's. `size` counts the rows of the answer, also those that are of another form.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote, urlsplit

from the_loop.config import GithubSection
from the_loop.model import Entry, Kind, Presence, WorkItem
from the_loop.sources.base import Known, Limited, Listing, Sighting, SourceError, Thread
from the_loop.sources.github.client import Answer, Client
from the_loop.sources.github.record import is_record
from the_loop.sources.github.repositories import Repositories
from the_loop.sources.github.rows import Comment, Issue, Repository, many, one, to_entries, to_item
from the_loop.sources.github.walk import PAGE, listing_pages, page_path, walk

OVERLAP_S: Final = 120  # how far before the newest row a list is asked again: late rows, whole seconds, lag
_ADVANCE_AT: Final = 50  # rows; a moved `since` is a new address, and the first answer there is never a 304
_SWEEP: Final = 30  # an item without its label is asked about every so many looks
_STREAMS: Final = {Kind.COMMENT: "issues/comments", Kind.REVIEW_COMMENT: "pulls/comments"}


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a repository is asked: its lasting id, and its present name."""

    id: int
    name: str


@dataclass(slots=True)
class _Look:
    """One repository in one look; `record` is its new position."""

    name: str
    prefix: str
    old: Mapping[str, Any]
    record: dict[str, Any]
    now: float = 0.0
    listed: dict[int, WorkItem] = field(default_factory=dict)
    excluded: set[int] = field(default_factory=set)  # labelled, but of a kind that is not monitored
    pulls: set[int] = field(default_factory=set)
    rows: dict[int, list[Entry]] = field(default_factory=dict)
    sightings: list[Sighting] = field(default_factory=list)


class GithubSource:
    """Satisfies `sources.base.Source`."""

    provider = "github"
    folds_case = True

    def __init__(
        self,
        section: GithubSection,
        client: Client,
        repositories: Repositories,
        *,
        linger_s: float,
        interval_s: float,
    ) -> None:
        self.name = section.name or section.default_name()
        self._section = section
        self._client = client
        self._repositories = repositories
        self._linger_s = linger_s
        self._interval_s = interval_s
        self._host = urlsplit(section.api_url).hostname or ""
        self._places: dict[str, _Place] = {}  # by filed name
        self._fresh: dict[str, WorkItem] = {}  # items whose whole row was in the last look
        self._pulls: dict[str, bool] = {}
        self._unreadable: set[str] = set()  # left for good: there is no thread to read any more
        self._configured = {repo.lower() for repo in section.repos}

    def owns(self, ref: str) -> bool:
        place, _, number = ref.partition("#")
        name = place.removeprefix(self._prefix(""))
        return bool(number) and place != name and (name in self._configured or name in self._places)

    async def look(self, position: Mapping[str, Any] | None, known: Mapping[str, Known]) -> Listing:
        repos = _mapping((position or {}).get("repos"))
        self._fresh.clear()
        sightings: list[Sighting] = []
        records: dict[str, Any] = {}
        faults: list[SourceError] = []
        items = 0
        for repo in self._section.repos:
            old = self._position_of(repo, repos)
            if old:
                records[repo.lower()] = old
            if faults and isinstance(faults[-1], Limited):
                faults.append(faults[-1])
                continue
            try:
                look = await self._look_at(repo, old, known)
            except Limited as limit:
                faults.append(limit)
            except SourceError as error:
                faults.append(SourceError(f"{repo}: {error.problem}", error.hint))
            else:
                sightings += look.sightings
                records[repo.lower()] = look.record
                items += len(look.listed)
        if len(faults) == len(self._section.repos):
            raise faults[-1]
        return Listing(sightings, {"repos": records}, items, faults)

    async def thread(self, ref: str) -> Thread:
        name, _, number = ref.removeprefix(self._prefix("")).partition("#")
        place = self._places[name]
        item = self._fresh.get(ref)
        if item is None:
            issue = None if ref in self._unreadable else await self._ask_issue(place, number)
            if issue is None:
                return Thread(None, ())
            item = to_item(ref, issue) if issue.state == "open" else None
        path = f"/repos/{place.name}/issues/{number}/comments?per_page={PAGE}"
        entries = await self._entries(path, Kind.COMMENT)
        if self._pulls.get(ref):
            path = f"/repos/{place.name}/pulls/{number}/comments?per_page={PAGE}"
            entries += await self._entries(path, Kind.REVIEW_COMMENT)
        return Thread(item, entries)

    async def close(self) -> None:
        await self._client.close()

    # --- one repository ---

    def _position_of(self, repo: str, repos: Mapping[str, Any]) -> Mapping[str, Any]:
        """What is stored for a configured name; nothing where its repository is configured by its new name as well."""
        old = _mapping(repos.get(repo.lower()))
        if not is_record(old):
            return {}
        name = str(old["name"]).lower()
        return {} if name != repo.lower() and name in self._configured else old

    async def _look_at(self, repo: str, old: Mapping[str, Any], known: Mapping[str, Known]) -> _Look:
        is_new = not old
        old = old or await self._introduce(repo)
        look = _Look(str(old["name"]), self._prefix(str(old["filed"])), old, dict(old))
        self._places[str(old["filed"])] = _Place(int(old["id"]), look.name)
        await self._list_items(look)
        for kind, place in _STREAMS.items():
            if kind is Kind.COMMENT or look.pulls:
                await self._list_rows(look, kind, place)
        before = set() if is_new else _listed_in(old)
        for number, item in look.listed.items():
            # whoever was not in the last listing may have been written on since: those rows were nobody's
            is_owed = number not in before
            rows = look.rows.get(number, ())
            look.sightings.append(Sighting(item.ref, Presence.LISTED, item, rows=rows, is_owed=is_owed))
        await self._ask_about_missing(look, known)
        return look

    async def _introduce(self, repo: str) -> dict[str, Any]:
        """A repository that is looked at for the first time: its lasting id, present name, and filed name."""
        path = f"/repos/{repo}"
        answer = await self._client.get(path)
        if answer.status != 200:
            raise SourceError("not found with this token", "check the name, and what the token may read")
        found = one(answer.value, Repository, path)
        if found.full_name.lower() != repo.lower() and found.full_name.lower() in self._configured:
            raise SourceError(f"is '{found.full_name}' by a former name", "take it out of `repos`")
        filed = self._repositories.filed_name(self._host, found.id, repo)
        return {"id": found.id, "name": found.full_name, "filed": filed}

    async def _list_items(self, look: _Look) -> None:
        label = quote(self._section.label, safe="")
        path = f"/repos/{look.name}/issues?labels={label}&state=open&sort=created&direction=asc&per_page={PAGE}"
        known = [page for page in look.old.get("pages", ()) if isinstance(page, dict)]
        answers = await listing_pages(self._client, path, known)
        look.now = answers[0].date
        pages = []
        for number, answer in enumerate(answers, 1):
            pages.append(known[number - 1] if answer.is_unchanged else self._read_page(look, path, number, answer))
            for row in pages[-1]["rows"]:
                self._list_item(look, row)
        look.record["pages"], look.record["excluded"] = pages, sorted(look.excluded)
        if answers[0].moved:
            look.record.update(await self._renamed(look))

    def _read_page(self, look: _Look, path: str, number: int, answer: Answer) -> dict[str, Any]:
        rows = []
        for issue in many(answer.value, Issue, path):
            item = to_item(f"{look.prefix}#{issue.number}", issue)
            self._fresh[item.ref] = item
            rows.append([issue.number, item.id, issue.pull_request is not None, item.author])
        return {"path": page_path(path, number), "etag": answer.etag, "size": len(answer.value), "rows": rows}

    def _list_item(self, look: _Look, row: Sequence[Any]) -> None:
        number, node_id, is_pull, author = row
        ref = f"{look.prefix}#{number}"
        self._pulls[ref] = is_pull
        self._unreadable.discard(ref)
        monitor = self._section.monitor
        if not (monitor.pull_requests if is_pull else monitor.issues):
            look.excluded.add(number)
            return
        if is_pull:
            look.pulls.add(number)
        thin = WorkItem(ref=ref, id=node_id, url="", title="", body="", author=author, created_at="")
        look.listed[number] = self._fresh.get(ref, thin)

    async def _renamed(self, look: _Look) -> dict[str, Any]:
        """The repository answers under another name: ask by that one from now on, file as before."""
        path = f"/repos/{look.name}"
        found = one((await self._client.get(path)).value, Repository, path)
        if found.id != look.old["id"]:
            raise SourceError(f"'{look.name}' is another repository now")
        return {"name": found.full_name}

    async def _list_rows(self, look: _Look, kind: Kind, place: str) -> None:
        """The rows of one stream since the position's moment, for every item they are of."""
        old = _mapping(look.old.get(kind))
        since = str(old.get("since") or _whole_second(look.now - OVERLAP_S))
        path = f"/repos/{look.name}/{place}?sort=updated&direction=desc&since={since}&per_page={PAGE}"
        etag = str(old.get("etag", "")) if old.get("path") == path else ""
        answer = await walk(self._client, path, etag)
        if answer is None:
            return
        rows = many(answer.rows, Comment, path)
        for row, entry in zip(rows, to_entries(rows, kind), strict=True):
            look.rows.setdefault(row.number, []).append(entry)
        record = {"since": since, "path": path, "etag": answer.etag}
        if len(rows) >= _ADVANCE_AT:
            newest = _earlier(max(row.updated_at for row in rows), OVERLAP_S)
            record["since"] = max(since, min(newest, _whole_second(look.now - OVERLAP_S)))
        look.record[str(kind)] = record

    # --- what became of those that are not listed ---

    async def _ask_about_missing(self, look: _Look, known: Mapping[str, Known]) -> None:
        left = _mapping(look.old.get("left"))
        look.record["left"], look.record["missing"] = {}, []
        sweep = int(look.now // self._interval_s) % _SWEEP
        for ref, one_known in known.items():
            prefix, _, text = ref.partition("#")
            if prefix != look.prefix or not one_known.is_open or not text.isdigit():
                continue
            number = int(text)
            if number in look.listed or number in look.excluded:
                continue
            before = left.get(text)
            if not isinstance(before, dict):
                was_missing = number in look.old.get("missing", ())
                if one_known.is_away and number % _SWEEP != sweep and not was_missing:
                    continue
                before = await self._ask_where(look, ref, number)
            if before:
                self._say_left(look, ref, number, before)

    async def _ask_where(self, look: _Look, ref: str, number: int) -> dict[str, Any] | None:
        """Ask about one item that is not listed; a record if it ended, None for anything else."""
        path = f"/repos/{look.name}/issues/{number}"
        try:
            answer = await self._client.get(path)
            issue = one(answer.value, Issue, path) if answer.status == 200 else None
        except Limited:
            raise
        except SourceError:
            return None  # could not find out: nothing changes
        reason = ""
        if _is_elsewhere(answer, look.old["id"]):
            reason = "transferred"
        elif answer.status == 410:
            reason = "deleted"
        elif answer.status == 404:
            reason = await self._is_deleted(look, number)
        elif issue is not None:
            self._pulls[ref] = issue.pull_request is not None
            if issue.state == "open":
                if not issue.has_label(self._section.label):
                    look.sightings.append(Sighting(ref, Presence.AWAY))
                return None
            reason = "merged" if issue.pull_request and issue.pull_request.merged_at else "closed"
        return {"reason": reason, "at": look.now, "pull": self._pulls.get(ref, False)} if reason else None

    async def _is_deleted(self, look: _Look, number: int) -> str:
        """404 means deleted when its repository answers with the same token, and two looks in a row said so."""
        await self._check_repository(look.name)
        if number in look.old.get("missing", ()):
            return "deleted"
        look.record["missing"].append(number)
        return ""

    def _say_left(self, look: _Look, ref: str, number: int, left: Mapping[str, Any]) -> None:
        reason = str(left.get("reason", "closed"))
        at = min(float(left.get("at", look.now)), look.now)
        self._pulls[ref] = bool(left.get("pull"))
        look.record["left"][str(number)] = {**left, "at": at}
        if reason in ("deleted", "transferred"):
            self._unreadable.add(ref)
        presence = Presence.GONE if look.now - at >= self._linger_s else Presence.LEFT
        look.sightings.append(Sighting(ref, presence, reason=reason, rows=look.rows.get(number, ())))

    # --- by itself ---

    async def _ask_issue(self, place: _Place, number: str) -> Issue | None:
        """The item as it is; None where it is not there any more."""
        path = f"/repos/{place.name}/issues/{number}"
        answer = await self._client.get(path)
        if answer.status == 410 or _is_elsewhere(answer, place.id):
            return None
        if answer.status == 404:
            await self._check_repository(place.name)
            return None
        return one(answer.value, Issue, path)

    async def _check_repository(self, name: str) -> None:
        """Raise SourceError unless the repository answers: then nothing in it can be told to be missing."""
        if (await self._client.get(f"/repos/{name}")).status != 200:
            raise SourceError(f"'{name}' is not found with this token")

    async def _entries(self, path: str, kind: Kind) -> list[Entry]:
        answer = await walk(self._client, path)
        return to_entries(many(answer.rows, Comment, path), kind) if answer else []

    def _prefix(self, name: str) -> str:
        host = "" if self._host == "api.github.com" else f"{self._host}/"
        return f"github:{host}{name}".lower()


def _listed_in(record: Mapping[str, Any]) -> set[int]:
    """The items of a position's listing that were looked at."""
    numbers = {row[0] for page in record.get("pages", ()) for row in page["rows"]}
    return numbers.difference(record.get("excluded", ()))


def _is_elsewhere(answer: Answer, repository: int) -> bool:
    """True if a redirect led to another repository than the one asked."""
    return bool(answer.moved) and f"/repositories/{repository}/" not in f"{answer.moved}/"


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _whole_second(epoch_s: float) -> str:
    return datetime.fromtimestamp(epoch_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _earlier(moment: str, seconds: int) -> str:
    try:
        return _whole_second(datetime.fromisoformat(moment).timestamp() - seconds)
    except ValueError:
        return ""
