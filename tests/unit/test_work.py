"""`work` of `status --json`: why each event is not handed over now, and what a long queue costs."""

from __future__ import annotations

import time
from pathlib import Path

from the_loop.core.ledger import Ledger, Phase, Standing, accept, accept_all, give_up, move, new_ledger, rearm, settle
from the_loop.core.model import WorkItem
from the_loop.ledgers import Ledgers
from the_loop.state import StateRoot
from the_loop.work import work_of

REF = "github:octo/repo#1"


def queue_of(folder: Path, ledger: Ledger) -> Ledgers:
    root = StateRoot(folder)
    root.prepare_root()
    root.prepare_folders()
    ledgers = Ledgers(root, lambda _: None, time.time)
    ledgers.load()
    ledgers.save(ledger)
    return ledgers


def live_one(comments: int) -> Ledger:
    item = WorkItem(REF, "I_1", url="", title="", body="", author="octocat", created_at="2026-01-01T00:00:00Z")
    facts = {"author": "octocat", "created": 0.0, "group": ""}
    ledger = accept(new_ledger(item, Phase.STARTING, g=1), "spawn:1", "octocat", ())
    ledger = accept_all(ledger, {f"comment:{number}": facts for number in range(comments)})
    return settle(ledger, "spawn:1")


def test_event_when_it_is_tried_again_then_the_reason_of_its_last_outcome_is_over(tmp_path: Path) -> None:
    ledger = live_one(1)
    ledger = move(ledger, "comment:0", Standing.RUNNING)
    ledger = give_up(move(ledger, "comment:0", Standing.REFUSED, reason="exit status 1"), "comment:0", "0.1.0")
    (before,) = work_of(queue_of(tmp_path, ledger), {})
    (after,) = work_of(queue_of(tmp_path, rearm(ledger, "comment:0")), {})

    assert (before["state"], before["reason"]) == ("gave-up", "exit status 1")
    assert (after["state"], after["reason"]) == ("waiting", "its turn comes with a free slot")


def test_queue_when_it_is_long_then_only_what_is_shown_is_written_out(tmp_path: Path) -> None:
    """It is looked at after each delivery: written out as a whole, ten thousand events take 120 ms each time."""
    work = work_of(queue_of(tmp_path, live_one(1000)), {})

    assert len(work) == 1000
    assert [one["deliveryId"] for one in work if one] == [f"{REF}/comment:{number}" for number in range(200)]
