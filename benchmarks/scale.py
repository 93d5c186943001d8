"""Ten thousand labelled items over twenty repositories, and one poller that watches them: memory, time, requests.

    benchmarks/scale.py [--items 10000] [--repos 20] [--split] [--idle 50] [--skip-limit]

A real `the-loop poll start` with a cycle every second beside the GitHub fake of the tests, which lives in a process of
its own. Every item is handed to a real command. `--split` makes one source of each repository, instead of one of all.
At the end the first full sight is played again in virtual time, every 60 s and with GitHub's limit of 5,000 points an
hour. Exit status 1 if anything was delivered twice or not at all, if an idle cycle spent a point, opened a ledger or
asked for more than it should, or if a known item had to wait for new ones.
"""  # noqa: INP001 (a script, no package)

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import mean, median
from typing import TYPE_CHECKING, Any, Self

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from support.github_fake import FakeGitHub
from support.github_values import Rules
from support.http_server import FakeServer
from support.poller import Box, Started
from support.world import NOON, scene
from the_loop.positions import read_position, write_position
from the_loop.state import StateRoot

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

LIMIT = 5000  # points an hour, as GitHub has it
_SWEEP = 30  # every so many looks each pull request is asked for its reviews
_DAY_S = 86_400.0
_PATIENCE_S = 900.0
_SAY_EACH_S = 15.0
_SETTLING_S = 600.0  # until every list was asked for once, and nothing is followed more closely than usual
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


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def row(what: str, value: str) -> None:
    say(f"| {what} | {value} |")


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
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(address := f"\0the-loop-scale-{os.getpid()}-{time.monotonic_ns()}")
        began = time.perf_counter()
        self.process: Started = box.start(env={"NOTIFY_SOCKET": f"@{address[1:]}"}, is_up=False)
        self._until("READY=1")
        self.ready_s = time.perf_counter() - began
        self.ready_mb = self.memory_mb()

    def cycle(self) -> Beat:
        """The next cycle that ends."""
        self._until("STATUS=")
        beat = json.loads((self._box.root / "poll-status.json").read_bytes())
        last = beat["lastCycle"]
        requests, points = self._forge.ask("requests"), self._forge.ask("points")
        return Beat(last["seconds"], last["delivered"], self.processor_s(), requests, points, beat)

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
        raise SystemExit(f"waited in vain for {part} of the poller: {self.process.err[-2000:]}")


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
        settings = {
            "polling": {"intervalSeconds": 1, "lingerSeconds": 180},
            "routing": {"authorizedUsers": ["octocat"]},
            "session": {"command": ["/bin/sh", "-c", 'echo "$THE_LOOP_DELIVERY_ID" >> "$0"', str(got)]},
        }
        with Box(Path(folder) / "box", sources=sources, **settings) as box:
            yield box, forge, got


# --- what is measured ---


def first_sight(box: Box, forge: Forge) -> Life:
    """From an empty root to the last item handed over, with a stop in between; the life that is left."""
    life = Life(box, forge)
    row("start to READY, empty root", f"{life.ready_s:.2f} s, {life.ready_mb:.0f} MB")
    began, beats = time.perf_counter(), [life.cycle()]
    row("first cycle", f"{beats[0].seconds:.2f} s, {beats[0].requests} requests, {life.memory_mb():.0f} MB")
    beats.append(life.cycle())
    time.sleep(1.5)  # into the third one
    row("stop within the first sight", f"{life.stop():.2f} s")
    life, told_at = Life(box, forge), began
    beats.append(life.cycle())
    while owed(beats[-1]):
        beats.append(life.cycle())
        if time.perf_counter() - told_at > _SAY_EACH_S:
            told_at = time.perf_counter()
            sys.stderr.write(f"{progress(box, len(beats), forge)}\n")
    sighted_s, sighted = time.perf_counter() - began, len(beats)
    while beats[-1].heartbeat["pending"]:
        beats.append(life.cycle())
    row("first full sight", f"{sighted} cycles: {sighted} minutes at 60 s, {sighted_s:.0f} s here")
    row("all handed over", f"{time.perf_counter() - began:.0f} s here, four at once")
    spent(beats[2:sighted], "a cycle of it")
    items = forge.made["issues"] + forge.made["pulls"]
    points = beats[sighted - 1].points
    row("points for the first sight", f"{points}, {points / items:.2f} an item; at 60 s {points / sighted * 60:.0f}/h")
    row("memory after it, and at most", f"{life.memory_mb():.0f} MB, {life.memory_mb('VmHWM'):.0f} MB")
    return life


def owed(beat: Beat) -> int:
    """Items whose thread is still to be read."""
    return sum(int(source["owed"]) for source in beat.heartbeat["sources"])


