"""Exit codes and sentences: what happened, to which thing, why, and what to do; never a traceback."""

from __future__ import annotations

import json
import signal
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from support.poller import Box, Done, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

GITHUB = {"provider": "github", "repos": ["octo/repo"], "label": "auto"}


def assert_said(done: Done, code: int, *parts: str) -> None:
    assert done.code == code, done.err
    for part in parts:
        assert part in done.err, f"{part!r} is not in {done.err!r}"
    assert done.out == "" or code == 0, "messages go to stderr"


def edited(box: Box, change: Callable[[dict[str, Any]], object]) -> None:
    tree = box.settings(sources=[dict(GITHUB)])
    change(tree)
    box.write_config(yaml.safe_dump(tree))


def source(tree: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = tree["polling"]["sources"][0]
    return found


WRONG: dict[str, tuple[Callable[[dict[str, Any]], object], str, str]] = {
    "misspelt": (lambda t: source(t).update(lable=source(t).pop("label")), "polling.sources[0].lable", "'label'"),
    "missing": (lambda t: source(t).pop("repos"), "polling.sources[0].repos", "missing"),
    "negative": (lambda t: t["polling"].update(intervalSeconds=-5), "polling.intervalSeconds", "1 to 86400"),
    "zero": (lambda t: t["polling"].update(intervalSeconds=0), "polling.intervalSeconds", "1 to 86400"),
    "word": (lambda t: t["polling"].update(intervalSeconds="soon"), "polling.intervalSeconds", "soon"),
    "half-repo": (lambda t: source(t).update(repos=["octo"]), "polling.sources[0].repos", "owner/name"),
    "top": (lambda t: t.update(pollling={}), "pollling", "'polling'"),
    "provider": (lambda t: source(t).update(provider="gitlab"), "polling.sources[0].provider", "github"),
    "runner": (lambda t: t["session"].update(runner="exce"), "session.runner", "exec"),
    "command": (lambda t: t["session"].update(command="my-agent"), "session.command", "my-agent"),
    "no-sources": (lambda t: t["polling"].update(sources=[]), "polling.sources", "source"),
    "twice": (lambda t: t["polling"]["sources"].append(dict(GITHUB)), "polling.sources[1]", "octo/repo"),
}


@pytest.mark.parametrize("fault", WRONG)
def test_config_check_when_something_is_wrong_then_78_with_its_path_and_what_would_be_right(
    box: Box, fault: str
) -> None:
    change, path, hint = WRONG[fault]
    edited(box, change)

    assert_said(box.run("config", "check"), 78, str(box.config), path, hint)
    assert_said(box.once(), 78, path)
    assert sorted(path.name for path in box.root.iterdir()) == ["inbox"], "a start that cannot be touched nothing"


def test_config_check_when_several_things_are_wrong_then_all_are_named_at_once(box: Box) -> None:
    edited(box, lambda t: (t.update(rooting={}), t["polling"].update(intervalSeconds=0), source(t).pop("label")))

    assert_said(
        box.run("config", "check"), 78, "rooting", "polling.intervalSeconds", "polling.sources[0].label", "'routing'"
    )


@pytest.mark.parametrize(
    "content", [b"", b"- a list", b"polling: {", b"\xff\xfe\x00", b"a: !!python/object:os.system x"]
)
def test_config_when_it_is_no_mapping_then_78_and_named(box: Box, content: bytes) -> None:
    box.write_config(content)

    assert_said(box.run("config", "check"), 78, str(box.config))
    assert_said(box.once(), 78, str(box.config))


def test_config_when_the_file_is_missing_or_a_directory_then_78_and_named(box: Box) -> None:
    box.config.unlink()
    assert_said(box.run("config", "check"), 78, str(box.config), "No such file")
    box.config.mkdir()
    assert_said(box.run("config", "check"), 78, str(box.config), "directory")


def test_config_when_right_then_check_show_and_schema_say_so(box: Box) -> None:
    assert box.run("config", "check").code == 0
    shown = box.run("config", "show")
    assert shown.code == 0
    assert f"polling.intervalSeconds: 1  # {box.config}" in shown.out
    assert "polling.maxRetries: 3  # default" in shown.out
    assert box.run("config", "schema").json()["$defs"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("poll", "halt"),
        ("poll", "start", "--twice"),
        ("poll", "stop", "--timeout", "soon"),
        ("poll", "stop", "--timeout", "-1"),
        ("ledger", "show"),
        ("events", "--since", "whenever"),
        ("nonsense",),
    ],
    ids=" ".join,
)
def test_usage_when_wrong_then_2_and_the_mistake_is_named(box: Box, arguments: tuple[str, ...]) -> None:
    done = box.run(*arguments)

    assert_said(done, 2)
    assert len(done.err.splitlines()) <= 4, "the mistake, not the whole help"
    assert not (box.root / "poll.pid").exists()


