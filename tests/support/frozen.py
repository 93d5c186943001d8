"""A user's manager or its deliveries that stand still for a while, and what is done to the poller meanwhile.

    plan = draw(random.Random(7), longest_s=2.0)      # how long, what is written and done, and when
    play(loop, plan, story)                           # one round on an account whose poller runs
    story.written                                     # what has to have arrived, by item and in order

The slice of the deliveries is frozen: the manager accepts their units, and no program in them begins. Or the manager
itself is stopped: what it is asked for stays unread in its socket.
"""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, cast

from the_loop.deliveries import beside, is_locked, stem_of

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator, Sequence

    from support.installed import Installed

SLICE: Final = "theloop.slice"
SHORTEST_S: Final = 0.1
_MANAGER_S: Final = 20.0  # a call of `systemctl` waits 25 s for a manager that is stopped, and gives up
_LEAD_S: Final = 1.2  # before it: a delivery may be anywhere when everything comes to a standstill
_WAKE: Final = """import os, socket
path = f"/run/user/{os.getuid()}/the-loop/the-loop-poll.wake"
socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b"wake", path)"""
_COMMAND_S: Final = 120.0
_SETTLED_S: Final = 90.0

# what is done to the poller and to its manager; a poller that was stopped stays so until a start, or the round's end
ACTS: Final = {
    "restart": "systemctl --user restart the-loop-poll.service",
    "stop": "systemctl --user stop the-loop-poll.service",
    "start": "systemctl --user start the-loop-poll.service",
    "kill": 'pkill -KILL -u "$USER" -f "the-loop.*poll start"',
    "reexec": "systemctl --user daemon-reexec",
    "reload": "systemctl --user daemon-reload",
    "bus": "systemctl --user restart dbus.service",
    "wake": f"exec {sys.executable} -ISc '{_WAKE}'",
}
_FREQUENT: Final = ("restart", "restart", "stop", "start", "start", "kill", "kill", "reexec", "reload", "bus")


@dataclass(frozen=True)
class Plan:
    """One round. `moves`: seconds since the round began, and `item`, `comment` or one of `ACTS`, in order."""

    stands_still: str  # "slice" or "manager"
    frozen_s: float
    lead_s: float
    moves: tuple[tuple[float, str], ...]

    def __str__(self) -> str:
        moves = " ".join(f"{what}@{at_s - self.lead_s:+.2f}" for at_s, what in self.moves)
        return f"{self.stands_still} {self.frozen_s:.2f} s: {moves}"


@dataclass
class Story:
    """What was written on one account, and what was seen of it."""

    written: dict[str, list[str]] = field(default_factory=dict)
    accepted: int = 0  # deliveries that had been accepted and not begun when everything went on
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def write_item(self, loop: Installed) -> None:
        self.written[loop.item(f"item{next(self._numbers):04}")] = ["spawn:1"]

    def write_comment(self, loop: Installed, ref: str) -> None:
        name = f"c{next(self._numbers):04}"
        loop.comment(ref.rpartition("/")[2], name)
        self.written[ref].append(f"comment:{name}")

    def ids(self) -> list[str]:
        return [f"{ref}/{key}" for ref, keys in self.written.items() for key in keys]


def draw(rng: random.Random, *, longest_s: float) -> Plan:
    """A round; the time for which everything stands still is log-uniform."""
    stands_still = rng.choice(["slice", "slice", "slice", "manager"])
    longest_s = min(longest_s, _MANAGER_S) if stands_still == "manager" else longest_s
    frozen_s = math.exp(rng.uniform(math.log(SHORTEST_S), math.log(longest_s)))
    lead_s = rng.uniform(0, _LEAD_S)
    written = ["item"] * rng.randint(1, 3) + ["comment"] * rng.randint(1, 4)
    moves = [(rng.uniform(0, lead_s + frozen_s), what) for what in written]
    moves += [(at_s + 0.01, "wake") for at_s, _ in moves if rng.random() < 0.5]
    moves += [(lead_s + rng.uniform(0, frozen_s), rng.choice(_FREQUENT)) for _ in range(rng.randint(1, 4))]
    return Plan(stands_still, frozen_s, lead_s, tuple(sorted(moves)))


