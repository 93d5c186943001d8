"""A delivery that was accepted and begins late, whatever becomes of the poller and of the manager meanwhile.

Rounds are drawn from a seed, which is printed (`THE_LOOP_SEED` repeats the plans; what happens within them has the
machine's own pace). `THE_LOOP_FULL_SWEEP=1` plays 200 rounds of up to 40 s, four accounts at once.
"""

from __future__ import annotations

import os
import random
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from support.frozen import Story, accepted, assert_as_written, draw, play, standstill
from support.installed import QUICK, Installed
from the_loop.deliveries import Deliveries, beside
from the_loop.runners.base import Offer
from the_loop.runners.keeper import passed_on
from the_loop.runners.units import SLICE, Units
from the_loop.state import StateRoot

if TYPE_CHECKING:
    from support.container import Container

IS_FULL: Final = bool(os.environ.get("THE_LOOP_FULL_SWEEP"))
SEED: Final = int(os.environ.get("THE_LOOP_SEED") or random.randrange(10**6))
LIVES, ROUNDS, LONGEST_S, AT_ONCE = (40, 5, 40.0, 4) if IS_FULL else (2, 3, 4.0, 2)
KILL_MODES: Final = ("mixed", "control-group")
WITHDRAW: Final = """
import sys
from pathlib import Path
from the_loop.deliveries import Deliveries
from the_loop.state import StateRoot
root, name = sys.argv[1:]
print(Deliveries(StateRoot(Path(root))).withdraw_offer(Path(root, "local", "deliveries", name), 1))
"""
OLD_KEEPER: Final = Path(__file__).parents[1] / "data" / "keeper-0.1.0.py.txt"  # as that version had it
A_SPAWN = "directory:inbox/a/spawn:1"
A_MORE = "directory:inbox/a/comment:more"


# --- rounds at random ---


@dataclass
class Life:
    """One account with its poller: its rounds, and what came of them."""

    number: int
    story: Story = field(default_factory=Story)
    rounds: int = 0
    frozen_s: float = 0.0
    problem: str = ""

    @property
    def kill_mode(self) -> str:
        return KILL_MODES[self.number % len(KILL_MODES)]

    def play(self, loop: Installed) -> None:
        rng = random.Random(f"{SEED}/{self.number}")
        loop.sink.behave(("*", {"sleep": 0.1}))
        loop.systemctl("start")
        for _ in range(ROUNDS):
            plan = draw(rng, longest_s=LONGEST_S)
            self.rounds += 1
            self.frozen_s += plan.frozen_s
            play(loop, plan, rng, self.story)
            print(f"{self.number}.{self.rounds} {self.kill_mode}, accepted so far {self.story.accepted}: {plan}")
        loop.systemctl("stop")
        loop.wait(lambda: not loop.deliveries(), "the end of all units")
        assert_as_written(loop, self.story)
        assert loop.failed() == []


def live(container: Container, number: int, making: threading.Lock) -> Life:
    """Accounts are made and removed one at a time: /etc/passwd has one writer."""
    life = Life(number)
    with making:
        loop = Installed(container, drop_in=f"{QUICK}KillMode={life.kill_mode}\n")
    try:
        life.play(loop)
    except AssertionError as error:
        life.problem = f"life {number}, round {life.rounds}"
        print(f"{life.problem}: {error}")
    finally:
        with making:
            container.remove_user(loop.user.name)
    return life


@pytest.mark.timeout(3600 if IS_FULL else 120)
def test_rounds_when_everything_stands_still_at_random_then_each_event_arrives_once_unmarked_and_in_order(
    container: Container,
) -> None:
    print(f"THE_LOOP_SEED={SEED}")
    making = threading.Lock()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        lives = list(pool.map(lambda number: live(container, number, making), range(LIVES)))

    accepted_late = sum(life.story.accepted for life in lives)
    total = f"{sum(life.rounds for life in lives)} rounds, {sum(life.frozen_s for life in lives):.0f} s at a standstill"
    print(f"{total}, {accepted_late} deliveries accepted and not begun at the end of one")
    assert [life.problem for life in lives if life.problem] == []
    assert accepted_late or not IS_FULL  # else nothing was tried; a few short rounds may have none


