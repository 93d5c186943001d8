"""What `scale.py` watches and by what: a GitHub in another process, and a real poller seen from outside."""  # noqa: INP001

from __future__ import annotations

import json
import multiprocessing
import os
import re
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Self

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from support.github.fake import FakeGitHub
from support.github.values import Rules
from support.http_server import FakeServer
from support.poller import Box, Started

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

_DAY_S = 86_400.0
_PATIENCE_S = 900.0
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Plan:
    """What is watched, and how. `idle`: how many idle cycles are measured."""

    items: int = 10_000
    repos: int = 20
    is_split: bool = False
    idle: int = 50
    seed: int = 1

    @property
    def names(self) -> list[str]:
        return [f"octo/repo-{number}" for number in range(self.repos)]


# --- GitHub, in another process ---


def fill(github: FakeGitHub, plan: Plan, now: float) -> Counter[str]:
    """Three items in ten are pull requests; threads have 0 to 5 entries of all kinds. How many of what."""
    random, made = Random(plan.seed), Counter[str]()
    for number in range(plan.items):
        repo, is_pull = plan.names[number % plan.repos], random.random() < 0.3
        created = now - 30 * _DAY_S + number
        body = "Please look into this. " * random.randrange(5, 100)
        item = github.add_issue(
            repo, title=f"Item {number}", body=body, labels=("auto",), pull_request=is_pull, created=created
        )
        made["pulls" if is_pull else "issues"] += 1
        for entry in range(random.randrange(6)):
            write = random.choice((github.comment, github.review, github.review_comment)) if is_pull else github.comment
            write(repo, item, body="I think so too. " * random.randrange(2, 30), created=created + 60 * (entry + 1))
            made["entries"] += 1
    return made


def serve(pipe: Connection, plan: Plan) -> None:
    """The other process: does what it is told of its fake, until it is told nothing more."""
    github = FakeGitHub(time.time, Rules(rate_limit=10**9), log_limit=100)
    for name in plan.names:
        github.add_repo(name)
    made = fill(github, plan, time.time())
    with FakeServer(github) as server:
        pipe.send((server.url, made))
        while (call := pipe.recv()) is not None:
            name, arguments = call
            value = getattr(github, name)
            pipe.send(value(*arguments) if callable(value) else value)


class Forge:
    """The fake's side of this process: `ask("points")`, `ask("comment", repo, number)`."""

    def __init__(self, plan: Plan) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs, plan), daemon=True)

    def __enter__(self) -> Self:
        self._process.start()
        self.url, self.made = self._pipe.recv()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._pipe.send(None)
        self._process.join(10)

    def ask(self, name: str, *arguments: object) -> Any:
        self._pipe.send((name, arguments))
        return self._pipe.recv()


# --- the poller, from outside ---


@dataclass(frozen=True)
class Beat:
    """How things stood when a cycle had ended. Counts are totals, of this life and of the fake's."""

    seconds: float  # of the cycle alone
    delivered: int  # within it
    processor_s: float
    requests: int
    points: int
    heartbeat: Mapping[str, Any]


class Life:
    """One life of the poller, with the messages that its manager would get."""

    def __init__(self, box: Box, forge: Forge) -> None:
        self._box, self._forge = box, forge
        self._told: dict[str, str] = {}  # source -> when the cycle began that was last told of
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(address := f"\0the-loop-scale-{os.getpid()}-{time.monotonic_ns()}")
        began = time.perf_counter()
        self.process: Started = box.start(env={"NOTIFY_SOCKET": f"@{address[1:]}"}, is_up=False)
        self._until("READY=1")
        self.ready_s = time.perf_counter() - began
        self.ready_mb = self.memory_mb()

    def cycle(self) -> Beat:
        """Once every source has ended a cycle that began after the one last told of."""
        until = time.perf_counter() + _PATIENCE_S
        while time.perf_counter() < until and self.process.is_alive:
            with suppress(FileNotFoundError):
                beat = json.loads((self._box.root / "poll-status.json").read_bytes())
                lasts = {source["name"]: source["lastCycle"] for source in beat["sources"]}
                if all(last and last["startedAt"] != self._told.get(name) for name, last in lasts.items()):
                    self._told = {name: last["startedAt"] for name, last in lasts.items()}
                    return self._beat(beat, list(lasts.values()))
            time.sleep(0.01)
        raise SystemExit(f"a cycle of every source did not come: {self.process.err[-2000:]}")

    def _beat(self, beat: Mapping[str, Any], lasts: list[Mapping[str, Any]]) -> Beat:
        requests, points = self._forge.ask("requests"), self._forge.ask("points")
        seconds, delivered = max(last["seconds"] for last in lasts), sum(last["delivered"] for last in lasts)
        return Beat(seconds, delivered, self.processor_s(), requests, points, beat)

    def cycles(self, count: int) -> list[Beat]:
        return [self.cycle() for _ in range(count)]

    def stop(self) -> float:
        """Seconds from SIGTERM to the end."""
        began = time.perf_counter()
        if (code := self.process.stop()) != 0:
            raise SystemExit(f"the poller ended with {code}: {self.process.err[-2000:]}")
        self._socket.close()
        return time.perf_counter() - began

    def memory_mb(self, name: str = "VmRSS") -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text("ascii", "replace")
        return int(re.search(rf"{name}:\s+(\d+)", status)[1]) / 1024  # type: ignore[index]

    def processor_s(self) -> float:
        """Processor time so far, children not counted."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text("ascii", "replace").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def _until(self, part: str) -> None:
        until = time.perf_counter() + _PATIENCE_S
        self._socket.settimeout(1)
        while time.perf_counter() < until and self.process.is_alive:
            with suppress(TimeoutError):
                if part in self._socket.recv(65536).decode():
                    return
        raise SystemExit(f"{part} of the poller did not come: {self.process.err[-2000:]}")


@contextmanager
def machine(plan: Plan) -> Iterator[tuple[Box, Forge, Path]]:
    """A scratch root, a GitHub to watch, and the file in which the receiver notes each delivery."""
    with tempfile.TemporaryDirectory() as folder, Forge(plan) as forge:
        got = Path(folder) / "got"
        token = Path(folder) / "token"
        token.write_text("a-token\n", "ascii")
        common = {"provider": "github", "label": "auto", "apiUrl": forge.url, "tokenFile": str(token)}
        parts = [[name] for name in plan.names] if plan.is_split else [plan.names]
        sources = [{**common, "name": f"work-{number}", "repos": part} for number, part in enumerate(parts)]
        settings: dict[str, dict[str, Any]] = {
            "polling": {"intervalSeconds": 1, "lingerSeconds": 180},
            "routing": {"authorizedUsers": ["octocat"], "maxEventsPerItemPerHour": 0},
            "session": {"command": ["/bin/sh", "-c", 'echo "$THE_LOOP_DELIVERY_ID" >> "$0"', str(got)]},
        }
        with Box(Path(folder) / "box", sources=sources, **settings) as box:
            yield box, forge, got
