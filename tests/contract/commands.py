"""A receiver of the runner `exec` for the suite: it keeps what it is given, and answers as it is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from contract.runner_suite import LastingBench
from the_loop.core.model import Verdict
from the_loop.deliveries import beside
from the_loop.runners.base import Offer

# NB: `deliver` removes a mark that says nothing as one of an earlier offer, whatever `inspect` takes it for
_KEEP = 'cat >"$0/.$$" && mv "$0/.$$" "$0/got.$$"; '
_SAYS = {
    "yes": "exit 0",
    "later": "exit 75",
    "no": "exit 7",
    "crash": "kill -SEGV $$",
    "killed": "kill -KILL $$; sleep 60",
    "waits": 'until [ -e "$0/go" ]; do sleep 0.02; done',
}


class Commands(LastingBench):
    runner = "exec"
    answers = {  # noqa: RUF012 (the class of the suite says that it is the class's)
        "yes": Verdict.DELIVERED,
        "later": Verdict.LATER,
        "no": Verdict.REFUSED,
        "crash": Verdict.REFUSED,
        "killed": Verdict.UNKNOWN,
        "not found": Verdict.UNSTARTABLE,
        "no workdir": Verdict.UNSTARTABLE,
    }

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.got = folder / "got"
        self.got.mkdir()

    def section(self, says: str) -> dict[str, Any]:
        if says == "not found":
            return {"command": ("no-such-program",), "workdir": str(self.folder)}
        workdir = self.folder / "missing" if says == "no workdir" else self.folder
        script = _KEEP + _SAYS.get(says, "")
        return {"command": ("/bin/sh", "-c", script, str(self.got)), "workdir": str(workdir)}

    def arrived(self) -> list[str]:
        return [json.loads(content)["deliveryId"] for content in self._contents()]

    def has_whole(self, offer: Offer) -> bool:
        return beside(offer.stem, "payload.json").read_bytes() in self._contents()

    def let_go(self) -> None:
        (self.got / "go").touch()

    def close(self) -> None:
        self.let_go()

    def _contents(self) -> list[bytes]:
        return [path.read_bytes() for path in self.got.glob("got.*")]