# --- one thing at a time ---


def wait_until_accepted(loop: Installed) -> str:
    """The unit of the one delivery that was accepted and has not begun."""
    loop.wait(lambda: accepted(loop), "a delivery that is accepted")
    (unit,) = loop.deliveries()
    return unit


def wait_for_cycles(loop: Installed) -> None:
    """Whatever was written before this call has been read."""
    for _ in range(2):  # the first may have begun before
        last = loop.status()["lastGoodCycleAt"]
        loop.wait(lambda last=last: loop.status()["lastGoodCycleAt"] not in (None, last), "a cycle")  # type: ignore[misc]


def first_offer(loop: Installed) -> Offer:
    """The item's spawn, as the container's poller offers it at first; its files as they are found from outside."""
    ref, _, key = A_SPAWN.rpartition("/")
    return Offer(ref, key, Deliveries(StateRoot(loop.seen(loop.root))).stem(ref, key), 1, 1)


@pytest.mark.parametrize(("act", "kill_mode"), [("restart", "mixed"), ("restart", "control-group"), ("kill", "mixed")])
def test_delivery_that_begins_late_when_the_poller_has_a_new_life_then_is_waited_for(
    container: Container, act: str, kill_mode: str
) -> None:
    with Installed(container, drop_in=f"{QUICK}KillMode={kill_mode}\n") as loop:
        loop.item("a")
        with standstill(loop):
            loop.systemctl("start")
            unit, pid = wait_until_accepted(loop), loop.main_pid()

            loop.systemctl("restart") if act == "restart" else loop.run(["kill", "-KILL", str(pid)])

            loop.wait(lambda: loop.main_pid() not in (0, pid) and loop.is_active() == "active", "its next life")
            loop.comment("a", "more")
            wait_for_cycles(loop)
            assert loop.deliveries() == [unit]
            assert loop.sink.ids() == []

        loop.wait_until_settled([A_SPAWN, A_MORE])
        loop.assert_once([A_SPAWN, A_MORE])
        assert [got.thread for got in loop.sink.got()] == [(), ()]  # the spawn had the bytes that were accepted


def test_delivery_that_does_not_begin_is_shown_as_accepted_with_since_when(container: Container) -> None:
    with Installed(container) as loop:
        loop.item("a")
        with standstill(loop):
            loop.systemctl("start")
            wait_until_accepted(loop)

            (shown,) = loop.wait(
                lambda: [work for work in loop.status()["work"] if work["state"] == "accepted"],
                "a heartbeat that shows it",
            )
            told = loop.poll("status").stdout

            assert shown["deliveryId"] == A_SPAWN
            assert f"  accepted, not begun: {A_SPAWN}, for " in told
        loop.wait_until_settled([A_SPAWN])


WAYS: Final = {
    "private socket": "DBUS_SESSION_BUS_ADDRESS=unix:path=/nowhere",
    "bus": "XDG_RUNTIME_DIR=%h",  # without systemd/private; the address of the bus is in the manager's environment
}


@pytest.mark.parametrize("way", WAYS)
def test_descriptor_when_there_is_only_this_way_to_the_manager_then_is_its_own_from_the_acceptance_on(
    container: Container, way: str
) -> None:
    with Installed(container, drop_in=f"{QUICK}Environment={WAYS[way]}\n") as loop:
        loop.item("a")
        with standstill(loop):
            loop.systemctl("start")
            unit = wait_until_accepted(loop)

            loop.systemctl("stop")

            loop.comment("a", "more")
            assert loop.deliveries() == [unit]
            assert accepted(loop) == [first_offer(loop).stem.name]  # and nobody is left but the manager to hold it
        loop.wait(lambda: loop.sink.ids() == [A_SPAWN], "the delivery, without a poller")
        loop.systemctl("start")
        loop.wait_until_settled([A_SPAWN, A_MORE])
        loop.assert_once([A_SPAWN, A_MORE])


