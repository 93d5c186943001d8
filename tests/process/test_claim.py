"""Pollers with different state roots and one bot: one polls, the others stand by, and each message arrives once."""

from __future__ import annotations

import hashlib
import random
import secrets
import shutil
import signal
import time
from collections import Counter
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.poller import COMMAND, Box, Started
from support.telegram.fake import ALICE, FakeTelegram, TelegramServer
from the_loop.sources.telegram.claim import claims_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow

TAKEOVER_S = 10.0
NAMES = ("watch-mail", "the-loop", "poller.py", "x", "botd")
_UNCLAIMED = """
from pathlib import Path
from the_loop.sources.telegram import claim
claim.claims_folder = lambda: Path({place!r})
"""


@pytest.fixture
def telegram() -> Iterator[FakeTelegram]:
    """A bot of its own for each test: claims are where those of this user are."""
    fake = FakeTelegram(time.time, token=f"{secrets.randbelow(10**9)}:{secrets.token_hex()}", latency_s=0.02)
    with TelegramServer(fake):
        yield fake
    shutil.rmtree(claims_folder() / hashlib.sha256(fake.token.encode()).hexdigest()[:32], ignore_errors=True)


@pytest.fixture
def boxes(tmp_path: Path, telegram: FakeTelegram) -> Iterator[list[Box]]:
    with ExitStack() as stack:
        found = []
        for name in NAMES:
            box = stack.enter_context(Box(tmp_path / f"root of {name}"))
            token = box.folder / "token"
            token.write_text(telegram.token)
            token.chmod(0o600)
            bot = {"provider": "telegram", "name": "bot", "apiUrl": telegram.base_url, "tokenFile": str(token)}
            inbox = {"provider": "directory", "path": "inbox", "settleSeconds": 0}
            people = {"authorizedUsers": [f"telegram:{ALICE}", *box.settings()["routing"]["authorizedUsers"]]}
            people["authorizedUsers"][1:] = [f"directory:{name}" for name in people["authorizedUsers"][1:]]
            box.configure(sources=[bot, inbox], routing=people)
            box.environ |= {"XDG_STATE_HOME": str(box.folder / "state")}  # besides $HOME: neither may count
            found.append(box)
        yield found


def copied(folder: Path, name: str, *, unclaimed: bool = False) -> Path:
    """The program under another name; `unclaimed`: with the claim switched off."""
    path = folder / "bin" / name
    path.parent.mkdir(exist_ok=True)
    first, _, rest = COMMAND.read_text().partition("\n")
    off = _UNCLAIMED.format(place=str(folder / "claims of its own")) if unclaimed else ""
    path.write_text(f"{first}\n{off}{rest}")
    path.chmod(0o755)
    return path


def started(boxes: list[Box], **options: Any) -> list[Started]:
    """All of them at once."""
    commands = [copied(box.folder, name, **options) for box, name in zip(boxes, NAMES, strict=False)]
    assert len({command.name for command in commands}) == len(boxes)
    return [box.start(command=command, is_up=False) for box, command in zip(boxes, commands, strict=True)]


def states(boxes: list[Box]) -> list[str]:
    """How each poller shows the bot."""
    found = []
    for box in boxes:
        sources = {one["name"]: one for one in box.heartbeat().get("sources", [])}
        found.append(sources.get("bot", {}).get("state", ""))
    return found


def holder_of(boxes: list[Box]) -> int:
    """Which one polls, once the others stand by."""
    expected = ["ok", *["standby"] * (len(boxes) - 1)]
    boxes[0].wait(lambda: sorted(states(boxes)) == expected, "one that polls, the others on standby")
    return states(boxes).index("ok")


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def arrived(boxes: list[Box]) -> Counter[str]:
    """The bodies that arrived anywhere. Every message was one event here: none is carried by a spawn."""
    return Counter(one.digest for box in boxes for one in box.sink.got())


def say(telegram: FakeTelegram, boxes: list[Box], text: str) -> None:
    """A message, and wait for it."""
    telegram.say(ALICE, text)
    boxes[0].wait(lambda: arrived(boxes)[digest(text)], f"'{text}'")


