"""A configured source, and how it is doing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from the_loop.core.guards import Rules
from the_loop.core.model import timestamp
from the_loop.cursors import Cursor
from the_loop.sources.base import Source


@dataclass(frozen=True, slots=True)
class Summary:
    """One cycle of one source. Times are epoch seconds and seconds."""

    started_at: float
    seconds: float
    items: int
    delivered: int
    errors: int
    interrupted: bool = False

    def to_json(self) -> dict[str, Any]:
        return {
            "startedAt": timestamp(self.started_at),
            "seconds": round(self.seconds, 3),
            "items": self.items,
            "delivered": self.delivered,
            "errors": self.errors,
            "interrupted": self.interrupted,
        }


@dataclass(slots=True)
class Watched:
    """A configured source and how it is doing. Uptimes are those of `clocks.Clock`, seconds."""

    source: Source
    rules: Rules
    cursor: Cursor = field(default_factory=Cursor)
    error: str = ""
    told: set[str] = field(default_factory=set)  # what is wrong, as far as it was told
    failures: int = 0  # in a row
    wait_ends_s: float = 0.0  # uptime, as the wall clock may be set; the cursor has it for the next life
    last_good_at: float | None = None  # epoch seconds
    items: int = 0
    waiting: int = 0  # items that were met and wait for a start word
    visited: tuple[int, int] | None = None  # of so many items, while a poll of them is under way
    was_polled: bool = False
    troubled: set[str] = field(default_factory=set)  # items whose threads could not be read: last in the next poll
    item_errors: dict[str, str] = field(default_factory=dict)  # by ref: what is wrong, as it was told
    overlooked: Mapping[str, str] = field(default_factory=dict)  # by place, and why: it may not be read
    held_by: str = ""  # another poller has the claim of its place
    last_cycle: Summary | None = None
    next_cycle_at: float | None = None  # epoch seconds

    @property
    def is_unread(self) -> bool:
        """True if no author is authorised: then there is nothing to read it for."""
        return not self.rules.authorized

    def continue_from(self, before: Watched) -> None:
        """Take over what is known of the source, under another configuration: it is tried at once."""
        for name in ("cursor", "error", "told", "wait_ends_s", "last_good_at", "items", "was_polled", "last_cycle"):
            setattr(self, name, getattr(before, name))

    def is_well(self, ref: str) -> None:
        """Forget what was wrong with this item."""
        self.troubled.discard(ref)
        self.item_errors.pop(ref, None)

    def wait_left_s(self, uptime_s: float) -> float:
        """Seconds until the moment that a limit named."""
        return max(0.0, self.wait_ends_s - uptime_s)

    def state(self, uptime_s: float) -> str:
        if self.is_unread:
            return "unread"
        if self.wait_left_s(uptime_s) > 0:
            return "waiting"
        if self.error:
            return "failing"
        if self.held_by:
            return "standby"
        return "ok" if self.was_polled else "new"
