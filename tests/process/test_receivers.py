"""What receivers get, whatever the text, the locale or the environment is; and what nobody else may read."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest

from support.github.fake import FakeGitHub
from support.http_server import FakeServer
from support.poller import ME, Box, wait_for

pytestmark = pytest.mark.slow

EMOJI = "🦉 日本語 ñ"
BODIES: dict[str, str | bytes] = {
    "line": "x" * 5_000,
    "argument": "y" * 17_000,
    "pipe": "line\n" * 13_200,
    "wide": "🦉" * 65_536,
    "nul": "before\0after",
    "surrogate": b"odd \xed\xa0\x80 bytes \xff\xfe",
    "right-to-left": "\u202egnp.exe\u2066",
    "combining": "e" + "\u0301" * 10_000,
    "words": "$(touch pwned) `touch pwned`; touch pwned & --config=/etc/passwd",
    "blank": " \n\t\n ",
    "empty": "",
    "escape": "hi\x1b[201~\rtouch pwned\r",
}


def expected(body: str | bytes) -> tuple[int, str]:
    """Length and hash of what arrives: bytes that are no UTF-8 and NULs are made visible, all else is as it was."""
    text = body.decode("utf-8", "replace") if isinstance(body, bytes) else body
    raw = text.replace("\0", "\u2400").encode()
    return len(raw), hashlib.sha256(raw).hexdigest()


def test_text_when_long_or_odd_then_it_arrives_whole_in_order_and_holds_up_nothing(box: Box) -> None:
    ref = box.item("a", EMOJI)
    assert box.once().code == 0
    for number, body in enumerate(BODIES.values()):
        box.comment("a", f"{number:02}-odd", body)
        box.comment("a", f"{number:02}-plain", "plain")
    assert box.once().code == 0

    got = {one.key: (one.length, one.digest) for one in box.sink.got()}
    assert got["spawn:1"] == expected(EMOJI)
    for number, (name, body) in enumerate(BODIES.items()):
        assert got[f"comment:{number:02}-odd"] == expected(body), name
    keys = [f"comment:{number:02}-{kind}" for number in range(len(BODIES)) for kind in ("odd", "plain")]
    box.assert_once({ref: ["spawn:1", *keys]})
    assert not list(box.folder.rglob("pwned*"))
    assert box.run("events").code == 0


def test_entry_when_over_a_mebibyte_then_it_comes_as_a_reference_and_the_next_one_whole(box: Box) -> None:
    ref = box.item("a")
    assert box.once().code == 0
    box.comment("a", "big", b"z" * ((1 << 20) + 1))
    box.comment("a", "next", b"z" * (1 << 20))
    assert box.once().code == 0

    assert {got.key: got.length for got in box.sink.got()} == {
        "spawn:1": 6,
        "comment:big": 0,
        "comment:next": 1 << 20,
    }
    box.assert_once({ref: ["spawn:1", "comment:big", "comment:next"]})


LATIN = "en_US.ISO-8859-1"


def latin_environment(folder: Path) -> dict[str, str]:
    """What makes a program run under a Latin-1 locale, which minimal systems lack and this makes in `folder`."""
    folder.mkdir()
    argv = ["localedef", "-i", "en_US", "-f", "ISO-8859-1", str(folder / LATIN)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if not (folder / LATIN / "LC_CTYPE").exists():
        reason = f"no Latin-1 locale can be made, Debian's package 'locales' is needed: {done.stderr}"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    return {"LANG": LATIN, "LC_ALL": LATIN, "LOCPATH": str(folder)}


@pytest.mark.parametrize("name", ["C", LATIN, "no_SUCH.locale", None])
def test_text_when_the_locale_is_not_utf8_then_the_same_bytes_arrive(box: Box, name: str | None) -> None:
    github = FakeGitHub(lambda: 1_800_000_000.0)
    github.add_repo("octo/repo")
    number = github.add_issue("octo/repo", title=EMOJI, body=EMOJI, author="octocat", labels=["auto"])
    folder = box.inbox / EMOJI
    folder.mkdir()
    (folder / "item.md").write_text(EMOJI)
    (folder / f"{EMOJI}.txt").write_text("with it")
    with FakeServer(github) as server:
        sources: list[dict[str, Any]] = [
            {"provider": "github", "repos": ["octo/repo"], "label": "auto", "apiUrl": server.url},
            {"provider": "directory", "path": "inbox", "settleSeconds": 0},
        ]
        box.configure(sources=sources, routing={"authorizedUsers": ["github:octocat", f"directory:{ME}"]})
        box.environ = {"PATH": box.environ["PATH"], "HOME": str(box.folder)}
        if name == LATIN:
            box.environ |= latin_environment(box.folder / "locale")
        elif name is not None:
            box.environ |= {"LANG": name, "LC_ALL": name}
        assert box.once(timeout_s=30).code == 0
        github.comment("octo/repo", number, body=EMOJI)
        (folder / "später 🦉").write_text(EMOJI)
        done = box.once()
        assert done.code == 0, done.err

    got = {(one.ref, one.key): (one.length, one.digest) for one in box.sink.got()}
    ref = f"directory:inbox/{EMOJI}"
    assert got == {
        (f"github:127.0.0.1/octo/repo#{number}", "spawn:1"): expected(EMOJI),
        (f"github:127.0.0.1/octo/repo#{number}", "comment:1001"): expected(EMOJI),
        (ref, "spawn:1"): expected(EMOJI),
        (ref, "comment:später 🦉"): expected(EMOJI),
    }
    assert set(box.ledgers()) == {ref for ref, _ in got}
    assert box.run("ledger", "list").code == 0
    assert box.run("events").code == 0
    assert box.run("poll", "status").code == 3


def test_files_when_the_umask_is_open_then_only_the_owner_can_read_them(box: Box) -> None:
    box.item("a")
    assert box.once().code == 0
    box.comment("a", "held-up")
    box.sink.behave(("*", {"gate": box.sink.gate("open"), "env": True}))
    before = os.umask(0)
    try:
        poller = box.start(env={"GITHUB_TOKEN": "ghp_secret0123", "SOME_PASSWORD": "ghp_secret0123"})
        box.wait(lambda: len(box.sink.runs()) == 2 and box.keeper(), "a delivery")
        box.wait((box.root / "poll-status.json").exists, "the heartbeat")
    finally:
        os.umask(before)
    modes = {
        str(path.relative_to(box.root)): stat.S_IMODE(path.lstat().st_mode)
        for path in [box.root, *box.root.rglob("*")]
        if box.inbox not in (path, *path.parents)
    }
    assert {path: oct(mode) for path, mode in modes.items() if mode not in (0o600, 0o700)} == {}
    assert {mode for path, mode in modes.items() if (box.root / path).is_file()} == {0o600}
    children = [int(pid) for pid in _children(poller.pid)]
    assert children, "the keeper"
    for pid in (*children, box.sink.runs()[-1].pid):
        assert b"ghp_secret" not in Path(f"/proc/{pid}/cmdline").read_bytes()
        assert b"ghp_secret" not in Path(f"/proc/{pid}/environ").read_bytes()
    text = b"".join(path.read_bytes() for path in box.root.rglob("*") if path.is_file())
    assert b"ghp_secret" not in text
    box.sink.open_gate("open")
    box.wait(lambda: not box.pending(), "the receipt")


def _children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def test_environment_when_a_delivery_runs_then_it_tells_the_same_as_the_payload(box: Box) -> None:
    ref = box.item("a")
    assert box.once().code == 0
    box.sink.behave(("*", {"env": True}))
    box.comment("a", "c1")
    assert box.once().code == 0

    environment = json.loads(next(box.sink.folder.glob("env.*.json")).read_text())
    told = {name: value for name, value in environment.items() if name.startswith("THE_LOOP")}
    assert told.pop("THE_LOOP_DELIVERY_URL").startswith("file:///")
    assert told == {
        "THE_LOOP_DELIVERY_ID": f"{ref}/comment:c1",
        "THE_LOOP_DELIVERY_KIND": "comment",
        "THE_LOOP_DELIVERY_REF": ref,
        "THE_LOOP_DELIVERY_AUTHOR": ME,
        "THE_LOOP_DELIVERY_ATTEMPT": "1",
        "THE_LOOP_DELIVERY_REDELIVERY": "false",
        "THE_LOOP_MARK": "<!-- the-loop -->",
    }


def test_receiver_when_it_leaves_a_child_behind_then_nobody_waits_for_that(box: Box) -> None:
    ref = box.item("a")
    box.sink.behave(("*", {"fork": 60}))

    done = box.once()

    assert done.code == 0
    assert done.seconds < 20
    box.assert_once({ref: ["spawn:1"]})
    wait_for(lambda: not _running(box), "the child, which belongs to the command's group, to be ended")


def _running(box: Box) -> list[str]:
    mark = os.fsencode(box.sink.folder)
    found = []
    for path in Path("/proc").iterdir():
        try:
            if path.name.isdigit() and mark in (path / "cmdline").read_bytes():
                found.append(path.name)
        except OSError:
            continue
    return found


@pytest.mark.parametrize(
    ("behaviour", "attempts", "pending"),
    [
        ({"code": 1}, 1, "refused"),
        ({"die": 11}, 1, "refused"),
        ({"code": 75}, 0, "later"),
        ({"die": 15}, 0, "uncertain"),
        ({"die": 9}, 0, "uncertain"),
        ({"hang": True, "ignore_term": True}, 1, "refused"),
    ],
    ids=str,
)
def test_outcome_when_the_receiver_ends_somehow_then_only_its_own_no_is_counted(
    box: Box, behaviour: dict[str, object], attempts: int, pending: str
) -> None:
    box.configure(routing={"dispatchTimeoutSeconds": 1})
    ref = box.item("a")
    box.sink.behave(("*", behaviour))

    box.once()

    assert box.attempts() == ({f"{ref}/spawn": attempts} if attempts else {})
    assert [entry["state"] for entry in box.pending().values()] == [pending]
    assert _running(box) == [], "ended with its whole group"
    box.sink.behave()
    if pending != "later":
        assert box.once().code == 0
        assert box.pending() == {}
        assert box.sink.got()[-1].attempt == attempts + 1
        assert box.sink.got()[-1].redelivery is (pending == "uncertain")
