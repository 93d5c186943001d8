"""Sessions in terminals, with the real poller, a real tmux and a program that keeps what is typed."""

from __future__ import annotations

import json
import os
import pty
import random
import select
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from support.poller import wait_for
from support.terminals import Terminals, unframed
from the_loop.core.model import clean
from the_loop.runners.pane import harmless

pytestmark = pytest.mark.slow

IS_FULL = bool(os.environ.get("THE_LOOP_FULL_SWEEP"))
HOSTILE = (
    "\x1b[201~\rtouch pwned\r",
    "\x1b[20\x1b[201~1~\rtouch pwned\r",
    "\x9b201~\r",
    "\x03\x15\x04\x1a",
    "\x01:kill-server\r",
    "do it;",
    ";",
    "-t other",
    "Enter",
    "C-c",
    "$(touch pwned) `touch pwned`",
    "#{session_name} #(touch pwned)",
    "   ",
    "a\r\nb\r\nc\r\n",
    "\ttab\tstop",
    "%1 $body ${thread} $$",
    "\u202egnp.exe\u2066 e\u0301 \U0001f989",
    "'\"\\\n{}[]|&",
)


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Terminals]:
    with Terminals(tmp_path) as box:
        yield box


def shown(body: str) -> str:
    """What of a text arrives: control characters by their pictures."""
    return harmless(clean(body))


def random_text(rng: random.Random, longest: int) -> str:
    parts: list[str] = []
    size = rng.choice((0, 1, 20, 300, 5_000, longest)) if longest > 300 else longest
    while sum(map(len, parts)) < size:
        parts.append(
            rng.choice(HOSTILE)
            if rng.random() < 0.3
            else chr(
                rng.choice(
                    (rng.randrange(0x20), rng.randrange(0x250), rng.randrange(0xD800), rng.randrange(0xE000, 0x110000))
                )
            )
        )
    return "".join(parts)


def test_item_when_met_has_a_session_that_is_told_of_each_event_in_order(box: Terminals) -> None:
    ref = box.item("a", "please")
    poller = box.start()
    box.wait_messages(1)
    for number in range(3):
        box.comment("a", f"c{number}", f"and {number}")

    messages = box.wait_messages(4)

    assert messages == [f"{ref}/spawn:1\nplease", *(f"{ref}/comment:c{number}\nand {number}" for number in range(3))]
    wait_for(lambda: box.option(ref, "@last-delivery") == f"{ref}/comment:c2#1", "the option")
    assert poller.stop() == 0
    assert box.pane(ref, "pane_dead") == "0"


@pytest.mark.timeout(900)
def test_messages_when_random_and_pollers_are_killed_arrive_once_whole_in_order_and_apart(box: Terminals) -> None:
    seed = int(os.environ.get("THE_LOOP_SEED", "7"))
    rng = random.Random(seed)
    print(f"seed {seed}")
    items, each = 8, 250 if IS_FULL else 4
    longest = 65_536 if IS_FULL else 9_000
    said = {f"i{n}": [random_text(rng, longest) for _ in range(each)] for n in range(items)}
    refs = {name: box.item(name, "begin") for name in said}
    poller = box.start()
    box.wait_messages(items)
    for number in range(each):
        for name, texts in said.items():
            box.comment(name, f"c{number:04}", texts[number].encode("utf-8", "surrogatepass"))
    while (count := len(box.raw())) < items * (each + 1):
        wait_for(lambda before=count: len(box.raw()) > before, "progress", 60)  # type: ignore[misc]
        time.sleep(rng.uniform(0.0, 0.4))  # into the next deliveries
        poller.signal(rng.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM)))
        poller.wait()
        poller = box.start()
    assert poller.stop() == 0

    sessions: dict[str, list[str]] = {}
    for path in sorted(box.got.glob("got.*")):
        sessions.setdefault(path.name.rpartition(".")[2], []).append(path.name)
    assert len(sessions) == items
    messages = [box.messages(int(pid)) for pid in sessions]
    wanted = {
        name: [f"{refs[name]}/spawn:1\nbegin"]
        + [shown(f"{refs[name]}/comment:c{number:04}\n{text}") for number, text in enumerate(texts)]
        for name, texts in said.items()
    }
    for one in messages:
        name = one[0].split("/")[1]
        assert [line[:80] for line in one] == [line[:80] for line in wanted[name]]
        assert one == wanted[name]
    assert not list(box.folder.rglob("pwned*"))


