"""People, GitHub and the poller all at random: what was written arrives, and nothing of it twice."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from support.fuse import Crash, Fuse
from support.github import faults
from support.github.values import Rules
from support.replay_cost import SWEEP
from support.world import REPO, carried, in_real_loop, scene

HOUR = 3600


class Chaos:
    """People who write, label and close at random; a GitHub that lags and fails; a poller that is killed."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.random = Random(seed)
        self.closed, self.unlabelled = set[int](), set[int]()
        self.written: dict[int, list[str]] = {}
        lag_s = self.random.choice((0.0, 5.0, 20.0))
        rules = Rules(
            lag_s=lambda _view: self.random.uniform(0, lag_s),
            since_inclusive=self.random.random() < 0.5,
            coalesce_s=self.random.choice((0.0, 60.0)),
            reviews_move_issue=self.random.random() < 0.5,
        )
        self.world = scene(folder, rules, interval_s=self.random.choice((25, 60, 300)))

    def act(self) -> None:
        """One thing that one person does."""
        github, random = self.world.github, self.random
        if not self.written or random.random() < 0.05:
            number = self.world.add_issue(pull_request=random.random() < 0.5)
            self.written[number] = []
            return
        number = random.choice(list(self.written))
        match random.randrange(12):
            case 0:
                (github.label if number in self.unlabelled else github.unlabel)(REPO, number, "auto")
                self.unlabelled ^= {number}
            case 1:
                (github.reopen if number in self.closed else github.close)(REPO, number)
                self.closed ^= {number}
            case 2:
                github.comment(REPO, number, "stranger")
            case 3:
                pattern, effect = random.choice(FAULTS)
                github.fail(pattern, effect, after=random.randrange(12))
            case 4:
                self.world.options.environ["GITHUB_TOKEN"] = f"token-{random.random()}"  # no validator is of this one
            case 5 | 6 if self._is_pull(number):
                self.written[number].append(f"review_comment:{github.review_comment(REPO, number)}")
            case 7 | 8 if self._is_pull(number):
                self._review(number)
            case _:
                self.written[number].append(f"comment:{github.comment(REPO, number)}")

    def _is_pull(self, number: int) -> bool:
        return self.world.github.repo(REPO).thread(number).issue.state(0).is_pull

    def _review(self, number: int) -> None:
        """One of any kind; one that says nothing itself is nothing to be delivered."""
        state, body = (
            self.random.choice(("APPROVED", "CHANGES_REQUESTED", "COMMENTED")),
            self.random.choice(("", "So.")),
        )
        id_ = self.world.github.review(REPO, number, state=state, body=body)
        if state != "COMMENTED" or body:
            self.written[number].append(f"review:{id_}")

    async def live(self) -> None:
        """A few cycles, some of them cut off."""
        for _ in range(self.random.randrange(1, 4)):
            try:
                if self.random.random() < 0.15:
                    self.world = self.world.restart(fuse=Fuse(at=self.random.randrange(1, 25)))
                await self.world.cycle()
            except Crash:
                self.world = self.world.restart()

    async def calm_down(self) -> None:
        """Everything is open and labelled again, and answers; time for whatever is still under way."""
        self.world = self.world.restart()
        self.world.github.faults.clear()
        for number in self.closed:
            self.world.github.reopen(REPO, number)
        for number in self.unlabelled:
            self.world.github.label(REPO, number, "auto")
        self.world.clock.run(HOUR)
        await self.world.cycle(times=SWEEP + 5)


FAULTS = [
    (".", faults.server_error()),
    (".", faults.secondary_limit(100)),
    (".", faults.html()),
    (".", faults.cut()),
    (".", faults.reply(404, {"message": "Not Found"})),
    ("labels", faults.reply(200, b"[]")),
]


def _is_of_session(name: str) -> bool:
    return name.rpartition("/")[2].startswith(("spawn:", "close:"))


class TestChaos:
    @pytest.mark.crash
    @pytest.mark.parametrize("seed", range(24))
    @in_real_loop
    async def test_whatever_happens_then_all_arrives_and_nothing_twice(self, tmp_path: Path, seed: int) -> None:
        chaos = Chaos(tmp_path, seed)
        for _ in range(60):
            for _ in range(chaos.random.randrange(4)):
                chaos.act()
                chaos.world.clock.run(chaos.random.uniform(0, 10))
            await chaos.live()
        await chaos.calm_down()
        world = chaos.world

        ids = world.ids()
        assert len(ids) == len(set(ids))
        assert world.cursor()["owed"] == []
        arrived = carried(world.received)
        for number, written in chaos.written.items():
            assert {name for name in arrived if f"#{number}/" in name and not _is_of_session(name)} == {
                f"github:{REPO}#{number}/{key}" for key in written
            }
            for kind in ("comment", "review_comment", "review"):
                events = [key for key in world.ids(number) if key.startswith(f"{kind}:")]
                assert events == sorted(events, key=lambda key: int(key.partition(":")[2])), number
