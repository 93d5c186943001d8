"""The runner `print` keeps what is asked of every runner. Its receiver is the reader of the poller's output."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from contract.runner_suite import LastingBench, LastingRunnerSuite
from the_loop.core.model import Verdict
from the_loop.runners.base import Offer


class Output(LastingBench):
    """Our standard output is a pipe: read by us, full (and a printer waits), or a device that takes nothing."""

    runner = "print"
    answers = {"yes": Verdict.DELIVERED, "full": Verdict.REFUSED, "no workdir": Verdict.UNSTARTABLE}  # noqa: RUF012

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._stdout = os.dup(1)
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.dup2(self._writer, 1)
        self._read = b""

    def section(self, says: str) -> dict[str, Any]:
        os.dup2(self._writer, 1)
        if says == "full":
            device = os.open("/dev/full", os.O_WRONLY)
            os.dup2(device, 1)
            os.close(device)
        if says == "waits":
            self._fill()
        return {"workdir": str(self.folder / "missing" if says == "no workdir" else self.folder)}

    def arrived(self) -> list[str]:
        return re.findall(r"^\[spawn\] (.*)$", self._text(), re.MULTILINE)

    def has_whole(self, offer: Offer) -> bool:
        payload, text = self.payload(offer), self._text()
        said = [payload["body"], *(entry["body"] for entry in payload["thread"])]
        lines = [line for body in said for line in body.splitlines()]
        shown = ["".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in line) for line in lines]
        return payload["title"] in text and all(f"    | {line}\n" in text for line in shown)

    def let_go(self) -> None:
        self._text()

    def close(self) -> None:
        os.dup2(self._stdout, 1)
        self._text()
        for descriptor in (self._stdout, self._reader, self._writer):
            os.close(descriptor)

    def _fill(self) -> None:
        """Leave no room in the pipe, so that the next one to print waits."""
        os.set_blocking(self._writer, False)
        try:
            while True:
                os.write(self._writer, b"\n" * 4096)
        except BlockingIOError:
            os.set_blocking(self._writer, True)

    def _text(self) -> str:
        """All that was printed so far; makes room."""
        try:
            while chunk := os.read(self._reader, 1 << 16):
                self._read += chunk
        except BlockingIOError:
            pass
        return self._read.decode()


class TestPrint(LastingRunnerSuite):
    bench_type = Output
