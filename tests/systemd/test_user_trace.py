"""`the-loop trace` where deliveries run in units: their state, their output, and the event log in the journal."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from support.installed import Installed

if TYPE_CHECKING:
    from support.container import Container

SPAWN = "directory:inbox/a/spawn:1"
PRINTS = "import sys, time; print('red: \\x1b[31m', 'hinges', flush=True); time.sleep(0 if sys.argv[1:] else 1000)"


def trace(loop: Installed, *words: str) -> dict[str, Any]:
    done = loop.the_loop(*loop.on_root("trace", "--json", *words))
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["unreadable"] == []
    return found


def test_trace_when_a_delivery_runs_in_a_unit_then_names_it_with_its_state_and_output(container: Container) -> None:
    with Installed(container, session={"command": [sys.executable, "-c", PRINTS]}) as loop:
        loop.item("a")
        loop.systemctl("start")
        loop.wait(lambda: trace(loop, SPAWN)["state"] == "running" and trace(loop, SPAWN)["output"], "its output")

        found = trace(loop, SPAWN)

        (unit,) = loop.deliveries()
        assert found["unit"] == unit
        assert f" in {unit}, active (running)" in found["summary"]
        assert found["commands"] == [f"systemctl --user status {unit}", f"journalctl -f --user -u {unit}"]
        assert found["output"]["lines"] == ["red: \x1b[31m hinges"]
        assert not found["output"]["shared"]
        assert "poll.accepted" in [event["event"] for event in found["timeline"]]
        for command in (f"systemctl --user status {unit}", f"journalctl --no-pager --user -u {unit}"):
            assert "hinges" in loop.run(command).stdout

        shown = loop.the_loop(*loop.on_root("trace", SPAWN)).stdout
        assert "  | red: \\x1b[31m hinges\n" in shown
        loop.systemctl("stop")
        assert trace(loop, SPAWN)["state"] == "running"


def test_trace_when_the_delivery_ended_then_its_output_is_in_the_journal_still(container: Container) -> None:
    with Installed(container, session={"command": [sys.executable, "-c", PRINTS, "ends"]}) as loop:
        loop.item("a")
        loop.systemctl("start")
        loop.wait(lambda: trace(loop, SPAWN)["state"] == "delivered", "the delivery")
        loop.systemctl("stop")

        assert "red: \x1b[31m hinges" in trace(loop, SPAWN)["output"]["lines"]
