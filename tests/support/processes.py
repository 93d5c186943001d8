"""Processes of the tests' own: each is ended by its handle, and everything is waited for with a deadline."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

LIMIT_S = 30.0  # a loaded machine is slow, and not that slow


def wait_until(condition: Callable[[], object], what: str, limit_s: float = LIMIT_S) -> None:
    """Return once `condition()` is true; an AssertionError that says `what` after the limit."""
    until = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < until, f"did not come within {limit_s:.0f} s: {what}"
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    """True while the process runs: neither gone nor a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
    return stat[stat.rindex(b")") + 2 :].split()[0] not in (b"Z", b"X")


def end(*pids: int) -> None:
    """SIGKILL these, where they still are."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


class Child:
    """A running process that is talked to in lines."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.pid = process.pid

    def line(self, limit_s: float = LIMIT_S) -> str:
        """The next line of its stdout; an AssertionError if none comes."""
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], limit_s)
        assert ready, f"no line from process {self.pid} within {limit_s:.0f} s"
        line = self.process.stdout.readline()
        assert line, f"process {self.pid} ended with {self.process.wait(LIMIT_S)} and said nothing"
        return line.decode().rstrip("\n")

    def tell(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{text}\n".encode())

    def ask(self, text: str, limit_s: float = LIMIT_S) -> str:
        self.tell(text)
        return self.line(limit_s)

    def kill(self, number: signal.Signals = signal.SIGKILL) -> int:
        """Send the signal and wait for the end; its return code."""
        self.process.send_signal(number)
        return self.process.wait(LIMIT_S)


@contextmanager
def command(argv: Sequence[str | Path], **options: Any) -> Iterator[Child]:
    """A child that runs `argv`; killed at the exit if it still runs."""
    # unbuffered: select() on a pipe must see every line that was not taken yet
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "bufsize": 0}
    with subprocess.Popen(argv, **{**pipes, **options}) as process:
        try:
            yield Child(process)
        finally:
            process.kill()


@contextmanager
def python(script: str, *arguments: str | Path, **options: Any) -> Iterator[Child]:
    """A child that runs this Python script."""
    with command(python_argv(script, *arguments), **options) as child:
        yield child


def python_argv(script: str, *arguments: str | Path) -> list[str]:
    return [sys.executable, "-c", dedent(script), *map(str, arguments)]


def run_python(script: str, *arguments: str | Path, **options: Any) -> str:
    """What the script prints; it has to end well, and within the limit."""
    argv = python_argv(script, *arguments)
    done = subprocess.run(argv, capture_output=True, timeout=LIMIT_S, text=True, check=False, **options)
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


def traced(argv: Sequence[str | Path], log: Path, calls: str, **options: Any) -> list[str]:
    """The system calls of `argv` and its children, in order: `name(arguments) = result`, descriptors with paths."""
    strace = ["strace", "-f", "-y", "-s", "200", "-o", str(log), "-e", f"trace={calls}"]
    done = subprocess.run([*strace, *argv], capture_output=True, timeout=LIMIT_S, text=True, check=False, **options)
    assert done.returncode == 0, done.stderr
    return [line.split(maxsplit=1)[1] for line in log.read_text().splitlines()]


def in_private_mounts(script: str, *arguments: str | Path) -> list[str]:
    """The command line of a shell script that may mount what nobody else sees; `$1` and so on are the arguments."""
    ways = ["--mount"] if os.geteuid() == 0 else ["--user", "--map-root-user", "--mount"]
    return ["unshare", *ways, "sh", "-c", dedent(script), "sh", *map(str, arguments)]
