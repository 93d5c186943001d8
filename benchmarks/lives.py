"""How long a start takes until READY, and a stop until the process is gone, beside what bounds them.

    benchmarks/lives.py [--rounds 20] [--before PATH]

A plain process, seen from outside, in each state in which a stop may find it. `--before` names the `the-loop` of
another version, which is measured in turn with this one. The bound is a bare Python that imports the same modules:
its READY, and its end by `os._exit` and by the interpreter's own end. Needs no root. Medians, and the most.
"""  # noqa: INP001 (a script, not a package)

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from scale_world import Forge, Plan

from support.poller import COMMAND, ME, Box

_ITEMS = 10_000
_LEDGERS = 10_000
_AT_WORK_S = (0.3, 2.0)  # after READY a stop comes: drawn anew in each round
_BARE = """
import importlib, os, signal, socket, sys
for name in sys.argv[2].split(","):
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        pass  # the poller, too, asks for some that are not there
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b"READY=1", "\\0" + os.environ["NOTIFY_SOCKET"][1:])
signal.sigwait([signal.SIGTERM])
if sys.argv[1] == "at once":
    os._exit(0)
"""


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


@dataclass
class Times:
    """Seconds to READY and from SIGTERM to gone, of each round."""

    ready_s: list[float] = field(default_factory=list)
    gone_s: list[float] = field(default_factory=list)


def life(argv: Sequence[str], environ: dict[str, str], work_s: float, times: Times, out: Path) -> None:
    """One process: started, left alone for `work_s` seconds after READY, ended."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager, out.open("ab") as file:
        manager.bind(address := f"\0the-loop-lives-{os.getpid()}-{time.monotonic_ns()}")
        manager.settimeout(1.0)
        began = time.perf_counter()
        process = subprocess.Popen(
            list(argv), env={**environ, "NOTIFY_SOCKET": f"@{address[1:]}"}, stdout=file, stderr=file, cwd="/"
        )
        try:
            until_ready(manager, process)
            times.ready_s.append(time.perf_counter() - began)
            manager.close()  # the rest is not heard, and must not fill the socket
            time.sleep(work_s)
            began = time.perf_counter()
            process.send_signal(signal.SIGTERM)
            code = process.wait()
            times.gone_s.append(time.perf_counter() - began)
        finally:
            process.kill()
            process.wait()
    if code != 0:
        sys.exit(f"lives.py: exit status {code}, see {out}: {out.read_text()[-2000:]}")


def until_ready(manager: socket.socket, process: subprocess.Popen[bytes]) -> None:
    while True:
        try:
            if b"READY=1" in manager.recv(1 << 16):
                return
        except TimeoutError:
            if process.poll() is not None:
                return  # its exit status tells


def modules(box: Box) -> list[str]:
    """What a poller imports, in order, until READY, and the little that its end needs."""
    out = box.folder / "imports"
    environ = {**box.environ, "PYTHONPROFILEIMPORTTIME": "1"}
    life(box.argv("poll", "start"), environ, 0.0, Times(), out)
    names = re.findall(r"^import time: +\d+ \| +\d+ \| +([\w.]+)$", out.read_text(), re.MULTILINE)
    return [name for name in dict.fromkeys(names) if not name.startswith(("_", "encodings", "site", "sitecustomize"))]


# --- the states in which a stop finds it ---


def hanging(box: Box) -> Iterator[float]:
    """Six repositories of a server that takes every request and answers none."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        repos = [f"octo/repo-{number}" for number in range(6)]
        source = {"provider": "github", "name": "work", "repos": repos, "label": "auto", "apiUrl": url}
        box.configure(sources=[source], routing={"authorizedUsers": ["octocat"]})
        while True:
            yield 0.5


def idle(box: Box) -> Iterator[float]:
    """Three items that were delivered, an hour between two cycles."""
    for number in range(3):
        box.item(f"item{number}")
    box.configure(session={"command": ["true"]}, polling={"intervalSeconds": 3600})
    yield 2.0
    while True:
        yield 0.5


def delivering(box: Box) -> Iterator[float]:
    """Four deliveries of an hour run; each life but the first adopts them."""
    for number in range(4):
        box.item(f"item{number}")
    box.configure(session={"command": ["sh", "-c", f": {box.folder}/; exec sleep 3600"]})
    yield 3.0
    while True:
        yield 0.5


