"""A whole poller core around a GitHub source: one process, virtual time, and crashes at chosen points.

    world = scene(tmp_path)      # with an empty repository, `octo/repo`
    world.add_issue()
    await world.cycle()          # one look, everything due handed over; then the interval passes
    assert world.ids() == ["1/spawn:1"]
    world = world.restart()      # the next life, from what is on disk

The receiver is in memory and takes everything at once (`Sink`); it outlives the pollers, and so does what they left on
disk. A `Fuse` ends a life at any request, file change or hand-over, after which that life can do nothing more.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import wraps
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, Self
from unittest import mock

from support.clock import Clock, Clocks
from support.fuse import Crash, Fuse
from support.github.fake import FakeGitHub
from support.http_transport import FakeTransport
from the_loop import wiring
from the_loop.authors import Authors
from the_loop.config import Config, Polling, Routing
from the_loop.core.model import Note, Outcome, Verdict
from the_loop.cursors import recover_cursor
from the_loop.cycle import Cycle
from the_loop.deliveries import Deliveries
from the_loop.dispatcher import Dispatcher
from the_loop.ledgers import Ledgers
from the_loop.outbox import Outbox
from the_loop.recovery import Recovery
from the_loop.runners.base import Offer, Status, Trace
from the_loop.source_loop import SourceLoop
from the_loop.sources.base import Source, SourceSite
from the_loop.sources.github.client import Client
from the_loop.sources.github.repositories import Repositories
from the_loop.sources.github.section import GithubSection
from the_loop.sources.github.source import GithubSource
from the_loop.sources.github.token import github_token
from the_loop.sources.limits import RateLimiters
from the_loop.state import StateRoot

if TYPE_CHECKING:
    import httpx2

    from support.github.values import Rules as GithubRules

REPO = "octo/repo"
P = ParamSpec("P")


def in_real_loop(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run a test that is a coroutine in an event loop of its own."""

    @wraps(test)
    def running(*args: P.args, **kwargs: P.kwargs) -> None:
        asyncio.run(test(*args, **kwargs))

    return running


class Sink:
    """Takes every delivery and keeps what it was given. `answers` may say otherwise, by delivery id, one by one."""

    def __init__(self) -> None:
        self.received: list[dict[str, Any]] = []
        self.answers: dict[str, list[Outcome]] = {}
        self.outcomes: dict[tuple[str, int], Outcome] = {}

    def take(self, offer: Offer) -> Outcome:
        payload = json.loads(offer.stem.with_name(f"{offer.stem.name}.payload.json").read_bytes())
        self.received.append(payload)
        answers = self.answers.get(payload["deliveryId"])
        outcome = answers.pop(0) if answers else Outcome(Verdict.DELIVERED)
        self.outcomes[offer.delivery_id, offer.number] = outcome
        return outcome


@dataclass
class InstantRunner:
    """Satisfies `runners.base.Runner`: the sink answers within the call, and an outcome is never lost."""

    sink: Sink
    fuse: Fuse

    async def deliver(self, offer: Offer) -> Outcome:
        self.fuse.step("hand-over")
        return self.sink.take(offer)

    async def adopt(self, offer: Offer) -> Outcome:
        raise AssertionError(f"{offer.delivery_id} cannot be running")

    def inspect(self, offer: Offer) -> Status:
        outcome = self.sink.outcomes.get((offer.delivery_id, offer.number))
        return Status(Trace.NEVER_BEGUN) if outcome is None else Status(Trace.DONE, outcome)

    async def close(self) -> None:
        pass


class FusedTransport(FakeTransport):
    """Each request is a step of the fuse."""

    def __init__(self, github: FakeGitHub, fuse: Fuse) -> None:
        super().__init__(github)
        self._fuse = fuse

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        self._fuse.step("request")
        return await super().handle_async_request(request)


@dataclass(frozen=True)
class Options:
    """What a world is configured with; a restart may change it."""

    repos: tuple[str, ...] = (REPO,)
    people: frozenset[str] = frozenset({"octocat"})
    section: dict[str, Any] = field(default_factory=dict)  # more fields of the source's section
    interval_s: int = 60
    linger_s: int = 180
    require_start: bool = False
    report_give_ups: bool = False
    events_per_hour: int = 0  # more of one item than a person writes come in most of these tests
    environ: dict[str, str] = field(default_factory=lambda: {"GITHUB_TOKEN": "secret"})


