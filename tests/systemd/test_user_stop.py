"""`poll stop` on a user install, in every state that a poller can be in: it stays stopped, whatever is sent to it.

All the stops are made once, side by side, each on an account of its own. From before the stop until long after it
datagrams go to the wake socket, and for some `poll wake` is run over and over as well. Then each state is judged.
"""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from support.container import COMMAND
from support.installed import Installed

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

    from support.container import Container

pytestmark = pytest.mark.timeout(300)  # all stops are made for the first test that asks

STAYS_DOWN_S = 11.0  # longer than the shipped `RestartSec=`
FIRE = """
import socket, sys, time
until = time.monotonic() + float(sys.argv[2])
while time.monotonic() < until:
    try:
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b"wake", sys.argv[1])
    except OSError:
        pass
    time.sleep(0.02)
"""


@dataclass
class Stopped:
    """How a stop went, what there was right after it, and what there was later."""

    before: str  # the unit's state
    code: int
    said: str
    lock_is_free: bool
    unit: str
    later_lock_is_free: bool = False
    later_unit: str = ""
    more: Any = None


class Case:
    """A state to bring about, and how it is stopped then. `loop` is its account."""

    options: ClassVar[dict[str, Any]] = {}
    wakes_too = False

    def __init__(self, loop: Installed) -> None:
        self.loop = loop

    def prepare(self, stack: ExitStack) -> None:
        """Bring the state about."""
        self.loop.systemctl("start")

    def stop(self) -> subprocess.CompletedProcess[str]:
        return self.loop.poll("stop")

    def look(self) -> Any:
        """What the test wants to know besides."""
        return None


class Running(Case):
    wakes_too = True


class Starting(Case):
    """The unit queues for the lock behind a poller that somebody runs by hand."""

    def prepare(self, stack: ExitStack) -> None:
        foreground(self.loop, stack)
        self.loop.run(["systemctl", "--user", "start", "--no-block", "--", self.loop.service])
        self.loop.wait(lambda: "waiting for" in self.loop.property("StatusText"), "a unit that queues")


class BetweenRestarts(Case):
    """It crashes before it ever ran; nothing but the manager knows of it."""

    wakes_too = True
    options: ClassVar[dict[str, Any]] = {"drop_in": "[Service]\nRestartSec=4\nExecStartPre=/bin/false\n"}

    def prepare(self, stack: ExitStack) -> None:
        self.loop.systemctl("start", check=False)
        self.loop.wait(lambda: self.loop.property("SubState") == "auto-restart", "the pause between two restarts")


class CrashedBefore(Case):
    """It ran, was killed, and is about to be started again."""

    options: ClassVar[dict[str, Any]] = {"drop_in": "[Service]\nRestartSec=4\n"}

    def prepare(self, stack: ExitStack) -> None:
        self.loop.systemctl("start")
        self.loop.run(["systemctl", "--user", "kill", "--signal=KILL", "--", self.loop.service])
        self.loop.wait(lambda: self.loop.property("SubState") == "auto-restart", "the pause after a crash")


class Failed(Case):
    options: ClassVar[dict[str, Any]] = {"drop_in": "[Service]\nRestart=no\nExecStartPre=/bin/false\n"}

    def prepare(self, stack: ExitStack) -> None:
        self.loop.systemctl("start", check=False)
        self.loop.wait(lambda: self.loop.is_active() == "failed", "a failed unit")


class InASession(Case):
    """Typed into a shell: its unit is the scope of the whole login, which has to live on."""

    def prepare(self, stack: ExitStack) -> None:
        loop = self.loop
        script = f"sleep 1000 & echo $! >neighbour; {loop.command_line('poll', 'start')}"
        log_in = ["su", "--login", loop.user.name, "-c", script]
        stack.enter_context(loop.container.background(log_in))
        loop.wait(lambda: not loop.is_lock_free(), "a poller in a login session")

    def look(self) -> str:
        self.loop.run("kill -0 $(cat neighbour)")
        return self.loop.run("cat /proc/$(cat neighbour)/cgroup").stdout


class OnceUnderTheTimer(Case):
    def prepare(self, stack: ExitStack) -> None:
        loop = self.loop
        loop.sink.behave(("*", {"gate": loop.gate("gate")}))
        loop.item("a")
        loop.run(["systemctl", "--user", "start", "--", "the-loop-poll-once.timer"])
        loop.run(["systemctl", "--user", "start", "--no-block", "--", "the-loop-poll-once.service"])
        loop.wait(loop.sink.ids, "a delivery of the timer's run")

    def look(self) -> Any:
        loop = self.loop
        running = loop.deliveries()
        loop.sink.open_gate("gate")
        return running, loop.property("ActiveState", "the-loop-poll-once.service")


class Instance(Case):
    options: ClassVar[dict[str, Any]] = {"name": "my-instance"}
    wakes_too = True


class FromADelivery(Case):
    """The session itself stops the poller that started it."""

    def prepare(self, stack: ExitStack) -> None:
        loop = self.loop
        stop = f"{loop.command_line('poll', 'stop')} >~/said 2>&1; echo $? >~/code.new; mv ~/code.new ~/code"
        loop.configure(session={"command": ["sh", "-c", f"{shlex.join(loop.receiver())}; {stop}"]})
        loop.systemctl("start")

    def stop(self) -> subprocess.CompletedProcess[str]:
        loop = self.loop
        loop.item("a")
        loop.wait(lambda: loop.seen(loop.home / "code").exists(), "the end of a stop from a delivery")
        done = loop.run("cat said >&2; exit $(cat code)", check=False)
        loop.wait(lambda: not loop.deliveries(), "the end of that delivery")
        return done

    def look(self) -> Any:
        loop = self.loop
        loop.systemctl("start")
        loop.wait_until_settled(["directory:inbox/a/spawn:1"])
        loop.systemctl("stop")
        return loop.sink.got()


