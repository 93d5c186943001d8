"""What one poll makes of fetched updates: they go into the transcripts, and come out as rows.

Done a second time it makes the same of them: a transcript takes a message once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

import msgspec

from the_loop.core.guards import Dropped
from the_loop.core.model import Entry, Kind, Note, explain
from the_loop.sources.base import Known, SourceError
from the_loop.sources.telegram.chats import Chats
from the_loop.sources.telegram.inbox import Batch
from the_loop.sources.telegram.rows import Departure, Malformed, Message, Migration, row_of
from the_loop.sources.telegram.transcript import Transcript, begun, entry_id, with_edit, with_message
from the_loop.turns import Turns

Row = Message | Departure


class Recording:
    """`taken` and `behind`: up to which batch everything was taken up before, and of which chats less.

    Filled by `take_up`: `rows` by ref; `behind` as it is now; `strangers`, the first word in each chat that is not one
    of ours; `faults`, which name what is left out for good.
    """

    def __init__(
        self,
        chats: Chats,
        authorized: AbstractSet[str],
        known: Mapping[str, Known],
        taken: int,
        behind: Mapping[str, int],
    ) -> None:
        self.rows: dict[str, list[Entry]] = {}
        self.behind: dict[str, int] = {}
        self.strangers: dict[int, Note] = {}
        self.notes: list[Note] = []
        self.faults: list[SourceError] = []
        self._chats = chats
        self._authorized = authorized
        self._known = known
        self._taken = taken
        self._behind = behind

    async def take_up(self, batches: Sequence[Batch], turns: Turns) -> None:
        """Take up these batches, in order. Raises SourceError if nothing could be."""
        rows = [(batch, row) for batch in batches for row in self._rows(batch)]
        for _, row in rows:
            if isinstance(row, Migration):
                self._chats.move(row.old, row.new)
        groups: dict[str, list[tuple[Batch, Row]]] = {}
        for batch, row in rows:
            for ref in self._refs(row, groups):
                if not isinstance(row, Migration) and batch.number > self._behind.get(ref, self._taken):
                    groups.setdefault(ref, []).append((batch, row))
        for ref, group in groups.items():
            await turns.are_given()
            self._record(ref, group)

    def _rows(self, batch: Batch) -> list[Row | Migration]:
        found = []
        for update in batch.updates:
            try:
                row = row_of(update, batch.bot_name)
            except Malformed as error:
                if batch.number > self._taken:
                    self.faults.append(SourceError(f"update {update.get('update_id')} is left out: {error}"))
                continue
            if row is not None:
                found.append(row)
        return found

    def _refs(self, row: Row | Migration, groups: Mapping[str, object]) -> list[str]:
        """The items that the row is about."""
        if isinstance(row, Migration):
            return []
        if isinstance(row, Message):
            return [self._chats.ref(row.chat, row.topic)]
        ref = self._chats.ref(row.chat, None)
        known = dict.fromkeys((*self._chats.heads, *self._chats.broken, *groups))
        return [one for one in known if one == ref or one.startswith(f"{ref}/")]

    def _record(self, ref: str, group: Sequence[tuple[Batch, Row]]) -> None:
        """One chat's news; a transcript that cannot be read or written costs that chat only, and not for good."""
        try:
            before = self._chats.read(ref)
            after, rows, notes = self._applied(ref, before, group)
            if after is not None and after is not before:
                self._chats.write(after)
        except (OSError, ValueError) as error:
            self._chats.set_aside(ref, f"cannot use '{self._chats.path(ref)}': {explain(error)}")
            self.behind[ref] = self._behind.get(ref, self._taken)
            return
        self.notes += notes
        if rows:
            self.rows[ref] = list({row.key: row for row in rows}.values())

    def _applied(
        self, ref: str, transcript: Transcript | None, group: Sequence[tuple[Batch, Row]]
    ) -> tuple[Transcript | None, list[Entry], list[Note]]:
        heard: list[Message] = []
        notes = []
        for batch, row in group:
            if isinstance(row, Departure):
                if transcript is not None and not transcript.ended:
                    transcript = msgspec.structs.replace(transcript, ended=row.reason)
            elif row.is_edit:
                if transcript is not None:
                    transcript, is_changed = with_edit(transcript, row)
                    notes += [self._edited(transcript, row)] if is_changed else []
            elif transcript is None:
                transcript = self._begun(ref, batch, row)
                heard += [row] if transcript is not None else []
            else:
                transcript = with_message(transcript, row, is_heard=row.author in self._authorized)
                heard.append(row)
        return transcript, self._entries(transcript, heard), notes

    def _begun(self, ref: str, batch: Batch, message: Message) -> Transcript | None:
        """The transcript that this message begins; None if it begins none."""
        chat = self._chats.origin(message.chat)
        if message.author not in self._authorized:
            key = f"{Kind.COMMENT}:{entry_id(message, chat)}"
            said = {"ref": ref, "key": key, "reason": str(Dropped.UNAUTHORIZED), "author": message.author}
            self.strangers.setdefault(chat, Note("dispatch.dropped", said))
            return None
        if message.is_words_alone and ref not in self._known:
            return None
        return begun(ref, batch.bot_id, chat, message)

    def _entries(self, transcript: Transcript | None, messages: Sequence[Message]) -> list[Entry]:
        """The messages as entries, without the one that is the item itself."""
        if transcript is None:
            return []
        found = [transcript.find(entry_id(message, transcript.chat)) for message in messages]
        is_hidden = messages and is_body(self._known, transcript.ref, transcript.first.url)
        return [one.to_entry() for one in found if one is not None and not (is_hidden and one is transcript.first)]

    def _edited(self, transcript: Transcript, message: Message) -> Note:
        key = f"{Kind.COMMENT}:{entry_id(message, transcript.chat)}"
        return Note("poll.edited", {"ref": transcript.ref, "key": key, "reason": "edited"})


def is_body(known: Mapping[str, Known], ref: str, url: str) -> bool:
    """True if the first message of the transcript, which has this url, is the text of the item that the core knows.

    It is not where a transcript was lost and began anew: then it is an entry like the others.
    """
    one = known.get(ref)
    return one is None or one.url == url
