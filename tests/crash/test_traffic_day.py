"""The busiest of sixty real days in half a minute, with pollers that are stopped and killed at random.

A day's clock runs as fast as that; the pollers do not know and look every second, which is more than half an hour of
that day. A steady poller plays along. `THE_LOOP_SEED` repeats the kinds of ends.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Final

import pytest

from support.github.fake import FakeGitHub
from support.http_server import FakeServer
from support.poller import Box, Started
from support.traffic import Traffic, load_traffic

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.crash, pytest.mark.timeout(180)]

SEED: Final = int(os.environ.get("THE_LOOP_SEED") or random.randrange(10**6))
SECONDS: Final = 90.0 if os.environ.get("THE_LOOP_FULL_SWEEP") else 20.0
DAY_S: Final = 86_400


class Day:
    """A clock that shows `start` until it is wound up, then passes a day in SECONDS and stands still."""

    def __init__(self) -> None:
        self.start = 0.0
        self._wound_up: float | None = None

    def __call__(self) -> float:
        passed = 0.0 if self._wound_up is None else time.monotonic() - self._wound_up
        return self.start + min(passed / SECONDS, 1.0) * DAY_S

    def wind_up(self) -> None:
        self._wound_up = time.monotonic()

    @property
    def is_over(self) -> bool:
        return self() >= self.start + DAY_S


def busiest_day(traffic: Traffic) -> int:
    days = Counter(event.visible // DAY_S for event in traffic.events if traffic.start <= event.visible < traffic.end)
    return days.most_common(1)[0][0] * DAY_S


def written(traffic: Traffic, day: Day) -> dict[str, list[str]]:
    """What came to light on that day and says something, by item, in order."""
    found: dict[str, list[str]] = {}
    for event in traffic.events:
        if day.start < event.visible <= day.start + DAY_S and not event.is_empty():
            found.setdefault(f"github:127.0.0.1/octo/repo#{event.number}", []).append(f"{event.kind}:{event.id}")
    return found


def lacks(box: Box, expected: dict[str, list[str]]) -> list[str]:
    here = box.sink.entries()
    return [f"{ref}/{key}" for ref, keys in expected.items() for key in keys if key not in here.get(ref, ())]


def has_got(box: Box, count: int) -> bool:
    return len(box.sink.ids()) >= count and not box.pending()


def has_all(box: Box, expected: dict[str, list[str]]) -> bool:
    return not lacks(box, expected) and not box.pending()


def live_through(box: Box, day: Day, rng: random.Random) -> list[str]:
    """Single runs and daemons by turns, each ended in some way, until the day is over."""
    log = []
    while not day.is_over:
        is_single = rng.random() < 0.4
        poller = box.start(*(["--once"] if is_single else []))
        time.sleep(rng.uniform(0, 2.0))  # the moment is what is tried here
        how = rng.choice(["kill", "term", "stop", "leave"] if is_single else ["kill", "term", "stop"])
        log.append(f"{'once' if is_single else 'loop'}-{how}")
        _end(box, poller, how)
    return log


def _end(box: Box, poller: Started, how: str) -> None:
    if how == "kill":
        poller.kill()
    elif how == "term" and poller.is_alive:
        assert poller.stop() == 0
    elif how == "stop":
        assert box.run("poll", "stop").code in (0, 3)
        assert not poller.is_alive
    else:
        poller.wait(60)


def test_busiest_day_when_ended_at_random_then_all_of_it_arrives_once(tmp_path: Path) -> None:
    print(f"THE_LOOP_SEED={SEED}")
    day = Day()
    github = FakeGitHub(day, log_limit=100)
    traffic = load_traffic(github)
    day.start = float(busiest_day(traffic))
    expected = written(traffic, day)
    assert sum(map(len, expected.values())) >= 60
    people = sorted({event.author for event in traffic.events} | {f"user-{number}" for number in range(200)})
    with FakeServer(github) as server, Box(tmp_path / "steady") as steady, Box(tmp_path / "ended") as ended:
        source = {"provider": "github", "repos": ["octo/repo"], "label": "auto", "apiUrl": server.url}
        for box in (steady, ended):
            box.configure(
                sources=[source],
                routing={"authorizedUsers": people, "maxConcurrentDispatches": 2},
                polling={"maxRetries": 1, "lingerSeconds": 180},
            )
            box.start()
        for box in (steady, ended):
            box.wait(partial(has_got, box, 31), "what was open before")
        assert ended.run("poll", "stop").code == 0
        day.wind_up()

        log = live_through(ended, day, random.Random(SEED))

        ended.start()
        for box in (steady, ended):
            box.wait(partial(has_all, box, expected), f"the whole day ({log})", 60)
            calls = box.sink.ids()
            assert len(calls) == len(set(calls)), (
                f"delivered twice: {[key for key, n in Counter(calls).items() if n > 1]}"
            )
            entries = [f"{ref}/{key}" for ref, keys in box.sink.entries().items() for key in keys]
            assert len(entries) == len(set(entries)), "carried by a spawn, and delivered as well"
            assert not [got for got in box.sink.got() if got.redelivery or got.attempt != 1]
            assert box.attempts() == {}
            for ref, keys in expected.items():
                comments = [key for key in keys if key.startswith("comment:")]
                assert [key for key in box.sink.entries()[ref] if key in comments] == comments, "in order per item"
        assert {ref: set(keys) for ref, keys in ended.sink.entries().items()} == {
            ref: set(keys) for ref, keys in steady.sink.entries().items()
        }