# --- not now ---


def deferred(box: Terminals, ref: str) -> str:
    """Why an event of this item waits for its terminal; empty if none does."""
    work = box.heartbeat().get("work") or []
    return next((one["reason"] for one in work if one["ref"] == ref and one["state"] == "deferred"), "")


def wait_deferred(box: Terminals, ref: str, reason: str) -> None:
    wait_for(lambda: reason in deferred(box, ref), f"it is deferred: {reason}")


def test_event_when_a_line_is_half_typed_waits_and_goes_through_once_it_is_gone(tmp_path: Path) -> None:
    with Terminals(tmp_path, "prompt") as box:
        ref = box.item("a", "please")
        poller = box.start()
        box.wait_messages(1)
        box.tmux("send-keys", "-l", "-t", box.pane(ref, "pane_id"), "half a li")
        box.comment("a", "c1", "and this")
        wait_deferred(box, ref, "half-typed")
        assert len(box.raw()) == 1

        box.tmux("send-keys", "-t", box.pane(ref, "pane_id"), "C-u")

        assert box.wait_messages(2)[1] == f"{ref}/comment:c1\nand this"
        wait_for(lambda: not deferred(box, ref), "nothing is deferred any more")
        assert box.attempts() == {}
        assert [event["reason"] for event in box.events("poll.deferred")] == ["there is a half-typed line"]
        assert poller.stop() == 0


def test_event_when_the_terminal_is_in_copy_mode_waits(box: Terminals) -> None:
    ref = box.item("a", "please")
    poller = box.start()
    box.wait_messages(1)
    box.tmux("copy-mode", "-t", box.pane(ref, "pane_id"))
    box.comment("a", "c1", "and this")
    wait_deferred(box, ref, "copy-mode")

    box.tmux("send-keys", "-X", "-t", box.pane(ref, "pane_id"), "cancel")

    assert box.wait_messages(2)[1] == f"{ref}/comment:c1\nand this"
    assert poller.stop() == 0


def test_event_when_a_shell_is_where_the_program_was_waits_for_the_program(tmp_path: Path) -> None:
    with Terminals(tmp_path) as box:
        program = " ".join(box.program("once"))
        command = ["/bin/bash", "--norc", "-c", f"{program}; PS1='$ ' exec /bin/bash --norc -i"]
        box.configure(session={**box.terminal(tmp_path, "framed"), "command": command})
        ref = box.item("a", "please")
        poller = box.start()
        box.wait_messages(1)
        box.comment("a", "c1", "touch pwned")
        wait_deferred(box, ref, "a shell")
        assert box.attempts() == {}

        box.tmux("send-keys", "-t", box.pane(ref, "pane_id"), " ".join(box.program("framed")), "Enter")

        assert box.wait_messages(2)[1] == f"{ref}/comment:c1\ntouch pwned"
        assert not list(tmp_path.rglob("pwned*"))
        assert poller.stop() == 0


def test_event_when_the_program_asks_waits_for_the_answer(tmp_path: Path) -> None:
    with Terminals(tmp_path, "prompt") as box:
        ref = box.item("a", "please")
        poller = box.start()
        box.wait_messages(1)
        tty = box.pane(ref, "pane_tty")
        Path(tty).write_text("\r\nDo you want to proceed?\r\n\u276f 1. Yes\r\n  2. No\r\n")
        box.comment("a", "c1", "and this")
        wait_deferred(box, ref, "it asks")

        Path(tty).write_text("\x1b[2J\x1b[H> ")

        assert box.wait_messages(2)[1] == f"{ref}/comment:c1\nand this"
        assert poller.stop() == 0


# --- ends and starts ---


