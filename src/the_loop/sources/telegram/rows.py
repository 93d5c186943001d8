"""Updates of the Bot API, typed. Whatever is not needed is not looked at; what is malformed is named.

Rule: Telegram Bot API, Update, Message, ChatMemberUpdated, MessageEntity.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from the_loop.core.model import ENTRY_LIMIT, clean, printable

WORDS: Final = ("start", "stop", "pause", "resume")
_COMMAND: Final = re.compile(rf"/({'|'.join(WORDS)})(?:@([A-Za-z0-9_]+))?", re.IGNORECASE)
_FILES: Final = ("animation", "document", "photo", "video", "audio", "voice", "video_note", "sticker")
_OTHERS: Final = ("contact", "location", "poll", "dice", "game", "story", "checklist", "paid_media")
_QUOTES: Final = ("blockquote", "expandable_blockquote")
_LATEST: Final = 253_402_300_799.0  # the last second of the year 9999
_NAME_LIMIT: Final = 300  # characters


class Malformed(ValueError):
    """An update that has not the shape of one; the message says what is wrong."""


@dataclass(frozen=True, slots=True)
class Message:
    """Somebody wrote this, or it is what became of it (`is_edit`). `date`: epoch seconds."""

    chat: int
    topic: int | None
    id: int
    date: float
    author: str | None  # the numeric id of a person; None for what is written in the name of a chat
    text: str
    title: str  # of the chat, or of the topic
    is_edit: bool = False
    truncated: bool = False
    about: Mapping[str, str | int] = field(default_factory=dict)

    @property
    def is_words_alone(self) -> bool:
        """True for `/start` and the like without anything else."""
        lines = [line.strip() for line in self.text.splitlines() if line.strip()]
        has_more = self.truncated or "fileId" in self.about
        return not has_more and all(_COMMAND.fullmatch(line) for line in lines)


@dataclass(frozen=True, slots=True)
class Departure:
    """The bot may not write in this chat any more: `reason` says why."""

    chat: int
    reason: str


@dataclass(frozen=True, slots=True)
class Migration:
    """A group became a supergroup, with another id."""

    old: int
    new: int


def update_id(update: Any) -> int | None:
    """The update's id; None if it has none."""
    return _number(update.get("update_id")) if isinstance(update, dict) else None


def identity(update: Mapping[str, Any]) -> str:
    """What tells an update from others: after a quiet week ids begin anew, so the id alone does not."""
    for kind, value in sorted(update.items()):
        if isinstance(value, dict):
            chat = value.get("chat")
            chat_id = chat.get("id") if isinstance(chat, dict) else None
            return f"{update.get('update_id')} {kind} {chat_id} {value.get('message_id')} {value.get('date')}"
    return f"{update.get('update_id')}"


def row_of(update: Mapping[str, Any], username: str) -> Message | Departure | Migration | None:
    """What the update says; None if it is of no concern. `username`: the bot's. Raises Malformed."""
    for kind in ("message", "edited_message"):
        if kind in update:
            return _message(_object(update, kind), username, is_edit=kind == "edited_message")
    return _standing(_object(update, "my_chat_member")) if "my_chat_member" in update else None


def _standing(change: Mapping[str, Any]) -> Departure | None:
    chat = _object(change, "chat")
    status = _object(change, "new_chat_member").get("status")
    if status not in ("left", "kicked"):
        return None
    number = _needed(chat, "id")
    return Departure(number, "blocked" if chat.get("type") == "private" else "removed")


def _message(message: Mapping[str, Any], username: str, *, is_edit: bool) -> Message | Migration | None:
    chat = _object(message, "chat")
    number = _needed(chat, "id")
    if (new := _number(message.get("migrate_to_chat_id"))) is not None:
        return Migration(number, new)
    if (old := _number(message.get("migrate_from_chat_id"))) is not None:
        return Migration(old, number)
    text, about = _content(message, username)
    if not text and not about:
        return None  # joined, pinned, …
    topic = _number(message.get("message_thread_id")) if message.get("is_topic_message") is True else None
    date = _needed(message, "date")
    if not 0 < date <= _LATEST:
        raise Malformed("its date is none")
    is_long = len(text) * 4 > ENTRY_LIMIT and len(text.encode()) > ENTRY_LIMIT
    return Message(
        chat=number,
        topic=topic,
        id=_needed(message, "message_id"),
        date=float(date),
        author=_author(message),
        text="" if is_long else text,
        title=_title(chat, message, topic),
        is_edit=is_edit,
        truncated=is_long,
        about=about,
    )


def _author(message: Mapping[str, Any]) -> str | None:
    """The person; None for a channel, an anonymous administrator, and whatever else is not one."""
    sender = message.get("from")
    if "sender_chat" in message or not isinstance(sender, dict):
        return None
    number = _number(sender.get("id"))
    return None if number is None else str(number)


def _title(chat: Mapping[str, Any], message: Mapping[str, Any], topic: int | None) -> str:
    names = (chat.get("title"), chat.get("first_name"), chat.get("last_name"))
    whole = " ".join(name for name in names if isinstance(name, str) and name.strip())
    whole = whole or (chat["username"] if isinstance(chat.get("username"), str) else "") or f"chat {chat['id']}"
    if topic is not None:
        created = _inner(message, "reply_to_message", "forum_topic_created") or _inner(message, "forum_topic_created")
        name = created.get("name")
        whole = f"{whole}: {name if isinstance(name, str) and name else f'topic {topic}'}"
    return printable(clean(whole))[:_NAME_LIMIT]


