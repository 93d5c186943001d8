"""The hand-over as an explicit-state model: explored exhaustively, and the real code held against it.

What must hold: each event is handed over once, unless its receiver refused it or the outcome is unknown (then it is
marked); what is settled arrived; nothing is lost; no two keepers run the command of the same number.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from unittest import mock

import pytest

from model.explore import Explored, Violated, explore, kinds_of_steps, way_to_rest
from model.protocol import Protocol, Protocol010, Step
from model.replay import Differs, Script, SteppedDeliveries, replay
from model.state import DELIVERED, SPAWN, State
from support.life import new_root, quick_root
from the_loop.core.ledger import Phase
from the_loop.runners import keeper
from the_loop.state import StateRoot

IS_FULL: Final = bool(os.environ.get("THE_LOOP_FULL_SWEEP"))
SEED: Final = int(os.environ.get("THE_LOOP_SEED") or random.randrange(10**6))
CRASHES, FAULTS = 2, 1
SAMPLE: Final = 300  # ways that the real code is led; all with THE_LOOP_FULL_SWEEP

pytestmark = pytest.mark.timeout(14400 if IS_FULL else 120)


@pytest.fixture(scope="module")
def explored() -> Explored:
    return explore(Protocol(), crashes=CRASHES, faults=FAULTS)


def test_protocol_keeps_the_promise_in_every_state(explored: Explored) -> None:
    print(f"{len(explored.came_by)} states, {len(explored.ends)} at rest; {CRASHES} crashes, {FAULTS} other faults")

    assert len(explored.came_by) > 50_000


if IS_FULL:  # it takes a minute, and 2 GB

    def test_protocol_keeps_the_promise_with_two_faults_beside_the_crashes() -> None:
        assert len(explore(Protocol(), crashes=2, faults=2).came_by) > 300_000


def test_every_kind_of_step_is_taken(explored: Explored) -> None:
    keeper = {f"keeper.{step}" for step in ("hold", "check", "mark", "recheck", "run", "write", "end")}
    faults = {f"fault.{what}" for what in ("crash", "refuse", "taken", "lose", "no", "drop", "kill", "refused")}
    poller = {
        f"poller.{what}"
        for what in ("start", "look", "write", "save", "ready", "claim", "clear", "ask", "answer", "probe", "marks")
    }

    assert set(kinds_of_steps(explored)) >= {
        *(keeper | faults | poller),
        *("world.comment", "world.resume", "world.again", "manager.accept", "manager.start"),
        *("poller.withdraw", "poller.remove", "poller.forget"),
    }


def test_protocol_of_0_1_0_hands_over_twice_what_starts_late() -> None:  # A1
    with pytest.raises(Violated, match="spawn was handed over again, unmarked") as found:
        explore(Protocol010(), crashes=0, faults=1, only="again, unmarked")

    print(found.value)
    assert [(one.number, one.redelivery) for one in found.value.state.got] == [(1, False), (2, False)]


def test_protocol_of_0_1_0_settles_a_comment_that_did_not_arrive() -> None:  # A2
    with pytest.raises(Violated, match="comment is settled and did not arrive") as found:
        explore(Protocol010(), crashes=1, faults=0, only="comment is settled")

    print(found.value)
    assert [(one.what, one.number, one.comment, one.end) for one in found.value.state.got] == [
        (SPAWN, 1, False, DELIVERED)
    ]


class _LockEndsWithTheAnswer(Protocol):
    """The keeper takes the lock itself, as in 0.1.0; numbers are withdrawn as they are now."""

    is_locked = Protocol010.is_locked
    _may_hold = Protocol010._may_hold


class _MarksBeforeTheLock(Protocol):
    """The marks are read first, then the lock is asked."""

    def _hand_over(self, state: State, what: str, number: int) -> Iterator[Step]:
        match state.poller.at:
            case "probe" | "wait":
                verdict = self._read(state, what, number, held=False)
                yield "poller.marks", state.move(at="marks", verdict=verdict)
            case "marks" if self.is_locked(state, what) and state.poller.verdict != DELIVERED:
                yield "poller.probe", state.move(at="wait", verdict="")
            case "marks":
                yield "poller.probe", self._conclude(state.move(verdict=""), state.poller.verdict)
            case _:
                yield from super()._hand_over(state, what, number)


@pytest.mark.parametrize("weaker", [_LockEndsWithTheAnswer, _MarksBeforeTheLock])
def test_protocol_without_one_of_its_rules_breaks_the_promise(weaker: type[Protocol]) -> None:
    with pytest.raises(Violated, match="handed over again"):
        explore(weaker(), crashes=1, faults=1)


# --- the real code ---


def ways(explored: Explored) -> list[State]:
    """The states to which the real code is led, by the shortest way."""
    states = list(explored.came_by)
    chosen = states if IS_FULL else random.Random(SEED).sample(states, SAMPLE)
    print(f"THE_LOOP_SEED={SEED}: {len(chosen)} of {len(states)} ways")
    return chosen


def led_to(state: State, explored: Explored, root: StateRoot) -> tuple[Script, State]:
    """Lead the real code to this state, and on until nothing more happens; the state of the model at that end."""
    rest, end = way_to_rest(explored.protocol, state)
    script, ledger = replay([*(name for name, _ in explored.way_to(state)), *rest], root)
    assert ledger is not None
    assert ledger.poll.phase is Phase.LIVE
    assert ledger.poll.seen_comments == {"spawn:1", "comment:1"}
    assert not ledger.poll.pending
    return script, end


def test_real_code_does_what_the_model_does(
    explored: Explored, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)

    for number, state in enumerate(ways(explored)):
        try:
            script, end = led_to(state, explored, new_root(tmp_path / str(number)))
            assert tuple(script.got) == end.got
            assert not script.keepers
        except (Differs, AssertionError) as error:
            way = "\n".join(name for name, _ in explored.way_to(state))
            pytest.fail(f"THE_LOOP_SEED={SEED}, {error}, on the way\n{way}")


def test_real_code_that_leaves_a_step_out_is_noticed(
    explored: Explored, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = quick_root(tmp_path, monkeypatch)
    steps = ((state, came) for state, came in explored.came_by.items() if came is not None)
    withdrawn = next(
        state for state, (name, before) in steps if name == "poller.withdraw" and before.poller.at == "over"
    )

    with (
        mock.patch.object(SteppedDeliveries, "withdraw_offer", return_value=2),
        pytest.raises(Differs, match=r"the code does poller\.save, where the model does poller\.withdraw"),
    ):
        led_to(withdrawn, explored, root)


def test_keeper_that_does_not_begin_is_noticed(
    explored: Explored, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = quick_root(tmp_path, monkeypatch)
    with pytest.raises(Differs, match="there is no keeper"), mock.patch.object(keeper, "create", _refuses):
        led_to(explored.ends[0], explored, root)


def _refuses(*_: object) -> None:
    raise FileExistsError
