"""`poll status`: what its page says of a poller, on any width, and what it does not."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from the_loop import __version__
from the_loop.cli import page as page_module
from the_loop.cli.page import rows
from the_loop.cli.status import WATCH_S, Seen, exit_code, page, report_of
from the_loop.core.model import timestamp
from the_loop.lock import Probe, Sight
from the_loop.processes import Identity
from the_loop.state import StateRoot

NOW: Final = 1769860812.0  # 2026-01-31T12:00:12Z
DOCS: Final = Path(__file__).parents[2] / "docs" / "usage" / "commands.md"
HELD: Final = Sight(Probe.HELD, Identity(4711, 99))


@pytest.fixture(autouse=True)
def _utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def at(seconds: float) -> str:
    return timestamp(NOW + seconds)


def source(name: str, provider: str, **fields: Any) -> dict[str, Any]:
    last = {"startedAt": at(-12), "seconds": 0.4, "items": 3, "delivered": 1, "errors": 0, "interrupted": False}
    known = {"state": "ok", "items": 3, "waiting": 0, "owed": 0, "lastGoodAt": at(-12), "error": None}
    return {"name": name, "provider": provider, **known, "lastCycle": last, "nextCycleAt": at(48), **fields}


def work(key: str, state: str, **fields: Any) -> dict[str, Any]:
    ref = f"github:octo/repo#{key.partition('/')[0]}"
    return {"ref": ref, "deliveryId": f"github:octo/repo#{key}", "state": state, **fields}


def busy() -> dict[str, Any]:
    """A heartbeat with everything in it."""
    ref = "github:octo/repo#18"
    behind = {"reason": "behind spawn:1"}
    retry = f"the-loop ledger retry '{ref}'"
    return {
        "version": __version__,
        "pid": 4711,
        "starttime": 99,
        "since": at(-11_520),
        "configuration": "/home/alice/.config/the-loop/config.yaml",
        "lastGoodCycleAt": at(-2700),
        "sources": [
            source("work", "github", items=6, waiting=1),
            source(
                *("inbox", "directory"),
                state="failing",
                lastGoodAt=at(-2700),
                error="cannot read '/srv/inbox': Permission denied",
                nextCycleAt=at(180),
            ),
        ],
        "pending": 4,
        "uncertain": 0,
        "held": 1,
        "gaveUp": 1,
        "work": [
            work("15/spawn:1", "running", since=at(-754), unit="theloop-0c1d2e3f4a5b-6c7d8e9fa0b1-1.service"),
            work("15/comment:99", "waiting", **behind),
            work("15/comment:100", "waiting", **behind),
            work("16/comment:7", "deferred", until=at(240), reason="exit status 75"),
            {
                "ref": "github:octo/repo#17",
                "state": "waiting-to-start",
                "reason": "its author 'mallory' is not authorised",
            },
        ],
        "attention": [
            {"source": "inbox", "state": "failing", "reason": "cannot read '/srv/inbox': Permission denied"},
            {
                "ref": ref,
                "deliveryId": f"{ref}/comment:3",
                "state": "gave-up",
                "reason": "rejected too often: exit status 1",
                "command": f"{retry} comment:3",
            },
            {
                "ref": ref,
                "deliveryId": f"{ref}/comment:4",
                "state": "held",
                "reason": "its outcome is unknown: killed by SIGKILL",
                "command": f"{retry} comment:4",
            },
        ],
    }


def seen(beat: dict[str, Any], sight: Sight = HELD) -> Seen:
    report = report_of(sight, beat, StateRoot(Path("/home/alice/.local/state/the-loop")))
    state = {"activeState": "active", "subState": "running"}
    report["unit"] = {"name": "the-loop-poll.service", "scope": "user", **state} if beat else None
    report["changedAuthors"] = []
    return Seen(sight, beat, report)


def text(beat: dict[str, Any], columns: int = 80, sight: Sight = HELD) -> str:
    return "\n".join(rows(page(seen(beat, sight), NOW), columns))


def test_page_when_all_kinds_of_things_are_there_is_the_one_in_the_docs() -> None:
    (shown,) = re.findall(r"^\$ the-loop poll status\n(.*?)^```", DOCS.read_text(), re.MULTILINE | re.DOTALL)

    assert text(busy()) + "\n" == shown


@pytest.mark.parametrize("columns", [80, 60, 40])
def test_page_when_it_is_narrow_then_each_line_fits_but_for_what_is_to_be_copied(columns: int) -> None:
    for line in text(busy(), columns).splitlines():
        words = line.split()
        assert len(line) <= columns or line.lstrip().startswith("the-loop ") or max(map(len, words)) > columns - 8


def test_page_when_nothing_is_known_then_nothing_is_zero() -> None:
    shown = text({}, sight=Sight(Probe.UNKNOWN, cause="cannot open '/x': Permission denied"))

    assert shown.startswith("unknown: cannot open '/x': Permission denied")
    assert "last good cycle: unknown" in shown
    assert "queue: unknown" in shown
    assert not re.search(r"\b0\b", shown)


def test_page_when_the_poller_is_gone_then_says_when_this_was_seen() -> None:
    shown = text({**busy(), "writtenAt": at(-7200)}, sight=Sight(Probe.FREE))

    assert shown.startswith("not running\n")
    assert "what follows was seen at 10:00:12 (2 h ago)" in shown


def test_page_when_the_poller_has_another_version_then_says_so() -> None:
    assert "not the version of this command" in " ".join(text({**busy(), "version": "9.9"}).split())


def test_page_when_there_is_much_of_one_kind_then_the_rest_is_counted() -> None:
    many = [work(f"{number}/comment:1", "waiting") for number in range(30)]

    shown = text({**busy(), "work": many, "workOmitted": 70})

    assert shown.count("  waiting: github:") == 10
    assert "  waiting: 20 more" in shown
    assert "and 70 more that are not listed" in shown


@pytest.mark.parametrize(
    "damage",
    [
        {"work": [7, {}, {"state": 3}, {"state": []}, {"state": "running", "since": {}}]},
        {"attention": [7, {}, {"command": "x"}]},
        {"sources": [{}]},
        {"sources": [{"lastCycle": {"startedAt": 7}, "nextCycleAt": [], "overlooked": []}]},
    ],
)
def test_page_when_the_heartbeat_is_damaged_then_the_rest_is_shown(damage: dict[str, Any]) -> None:
    assert "queue: 4 pending" in text({**busy(), **damage})


def test_page_when_texts_are_hostile_then_they_stay_on_their_line() -> None:
    evil = "x\x1b[2J\nrunning: pid 1"
    beat = {**busy(), "sources": [source("work", "github", error=evil)], "heldItems": {f"github:{evil}": evil}}

    shown = text(beat)

    assert "\x1b" not in shown
    assert not [line for line in shown.splitlines()[1:] if line.startswith("running:")]


@pytest.mark.parametrize(
    ("probe", "attention", "is_check", "code"),
    [
        (Probe.HELD, [{}], False, 0),
        (Probe.HELD, [], True, 0),
        (Probe.HELD, [{}], True, 1),
        (Probe.HELD, None, True, 1),
        (Probe.FREE, [{}], True, 3),
        (Probe.UNKNOWN, [], True, 4),
    ],
)
def test_exit_code(probe: Probe, attention: list[Any] | None, is_check: bool, code: int) -> None:
    one = seen({**busy(), "attention": attention}, Sight(probe, HELD.holder if probe is Probe.HELD else None))

    assert exit_code(one, is_check=is_check) == code


def test_page_has_no_colour_where_the_environment_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert page_module.has_colour()
    monkeypatch.setitem(os.environ, "NO_COLOR", "1")
    assert not page_module.has_colour()


def test_command_loads_no_event_loop(tmp_path: Path) -> None:
    """It is half of what the command takes, which has 300 ms."""
    script = f"""