@pytest.mark.parametrize("count", [2, 5])
def test_pollers_when_started_at_once_then_one_polls_and_the_next_takes_over(
    telegram: FakeTelegram, boxes: list[Box], count: int
) -> None:
    boxes = boxes[:count]
    running = started(boxes)
    first = holder_of(boxes)
    said = [f"message {number}" for number in range(6)]
    for text in said[:2]:
        say(telegram, boxes, text)
    status = boxes[first - 1].run("poll", "status", "--json").json()
    (bot,) = (one for one in status["sources"] if one["name"] == "bot")
    assert bot["heldBy"].startswith(f"{running[first].pid}:")
    assert bot["error"] is None
    ref = boxes[first - 1].item("meanwhile")  # what has nothing to do with it
    boxes[0].wait(lambda: ref in {one.ref for one in boxes[first - 1].sink.got()}, "the other source")

    running[first].kill()
    killed_at = time.monotonic()
    left = [box for box in boxes if box is not boxes[first]]
    for text in said[2:4]:
        say(telegram, boxes, text)
    assert time.monotonic() - killed_at < TAKEOVER_S + 2
    second = holder_of(left)
    back = boxes[first].start(is_up=False)
    boxes[0].wait(lambda: states([boxes[first]]) == ["standby"], "the first one on standby")
    running[boxes.index(left[second])].stop()
    for text in said[4:]:
        say(telegram, boxes, text)
    back.stop()

    got = arrived(boxes)
    assert {text: got[digest(text)] for text in said} == dict.fromkeys(said, 1)
    assert (telegram.conflicts, telegram.most_in_flight) == (0, 1)
    taken = [event for box in boxes for event in box.events("claim.taken")]
    assert len(taken) >= 3
    assert all(event["owner"] and event["path"] for event in taken)


def test_pollers_when_the_claim_is_switched_off_then_conflicts_show(telegram: FakeTelegram, boxes: list[Box]) -> None:
    """The control: what the test above counts does happen without the claim."""
    boxes = boxes[:2]
    started(boxes, unclaimed=True)

    boxes[0].wait(lambda: telegram.conflicts, "a conflict")
    assert telegram.most_in_flight > 1
    boxes[0].wait(lambda: "waiting" in states(boxes), "one that waits")


def test_holder_when_stopped_by_a_signal_then_is_named_and_keeps_the_claim(
    telegram: FakeTelegram, boxes: list[Box]
) -> None:
    boxes = boxes[:2]
    running = started(boxes)
    first = holder_of(boxes)
    other = boxes[1 - first]
    say(telegram, boxes, "before")
    running[first].signal(signal.SIGSTOP)
    try:
        other.wait(
            lambda: any("stopped by a signal" in event["owner"] for event in other.events("claim.refused")), "its name"
        )
        telegram.say(ALICE, "meanwhile")
        assert states([other]) == ["standby"]
    finally:
        running[first].signal(signal.SIGCONT)
    boxes[0].wait(lambda: arrived(boxes)[digest("meanwhile")], "the message")

    assert (telegram.conflicts, telegram.most_in_flight) == (0, 1)


def test_takeover_when_asked_for_then_moves_the_claim_and_the_displaced_poller_stays_healthy(
    telegram: FakeTelegram, boxes: list[Box]
) -> None:
    first, second = boxes[:2]
    displaced = first.start()
    first.wait(lambda: states([first]) == ["ok"], "the first poll")
    say(telegram, boxes, "one")
    first.wait(lambda: telegram.in_flight == 1, "a long poll")
    taking = second.start("--takeover")
    began = time.monotonic()
    second.wait(lambda: second.events("claim.taken"), "the claim")
    assert time.monotonic() - began < TAKEOVER_S
    say(telegram, boxes, "two")
    first.wait(lambda: states([first, second]) == ["standby", "ok"], "the first one on standby")
    ref = first.item("meanwhile")
    first.wait(lambda: ref in {one.ref for one in first.sink.got()}, "its other source")
    (lost,) = first.events("claim.lost")
    assert (lost["owner"].startswith(f"{displaced.pid}:"), str(taking.pid) in lost["reason"]) == (True, True)
    assert second.events("claim.lost") == []

    taking.kill()
    first.wait(lambda: len(first.events("claim.taken")) == 2, "the claim, taken back")
    say(telegram, boxes, "three")
    again = second.start()  # without being told to
    second.wait(lambda: states([second]) == ["standby"], "the second one on standby")
    again.stop()
    assert displaced.is_alive

    got = arrived(boxes)
    assert [got[digest(text)] for text in ("one", "two", "three")] == [1, 1, 1]
    assert (telegram.conflicts, telegram.most_in_flight) == (0, 1)