def play(loop: Installed, plan: Plan, rng: random.Random, story: Story) -> None:
    """One round, until everything that was written in it has arrived. Raises AssertionError if it does not."""
    if not story.written:
        story.write_item(loop)
    began = time.monotonic()
    commands: list[subprocess.Popen[bytes]] = []
    before = [move for move in plan.moves if move[0] < plan.lead_s]
    _do(loop, before, began, rng, story, commands)
    _sleep_until(began + plan.lead_s)
    with standstill(loop, plan.stands_still):
        began = time.monotonic() - plan.lead_s
        _do(loop, plan.moves[len(before) :], began, rng, story, commands)
        _sleep_until(began + plan.lead_s + plan.frozen_s)
        story.accepted += len(accepted(loop))
    for command in commands:
        command.communicate(timeout=_COMMAND_S)
    loop.systemctl("start")
    settle(loop, story)


def settle(loop: Installed, story: Story) -> None:
    """Everything that was written has arrived: once, unmarked, in order."""

    def is_settled() -> bool:
        return set(story.ids()) <= set(_arrived(loop)) and not loop.pending()

    try:
        loop.wait(is_settled, "the settling of the round", timeout_s=_SETTLED_S)
    except AssertionError as error:
        missing = sorted(set(story.ids()) - set(_arrived(loop)))
        raise AssertionError(
            f"missing {missing}, pending {loop.pending()}, accepted {accepted(loop)}\n{error}"
        ) from None
    assert_as_written(loop, story)


def assert_as_written(loop: Installed, story: Story) -> None:
    """Each event arrived once, in order, at its first attempt; nothing is marked as a redelivery."""
    arrived = loop.sink.entries()
    wrong = {
        ref: arrived.get(ref) for ref in {**arrived, **story.written} if arrived.get(ref) != story.written.get(ref)
    }
    assert not wrong, f"arrived {wrong}, written {story.written}"
    marked = [got for got in loop.sink.got() if got.redelivery or got.attempt != 1]
    assert not marked, f"marked {marked}"
    assert loop.attempts() == {}, loop.attempts()


def accepted(loop: Installed) -> list[str]:
    """Deliveries that were accepted and have not begun: the lock is held, and there is no start mark."""
    folder = loop.seen(loop.root / "local" / "deliveries")
    stems = [stem_of(path) for path in folder.glob("*.lock")]
    return [stem.name for stem in stems if is_locked(stem) and not beside(stem, "started.json").exists()]


@contextmanager
def standstill(loop: Installed, what: str = "slice") -> Iterator[None]:
    """The slice of the deliveries, or the manager, stands still in this context."""
    if what == "manager":
        show = ["systemctl", "show", "--value", "-p", "MainPID", f"user@{loop.user.uid}.service"]
        pid = loop.container.run(show).stdout
        with _undone(loop, ["kill", "-STOP", pid.strip()], ["kill", "-CONT", pid.strip()]):
            yield
    else:
        loop.systemctl("start", SLICE)
        group = f"/sys/fs/cgroup{loop.property('ControlGroup', SLICE)}"
        # NB: past the manager too, which does not thaw what it froze in an earlier life; each unit is frozen by itself
        let_go = f"for each in {group} {group}/*/; do echo 0 >$each/cgroup.freeze; done"
        with _undone(
            loop, ["systemctl", "--user", "freeze", SLICE], f"systemctl --user thaw {SLICE}; {let_go} 2>/dev/null; true"
        ):
            yield


@contextmanager
def _undone(loop: Installed, done: Sequence[str], undone: Sequence[str] | str) -> Iterator[None]:
    loop.run(done)
    try:
        yield
    finally:
        loop.run(undone)


def _do(
    loop: Installed,
    moves: Sequence[tuple[float, str]],
    began: float,
    rng: random.Random,
    story: Story,
    commands: list[subprocess.Popen[bytes]],
) -> None:
    """Make these moves, each at its time; commands are left running, as they may wait for the manager."""
    quiet = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    for at_s, what in moves:
        _sleep_until(began + at_s)
        if what == "item":
            story.write_item(loop)
        elif what == "comment":
            story.write_comment(loop, rng.choice(list(story.written)))
        else:
            commands.append(loop.container.start(ACTS[what], user=loop.user.name, **cast("Any", quiet)))


def _arrived(loop: Installed) -> list[str]:
    return [f"{ref}/{key}" for ref, keys in loop.sink.entries().items() for key in keys]


def _sleep_until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.monotonic()))