class FromCron(Case):
    """Neither cron nor `runuser` tells where the manager is."""

    def stop(self) -> subprocess.CompletedProcess[str]:
        loop = self.loop
        argv = ["runuser", "-u", loop.user.name, "--", str(COMMAND), *loop.on_root("poll", "stop")]
        return loop.container.run(argv, check=False)


class ByRoot(Case):
    def stop(self) -> subprocess.CompletedProcess[str]:
        loop = self.loop
        return loop.container.run([str(COMMAND), *loop.on_root("poll", "stop")], check=False)


CASES: dict[str, type[Case]] = {
    "running": Running,
    "starting": Starting,
    "between restarts": BetweenRestarts,
    "crashed before": CrashedBefore,
    "failed": Failed,
    "in a session": InASession,
    "once under the timer": OnceUnderTheTimer,
    "instance": Instance,
    "from a delivery": FromADelivery,
    "from cron": FromCron,
    "by root": ByRoot,
}


@pytest.fixture(scope="module")
def stopped(container: Container) -> Iterator[Callable[[str], Stopped]]:
    """The result of each stop; an error while one was brought about is raised where it is asked for."""
    with ExitStack() as stack, ThreadPoolExecutor(4) as threads:
        futures = {name: threads.submit(_stop_under_fire, case, container, stack) for name, case in CASES.items()}
        for future in futures.values():
            future.exception()
        done = [future.result() for future in futures.values() if future.exception() is None]
        until = max((moment for _, _, moment in done), default=0.0) + STAYS_DOWN_S
        time.sleep(max(0.0, until - time.monotonic()))  # nothing to wait for: that nothing happens is the point
        for case, result, _ in done:
            result.later_lock_is_free, result.later_unit = case.loop.is_lock_free(), case.loop.is_active()
            result.more = case.look()
        yield lambda name: futures[name].result()[1]


def _stop_under_fire(kind: type[Case], container: Container, stack: ExitStack) -> tuple[Case, Stopped, float]:
    loop = stack.enter_context(Installed(container, **kind.options))
    case = kind(loop)
    case.prepare(stack)
    before = loop.property("SubState")
    shooting = [sys.executable, "-IS", "-c", FIRE, str(loop.wake_path), str(STAYS_DOWN_S + 60)]
    stack.enter_context(loop.container.background(shooting, user=loop.user.name))
    if kind.wakes_too:
        script = f"while sleep 1; do {loop.command_line('poll', 'wake')}; done"
        stack.enter_context(loop.container.background(script, user=loop.user.name))
    done = case.stop()
    result = Stopped(before, done.returncode, done.stderr, loop.is_lock_free(), loop.is_active())
    return case, result, time.monotonic()


@pytest.mark.parametrize("name", [name for name in CASES if name != "failed"])
def test_poll_stop_when_there_is_something_to_stop_then_it_stays_stopped_under_fire(
    stopped: Callable[[str], Stopped], name: str
) -> None:
    result = stopped(name)

    assert (result.code, result.lock_is_free, result.unit) == (0, True, "inactive"), result
    assert (result.later_lock_is_free, result.later_unit) == (True, "inactive"), result


@pytest.mark.parametrize(
    ("name", "state"),
    {"running": "running", "starting": "start", "between restarts": "auto-restart", "failed": "failed"}.items(),
)
def test_poll_stop_when_made_then_the_unit_was_in_the_state_that_is_meant(
    stopped: Callable[[str], Stopped], name: str, state: str
) -> None:
    assert stopped(name).before == state


def test_poll_stop_when_the_unit_has_failed_then_nothing_runs(stopped: Callable[[str], Stopped]) -> None:
    result = stopped("failed")

    assert (result.code, result.unit, result.later_unit) == (3, "failed", "failed"), result


def test_poll_stop_when_it_runs_in_a_login_session_then_the_rest_of_the_session_lives_on(
    stopped: Callable[[str], Stopped],
) -> None:
    assert ".scope" in stopped("in a session").more


def test_poll_stop_when_a_timer_would_start_it_again_then_the_timer_is_named(
    stopped: Callable[[str], Stopped],
) -> None:
    result = stopped("once under the timer")

    assert "the-loop-poll-once.timer" in result.said
    deliveries, state = result.more
    assert len(deliveries) == 1
    assert state == "inactive"


def test_poll_stop_when_made_by_a_delivery_then_that_delivery_goes_on_and_is_not_repeated(
    stopped: Callable[[str], Stopped],
) -> None:
    (got,) = stopped("from a delivery").more

    assert (got.delivery_id, got.attempt, got.redelivery) == ("directory:inbox/a/spawn:1", 1, False)


def foreground(loop: Installed, stack: ExitStack) -> None:
    """A poller that somebody runs by hand."""
    stack.enter_context(loop.container.background([str(COMMAND), *loop.on_root("poll", "start")], user=loop.user.name))
    loop.wait(lambda: not loop.is_lock_free(), "a poller in the foreground")
