"""Completion in a real Bash: what a person types, and what is on the line after the Tab key."""

from __future__ import annotations

import os
import shlex
import subprocess
from typing import TYPE_CHECKING

import pytest

from support.poller import COMMAND, Box

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

# the words that Bash hands to the function: cut at blanks, and at each of COMP_WORDBREAKS
ASKS = r"""
source "$SCRIPT"
COMP_LINE=$1 COMP_POINT=${#1}
mapfile -t COMP_WORDS < <(printf '%s' "$1" | sed -E 's/[:=]+/\n&\n/g; s/ +/\n/g')
[[ $1 == *[\ :=] ]] && COMP_WORDS+=('')
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
compopt() { local IFS=' '; echo "compopt $*"; }
_the_loop_completion the-loop
printf '%s\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    environ = {**os.environ, "_THE_LOOP_COMPLETE": "bash_source"}
    done = subprocess.run([COMMAND], env=environ, capture_output=True, check=True)
    (tmp_path / "script").write_bytes(done.stdout)
    return tmp_path / "script"


def complete(box: Box, script: Path, typed: str) -> list[str]:
    """What replaces the word behind the last blank, colon or `=` of this line."""
    line = f"the-loop --config {box.config} --state-root {box.root} {typed}"
    environ = {**box.environ, "SCRIPT": str(script), "PATH": f"{COMMAND.parent}:{box.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", ASKS, "bash", line], env=environ, capture_output=True, text=True, check=True, timeout=30
    )
    assert done.stderr == ""
    return [line for line in done.stdout.splitlines() if line]


LINES = {
    "po": ["poll"],
    "poll w": ["wake"],
    "poll wake ": ["inbox"],
    "events --source dis": ["dispatch"],
    "events --source=in": ["inbox"],
    "events --ref directory:inbox/d": ["inbox/door"],
    "ledger show ": ["directory:inbox/door", r"directory:inbox/my\ desk"],
    "ledger show dir": ["directory:inbox/door", r"directory:inbox/my\ desk"],
    "ledger show directory:": ["inbox/door", r"inbox/my\ desk"],
    "ledger show directory:inbox/d": ["inbox/door"],
    "ledger retry directory:inbox/door ": [r"comment:c\ 1.md"],
    "ledger settle directory:inbox/door comment:": [r"c\ 1.md"],
    "trace directory:inbox/door/": [r"inbox/door/comment:c\ 1.md", "inbox/door/spawn:1"],
    "trace directory:inbox/door/spawn:": ["1"],
    "trace nothing": [],
    "--config ": ["compopt -o default"],
    "poll status --state-root ": ["compopt -o dirnames"],
    "unit show --name ": ["bot"],
}


def test_line_when_completed_then_has_what_is_known(box: Box, script: Path) -> None:
    folder = box.folder / ".config" / "the-loop"
    folder.mkdir(parents=True)
    for name in ("config.yaml", "bot.yaml"):
        (folder / name).touch()
    box.item("door")
    box.item("my desk")
    assert box.once().code == 0
    box.sink.behave(("*comment*", {"code": 75}))
    box.comment("door", "c 1.md")
    box.once()

    assert {typed: complete(box, script, typed) for typed in LINES} == LINES


def test_line_when_the_root_cannot_be_read_then_nothing_is_completed_and_nothing_said(box: Box, script: Path) -> None:
    box.config.write_text("state: [")

    assert complete(box, script, f"--state-root {shlex.quote(str(box.folder / 'none'))} ledger show ") == []
    assert complete(box, script, "poll wake ") == []