import sys
from the_loop.cli import cli
try:
    cli(["--state-root", {str(tmp_path)!r}, "poll", "status"])
except SystemExit:
    pass
print(sorted({{"asyncio", "ssl", "ctypes", "markdown_it", "httpx2"}} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert done.stdout.splitlines()[-1] == "[]"


def test_source_on_standby_when_shown_then_names_the_holder() -> None:
    held = source("bot", "telegram", state="standby", heldBy="4712:99 (stopped by a signal)", items=0)

    shown = text(busy() | {"sources": [held]})

    assert "source bot (telegram): standby: held by 4712:99 (stopped by a signal)," in shown


class Watched:
    """`poll status --watch` on a terminal; `until` gives what it wrote up to a text."""

    def __init__(self, root: Path) -> None:
        self.terminal, inside = pty.openpty()
        command = [sys.executable, "-m", "the_loop", "--state-root", str(root), "poll", "status", "--watch"]
        environ = {**os.environ, "TERM": "xterm"}
        self.process = subprocess.Popen(command, stdin=inside, stdout=inside, stderr=inside, env=environ)
        os.close(inside)

    def until(self, text: str) -> str:
        seen = ""
        while text not in seen:
            ready, _, _ = select.select([self.terminal], [], [], 20)
            assert ready, f"{text!r} did not come, but {seen!r}"
            seen += os.read(self.terminal, 65536).decode()
        return seen


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    one = Watched(tmp_path)
    try:
        one.until("not running")
        one.until("\x1b[J")
        yield one
    finally:
        one.process.kill()
        one.process.wait()
        os.close(one.terminal)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_watch_when_it_is_ended_then_leaves_the_terminal_as_it_was(watched: Watched, number: signal.Signals) -> None:
    watched.process.send_signal(number)

    watched.until("\x1b[?25h\x1b[?1049l")
    assert watched.process.wait(20) == (3 if number == signal.SIGINT else 128 + number)


def test_watch_when_it_is_put_aside_then_the_shell_gets_its_screen(watched: Watched) -> None:
    watched.process.send_signal(signal.SIGTSTP)
    watched.until("\x1b[?25h\x1b[?1049l")
    os.waitid(os.P_PID, watched.process.pid, os.WSTOPPED)
    watched.process.send_signal(signal.SIGCONT)

    watched.until("\x1b[?1049h")
    watched.until("not running")


def test_watch_when_the_window_changes_then_is_drawn_at_once(watched: Watched) -> None:
    began = time.monotonic()
    for _ in range(10):
        watched.process.send_signal(signal.SIGWINCH)
        watched.until("not running")

    assert time.monotonic() - began < 10 * WATCH_S / 2
