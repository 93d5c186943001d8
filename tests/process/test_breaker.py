"""An agent that answers under its user's own login is stopped by the breaker, and goes on when a person says so."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.poller import Box

pytestmark = pytest.mark.slow

LIMIT = 5
# answers each event with a comment of its own, as its user, without the mark
AGENT = """
import json, os, sys, uuid
event = json.load(sys.stdin)
inbox, log = sys.argv[1:]
with open(log, "a") as file:
    file.write(event["deliveryId"] + chr(10))
if event["kind"] != "close":
    folder = os.path.join(inbox, event["ref"].rpartition("/")[2])
    beside = os.path.join(folder, "." + uuid.uuid4().hex)
    with open(beside, "w") as file:
        file.write("an answer")
    os.chmod(beside, 0o644)
    os.rename(beside, os.path.join(folder, uuid.uuid4().hex + ".md"))
"""


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    with Box(tmp_path) as box:
        agent = box.folder / "agent.py"
        agent.write_text(AGENT)
        box.configure(
            session={"command": ["python3", str(agent), str(box.inbox), str(log(box))]},
            polling={"intervalSeconds": 1},
            routing={"maxEventsPerItemPerHour": LIMIT},
        )
        yield box


def log(box: Box) -> Path:
    return box.folder / "log"


def calls(box: Box) -> int:
    return len(log(box).read_text().splitlines()) if log(box).exists() else 0


def test_agent_when_it_answers_itself_then_is_stopped_says_so_and_goes_on_after_resume(box: Box) -> None:
    ref = box.item("a")
    poller = box.start()
    box.wait(lambda: box.run("poll", "status", "--check").code == 1, "what a person should look at")

    assert calls(box) == LIMIT
    status = box.run("poll", "status")
    assert f"  {ref}: paused, since " in status.out
    assert f"    the-loop --config {box.config} --state-root {box.root} ledger retry {ref}\n" in status.out
    (told,) = [event for event in box.events() if event["event"] == "poll.breaker"]
    assert (told["ref"], told["level"]) == (ref, "warning")

    assert poller.stop() == 0
    poller = box.start()
    box.wait(lambda: box.run("poll", "status", "--check").code == 1, "the same after a restart")
    assert calls(box) == LIMIT

    box.comment("a", "zz-person.md", "the-loop resume")
    box.wait(lambda: calls(box) == 2 * LIMIT, "as many again")
    box.wait(lambda: box.run("poll", "status", "--check").code == 1, "the breaker again")
    assert calls(box) == 2 * LIMIT
    assert box.run("ledger", "retry", ref).out == f"goes on: {ref}\n"
    box.wait(lambda: calls(box) == 3 * LIMIT, "as many again")
    assert poller.stop() == 0
