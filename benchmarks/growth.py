"""How the cost of a single run grows with the items that ended, drawn as a picture.

    benchmarks/growth.py [--before COMMAND] [--picture docs/development/growth.svg]

`poll start --once` with 100 open items beside 1,000, 10,000 and 50,000 ended ones, by this version and by another one:
seconds (the least of two runs) and the most memory. 0.1.0 kept all records in one folder, so for `--before` they are
put there.
"""  # noqa: INP001 (a script, no package)

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from ended import made, say

from support.poller import COMMAND
from the_loop.state import StateRoot

OPEN = 100
SIZES = (1000, 10_000, 50_000)
ROUNDS = 2
WIDTH, HEIGHT, MARGIN = 340, 240, 50  # of a panel, and around it
# A process of its own: at an exec the kernel counts the memory of the process before, which here would be this one.
_TIMED = """
import os, resource, sys, time
began = time.perf_counter()
quiet = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_WRONLY, 0) for number in (1, 2)]
_, status = os.waitpid(os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ, file_actions=quiet), 0)
if status:
    sys.exit(f"{sys.argv[1]}: wait status {status}")
print(time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""
COLOURS = {"now": "#0a6", "before": "#c40"}

Points = Mapping[str, Sequence[float]]  # version -> one value per size


def cost(argv: Sequence[str], environ: Mapping[str, str]) -> tuple[float, float]:
    """Seconds and MB of one run."""
    timed = subprocess.run(
        [sys.executable, "-I", "-S", "-c", _TIMED, *argv], env=environ, stdout=subprocess.PIPE, text=True, check=True
    )
    seconds, kb = timed.stdout.split()
    return float(seconds), int(kb) / 1024


def measure(command: Path, folder: Path, ended: int, *, in_one_folder: bool) -> tuple[float, float]:
    """The least of each, of several runs."""
    with made(folder, OPEN, ended) as box:
        if in_one_folder:
            root = StateRoot(box.root)
            for path in root.ended.iterdir():
                path.rename(root.portable / path.name)
        argv = box.argv("poll", "start", "--once", command=command)
        runs = [cost(argv, box.environ) for _ in range(ROUNDS)]
    return min(run[0] for run in runs), min(run[1] for run in runs)


# --- the picture ---


def picture(panels: Mapping[str, Points]) -> str:
    """An SVG with one panel per measured value; both axes begin at zero."""
    drawn = [
        panel(title, points, MARGIN + place * (WIDTH + 2 * MARGIN))
        for place, (title, points) in enumerate(panels.items())
    ]
    width, height = len(panels) * (WIDTH + 2 * MARGIN), HEIGHT + 2 * MARGIN
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"'
    head += ' font-family="sans-serif" font-size="12">'
    return "\n".join([head, '<rect width="100%" height="100%" fill="#fff"/>', *drawn, "</svg>", ""])


def panel(title: str, points: Points, left: float) -> str:
    most = max(max(values) for values in points.values()) * 1.1
    floor = MARGIN + HEIGHT

    def x(size: int) -> float:
        return left + WIDTH * size / SIZES[-1]

    def y(value: float) -> float:
        return floor - HEIGHT * value / most

    parts = [text(left, MARGIN - 20, title), text(left, floor + 36, f"ended items, beside {OPEN} open ones")]
    parts += [f'<path d="M{left} {MARGIN}V{floor}H{left + WIDTH}" fill="none" stroke="#888"/>']
    parts += [text(x(size), floor + 16, f"{size:,}", "middle") for size in SIZES if size >= SIZES[-1] // 10]
    for version, values in points.items():
        colour = COLOURS[version]
        spots = [(x(size), y(value)) for size, value in zip(SIZES, values, strict=True)]
        line = " ".join(f"{across:.1f},{down:.1f}" for across, down in spots)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{across:.1f}" cy="{down:.1f}" r="3" fill="{colour}"/>' for across, down in spots]
        parts.append(text(spots[-1][0], spots[-1][1] - 8, f"{version}: {values[-1]:.1f}", "end", colour))
    return "\n".join(parts)


def text(across: float, down: float, words: str, anchor: str = "start", colour: str = "#222") -> str:
    return f'<text x="{across:.1f}" y="{down:.1f}" text-anchor="{anchor}" fill="{colour}">{escape(words)}</text>'


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print the table, draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--before", type=Path, help="the `the-loop` of another version")
    parser.add_argument("--picture", type=Path, help="the SVG file to write")
    asked = parser.parse_args(arguments)
    versions = {"now": COMMAND} | ({"before": asked.before} if asked.before else {})
    seconds: dict[str, list[float]] = {version: [] for version in versions}
    memory: dict[str, list[float]] = {version: [] for version in versions}
    say(f"load {os.getloadavg()[0]:.1f}\n\n| ended items | version | --once, s | memory, MB |\n|---|---|---|---|")
    for size in SIZES:
        for version, command in versions.items():
            with tempfile.TemporaryDirectory() as folder:
                took, used = measure(command, Path(folder), size, in_one_folder=version == "before")
            seconds[version].append(took)
            memory[version].append(used)
            say(f"| {size:,} | {version} | {took:.2f} | {used:.0f} |")
    if asked.picture:
        asked.picture.write_text(picture({"poll start --once, seconds": seconds, "memory, MB": memory}), "utf-8")


if __name__ == "__main__":
    main()
