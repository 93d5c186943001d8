"""Commands that ask a running poller: real processes on both ends of `control.sock`."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.control import answer_on, connect, line
from support.poller import Box, Started

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

HOURLY: Mapping[str, Any] = {"intervalSeconds": 3600}
TWO = [{"provider": "directory", "path": name, "name": name, "settleSeconds": 0} for name in ("inbox", "outbox")]


def control(box: Box) -> Path:
    return box.root / "control.sock"


def serving(box: Box, **options: Any) -> Started:
    """A poller that answers already: it says that it started when it has the lock."""
    poller = box.start(**options)
    box.wait(control(box).exists, "the control socket")
    return poller


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def sources(box: Box) -> list[dict[str, Any]]:
    shown: list[dict[str, Any]] = box.run("poll", "status", "--json").json()["sources"]
    return shown or [{"state": "new"}]


def options(box: Box) -> str:
    return f"--config {box.config} --state-root {box.root}"


def give_up(box: Box, *names: str) -> str:
    """Item `a`, live, of which these comments were given up under a running poller that is not woken by itself."""
    box.configure(polling={**HOURLY, "maxRetries": 1})
    ref = box.item("a")
    box.start()
    box.wait(lambda: "spawn:1" in box.sink.keys(ref) and not box.pending(), "the spawn")
    box.sink.behave(*((f"*/comment:{name}", {"code": 9}) for name in names))
    for name in names:
        box.comment("a", name)
    assert box.run("poll", "wake").code == 0
    box.wait(lambda: len(box.events("poll.comment_failed")) == len(names), "the rejections")
    box.sink.behave()
    return ref


# --- wake ---


def test_wake_when_it_names_a_source_then_only_that_one_is_polled(tmp_path: Path) -> None:
    with Box(tmp_path, sources=TWO, polling=HOURLY) as box:
        other = box.root / "outbox"
        other.mkdir(mode=0o700)
        box.start()
        box.wait(lambda: {one["state"] for one in sources(box)} == {"ok"}, "the first cycles")
        beside = other / "b"
        beside.mkdir()
        (beside / "item.md").write_text("please")
        ref = box.item("a")

        assert box.run("poll", "wake", "inbox").code == 0
        box.wait(lambda: box.sink.ids() and not box.pending(), "the item of the source that was woken")
        box.item("c")
        assert box.run("poll", "wake", "inbox").code == 0
        box.wait(lambda: len(box.sink.ids()) == 2, "one more cycle of it")

        assert box.sink.ids() == [f"{ref}/spawn:1", "directory:inbox/c/spawn:1"]
        done = box.run("poll", "wake")
        assert (done.code, done.err) == (0, "the-loop: wake-up accepted\n")
        box.wait(lambda: len(box.sink.ids()) == 3, "the item of the other one")


def test_wake_when_there_is_no_such_source_then_2_and_the_names_of_those_there_are(box: Box) -> None:
    box.start()

    done = box.run("poll", "wake", "nowhere")

    assert done.code == 2
    assert "'nowhere'" in done.err
    assert "'inbox'" in done.err


def test_wake_when_nothing_runs_then_3_and_soon(box: Box) -> None:
    box.start().kill()  # leaves both sockets behind

    for arguments in ((), ("inbox",)):
        done = box.run("poll", "wake", *arguments)
        assert done.code == 3
        assert "no poller is running" in done.err
        assert done.seconds < 8


def test_wake_when_the_poller_is_just_starting_then_is_accepted_once_it_serves(box: Box) -> None:
    box.configure(polling=HOURLY)
    ref = box.item("a")
    for _ in range(3):
        poller = box.start()

        assert box.run("poll", "wake", "inbox").code == 0

        assert poller.stop() == 0
    box.assert_once({ref: ["spawn:1"]})


# --- retry, settle, reset ---


def test_retry_when_a_poller_runs_then_the_event_is_delivered_at_once_without_a_restart(box: Box) -> None:
    ref = give_up(box, "c1", "c2")

    done = box.run("ledger", "retry", ref, "comment:c2")

    assert (done.code, done.out) == (0, f"to be retried: {ref}/comment:c2\n")
    box.wait(lambda: box.sink.keys(ref).count("comment:c2") == 2, "the event")
    box.wait(lambda: box.run("poll", "status", "--json").json()["gaveUp"] == 1, "the status to show it")
    assert box.run("ledger", "retry", ref).code == 0
    box.wait(lambda: box.sink.keys(ref).count("comment:c1") == 2 and not box.pending(), "the other event")
    assert [event["deliveryId"] for event in box.events("poll.rearmed")] == [f"{ref}/comment:c2", f"{ref}/comment:c1"]
    assert len(box.events("poller.started")) == 1


def test_settle_when_a_poller_runs_then_the_event_never_comes_again(box: Box) -> None:
    ref = give_up(box, "c1", "c2")

    for _ in range(2):
        done = box.run("ledger", "settle", ref, "comment:c1")
        assert (done.code, done.out) == (0, f"settled: {ref}/comment:c1\n")
    assert box.run("ledger", "retry", ref).code == 0

    box.wait(lambda: box.sink.keys(ref).count("comment:c2") == 2 and not box.pending(), "the other event")
    assert box.sink.keys(ref).count("comment:c1") == 1


def test_reset_when_a_poller_runs_then_the_item_starts_over_at_once(box: Box) -> None:
    ref = give_up(box, "c1")

    assert box.run("ledger", "reset", ref).code == 0

    box.wait(lambda: box.sink.keys(ref)[-1] == "spawn:2" and not box.pending(), "the second start")
    assert box.sink.got()[-1].thread == ("comment:c1",)
    box.wait(lambda: not list((box.root / "local" / "deliveries").iterdir()), "the removal of its files")


def test_decision_when_the_event_runs_then_1_also_without_a_poller_and_it_counts_when_it_ends(box: Box) -> None:
    ref = box.item("a")
    box.sink.behave(("*", {"gate": box.sink.gate("open")}))
    poller = box.start()
    box.wait(box.keeper, "the delivery")

    for is_alone in (False, True):
        if is_alone:
            poller.kill()
        for arguments in (("settle", ref, "spawn:1"), ("reset", ref)):
            done = box.run("ledger", *arguments)
            assert done.code == 1
            assert f"'{ref}': the delivery of" in done.err
            assert "runs right now" in done.err

    box.sink.open_gate("open")
    assert box.once().code == 0
    box.assert_once({ref: ["spawn:1"]})
    assert box.pending() == {}


def test_decision_when_it_is_refused_then_says_the_same_with_and_without_a_poller(box: Box) -> None:
    ref = box.item("a")
    assert box.once().code == 0
    asked = [
        ("retry", ref),
        ("retry", ref, "comment:9"),
        ("retry", "nothing:here"),
        ("settle", ref, "17"),
        ("settle", ref, "comment:9"),
        ("reset", "nothing:here"),
    ]
    alone = [box.run("ledger", *arguments) for arguments in asked]
    box.start()

    beside = [box.run("ledger", *arguments) for arguments in asked]

    assert [(done.code, done.err) for done in beside] == [(done.code, done.err) for done in alone]
    assert {done.code for done in alone} == {1}
    suggested = [done.err for done in alone if "`the-loop" in done.err]
    assert len(suggested) == 5
    assert all(f"`the-loop {options(box)} ledger" in text for text in suggested)


def test_decision_when_the_poller_makes_a_single_run_then_it_is_carried_out_in_it(box: Box) -> None:
    box.configure(polling={"maxRetries": 1})
    ref = box.item("a")
    assert box.once().code == 0
    box.comment("a", "c1")
    box.sink.behave(("*", {"code": 9}))
    box.once()
    box.item("b")
    box.sink.behave(("*/b/*", {"gate": box.sink.gate("open")}))
    run = box.start("--once")
    box.wait(box.keeper, "the other item's delivery")

    assert box.run("ledger", "retry", ref).code == 0

    box.wait(lambda: box.sink.keys(ref).count("comment:c1") == 2, "the event")
    box.sink.open_gate("open")
    assert run.wait() == 0
    assert box.pending() == {}


@pytest.mark.slow
def test_decision_when_the_poller_cannot_listen_then_75_and_it_says_so(box: Box) -> None:
    control(box).mkdir()
    ref = box.item("a")
    poller = box.start()
    box.wait(box.sink.ids, "a delivery all the same")
    assert "commands cannot ask this poller" in poller.err

    done = box.run("ledger", "retry", ref)

    assert done.code == 75
    assert f"pid {poller.pid}" in done.err
    assert box.run("poll", "wake").code == 0, "over the socket for datagrams"


@pytest.mark.slow
def test_wake_when_the_poller_makes_a_single_run_then_3_as_no_cycle_follows(box: Box) -> None:
    box.item("a")
    box.sink.behave(("*", {"gate": box.sink.gate("open")}))
    run = box.start("--once")

    done = box.run("poll", "wake")

    assert done.code == 3
    assert "--once" in done.err
    box.sink.open_gate("open")
    assert run.wait() == 0


# --- the socket ---


def test_socket_when_a_poller_runs_then_is_0600_whatever_the_umask_and_gone_after_a_stop(box: Box) -> None:
    for umask in ("0", "777"):
        poller = serving(box, before=["sh", "-c", f'umask {umask}; exec "$@"', "sh"])
        box.wait(lambda: mode(control(box)) != 0, "its mode, which a umask of 777 takes for a moment")
        assert mode(control(box)) == 0o600
        assert poller.stop() == 0
        assert not control(box).exists()


def test_socket_when_the_poller_was_killed_then_commands_do_it_themselves_and_the_next_start_serves(box: Box) -> None:
    ref = box.item("a")
    poller = box.start()
    box.wait(lambda: box.sink.ids() and not box.pending(), "the spawn")
    poller.kill()
    assert stat.S_ISSOCK(control(box).lstat().st_mode)

    done = box.run("ledger", "reset", ref)

    assert done.code == 0
    assert done.seconds < 5
    poller = box.start()
    box.wait(lambda: box.sink.keys(ref) == ["spawn:1", "spawn:2"] and not box.pending(), "the second start")
    assert box.run("ledger", "settle", ref, "spawn:2").code == 0
    assert poller.stop() == 0


def test_socket_when_the_poller_is_executed_again_then_the_new_one_serves(box: Box) -> None:
    poller = box.start()
    assert box.run("poll", "restart").code == 0

    assert box.run("poll", "wake", "inbox").code == 0
    assert poller.stop() == 0
    assert not control(box).exists()


@contextlib.contextmanager
def hanging(box: Box, count: int = 20) -> Iterator[list[socket.socket]]:
    """Peers that hang: before a word, in the middle of one, and more of them than are served at once."""
    with contextlib.ExitStack() as stack:
        peers = [stack.enter_context(connect(control(box))) for _ in range(count)]
        for peer in peers[::2]:
            peer.sendall(b'{"verb": "wa')
        yield peers


def test_stop_when_peers_hang_then_is_as_quick_as_ever_and_they_are_cut_off(box: Box) -> None:
    poller = serving(box)
    with hanging(box) as peers:
        began = time.monotonic()

        assert poller.stop() == 0

        assert time.monotonic() - began < 3
        assert [answer_on(peer) for peer in peers] == [None] * len(peers)


def test_peers_when_they_send_garbage_then_the_poller_delivers_and_answers_as_ever(box: Box) -> None:
    ref = box.item("a")
    poller = serving(box)
    for content in (b"", b"\n", b"\0" * 70_000, b"[" * 60_000 + b"\n", b'{"verb": {}}\n', b'{"verb": "reset"}\n'):
        with connect(control(box)) as peer, contextlib.suppress(BrokenPipeError, ConnectionResetError):
            peer.sendall(content)
            peer.shutdown(socket.SHUT_WR)
            assert "error" in answer_on(peer)

    assert box.run("poll", "wake", "inbox").code == 0
    box.wait(lambda: box.sink.ids() and not box.pending(), "the spawn")
    assert poller.stop() == 0
    box.assert_once({ref: ["spawn:1"]})


def test_socket_when_a_tool_of_a_person_asks_then_is_answered_on_one_line(box: Box) -> None:
    serving(box)
    with connect(control(box)) as peer:
        peer.sendall(line(verb="wake", source="inbox"))

        assert answer_on(peer) == {"woken": ["inbox"]}


def test_root_when_its_path_is_very_long_then_commands_reach_the_poller(tmp_path: Path) -> None:
    with Box(tmp_path.joinpath(*["a-rather-long-name-of-a-directory"] * 6)) as box:
        assert len(str(control(box))) > 200
        ref = box.item("a")
        poller = box.start()
        box.wait(lambda: box.sink.ids() and not box.pending(), "the spawn")

        assert box.run("poll", "wake", "inbox").code == 0
        assert box.run("ledger", "reset", ref).code == 0

        box.wait(lambda: box.sink.keys(ref) == ["spawn:1", "spawn:2"] and not box.pending(), "the second start")
        assert poller.stop() == 0
        assert not control(box).exists()


def test_runtime_directory_when_it_is_set_then_the_socket_is_there_and_found_by_the_record(box: Box) -> None:
    runtime = box.folder / "runtime"
    runtime.mkdir(mode=0o755)
    ref = box.item("a")
    poller = box.start(env={"RUNTIME_DIRECTORY": str(runtime)})
    box.wait(lambda: box.sink.ids() and not box.pending(), "the spawn")
    record = json.loads((box.root / "local" / "unit.json").read_bytes())

    assert record["control"] == str(runtime / "control.sock")
    assert stat.S_IMODE(os.lstat(record["control"]).st_mode) == 0o600
    assert not control(box).exists()
    assert box.run("ledger", "reset", ref).code == 0
    box.wait(lambda: box.sink.keys(ref) == ["spawn:1", "spawn:2"] and not box.pending(), "the second start")
    assert poller.stop() == 0
    assert not Path(record["control"]).exists()
    assert box.run("ledger", "reset", ref).code == 0, "by the command itself"