def test_takeover_when_its_poller_dies_before_it_got_it_then_the_holder_goes_on(
    telegram: FakeTelegram, boxes: list[Box]
) -> None:
    first = boxes[0]
    first.start()
    first.wait(lambda: states([first]) == ["ok"], "the first poll")
    folder = claims_folder() / hashlib.sha256(telegram.token.encode()).hexdigest()[:32]
    for text in ("4000000:5\n", "12345", "", "x" * 200):
        (folder / "wanted").write_text(text)
        say(telegram, boxes, f"after {text}")

    assert first.events("claim.lost") == []


@pytest.mark.crash
def test_pollers_when_killed_at_random_then_each_message_arrives_once(telegram: FakeTelegram, boxes: list[Box]) -> None:
    seed = secrets.randbelow(10**6)
    dice = random.Random(seed)
    boxes = boxes[:2]
    running = [box.start() for box in boxes]
    said: dict[str, int] = {}  # by digest
    for number in range(15):
        for part in range(dice.randrange(1, 4)):
            text = f"message {number} {part}"
            said[digest(text)] = telegram.say(ALICE, text)
        victim = dice.randrange(2)
        time.sleep(dice.random() * 0.8)  # it decides where the kill strikes
        running[victim].kill()
        running[victim] = boxes[victim].start()
    try:
        boxes[0].wait(lambda: {*said.values()} <= {*chain.from_iterable(in_order(boxes, said))}, "all messages", 60)
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {error}") from error

    orders = in_order(boxes, said)
    assert sorted(chain.from_iterable(orders)) == sorted(said.values()), seed
    assert orders == [sorted(order) for order in orders], seed
    assert (telegram.conflicts, telegram.most_in_flight) == (0, 1), seed


def in_order(boxes: list[Box], said: dict[str, int]) -> list[list[int]]:
    """The messages that arrived at each receiver, in order, with those that a spawn carries."""
    found = []
    for box in boxes:
        got = [one for one in box.sink.got() if one.digest in said]
        found.append([int(key.partition(":")[2]) for one in got for key in (f":{said[one.digest]}", *one.thread)])
    return found


def test_batch_of_a_dead_root_waits_for_it_and_is_named(telegram: FakeTelegram, boxes: list[Box]) -> None:
    """It died with the messages fetched and confirmed by nobody: the next one leaves them alone."""
    boxes = boxes[:2]
    dying, other = boxes
    poller = dying.start()
    dying.wait(lambda: states([dying]) == ["ok"], "the first poll")
    deliveries = dying.root / "local" / "deliveries"
    for path in deliveries.iterdir():
        path.unlink()
    deliveries.rmdir()
    deliveries.symlink_to("/proc")  # nothing can be accepted there
    telegram.say(ALICE, "fetched")
    dying.wait(lambda: inbox(telegram), "the batch")
    dying.wait(lambda: "item.failed" in poller.err or "failed" in poller.err, "the failure")
    poller.kill()
    assert telegram.waiting or inbox(telegram)

    standing = other.start()
    other.wait(lambda: states([other]) == ["ok"], "the next one")
    say(telegram, boxes, "new")
    shown = other.run("poll", "status", "--json").json()
    (bot,) = (one for one in shown["sources"] if one["name"] == "bot")
    assert bot["overlooked"] == {str(dying.root): "1 updates wait for the poller of this state root"}
    assert not arrived(boxes)[digest("fetched")]

    deliveries.unlink()
    back = dying.start()
    dying.wait(lambda: arrived(boxes)[digest("fetched")], "what waited")
    standing.stop()
    say(telegram, boxes, "last")
    back.stop()
    got = arrived(boxes)
    assert [got[digest(text)] for text in ("fetched", "new", "last")] == [1, 1, 1]
    assert (telegram.conflicts, telegram.most_in_flight) == (0, 1)


def inbox(telegram: FakeTelegram) -> list[str]:
    folder = claims_folder() / hashlib.sha256(telegram.token.encode()).hexdigest()[:32] / "inbox"
    return [path.name for path in folder.iterdir()] if folder.is_dir() else []
