"""The runner `spool`: each event becomes a file in a folder, for a program that takes them from there.

    session: {runner: spool, path: ~/spool, most: 1000}

The file is the payload, named after delivery and offer, and there at once and whole. With `most` files waiting,
further events are deferred.

A mark before the file says that it was begun, one after it how that ended. Killed in between, the file itself is the
answer; where that is gone as well, the outcome is unknown.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta

from the_loop.config import Config, Fault, Session, path_faults
from the_loop.core.model import Outcome, Verdict, explain
from the_loop.durable import read_json_object, to_json_line, write_durably
from the_loop.runners.base import Offer, RunnerSite, Status, Trace


class Section(Session, frozen=True, kw_only=True):
    path: str
    most: Annotated[int, Meta(ge=1, le=100_000)] = 1000


def check(section: Section, config: Config) -> list[Fault]:
    if not section.path.startswith(("/", "~")):
        return [Fault("path", f"'{section.path}' is relative; give an absolute path, or one below ~")]
    return path_faults(path=section.path)


def build(section: Section, site: RunnerSite) -> SpoolRunner:
    return SpoolRunner(Path(section.path).expanduser(), section.most)


class SpoolRunner:
    def __init__(self, folder: Path, most: int) -> None:
        self._folder = folder
        self._most = most

    async def deliver(self, offer: Offer) -> Outcome:
        """Nothing is awaited from mark to mark, so no cancellation comes between them."""
        before = self.inspect(offer)
        if before.trace is not Trace.NEVER_BEGUN:
            return before.outcome or Outcome(Verdict.UNKNOWN, "it was begun, and the file is not there any more")
        try:
            payload = read_json_object(_beside(offer, "payload"))
            if payload.get("offer") != offer.number:
                return Outcome(Verdict.UNSTARTABLE, "its payload is of another offer")
            if sum(path.suffix == ".json" for path in self._folder.iterdir()) >= self._most:
                return self._end(offer, Verdict.LATER, f"{self._most} files wait in '{self._folder}'")
            write_durably(_beside(offer, "started"), to_json_line({"schema": 1, "offer": offer.number}))
            try:
                write_durably(self._file(offer), to_json_line(payload))
            except OSError:
                if not self._file(offer).exists():
                    _beside(offer, "started").unlink()
                raise
            return self._end(offer, Verdict.DELIVERED, "")
        except (OSError, ValueError) as error:
            return self.inspect(offer).outcome or Outcome(Verdict.UNSTARTABLE, explain(error))

    async def adopt(self, offer: Offer) -> Outcome:
        """Nothing runs on by itself, so there is nothing to wait for."""
        found = self.inspect(offer)
        verdict = Verdict.NEVER_BEGUN if found.trace is Trace.NEVER_BEGUN else Verdict.UNKNOWN
        return found.outcome or Outcome(verdict)

    async def close(self) -> None:
        """Nothing is held open."""

    def inspect(self, offer: Offer) -> Status:
        ended = _mark(offer, "outcome")
        if ended.get("offer") == offer.number:
            return Status(Trace.DONE, Outcome(Verdict(ended["outcome"]), str(ended["reason"])))
        if _mark(offer, "started").get("offer") != offer.number:
            return Status(Trace.NEVER_BEGUN)
        if self._file(offer).exists():
            return Status(Trace.DONE, Outcome(Verdict.DELIVERED))
        return Status(Trace.UNKNOWN)

    def _end(self, offer: Offer, verdict: Verdict, reason: str) -> Outcome:
        ended = {"schema": 1, "offer": offer.number, "outcome": str(verdict), "reason": reason}
        write_durably(_beside(offer, "outcome"), to_json_line(ended))
        return Outcome(verdict, reason)

    def _file(self, offer: Offer) -> Path:
        return self._folder / f"{offer.stem.name}.{offer.number}.json"


def _beside(offer: Offer, part: str) -> Path:
    return offer.stem.with_name(f"{offer.stem.name}.{part}.json")


def _mark(offer: Offer, part: str) -> dict[str, Any]:
    """A mark of the delivery; empty where there is none. Raises OSError where that cannot be found out."""
    try:
        return read_json_object(_beside(offer, part))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise OSError(f"'{_beside(offer, part)}' cannot be read: {error}") from error
