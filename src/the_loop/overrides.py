"""What an operator decides about an item: try an event again, state that one was delivered, forget the item.

It is the same whether the running poller carries it out (`requests`), or the command itself under the lock. Each is
one transition of one ledger, in the commit order: what is withdrawn can begin no more, then the ledger is written,
then the files are removed. What is under way is neither settled nor forgotten. All of it may be repeated.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from the_loop.core.breaker import lifted
from the_loop.core.ledger import Ledger, Standing, after_receipt, forgotten, move, rearm, settle
from the_loop.core.model import LoopError, explain
from the_loop.core.outcomes import without_a_session_to_close
from the_loop.deliveries import Deliveries, DeliveryRuns, is_locked
from the_loop.ledgers import HeldItem


class Records(Protocol):
    """What is asked of the ledgers."""

    def get(self, ref: str) -> Ledger | None:
        """The item's ledger, None if it has none. Raises HeldItem, OSError."""

    def save(self, ledger: Ledger) -> None:
        """Write the ledger durably. Raises OSError."""

    def reset_held(self, ref: str) -> None:
        """Let a held item start over. Raises OSError."""


@dataclass(frozen=True, slots=True)
class Retried:
    """The keys of the events that are tried again, and of those that were in the queue already."""

    keys: tuple[str, ...]
    already: tuple[str, ...] = ()
    is_resumed: bool = False  # its breaker had tripped


class Overrides:
    """Changes ledgers for the holder of the lock. `running` gives the key of the item's event that is handed over.

    Every method raises LoopError where the request cannot be granted, and OSError.
    """

    def __init__(
        self, ledgers: Records, deliveries: Deliveries, running: Callable[[str], str | None] = lambda _: None
    ) -> None:
        self._ledgers = ledgers
        self._deliveries = deliveries
        self._running = running

    def retry(self, ref: str, event_id: str | None = None) -> Retried:
        """Try given-up events again from attempt 1 on, and offer held ones once more, marked as redeliveries."""
        ledger = self._get(ref)
        keys = list(ledger.poll.pending) if event_id is None else [self._pending_key(ledger, event_id)]
        chosen = [key for key in keys if ledger.poll.pending[key].state in (Standing.GAVE_UP, Standing.HELD)]
        is_tripped = event_id is None and bool(ledger.poll.breaker.since)
        if not keys and not is_tripped:
            raise LoopError(
                f"cannot retry '{ref}': none of its events is given up or held", "see `the-loop ledger list`"
            )
        after = lifted(ledger) if is_tripped else ledger
        for key in chosen:
            held = after.poll.pending[key].state is Standing.HELD
            after = move(after, key, Standing.UNCERTAIN, unknown=0) if held else rearm(after, key)
        if chosen or is_tripped:
            self._replace(ledger, without_a_session_to_close(after), "retry")
        return Retried(tuple(chosen), tuple(key for key in keys if key not in chosen), is_tripped)

    def settle(self, ref: str, event_id: str) -> str:
        """Record an event of the item's record as delivered; its key."""
        ledger = self._get(ref)
        key = _key(ref, event_id)
        if key in ledger.poll.pending:
            self._replace(ledger, after_receipt(ledger, key), "settle")
        elif ":" not in key:
            raise LoopError(f"cannot settle '{event_id}': it is not an event id", "write it as in 'comment:17'")
        elif not ledger.knows(key):
            raise LoopError(f"cannot settle '{key}': '{ref}' has no such event", f"see `{_show(ref)}`")
        elif key not in ledger.poll.seen_comments:
            self._ledgers.save(settle(ledger, key))  # a pending spawn carries it
        return key

    def reset(self, ref: str) -> None:
        """Forget the item, a held one too: it starts again with its whole thread. The count of its starts is kept."""
        ledger: Ledger | None
        try:
            ledger = self._get(ref)
        except HeldItem:
            ledger = None
        stems = self._deliveries.stems_of(ref)
        if (key := self._running(ref)) is not None:
            raise _is_under_way("reset", ref, key)
        if ledger is not None:
            self._withdraw(ledger, ledger.poll.pending, "reset")
        self._check_idle(ref, stems, "reset")
        if ledger is None:
            self._ledgers.reset_held(ref)
        elif (after := forgotten(ledger)) != ledger:
            self._ledgers.save(after)
        for stem in stems:
            self._deliveries.remove(stem)

    def _get(self, ref: str) -> Ledger:
        ledger = self._ledgers.get(ref)
        if ledger is None:
            raise LoopError(f"cannot find '{ref}': no such item", "see `the-loop ledger list`")
        return ledger

    def _pending_key(self, ledger: Ledger, event_id: str) -> str:
        key = _key(ledger.ref, event_id)
        if key not in ledger.poll.pending:
            problem = "it is settled" if key in ledger.poll.seen_comments else f"'{ledger.ref}' has no such event"
            raise LoopError(f"cannot retry '{key}': {problem}", f"see `{_show(ledger.ref)}`")
        return key

    def _replace(self, before: Ledger, after: Ledger, what: str) -> None:
        """Write a ledger in which fewer events are pending, and remove the files of the others."""
        gone = [key for key in before.poll.pending if key not in after.poll.pending]
        stems = [self._deliveries.stem(before.ref, key) for key in gone]
        if (running := self._running(before.ref)) in gone:
            raise _is_under_way(what, before.ref, str(running))
        self._withdraw(before, gone, what)
        self._check_idle(before.ref, stems, what)
        self._ledgers.save(after)
        for stem in stems:
            self._deliveries.remove(stem)

    def _withdraw(self, ledger: Ledger, keys: Iterable[str], what: str) -> None:
        """Have none of these offers begin any more, whatever was asked to begin them."""
        for key in keys:
            entry = ledger.poll.pending[key]
            if entry.state.is_offered:
                try:
                    self._deliveries.forbid(self._deliveries.stem(ledger.ref, key), entry.offer)
                except DeliveryRuns as error:
                    raise _is_under_way(what, ledger.ref, key) from error

    def _check_idle(self, ref: str, stems: Iterable[Path], what: str) -> None:
        """A delivery also runs on without its poller; only its lock tells, also where the ledger is held."""
        for stem in stems:
            if is_locked(stem):
                raise _is_under_way(what, ref, stem.name)


