"""Asking for updates: with which offset, how long, and what of the answer is new.

Telegram forgets an update once a higher offset was asked for. An offset is asked for only after the cursor has come
back, which is after everything before it is in the ledgers; what was fetched is in the inbox by then. Ids are compared
for equality only: after a week without any update the next one is random. So no offset is used but one that was
learned while the claim was held without a break, and none that is older than six days.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from the_loop.sources.base import SourceError
from the_loop.sources.telegram.client import LONGEST_POLL_S, Client
from the_loop.sources.telegram.inbox import Batch, Inbox
from the_loop.sources.telegram.rows import identity, update_id

_QUIET_S: Final = 6 * 86_400.0  # then ids may begin anew soon


@dataclass(frozen=True, slots=True)
class Bot:
    id: int
    name: str


@dataclass(slots=True)
class _Offset:
    """`value` may be asked for; `next` once everything up to batch `after` is taken."""

    news_at_s: float  # uptime of the last update
    value: int | None = None
    next: int | None = None
    after: int = 0

    def ask(self, taken: int, uptime_s: float) -> int | None:
        if self.next is not None and taken >= self.after:
            self.value, self.next = self.next, None
        if uptime_s - self.news_at_s > _QUIET_S:
            self.value = None
        return self.value


class Fetching:
    """One source's requests for updates. `waits`: whether to wait for news."""

    def __init__(self, client: Client, root: str, *, waits: bool) -> None:
        self._client = client
        self._root = root
        self._waits = waits
        self._offset = _Offset(0.0)
        self._is_proven = False  # the server answered, so that it may be asked to wait
        self._bots: dict[str, Bot] = {}  # by token, one at most
        self._turn = 0
        self._request: asyncio.Task[Sequence[Any]] | None = None  # under way, also from poll to poll
        self._may_wait = False  # for news
        self.skipped = 0  # updates of the last answer that have no id
        self._ending: set[asyncio.Task[Sequence[Any]]] = set()
        self._nudged = asyncio.Event()

    async def bot(self, token: str) -> Bot:
        """Whom the token belongs to; asked once. Raises SourceError."""
        if token not in self._bots:
            self._bots = {token: Bot(*await self._client.me(token))}
        return self._bots[token]

    def begin(self, turn: int, uptime_s: float) -> None:
        """The claim is held for the time with this number. Nothing from an earlier one is used."""
        if turn != self._turn:
            self.cancel()
            self._turn, self._offset, self._is_proven = turn, _Offset(uptime_s), False

    def nudge(self) -> None:
        """Have a `fetch` that waits for news return, or the next one; its request goes on."""
        self._nudged.set()

    def cancel(self) -> None:
        """End the request that is under way. What it was to bring comes with the next one."""
        if self._request is not None:
            self._request.cancel()
            self._ending.add(self._request)
            self._request = None

    async def close(self) -> None:
        """Return once no request is under way any more."""
        self.cancel()
        await asyncio.gather(*self._ending, return_exceptions=True)
        self._ending.clear()

    async def fetch(
        self, token: str, inbox: Inbox, batches: Sequence[Batch], *, taken: int, done: int, uptime_s: float
    ) -> Batch | None:
        """The next updates, in the inbox; None if there are none that are new. Raises SourceError.

        `batches`: all that are in the inbox. Ours up to `done` are in the ledgers as a whole, those up to `taken` but
        for chats that cannot be written now.
        """
        bot = await self.bot(token)
        self.skipped = 0
        numbers = [batch.number for batch in batches if batch.root == self._root and not batch.is_done]
        is_pending = any(number > taken for number in numbers)
        wait_s = LONGEST_POLL_S if self._is_proven and self._waits and not is_pending else 0
        if self._request is None:
            await asyncio.gather(*self._ending, return_exceptions=True)
            self._ending.clear()
            self._may_wait = wait_s > 0
            offset = self._offset.ask(taken, uptime_s)
            self._request = asyncio.create_task(self._client.updates(token, offset, wait_s))
        answer = await self._answer(self._request)
        if answer is None:
            return None
        updates = [update for update in answer if update_id(update) is not None]
        self.skipped = len(answer) - len(updates)
        if self.skipped and not updates:
            raise SourceError("getUpdates: the updates have no ids")
        shown = {identity(update): update for update in updates}
        inbox.remove(self._confirmed(batches, shown, done))
        known = {one for batch in batches for one in batch.identities}
        new = [update for one, update in shown.items() if one not in known]
        batch = None
        if new:
            number = max([taken, *(batch.number for batch in batches)]) + 1
            batch = inbox.write(number, self._root, bot.id, bot.name, new)
        if updates:
            self._offset.next = (update_id(updates[-1]) or 0) + 1
            self._offset.after = max([0, *numbers] if batch is None else [batch.number])
            self._offset.news_at_s = uptime_s
        return batch

    async def _answer(self, request: asyncio.Task[Sequence[Any]]) -> Sequence[Any] | None:
        """What the request that is under way brings; None if that is not waited for. Raises SourceError."""
        nudge = [asyncio.create_task(self._nudged.wait())] if self._may_wait else []
        try:
            await asyncio.wait([request, *nudge], return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self.cancel()
            raise
        finally:
            for one in nudge:
                one.cancel()
        self._nudged.clear()
        if not request.done():
            return None
        self._request, self._is_proven = None, False
        answer = request.result()
        self._is_proven = True
        return answer

    def _confirmed(self, batches: Sequence[Batch], shown: Mapping[str, Any], done: int) -> list[Batch]:
        """Batches that are done with and were not sent again.

        What was not confirmed is what the last answer had, at most a hundred updates, and comes first in the next one.
        """
        finished = [one for one in batches if one.is_done or (one.root == self._root and one.number <= done)]
        return [one for one in finished if one.identities.isdisjoint(shown)]