def test_program_when_it_ended_is_started_again_and_told_what_came_before(box: Terminals) -> None:
    ref = box.item("a", "please")
    poller = box.start()
    box.wait_messages(1)
    box.comment("a", "c1", "first")
    box.wait_messages(2)
    wait_for(lambda: not box.pending(), "the receipt")
    os.kill(int(box.pane(ref, "pane_pid")), signal.SIGKILL)
    box.comment("a", "c2", "second")

    messages = box.wait_messages(4)

    assert messages[2].startswith(f"[the-loop] your session on {ref} was started again")
    assert "please" in messages[2]
    assert "first" in messages[2]
    assert "second" not in messages[2]
    assert messages[3] == f"{ref}/comment:c2\nsecond"
    assert poller.stop() == 0


def test_program_when_it_ends_at_once_is_started_three_times_and_then_held(tmp_path: Path) -> None:
    with Terminals(tmp_path) as box:
        count = tmp_path / "count"
        command = ["/bin/sh", "-c", f"echo >>{count}"]
        box.configure(session={**box.terminal(tmp_path, "framed"), "command": command})
        ref = box.item("a", "please")
        poller = box.start()

        wait_for(lambda: box.heartbeat().get("held") == 1, "it is held")

        assert len(count.read_text()) == 1 + 3
        [held] = box.events("session.held")
        assert (held["ref"], "3 times" in held["reason"]) == (ref, True)
        assert box.attempts() == {}
        box.configure(session=box.terminal(tmp_path, "framed"))
        poller.signal(signal.SIGHUP)
        wait_for(lambda: box.events("config.reloaded"), "the reload")
        assert box.run("ledger", "retry", ref).code == 0
        assert box.wait_messages(1) == [f"{ref}/spawn:1\nplease"]
        assert poller.stop() == 0


def test_session_when_its_item_ends_is_ended(box: Terminals) -> None:
    ref = box.item("a", "please")
    poller = box.start()
    box.wait_messages(1)
    pid = int(box.pane(ref, "pane_pid"))

    (box.inbox / "a").rename(box.folder / "gone")

    wait_for(lambda: not Path(f"/proc/{pid}").exists(), "its program ends")
    wait_for(lambda: box.events("session.closed"), "the end of the item")
    assert box.tmux("list-sessions") == ""
    assert list((box.root / "local" / "sessions").iterdir()) == []
    assert poller.stop() == 0


def test_server_when_it_is_stopped_is_no_reason_to_type_twice(box: Terminals) -> None:
    ref = box.item("a", "please")
    poller = box.start()
    box.wait_messages(1)
    wait_for(lambda: not box.pending(), "the receipt")
    server = int(box.tmux("display-message", "-p", "#{pid}"))
    os.kill(server, signal.SIGSTOP)
    try:
        box.comment("a", "c1", "and this")
        wait_for(box.pending, "the comment is accepted")
        time.sleep(1.0)
        poller.kill()
        poller = box.start()
        time.sleep(1.0)
    finally:
        os.kill(server, signal.SIGCONT)

    assert box.wait_messages(2)[1] == f"{ref}/comment:c1\nand this"
    wait_for(lambda: not box.pending(), "the receipt")
    assert len(box.raw()) == 2
    assert poller.stop() == 0


# --- apart ---


def test_items_when_their_names_are_alike_have_sessions_of_their_own(box: Terminals) -> None:
    names = ["1", "10", "web.site", "web_site", "web:site", "-t", "=1", "$1", "%1", "@1", "a b", "#{pid}"]
    refs = {name: box.item(name, name).replace("%", "%25").replace("#", "%23") for name in names}
    poller = box.start()
    spawns = {f"{ref}/spawn:1\n{name}" for name, ref in refs.items()}
    assert set(box.wait_messages(len(names))) == spawns
    for name in names:
        box.comment(name, "c1", f"to {name}")
    box.wait_messages(2 * len(names))

    for path in box.got.glob("got.*"):
        first, *more = box.messages(int(path.name.rpartition(".")[2]))
        name = first.split("\n", 1)[1]
        assert more == [f"{refs[name]}/comment:c1\nto {name}"]
    assert poller.stop() == 0


def test_roots_when_they_have_the_same_item_have_servers_of_their_own(tmp_path: Path) -> None:
    with Terminals(tmp_path / "one") as one, Terminals(tmp_path / "two") as two:
        pollers = []
        for box in (one, two):
            box.item("a", box.folder.name)
            pollers.append(box.start())
        for box in (one, two):
            assert box.wait_messages(1) == [f"directory:inbox/a/spawn:1\n{box.folder.name}"]
        assert one.socket != two.socket
        assert [poller.stop() for poller in pollers] == [0, 0]


