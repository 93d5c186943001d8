"""Signals: a reload takes a whole new configuration or keeps the old one, and no order of signals breaks a stop."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from support.github.fake import FakeGitHub
from support.http_server import FakeServer
from support.poller import Box, Started, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.slow

RUNS = 200 if os.environ.get("THE_LOOP_FULL_SWEEP") else 15
SEED = int(os.environ.get("THE_LOOP_SEED") or random.randrange(10**6))


def blocks(pid: int, number: int) -> bool:
    return _in_set(pid, "SigBlk:", number)


def _in_set(pid: int, name: str, number: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    return bool(int(status.partition(name)[2].split()[0], 16) >> (number - 1) & 1)


def has_got(box: Box, ref: str, key: str) -> bool:
    return key in box.sink.keys(ref)


def reload(box: Box, poller: Started, answer: str) -> dict[str, Any]:
    """Send SIGHUP; the event that answers it."""
    before = len(box.events(answer))
    poller.signal(signal.SIGHUP)
    box.wait(lambda: len(box.events(answer)) > before, answer)
    return box.events(answer)[-1]


BROKEN: dict[str, Callable[[str], str] | None] = {
    "not-yaml": lambda text: text.replace("sources:", "sources: ["),
    "empty": lambda _: "",
    "half": lambda text: text[: len(text) // 2],
    "misspelt": lambda text: text.replace("routing:", "rooting:"),
    "no-sources": lambda _: "polling: {sources: []}",
    "garbage": lambda _: "\x00\x01 \ud7ff",
    "gone": None,
}


def test_reload_when_the_file_is_broken_then_the_old_one_stays_in_force_and_that_is_said(box: Box) -> None:
    ref = box.item("a")
    poller = box.start()
    box.wait(lambda: box.events("poll.spawned"), "the spawn")
    good = box.config.read_text()
    for kind, breaks in BROKEN.items():
        if breaks is None:
            box.config.unlink()
        else:
            box.write_config(breaks(good))
        event = reload(box, poller, "config.rejected")
        assert event["level"] == "error", kind
        assert str(box.config) in event["reason"]
        assert poller.err.count("config.rejected") == len(box.events("config.rejected"))
        box.comment("a", kind)
        box.wait(partial(has_got, box, ref, f"comment:{kind}"), f"a comment after {kind}")
        assert box.run("poll", "status", "--json").json()["sources"][0]["name"] == "inbox"
        assert box.run("events", "--json").code == 0
    box.write_config(good)
    reload(box, poller, "config.reloaded")
    box.comment("a", "last")
    box.wait(lambda: "comment:last" in box.sink.keys(ref) and not box.pending(), "a comment under the new one")
    box.write_config("polling: [")
    assert box.run("poll", "stop").code == 0
    assert poller.wait() == 0
    box.assert_once({ref: ["spawn:1", *(f"comment:{kind}" for kind in BROKEN), "comment:last"]})


def test_stop_and_status_when_the_configuration_with_the_root_is_wrong_then_they_find_the_poller(box: Box) -> None:
    poller = box.start()
    whole = yaml.safe_load(box.config.read_text()) | {"state": {"root": str(box.root)}}
    wrong = {
        "schema": yaml.safe_dump(whole | {"rooting": {}, "polling": {"sources": 7}}),
        "half": yaml.safe_dump({"state": whole["state"]}) + "polling: {sources: [",
    }
    for text in wrong.values():
        box.write_config(text)
        arguments = ["--config", str(box.config)]
        status = _without_root(box, *arguments, "poll", "status")
        assert status == 0, "a poller runs on the root that the file names"
    assert _without_root(box, "--config", str(box.config), "poll", "stop") == 0
    assert poller.wait(1) == 0


def _without_root(box: Box, *arguments: str) -> int:
    """The exit code of a command that is told no state root."""
    whole = box.argv(*arguments)
    place = whole.index("--config")
    kept = whole[:place] + whole[place + 4 :]
    return subprocess.run(kept, env=box.environ, capture_output=True, timeout=60, check=False).returncode


def test_reload_when_interval_and_sources_change_then_nothing_is_skipped_or_replayed(box: Box) -> None:
    first = box.item("a")
    box.configure(polling={"intervalSeconds": 600})
    poller = box.start()
    box.wait(lambda: box.events("poll.spawned"), "the spawn")
    second = box.folder / "second"
    (second / "b").mkdir(parents=True)
    (second / "b" / "item.md").write_text("please")
    box.comment("a", "c1")
    sources = [{"provider": "directory", "path": path, "settleSeconds": 0} for path in ("inbox", str(second))]

    box.configure(polling={"intervalSeconds": 1}, sources=sources)
    reload(box, poller, "config.reloaded")

    box.wait(lambda: len(box.sink.ids()) >= 3 and not box.pending(), "the comment and the new source")
    box.comment("a", "c2")
    box.wait(lambda: "comment:c2" in box.sink.keys(first) and not box.pending(), "one more comment")
    box.assert_once({first: ["spawn:1", "comment:c1", "comment:c2"], "directory:second/b": ["spawn:1"]})


def test_user_when_taken_off_the_list_then_not_served_from_the_reload_on(box: Box) -> None:
    github = FakeGitHub(time.time)
    github.add_repo("octo/repo")
    number = github.add_issue("octo/repo", author="alice", labels=["auto"])
    with FakeServer(github) as server:
        source = {"provider": "github", "repos": ["octo/repo"], "label": "auto", "apiUrl": server.url}
        box.configure(sources=[source], routing={"authorizedUsers": ["alice", "bob"]})
        poller = box.start()
        box.wait(lambda: box.events("poll.spawned"), "the spawn")
        first = github.comment("octo/repo", number, "bob")
        box.wait(lambda: len(box.sink.ids()) == 2 and not box.pending(), "bob, while he is on the list")
        box.sink.behave(("*", {"gate": box.sink.gate("open")}))
        running = github.comment("octo/repo", number, "alice")
        box.wait(lambda: len(box.sink.ids()) == 3, "a delivery that keeps the item busy")
        github.comment("octo/repo", number, "bob", "accepted, not handed over")
        box.wait(lambda: len(box.pending()) == 2, "bob's comment to be accepted")

        box.configure(sources=[source], routing={"authorizedUsers": ["alice"]})
        reload(box, poller, "config.reloaded")

        github.comment("octo/repo", number, None, "from a deleted account")
        github.comment("octo/repo", number, "bob", "after the reload")
        last = github.comment("octo/repo", number, "Alice", "logins have no case")
        box.sink.open_gate("open")
        box.wait(lambda: len(box.sink.ids()) >= 4 and not box.pending(), "alice")
        poller.stop()
    ref = f"github:127.0.0.1/octo/repo#{number}"
    box.assert_once({ref: ["spawn:1", f"comment:{first}", f"comment:{running}", f"comment:{last}"]})


def test_hangup_when_sent_from_the_first_moment_on_then_it_starts_all_the_same(box: Box) -> None:
    ref = box.item("a")
    poller = box.start(is_up=False)
    wait_for(lambda: blocks(poller.pid, signal.SIGHUP) or not poller.is_alive, "the program to be in charge", 10)
    while "poller.started" not in poller.err:
        assert poller.is_alive, "a hang-up ended it"
        poller.signal(signal.SIGHUP)
        time.sleep(0.002)  # a pause between two signals, not a wait for anything
    box.wait(lambda: box.sink.ids() and not box.pending(), "the spawn")
    assert poller.stop() == 0
    box.assert_once({ref: ["spawn:1"]})


@pytest.mark.timeout(120 + 3 * RUNS)
def test_signals_when_they_come_in_any_order_at_any_moment_then_it_leaves_in_order(box: Box) -> None:
    print(f"THE_LOOP_SEED={SEED}")
    rng = random.Random(SEED)
    refs = {}
    for number in range(RUNS):
        refs[box.item(f"item-{number}")] = ["spawn:1"]
        if number:
            box.comment(f"item-{number - 1}", "c")
            refs[f"directory:inbox/item-{number - 1}"].append("comment:c")
        poller = box.start(is_up=False)
        wait_for(partial(_in_set, poller.pid, "SigCgt:", signal.SIGTERM), "its handlers")
        time.sleep(rng.uniform(0, 0.15))  # the moment is what is tried here
        for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGTERM"):
            if poller.is_alive:
                poller.signal(signal.Signals[name])
            time.sleep(rng.uniform(0, 0.012))
        assert poller.wait(5) == 0, poller.err
    assert box.once().code == 0
    assert box.once().code == 0

    arrived = {ref: sorted(keys) for ref, keys in box.sink.entries().items()}
    assert arrived == {ref: sorted(keys, reverse=True)[::-1] for ref, keys in refs.items()}
    assert not [got for got in box.sink.got() if got.redelivery or got.attempt != 1]
    assert box.attempts() == {}
    assert box.pending() == {}
