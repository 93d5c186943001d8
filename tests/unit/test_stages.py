"""Where an event or an item is, and why: each stage of its life in one sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from support.factories import REF, ledger, pending
from the_loop.core.ledger import Breaker, Phase, Spawn, Standing
from the_loop.core.model import Outcome, Verdict, timestamp
from the_loop.seen import Files, Here, Seen, Stage
from the_loop.stages import stage_of_event, stage_of_item

if TYPE_CHECKING:
    from the_loop.core.ledger import Ledger

NOW = 1_700_000_000.0
KEY = "comment:9"
POLLED = {"name": "work", "state": "ok", "nextCycleAt": timestamp(NOW + 40)}
RUNNING = Here(is_running=True, source=POLLED, source_name="work", max_retries=3, sources=("work",))
STOPPED = Here(is_running=False, source=POLLED, source_name="work", max_retries=3, sources=("work",))


def told(name: str, key: str | None = KEY, ago_s: float = 10, **fields: Any) -> dict[str, Any]:
    about = {"ref": REF} if key is None else {"ref": REF, "deliveryId": f"{REF}/{key}"}
    return {"time": timestamp(NOW - ago_s), "event": name, "message": f"{name} it", **about, **fields}


def seen(
    present: Ledger | None,
    *events: dict[str, Any],
    files: dict[str, Files] | None = None,
    here: Here = RUNNING,
    held: str = "",
) -> Seen:
    return Seen(REF, present, events, files or {}, here, NOW, lambda at: f"T{at - NOW:+.0f}", held)


def stage(present: Ledger | None, *events: dict[str, Any], key: str = KEY, **more: Any) -> Stage:
    return stage_of_event(seen(present, *events, **more), key)


def queued(state: Standing = Standing.QUEUED, **changes: Any) -> Ledger:
    return ledger(queue={KEY: pending(KEY, state, **changes)})


# --- not seen --------------------------------------------------------------------------------------------------------


def test_event_when_not_seen_yet_then_the_next_cycle_is_named() -> None:
    found = stage(ledger())

    assert found == Stage(
        "not-seen", "not seen yet: its source 'work' is polled next T+40", until=NOW + 40, is_known=False
    )


@pytest.mark.parametrize(
    ("here", "why"),
    [
        (STOPPED, "no poller is running, the next start polls its source 'work'"),
        (Here(is_running=None, source_name="work"), "it is not known whether a poller is running"),
        (Here(is_running=True), "which source it is of is not known"),
        (Here(is_running=True, sources=("a", "b")), "no configured source has it (there are 'a', 'b')"),
        (Here(is_running=True, sources=("a",)), "no configured source has it (there is 'a')"),
        (Here(is_running=True, sources=()), "no configured source has it (there is none)"),
        (Here(is_running=True, source_name="work", has_reported=False), "the running poller did not say yet when"),
        (Here(is_running=True, source_name="work"), "the running poller does not have its source 'work'"),
        (Here(is_running=True, source_name="work", source={"state": "unread"}), "no user is authorised on it"),
        (Here(is_running=True, source_name="work", source={"nextCycleAt": timestamp(NOW - 1)}), "is being polled now"),
        (Here(is_running=True, source_name="work", source={**POLLED, "error": "gone"}), "T+40; it is failing: gone"),
        (
            Here(is_running=True, source_name="work", source={**POLLED, "waitingUntil": timestamp(NOW + 900)}),
            "is polled next T+900, after a limit",
        ),
    ],
)
def test_event_when_not_seen_then_it_says_what_keeps_the_source_from_it(here: Here, why: str) -> None:
    assert why in stage(ledger(), here=here).text
    item = stage_of_item(seen(None, here=here))
    assert why in item.text
    assert (item.state, item.is_known) == ("not-seen", False)


def test_item_when_not_known_then_what_it_has_to_have_is_told() -> None:
    here = Here(is_running=True, source=POLLED, source_name="work", needs="the label 'auto'")

    assert stage_of_item(seen(None, here=here)).text == (
        "not seen: the item is not known (it needs the label 'auto'); its source 'work' is polled next T+40"
    )


def test_review_when_not_seen_then_it_may_be_none_that_is_an_event() -> None:
    assert "a review without a text or a verdict is not an event" in stage(ledger(), key="review:7").text


def test_event_when_something_waits_for_a_decision_about_an_account_then_it_may_be_that() -> None:
    found = stage(ledger(), here=Here(is_running=True, source=POLLED, source_name="work", changed=("bob",)))

    assert found.text.startswith("not seen yet: what 'bob' wrote on the item waits, as the account is another one")
    assert found.commands == ("the-loop authors accept bob",)


def test_event_when_its_source_was_read_then_it_says_when() -> None:
    here = Here(is_running=True, source={**POLLED, "lastGoodAt": timestamp(NOW - 20)}, source_name="work")

    assert stage(ledger(), here=here).text.endswith("its source 'work' was read T-20, and is polled next T+40")


def test_event_when_its_file_is_passed_over_then_the_reason_is_told() -> None:
    here = Here(is_running=True, source_name="inbox", source={**POLLED, "overlooked": {"repo#15/9": "no permission"}})

    assert stage(ledger(), here=here).text == "passed over: no permission; its source 'inbox' is polled next T+40"


def test_event_when_its_item_ended_then_it_says_so() -> None:
    found = stage(ledger(Phase.ENDED, reason="closed"), told("session.closed", "close:1"))

    assert (found.state, found.is_known) == ("item-ended", False)
    assert found.text.startswith("not seen, and the item ended (closed), T-10: nothing more is delivered unless")


def test_event_when_its_item_waits_for_the_start_word_then_it_says_why() -> None:
    waits = told("poll.waiting", None, reason="its author 'mallory' is not authorised")

    assert (
        "does not start by itself: its author 'mallory' is not authorised" in stage(ledger(Phase.WAITING), waits).text
    )


def test_event_when_written_while_the_spawn_runs_then_the_spawn_is_named() -> None:
    files = {"spawn:1": Files(is_locked=True, begun_at=NOW - 240, unit="x.service", look=("look",))}

    found = stage(ledger(Phase.STARTING), files=files)

    assert found.text == (
        "not accepted yet: what is new on the item is taken up after spawn:1 of the item: "
        "running since T-240 in x.service"
    )
    assert (found.state, found.reason, found.commands) == ("not-seen", "behind spawn:1", ("look",))
    assert "something new was seen" in stage(ledger(Phase.STARTING, behind=True), files=files).text


def test_event_when_the_spawn_waits_for_its_next_attempt_then_it_will_go_with_it() -> None:
    spawn = pending("spawn:1", Standing.REFUSED, attempt=2, retry_at=NOW + 60)

    found = stage(ledger(Phase.STARTING, queue={"spawn:1": spawn}))

    assert "taken up with spawn:1 of the item: rejected, attempt 1 of 3; next try T+60" in found.text


def test_event_when_its_item_lost_its_label_then_it_waits_until_that_is_back() -> None:
    assert "not seen yet: the item lost its label" in stage(ledger(away=True)).text


# --- accepted --------------------------------------------------------------------------------------------------------


def test_event_when_behind_another_then_that_is_named_with_where_it_is() -> None:
    both = ledger(queue=["comment:8", KEY])
    files = {"comment:8": Files(is_locked=True, begun_at=NOW - 60, look=("look",))}

    found = stage(both, files=files)

    assert found.text == "accepted, and its turn comes after comment:8 of the item: running since T-60"
    assert (found.state, found.reason, found.commands) == ("waiting", "behind comment:8", ("look",))


def test_event_when_accepted_then_it_says_when() -> None:
    found = stage(queued(), told("poll.accepted"))

    assert (found.text, found.since) == ("accepted T-10, and handed over as soon as a slot is free", NOW - 10)


def test_event_when_its_record_has_the_reason_then_the_event_log_is_not_needed() -> None:
    assert stage(queued(Standing.LATER, retry_at=NOW + 9, reason="busy")).reason == "busy"


def test_event_when_behind_a_given_up_one_then_it_is_first_in_line() -> None:
    both = ledger(queue={"comment:8": pending("comment:8", Standing.GAVE_UP), KEY: pending(KEY)})

    assert stage(both).text == "accepted, and handed over as soon as a slot is free"


@pytest.mark.parametrize(
    ("present", "here", "state", "text"),
    [
        (queued(), RUNNING, "waiting", "accepted, and handed over as soon as a slot is free"),
        (queued(), STOPPED, "waiting", "accepted; no poller is running, the next start hands it over"),
        (queued(), Here(), "waiting", "accepted; whether a poller is running is not known"),
        (queued(), Here(is_running=True, paused="no such file"), "waiting", "all deliveries pause: no such file"),
        (queued(Standing.LOST), RUNNING, "waiting", "its payload is not on this machine"),
        (queued(Standing.UNCERTAIN), RUNNING, "unknown", "it is offered again, marked as a redelivery"),
        (ledger(queue=[KEY], paused=True), RUNNING, "paused", "accepted; the item is paused by a word"),
        (ledger(queue=[KEY], away=True), RUNNING, "paused", "accepted; the item lost its label"),
        (ledger(queue=[KEY], breaker=Breaker(since=NOW - 5)), RUNNING, "paused", "accepted; the item pauses since T-5"),
        (ledger(Phase.ENDING, queue=[KEY], paused=True), RUNNING, "waiting", "as soon as a slot is free"),
    ],
)
def test_event_when_first_in_line_then_it_says_what_it_waits_for(
    present: Ledger, here: Here, state: str, text: str
) -> None:
    found = stage(present, here=here)

    assert found.state == state
    assert text in found.text
    assert found.is_known


def test_spawn_when_not_begun_at_a_stop_then_it_is_built_again() -> None:
    present = ledger(Phase.STARTING, queue={"spawn:1": pending("spawn:1", Standing.RELEASED)})

    assert "built from its thread again" in stage(present, key="spawn:1").text


def test_event_when_a_pending_spawn_carries_it_then_it_goes_with_that() -> None:
    present = ledger(Phase.STARTING, queue={"spawn:1": pending("spawn:1", carries=(KEY,))})
    files = {"spawn:1": Files(is_locked=True, begun_at=NOW - 3)}

    found = stage(present, files=files)

    assert (found.state, found.text) == ("running", "it goes with spawn:1 of the item: running since T-3")


# --- by the delivery's files -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "state", "text"),
    [
        (Files(is_locked=True), "accepted", "the service manager accepted it and has not begun it yet"),
        (
            Files(is_locked=True, begun_at=NOW - 9, unit="x.service", unit_state="active (running)"),
            "running",
            "running since T-9 in x.service, active (running)",
        ),
        (Files(is_locked=None), "unknown", "it could not be found out whether it runs"),
        (
            Files(begun_at=NOW - 9),
            "unknown",
            "begun T-9, and its keeper is gone without an outcome: the outcome is unknown",
        ),
        (
            Files(begun_at=NOW - 9, outcome=Outcome(Verdict.REFUSED, "exit status 1"), ended_at=NOW - 1),
            "ended",
            "it ended, T-1, it was rejected: exit status 1; the poller is recording that",
        ),
    ],
)
def test_event_when_its_files_tell_then_they_count_before_the_record(files: Files, state: str, text: str) -> None:
    found = stage(queued(), files={KEY: files})

    assert (found.state, found.text) == (state, text)


def test_event_when_its_runner_leaves_no_marks_then_the_poller_tells_that_it_runs() -> None:
    work = {f"{REF}/{KEY}": {"state": "running", "since": timestamp(NOW - 7), "unit": "x.service"}}
    here = Here(is_running=True, work=work)

    found = stage(queued(), here=here)

    assert (found.state, found.text, found.since) == ("running", "running since T-7 in x.service", NOW - 7)
    assert stage(queued(Standing.REFUSED, retry_at=NOW + 9), here=here).state == "refused", "the heartbeat is older"
    assert stage(queued(Standing.HELD), here=here).state == "held"
    assert stage(ledger(queue=["comment:8"]), key="comment:8", here=here).state == "waiting"


def test_event_when_ended_and_no_poller_runs_then_the_next_start_records_it() -> None:
    files = Files(begun_at=NOW - 9, outcome=Outcome(Verdict.DELIVERED), ended_at=NOW - 1)

    assert "the next start of the poller records that" in stage(queued(), files={KEY: files}, here=STOPPED).text


# --- answered --------------------------------------------------------------------------------------------------------


def test_event_when_rejected_then_attempt_reason_and_next_try_are_told() -> None:
    failed = told("poll.comment_failed", attempt=1, reason="exit status 1", willRetry=True)
    present = queued(Standing.REFUSED, attempt=2, retry_at=NOW + 30)

    found = stage(present, failed)

    assert found == Stage(
        "refused", "rejected, attempt 1 of 3 (exit status 1); next try T+30", "exit status 1", until=NOW + 30
    )
    assert stage(present, here=STOPPED).text.endswith("next try with the next start of the poller, from T+30 on")
    assert stage(queued(Standing.REFUSED, retry_at=NOW - 1)).text.endswith("next try with the next cycle")


def test_event_when_rejected_and_its_item_pauses_then_both_are_told() -> None:
    present = ledger(queue={KEY: pending(KEY, Standing.REFUSED, attempt=2, retry_at=NOW + 30)}, paused=True)

    assert stage(present, here=Here(is_running=True, resume_word="`go on`")).text == (
        "rejected, attempt 1; next try from T+30 on; the item is paused by a word, and goes on with `go on`"
    )


def test_event_when_it_runs_and_no_poller_does_then_the_next_start_records_its_end() -> None:
    files = {KEY: Files(is_locked=True, begun_at=NOW - 9)}

    assert stage(queued(), files=files, here=STOPPED).text == (
        "running since T-9; no poller is running, the next start records how it ends"
    )


def test_item_when_it_waits_then_the_word_that_starts_it_is_told() -> None:
    present = ledger(Phase.WAITING, reason="its author 'mallory' is not authorised")

    assert stage_of_item(seen(present, here=Here(start_word="`go`"))).text == (
        "met, and does not start by itself: its author 'mallory' is not authorised; "
        "an authorised person starts it by writing `go` on it"
    )


def test_event_when_deferred_then_until_when_is_told() -> None:
    found = stage(queued(Standing.LATER, retry_at=NOW + 60), told("poll.deferred", reason="exit status 75"))

    assert (found.state, found.until) == ("deferred", NOW + 60)
    assert found.text == "deferred by its receiver (exit status 75), next try T+60"


def test_event_when_held_then_what_to_type_is_told() -> None:
    found = stage(queued(Standing.HELD, redelivery=True), told("poll.comment_held", reason="killed"))

    assert found.text == "held, its outcome is unknown (killed); it is not offered again by itself"
    assert found.commands == (
        f"the-loop ledger retry '{REF}' comment:9",
        f"the-loop ledger settle '{REF}' comment:9",
    )


def test_event_when_given_up_then_what_to_type_is_told() -> None:
    failed = told("poll.comment_failed", attempt=3, reason="exit status 1", willRetry=False)

    found = stage(queued(Standing.GAVE_UP), failed)

    assert found.text == "given up after attempt 3 (exit status 1); it is not offered again by itself"
    assert (found.state, found.since) == ("gave-up", NOW - 10)
    assert found.commands == (f"the-loop ledger retry '{REF}' comment:9",)


# --- done with -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("event", "state", "text"),
    [
        (told("poll.comment_forwarded"), "delivered", "delivered, T-10"),
        (
            told("dispatch.dropped", reason="unauthorized", author="mallory"),
            "dropped",
            "not delivered by 'mallory': its author is not authorised to speak here, or cannot be established, T-10",
        ),
        (told("dispatch.dropped", reason="own"), "dropped", "a notice of our own"),
        (told("dispatch.dropped", reason="kind"), "dropped", "`session.kinds` does not have its kind"),
        (told("dispatch.dropped", reason="of a plugin"), "dropped", "not delivered: of a plugin, T-10"),
        (told("dispatch.dropped", reason="settled"), "settled", "recorded as delivered by `ledger settle`"),
        (told("control.applied", reason="pause"), "applied", "a control word: 'pause' was applied, T-10"),
        (told("control.ambiguous", reason="start and stop"), "dropped", "contradict each other (start and stop)"),
        (told("poll.edited", reason="renamed"), "settled", "the same content under a new name"),
    ],
)
def test_event_when_settled_then_the_event_log_says_how(event: dict[str, Any], state: str, text: str) -> None:
    found = stage(ledger(seen=[KEY]), event)

    assert (found.state, found.since) == (state, NOW - 10)
    assert text in found.text
    assert found.is_known


def test_event_when_settled_and_not_in_the_log_then_it_went_with_the_start() -> None:
    found = stage(ledger(seen=[KEY]), told("poll.spawned", "spawn:1"))

    assert found.state == "carried"
    assert found.text.startswith("settled: it went with the item's start (delivered T-10); or it was not for")


def test_spawn_when_settled_and_not_in_the_log_then_it_carried_nothing_else() -> None:
    assert stage(ledger(seen=["spawn:1"]), key="spawn:1").state == "settled"


def test_event_when_edited_after_its_delivery_then_it_stays_delivered() -> None:
    events = (told("poll.comment_forwarded", ago_s=20), told("poll.edited", reason="edited"))

    assert stage(ledger(seen=[KEY]), *events).text == "delivered, T-20"


def test_event_when_the_log_has_it_and_the_record_does_not_then_it_was_withdrawn() -> None:
    found = stage(ledger(), told("poll.comment_failed", attempt=1, reason="x", willRetry=True))

    assert found.state == "withdrawn"
    assert "not in the item's record any more: last mentioned T-10" in found.text


def test_close_when_given_up_then_it_says_so_though_the_item_ended() -> None:
    failed = told("poll.comment_failed", "close:1", reason="exit status 1", willRetry=False)

    assert stage(ledger(Phase.ENDED, seen=["close:1"]), failed, key="close:1").state == "gave-up"


# --- the item --------------------------------------------------------------------------------------------------------


def test_item_when_its_ledger_is_held_then_how_to_go_on_is_told() -> None:
    for found in (stage_of_item(seen(None, held="not JSON")), stage(None, held="not JSON")):
        assert (found.state, found.reason) == ("held", "not JSON")
        assert found.commands == (f"the-loop ledger reset '{REF}'",)


@pytest.mark.parametrize(
    ("present", "state", "text"),
    [
        (ledger(), "live", "started T-10; new comments are handed over"),
        (ledger(paused=True), "paused", "the item is paused by a word"),
        (ledger(Phase.WAITING), "waiting", "met, and does not start by itself"),
        (ledger(Phase.STARTING), "starting", "starts with spawn:1: accepted, and handed over as soon as"),
        (ledger(Phase.ENDING), "ending", "ends with close:1: accepted"),
        (ledger(Phase.ENDED, reason="merged"), "ended", "the item ended (merged)"),
        (
            ledger(
                Phase.STARTING,
                queue={"spawn:1": pending("spawn:1", Standing.GAVE_UP)},
                spawn=Spawn(attempts=3, gave_up=("1",)),
            ),
            "starting",
            "starts with spawn:1: given up",
        ),
    ],
)
def test_item_when_in_a_phase_then_says_so(present: Ledger, state: str, text: str) -> None:
    found = stage_of_item(seen(present, told("poll.spawned", "spawn:1")))

    assert found.state == state
    assert text in found.text
    assert found.is_known


def test_item_when_without_a_record_and_mentioned_then_the_last_event_is_told() -> None:
    found = stage_of_item(seen(None, told("item.failed", None, reason="no permission")))

    assert (found.state, found.is_known) == ("not-seen", True)
    assert "last mentioned T-10: item.failed it" in found.text