def progress(box: Box, cycles: int, forge: Forge) -> str:
    """What a person sees who asks for the status."""
    status = box.run("poll", "status", "--json").json()
    left, items = sum(one["owed"] for one in status["sources"]), sum(one["items"] for one in status["sources"])
    pending, points = status["pending"], forge.ask("points")
    return f"cycle {cycles}: {items} items, {left} owed, {pending} pending, {points} points"


def spent(beats: Sequence[Beat], what: str) -> None:
    """Median time, mean processor time, and requests of these cycles (the first is where they begin)."""
    if len(beats) < 2:
        return
    processor_s = (beats[-1].processor_s - beats[0].processor_s) / (len(beats) - 1)
    requests = (beats[-1].requests - beats[0].requests) / (len(beats) - 1)
    points = (beats[-1].points - beats[0].points) / (len(beats) - 1)
    times = [beat.seconds for beat in beats[1:]]
    row(
        what,
        f"{median(times) * 1000:.0f} ms (at most {max(times) * 1000:.0f}), "
        f"{processor_s * 1000:.0f} ms of processor, {requests:.1f} requests, {points:.1f} points",
    )


def idle(life: Life, plan: Plan, forge: Forge) -> list[str]:
    """Faults of the idle cycles, which are measured once a whole sweep has cost nothing."""
    until = time.perf_counter() + _SETTLING_S
    quiet, last = 0, life.cycle()
    while quiet <= _SWEEP and time.perf_counter() < until:
        beat = life.cycle()
        quiet = quiet + 1 if beat.points == last.points else 0
        last = beat
    beats = [last, *life.cycles(plan.idle)]
    spent(beats, "an idle cycle")
    requests = (beats[-1].requests - beats[0].requests) / plan.idle
    row("requests that it should have", f"{due(plan, forge):.1f}")
    row(f"memory after {plan.idle} idle cycles", f"{life.memory_mb():.0f} MB")
    faults = [f"idle cycles spent {beats[-1].points - beats[0].points} points"] * (beats[-1].points > beats[0].points)
    return faults + [f"an idle cycle has {requests:.1f} requests"] * (requests > due(plan, forge) + plan.repos)


def due(plan: Plan, forge: Forge) -> float:
    """Requests of an idle cycle: for each repository m + 1 + [P > 0] + P / 30."""
    pages, pulls = plan.items // plan.repos // 100 + 1, forge.made["pulls"]
    return float(plan.repos * (pages + 2) + pulls / _SWEEP)


def opened(life: Life, box: Box) -> list[str]:
    """Which files three idle cycles open, by strace; faults if a ledger is among them."""
    if shutil.which("strace") is None:
        row("files opened in an idle cycle", "unknown: there is no strace")
        return []
    trace = box.folder / "trace"
    argv = ["strace", "-f", "-qq", "-p", str(life.process.pid), "-o", str(trace), "-e", "trace=%file,fsync"]
    life.cycle()
    with subprocess.Popen(argv) as tracer:
        life.cycles(4)
        tracer.terminate()
    lines = trace.read_text("utf-8", "replace").splitlines()
    opens = [line for line in lines if " openat(" in line or " open(" in line or " rename(" in line]
    ledgers = [line for line in opens if "/root/portable/" in line]
    looks = sum("stat" in line for line in lines)
    places = Counter(re.sub(r'.*"([^"]*)".*', r"\1", line).removeprefix(str(box.folder.parent)) for line in opens)
    most = ", ".join(f"{count / 4:.0f} x {place}" for place, count in places.most_common(4))
    row("files opened or renamed in an idle cycle", f"{len(opens) / 4:.0f} ({most}); {looks / 4:.0f} only looked at")
    row("ledgers opened in idle cycles", str(len(ledgers)))
    return [f"an idle cycle opened {line}" for line in ledgers[:3]]


def active(life: Life, plan: Plan, forge: Forge, got: Path) -> None:
    """Cycles in which one comment came."""
    times, processor, requests, points = [], [], [], []
    for number in range(1, 6):
        before = life.cycle()
        forge.ask("comment", plan.names[number % plan.repos], number)
        beat = life.cycle()
        times.append(beat.seconds)
        processor.append(beat.processor_s - before.processor_s)
        requests.append(beat.requests - before.requests)
        points.append(beat.points - before.points)
        expected = plan.items + number
        while len(got.read_text("utf-8").splitlines()) < expected:
            life.cycle()
    row(
        "a cycle with one new comment",
        f"{median(times) * 1000:.0f} ms, {mean(processor) * 1000:.0f} ms of processor, "
        f"{median(requests):.0f} requests, {median(points):.0f} points",
    )


def positions(box: Box) -> None:
    """The size of what each look leaves behind, and how long writing it takes."""
    names = [source["name"] for source in json.loads((box.root / "poll-status.json").read_bytes())["sources"]]
    root = StateRoot(box.root)
    stored = {name: read_position(root, name) for name in names}
    size = sum(root.position(name).stat().st_size for name in names)
    elsewhere = StateRoot(box.folder / "elsewhere")
    elsewhere.prepare_root()
    elsewhere.prepare_folders()
    times = []
    for _ in range(5):
        began = time.perf_counter()
        for name, position in stored.items():
            write_position(elsewhere, name, position)
        times.append(time.perf_counter() - began)
    files = "1 file" if len(names) == 1 else f"{len(names)} files"
    row("the positions on disk", f"{files}, {size / 1024:.0f} kB; written in {median(times) * 1000:.0f} ms")


