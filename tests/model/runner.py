"""The exec runner with keepers that are played in this process: they hold the lock, and write as keeper.py does."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.fakes import DELIVERED
from the_loop.core.model import Outcome, Verdict
from the_loop.deliveries import beside, outcome_of
from the_loop.durable import read_json_object
from the_loop.runners import keeper as keeper_module
from the_loop.runners.base import Offer
from the_loop.runners.exec import Command, ExecRunner


@dataclass
class _Going:
    """A keeper. `answer` is what its command says in the end; None: what a test says."""

    offer: Offer
    lock: int  # the descriptor that the manager was given
    answer: Outcome | None
    is_scripted: bool
    has_run: bool = False

    @property
    def mark(self) -> dict[str, Any]:
        # of another boot, so that no process is waited for: the lock tells
        return {"schema": 1, "offer": self.offer.number, "attempt": self.offer.attempt, "keeper": "1:1:another-boot"}


class Keepers:
    """Stands for `Units`. `script` has outcomes by delivery id, used up one by one; None goes on until `finish`."""

    is_only_way = True

    def __init__(self, script: dict[str, list[Outcome | None]]) -> None:
        self.script = script
        self.got: list[dict[str, Any]] = []  # payloads as they arrived
        self._going: dict[str, _Going] = {}

    def name(self, offer: Offer) -> str:
        return f"{offer.number}.service"

    async def start(
        self, offer: Offer, argv: Sequence[str], about: Mapping[str, str], *, limit_s: int, lock_fd: int
    ) -> None:
        """The steps of `keeper.main`, up to the end of a command that ends at once."""
        left = self.script.get(offer.delivery_id, [])
        answer = left[0] if left else DELIVERED
        going = _Going(offer, fcntl.fcntl(lock_fd, fcntl.F_DUPFD_CLOEXEC, 3), answer, is_scripted=bool(left))
        self._going[offer.delivery_id] = going
        stem, started = str(offer.stem), f"{offer.stem}.started.json"
        try:
            keeper_module.check_offer(stem, offer.number)
            keeper_module.create(started, going.mark)
            keeper_module.check_offer(stem, offer.number, mark=started)
        except (OSError, ValueError, keeper_module.LateKeeper):
            self.kill(offer.delivery_id)
            return
        try:
            payload = read_json_object(beside(offer.stem, "payload.json"))
        except OSError as error:  # the command's standard input cannot be opened
            self.finish(offer.delivery_id, Outcome(Verdict.UNSTARTABLE, str(error)))
            return
        going.has_run = True
        self.got.append(payload)
        if left:
            del left[0]
        if answer is not None:
            self.finish(offer.delivery_id, answer)

    def finish(self, delivery_id: str, outcome: Outcome = DELIVERED) -> None:
        """The command ended, and its keeper writes that down."""
        going = self._going[delivery_id]
        said = {"outcome": str(outcome.verdict), "reason": outcome.reason}
        keeper_module.write(f"{going.offer.stem}.outcome.json", {**going.mark, **said})
        self.kill(delivery_id)

    def kill(self, delivery_id: str) -> None:
        """The keeper is gone, whatever it has written."""
        os.close(self._going.pop(delivery_id).lock)

    def kill_all(self) -> Mapping[str, bool]:
        """All are gone, and those without an outcome are asked again. By delivery id of these: was the command run?"""
        cut = {}
        for delivery_id, going in list(self._going.items()):
            self.kill(delivery_id)
            if outcome_of(going.offer.stem, going.offer.number) is not None:
                continue  # it was on the disk already
            cut[delivery_id] = going.has_run
            if going.has_run and going.is_scripted:
                self.script[delivery_id].insert(0, going.answer)
        return cut

    def is_going(self, delivery_id: str) -> bool:
        return delivery_id in self._going

    def close(self) -> None:
        """There is no connection."""


def runner_with(keepers: Keepers) -> ExecRunner:
    return ExecRunner(Command(("true",), Path("/"), 60, {}, None), keepers)  # type: ignore[arg-type]
