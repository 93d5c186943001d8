"""A configured source, and how it is doing."""

from __future__ import annotations

from dataclasses import dataclass, field

from the_loop.core.guards import Rules
from the_loop.cursors import Cursor
from the_loop.sources.base import Source


@dataclass(slots=True)
class Watched:
    """A configured source and how it is doing."""

    source: Source
    rules: Rules
    cursor: Cursor = field(default_factory=Cursor)
    error: str = ""
    told: set[str] = field(default_factory=set)  # what is wrong, as far as it was told
    failures: int = 0  # in a row
    next_look_s: float = 0.0  # monotonic
    wait_ends_s: float = 0.0  # monotonic, as the clock may be set; the position has it for the next life
    last_good_at: float | None = None  # epoch seconds
    items: int = 0
    visited: tuple[int, int] | None = None  # of so many items, while a look at them is under way
    was_looked_at: bool = False
    troubled: set[str] = field(default_factory=set)  # items whose threads were asked for in vain: last in the next look

    @property
    def is_unread(self) -> bool:
        """True if nobody may speak on it: then there is nothing to read it for."""
        return not self.rules.authorized

    def continue_from(self, before: Watched) -> None:
        """Take over what is known of the source, under another configuration: it is tried at once."""
        for name in ("cursor", "error", "told", "wait_ends_s", "last_good_at", "items", "was_looked_at"):
            setattr(self, name, getattr(before, name))

    def wait_left_s(self, monotonic_s: float) -> float:
        """Seconds until the moment that a limit named."""
        return max(0.0, self.wait_ends_s - monotonic_s)

    def state(self, monotonic_s: float) -> str:
        if self.is_unread:
            return "unread"
        if self.wait_left_s(monotonic_s) > 0:
            return "waiting"
        if self.error:
            return "failing"
        return "ok" if self.was_looked_at else "new"
