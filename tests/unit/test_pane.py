"""What a terminal shows, and what may be typed into it."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from the_loop.runners.pane import (
    DEFAULT_BUSY,
    LINE_LIMIT,
    Look,
    harmless,
    is_bare_shell,
    one_line,
    unframed,
    why_busy,
)

BUSY = re.compile(DEFAULT_BUSY, re.MULTILINE)


def look(
    *screen: str,
    cursor: tuple[int, int] | None = None,
    mode: str = "",
    foreground: tuple[str, ...] = ("agent",),
    prompt: str = "",
    idle_s: float | None = None,
) -> Look:
    """A look at a pane; the cursor is behind the last line."""
    at = cursor or (len(screen[-1]) if screen else 0, max(0, len(screen) - 1))
    return Look(
        is_dead=False,
        mode=mode,
        foreground=foreground,
        reads_lines=False,
        screen=screen,
        cursor=at,
        prompt=prompt,
        idle_s=idle_s,
    )


# --- texts ---


@given(st.text())
def test_harmless_when_given_any_text_leaves_no_control_but_tab_and_line_breaks(text: str) -> None:
    safe = harmless(text)

    assert len(safe) == len(text)
    assert not [char for char in safe if (ord(char) < 0x20 or 0x7F <= ord(char) < 0xA0) and char not in "\t\r\n"]
    assert not any(0xD800 <= ord(char) < 0xE000 for char in safe)
    assert all(a == b for a, b in zip(text, safe, strict=True) if a.isprintable())


def test_harmless_when_a_text_would_end_the_paste_shows_its_controls() -> None:
    assert harmless("hi\x1b[201~\rtouch pwned\r") == "hi\u241b[201~\rtouch pwned\r"
    assert harmless("\x9b201~\x7f\x03\0") == "\ufffd201~\u2421\u2403\u2400"
    assert harmless("\ud800\x85") == "\ufffd\ufffd"


@given(st.text(alphabet="a\r\n"))
def test_unframed_when_given_any_text_leaves_no_carriage_return(text: str) -> None:
    assert "\r" not in unframed(text)
    assert unframed(text).count("\n") == len(re.findall(r"\r\n|\r|\n", text))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("one", "one"),
        ("one\r\n\n", "one"),
        ("", ""),
        ("a\nb", None),
        ("a\rb", None),
        ("x" * LINE_LIMIT, "x" * LINE_LIMIT),
        ("x" * (LINE_LIMIT + 1), None),
        ("\u00fc" * (LINE_LIMIT // 2 + 1), None),
    ],
)
def test_one_line_when_a_text_is_one_gives_it(text: str, line: str | None) -> None:
    assert one_line(text) == line


# --- not now ---


def test_busy_when_the_program_waits_is_no_reason() -> None:
    assert why_busy(look("", "> ", prompt="> "), BUSY) == ""
    assert why_busy(look(""), BUSY) == ""
    assert why_busy(look("some output", ""), BUSY) == ""


@pytest.mark.parametrize("mode", ["copy-mode", "tree-mode", "view-mode"])
def test_busy_when_the_terminal_is_in_a_mode_names_it(mode: str) -> None:
    assert why_busy(look("> ", mode=mode), BUSY) == f"the terminal is in {mode}"


@pytest.mark.parametrize(("idle_s", "is_busy"), [(0.0, True), (2.9, True), (3.0, False), (100.0, False)])
def test_busy_when_a_person_typed_a_moment_ago_waits(idle_s: float, is_busy: bool) -> None:
    assert (why_busy(look("> ", prompt="> ", idle_s=idle_s), BUSY) == "a person is typing") is is_busy


@pytest.mark.parametrize(
    ("line", "prompt", "is_half"),
    [
        ("> ", "> ", False),
        ("> half", "> ", True),
        (">    ", "> ", False),
        ("ask me: half", "ask me: ", True),
        ("ask me: ", "ask me: ", False),
        ("\u276f half a line", "", True),
        ("\u2502 > half", "", True),
        ("\u2502 > ", "", False),
        ("100 % of it", "", False),
        ("working\u2026", "> ", False),
    ],
)
def test_busy_when_a_line_is_half_typed_says_so(line: str, prompt: str, is_half: bool) -> None:
    assert (why_busy(look("", line, prompt=prompt), BUSY) == "there is a half-typed line") is is_half


def test_busy_when_text_is_behind_the_cursor_is_no_reason() -> None:
    shown = look('\u276f Try "edit main.py"', cursor=(2, 0), prompt="\u276f ")

    assert why_busy(shown, BUSY) == ""


def test_left_when_characters_are_wide_counts_columns() -> None:
    assert look("\u65e5\u672c ab", cursor=(5, 0)).left == "\u65e5\u672c "
    assert look("e\u0301x", cursor=(2, 0)).left == "e\u0301x"
    assert look("ab", cursor=(4, 0)).left == "ab  "
    assert look("ab", cursor=(0, 7)).left == ""


CLAUDE = (
    "\u2502 Do you want to proceed? \u2502",
    "\u2502 \u276f 1. Yes \u2502",
    "\u2502   2. No, and tell it \u2502",
    "\u2570\u2500\u256f",
)
TRUST = (
    "Do you trust the files in this folder?",
    "",
    " \u276f 1. Yes, proceed",
    "   2. No, exit",
    "",
    " Enter to confirm",
)
CODEX = ("  Would you like to run the following command?", "", "\u203a 1. Yes, proceed (y)", "  2. No (esc)", "")
GEMINI = ("\u2502 Apply this change? \u2502", "\u2502 \u25cf 1. Yes, allow once \u2502", "\u2502   2. No (esc) \u2502")


@pytest.mark.parametrize(
    "screen",
    [
        CLAUDE,
        TRUST,
        CODEX,
        GEMINI,
        ("Add main.py to the chat? (Y)es/(N)o [Yes]: ",),
        ("Overwrite? [y/N] ",),
        ("Are you sure (yes/no/[fingerprint])? ",),
        ("[sudo] password for bob: ",),
        ("Enter passphrase for key '/x': ",),
        ("Press any key to continue",),
        ("some text", "--More--(45%)"),
        ("lines", "(END)"),
    ],
    ids=lambda screen: screen[0][:20],
)
def test_busy_when_the_program_asks_says_what(screen: tuple[str, ...]) -> None:
    assert why_busy(look(*screen, "", ""), BUSY).startswith("it asks: ")


@pytest.mark.parametrize(
    "screen",
    [
        ("> 1. do this", "  2. do that", "", "> "),
        ("Is the password in the file? I think so.", "> "),
        ("the prompt [y/N] was shown above", "> "),
        ("\u25cf I did it.", "", "> "),
    ],
    ids=lambda screen: screen[0][:20],
)
def test_busy_when_a_text_only_looks_like_a_question_is_no_reason(screen: tuple[str, ...]) -> None:
    assert why_busy(look(*screen, prompt="> "), BUSY) == ""


def test_busy_when_a_question_has_scrolled_away_or_no_pattern_is_given_is_no_reason() -> None:
    assert why_busy(look(*CLAUDE, *["output"] * 15, "> ", prompt="> "), BUSY) == ""
    assert why_busy(look(*CLAUDE, "> ", prompt="> "), None) == ""


# --- shells ---


@pytest.mark.parametrize(
    ("line", "is_bare"),
    [
        ("bash", True),
        ("-bash", True),
        ("/bin/sh", True),
        ("bash --norc -i", True),
        ("bash --rcfile /x -i", True),
        ("zsh -l", True),
        ("sh -s", True),
        ("busybox sh", True),
        ("bash -o vi", True),
        ("bash script.sh", False),
        ("sh -c exit", False),
        ("bash -lc agent", False),
        ("sh -- script", False),
        ("fish --command agent", False),
        ("agent", False),
        ("python3 -i", False),
        ("bashful", False),
        ("", False),
    ],
)
def test_bare_shell_when_it_takes_commands_from_its_terminal(line: str, is_bare: bool) -> None:
    assert is_bare_shell(tuple(line.split())) is is_bare
