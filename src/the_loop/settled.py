"""The log of one item's settled ids: a file to which they are appended, one per line, when the record has too many.

    {"schema": 1, "ref": "github:octo/repo#15", "generation": 1769860800}
    comment:1001
    spawn:1

The item's record names the generation and the length in bytes that count (`Log`). What is behind that length was
appended for a record that was never written: it is cut off by the next append. An id that is not printable ASCII is a
JSON string.

So the record of an item with few settled ids is its only file, with many of them most writes flush the record alone,
and no write grows with their number.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from the_loop.core.ledger import Ledger, UnreadableLedger, after_receipt, change, encode
from the_loop.durable import append_durably, read_regular, to_json_bytes, write_durably

INLINE: Final = 64  # settled ids in a record; 0: each goes into the log at once
_SCHEMA: Final = 1


@dataclass(frozen=True, slots=True)
class Log:
    """What a record says of its log. `length` is in bytes, with the header."""

    generation: int
    length: int

    def to_json(self) -> dict[str, int]:
        return {"generation": self.generation, "length": self.length}


@dataclass(frozen=True, slots=True)
class Content:
    """The ids that count, and those of whole lines behind them. `is_torn`: something is behind them."""

    ids: frozenset[str]
    behind: frozenset[str]
    is_torn: bool


def begin(path: Path, ref: str, generation: int, ids: Iterable[str]) -> Log:
    """Write a log of this generation that has these ids, durably, in the place of any other. Raises OSError."""
    content = _header(ref, generation) + _lines(sorted(ids))
    write_durably(path, content)
    return Log(generation, len(content))


def append(path: Path, ref: str, log: Log, ids: Iterable[str]) -> Log:
    """Cut off what is behind `log`, and append these ids durably.

    Raises FileNotFoundError or IrregularFile if this log is not there any more, and OSError.
    """
    content = _lines(ids)
    append_durably(path, content, at=log.length, head=_header(ref, log.generation))
    return Log(log.generation, log.length + len(content))


def read(path: Path, ref: str, log: Log) -> Content | None:
    """What is in the log; None if the file is another one.

    Raises FileNotFoundError, OSError; UnreadableLedger if it is shorter than `log` or damaged.
    """
    content = read_regular(path)
    head = _header(ref, log.generation)
    if not content.startswith(head):
        return None
    if len(content) < log.length:
        raise UnreadableLedger(f"its log has {len(content)} bytes, and not {log.length}")
    behind: frozenset[str] = frozenset()
    with suppress(ValueError):  # anything may be there after a power cut
        behind = _ids(content[log.length : content.rfind(b"\n") + 1])
    try:
        return Content(_ids(content[len(head) : log.length]), behind, is_torn=len(content) > log.length)
    except ValueError as error:
        raise UnreadableLedger(f"its log is damaged: {error}") from error


def join(ledger: Ledger, content: Content) -> Ledger:
    """The ledger with the ids of its log. Raises UnreadableLedger."""
    seen = ledger.poll.seen_comments
    joined = change(ledger, seen_comments=seen | content.ids if seen else content.ids)
    try:
        for key in ledger.poll.pending:
            if (key in content.ids or key in content.behind) and key in joined.poll.pending:
                joined = after_receipt(joined, key)
    except ValueError as error:
        raise UnreadableLedger(f"its log has what cannot be settled: {error}") from error
    return joined


def take_log(tree: dict[str, Any]) -> Log | None:
    """What the record says of its log, which is taken out of `tree`: then that is a ledger with the other ids."""
    poll = tree.get("poll")
    seen = poll.get("seenComments") if isinstance(poll, dict) else None
    if not isinstance(poll, dict) or not isinstance(seen, list) or not seen:
        return None
    log = _log_from_json(seen[-1])
    if log is not None:
        poll["seenComments"] = seen[:-1]
    return log


def to_bytes(ledger: Ledger, log: Log | None = None, logged: frozenset[str] | None = None) -> bytes:
    """The record: with all settled ids, or with those that are not in its log, and what is to be said of that."""
    if log is None or logged is None:
        return to_json_bytes(encode(ledger))
    tree = encode(change(ledger, seen_comments=ledger.poll.seen_comments - logged))
    # in the list of ids: earlier versions do not take this for a ledger, and hold the item instead of starting it over
    tree["poll"]["seenComments"].append(log.to_json())
    return to_json_bytes(tree)


def _log_from_json(value: Any) -> Log | None:
    """The log that a record names here; None if it is anything else."""
    if not isinstance(value, dict) or value.keys() != {"generation", "length"}:
        return None
    numbers = (value["generation"], value["length"])
    return Log(*numbers) if all(type(number) is int and number > 0 for number in numbers) else None


def _header(ref: str, generation: int) -> bytes:
    return json.dumps({"schema": _SCHEMA, "ref": ref, "generation": generation}).encode("ascii") + b"\n"


def _lines(ids: Iterable[str]) -> bytes:
    return "".join(f"{_line(one)}\n" for one in ids).encode("ascii")


def _line(one: str) -> str:
    is_plain = one.isascii() and one.isprintable() and one[:1] not in ("", '"')
    return one if is_plain else json.dumps(one)


def _ids(content: bytes) -> frozenset[str]:
    """Raises ValueError for anything but whole lines with an id in each."""
    text = content.decode("ascii")
    lines = text.split("\n")
    if lines.pop() or "" in lines or "\0" in text:
        raise ValueError("it has other lines than ids")
    if '"' not in text:
        return frozenset(lines)
    return frozenset(str(json.loads(line)) if line.startswith('"') else line for line in lines)