# --- text ---


def _content(message: Mapping[str, Any], username: str) -> tuple[str, dict[str, str | int]]:
    """What was written, as text, and more about it; nothing for what Telegram itself says."""
    about: dict[str, str | int] = {}
    parts = []
    if isinstance(cited := _inner(message, "quote").get("text"), str) and cited:
        parts.append(_quoted(clean(cited)))
    for name in ("text", "caption"):
        if isinstance(text := message.get(name), str) and text:
            entities = message.get("entities" if name == "text" else "caption_entities")
            shown = _with_commands(clean(_marked_up(text, entities)), username)
            is_forwarded = "forward_origin" in message or "forward_date" in message
            parts.append(_quoted(shown) if is_forwarded else shown)
    for name in _FILES:
        if (file := message.get(name)) and (found := _file(name, file)):
            about |= found
            parts.append(_line(found))
            break  # an animation comes as a document too
    parts += [f"[{name}]" for name in _OTHERS if name in message]
    if parts and (reply := _number(_inner(message, "reply_to_message").get("message_id"))) is not None:
        about |= {} if "forum_topic_created" in _inner(message, "reply_to_message") else {"replyTo": reply}
    return "\n\n".join(parts), about


def _file(kind: str, value: Any) -> dict[str, str | int]:
    """A file by its id, name and size: whoever receives the event fetches it."""
    file = value[-1] if isinstance(value, list) and value else value  # of a photo the largest
    if not isinstance(file, dict) or not isinstance(file.get("file_id"), str):
        return {}
    found: dict[str, str | int] = {"fileType": kind, "fileId": printable(clean(file["file_id"]))[:_NAME_LIMIT]}
    if isinstance(name := file.get("file_name"), str):
        found["fileName"] = printable(clean(name))[:_NAME_LIMIT]
    if (size := _number(file.get("file_size"))) is not None:
        found["fileSize"] = size
    return found


def _line(file: Mapping[str, str | int]) -> str:
    size = f"{file['fileSize']} bytes" if "fileSize" in file else ""
    parts = (file["fileType"], file.get("fileName"), size, f"file_id {file['fileId']}")
    return f"[{', '.join(str(part) for part in parts if part)}]"


def _with_commands(text: str, username: str) -> str:
    """`text` with the commands that are for this bot in their plain form, `/stop` for `/stop@our_bot`."""
    if "/" not in text:
        return text
    return "\n".join(_plain(line, username) for line in text.split("\n"))


def _plain(line: str, username: str) -> str:
    found = _COMMAND.fullmatch(line.strip())
    if found is None or (found[2] and found[2].casefold() != username.casefold()):
        return line
    return f"/{found[1].lower()}"


def _quoted(text: str) -> str:
    return "\n".join(f"> {line}" for line in text.split("\n"))


def _marked_up(text: str, entities: Any) -> str:
    """`text` with Markdown's marks where it is code or quoted: a word in there is not meant for us."""
    raw = text.encode("utf-16-le", "surrogatepass")  # the unit of offsets
    for start, end, kind in sorted(_spans(entities, len(raw) // 2), reverse=True):
        before, inner, after = raw[: 2 * start], _text(raw[2 * start : 2 * end]), raw[2 * end :]
        if kind == "code":
            inner = f"`{inner}`"
        elif kind == "pre":
            inner = f"{_break(before)}```\n{inner}\n```\n"
        else:
            inner = f"{_break(before)}{_quoted(inner)}\n\n"
        raw = before + inner.encode("utf-16-le", "surrogatepass") + after
    return _text(raw)


def _break(before: bytes) -> str:
    return "" if not before or before.endswith("\n".encode("utf-16-le")) else "\n"


def _text(raw: bytes) -> str:
    return raw.decode("utf-16-le", "surrogatepass")


def _spans(entities: Any, length: int) -> Iterator[tuple[int, int, str]]:
    """Where the text is code or quoted, in units of UTF-16. Spans that are within another one are left out."""
    found = []
    for entity in entities if isinstance(entities, list) else ():
        if isinstance(entity, dict) and entity.get("type") in ("code", "pre", *_QUOTES):
            start, size = _number(entity.get("offset")), _number(entity.get("length"))
            if start is not None and size is not None and start >= 0 and size > 0 and start + size <= length:
                found.append((start, start + size, str(entity["type"])))
    last = 0
    for start, end, kind in sorted(found, key=lambda one: (one[0], -one[1])):
        if start >= last:
            yield start, end, kind
            last = end


# --- shapes ---


def _object(tree: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = tree.get(name)
    if not isinstance(value, dict):
        raise Malformed(f"its {name} is not an object")
    return value


def _inner(tree: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    for name in names:
        value = tree.get(name)
        tree = value if isinstance(value, dict) else {}
    return tree


def _needed(tree: Mapping[str, Any], name: str) -> int:
    value = _number(tree.get(name))
    if value is None:
        raise Malformed(f"its {name} is not a number")
    return value


def _number(value: Any) -> int | None:
    return value if type(value) is int and abs(value) < 1 << 63 else None
