"""The transcripts of one source: `<folder>/chats/<slug of the ref>.json`, and what groups were called before.

`<folder>/chats/moved,<new id>.json` says that the chat with this id is the continuation of another one:
``{"schema": 1, "old": <id>}``. It is a file of its own, as it has to be known even where a transcript cannot be read.

Of each transcript the head stays in memory; the entries are read when they are needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from the_loop.core.model import WorkItem, explain
from the_loop.durable import make_folders, read_json_object, read_regular, write_durably
from the_loop.sources.base import SourceError
from the_loop.sources.telegram.transcript import SCHEMA, Transcript, decode, encode
from the_loop.state import slug, unslug
from the_loop.turns import Turns

_MOVED: Final = "moved,"
_MOVES: Final = 20  # of one chat, one after the other


@dataclass(frozen=True, slots=True)
class Head:
    """What is known of a chat without its entries. `item` has no text."""

    item: WorkItem
    chat: int
    topic: int | None
    bot: int
    ended: str
    first_id: str


class Chats:
    """`prefix`: of the source's refs. `heads` and `broken` are those of the last `look`."""

    def __init__(self, folder: Path, prefix: str) -> None:
        self.heads: dict[str, Head] = {}
        self.broken: dict[str, str] = {}  # by ref: why its transcript cannot be read
        self._folder = folder / "chats"
        self._prefix = prefix
        self._moves: dict[int, int] = {}  # from a new id to the old one
        self._seen: dict[str, tuple[tuple[int, ...], Head]] = {}

    async def look(self, turns: Turns) -> None:
        """Find out what chats there are. Raises SourceError if that cannot be found out."""
        heads, broken = {}, {}
        for name, path in self._names():
            await turns.are_given()
            ref = unslug(name) or name
            try:
                heads[ref] = self._head(name, path)
            except FileNotFoundError:
                continue
            except (OSError, ValueError) as error:
                broken[ref] = f"cannot read '{path}': {explain(error)}"
        self.heads, self.broken = heads, broken

    def _names(self) -> Iterator[tuple[str, Path]]:
        try:
            names = sorted(path.name for path in self._folder.iterdir())
        except FileNotFoundError:
            return
        except OSError as error:
            raise SourceError(f"cannot read '{self._folder}': {explain(error)}") from error
        for name in names:
            stem, dot, end = name.rpartition(".")
            if dot and end == "json" and not name.startswith("."):
                if stem.startswith(_MOVED):
                    self._take_up_move(stem.removeprefix(_MOVED))
                else:
                    yield stem, self._folder / name

    def _take_up_move(self, new: str) -> None:
        path = self._folder / f"{_MOVED}{new}.json"
        try:
            if int(new) not in self._moves:
                self._moves[int(new)] = int(read_json_object(path)["old"])
        except (OSError, ValueError, LookupError, TypeError) as error:  # then messages would begin a chat of their own
            raise SourceError(f"cannot read '{path}': {explain(error)}") from error

    def _head(self, name: str, path: Path) -> Head:
        """Raises OSError and ValueError."""
        signature = _signature(path)
        before = self._seen.get(name)
        if before is not None and before[0] == signature:
            return before[1]
        head = _head_of(decode(read_regular(path)))
        if slug(head.item.ref) != name:
            raise ValueError(f"it is the transcript of '{head.item.ref}'")
        self._seen[name] = (signature, head)
        return head

    # --- one chat ---

    def origin(self, chat: int) -> int:
        """The first id of a chat, which may have another one now."""
        for _ in range(_MOVES):
            if chat not in self._moves:
                break
            chat = self._moves[chat]
        return chat

    def ref(self, chat: int, topic: int | None) -> str:
        """The ref of a chat, by the id that it has now or had before."""
        ref = f"{self._prefix}{self.origin(chat)}"
        return ref if topic is None else f"{ref}/{topic}"

    def of_chat(self, chat: int) -> list[str]:
        """The refs of the chat and its topics, as far as they are known."""
        ref = self.ref(chat, None)
        return [one for one in (*self.heads, *self.broken) if one == ref or one.startswith(f"{ref}/")]

    def move(self, old: int, new: int) -> None:
        """Record that `new` continues `old`. Raises SourceError: nothing of either may be taken up then."""
        if self.ref(new, None) == self.ref(old, None) or self.ref(new, None) in (*self.heads, *self.broken):
            return  # known; or it is a chat of its own by now
        path = self._folder / f"{_MOVED}{new}.json"
        try:
            make_folders(self._folder)
            write_durably(path, encode({"schema": SCHEMA, "old": old}))
        except OSError as error:
            raise SourceError(f"cannot write '{path}': {explain(error)}") from error
        self._moves[new] = old

    def set_aside(self, ref: str, problem: str) -> None:
        """The chat takes no part in this poll: its transcript cannot be read, or not be written."""
        self.heads.pop(ref, None)
        self.broken.setdefault(ref, problem)

    def read(self, ref: str) -> Transcript | None:
        """The transcript; None if there is none. Raises OSError and ValueError."""
        try:
            return decode(read_regular(self.path(ref)))
        except FileNotFoundError:
            return None

    def write(self, transcript: Transcript) -> None:
        """Raises OSError, with the old one in its place."""
        make_folders(self._folder)
        write_durably(self.path(transcript.ref), encode(transcript))
        path, head = self.path(transcript.ref), _head_of(transcript)
        self.heads[transcript.ref] = head
        self.broken.pop(transcript.ref, None)
        self._seen[path.stem] = (_signature(path), head)

    def path(self, ref: str) -> Path:
        return self._folder / f"{slug(ref)}.json"


def _signature(path: Path) -> tuple[int, ...]:
    found = path.stat(follow_symlinks=False)
    return found.st_mtime_ns, found.st_size, found.st_ino


def _head_of(transcript: Transcript) -> Head:
    item = replace(transcript.item(), body="")
    return Head(item, transcript.chat, transcript.topic, transcript.bot, transcript.ended, transcript.first.id)
