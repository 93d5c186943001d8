"""Ledgers in a state root of their own, and the ledgers on it."""

from __future__ import annotations

import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.factories import item
from the_loop.core.ledger import Ledger, Phase, accept, change, encode, new_ledger, settle
from the_loop.core.model import Note
from the_loop.ledgers import HeldItem, Ledgers
from the_loop.state import StateRoot

REF = "github:octo/repo#1"
LONG = "directory:inbox/" + "工" * 40  # its file name is cut, so that only its content says whose it is


class Shelf:
    """A state root, ledgers on it, and what they told."""

    def __init__(self, folder: Path) -> None:
        self.root = StateRoot(folder / "root")
        self.root.prepare_root()
        self.root.prepare_folders()
        self.notes: list[Note] = []
        self.ledgers = self.opened()

    def opened(self, **options: Any) -> Ledgers:
        """New ledgers, as after a restart."""
        return Ledgers(self.root, self.notes.append, lambda: 1_700_000_000.0, **options)

    @property
    def path(self) -> Path:
        return self.root.ledger(REF)

    @property
    def log(self) -> Path:
        return self.root.settled(REF)

    @property
    def files(self) -> list[str]:
        """The names of a record and its log."""
        return [self.path.name, self.log.name]

    def put(self, content: Any) -> None:
        """Put this in the ledger's place, as an editor does: a new file."""
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        new = self.path.with_name("new")
        new.write_bytes(data)
        new.rename(self.path)

    @property
    def names(self) -> list[str]:
        return sorted(path.name for path in self.root.portable.iterdir())

    def held(self, ledgers: Ledgers | None = None) -> str:
        """Why the item is held."""
        with pytest.raises(HeldItem) as caught:
            (ledgers or self.ledgers).get(REF)
        return caught.value.reason


def ledger(ref: str = REF, **fields: Any) -> Ledger:
    made = change(new_ledger(item(ref=ref, **fields), Phase.STARTING, 1), phase=Phase.LIVE)
    return settle(accept(accept(made, "comment:1", "alice"), "comment:2", "alice"), "comment:1")


def tree(**fields: Any) -> dict[str, Any]:
    return {**encode(ledger()), **fields}


@contextmanager
def full_disk() -> Iterator[None]:
    """Every write fails."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
