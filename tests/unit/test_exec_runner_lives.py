"""Deliveries outlive pollers and waits: none is begun twice, none looks undone while it runs (contract R3, R7.2)."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.keepers import KEEPER, POLLER, TO_WAIT, Scene, children_of, ends, tell
from support.processes import end, is_alive, python, wait_until
from the_loop.core.model import Outcome, Verdict
from the_loop.runners.base import Status, Trace

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(tmp_path)
    yield scene
    scene.let_go()  # whatever a failed test left waiting


def test_poller_that_is_killed_leaves_the_delivery_to_the_next_one(scene: Scene) -> None:
    with python(POLLER, scene.stem, scene.workdir, KEEPER, TO_WAIT) as poller:
        scene.pid()
        poller.kill()
    assert scene.inspect() == Status(Trace.RUNNING)

    async def adopt() -> Outcome:
        adopted = asyncio.create_task(scene.runner("echo twice >> runs").adopt(scene.offer()))
        await asyncio.sleep(0.05)
        assert not adopted.done()
        scene.let_go()
        return await asyncio.wait_for(adopted, 10)

    assert asyncio.run(adopt()).verdict is Verdict.DELIVERED
    assert scene.said("runs") == "ran"


def test_deliver_of_what_another_keeper_has_starts_nothing_and_waits_for_it(scene: Scene) -> None:
    async def both() -> list[Outcome]:
        first = asyncio.create_task(scene.runner(TO_WAIT).deliver(scene.offer()))
        await asyncio.to_thread(scene.pid)
        second = asyncio.create_task(scene.runner("echo twice >> runs").deliver(scene.offer()))
        await asyncio.sleep(0)
        scene.let_go()
        return list(await asyncio.gather(first, second))

    assert {outcome.verdict for outcome in asyncio.run(both())} == {Verdict.DELIVERED}
    assert scene.said("runs") == "ran"


def test_wait_that_is_cancelled_leaves_the_delivery_alone(scene: Scene) -> None:
    async def cancel() -> None:
        delivery = asyncio.create_task(scene.runner(TO_WAIT).deliver(scene.offer()))
        await asyncio.to_thread(scene.pid)
        delivery.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.wait_for(delivery, 1)

    asyncio.run(cancel())

    assert scene.inspect().trace is Trace.RUNNING
    assert is_alive(scene.pid())
    scene.let_go()
    assert asyncio.run(scene.runner().adopt(scene.offer())).verdict is Verdict.DELIVERED
    with suppress(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)  # the cancelled wait would have reaped it


def test_keeper_that_is_killed_while_it_is_waited_for_is_unknown(scene: Scene) -> None:
    async def kill() -> Outcome:
        delivery = asyncio.create_task(scene.runner(TO_WAIT).deliver(scene.offer()))
        await asyncio.to_thread(scene.pid)
        assert scene.mark is not None
        tell(int(scene.mark["keeper"].partition(":")[0]), signal.SIGKILL)
        return await asyncio.wait_for(delivery, 10)

    assert asyncio.run(kill()).verdict is Verdict.UNKNOWN
    assert ends(scene.pid())


SLOW_KEEPER = f"""
import os, sys, time
while not os.path.exists(os.path.join(os.path.dirname(sys.argv[0]), "begin")):
    time.sleep(0.01)
os.execv(sys.executable, [sys.executable, "-I", "-S", "-X", "utf8", {str(KEEPER)!r}, *sys.argv[1:]])
"""


@pytest.fixture
def slow_keeper(tmp_path: Path) -> Path:
    """A keeper that takes no step before it may: until there is a file `begin` beside it."""
    path = tmp_path / "slow_keeper.py"
    path.write_text(SLOW_KEEPER)
    return path


def test_delivery_never_looks_undone_once_it_was_handed_over(scene: Scene, slow_keeper: Path) -> None:
    watcher = """
        import sys
        from pathlib import Path
        from the_loop.runners.base import Offer
        from the_loop.runners.exec import Command, ExecRunner
        stem = Path(sys.argv[1])
        runner = ExecRunner(Command((), stem, 1, {}, None))
        last = ""
        print("watching", flush=True)
        while last != "done":
            trace = runner.inspect(Offer("x", "comment:1", stem, 1, 1)).trace
            if trace != last:
                print(trace, flush=True)
            last = trace
    """
    scene.let_go()
    with python(watcher, scene.stem) as seen:
        assert [seen.line(), seen.line()] == ["watching", "never-begun"]
        with python(POLLER, scene.stem, scene.workdir, slow_keeper, TO_WAIT) as poller:
            assert poller.line() == "delivering"

            assert seen.line() == "accepted"
            (slow_keeper.parent / "begin").touch()
            assert "done" in ((after := seen.line()) == "running" and seen.line(), after)


def test_poller_that_is_killed_before_its_keeper_has_begun_leaves_a_delivery_that_runs(
    scene: Scene, slow_keeper: Path
) -> None:
    scene.let_go()
    with python(POLLER, scene.stem, scene.workdir, slow_keeper, TO_WAIT) as poller:
        wait_until(lambda: children_of(poller.pid), "the keeper is started")
        poller.kill()

    assert scene.mark is None
    assert scene.inspect() == Status(Trace.ACCEPTED)
    (slow_keeper.parent / "begin").touch()
    assert asyncio.run(scene.runner().adopt(scene.offer())).verdict is Verdict.DELIVERED


def test_keeper_that_is_killed_before_it_began_was_never_begun(scene: Scene, slow_keeper: Path) -> None:
    with python(POLLER, scene.stem, scene.workdir, slow_keeper, TO_WAIT) as poller:
        wait_until(lambda: children_of(poller.pid), "the keeper is started")
        (keeper,) = children_of(poller.pid)
        poller.kill()
        end(keeper)
    assert ends(keeper)

    assert scene.inspect() == Status(Trace.NEVER_BEGUN)
    assert scene.deliver("echo ran > runs").verdict is Verdict.DELIVERED