def test_version_and_help_then_0(box: Box) -> None:
    assert box.run("--version").out.startswith("the-loop ")
    for noun in ((), ("poll",), ("ledger",), ("config",), ("events",)):
        done = box.run(*noun, "--help")
        assert done.code == 0
        assert "Usage:" in done.out


def test_nothing_runs_then_3_from_status_stop_and_restart(box: Box) -> None:
    status = box.run("poll", "status", "--json")
    assert status.code == 3
    assert status.json()["running"] is False
    assert status.json()["stateRoot"] == str(box.root)
    assert_said(box.run("poll", "stop"), 3, str(box.root))
    assert_said(box.run("poll", "restart"), 3, str(box.root))


def test_status_when_a_poller_runs_then_its_fields_are_those_of_the_contract(box: Box) -> None:
    box.item("a")
    poller = box.start()
    box.wait_for_cycles()
    box.wait(lambda: not box.pending(), "the delivery")
    status = box.wait(lambda: _with_cycle(box), "the heartbeat")

    assert {
        "running", "pid", "starttime", "since", "stateRoot", "pidfile", "unit", "configuration", "lastGoodCycleAt",
        "work", "sources", "pending", "uncertain", "held", "gaveUp",
    } <= set(status)  # fmt: skip
    assert (status["running"], status["pid"], status["unit"]) == (True, poller.pid, None)
    (inbox,) = status["sources"]
    assert set(inbox["lastCycle"]) >= {"startedAt", "seconds", "items", "delivered", "errors", "interrupted"}
    assert set(inbox) >= {
        *("name", "provider", "state", "heldBy", "items", "waiting", "owed", "lastGoodAt", "error", "waitingUntil"),
        "nextCycleAt",
    }
    assert (inbox["name"], inbox["state"], inbox["items"]) == ("inbox", "ok", 1)
    words = box.run("poll", "status").out
    assert f"pid {poller.pid}" in words
    assert "inbox" in words


def _with_cycle(box: Box) -> dict[str, Any] | None:
    status: dict[str, Any] = box.run("poll", "status", "--json").json()
    return status if any((one["lastCycle"] or {}).get("items") for one in status["sources"]) else None


def test_events_when_there_is_no_log_then_1_and_never_an_empty_answer(box: Box) -> None:
    assert_said(box.run("events"), 1, str(box.root), "--state-root")
    assert box.once().code == 0
    assert box.run("events").code == 0
    (box.root / "logs" / "events.jsonl").unlink()
    (box.root / "logs" / "events.jsonl").mkdir()
    assert_said(box.run("events"), 1, str(box.root))


def test_events_when_asked_for_a_part_then_only_that_oldest_first(box: Box) -> None:
    box.item("a")
    assert box.once().code == 0
    everything = [json.loads(line) for line in box.run("events", "--json").out.splitlines()]
    polls = [json.loads(line) for line in box.run("events", "--json", "--source", "poll").out.splitlines()]

    assert [event["time"] for event in everything] == sorted(event["time"] for event in everything)
    assert {"time", "event", "level", "message"} <= set(everything[0])
    assert {event["event"].partition(".")[0] for event in polls} == {"poll"}
    assert {event["event"] for event in polls} >= {"poll.spawned", "poll.cycle"}
    middle = everything[1]["time"]
    since = [json.loads(line) for line in box.run("events", "--json", "--since", middle).out.splitlines()]
    assert since == [event for event in everything if event["time"] >= middle]
    assert box.run("events", "--json", "--since", "2h ago").out.splitlines()
    assert box.run("events", "--json", "--since", "2035-01-01").out == ""


@pytest.mark.slow
def test_events_when_followed_then_what_comes_is_shown_and_an_interrupt_ends_it(box: Box) -> None:
    box.item("a")
    assert box.once().code == 0
    with (box.folder / "followed").open("wb") as out:
        process = subprocess.Popen(box.argv("events", "--follow", "--json"), stdout=out, env=box.environ)
    try:
        followed = box.folder / "followed"
        wait_for(lambda: b"poll.spawned" in followed.read_bytes(), "what was there")
        box.comment("a", "c1")
        assert box.once().code == 0
        last = box.events()[-1]
        wait_for(lambda: json.dumps(last).encode() in followed.read_bytes(), "what came")
        process.send_signal(signal.SIGINT)
        assert process.wait(10) in (0, 130)
    finally:
        process.kill()
        process.wait()
    names = [json.loads(line)["event"] for line in followed.read_text().splitlines()]
    assert names == [event["event"] for event in box.events()]