def carry_out(overrides: Overrides, verb: str, request: Mapping[str, Any]) -> dict[str, Any]:
    """The answer to a request `retry`, `settle` or `reset` (docs/development/formats.md). Raises LoopError."""
    ref = text_of(request, "ref")
    try:
        match verb:
            case "retry":
                key = text_of(request, "key") if request.get("key") is not None else None
                retried = overrides.retry(ref, key)
                answer = {"ref": ref, "retried": list(retried.keys), "already": list(retried.already)}
                return {**answer, "resumed": True} if retried.is_resumed else answer
            case "settle":
                return {"ref": ref, "settled": overrides.settle(ref, text_of(request, "key"))}
            case _:
                overrides.reset(ref)
                return {"ref": ref, "reset": True}
    except OSError as error:
        raise LoopError(f"cannot {verb} '{ref}': {explain(error)}") from error


def text_of(request: Mapping[str, Any], name: str) -> str:
    """A text of a request. Raises LoopError if it has none of this name."""
    value = request.get(name)
    if not isinstance(value, str) or not value:
        raise LoopError(f"the request has no '{name}'")
    return value


def _key(ref: str, event_id: str) -> str:
    """The key of an event within its item; a whole delivery id is accepted as well."""
    return event_id.removeprefix(f"{ref}/")


def _is_under_way(what: str, ref: str, key: str) -> LoopError:
    return LoopError(
        f"cannot {what} '{ref}': the delivery of '{key}' runs right now", "wait for its end, or stop its command"
    )


def _show(ref: str) -> str:
    return f"the-loop ledger show {shlex.quote(ref)}"
