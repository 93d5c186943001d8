"""Sessions in terminals, with the real poller, a real tmux and a program that keeps what is typed."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.poller import wait_for
from support.terminals import Terminals
from the_loop.core.model import clean
from the_loop.runners.pane import harmless

pytestmark = pytest.mark.slow

IS_FULL = bool(os.environ.get("THE_LOOP_FULL_SWEEP"))
HOSTILE = (
    "\x1b[201~\rtouch pwned\r",
    "\x1b[20\x1b[201~1~\rtouch pwned\r",
    "\x9b201~\r",
    "\x03\x15\x04\x1a",
    "\x01:kill-server\r",
    "do it;",
    ";",
    "-t other",
    "Enter",
    "C-c",
    "$(touch pwned) `touch pwned`",
    "#{session_name} #(touch pwned)",
    "   ",
    "a\r\nb\r\nc\r\n",
    "\ttab\tstop",
    "%1 $body ${thread} $$",
    "\u202egnp.exe\u2066 e\u0301 \U0001f989",
    "'\"\\\n{}[]|&",
)


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Terminals]:
    with Terminals(tmp_path) as box:
        yield box


def shown(body: str) -> str:
    """What of a text arrives: control characters by their pictures."""
    return harmless(clean(body))


def random_text(rng: random.Random, longest: int) -> str:
    parts = []
    size = rng.choice((0, 1, 20, 300, 5_000, longest)) if longest > 300 else longest
    while sum(map(len, parts)) < size:
        parts.append(
            rng.choice(HOSTILE)
            if rng.random() < 0.3
            else chr(
                rng.choice(
                    (rng.randrange(0x20), rng.randrange(0x250), rng.randrange(0xD800), rng.randrange(0xE000, 0x110000))
                )
            )
        )
    return "".join(parts)


def test_item_when_met_has_a_session_that_is_told_of_each_event_in_order(box: Terminals) -> None:
    ref = box.item("a", "please")
    poller = box.start()
    box.wait_messages(1)
    for number in range(3):
        box.comment("a", f"c{number}", f"and {number}")

    messages = box.wait_messages(4)

    assert messages == [f"{ref}/spawn:1\nplease", *(f"{ref}/comment:c{number}\nand {number}" for number in range(3))]
    wait_for(lambda: box.option(ref, "@last-delivery") == f"{ref}/comment:c2#1", "the option")
    assert poller.stop() == 0
    assert box.pane(ref, "pane_dead") == "0"


@pytest.mark.timeout(900)
def test_messages_when_random_and_pollers_are_killed_arrive_once_whole_in_order_and_apart(box: Terminals) -> None:
    seed = int(os.environ.get("THE_LOOP_SEED", "7"))
    rng = random.Random(seed)
    print(f"seed {seed}")
    items, each = 8, 250 if IS_FULL else 4
    longest = 65_536 if IS_FULL else 9_000
    said = {f"i{n}": [random_text(rng, longest) for _ in range(each)] for n in range(items)}
    refs = {name: box.item(name, "begin") for name in said}
    poller = box.start()
    box.wait_messages(items)
    for number in range(each):
        for name, texts in said.items():
            box.comment(name, f"c{number:04}", texts[number].encode("utf-8", "surrogatepass"))
    while (count := len(box.raw())) < items * (each + 1):
        wait_for(lambda before=count: len(box.raw()) > before, "progress", 60)  # type: ignore[misc]
        time.sleep(rng.uniform(0.0, 0.4))  # into the next deliveries
        poller.signal(rng.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM)))
        poller.wait()
        poller = box.start()
    assert poller.stop() == 0

    sessions: dict[str, list[str]] = {}
    for path in sorted(box.got.glob("got.*")):
        sessions.setdefault(path.name.rpartition(".")[2], []).append(path.name)
    assert len(sessions) == items
    messages = [box.messages(int(pid)) for pid in sessions]
    wanted = {
        name: [f"{refs[name]}/spawn:1\nbegin"]
        + [shown(f"{refs[name]}/comment:c{number:04}\n{text}") for number, text in enumerate(texts)]
        for name, texts in said.items()
    }
    for one in messages:
        name = one[0].split("/")[1]
        assert [line[:80] for line in one] == [line[:80] for line in wanted[name]]
        assert one == wanted[name]
    assert not list(box.folder.rglob("pwned*"))
