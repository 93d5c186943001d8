"""One hand-over as a value: what is on disk, what the manager has, what runs, where the poller is, what arrived.

One item, its spawn, and one comment that somebody writes at any moment. A step of the model is one thing that a crash
can fall before or after: a durable write, a look at a lock or a mark, a message.
"""

from __future__ import annotations

from typing import Final, NamedTuple

SPAWN: Final = "spawn"
COMMENT: Final = "comment"
DELIVERED, REFUSED, UNKNOWN, UNSTARTABLE, NEVER = "delivered", "refused", "unknown", "unstartable", "never-begun"
OPEN: Final = "open"  # a receipt whose command still runs

Op = tuple[object, ...]  # one thing that the poller has decided to do, in `Poller.plan`
Offer = tuple[str, int]  # what, number


class Payload(NamedTuple):
    number: int
    comment: bool  # the comment's text is in it
    redelivery: bool


class Entry(NamedTuple):
    """The pending event: there is one at most, as a comment is an event of its own only once the spawn arrived."""

    standing: str
    offer: int = 1
    carries: bool = False  # the comment is settled with it
    redelivery: bool = False


class Ledger(NamedTuple):
    phase: str = ""  # "", "starting", "live"
    pending: Entry | None = None
    seen: bool = False  # the comment is settled
    behind: bool = False

    @property
    def what(self) -> str:
        """What the pending event is."""
        return SPAWN if self.phase == "starting" else COMMENT

    @property
    def knows_comment(self) -> bool:
        entry = self.pending
        return self.seen or (entry is not None and (entry.carries or self.what == COMMENT))


class Files(NamedTuple):
    """The files of one delivery."""

    payload: Payload | None = None
    lock: bool = False  # the file is there; for who holds it see `Protocol.is_locked`
    mark: int = 0  # the number in the start mark
    outcome: tuple[int, str] | None = None


class Keeper(NamedTuple):
    what: str
    number: int
    step: str


class Poller(NamedTuple):
    at: str = "down"
    offer: Offer | None = None
    mode: str = ""  # "deliver" or "adopt"
    held: bool = False  # what the lock was when it was asked
    plan: tuple[Op, ...] = ()
    answer: str = ""  # of the manager: "accepted", "refused", or that the "name" is taken
    verdict: str = ""
    paused: bool = False
    waits: bool = False  # a moment, before what never began is offered again


class Receipt(NamedTuple):
    """The command of one offer was run with these bytes."""

    what: str
    number: int
    comment: bool
    redelivery: bool
    end: str


class State(NamedTuple):
    written: bool = False  # the comment
    ledger: Ledger = Ledger()
    spawn: Files = Files()
    comment: Files = Files()
    message: Offer | None = None  # on its way to the manager
    jobs: tuple[Offer, ...] = ()  # accepted, not started
    keepers: tuple[Keeper, ...] = ()
    poller: Poller = Poller()
    got: tuple[Receipt, ...] = ()
    doubts: frozenset[str] = frozenset()  # of whom a keeper was killed after it began
    crashes: int = 0  # left
    faults: int = 0  # left

    def files(self, what: str) -> Files:
        return self.spawn if what == SPAWN else self.comment

    def put(self, what: str, **changes: object) -> State:
        """With these changes to the files of one delivery."""
        return self._replace(**{what: self.files(what)._replace(**changes)})  # type: ignore[arg-type]

    def move(self, **changes: object) -> State:
        """With these changes to the poller."""
        return self._replace(poller=self.poller._replace(**changes))  # type: ignore[arg-type]