def test_environment_when_the_poller_has_secrets_has_none_of_them(box: Terminals) -> None:
    secrets = {"GITHUB_TOKEN": "s3cret", "ODD": "s3cret", "TMUX": "/tmp/x,1,0"}
    ref = box.item("a", "please")
    poller = box.start(env={**box.environ, **secrets})
    box.wait_messages(1)

    pids = [box.pane(ref, "pid"), box.pane(ref, "pane_pid")]
    environments = [Path(f"/proc/{pid}/environ").read_bytes() for pid in pids]

    assert not any(b"s3cret" in one for one in environments)
    assert b"THE_LOOP_MARK=<!-- the-loop -->" in environments[1].split(b"\0")
    assert "s3cret" not in box.tmux("show-environment", "-g")
    assert poller.stop() == 0


# --- programs of other kinds ---


@pytest.mark.parametrize("body", ["one line", "a\r\nb\r\nc", "\n".join(map(str, range(300)))])
def test_text_when_the_program_takes_a_fast_enter_for_text_is_one_message(tmp_path: Path, body: str) -> None:
    with Terminals(tmp_path, "burst") as box:
        ref = box.item("a", body)
        poller = box.start()

        assert box.wait_messages(1) == [f"{ref}/spawn:1\n{body}"]

        assert poller.stop() == 0


def test_text_when_the_program_takes_no_pastes_is_one_message_without_carriage_returns(tmp_path: Path) -> None:
    with Terminals(tmp_path, "plain") as box:
        ref = box.item("a", "a\r\nb\rc\n\x1b[201~d")
        poller = box.start()

        wait_for(box.raw, "a message")

        assert box.raw() == [f"{ref}/spawn:1\na\nb\nc\n\u241b[201~d".encode()]
        assert poller.stop() == 0


def test_text_when_the_program_reads_lines_is_one_line_or_a_file(tmp_path: Path) -> None:
    with Terminals(tmp_path) as box:
        script = f"while IFS= read -r line; do printf '%s\\n' \"$line\" >>{tmp_path}/lines; done"
        session = {**box.terminal(tmp_path, "framed"), "command": ["/bin/sh", "-c", script], "commentPrompt": "$body"}
        box.configure(session=session)
        ref = box.item("a", "x" * 6_000)
        poller = box.start()
        wait_for((tmp_path / "lines").exists, "a line")
        lines = wait_for((tmp_path / "lines").read_text, "its text")
        box.comment("a", "c1", "do it;")
        wait_for(lambda: (tmp_path / "lines").read_text().count("\n") == 2, "another line")

        assert lines.startswith(f"{ref}/spawn:1 (the whole text is in /")
        path = Path(lines.rpartition(" in ")[2].rstrip(")\n"))
        assert path.read_text() == f"{ref}/spawn:1\n" + "x" * 6_000
        assert (tmp_path / "lines").read_text().splitlines()[1] == "do it;"
        assert poller.stop() == 0


# --- people ---


class Person:
    """Somebody at a terminal of their own, who attached to a session."""

    def __init__(self, argv: list[str], environ: Mapping[str, str]) -> None:
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            os.execvpe(argv[0], argv, {**environ, "TERM": "xterm"})
        self.seen = b""

    def sees(self, text: str) -> bool:
        while select.select([self.terminal], [], [], 0.05)[0]:
            try:
                self.seen += os.read(self.terminal, 65536)
            except OSError:
                break
        return text.encode() in self.seen

    def types(self, keys: bytes) -> None:
        os.write(self.terminal, keys)

    def leave(self) -> None:
        os.close(self.terminal)
        os.waitpid(self.pid, 0)


def sessions_of(box: Terminals) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(box.run("sessions", "list", "--json").out)
    return found


