"""The real poller with sessions in terminals: a `Box` whose receiver is a program that keeps what is typed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from support import pane_program
from support.poller import Box, wait_for
from the_loop.runners.tmux_server import socket_path
from the_loop.runners.tmux_session import session_name

PROGRAM = str(Path(pane_program.__file__))
PROMPT = "$id\n$body"


class Terminals(Box):
    """`how` is what the program does (`pane_program`). Messages are filed by the folder of their session."""

    def __init__(self, folder: Path, how: str = "framed", **session: Any) -> None:
        self.got = folder / "got"
        self.got.mkdir(parents=True, exist_ok=True)
        super().__init__(folder, session={**self.terminal(folder, how), **session})

    def terminal(self, folder: Path, how: str) -> dict[str, Any]:
        prompts = dict.fromkeys(("spawnPrompt", "commentPrompt"), PROMPT)
        return {"runner": "tmux", "command": self.program(how), "workdir": str(folder), **prompts}

    def program(self, how: str) -> list[str]:
        return [sys.executable, "-I", "-S", PROGRAM, str(self.got), how]

    @property
    def socket(self) -> Path:
        return socket_path(self.root)

    def tmux(self, *command: str) -> str:
        argv = ["tmux", "-N", "-u", "-S", str(self.socket), *command]
        return subprocess.run(argv, capture_output=True, check=False, timeout=10).stdout.decode()

    def option(self, ref: str, name: str) -> str:
        return self.tmux("show-options", "-v", "-t", f"={session_name(ref)}:", name).strip()

    def pane(self, ref: str, what: str) -> str:
        return self.tmux("display-message", "-p", "-t", f"={session_name(ref)}:", f"#{{{what}}}").strip()

    def raw(self) -> list[bytes]:
        """What was submitted, in order, as it came."""
        return [path.read_bytes() for path in sorted(self.got.glob("got.*"))]

    def messages(self, pid: int | None = None) -> list[str]:
        """What was submitted to all programs, or to this one, without the frame of the paste."""
        paths = sorted(self.got.glob("got.*" if pid is None else f"got.*.{pid}"))
        return [unframed(path.read_bytes()) for path in paths]

    def wait_messages(self, count: int, timeout_s: float = 30.0) -> list[str]:
        wait_for(lambda: len(self.messages()) >= count, f"{count} messages", timeout_s)
        return self.messages()

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        try:
            super().__exit__(kind, *rest)
        finally:
            self.tmux("kill-server")
            self.socket.unlink(missing_ok=True)
            if self.socket.parent.is_dir():
                os.rmdir(self.socket.parent)  # noqa: PTH106 (only ours, and only if it is empty)


def unframed(content: bytes) -> str:
    """The text of one message, which has to be one paste and nothing else."""
    begin, end = pane_program.BEGIN, pane_program.END
    assert content.startswith(begin), content[:200]
    assert content.endswith(end), content[-200:]
    assert (content.count(begin), content.count(end)) == (1, 1)
    return content[len(begin) : -len(end)].decode()
