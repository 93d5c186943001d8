"""`the-loop ledger`: the records of items, and the operator's decisions about them."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager

import click

from the_loop.cli.common import Options, must_exist, with_options
from the_loop.core.ledger import Ledger, Standing, after_receipt, encode, forgotten, move, rearm, settle
from the_loop.core.model import LoopError, Note, delivery_id, printable
from the_loop.deliveries import remove_all
from the_loop.ledgers import HeldItem, Ledgers
from the_loop.lock import LockBusy, RunLock
from the_loop.state import PIDFILE, StateRoot


@click.group("ledger")
def command() -> None:
    """Show and change the records of items."""


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
@with_options
def list_(options: Options, *, as_json: bool) -> None:
    """List all items with their phase and pending events."""
    ledgers = _read(options.root())
    for ref, reason in sorted(ledgers.held().items()):
        row = {"ref": ref, "phase": "held", "reason": reason}
        print(json.dumps(row) if as_json else printable(f"{ref}  held: {reason}"))
    for ledger in sorted(ledgers.all(), key=lambda one: one.ref):
        poll = ledger.poll
        states = {key: str(entry.state) for key, entry in poll.pending.items()}
        if as_json:
            print(json.dumps({"ref": ledger.ref, "phase": str(poll.phase), "g": ledger.g, "pending": states}))
        else:
            flags = "".join(f", {name}" for name in ("paused", "away") if getattr(poll, name))
            queue = ", ".join(f"{key} {state}" for key, state in states.items())
            print(printable(f"{ledger.ref}  {poll.phase}{flags}  {queue}".rstrip()))


@command.command()
@click.argument("ref")
@with_options
def show(options: Options, *, ref: str) -> None:
    """Print the record of one item as JSON."""
    print(json.dumps(encode(_get(_read(options.root()), ref)), indent=1))


@command.command()
@click.argument("ref")
@with_options
def retry(options: Options, *, ref: str) -> None:
    """Retry the given-up and held events of an item.

    A given-up event starts again with attempt 1. A held event is offered once
    more, marked as a redelivery.
    """
    with _writable(options.root()) as ledgers:
        ledger = _get(ledgers, ref)
        keys = [key for key, entry in ledger.poll.pending.items() if entry.state in (Standing.GAVE_UP, Standing.HELD)]
        if not keys:
            raise LoopError(
                f"cannot retry '{ref}': none of its events is given up or held", "see `the-loop ledger list`"
            )
        for key in keys:
            held = ledger.poll.pending[key].state is Standing.HELD
            ledger = move(ledger, key, Standing.UNCERTAIN, unknown=0) if held else rearm(ledger, key)
        ledgers.save(ledger)
    print(f"to be retried: {', '.join(delivery_id(ref, key) for key in keys)}")


@command.command("settle")
@click.argument("ref")
@click.argument("event_id", metavar="ID")
@with_options
def settle_(options: Options, *, ref: str, event_id: str) -> None:
    """Record an event as delivered; it is not offered again.

    ID is the event's id within the item, as in 'comment:17' or 'spawn:1'.
    """
    root = options.root()
    with _writable(root) as ledgers:
        ledger = _get(ledgers, ref)
        key = event_id.removeprefix(f"{ref}/")
        is_pending = key in ledger.poll.pending
        if not is_pending and ":" not in key:
            raise LoopError(f"cannot settle '{event_id}': it is not an event id", "write it as in 'comment:17'")
        if not is_pending and not ledger.knows(key):
            raise LoopError(
                f"cannot settle '{key}': '{ref}' has no such event", f"see `the-loop ledger show {shlex.quote(ref)}`"
            )
        ledgers.save(after_receipt(ledger, key) if is_pending else settle(ledger, key))
        remove_all(root.delivery(delivery_id(ref, key)))
    print(f"settled: {delivery_id(ref, key)}")


@command.command()
@click.argument("ref")
@with_options
def reset(options: Options, *, ref: str) -> None:
    """Forget an item; it starts again with its whole thread.

    The number of its starts is kept, so that its next spawn has a new id.
    """
    with _writable(options.root()) as ledgers:
        try:
            ledger = _get(ledgers, ref)
        except HeldItem:
            ledgers.reset_held(ref)
        else:
            ledgers.save(forgotten(ledger))
    print(f"reset: {ref}")


def _read(root: StateRoot) -> Ledgers:
    """The ledgers on disk, read-only: an unreadable one is reported, but not set aside. Raises LoopError."""
    must_exist(root)
    ledgers = Ledgers(root, _say, time.time, may_write=False)
    ledgers.load()
    return ledgers


@contextmanager
def _writable(root: StateRoot) -> Iterator[Ledgers]:
    """The ledgers, with the poller's lock held. Raises LockHeld (exit code 75) while a poller is running."""
    must_exist(root)
    root.check_owner()
    lock = _lock(root)
    try:
        root.prepare_folders()
        ledgers = Ledgers(root, _say, time.time)
        ledgers.load()
        yield ledgers
    finally:
        lock.close()


def _lock(root: StateRoot) -> RunLock:
    until = time.monotonic() + 1.0
    while True:
        try:
            return RunLock.attempt(root.path, PIDFILE)
        except LockBusy:
            if time.monotonic() > until:
                raise
            time.sleep(0.02)


def _get(ledgers: Ledgers, ref: str) -> Ledger:
    ledger = ledgers.get(ref)
    if ledger is None:
        raise LoopError(f"cannot find '{ref}': no such item", "see `the-loop ledger list`")
    return ledger


def _say(note: Note) -> None:
    text = f"the-loop: {note.name}: {note.fields.get('ref', '')}: {note.fields.get('reason', '')}"
    click.echo(printable(text), err=True)
