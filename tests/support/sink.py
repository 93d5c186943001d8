"""A receiver for deliveries, and what tests read of it. Run as a command it depends on the standard library only.

    sink.py FOLDER      appends one line for each call to FOLDER/got.log, then does what FOLDER/behave.json says

A line of `got.log` has, between tabs: delivery id, kind, attempt, redelivery (0 or 1), length and SHA-256 of the body,
and the ids of the thread that came with it, as JSON. One write for each line, so that calls cannot mix. `runs.log` has
"begin" and "end" of each call, with the monotonic clock and the pid, which shows what overlapped.

`behave.json` is a list of `[pattern, behaviour]`; the first pattern that matches the delivery id counts:
`gate` (path; wait until it exists), `sleep` (seconds), `hang` (for ever), `ignore_term`, `fork` (leave a child behind
for so many seconds), `env` (write the environment to `env.<pid>.json`), `die` (kill itself by that signal), `fail`
(exit 1 up to this attempt), `code` (exit status).
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Got:
    """One call of the receiver."""

    delivery_id: str
    kind: str
    attempt: int
    redelivery: bool
    length: int  # of the body, in bytes of UTF-8
    digest: str
    thread: tuple[str, ...]  # keys of the entries that a spawn carries

    @property
    def ref(self) -> str:
        return self.delivery_id.rpartition("/")[0]

    @property
    def key(self) -> str:
        return self.delivery_id.rpartition("/")[2]

    def keys(self) -> list[str]:
        """What arrived with it: the entries of a spawn count like comments that came by themselves."""
        return [self.key, *self.thread]


@dataclass(frozen=True)
class Run:
    """One call from its first to its last moment, in monotonic seconds; `end` is None for one that was cut off."""

    delivery_id: str
    pid: int
    begin: float
    end: float | None


class Sink:
    """The receiver whose folder this is, seen from a test."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder

    def argv(self) -> list[str]:
        """The command that plays it."""
        return [sys.executable, "-I", "-S", str(Path(__file__)), str(self.folder)]

    def behave(self, *rules: tuple[str, dict[str, Any]]) -> None:
        """Replace what the next calls do, in one rename."""
        beside = self.folder / "behave.new"
        beside.write_text(json.dumps(rules))
        beside.rename(self.folder / "behave.json")

    def open_gate(self, name: str) -> None:
        """Let go on what waits at `gate(name)`."""
        (self.folder / name).touch()

    def gate(self, name: str) -> str:
        return str(self.folder / name)

    def got(self) -> list[Got]:
        """All calls so far, in the order in which they began."""
        return [_got(line.split("\t")) for line in self._lines("got.log")]

    def ids(self) -> list[str]:
        return [got.delivery_id for got in self.got()]

    def keys(self, ref: str) -> list[str]:
        """The keys that arrived for one item, in order."""
        return [got.key for got in self.got() if got.ref == ref]

    def entries(self) -> dict[str, list[str]]:
        """By item, what arrived in order, those that a spawn carried among them."""
        arrived: dict[str, list[str]] = {}
        for got in self.got():
            arrived.setdefault(got.ref, []).extend(got.keys())
        return arrived

    def runs(self) -> list[Run]:
        """Begin and end of every call, in the order of their beginnings."""
        found: dict[str, Run] = {}
        for line in self._lines("runs.log"):
            what, moment, pid, delivery_id = line.split("\t")
            if what == "begin":
                found[f"{pid} {delivery_id} {len(found)}"] = Run(delivery_id, int(pid), float(moment), None)
            else:
                key = next(key for key in reversed(found) if key.startswith(f"{pid} {delivery_id} "))
                found[key] = Run(delivery_id, int(pid), found[key].begin, float(moment))
        return list(found.values())

    def _lines(self, name: str) -> list[str]:
        try:
            return (self.folder / name).read_text("utf-8").split("\n")[:-1]
        except FileNotFoundError:
            return []


def overlapping(runs: list[Run]) -> list[tuple[str, str]]:
    """Pairs of calls that ran at the same time; one without an end is taken to have ended when it began."""
    ordered = sorted(runs, key=lambda run: run.begin)
    return [
        (one.delivery_id, other.delivery_id)
        for number, one in enumerate(ordered)
        for other in ordered[number + 1 :]
        if one.end is not None and other.begin < one.end
    ]


def _got(fields: list[str]) -> Got:
    delivery_id, kind, attempt, redelivery, length, digest, thread = fields
    return Got(delivery_id, kind, int(attempt), redelivery == "1", int(length), digest, tuple(json.loads(thread)))


# --- the command ---------------------------------------------------------------------------------------------------


def main(folder: Path) -> int:
    payload = json.loads(sys.stdin.buffer.read())
    delivery_id = payload["deliveryId"]
    _append(folder / "runs.log", f"begin\t{time.monotonic():.6f}\t{os.getpid()}\t{delivery_id}")
    _append(folder / "got.log", _line(payload))
    behaviour = _behaviour(folder, delivery_id)
    _act(folder, behaviour)
    _append(folder / "runs.log", f"end\t{time.monotonic():.6f}\t{os.getpid()}\t{delivery_id}")
    if payload["attempt"] <= behaviour.get("fail", 0):
        return 1
    return int(behaviour.get("code", 0))


def _line(payload: dict[str, Any]) -> str:
    body = payload["body"].encode("utf-8", "backslashreplace")
    thread = [f"{entry['kind']}:{entry['id']}" for entry in payload["thread"]]
    fields = [payload["deliveryId"], payload["kind"], payload["attempt"], int(payload["redelivery"])]
    return "\t".join(map(str, [*fields, len(body), hashlib.sha256(body).hexdigest(), json.dumps(thread)]))


def _act(folder: Path, behaviour: dict[str, Any]) -> None:
    if behaviour.get("ignore_term"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if behaviour.get("env"):
        (folder / f"env.{os.getpid()}.json").write_text(json.dumps(dict(os.environ)))
    if behaviour.get("fork") and os.fork() == 0:
        time.sleep(behaviour["fork"])
        os._exit(0)
    while "gate" in behaviour and not os.path.exists(behaviour["gate"]):  # noqa: PTH110 (no import for every call)
        time.sleep(0.01)
    time.sleep(behaviour.get("sleep", 0))
    if behaviour.get("die"):
        os.kill(os.getpid(), behaviour["die"])
    while behaviour.get("hang"):
        time.sleep(60)


def _behaviour(folder: Path, delivery_id: str) -> dict[str, Any]:
    try:
        rules = json.loads((folder / "behave.json").read_text())
    except FileNotFoundError:
        return {}
    return next((what for pattern, what in rules if fnmatch.fnmatchcase(delivery_id, pattern)), {})


def _append(path: Path, line: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(descriptor, line.encode("utf-8") + b"\n")
    os.close(descriptor)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
