"""The exec runner with keepers that are played: they hold the lock, and write what a keeper writes, in this process."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.fakes import DELIVERED
from the_loop.core.model import Outcome
from the_loop.deliveries import beside
from the_loop.runners.base import Offer
from the_loop.runners.exec import Command, ExecRunner


@dataclass
class _Going:
    offer: Offer
    lock: int  # the descriptor that the manager was given

    @property
    def mark(self) -> dict[str, Any]:
        # of another boot, so that no process is waited for: the lock tells
        return {"schema": 1, "offer": self.offer.number, "attempt": self.offer.attempt, "keeper": "1:1:another-boot"}

    def write(self, part: str, more: Mapping[str, str], mode: str) -> None:
        with open(beside(self.offer.stem, part), mode) as file:  # noqa: PTH123 (not the core's, so it never fails)
            json.dump({**self.mark, **more}, file)


class Keepers:
    """Stands for `Units`. `script` has outcomes by delivery id, used up one by one; None goes on until `finish`."""

    is_only_way = True

    def __init__(self, script: Mapping[str, list[Outcome | None]]) -> None:
        self.script = script
        self.got: list[dict[str, Any]] = []  # payloads as they arrived
        self._going: dict[str, _Going] = {}

    def name(self, offer: Offer) -> str:
        return f"{offer.number}.service"

    async def start(self, offer: Offer, argv: Sequence[str], *, limit_s: int, lock_fd: int) -> None:
        going = _Going(offer, fcntl.fcntl(lock_fd, fcntl.F_DUPFD_CLOEXEC, 3))
        with open(beside(offer.stem, "payload.json"), "rb") as file:  # noqa: PTH123, ASYNC230 (it is here at once)
            payload = json.load(file)
        try:
            if payload["offer"] != offer.number:
                raise FileExistsError
            going.write("started.json", {}, "x")
        except FileExistsError:
            os.close(going.lock)
            return
        self.got.append(payload)
        self._going[offer.delivery_id] = going
        left = self.script.get(offer.delivery_id, [])
        if (outcome := left.pop(0) if left else DELIVERED) is not None:
            self.finish(offer.delivery_id, outcome)

    def finish(self, delivery_id: str, outcome: Outcome = DELIVERED) -> None:
        """The command ended, and its keeper wrote that down."""
        going = self._going[delivery_id]
        going.write("outcome.json", {"outcome": str(outcome.verdict), "reason": outcome.reason}, "w")
        self.kill(delivery_id)

    def kill(self, delivery_id: str) -> None:
        """The keeper is gone, whatever it has written."""
        os.close(self._going.pop(delivery_id).lock)

    def kill_all(self) -> None:
        for delivery_id in list(self._going):
            self.kill(delivery_id)

    def close(self) -> None:
        """There is no connection."""


def runner_with(keepers: Keepers) -> ExecRunner:
    return ExecRunner(Command(("true",), Path("/"), 60, {}, None), keepers)  # type: ignore[arg-type]