@pytest.mark.parametrize(("way", "is_running"), [("private socket", True), ("bus", True), ("bus", False)])
def test_name_when_it_is_taken_then_the_delivery_goes_out_once_under_another(
    container: Container, way: str, is_running: bool
) -> None:
    with Installed(container, drop_in=f"{QUICK}Environment={WAYS[way]}\n") as loop:
        name = Units(loop.root, {}).name(first_offer(loop))
        loop.write(loop.units / name, "[Service]\nExecStart=/bin/sleep 1000\n")
        loop.run(["systemctl", "--user", "daemon-reload"])
        if is_running:
            loop.systemctl("start", name)
        loop.item("a")
        loop.systemctl("start")
        loop.wait(lambda: A_SPAWN in loop.pending(), "a delivery that was taken up")
        if is_running:
            loop.systemctl("stop", name)

        loop.wait(lambda: loop.sink.ids() == [A_SPAWN] and not loop.pending(), "the delivery", timeout_s=60)

        loop.assert_once([A_SPAWN])


def start_as_0_1_0_did(loop: Installed) -> str:
    """The unit that 0.1.0 asked for, accepted and not begun: its name. Its helper, which held the lock, is gone."""
    keeper = loop.home / "keeper.py"
    loop.write(keeper, OLD_KEEPER.read_text())
    name = Units(loop.root, {}).name(first_offer(loop))
    stem = loop.root / "local" / "deliveries" / first_offer(loop).stem.name
    properties = ("Type=exec", "KillMode=mixed", "TimeoutStopSec=15", "StandardInput=null", "RuntimeMaxSec=1860")
    options = ["--user", "--quiet", "--collect", f"--slice={SLICE}", f"--unit={name}", "--no-block"]
    place = ["/usr/bin/python3", "-I", "-S", str(keeper), str(stem), "1", "1", "1800", "-", str(loop.home)]
    variables = passed_on({"HOME": str(loop.home), "PATH": os.environ["PATH"]})
    told = [*(f"-p{one}" for one in properties), *(f"--setenv={key}={value}" for key, value in variables.items())]
    loop.run(["systemd-run", *options, *told, "--", *place, *loop.receiver()])
    return name


def ended(loop: Installed, unit: str) -> str:
    """What the manager said of the end of a unit that is gone."""
    said = loop.run(
        ["journalctl", "--user", "--quiet", "--output=cat", f"USER_UNIT={unit}", "--grep=exited"], check=False
    )
    return said.stdout


def leave_an_offer_that_never_began(loop: Installed) -> None:
    """A ledger with the first offer of a spawn, its payload, and a lock that is free. To be called in a standstill."""
    loop.systemctl("start")
    unit = wait_until_accepted(loop)
    loop.systemctl("stop")
    loop.run(["systemctl", "--user", "kill", "--signal=KILL", "--", unit])
    loop.wait(lambda: not loop.deliveries(), "the end of its unit")
    assert accepted(loop) == []


def test_unit_of_0_1_0_when_it_begins_late_then_finds_a_higher_number_and_does_nothing(container: Container) -> None:
    with Installed(container) as loop:
        loop.item("a")
        with standstill(loop):
            leave_an_offer_that_never_began(loop)
            old = start_as_0_1_0_did(loop)
            offer = first_offer(loop)
            assert loop.deliveries() == [old]

            done = loop.run([sys.executable, "-c", WITHDRAW, str(loop.root), offer.stem.name])
            assert done.stdout == "2\n"

        loop.wait(lambda: not loop.deliveries(), "its end")
        assert "status=75" in ended(loop, old)
        assert loop.sink.ids() == []
        assert not beside(offer.stem, "started.json").exists()


def test_unit_of_0_1_0_when_it_begins_late_then_only_what_this_version_built_is_delivered(container: Container) -> None:
    with Installed(container) as loop:
        loop.item("a")
        with standstill(loop):
            leave_an_offer_that_never_began(loop)
            old = start_as_0_1_0_did(loop)
            loop.comment("a", "more")

            loop.systemctl("start")

            loop.wait(lambda: len(loop.deliveries()) == 2 and accepted(loop), "the unit of the next offer")
        loop.wait_until_settled([A_SPAWN])
        loop.wait(lambda: not loop.deliveries(), "the end of both")
        assert "status=" in ended(loop, old)
        assert loop.sink.entries() == {"directory:inbox/a": ["spawn:1", "comment:more"]}
        loop.assert_once([A_SPAWN])