def folders(box: Box) -> Iterator[float]:
    """The initial sync of ten thousand folders."""
    for number in range(_ITEMS):
        box.item(f"item{number:05}")
    box.configure(session={"command": ["true"]})
    while True:
        yield random.uniform(*_AT_WORK_S)


def github(box: Box) -> Iterator[float]:
    """The initial sync of ten thousand issues and pull requests of twenty repositories."""
    plan = Plan(items=_ITEMS)
    with Forge(plan) as forge:
        source = {"provider": "github", "name": "work", "repos": plan.names, "label": "auto", "apiUrl": forge.url}
        box.configure(
            sources=[source],
            session={"command": ["true"]},
            routing={"authorizedUsers": ["octocat", "alice", "bob"]},
        )
        while True:
            yield random.uniform(*_AT_WORK_S)


def many_ledgers(box: Box) -> Iterator[float]:
    """Ten thousand open items, known from an earlier life; the server does not answer."""
    at_first = box.item("item0")
    box.configure(session={"command": ["true"]})
    box.once()
    path = box.ledger_path(at_first)
    text = path.read_text()
    for number in range(1, _LEDGERS):
        path.with_name(path.name.replace("item0", f"item{number}")).write_text(text.replace("/item0", f"/item{number}"))
    yield from hanging(box)


STATES: dict[str, Callable[[Box], Iterator[float]]] = {
    "idle": idle,
    "a server that hangs": hanging,
    "four deliveries run": delivering,
    "initial sync, 10,000 folders": folders,
    "initial sync, 10,000 GitHub items": github,
    "10,000 open ledgers, a server that hangs": many_ledgers,
}


@contextmanager
def boxes(commands: Sequence[Path], folder: Path, state: Callable[[Box], Iterator[float]]) -> Iterator[list[Box]]:
    made = [Box(folder / f"{state.__name__}-{number}") for number, _ in enumerate(commands)]
    try:
        yield made
    finally:
        for box in made:
            box.end_all()


def measure(
    commands: Sequence[Path], folder: Path, rounds: int, state: Callable[[Box], Iterator[float]]
) -> tuple[list[Times], Times, Times]:
    """Of each version; of a bare Python that leaves at once, and of one that leaves by the interpreter's end."""
    with boxes(commands, folder, state) as made:
        ours, bare, slow = [Times() for _ in commands], Times(), Times()
        works = [state(box) for box in made]
        next(works[0])  # sets it up
        names = ",".join(modules(made[0]))
        for _ in range(rounds):
            for box, command, times, work in zip(made, commands, ours, works, strict=True):
                wait_s = next(work)
                argv = [str(part) for part in box.argv("poll", "start", command=command)]
                life(argv, box.environ, wait_s, times, box.folder / "out")
            for times, how in ((bare, "at once"), (slow, "in order")):
                life([sys.executable, "-c", _BARE, how, names], made[0].environ, 0.0, times, folder / "bare")
        for work in works:
            work.close()  # type: ignore[attr-defined]
    return ours, bare, slow


def cell(seconds: Sequence[float]) -> str:
    return f"{median(seconds) * 1000:.0f} ({max(seconds) * 1000:.0f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--before", type=Path, help="the `the-loop` of another version")
    parser.add_argument("--state", choices=STATES, action="append", help="only this one")
    options = parser.parse_args()
    commands = [COMMAND, *([options.before] if options.before else [])]
    say(f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}, {options.rounds} rounds, as {ME}")
    say("ms, median (most)\n")
    versions = ["now", "before"][: len(commands)]
    heads = [f"READY {one}" for one in versions] + ["bare imports", "ratio"]
    heads += [f"gone {one}" for one in versions] + ["bare `os._exit`", "bare interpreter's end"]
    say(f"| state | {' | '.join(heads)} |")
    say("|---" * (len(heads) + 1) + "|")
    with tempfile.TemporaryDirectory() as folder:
        for name in options.state or STATES:
            ours, bare, slow = measure(commands, Path(folder), options.rounds, STATES[name])
            imports = bare.ready_s + slow.ready_s
            ratio = median(ours[0].ready_s) / median(imports)
            cells = [*(cell(times.ready_s) for times in ours), cell(imports), f"{ratio:.2f}"]
            cells += [*(cell(times.gone_s) for times in ours), cell(bare.gone_s), cell(slow.gone_s)]
            say(f"| {' | '.join([name, *cells])} |")


if __name__ == "__main__":
    main()
