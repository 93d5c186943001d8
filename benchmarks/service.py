"""What living under systemd costs: starting, stopping, and deliveries in units instead of process groups.

    benchmarks/service.py [--rounds 10] [--deliveries 60]

Needs root, as it boots a machine of its own (tests/support/container.py), and a quiet machine: the load is printed too.
Prints a table: median and best of the rounds, and beside it what it is measured against.
"""  # noqa: INP001 (a script, not a package)

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from support.container import COMMAND, Container
from support.container_host import obstacle
from support.poller import wait_for
from support.system_install import SystemInstall

_ITEMS = 4  # as many as run at once by default
_PATIENCE_S = 300.0


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def timed(act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def row(what: str, seconds: Sequence[float], against: str = "") -> None:
    say(f"| {what} | {median(seconds) * 1000:.0f} ms | {min(seconds) * 1000:.0f} ms | {against} |")


def rate_row(what: str, count: int, seconds: float, against: str = "") -> None:
    say(f"| {what} | {count / seconds:.1f} /s | {seconds / count * 1000:.0f} ms each | {against} |")


# --- starting and stopping ---


def lives(loop: SystemInstall, rounds: int) -> None:
    """Starts to READY and stops of an idle service, by the manager and by `poll stop`."""
    starts, inside, stops, commands = [], [], [], []
    for _ in range(rounds):
        starts.append(timed(lambda: loop.systemctl("start")))
        begin, end = (int(loop.property(f"{name}TimestampMonotonic")) for name in ("ExecMainStart", "ActiveEnter"))
        inside.append((end - begin) / 1e6)
        stops.append(timed(lambda: loop.systemctl("stop")))
        loop.systemctl("start")
        commands.append(timed(lambda: loop.poll("stop", check=True)))
    nothing = [timed(lambda: loop.root_does(["systemctl", "is-active", "-.slice"])) for _ in range(rounds)]
    bare = [timed(lambda: loop.root_does([COMMAND.parent / "python", "-c", "pass"])) for _ in range(rounds)]
    call = f"a `systemctl` call that does nothing: {median(nothing) * 1000:.0f} ms"
    row("`systemctl start`, until READY", starts, call)
    row("of these, from the process's start to READY", inside, f"`python -c pass`: {median(bare) * 1000:.0f} ms")
    row("`systemctl stop`, idle", stops, call)
    row("`the-loop poll stop`, idle", commands, "it watches the lock stay free for a second")


def stop_at_work(loop: SystemInstall, rounds: int) -> None:
    """Stops while a delivery runs that goes on without us."""
    loop.configure(session={"command": ["sleep", "600"]})
    loop.item("busy")
    loop.systemctl("start")
    loop.wait(loop.deliveries, "the delivery", _PATIENCE_S)
    stops = []
    for _ in range(rounds):
        stops.append(timed(lambda: loop.systemctl("stop")))
        loop.systemctl("start")
    loop.systemctl("stop")
    row("`systemctl stop`, while a delivery of ten minutes runs", stops, "the delivery goes on")


# --- deliveries ---


def comments(loop: SystemInstall, each: int, tag: str) -> None:
    for item in range(_ITEMS):
        for number in range(each):
            loop.comment(f"item{item}", f"{tag}-{number:03}")


def span(events: Sequence[dict[str, str]]) -> float:
    moments = sorted(datetime.fromisoformat(event["time"]) for event in events)
    return (moments[-1] - moments[0]).total_seconds()


def in_units(loop: SystemInstall, count: int, at_once: int) -> float:
    """Seconds for `count` deliveries of `true`, by the service."""
    loop.clear()
    loop.configure(
        session={"command": ["true"]},
        routing={"maxConcurrentDispatches": at_once},
        polling={"intervalSeconds": 86400},
    )
    for item in range(_ITEMS):
        loop.item(f"item{item}")
    loop.systemctl("start")
    loop.wait(lambda: len(loop.events("poll.spawned")) == _ITEMS, "the spawns", _PATIENCE_S)
    comments(loop, count // _ITEMS, "c")
    loop.poll("wake", check=True)
    loop.wait(lambda: len(loop.events("poll.comment_forwarded")) == count, "all of them", _PATIENCE_S)
    seconds = span(loop.events("poll.comment_forwarded"))
    loop.systemctl("stop")
    return seconds


def in_groups(loop: SystemInstall, count: int, at_once: int) -> float:
    """The same by a plain process of a user without a manager."""
    bob = loop.container.add_user("bob", linger=False)
    root, config = bob.home / "root", bob.home / "config.yaml"
    settings = {
        "polling": {"intervalSeconds": 86400, "sources": [{"provider": "directory", "path": "inbox"}]},
        "routing": {"maxConcurrentDispatches": at_once, "authorizedUsers": ["bob"], "maxEventsPerItemPerHour": 0},
        "session": {"command": ["true"]},
    }
    settings["polling"]["sources"][0]["settleSeconds"] = 0  # type: ignore[index]
    loop.write(config, json.dumps(settings), owner=bob.uid)
    options = ["--config", str(config), "--state-root", str(root)]
    log = loop.seen(root) / "logs" / "events.jsonl"

    def found(name: str) -> list[dict[str, str]]:
        lines = log.read_text().splitlines() if log.exists() else []
        return [event for event in map(json.loads, lines) if event["event"] == name]

    try:
        for item in range(_ITEMS):
            loop.write(root / "inbox" / f"item{item}" / "item.md", "please", owner=bob.uid)
        with loop.background([COMMAND, *options, "poll", "start"], user="bob", stdout=-3, stderr=-3):
            wait_for(lambda: len(found("poll.spawned")) == _ITEMS, "the spawns", _PATIENCE_S)
            for item in range(_ITEMS):
                for number in range(count // _ITEMS):
                    loop.write(root / "inbox" / f"item{item}" / f"c-{number:03}", "and this", owner=bob.uid)
            loop.run([str(COMMAND), *options, "poll", "wake"], user="bob")
            wait_for(lambda: len(found("poll.comment_forwarded")) == count, "all of them", _PATIENCE_S)
            return span(found("poll.comment_forwarded"))
    finally:
        loop.container.remove_user("bob")


def deliveries(loop: SystemInstall, count: int) -> None:
    loop.clear()
    script = f"for i in $(seq {count}); do systemd-run --user --quiet --collect --wait true; done"
    bare = timed(lambda: loop.run(script, limit_s=_PATIENCE_S)) / count
    keeper = f"for i in $(seq {count}); do {COMMAND.parent}/python -I -S -c pass; done"
    python = timed(lambda: loop.run(keeper, limit_s=_PATIENCE_S)) / count
    for at_once in (1, _ITEMS):
        against = f"`systemd-run --user --wait true`: {bare * 1000:.0f} ms each" if at_once == 1 else ""
        rate_row(f"deliveries in units, {at_once} at once", count, in_units(loop, count, at_once), against)
        against = f"`python -I -S -c pass`: {python * 1000:.0f} ms each" if at_once == 1 else ""
        rate_row(f"deliveries in process groups, {at_once} at once", count, in_groups(loop, count, at_once), against)


@contextmanager
def machine() -> Iterator[SystemInstall]:
    with tempfile.TemporaryDirectory() as folder:
        if reason := obstacle(Path(folder)):
            sys.exit(f"service.py: {reason}")
        with Container(Path(folder) / "container") as container, SystemInstall(container) as loop:
            yield loop


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--deliveries", type=int, default=60)
    options = parser.parse_args()
    with machine() as loop:
        version = loop.root_does(["systemctl", "--version"]).stdout.split("\n", 1)[0]
        load = os.getloadavg()[0]
        say(f"{version}, {os.cpu_count()} processors, load {load:.1f} before, {options.rounds} rounds\n")
        say("| what | median | best | against |\n|---|---|---|---|")
        lives(loop, options.rounds)
        stop_at_work(loop, options.rounds)
        deliveries(loop, options.deliveries // _ITEMS * _ITEMS)


if __name__ == "__main__":
    main()