def restart(life: Life, box: Box, forge: Forge) -> list[str]:
    """An idle stop, and a start with everything known; faults if that costs a point."""
    row("stop, idle", f"{life.stop():.2f} s")
    points = forge.ask("points")
    life = Life(box, forge)
    row("start to READY, everything known", f"{life.ready_s:.2f} s, {life.ready_mb:.0f} MB")
    beat = life.cycles(5)[-1]
    row("memory five cycles after it", f"{life.memory_mb():.0f} MB")
    life.stop()
    return [f"a restart cost {beat.points - points} points"] * (beat.points != points)


def real(plan: Plan) -> list[str]:
    """One whole run with real processes; what was wrong."""
    with machine(plan) as (box, forge, got):
        made = ", ".join(f"{count} {what}" for what, count in forge.made.items())
        sources = f"{plan.repos} sources" if plan.is_split else "one source"
        row("watched", f"{made}; {plan.repos} repositories, {sources}, a cycle every second")
        life = first_sight(box, forge)
        faults = idle(life, plan, forge)
        faults += opened(life, box)
        active(life, plan, forge, got)
        positions(box)
        faults += restart(life, box, forge)
        arrived = Counter(got.read_text("utf-8").splitlines())
        doubled = [name for name, count in arrived.items() if count > 1]
        spawned = sum("/spawn:1" in name for name in arrived)
        row("spawns, comments, doubled", f"{spawned}, {len(arrived) - spawned}, {len(doubled)}")
        if spawned != plan.items or len(arrived) != plan.items + 5 or doubled:
            what = f"{spawned} of {plan.items} spawns arrived, {len(arrived)} deliveries, doubled: {doubled[:5]}"
            faults.append(what)
        return faults


# --- with GitHub's limit, in virtual time ---


async def limited(plan: Plan, folder: Path) -> list[str]:
    """The first full sight at 60 s under GitHub's limit, and how long people on known items wait meanwhile."""
    world = scene(folder, Rules(rate_limit=LIMIT), repos=tuple(plan.names))
    world.github.log_limit = 100
    fill(world.github, plan, NOON)
    began, cycles, waits = world.clock.now, 0, 0
    written: dict[str, float] = {}
    delays: list[float] = []
    while world.watched.position.value is None or world.watched.position.owed or written:
        await world.cycle()
        cycles += 1
        waits += world.state == "waiting"
        arrived = [payload["deliveryId"] for payload in world.received if payload["deliveryId"] in written]
        delays += [world.clock.now - world.options.interval_s - written.pop(name) for name in arrived]
        if cycles % 5 == 0 and world.watched.position.owed:
            ref = world.received[cycles % 50]["ref"]
            repo, _, number = ref.removeprefix("github:").partition("#")
            id_ = world.github.comment(repo, int(number))
            written[f"{ref}/comment:{id_}"] = world.clock.now
    hours = (world.clock.now - began) / 3600
    row("first full sight at 60 s with GitHub's limit", f"{hours:.1f} h, {cycles} cycles, of them waiting {waits}")
    row("points, requests", f"{world.github.points}, {world.github.requests}")
    longest_s = max(delays, default=0.0)
    row("a comment on a known item meanwhile", f"with the next cycle, or at most {longest_s:.0f} s later")
    counts = Counter(payload["deliveryId"] for payload in world.received)
    doubled = [name for name, count in counts.items() if count > 1]
    faults = [f"a comment on a known item waited for {longest_s:.0f} s"] * (longest_s > 0)
    missing = plan.items - sum("/spawn:" in name for name in counts)
    return faults + [f"virtual: {missing} items missing, doubled: {doubled[:5]}"] * bool(missing or doubled)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure as the arguments say, print the table, return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--items", type=int, default=Plan.items)
    parser.add_argument("--repos", type=int, default=Plan.repos)
    parser.add_argument("--split", action="store_true", help="one source for each repository")
    parser.add_argument("--idle", type=int, default=Plan.idle, metavar="CYCLES")
    parser.add_argument("--skip-limit", action="store_true", help="leave out what is played in virtual time")
    asked = parser.parse_args(arguments)
    plan = Plan(asked.items, asked.repos, asked.split, asked.idle)
    say(f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f} before\n\n| what | |\n|---|---|")
    faults = real(plan)
    if not asked.skip_limit:
        with tempfile.TemporaryDirectory() as folder:
            faults += asyncio.run(limited(plan, Path(folder)))
    say("".join(f"\nwrong: {fault}" for fault in faults))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
