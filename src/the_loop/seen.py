"""What a stage is told from: all that is known of an item, and of its poller and source. No clock, disk or network."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from the_loop.core.ledger import Ledger
from the_loop.core.model import Outcome, delivery_id, epoch

Event = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Files:
    """What the files of one delivery say now. Times are epoch seconds."""

    is_locked: bool | None = False  # accepted or running; None: could not be found out
    begun_at: float | None = None  # by the start mark of the present offer
    outcome: Outcome | None = None  # of the present offer, as long as it is not recorded
    ended_at: float | None = None
    unit: str = ""  # that it runs in
    unit_state: str = ""  # as its manager says: "active (running)"
    look: tuple[str, ...] = ()  # commands that show it running
    payload: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Here:
    """What is known beside the item: the poller, the source that the item is of, the configuration."""

    is_running: bool | None = None  # a poller; None: could not be found out
    has_reported: bool = True  # the poller that runs now, or the last one: there is a heartbeat of it
    paused: str = ""  # why all deliveries pause
    source: Mapping[str, Any] = field(default_factory=dict)  # as in the heartbeat; empty: not known
    source_name: str = ""
    max_retries: int | None = None
    sources: tuple[str, ...] | None = None  # all that are configured; None: not known
    start_word: str = "the start word"  # as in the configuration, where that is known
    resume_word: str = "the resume word"
    needs: str = ""  # what an item of the source has to have
    changed: tuple[str, ...] = ()  # logins that changed hands, of which something on the item waits
    work: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # what the poller says it does, by delivery id


@dataclass(frozen=True, slots=True)
class Stage:
    """Where it is. `state` is for programs; `text` says it with `reason` and times, `commands` are for a person."""

    state: str
    text: str
    reason: str = ""
    since: float | None = None
    until: float | None = None
    unit: str = ""
    commands: tuple[str, ...] = ()
    is_known: bool = True  # False: nothing speaks of it


@dataclass(frozen=True, slots=True)
class Seen:
    """All that stages are told from. `events` are of the item, oldest first; `at` writes a moment for people."""

    ref: str
    ledger: Ledger | None
    events: Sequence[Event]
    files: Mapping[str, Files]
    here: Here
    now: float
    at: Callable[[float], str]
    held: str = ""  # why the item's ledger cannot be used
    unread: str = ""  # why it could not be read
    is_log_read: bool = True

    def of(self, key: str) -> list[Event]:
        """The events about one event of the item."""
        return [event for event in self.events if event.get("deliveryId") == delivery_id(self.ref, key)]

    def moments(self, key: str) -> list[float]:
        """When these were, epoch seconds."""
        return [at for event in self.of(key) if (at := epoch(event["time"])) is not None]


def overlooked(seen: Seen, key: str = "") -> str:
    """Why the source may not read it, if it says so: by folder, or by folder and file."""
    place = seen.ref.partition("/")[2] + (f"/{key.partition(':')[2]}" if key else "")
    places = seen.here.source.get("overlooked")
    return str(places.get(place) or "") if isinstance(places, Mapping) else ""


def next_poll(seen: Seen) -> str:
    """When the source of the item is polled next, or why not."""
    here, name = seen.here, f"its source '{seen.here.source_name}'"
    if not here.source_name:
        if here.sources is None:
            return "which source it is of is not known"
        return f"no configured source has it (there {_are(here.sources)})"
    if here.is_running is None:
        return f"it is not known whether a poller is running that polls {name}"
    if not here.is_running:
        return f"no poller is running, the next start polls {name}"
    if not here.has_reported:
        return f"the running poller did not say yet when it polls {name}"
    if not here.source:
        return f"the running poller does not have {name}: its configuration is another one"
    state, error = here.source.get("state"), here.source.get("error")
    if state == "unread":
        return f"{name} is not polled: no user is authorised on it"
    until = epoch(here.source.get("waitingUntil"))
    upcoming = f"{name} is polled next {seen.at(until)}, after a limit" if until else _upcoming(seen, name)
    return f"{upcoming}; it is failing: {error}" if error else upcoming


def _upcoming(seen: Seen, name: str) -> str:
    upcoming = epoch(seen.here.source.get("nextCycleAt"))
    if upcoming is None or upcoming <= seen.now:
        return f"{name} is being polled now"
    good = epoch(seen.here.source.get("lastGoodAt"))
    last = f" was read {seen.at(good)}, and" if good else ""
    return f"{name}{last} is polled next {seen.at(upcoming)}"


def next_poll_at(seen: Seen) -> float | None:
    source = seen.here.source
    return epoch(source.get("waitingUntil")) or epoch(source.get("nextCycleAt")) if seen.here.is_running else None


def _are(names: Sequence[str]) -> str:
    if not names:
        return "is none"
    return ("is " if len(names) == 1 else "are ") + ", ".join(f"'{name}'" for name in names)


def reason_of(events: Sequence[Event], *names: str) -> str:
    """The reason of the latest of these events."""
    return next((str(event.get("reason", "")) for event in reversed(events) if event["event"] in names), "")


def last_of(events: Sequence[Event], *names: str) -> float | None:
    """When the latest of these events was, epoch seconds; of all, if none is named."""
    return next((epoch(event["time"]) for event in reversed(events) if not names or event["event"] in names), None)
