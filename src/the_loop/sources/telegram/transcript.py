"""The transcript of one chat, which Telegram does not keep for bots: what was written in it since it began.

Its first message is the item itself, all others are entries. Over LIMIT bytes the oldest entries are cut and counted.
Of what people write who are not authorised only the fact is kept. Times grow by at least a millisecond from entry to
entry, so that their order is the one in which they came: Telegram's own have whole seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from the_loop.core.model import THREAD_LIMIT, Entry, Kind, WorkItem, timestamp
from the_loop.sources.telegram.rows import Message

SCHEMA: Final = 1
LIMIT: Final = THREAD_LIMIT
_STEP_S: Final = 0.001
_FRAME: Final = 200  # bytes of an entry beside its text, about


class Said(msgspec.Struct, frozen=True, omit_defaults=True):
    """One message. `at`: epoch seconds."""

    id: str
    author: str | None
    at: float
    text: str
    url: str
    truncated: bool = False
    about: dict[str, str | int] = {}

    @property
    def size(self) -> int:
        return _FRAME + len(self.text.encode())

    def to_entry(self) -> Entry:
        return Entry(
            kind=Kind.COMMENT,
            id=self.id,
            author=self.author,
            body=self.text,
            url=self.url,
            created_at=timestamp(self.at),
            truncated=self.truncated,
            about=self.about,
        )


class Transcript(msgspec.Struct, frozen=True):
    """What is on disk of one chat or topic. `bot`: the id of the bot that reads it; `ended`: why, or nothing."""

    schema: int
    ref: str
    bot: int
    chat: int
    topic: int | None
    title: str
    first: Said
    said: tuple[Said, ...] = ()
    omitted: int = 0
    ended: str = ""

    @property
    def last_at(self) -> float:
        return self.said[-1].at if self.said else self.first.at

    def find(self, entry_id: str) -> Said | None:
        return next((one for one in (self.first, *self.said) if one.id == entry_id), None)

    def item(self) -> WorkItem:
        """The chat as an item. Its url names its first message, which no other transcript of the chat begins with."""
        return WorkItem(
            ref=self.ref,
            id=str(self.chat) if self.topic is None else f"{self.chat}/{self.topic}",
            url=self.first.url,
            title=self.title,
            body=self.first.text,
            author=self.first.author,
            created_at=timestamp(self.first.at),
            truncated=self.first.truncated,
        )


def begun(ref: str, bot: int, chat: int, message: Message) -> Transcript:
    """The transcript that begins with this message. `chat`: the first id of the message's chat."""
    return Transcript(SCHEMA, ref, bot, chat, message.topic, message.title, _said(message, chat, 0.0))


def entry_id(message: Message, chat: int) -> str:
    """The message's identity in the item of `chat`. Messages are numbered anew where a group got another id."""
    return str(message.id) if message.chat == chat else f"{message.chat}.{message.id}"


def with_message(transcript: Transcript, message: Message, *, is_heard: bool) -> Transcript:
    """The transcript with this message, unless it has it. `is_heard`: its author is authorised."""
    if transcript.find(entry_id(message, transcript.chat)) is not None:
        return transcript
    one = _said(message, transcript.chat, transcript.last_at)
    if not is_heard:
        one = msgspec.structs.replace(one, text="", truncated=True, about={})
    is_back = is_heard and not message.is_words_alone
    ended = "" if is_back else transcript.ended
    title = message.title if is_heard else transcript.title
    return _cut(msgspec.structs.replace(transcript, title=title, said=(*transcript.said, one), ended=ended))


def with_edit(transcript: Transcript, message: Message) -> tuple[Transcript, bool]:
    """The transcript with the message as it is now; True if its text was another one before."""
    before = transcript.find(entry_id(message, transcript.chat))
    if before is None or (before.text, before.truncated) == (message.text, message.truncated):
        return transcript, False
    after = msgspec.structs.replace(before, text=message.text, truncated=message.truncated, about=dict(message.about))
    if before is transcript.first:
        return msgspec.structs.replace(transcript, first=after), True
    said = tuple(after if one is before else one for one in transcript.said)
    return _cut(msgspec.structs.replace(transcript, said=said)), True


def link(chat: int, message_id: int, topic: int | None) -> str:
    """An address that a Telegram client opens."""
    if chat < -1_000_000_000_000:
        place = f"{-chat - 1_000_000_000_000}" + (f"/{topic}" if topic is not None else "")
        return f"https://t.me/c/{place}/{message_id}"
    kind, number = ("user_id", chat) if chat > 0 else ("chat_id", -chat)
    return f"tg://openmessage?{kind}={number}&message_id={message_id}"


def decode(content: bytes) -> Transcript:
    """Raises ValueError: it is not a transcript, or one of a later version."""
    transcript = msgspec.json.decode(content, type=Transcript)
    if transcript.schema != SCHEMA:
        raise ValueError(f"its schema is {transcript.schema}, not {SCHEMA}")
    return transcript


def encode(value: Transcript | Mapping[str, Any]) -> bytes:
    return msgspec.json.encode(value) + b"\n"


def _said(message: Message, chat: int, last_at: float) -> Said:
    return Said(
        id=entry_id(message, chat),
        author=message.author,
        at=round(max(message.date, last_at + _STEP_S), 3),
        text=message.text,
        url=link(message.chat, message.id, message.topic),
        truncated=message.truncated,
        about=dict(message.about),
    )


def _cut(transcript: Transcript) -> Transcript:
    """The transcript without its oldest entries, if it is too long."""
    said, omitted = transcript.said, transcript.omitted
    size = transcript.first.size + sum(one.size for one in said)
    cut = 0
    while size > LIMIT and cut < len(said) - 1:
        size -= said[cut].size
        cut += 1
    return msgspec.structs.replace(transcript, said=said[cut:], omitted=omitted + cut) if cut else transcript