class World:
    """One life of a poller. `cycle` is its only engine; the pauses of its `SourceLoop` are kept by it."""

    def __init__(
        self,
        folder: Path,
        github: FakeGitHub,
        clock: Clock,
        *,
        fuse: Fuse | None = None,
        sink: Sink | None = None,
        options: Options | None = None,
        transport: httpx2.AsyncBaseTransport | None = None,
        **changed: Any,
    ) -> None:
        self.folder, self.github, self.clock = folder, github, clock
        self.options = Options(**{**(vars(options) if options else {}), **changed})
        self.fuse = fuse or Fuse()
        self.sink = sink or Sink()
        self.notes: list[Note] = []
        self._transport = transport
        self._next_poll_s = 0.0  # uptime; within half an interval, as cycles are at fixed moments here
        asyncio.get_running_loop().set_exception_handler(_report)
        with self._as_in_life():
            self._begin()

    # --- what tests do ---

    async def cycle(self, *, times: int = 1) -> None:
        """One look and all that follows from it, at this moment; then the interval passes. Raises Crash."""
        for _ in range(times):
            with self._as_in_life():
                await self._poll_if_due()
                await self.dispatcher.drain()
            if self.fuse.is_blown:
                raise Crash  # within a delivery, whose task nobody waits for
            self.clock.run(self.options.interval_s)

    async def _poll_if_due(self) -> None:
        if self.clock.uptime_s < self._next_poll_s:
            self.engine.offer_pending(self.watched)
            return
        await self.loop.poll()
        pause_s = self.loop.pause_s()
        self._next_poll_s = self.clock.uptime_s + (0 if pause_s is None else pause_s - self.options.interval_s / 2)

    def restart(self, *, fuse: Fuse | None = None, **changed: Any) -> Self:
        """The next life, as after a SIGKILL: nothing of this one is left but the disk and the receiver."""
        self.fuse.is_blown = True
        kept = {"options": self.options, "transport": self._transport, "sink": self.sink}
        return type(self)(self.folder, self.github, self.clock, fuse=fuse, **{**kept, **changed})

    async def stop(self) -> None:
        """What an orderly stop leaves behind."""
        with self._as_in_life():
            await self.dispatcher.stop()
            await self.watched.source.close()

    def add_issue(self, *, labels: tuple[str, ...] = ("auto",), repo: str = REPO, **fields: Any) -> int:
        """The number of a new issue that is to be worked on."""
        return self.github.add_issue(repo, labels=labels, **fields)

    # --- what tests read ---

    @property
    def received(self) -> list[dict[str, Any]]:
        return self.sink.received

    def ids(self, number: int | None = None, repo: str = REPO) -> list[str]:
        """What arrived, in order: `<number>/<kind>:<id>`; of one item without the number."""
        ids = [short(payload["deliveryId"], repo) for payload in self.received]
        return ids if number is None else [key for at, _, key in map(_parted, ids) if at == str(number)]

    def told(self, name: str) -> list[Note]:
        return [note for note in self.notes if note.name == name]

    def cursor(self) -> dict[str, Any]:
        """The stored position, as JSON."""
        value: dict[str, Any] = json.loads(self.root.cursor(self.watched.source.name).read_bytes())
        return value

    def ledger(self, number: int, repo: str = REPO) -> dict[str, Any]:
        ref = f"github:{repo}#{number}"
        path = self.root.ledger(ref)
        value: dict[str, Any] = json.loads((path if path.exists() else self.root.ended_ledger(ref)).read_bytes())
        return value

    @property
    def state(self) -> str:
        """The source's, as `status` names it."""
        return self.watched.state(self.clock.monotonic())

    # --- how it is made ---

    @contextmanager
    def _as_in_life(self) -> Iterator[None]:
        with (
            self.fuse.watching_files(),
            mock.patch.object(os, "fsync", return_value=None),  # a process dies here, never the machine
        ):
            yield

    def make_section(self) -> Any:
        return GithubSection(provider="github", repos=self.options.repos, **{"label": "auto", **self.options.section})

    def make_source(self, section: Any, site: SourceSite) -> Source:
        self.client = Client(
            section.api_url,
            lambda: github_token(section, self.options.environ),
            now=self.clock,
            limiters=RateLimiters(self.clock.monotonic),
            transport=self._transport or FusedTransport(self.github, self.fuse),
        )
        return GithubSource(
            section,
            self.client,
            Repositories(self.root.repositories),
            linger_s=self.options.linger_s,
            authors=Authors(self.root.authors, "api.github.com", "github", self.options.people, self.clock),
            cursor=recover_cursor(self.root, "github")[0].value,
        )

    def _begin(self) -> None:
        options = self.options
        self.root = StateRoot(self.folder / "root")
        self.root.prepare_root()
        self.root.prepare_folders()
        tell: Callable[[Note], None] = self.notes.append
        clocks = Clocks(self.clock)
        section = self.make_section()
        polling = Polling(
            interval_seconds=options.interval_s,
            linger_seconds=options.linger_s,
            report_give_ups=options.report_give_ups,
            sources=(section,),
        )
        routing = Routing(authorized_users=tuple(sorted(options.people)), require_start_command=options.require_start)
        config = Config(polling=polling, routing=routing)
        self.ledgers = Ledgers(self.root, tell, self.clock)
        self.ledgers.load()
        with mock.patch.object(wiring, "_source", side_effect=self.make_source):
            limiters = RateLimiters(self.clock.monotonic)
            self.watched = wiring.watch(config, section, self.root, {}, clock=clocks, limiters=limiters, tell=tell)
        self.deliveries = Deliveries(self.root)
        self.outbox = Outbox(
            self.deliveries,
            self.ledgers,
            InstantRunner(self.sink, self.fuse),
            policy=replace(wiring.policy(config), events_per_hour=options.events_per_hour),
            rules_of=lambda ref: self.watched.rules if self.watched.source.owns(ref) else None,
            tell=tell,
            now=self.clock,
        )
        self.dispatcher = Dispatcher(self.outbox, limit=4, tell=tell, may_hand_over=lambda: not self.fuse.is_blown)
        self.engine = Cycle(self.root, self.ledgers, self.outbox, self.dispatcher, tell=tell, clock=clocks)
        self.loop = SourceLoop(
            self.watched,
            self.engine,
            self.outbox,
            interval_s=options.interval_s,
            clock=clocks,
            tell=tell,
            is_in_charge=lambda: True,
            beat=lambda: None,
        )
        for offer in chain.from_iterable(Recovery(self.deliveries, self.ledgers, self.outbox, self.notes.append).run()):
            raise AssertionError(f"{offer} cannot be running")


def scene(folder: Path, rules: GithubRules | None = None, *, repos: tuple[str, ...] = (REPO,), **options: Any) -> World:
    """A first life beside a GitHub with these repositories, all of them empty."""
    clock = Clock()
    github = FakeGitHub(clock, rules)
    for repo in repos:
        github.add_repo(repo)
    return World(folder, github, clock, repos=repos, **options)


def short(delivery_id: str, repo: str = REPO) -> str:
    """A delivery id of this repository's items without what they all have."""
    return delivery_id.removeprefix(f"github:{repo.lower()}#")


def carried(received: Iterable[dict[str, Any]]) -> list[str]:
    """What arrived, with the entries that a spawn carries in its place: `<ref>/<kind>:<id>`, in order."""
    arrived = []
    for payload in received:
        arrived.append(payload["deliveryId"])
        arrived += [f"{payload['ref']}/{entry['kind']}:{entry['id']}" for entry in payload["thread"]]
    return arrived


def _report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """A delivery that was cut off by a crash is nobody's concern; the rest is told as usual."""
    if not isinstance(context.get("exception"), Crash):
        loop.default_exception_handler(context)


def _parted(id_: str) -> tuple[str, str, str]:
    return id_.partition("/")
