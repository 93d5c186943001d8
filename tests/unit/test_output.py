"""Nothing that comes from outside reaches a terminal as more than text."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support import factories as make
from support.processes import LIMIT_S
from the_loop.cli.output import PlainText, protect_streams
from the_loop.core.ledger import Phase
from the_loop.core.model import Note, printable
from the_loop.eventlog import compose
from the_loop.ledgers import Ledgers
from the_loop.state import StateRoot

EVIL = "\x1b]0;owned\x07\x1b[2J\x1b[31mred\x9b1m\u202eright\r\x08\x7f\nrunning: pid 1"


def run(root: Path, *arguments: str) -> tuple[str, str]:
    argv = [sys.executable, "-m", "the_loop", "--state-root", str(root), *arguments]
    done = subprocess.run(argv, capture_output=True, timeout=LIMIT_S, check=False, env={**os.environ, "LC_ALL": "C"})
    return done.stdout.decode(), done.stderr.decode()


@pytest.fixture
def root(tmp_path: Path) -> StateRoot:
    root = StateRoot(tmp_path / "root")
    root.prepare_root()
    root.prepare_folders()
    return root


def is_plain(text: str) -> bool:
    return all(line.isprintable() for line in text.split("\n"))


def beat(root: StateRoot) -> None:
    """A heartbeat of which every text is another's."""
    names = ("name", "provider", "state", "items", "waiting", "owed", "error", "waitingUntil", "nextCycleAt")
    cycle = dict.fromkeys(("startedAt", "items", "delivered", "errors", "seconds"), EVIL)
    source = {**dict.fromkeys(names, EVIL), "lastCycle": cycle}
    work = {"deliveryId": EVIL, "state": "accepted", "since": EVIL, "until": EVIL}
    shown = {"sources": [source], "work": [work], "heldItems": {EVIL: EVIL}, "leftAlone": [EVIL], "paused": EVIL}
    shown |= {"configuration": EVIL, **dict.fromkeys(("pending", "uncertain", "held", "gaveUp"), 1)}
    shown["lastGoodCycleAt"] = EVIL
    root.heartbeat.write_text(json.dumps(shown))


def test_status_when_every_text_is_evil_then_prints_it_escaped_and_on_its_line(root: StateRoot) -> None:
    beat(root)

    out, err = run(root.path, "poll", "status")

    assert is_plain(out + err)
    escaped = "\\x1b]0;owned\\x07\\x1b[2J\\x1b[31mred\\x9b1m\\u202eright\\x0d\\x08\\x7f\\x0arunning: pid 1"
    assert escaped in " ".join(out.split())
    assert [line for line in out.splitlines() if line.lstrip().startswith("running")] == []


def test_status_json_when_every_text_is_evil_then_is_json_in_ascii(root: StateRoot) -> None:
    beat(root)

    out, _ = run(root.path, "poll", "status", "--json")

    assert out.isascii()
    assert json.loads(out)["sources"][0]["error"] == EVIL


def test_events_when_the_log_was_tampered_with_then_are_escaped(root: StateRoot) -> None:
    event = compose(Note("source.failed", {"source": "x", "reason": "y"}), 1.7e9)
    lines = [json.dumps({**event, "message": EVIL, "level": EVIL, "event": f"poll.{EVIL}"})] * 3
    (root.logs / "events.jsonl").write_text("\n".join(lines) + "\n")

    out, err = run(root.path, "events")

    assert is_plain(out + err)
    assert "\\x1b[31mred" in out


def test_ledgers_when_a_title_or_reason_is_evil_then_are_escaped(root: StateRoot) -> None:
    ledgers = Ledgers(root, lambda _: None, lambda: 1.7e9)
    ledgers.save(make.ledger(Phase.LIVE))
    ledgers.hold("github:o/r#2", EVIL)

    for command in (("list",), ("list", "--json"), ("show", "github:o/r#2"), ("show", EVIL), ("retry", EVIL)):
        out, err = run(root.path, "ledger", *command)
        assert is_plain(out + err), command


@pytest.mark.parametrize(
    "arguments",
    [
        ("--config", f"/nowhere{EVIL}", "config", "check"),
        ("poll", EVIL),
        ("events", "--since", EVIL),
        ("poll", "stop", "--timeout", EVIL),
    ],
)
def test_errors_when_they_quote_what_they_were_given_then_escape_it(
    root: StateRoot, arguments: tuple[str, ...]
) -> None:
    out, err = run(root.path, *arguments)

    assert is_plain(out + err)
    assert "owned" in err


def test_traceback_is_escaped_too(root: StateRoot) -> None:
    script = f"""
import sys
from the_loop import cli
def fail(*_, **__): raise RuntimeError({EVIL!r})
cli.cli.main = fail
cli.main()
"""
    for option in ("--debug", "--verbose"):
        argv = [sys.executable, "-c", script, option]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=LIMIT_S, check=False, cwd=root.path)
        assert done.returncode == 1
        assert is_plain(done.stderr)
        assert "owned" in done.stderr


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a b", "a b"),
        ("日本 🎉", "日本 🎉"),
        ("a\nb\x1b", "a\\x0ab\\x1b"),
        ("\u202e\u2028", "\\u202e\\u2028"),
        ("", ""),
    ],
)
def test_printable_is_one_line_of_what_can_be_seen(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_streams_that_are_closed_or_not_files_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", already := PlainText(open(os.devnull, "wb"), encoding="utf-8"))  # noqa: PTH123, SIM115

    protect_streams()

    assert (sys.stdout, sys.stderr) == (None, already)
    already.close()
