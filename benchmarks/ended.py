"""What items that ended still cost: a start, a single run, an idle cycle, memory.

    benchmarks/ended.py [--open 200] [--ended 5000] [--rounds 7]

A real poller on a directory with some open items, first alone, then beside as many records in `portable/ended/`. The
same rounds are made in turn, so that both meet the same machine; the least of each is compared. At the end the records
are put where they were before there was such a folder, and the start that moves them is timed. Exit status 1 if
anything costs more than 1.2 times what it costs without them.
"""  # noqa: INP001 (a script, no package)

from __future__ import annotations

import argparse
import os
import re
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from support.poller import Box
from the_loop.core.ledger import Ledger, Phase, Poll, encode
from the_loop.durable import to_json_bytes
from the_loop.state import StateRoot

_TICKS = os.sysconf("SC_CLK_TCK")
_IDLE_S = 6.0
_ALLOWED = 1.2


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def fill(root: StateRoot, count: int) -> None:
    """So many items that ended, with 25 settled ids each."""
    root.ended.mkdir(mode=0o700, exist_ok=True)
    seen = frozenset(f"comment:{number:03}.md" for number in range(25))
    for number in range(count):
        ref = f"directory:inbox/gone-{number}"
        poll = Poll(phase=Phase.ENDED, reason="deleted", seen_comments=seen)
        record = Ledger(ref, f"gone-{number}", f"file:///in/gone-{number}/item.md", "gone", 1, poll)
        root.ended_ledger(ref).write_bytes(to_json_bytes(encode(record)))


def once(box: Box) -> dict[str, float]:
    """One `poll start --once`: seconds, and seconds of processor."""
    before, began = os.times(), time.perf_counter()
    done = box.once()
    seconds, after = time.perf_counter() - began, os.times()
    if done.code:
        raise SystemExit(f"a single run ended with {done.code}: {done.err}")
    processor = after.children_user + after.children_system - before.children_user - before.children_system
    return {"--once, s": seconds, "--once, processor s": processor}


def loop(box: Box) -> dict[str, float]:
    """One life: seconds to READY, memory, processor time of an idle second with a cycle in it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified:
        notified.bind(address := f"\0the-loop-ended-{os.getpid()}-{time.monotonic_ns()}")
        notified.settimeout(1)
        began = time.perf_counter()
        poller = box.start(env={"NOTIFY_SOCKET": f"@{address[1:]}"}, is_up=False)
        until(notified, "READY=1")
        ready_s = time.perf_counter() - began
        until(notified, "STATUS=")
        time.sleep(2)
        busy_s, since = processor_s(poller.pid), time.perf_counter()
        time.sleep(_IDLE_S)
        idle_ms = (processor_s(poller.pid) - busy_s) / (time.perf_counter() - since) * 1000
        memory = memory_mb(poller.pid)
        poller.stop()
    return {"READY, s": ready_s, "memory, MB": memory, "an idle cycle, processor ms": idle_ms}


def until(notified: socket.socket, part: str) -> None:
    for _ in range(120):
        with suppress(TimeoutError):
            if part in notified.recv(65536).decode():
                return
    raise SystemExit(f"the poller did not send {part}")


def processor_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text("ascii", "replace").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def memory_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text("ascii", "replace")
    return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024  # type: ignore[index]


def made(folder: Path, count: int, ended: int) -> Box:
    """A root with so many open items, all handed over, and so many that ended."""
    box = Box(folder, polling={"intervalSeconds": 1}, session={"command": ["true"]})
    for number in range(count):
        box.item(f"open-{number}", "please")
    while box.once().code or len(box.ledgers()) < count or box.pending():
        pass
    if ended:
        fill(StateRoot(box.root), ended)
    return box


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure as the arguments say, print the table, return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--open", type=int, default=200)
    parser.add_argument("--ended", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=7)
    asked = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        alone, beside = (
            made(Path(folder) / "alone", asked.open, 0),
            made(Path(folder) / "beside", asked.open, asked.ended),
        )
        with alone, beside:
            rounds = [[{**once(box), **loop(box)} for box in (alone, beside)] for _ in range(asked.rounds)]
            say(f"| {asked.open} open | alone | and {asked.ended} ended | |\n|---|---|---|---|")
            dear = False
            for what in rounds[0][0]:
                one, other = (min(each[place][what] for each in rounds) for place in (0, 1))
                dear |= other > _ALLOWED * one
                say(f"| {what} | {one:.3f} | {other:.3f} | {other / one:.2f} |")
            root = StateRoot(beside.root)
            for path in root.ended.iterdir():
                path.rename(root.portable / path.name)
            say(f"| the start that moves them, --once, s | | {once(beside)['--once, s']:.3f} | |")
    return 1 if dear else 0


if __name__ == "__main__":
    sys.exit(main())
