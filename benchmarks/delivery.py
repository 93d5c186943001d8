"""How many deliveries a second go out in transient units, beside the least that they could cost.

    benchmarks/delivery.py [--rounds 5] [--deliveries 60]

Needs root, as it boots a machine of its own (tests/support/container.py). Ours: comments on four items, each handed to
`true`. Bare: two durable files and `true` through the same manager (bare_delivery.py). Both as the same user, on the
same disk, in turn, one at a time and four at once; the median of the rounds, and the ratio.
"""  # noqa: INP001 (a script, not a package)

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from datetime import datetime
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from support.container import Container
from support.container_host import obstacle
from support.installed import Installed

_ITEMS = 4
_PATIENCE_S = 300.0
_KINDS = ("python", "true")
_BARE = Path(__file__).with_name("bare_delivery.py")


class Ours:
    """An account whose poller hands everything to `true`, so many at once."""

    def __init__(self, container: Container, at_once: int) -> None:
        self.loop = Installed(
            container,
            session={"command": ["true"]},
            routing={"maxConcurrentDispatches": at_once},
            polling={"intervalSeconds": 86400},
        )
        self._seen = 0
        for item in range(_ITEMS):
            self.loop.item(f"item{item}")
        self.loop.systemctl("start")
        self.loop.wait(lambda: len(self._events("poll.spawned")) == _ITEMS, "the spawns", _PATIENCE_S)

    def rate(self, count: int) -> float:
        """Deliveries a second, from the first to the last receipt."""
        for number in range(count):
            self.loop.comment(f"item{number % _ITEMS}", f"c-{self._seen + number:05}")
        self._seen += count
        self.loop.poll("wake", check=True)
        told = "poll.comment_forwarded"
        self.loop.wait(lambda: len(self._events(told)) == self._seen, "all of them", _PATIENCE_S)
        moments = sorted(datetime.fromisoformat(event["time"]) for event in self._events(told)[-count:])
        return (count - 1) / (moments[-1] - moments[0]).total_seconds()

    def _events(self, name: str) -> list[dict[str, str]]:
        return [json.loads(entry["THE_LOOP_JSON"]) for entry in self.loop.journal(f"THE_LOOP_EVENT={name}")]


def bare_rate(loop: Installed, count: int, at_once: int, kind: str) -> float:
    """The same without us, as the same user."""
    program = loop.home / "bare_delivery.py"
    loop.write(program, _BARE.read_text())
    argv = [sys.executable, str(program), str(loop.home / "bare"), str(count), str(at_once), kind]
    return count / float(loop.run(argv, limit_s=_PATIENCE_S).stdout)


def compare(container: Container, at_once: int, rounds: int, count: int) -> str:
    rates: dict[str, list[float]] = {"ours": [], **{kind: [] for kind in _KINDS}}
    with (ours := Ours(container, at_once)).loop as loop:
        for _ in range(rounds):
            for kind in _KINDS:
                rates[kind].append(bare_rate(loop, count, at_once, kind))
            rates["ours"].append(ours.rate(count))
    cells = [f"{median(rates['ours']):.1f} /s"]
    for kind in _KINDS:
        ratio = median(one / other for one, other in zip(rates["ours"], rates[kind], strict=True))
        cells += [f"{median(rates[kind]):.1f} /s", f"{ratio:.0%}"]
    return f"| {at_once} at once | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--deliveries", type=int, default=60)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if reason := obstacle(Path(folder)):
            sys.exit(f"delivery.py: {reason}")
        with Container(Path(folder) / "container") as container:
            sys.stdout.write(f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}\n\n")
            sys.stdout.write(
                "| deliveries | ours | Python in the unit | ours to it | `true` in the unit | ours to it |\n"
            )
            sys.stdout.write("|---|---|---|---|---|---|\n")
            for at_once in (1, _ITEMS):
                sys.stdout.write(compare(container, at_once, options.rounds, options.deliveries) + "\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main()
