"""The oracle: one world, played to a poller that never stops and to one that is ended and started at random.

What arrived must be the same: the same entries of the same items, each once, in the order in which they were written.
The seed is printed; `THE_LOOP_SEED` repeats a world and the kinds of ends (their moments are the machine's own).
"""

from __future__ import annotations

import os
import random
import threading
import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pytest

from support.github.fake import FakeGitHub
from support.http_server import FakeServer
from support.poller import ME, Box, Started

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.crash, pytest.mark.timeout(180)]

SEED: Final = int(os.environ.get("THE_LOOP_SEED") or random.randrange(10**6))
SECONDS: Final = 120.0 if os.environ.get("THE_LOOP_FULL_SWEEP") else 20.0
REPO: Final = "octo/repo"


@dataclass
class World:
    """Folders and issues in which people write, and what was written that has to arrive, by item and in order."""

    inbox: Path
    github: FakeGitHub
    rng: random.Random
    written: dict[str, list[str]] = field(default_factory=dict)
    closed: set[str] = field(default_factory=set)
    _names: int = 0

    def step(self) -> None:
        """Something happens."""
        choices = [self._folder, self._issue, *[self._file] * 5, *[self._comment] * 5, self._stranger]
        self.rng.choice(choices)()

    def close_one(self, ref: str) -> None:
        """An issue gets a last word and is closed at once."""
        number = int(ref.rpartition("#")[2])
        self.written[ref].append(f"comment:{self.github.comment(REPO, number)}")
        self.github.close(REPO, number)
        self.closed.add(ref)

    def issues(self) -> list[str]:
        return [ref for ref in self.written if ref.startswith("github:") and ref not in self.closed]

    def _name(self) -> str:
        self._names += 1
        return f"{self._names:05}"

    def _folder(self) -> None:
        name = self._name()
        beside = self.inbox / f".{name}"
        beside.mkdir()
        (beside / "item.md").write_text(name)
        beside.rename(self.inbox / name)
        self.written[f"directory:in/{name}"] = []

    def _issue(self) -> None:
        number = self.github.add_issue(REPO, labels=["auto"], pull_request=self.rng.random() < 0.3)
        self.written[f"github:127.0.0.1/{REPO}#{number}"] = []

    def _file(self) -> None:
        folders = [ref for ref in self.written if ref.startswith("directory:")]
        if folders:
            ref, name = self.rng.choice(folders), self._name()
            beside = self.inbox / ref.rpartition("/")[2] / f".{name}"
            beside.write_text(name)
            beside.rename(beside.with_name(name))
            self.written[ref].append(f"comment:{name}")

    def _comment(self) -> None:
        if issues := self.issues():
            ref = self.rng.choice(issues)
            self.written[ref].append(f"comment:{self.github.comment(REPO, int(ref.rpartition('#')[2]))}")

    def _stranger(self) -> None:
        if issues := self.issues():
            self.github.comment(REPO, int(self.rng.choice(issues).rpartition("#")[2]), "stranger", "not for us")


class Ends:
    """Ends and starts the pollers of a box in every way there is."""

    def __init__(self, box: Box, rng: random.Random) -> None:
        self.box = box
        self.log: list[str] = []
        self.rng = rng
        self._poller: Started | None = box.start()

    def step(self) -> None:
        name = self.rng.choice(["kill", "kill", "term", "restart", "stop", "once", "hangup", "pause"])
        self.log.append(name)
        if self._poller is None:
            self._poller = self.box.start("--once" if name == "once" else "--verbose")
            return
        if not self._poller.is_alive:
            self._poller = None
            return
        getattr(self, f"_{name}")(self._poller)

    def finish(self) -> None:
        """Leave one running poller behind."""
        if self._poller is not None and self._poller.is_alive:
            assert self._poller.stop() == 0
        self._poller = self.box.start()

    def _kill(self, poller: Started) -> None:
        poller.kill()
        self._poller = self.box.start()

    def _term(self, poller: Started) -> None:
        assert poller.stop() == 0
        self._poller = self.box.start()

    def _restart(self, poller: Started) -> None:
        assert self.box.run("poll", "restart").code in ({0, 3} if poller.process.poll() is not None else {0, 1, 3})

    def _stop(self, poller: Started) -> None:
        assert self.box.run("poll", "stop").code in (0, 3)
        assert not poller.is_alive
        self._poller = None

    def _once(self, _poller: Started) -> None:
        self.box.once()  # beside a poller it is refused

    def _hangup(self, poller: Started) -> None:
        poller.signal(1)

    def _pause(self, poller: Started) -> None:
        poller.kill()
        self._poller = None


def _play(world: World, until: float) -> None:
    while time.monotonic() < until:
        world.step()
        time.sleep(world.rng.uniform(0, 0.3))  # worlds have pauses; nothing is waited for


def settings(world: World, box: Box) -> None:
    sources: list[dict[str, Any]] = [
        {"provider": "directory", "path": str(world.inbox), "settleSeconds": 0, "authorizedUsers": [ME]},
        {"provider": "github", "repos": [REPO], "label": "auto", "apiUrl": world.github.base_url},
    ]
    routing = {"authorizedUsers": ["octocat"], "maxConcurrentDispatches": 3}
    box.configure(sources=sources, routing=routing, polling={"maxRetries": 1})


def arrived(box: Box, world: World) -> dict[str, list[str]]:
    """What came of each item, without the marks of start and end."""
    return {
        ref: [key for key in keys if not key.startswith(("spawn:", "close:"))]
        for ref, keys in box.sink.entries().items()
        if ref in world.written
    }


def is_all_there(box: Box, world: World) -> bool:
    return arrived(box, world) == world.written and not box.pending()


def is_all_closed(box: Box, world: World) -> bool:
    return len(box.events("session.closed")) >= len(world.closed)


def test_random_world_when_ended_at_random_then_the_same_arrives_as_without(tmp_path: Path) -> None:
    print(f"THE_LOOP_SEED={SEED}")
    github = FakeGitHub(time.time)
    github.add_repo(REPO)
    inbox = tmp_path / "in"
    inbox.mkdir(mode=0o700)
    with FakeServer(github), Box(tmp_path / "steady") as steady, Box(tmp_path / "ended") as ended:
        world = World(inbox, github, random.Random(SEED))
        settings(world, steady)
        settings(world, ended)
        for box in (steady, ended):
            box.sink.behave(("*[05]", {"sleep": 0.5}))
        steady.start()
        ends = Ends(ended, random.Random(SEED + 1))
        until = time.monotonic() + SECONDS
        people = threading.Thread(target=_play, args=(world, until))
        people.start()
        while time.monotonic() < until:
            ends.step()
            time.sleep(ends.rng.uniform(0, 0.4))  # the moment is what is tried here
        people.join()
        ends.finish()
        for box in (steady, ended):
            box.wait(partial(is_all_there, box, world), f"everything in {box.folder.name} ({ends.log})", 60)
        for ref in world.issues()[:3]:
            world.close_one(ref)
        ends.finish()
        for box in (steady, ended):
            box.wait(partial(is_all_closed, box, world), "the closes", 60)
            box.wait(partial(is_all_there, box, world), "the last words", 60)

        for box in (steady, ended):
            calls = box.sink.ids()
            assert sorted(calls) == sorted(set(calls)), f"delivered twice, ends: {ends.log}"
            assert not [got for got in box.sink.got() if got.redelivery or got.attempt != 1]
            assert box.attempts() == {}
            assert {got.ref for got in box.sink.got() if got.kind == "close"} == world.closed
        assert len(world.written) > 5
        assert sum(map(len, world.written.values())) > 20
