"""The inbox of a bot: what was fetched and is not known to be done with, on disk before anything else is done with it.

`<claim>/inbox/<number>.json`, one for each answer that had something new:
``{"schema": 1, "root", "bot": {"id", "name"}, "updates"}``. `root` is the state root that takes them; null: none did so
far. Only the holder of the claim writes or removes one; a root marks its own as done without it, by another name:
`<number>.done.json`.

While an update may be sent again it is here, whoever it went to: that is how it is recognised.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from the_loop.core.model import explain
from the_loop.durable import make_folders, read_json_object, to_json_line, write_durably
from the_loop.sources.base import SourceError
from the_loop.sources.telegram.rows import identity

_SCHEMA: Final = 1
_DONE: Final = ".done"


@dataclass(frozen=True, slots=True)
class Batch:
    """The updates of one answer, and the bot that got them."""

    number: int
    root: str | None
    bot_id: int
    bot_name: str
    updates: Sequence[Mapping[str, Any]]
    path: Path
    is_done: bool = False

    @property
    def identities(self) -> set[str]:
        return {identity(update) for update in self.updates}


class Inbox:
    def __init__(self, claim: Path) -> None:
        self._folder = claim / "inbox"

    def read(self) -> list[Batch]:
        """All batches, in the order in which they came. Raises SourceError: one that cannot be read may be needed."""
        try:
            names = sorted(path.name for path in self._folder.iterdir())
        except FileNotFoundError:
            return []
        except OSError as error:
            raise SourceError(f"cannot read the inbox '{self._folder}': {explain(error)}") from error
        found = (self._read(name) for name in names if name.endswith(".json") and not name.startswith("."))
        return [batch for batch in found if batch is not None]

    def _read(self, name: str) -> Batch | None:
        path = self._folder / name
        stem = name.removesuffix(".json")
        if not stem.removesuffix(_DONE).isdecimal():
            return None
        try:
            tree = read_json_object(path)
            root, updates = tree["root"], tree["updates"]
            if tree["schema"] != _SCHEMA or not isinstance(root, str | None):
                raise ValueError("it has another form")
            if not isinstance(updates, list) or not all(isinstance(one, dict) for one in updates):
                raise ValueError("it has another form")
            bot_id, bot_name = int(tree["bot"]["id"]), str(tree["bot"]["name"])
            number = int(stem.removesuffix(_DONE))
            return Batch(number, root, bot_id, bot_name, updates, path, stem.endswith(_DONE))
        except FileNotFoundError:  # its root marked it as done just now, or the holder removed it
            return None if stem.endswith(_DONE) else self._read(f"{stem}{_DONE}.json")
        except (OSError, ValueError, LookupError, TypeError) as error:
            problem = f"cannot read '{path}', which may hold messages that were not delivered: {explain(error)}"
            raise SourceError(problem, "repair it, or move it away") from error

    def write(self, number: int, root: str, bot_id: int, bot_name: str, updates: Sequence[Mapping[str, Any]]) -> Batch:
        """A new batch, on disk. Raises SourceError."""
        path = self._folder / f"{number:012}.json"
        try:
            make_folders(self._folder)
            bot = {"id": bot_id, "name": bot_name}
            write_durably(path, to_json_line({"schema": _SCHEMA, "root": root, "bot": bot, "updates": updates}))
        except OSError as error:
            raise SourceError(f"cannot write '{path}': {explain(error)}") from error
        return Batch(number, root, bot_id, bot_name, updates, path)

    def adopt(self, batch: Batch, number: int, root: str) -> Batch:
        """Mark a batch that nobody took, under another number. Raises SourceError."""
        adopted = self.write(number, root, batch.bot_id, batch.bot_name, batch.updates)
        self.remove([batch])
        return adopted

    def finish(self, batch: Batch) -> None:
        """Mark a batch of ours as done. Raises SourceError."""
        try:
            os.rename(batch.path, batch.path.with_name(f"{batch.number:012}{_DONE}.json"))
        except FileNotFoundError:
            return
        except OSError as error:
            raise SourceError(f"cannot rename '{batch.path}': {explain(error)}") from error

    def remove(self, batches: Iterable[Batch]) -> None:
        """Remove batches that are done with, and whose updates are not sent any more. Raises SourceError."""
        for batch in batches:
            try:
                batch.path.unlink(missing_ok=True)
            except OSError as error:
                raise SourceError(f"cannot remove '{batch.path}': {explain(error)}") from error