def test_sessions_when_listed_tell_what_they_work_on_and_whether_they_live(box: Terminals) -> None:
    assert box.run("sessions").out == "no sessions\n"
    ref = box.item("a", "please")
    poller = box.start()
    box.wait_messages(1)
    wait_for(lambda: not box.pending(), "the receipt")

    [one] = sessions_of(box)
    assert (one["ref"], one["runner"], one["title"], one["unit"]) == (ref, "tmux", "a", None)
    assert (one["alive"], one["attached"], one["lastDelivery"]) == (True, 0, f"{ref}/spawn:1")
    page = box.run("sessions").out
    assert f"{ref}  alive" in page
    server = int(box.tmux("display-message", "-p", "#{pid}"))
    os.kill(server, signal.SIGSTOP)
    try:
        [one] = sessions_of(box)
    finally:
        os.kill(server, signal.SIGCONT)
    assert (one["alive"], one["attached"]) == (None, None)
    os.kill(int(box.pane(ref, "pane_pid")), signal.SIGKILL)
    wait_for(lambda: sessions_of(box)[0]["alive"] is False, "its end")
    assert poller.stop() == 0


def test_person_when_attached_sees_the_session_and_types_undisturbed(tmp_path: Path) -> None:
    with Terminals(tmp_path, "prompt") as box:
        ref = box.item("a", "please")
        poller = box.start()
        box.wait_messages(1)
        wait_for(lambda: not box.pending(), "the receipt")
        person = Person(box.argv("sessions", "attach", ref), {**box.environ, "TMUX": "/x,1,1"})
        wait_for(lambda: person.sees("> "), "the session is shown")
        assert sessions_of(box)[0]["attached"] == 1
        person.types(b"half a li")
        box.comment("a", "c1", "and this")
        wait_for(lambda: deferred(box, ref), "it is deferred")
        assert len(box.raw()) == 1

        person.types(b"ne\r")
        wait_for(lambda: len(box.raw()) == 3, "both")
        assert box.raw()[1] == b"half a line"
        assert unframed(box.raw()[2]) == f"{ref}/comment:c1\nand this"

        person.leave()
        assert box.pane(ref, "pane_dead") == "0"
        assert poller.stop() == 0


def test_person_when_attached_read_only_types_nothing(tmp_path: Path) -> None:
    with Terminals(tmp_path, "prompt") as box:
        ref = box.item("a", "please")
        poller = box.start()
        box.wait_messages(1)
        person = Person(box.argv("sessions", "attach", "--read-only", ref), box.environ)
        wait_for(lambda: person.sees("> "), "the session is shown")
        person.types(b"this is not typed\r")
        time.sleep(0.3)
        box.comment("a", "c1", "and this")

        assert box.wait_messages(2)[1] == f"{ref}/comment:c1\nand this"
        person.leave()
        assert poller.stop() == 0


@pytest.mark.parametrize("is_running", [True, False])
def test_session_when_closed_by_a_person_is_started_again_by_the_next_event(box: Terminals, is_running: bool) -> None:
    ref = box.item("a", "please")
    poller = box.start()
    box.wait_messages(1)
    wait_for(lambda: not box.pending(), "the receipt")
    pid = int(box.pane(ref, "pane_pid"))
    if not is_running:
        assert poller.stop() == 0

    assert box.run("sessions", "close", ref).code == 0

    assert not Path(f"/proc/{pid}").exists()
    assert sessions_of(box) == []
    again = box.run("sessions", "close", ref)
    assert (again.code, "it has none" in again.err) == (1, True)
    if not is_running:
        poller = box.start()
    box.comment("a", "c1", "and this")
    messages = box.wait_messages(3)
    assert "please" in messages[1]
    assert messages[2] == f"{ref}/comment:c1\nand this"
    assert poller.stop() == 0


def test_event_when_a_person_insists_is_typed_whatever_is_in_its_way(box: Terminals) -> None:
    ref = box.item("a", "please")
    poller = box.start()
    box.wait_messages(1)
    wait_for(lambda: not box.pending(), "the receipt")
    assert box.run("sessions", "deliver", ref).code == 1
    box.tmux("copy-mode", "-t", box.pane(ref, "pane_id"))
    box.comment("a", "c1", "and this")
    wait_deferred(box, ref, "copy-mode")

    assert box.run("sessions", "deliver", ref).out == f"to be delivered: {ref}/comment:c1\n"

    assert box.wait_messages(2)[1] == f"{ref}/comment:c1\nand this"
    assert poller.stop() == 0
