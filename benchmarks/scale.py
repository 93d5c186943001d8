"""Ten thousand labelled items over twenty repositories, and one poller that watches them: memory, time, requests.

    benchmarks/scale.py [--items 10000] [--repos 20] [--split] [--idle 50] [--skip-limit]

A real `the-loop poll start` with a cycle every second beside the GitHub fake of the tests, which lives in a process of
its own. Every item is handed to a real command. `--split` makes one source of each repository, instead of one of all.
At the end the first full sight is played again in virtual time, every 60 s and with GitHub's limit of 5,000 points an
hour. Exit status 1 if anything was delivered twice or not at all, if an idle cycle spent a point, opened a ledger or
asked for more than it should, or if a known item had to wait for new ones.
"""  # noqa: INP001 (a script, not a package)

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, median

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from scale_world import Beat, Forge, Life, Plan, fill, machine

from support.clock import NOON
from support.github.values import Rules
from support.poller import Box
from support.world import scene
from the_loop.cursors import read_cursor, write_cursor
from the_loop.state import StateRoot

LIMIT = 5000  # points an hour, as GitHub has it
_SWEEP = 30  # every so many looks each pull request is asked for its reviews
_SAY_EACH_S = 15.0
_SETTLING_S = 600.0  # until every list was asked for once, and nothing is followed more closely than usual


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def row(what: str, value: str) -> None:
    say(f"| {what} | {value} |")


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


def cursors(box: Box) -> None:
    """The size of what each look leaves behind, and how long writing it takes."""
    names = [source["name"] for source in json.loads((box.root / "poll-status.json").read_bytes())["sources"]]
    root = StateRoot(box.root)
    stored = {name: read_cursor(root, name) for name in names}
    size = sum(root.cursor(name).stat().st_size for name in names)
    elsewhere = StateRoot(box.folder / "elsewhere")
    elsewhere.prepare_root()
    elsewhere.prepare_folders()
    times = []
    for _ in range(5):
        began = time.perf_counter()
        for name, cursor in stored.items():
            write_cursor(elsewhere, name, cursor)
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
        cursors(box)
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
    while world.watched.cursor.value is None or world.watched.cursor.owed or written:
        await world.cycle()
        cycles += 1
        waits += world.state == "waiting"
        arrived = [payload["deliveryId"] for payload in world.received if payload["deliveryId"] in written]
        delays += [world.clock.now - world.options.interval_s - written.pop(name) for name in arrived]
        if cycles % 5 == 0 and world.watched.cursor.owed:
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
