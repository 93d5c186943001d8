"""A program for a terminal that keeps what it is given: `pane_program.py FOLDER HOW`.

It reads byte by byte what a terminal would give an editor, and writes each message (what was between two Enters) as a
file of its own, whole or not at all. HOW is one word or more, with a comma between:

    framed     asks for bracketed paste (all others do, too, but for `plain`)
    plain      does not
    burst      takes an Enter within 50 ms of other bytes for a part of them
    waits      reads nothing until there is a file `go`
    dies       ends as soon as there is something to be read
    once       ends after one message
    prompt     shows a prompt, and what is typed, as a line editor does
"""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from pathlib import Path

BEGIN, END = b"\x1b[200~", b"\x1b[201~"
BURST_S = 0.05


class Recorder:
    def __init__(self, folder: Path, how: set[str]) -> None:
        self.folder = folder
        self.how = how
        self.buffer = b""
        self.last_s = 0.0
        self.log = (folder / f".log.{os.getpid()}").open("ab", 0)
        self.count = 0

    def message(self, content: bytes) -> None:
        name = f"got.{time.time_ns():020}.{os.getpid()}"
        (self.folder / f".{name}").write_bytes(content)
        (self.folder / f".{name}").rename(self.folder / name)
        if "once" in self.how:
            sys.exit(0)

    def take(self, data: bytes) -> None:
        now_s = time.monotonic()
        self.log.write(data)
        if "prompt" in self.how:
            os.write(
                1, data.replace(BEGIN, b"").replace(END, b"").replace(b"\r", b"\r\n> ").replace(b"\x15", b"\r\x1b[K> ")
            )
        for at in range(len(data)):
            byte = data[at : at + 1]
            is_burst = "burst" in self.how and (at > 0 or now_s - self.last_s < BURST_S)
            if byte == b"\x15" and not self.in_paste():
                self.buffer = b""
            elif byte == b"\r" and not self.in_paste() and not is_burst:
                self.message(self.buffer)
                self.buffer = b""
            else:
                self.buffer += byte
        self.last_s = now_s

    def in_paste(self) -> bool:
        return self.buffer.rfind(BEGIN) > self.buffer.rfind(END)


def main() -> None:
    folder, how = Path(sys.argv[1]), set(sys.argv[2].split(","))
    tty.setraw(0, termios.TCSANOW)
    if "plain" not in how:
        os.write(1, b"\x1b[?2004h")
    if "prompt" in how:
        os.write(1, b"> ")
    recorder = Recorder(folder, how)
    while True:
        if "waits" in how and not (folder / "go").exists():
            time.sleep(0.02)
            continue
        select.select([0], [], [])
        if "dies" in how:
            os._exit(3)
        data = os.read(0, 1 << 16)
        if not data:
            return
        recorder.take(data)


if __name__ == "__main__":
    main()
