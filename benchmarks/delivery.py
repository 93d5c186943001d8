"""How many deliveries a second go out in transient units, beside the least that they could cost.

    benchmarks/delivery.py [--rounds 5] [--deliveries 60] [--before PATH]

Needs root, as it boots a machine of its own (tests/support/container.py). Ours: comments on four items, each handed
to `true`; `--before` names the `the-loop` of another version, which is measured too. The bounds are the same manager
asked by a bare program (bare_delivery.py): for a Python that writes two durable files and starts `true`, and for `true`
alone, with the files written outside. All in one container, on one disk, in turn, one at a time and four at once: the
medians, and the medians of the rounds' ratios.
"""  # noqa: INP001 (a script, not a package)

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
from datetime import datetime
from operator import truediv
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from support.container import COMMAND, Container
from support.container_host import obstacle
from support.installed import Installed

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Sequence

_ITEMS = 4
_PATIENCE_S = 300.0
_KINDS = ("python", "true")
_BARE = Path(__file__).with_name("bare_delivery.py")


class Account(Installed):
    """One whose poller is of the version that `command` is of."""

    def __init__(self, container: Container, command: Path, **settings: Any) -> None:
        self._command = command
        super().__init__(container, **settings)

    def the_loop(self, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        return self.run([str(self._command), *arguments], **options)


class Ours:
    """A poller that hands everything to `true`, so many at once."""

    def __init__(self, container: Container, command: Path, at_once: int) -> None:
        self.loop = Account(
            container,
            command,
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


def compare(container: Container, commands: Sequence[Path], at_once: int, rounds: int, count: int) -> str:
    """A row: the rates of each version and each bound, in turn, and what the first version is to the bounds."""
    with contextlib.ExitStack() as stack:
        pollers = [Ours(container, command, at_once) for command in commands]
        accounts = [stack.enter_context(ours.loop) for ours in pollers]
        rates: list[list[float]] = [[] for _ in (*pollers, *_KINDS)]
        for _ in range(rounds):
            measured = [ours.rate(count) for ours in pollers]
            measured += [bare_rate(accounts[0], count, at_once, kind) for kind in _KINDS]
            for all_of_it, rate in zip(rates, measured, strict=True):
                all_of_it.append(rate)
    bounds = rates[len(pollers) :]
    cells = [f"{median(one):.1f} /s" for one in rates]
    for ours in rates[: len(pollers)]:
        cells += [f"{median(map(truediv, ours, bound)):.0%}" for bound in bounds]
    return f"| {at_once} at once | {' | '.join(cells)} |"


def heads(versions: int) -> list[str]:
    names = ["now", "before"][:versions]
    bounds = ["Python in the unit", "`true` in the unit"]
    return ["deliveries", *names, *bounds, *(f"{name} to {bound}" for name in names for bound in bounds)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--deliveries", type=int, default=60)
    parser.add_argument("--before", type=Path, help="the `the-loop` of another version, not in /tmp")
    options = parser.parse_args()
    commands = [COMMAND, *([options.before] if options.before else [])]
    with tempfile.TemporaryDirectory() as folder:
        if reason := obstacle(Path(folder)):
            sys.exit(f"delivery.py: {reason}")
        with Container(Path(folder) / "container") as container:
            say(f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}, {options.rounds} rounds\n")
            say(f"| {' | '.join(heads(len(commands)))} |")
            say("|---" * len(heads(len(commands))) + "|")
            for at_once in (1, _ITEMS):
                say(compare(container, commands, at_once, options.rounds, options.deliveries))


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
