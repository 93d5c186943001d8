"""Days of real traffic on every kind of GitHub: benchmarks/replay.py in small.

`THE_LOOP_FULL_SWEEP=1` takes all sixty days.
"""

from __future__ import annotations

import dataclasses
import os
from itertools import count
from pathlib import Path
from typing import Any, Final

import pytest

from support.github import faults
from support.github.values import Answer, Kind
from support.replay import Plan, Replay, play
from support.replay_judge import judge
from support.world import in_real_loop

IS_FULL: Final = bool(os.environ.get("THE_LOOP_FULL_SWEEP"))
ALL_AT_ONCE: Final = {
    "lag_s": 20.0,
    "coalesce_s": 10.0,
    "is_exclusive": True,
    "are_reviews_still": True,
    "rotate_s": 3600.0,
    "crashes": 0.5,
}


@pytest.mark.slow
@pytest.mark.timeout(3600 if IS_FULL else 300)
class TestTraffic:
    @pytest.mark.parametrize(
        "fields",
        [
            {"interval_s": 600, "days": 10},
            {"interval_s": 600, "days": 10, "seed": 2, "lag_s": 20.0, "restarts": 0.02},
            {"interval_s": 600, "days": 10, "seed": 3, "restarts": 0.05},
            {"interval_s": 300, "days": 3, "seed": 4, "is_exclusive": True, "crashes": 0.6},
            {"interval_s": 300, "days": 6, "seed": 5, "coalesce_s": 10.0, "are_reviews_still": True},
            {"interval_s": 60, "days": 0.8, "seed": 6, "rotate_s": 3600.0},
            {"interval_s": 60, "days": 1, "seed": 7, **ALL_AT_ONCE},
            {"interval_s": 600, "days": 6, "seed": 8, **ALL_AT_ONCE},
        ],
        ids=["quiet", "lag", "restarts", "crashes", "still", "rotation", "all", "all-long"],
    )
    @in_real_loop
    async def test_real_days_then_all_that_could_be_seen_arrives_once_and_in_order(
        self, tmp_path: Path, fields: dict[str, Any]
    ) -> None:
        plan = Plan(**{**fields, "days": 60} if IS_FULL else fields)
        replay = await play(tmp_path, plan)
        outcome = judge(replay)
        print(outcome, replay.crashes)

        assert outcome.faults == []
        assert outcome.expected.total() > 1250
        assert outcome.expected[Kind.REVIEW] > 50
        assert outcome.arrived >= outcome.expected.total()
        assert (replay.lives > 1) is (plan.restarts + plan.crashes > 0)
        # with a new token every six looks hardly one is idle: its validators are new ones all the time
        assert len(replay.account.idle) > (10 if not plan.rotate_s or plan.interval_s < 600 else 0)
        assert not plan.are_reviews_still or plan.days < 5 or max(outcome.review_delays) > 1  # by the sweep
        assert plan.crashes == 0 or min(replay.crashes[request] for request in (1, 2, 3, 4)) > 2

    @in_real_loop
    async def test_replay_when_an_answer_is_wrong_then_sees_it(self, tmp_path: Path) -> None:
        """So that its silence means something: comments that lists and threads leave out are missed."""
        replay = Replay(tmp_path, Plan(interval_s=3600, days=2))
        replay.github.fail(r"/issues/(\d+/)?comments\?", faults.reply(200, b"[]", {"ETag": 'W/"x"'}), times=None)
        await replay.run()

        assert judge(replay).missed

    @in_real_loop
    async def test_replay_when_no_validator_holds_then_sees_what_idle_looks_cost(self, tmp_path: Path) -> None:
        replay = Replay(tmp_path, Plan(days=0.2))
        serial = count()
        replay.github.fail(r"/pulls/comments\?sort", lambda genuine: _with_etag(genuine(), next(serial)), times=None)
        await replay.run()

        assert len(judge(replay).costly) == len(replay.account.idle) > 100


def _with_etag(answer: Answer, serial: int) -> Answer:
    return dataclasses.replace(answer, headers={**answer.headers, "ETag": f'W/"{serial}"'})
