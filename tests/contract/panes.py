"""A receiver of the runner `tmux` for the suite: a program in a terminal that keeps what it is given."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from contract.runner_suite import LastingBench
from support import pane_program
from the_loop.core.model import Verdict
from the_loop.runners.base import Offer
from the_loop.runners.tmux_server import socket_path

PROGRAM = str(Path(pane_program.__file__))


class Panes(LastingBench):
    runner = "tmux"
    answers = {  # noqa: RUF012 (the class of the suite says that it is the class's)
        "yes": Verdict.DELIVERED,
        "dies": Verdict.UNKNOWN,
        "not found": Verdict.UNSTARTABLE,
        "no workdir": Verdict.UNSTARTABLE,
    }

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.got = folder / "got"
        self.got.mkdir()

    @property
    def socket(self) -> Path:
        return socket_path(self.root.path)

    def section(self, says: str) -> dict[str, Any]:
        if says == "not found":
            return {"command": ("no-such-program",), "workdir": str(self.folder)}
        workdir = self.folder / "missing" if says == "no workdir" else self.folder
        command = (sys.executable, "-I", "-S", PROGRAM, str(self.got), says)
        return {"command": command, "workdir": str(workdir)}

    def messages(self) -> list[str]:
        """What the programs were given, each once it was submitted, in order."""
        contents = [path.read_bytes() for path in sorted(self.got.glob("got.*"))]
        begin, end = pane_program.BEGIN, pane_program.END
        assert all(one.startswith(begin) and one.endswith(end) and one.count(begin) == 1 for one in contents), contents
        return [one[len(begin) : -len(end)].decode() for one in contents]

    def arrived(self) -> list[str]:
        heads = [re.match(r"\[the-loop\] delivery (\S+)", one) for one in self.messages()]
        return [head[1] for head in heads if head is not None]

    def has_whole(self, offer: Offer) -> bool:
        payload = self.payload(offer)
        said = [payload["body"], *(entry["body"] for entry in payload["thread"])]
        return any(
            all(f"\n{body}\n" in one for body in (*said, f"Title: {payload['title']}")) for one in self.messages()
        )

    def let_go(self) -> None:
        (self.got / "go").touch()

    def tmux(self, *command: str) -> str:
        done = subprocess.run(["tmux", "-N", "-S", str(self.socket), *command], capture_output=True, check=False)
        return done.stdout.decode()

    def close(self) -> None:
        self.let_go()
        self.tmux("kill-server")
        self.socket.unlink(missing_ok=True)
        if self.socket.parent.is_dir():
            self.socket.parent.rmdir()
