"""`the-loop ledger`: the records of items, and the operator's decisions about them."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import click

from the_loop.cli.common import Options, must_exist, with_options
from the_loop.cli.completion import all_refs, pending_events, refs
from the_loop.cli.deciding import decide
from the_loop.cli.help import examples
from the_loop.cli.page import Line, age, put, width
from the_loop.core.ledger import Ledger, encode
from the_loop.core.model import LoopError, Note, delivery_id, explain, printable, timestamp
from the_loop.deliveries import Deliveries
from the_loop.ledgers import Ledgers, UnreadItem
from the_loop.overrides import Overrides, carry_out
from the_loop.state import StateRoot

_NUMBERS: Final = re.compile(r"(\d+)")  # item 9 comes before item 10


@click.group("ledger")
def command() -> None:
    """Show and change the records of items."""


@command.command("list", epilog=examples("the-loop ledger list", "the-loop ledger list --all --json"))
@click.option("--all", "is_all", is_flag=True, help="List the items that ended as well.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
@with_options
def list_(options: Options, *, is_all: bool, as_json: bool) -> None:
    """List all items with their phase and pending events.

    Of the items that ended only their number is told, unless --all is given.
    """
    root = options.root()
    ledgers = _read(root)
    try:
        rows = [_Row(ref, "held", reason=reason) for ref, reason in ledgers.held().items()]
        rows += [_row(root, ledger) for ledger in ledgers.all()]
        rows += [_row(root, ledger) for ledger in (ledgers.ended() if is_all else ())]
        rows.sort(key=lambda row: [int(part) if part.isdigit() else part for part in _NUMBERS.split(row.ref)])
        if as_json:
            for row in rows:
                print(json.dumps(row.to_json()))
        elif rows:
            put(_table(rows))
        elif not ledgers.unread():
            click.echo("no item is open", err=True)
        if not is_all and (count := ledgers.count_ended()):
            click.echo(f"{count} more ended (--all lists them)", err=as_json)
    except OSError as error:
        raise LoopError(f"cannot list the items that ended: {explain(error)}") from error
    if unread := ledgers.unread():
        raise LoopError(f"cannot read the ledgers of {len(unread)} items: the list is not complete")


@dataclass(frozen=True, slots=True)
class _Row:
    """One item of the list. `changed_at`: epoch seconds, None if that cannot be found out."""

    ref: str
    phase: str
    g: int | None = None
    title: str = ""
    reason: str = ""
    flags: tuple[str, ...] = ()
    changed_at: float | None = None
    pending: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        if self.phase == "held":
            return {"ref": self.ref, "phase": self.phase, "reason": self.reason}
        told = {"ref": self.ref, "phase": self.phase, "g": self.g, "title": self.title, "pending": dict(self.pending)}
        told |= {"reason": self.reason} if self.reason else {}
        return {**told, "changedAt": None if self.changed_at is None else timestamp(self.changed_at)}


def _row(root: StateRoot, ledger: Ledger) -> _Row:
    poll = ledger.poll
    flags = {"paused": poll.paused, "away": poll.away, "breaker": bool(poll.breaker.since)}
    return _Row(
        ledger.ref,
        str(poll.phase),
        ledger.g,
        ledger.title,
        poll.reason,
        tuple(name for name, is_so in flags.items() if is_so),
        _changed_at(root, ledger.ref),
        {key: str(entry.state) for key, entry in poll.pending.items()},
    )


def _changed_at(root: StateRoot, ref: str) -> float | None:
    for path in (root.ledger(ref), root.ended_ledger(ref)):
        with suppress(OSError):
            return path.stat().st_mtime
    return None


def _table(rows: Sequence[_Row]) -> Iterator[Line]:
    """The items for people: one line for each, and one for each of its events."""
    wide = min(max(len(printable(row.ref)) for row in rows), 40)
    columns = width()
    yield Line(head=f"{'ITEM':{wide}}  {'CHANGED':10}  {'PHASE':8}  TITLE", style="bold")
    for row in rows:
        age_ = "unknown" if row.changed_at is None else age(row.changed_at, time.time())
        phase = ", ".join((row.phase, *row.flags))
        line = printable(f"{row.ref:{wide}}  {age_:10}  {phase:8}  {row.title}").rstrip()
        yield Line(line if len(line) <= columns else f"{line[: columns - 1]}…")
        if row.reason:
            yield Line(f"    {row.reason}")
        for key, state in row.pending.items():
            yield Line(f"    {key} {state}")


@command.command(epilog=examples("the-loop ledger show 'github:octo/repo#15'"))
@click.argument("ref", shell_complete=all_refs)
@with_options
def show(options: Options, *, ref: str) -> None:
    """Print the record of one item as JSON."""
    print(json.dumps(encode(_get(_read(options.root()), ref)), indent=1))


@command.command(
    epilog=examples(
        "the-loop ledger retry 'github:octo/repo#15'", "the-loop ledger retry 'github:octo/repo#15' comment:17"
    )
)
@click.argument("ref", shell_complete=refs)
@click.argument("event_id", metavar="[ID]", required=False, shell_complete=pending_events)
@with_options
def retry(options: Options, *, ref: str, event_id: str | None) -> None:
    """Retry the given-up and held events of an item, or one of them.

    A given-up event starts again with attempt 1. A held event is offered once
    more, marked as a redelivery. While a poller is running, it retries them at
    once.
    """
    answer = _decide(options.root(), "retry", {"ref": ref, "key": event_id})
    if answer.get("resumed"):
        print(f"goes on: {ref}")
        return
    names = [delivery_id(ref, str(key)) for key in answer.get("retried", ())]
    if names:
        more = f", and {answer['more']} more" if answer.get("more") else ""
        print(f"to be retried: {', '.join(names)}{more}")
    else:
        print(f"in the queue already: {', '.join(delivery_id(ref, str(key)) for key in answer.get('already', ()))}")


@command.command("settle", epilog=examples("the-loop ledger settle 'github:octo/repo#15' comment:17"))
@click.argument("ref", shell_complete=refs)
@click.argument("event_id", metavar="ID", shell_complete=pending_events)
@with_options
def settle_(options: Options, *, ref: str, event_id: str) -> None:
    """Record an event as delivered; it is not offered again.

    ID is the event's id within the item, as in 'comment:17' or 'spawn:1'.
    """
    answer = _decide(options.root(), "settle", {"ref": ref, "key": event_id})
    print(f"settled: {delivery_id(ref, str(answer.get('settled')))}")


@command.command(epilog=examples("the-loop ledger reset 'github:octo/repo#15'"))
@click.argument("ref", shell_complete=refs)
@with_options
def reset(options: Options, *, ref: str) -> None:
    """Forget an item; it starts again with its whole thread.

    The number of its starts is kept, so that its next spawn has a new id. An
    item of which a delivery is running is not forgotten.
    """
    _decide(options.root(), "reset", {"ref": ref})
    print(f"reset: {ref}")


def _read(root: StateRoot) -> Ledgers:
    """The ledgers on disk, read-only: an unreadable one is reported, but not set aside. Raises LoopError."""
    must_exist(root)
    ledgers = Ledgers(root, _say, time.time, may_write=False)
    ledgers.load()
    return ledgers


def _decide(root: StateRoot, verb: str, request: dict[str, Any]) -> dict[str, Any]:
    def here() -> dict[str, Any]:
        ledgers = Ledgers(root, _say, time.time)
        ledgers.load()
        return carry_out(Overrides(ledgers, Deliveries(root)), verb, request)

    return decide(root, verb, request, here)


def _get(ledgers: Ledgers, ref: str) -> Ledger:
    try:
        ledger = ledgers.get(ref)
    except UnreadItem as error:
        raise LoopError(f"cannot read the ledger of '{ref}': {explain(error)}") from error
    if ledger is None:
        raise LoopError(f"cannot find '{ref}': no such item", "see `the-loop ledger list`")
    return ledger


def _say(note: Note) -> None:
    text = f"the-loop: {note.name}: {note.fields.get('ref', '')}: {note.fields.get('reason', '')}"
    click.echo(printable(text), err=True)