def test_events_when_the_reader_goes_away_then_no_complaint(box: Box) -> None:
    box.item("a")
    assert box.once().code == 0
    argv = " ".join(f"'{part}'" for part in box.argv("events", "--json"))
    done = subprocess.run(
        ["bash", "-c", f"{argv} | true; exit ${{PIPESTATUS[0]}}"], capture_output=True, env=box.environ, check=False
    )

    assert done.stderr == b""


def test_ledger_when_a_poller_runs_then_reading_needs_no_answer_of_it(box: Box) -> None:
    ref = box.item("a")
    poller = box.start()
    box.wait(lambda: box.events("poll.spawned"), "the spawn")
    poller.signal(signal.SIGSTOP)

    assert ref in box.run("ledger", "list").out
    assert box.run("ledger", "show", ref).json()["ref"] == ref
    poller.signal(signal.SIGCONT)
    assert poller.stop() == 0


@pytest.mark.slow
def test_ledger_when_the_poller_does_not_answer_then_4_and_nothing_is_done_beside_it(box: Box) -> None:
    ref = box.item("a")
    poller = box.start()
    box.wait(lambda: box.events("poll.spawned"), "the spawn")
    poller.signal(signal.SIGSTOP)

    done = box.run("ledger", "reset", ref)

    assert_said(done, 4, str(box.root), "no answer", "asking again is safe")
    assert done.seconds < 20
    poller.signal(signal.SIGCONT)
    assert poller.stop() == 0


def test_ledger_when_an_event_gave_up_then_retry_delivers_it_and_settle_does_not(box: Box) -> None:
    box.configure(polling={"maxRetries": 2})
    ref = box.item("a")
    assert box.once().code == 0
    box.sink.behave(("*", {"code": 9}))
    for name in ("c1", "c2"):
        box.comment("a", name)
    for _ in range(5):
        box.once()
    assert box.sink.keys(ref) == ["spawn:1", *["comment:c1"] * 2, *["comment:c2"] * 2]
    assert box.run("poll", "status", "--json").json()["gaveUp"] == 2
    failed = box.events("poll.comment_failed")
    assert [(event["attempt"], event["willRetry"]) for event in failed] == [(1, True), (2, False)] * 2
    box.sink.behave()

    assert box.run("ledger", "settle", ref, "comment:c1").code == 0
    assert box.run("ledger", "retry", ref).code == 0
    assert box.once().code == 0

    assert box.sink.keys(ref)[-1] == "comment:c2"
    assert box.sink.keys(ref).count("comment:c1") == 2
    assert box.pending() == {}
    assert box.attempts() == {}


def test_ledger_when_reset_then_the_item_starts_over_with_the_next_number(box: Box) -> None:
    ref = box.item("a")
    assert box.once().code == 0
    assert box.run("ledger", "reset", ref).code == 0
    assert box.once().code == 0

    assert box.sink.keys(ref) == ["spawn:1", "spawn:2"]


def test_ledger_when_asked_for_what_is_not_there_then_1_and_named(box: Box) -> None:
    box.item("a")
    assert box.once().code == 0
    for arguments in (("show", "nothing:here"), ("retry", "nothing:here"), ("retry", "directory:inbox/a")):
        assert_said(box.run("ledger", *arguments), 1, arguments[1])
    assert_said(box.run("ledger", "settle", "directory:inbox/a", "17"), 1, "17", "comment:17")


def test_once_when_a_source_cannot_be_read_then_1_and_said_with_the_place(box: Box) -> None:
    missing = box.folder / "missing"
    box.configure(sources=[{"provider": "directory", "path": str(missing)}])

    assert_said(box.once(), 1, str(missing), "No such file")


def test_once_when_the_command_is_not_there_then_1_nothing_counted_and_delivered_once_it_is(box: Box) -> None:
    ref = box.item("a")
    box.configure(session={"command": [str(box.folder / "agent"), "x"]})
    assert_said(box.once(), 1, str(box.folder / "agent"), "not found")
    assert box.attempts() == {}
    assert box.sink.ids() == []

    box.configure()
    assert box.once().code == 0

    box.assert_once({ref: ["spawn:1"]})


def test_once_when_nobody_is_authorised_then_1_and_the_source_is_not_read(box: Box) -> None:
    box.item("a")
    box.configure(routing={"authorizedUsers": []})

    assert_said(box.once(), 1, "routing.authorizedUsers")
    assert box.ledgers() == {}
