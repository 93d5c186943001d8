"""The runner of several receivers: each item is served by that of its source, or of the label chosen for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple, cast

from the_loop.core.model import Outcome
from the_loop.runners.base import Offer, Runner, Status

if TYPE_CHECKING:
    from the_loop.runners.base import Sessions


class Place(NamedTuple):
    """Where a receiver is written: in a source (""; the session that all share), for a label ("": none)."""

    source: str
    label: str


class Receivers:
    """Satisfies `runners.base.Runner`. `place_of` tells where the receiver of an item is written.

    A label without a receiver of its own leads to that of its session: what was begun is looked after, and nothing
    else of such an item is handed over (`ledger.is_without_receiver`).
    """

    def __init__(self, runners: Mapping[Place, Runner], place_of: Callable[[str], Place]) -> None:
        self._runners = runners
        self._place_of = place_of

    def serving(self, ref: str) -> Runner:
        """The runner of this item."""
        source, label = self._place_of(ref)
        own = source if Place(source, "") in self._runners else ""
        for place in (Place(own, label), Place(own, "")):
            if place in self._runners:
                return self._runners[place]
        return next(iter(self._runners.values()))  # of an item whose source is not configured any more

    async def deliver(self, offer: Offer) -> Outcome:
        return await self.serving(offer.ref).deliver(offer)

    async def adopt(self, offer: Offer) -> Outcome:
        return await self.serving(offer.ref).adopt(offer)

    def inspect(self, offer: Offer) -> Status:
        return self.serving(offer.ref).inspect(offer)

    def place(self, offer: Offer) -> str:
        """Where the offer runs, for people; "" if its runner does not say."""
        place: Callable[[Offer], str] = getattr(self.serving(offer.ref), "place", lambda _: "")
        return place(offer)

    @property
    def keeps_sessions(self) -> bool:
        """True if one of them does: then the others have no session that could be ended."""
        return any(map(_keeps_sessions, self._runners.values()))

    async def end(self, ref: str) -> bool:
        """As `runners.base.Sessions` has it."""
        runner = self.serving(ref)
        return await cast("Sessions", runner).end(ref) if _keeps_sessions(runner) else False

    def insist(self, ref: str) -> None:
        """As `runners.base.Sessions` has it; a runner without sessions waits for nothing."""
        runner = self.serving(ref)
        if _keeps_sessions(runner):
            cast("Sessions", runner).insist(ref)

    async def close(self) -> None:
        import asyncio  # noqa: PLC0415 (`poll status` imports this module, and needs no event loop)

        await asyncio.gather(*(runner.close() for runner in self._runners.values()))


def _keeps_sessions(runner: Runner) -> bool:
    return bool(getattr(runner, "keeps_sessions", False))
