"""The `telegram` source: each chat, or topic of a chat, is an item, each message in it a comment.

    claim ─> inbox ─> getUpdates ─> inbox ─> transcripts ─> listing ─> (ledgers ─> cursor) ─> offset, inbox emptied

Cut off at any arrow, the next poll finds the updates in the inbox, or is sent them again; either way they are
recognised: by the inbox, by the transcript, by the ledger. While another poller holds the claim, nothing is asked; what
this root had fetched before is taken up all the same.

Cursor: ``{"taken": number, "behind": {ref: number}, "asked": epoch seconds, "strangers": [chat id]}``: up to which
batch of the inbox everything was taken, and of which chats less; when the server last answered, to within an hour; and
the chats of people who are not authorised, as far as they were told.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from the_loop.core.guards import Word
from the_loop.core.model import Entry, Note, Presence, explain, span
from the_loop.sources.base import Known, Listing, Sighting, SourceError, SourceSite, Thread, Usage
from the_loop.sources.telegram.chats import Chats
from the_loop.sources.telegram.claim import Claim
from the_loop.sources.telegram.client import Client, Rejected
from the_loop.sources.telegram.fetching import Fetching
from the_loop.sources.telegram.inbox import Batch, Inbox
from the_loop.sources.telegram.recording import Recording, is_body
from the_loop.sources.telegram.rows import WORDS
from the_loop.sources.textfiles import encode_name
from the_loop.sources.tokens import Token
from the_loop.turns import Turns

_KEPT_S: Final = 86_400.0  # by Telegram, of what was not fetched
_EXACT_S: Final = 3600.0  # of `asked`, so that a quiet poll leaves the cursor as it is
_STRANGERS: Final = 500


@dataclass(frozen=True, slots=True)
class _Cursor:
    taken: int = 0
    behind: Mapping[str, int] = field(default_factory=dict)
    asked: float = 0.0
    strangers: tuple[int, ...] = ()

    @classmethod
    def of(cls, tree: Mapping[str, Any] | None) -> _Cursor:
        """Raises an error that is not a SourceError: it is not a cursor."""
        if tree is None:
            return cls()
        behind = {str(ref): int(number) for ref, number in tree["behind"].items()}
        return cls(int(tree["taken"]), behind, float(tree["asked"]), tuple(map(int, tree["strangers"])))

    @property
    def done(self) -> int:
        """Everything up to this batch is in the ledgers."""
        return min([self.taken, *self.behind.values()])

    def to_json(self) -> dict[str, Any]:
        strangers = list(self.strangers[-_STRANGERS:])
        return {"taken": self.taken, "behind": dict(self.behind), "asked": self.asked, "strangers": strangers}


class TelegramSource:
    """Implements `sources.base.Source`. `exposed`: why others may use the token."""

    provider = "telegram"
    folds_case = False
    words: Final = {f"/{name}": Word(name) for name in WORDS}

    def __init__(
        self,
        site: SourceSite,
        client: Client,
        token: Token,
        *,
        exposed: str = "",
        now: Callable[[], float] = time.time,
        uptime: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME),
    ) -> None:
        self.name = site.name
        self._site = site
        self._client = client
        self._token = token
        self._exposed = exposed
        self._now, self._uptime = now, uptime
        self._root = str(site.root)
        self._prefix = f"telegram:{encode_name(os.fsencode(site.name))}/"
        self._chats = Chats(site.folder, self._prefix)
        self._fetching = Fetching(client, self._root, waits=site.waits)
        self._claim = Claim(site.name, site.tell, takes_over=site.takes_over, on_wish=self._fetching.nudge)
        self._known: Mapping[str, Known] = {}

    def owns(self, ref: str) -> bool:
        return ref.startswith(self._prefix)

    def usage(self) -> Usage:
        return self._client.usage()

    def look_up(self) -> None:
        self._fetching.nudge()

    async def close(self) -> None:
        await self._fetching.close()
        await self._client.close()
        self._claim.release()

    async def thread(self, ref: str) -> Thread:
        try:
            transcript = self._chats.read(ref)
        except (OSError, ValueError) as error:
            raise SourceError(f"cannot use '{self._chats.path(ref)}': {explain(error)}") from error
        if transcript is None:
            return Thread(None, ())
        hides_first = is_body(self._known, ref, transcript.first.url)
        said = transcript.said if hides_first else (transcript.first, *transcript.said)
        item = None if transcript.ended else transcript.item()
        return Thread(item, [one.to_entry() for one in said], transcript.omitted)

    async def poll(self, cursor: Mapping[str, Any] | None, known: Mapping[str, Known]) -> Listing:
        before = _Cursor.of(cursor)
        turns = Turns()
        self._known = known
        token = await self._present_token()
        await self._give_up_if_wanted()
        folder, holder = self._claim.take(token)
        inbox = Inbox(folder)
        await self._chats.look(turns)
        batches = inbox.read()
        notes: list[Note] = []
        if holder:
            self._fetching.cancel()
            self._finish(inbox, batches, before)
        else:
            batches, notes = await self._fetched(token, inbox, batches, before)
            holder = await self._give_up_if_wanted()
        mine = [one for one in batches if one.root == self._root and not one.is_done and one.number > before.done]
        recording = Recording(self._chats, self._site.authorized, known, before.taken, before.behind)
        await recording.take_up(mine, turns)
        strangers = [chat for chat in recording.strangers if chat not in before.strangers]
        after = _Cursor(
            taken=max([before.taken, *(batch.number for batch in mine)]),
            behind=recording.behind,
            asked=self._asked(before.asked),
            strangers=(*before.strangers, *strangers),
        )
        sightings = [*self._listed(recording.rows), *self._departed(recording.rows, known)]
        return Listing(
            sightings,
            after.to_json(),
            sum(one.presence is Presence.LISTED for one in sightings),
            [*self._skipped(holder), *recording.faults, *map(SourceError, self._chats.broken.values())],
            [*notes, *recording.notes, *(recording.strangers[chat] for chat in strangers)],
            overlooked=_waiting(batches, self._root),
            held_by=holder,
        )

    async def _present_token(self) -> str:
        if not self._token.is_printed:
            await self._token.renew()
        token = self._token()
        if token is None:
            raise SourceError("there is no token", "set tokenFile or $TELEGRAM_BOT_TOKEN")
        if "/" in token:  # it is a part of the address
            raise SourceError("the token is not one of a bot", "check the token of this source")
        return token

    async def _fetched(
        self, token: str, inbox: Inbox, batches: Sequence[Batch], before: _Cursor
    ) -> tuple[list[Batch], list[Note]]:
        """All batches, with what is new, and what is to be told. Raises SourceError."""
        self._fetching.begin(self._claim.turn, self._uptime())
        try:
            await self._check_bot(token)
            batches = self._adopted(inbox, batches, before)
            new = await self._fetching.fetch(
                token, inbox, batches, taken=before.taken, done=before.done, uptime_s=self._uptime()
            )
        except Rejected:
            await self._token.renew()  # for the next poll
            raise
        notes = [*self._exposure(), *self._gap(before.asked)]
        return [*batches, *([new] if new is not None else [])], notes

    async def _give_up_if_wanted(self) -> str:
        """Let another poller have the claim, if it was told to take over; which one that is."""
        if not self._claim.is_wanted():
            return ""
        await self._fetching.close()
        return self._claim.give_up()

    async def _check_bot(self, token: str) -> None:
        """Raise SourceError if the chats are another bot's: in each its messages have other numbers."""
        bot = await self._fetching.bot(token)
        for head in self._chats.heads.values():
            if head.bot != bot.id:
                problem = f"the token is of the bot {bot.id}, and the chats of this source are of {head.bot}"
                raise SourceError(problem, "give the source another name, or the token back")

    def _adopted(self, inbox: Inbox, batches: Sequence[Batch], before: _Cursor) -> list[Batch]:
        """The batches, those that no root took marked as ours."""
        found: list[Batch] = []
        number = max([before.taken, *(batch.number for batch in batches)])
        for batch in batches:
            if batch.root is None:
                number += 1
                found.append(inbox.adopt(batch, number, self._root))
            else:
                found.append(batch)
        return found

    def _finish(self, inbox: Inbox, batches: Sequence[Batch], before: _Cursor) -> None:
        """Another poller holds the claim: it removes what it sees that we are done with."""
        for batch in batches:
            if batch.root == self._root and not batch.is_done and batch.number <= before.done:
                inbox.finish(batch)

    def _skipped(self, holder: str) -> list[SourceError]:
        count = 0 if holder else self._fetching.skipped
        return [SourceError(f"getUpdates: {count} updates without an id are left out")] if count else []

    def _asked(self, before: float) -> float:
        now = self._now()
        return now if abs(now - before) > _EXACT_S else before

    def _exposure(self) -> list[Note]:
        exposed, self._exposed = self._exposed, ""
        return [Note("source.exposed", {"source": self.name, "reason": exposed})] if exposed else []

    def _gap(self, asked: float) -> list[Note]:
        age_s = self._now() - asked
        if not asked or age_s <= _KEPT_S + _EXACT_S:
            return []
        reason = f"not polled for {span(age_s)}; Telegram keeps messages for 24 h, older ones are lost"
        return [Note("source.gap", {"source": self.name, "reason": reason})]

    # --- items ---

    def _listed(self, rows: Mapping[str, Sequence[Entry]]) -> Iterator[Sighting]:
        for ref, head in self._chats.heads.items():
            if not head.ended:
                yield Sighting(ref, Presence.LISTED, head.item, rows=rows.get(ref, ()))

    def _departed(self, rows: Mapping[str, Sequence[Entry]], known: Mapping[str, Known]) -> Iterator[Sighting]:
        for ref in known:
            head = self._chats.heads.get(ref)
            if head is not None and head.ended and known[ref].is_open:
                yield Sighting(ref, Presence.GONE, reason=head.ended, rows=rows.get(ref, ()))


def _waiting(batches: Sequence[Batch], root: str) -> dict[str, str]:
    """What other roots have fetched and not delivered: it waits for them."""
    counts: dict[str, int] = {}
    for batch in batches:
        if batch.root is not None and batch.root != root and not batch.is_done:
            counts[batch.root] = counts.get(batch.root, 0) + len(batch.updates)
    return {place: f"{count} updates wait for the poller of this state root" for place, count in counts.items()}
