"""Which account an authorised login belongs to: pinned before anything is accepted, and never pinned anew by itself."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path
from typing import Any

import pytest

from support import factories as make
from support.clock import NOON
from support.processes import run_python
from the_loop.authors import Authors, AuthorsUnusable, Met, decide_author, read_authors, waiting_authors
from the_loop.config import login_and_id
from the_loop.core.decide import View, decide, wants_thread
from the_loop.core.guards import Pin, Rules, Speaker
from the_loop.core.ledger import Phase
from the_loop.core.model import LoopError, Presence
from the_loop.ledgers import Ledgers
from the_loop.state import StateRoot

HOST = "api.github.com"
ALICE = Met("github:o/r#1", "Alice", 1)
OTHER = Met("github:o/r#2", "alice", 77)


ODD = {"id": 1, "since": "x", "sources": [], "waiting": {"no number": {"since": "x", "refs": []}}}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "authors.json"


def authors(path: Path, *people: str, source: str = "work", host: str = HOST) -> Authors:
    return Authors(path, host, source, people or ("alice",), lambda: NOON)


def logins(path: Path, host: str = HOST) -> dict[str, Any]:
    found: dict[str, Any] = read_authors(path)["hosts"][host]["logins"]
    return found


# --- pinning ---


def test_first_account_of_a_login_is_pinned_on_disk_and_for_the_rules(path: Path) -> None:
    one = authors(path)

    assert one.meet([ALICE, Met("github:o/r#9", "stranger", 5), Met("github:o/r#9", None, None)]) == []

    assert one.pins == {"alice": Pin(1)}
    assert list(logins(path)) == ["alice"]
    assert (logins(path)["alice"]["id"], path.stat().st_mode & 0o777) == (1, 0o600)
    again = authors(path)
    again.begin(None)
    assert again.pins == {"alice": Pin(1)}


def test_another_account_waits_and_is_told_once(path: Path) -> None:
    one = authors(path)
    one.meet([ALICE])

    notes = [note for _ in range(3) for note in one.meet([ALICE, OTHER, OTHER._replace(ref="github:o/r#3")])]
    notes += authors(path).meet([OTHER])

    assert [(note.name, note.fields) for note in notes] == [
        (
            "author.changed",
            {"source": "work", "ref": "github:o/r#2", "author": "alice", "account": 77, "pinned": 1},
        )
    ]
    assert one.pins == {"alice": Pin(1)}
    (waiting,) = waiting_authors(read_authors(path))
    assert (waiting.login, waiting.pinned, waiting.id) == ("alice", 1, 77)
    assert waiting.refs == ("github:o/r#2", "github:o/r#3")


def test_quiet_poll_neither_reads_nor_writes_the_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = authors(path)
    one.meet([ALICE, OTHER])
    one.begin(None)
    before = path.stat()
    monkeypatch.setattr("the_loop.authors.read_authors", lambda _: pytest.fail("read again"))

    for _ in range(3):
        one.begin(None)
        one.meet([ALICE, OTHER])

    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_source_without_authors_writes_no_file(path: Path) -> None:
    one = authors(path, "alice")
    one.begin(None)
    one.meet([])

    assert not path.exists()


def test_hosts_are_apart_and_sources_of_one_host_share_their_pins(path: Path) -> None:
    authors(path).meet([ALICE])
    authors(path, host="ghe.example").meet([OTHER])
    second = authors(path, source="second")

    assert len(second.meet([OTHER])) == 1

    assert second.pins == {"alice": Pin(1)}
    assert logins(path, "ghe.example")["alice"]["id"] == 77


def test_login_that_no_source_lists_any_more_loses_its_pin(path: Path) -> None:
    for source in ("work", "second"):
        authors(path, source=source).meet([ALICE])

    authors(path, "bob").begin(None)
    assert logins(path)["alice"]["sources"] == ["second"]
    authors(path, "bob", source="second").begin(None)
    assert logins(path) == {}

    assert authors(path).meet([OTHER]) == []
    assert logins(path)["alice"]["id"] == 77


def test_login_that_is_pinned_by_hand_has_that_account_from_the_beginning(path: Path) -> None:
    one = authors(path, "Alice#1")
    one.begin(None)

    assert len(one.meet([OTHER])) == 1
    assert one.pins == {"alice": Pin(1)}
    with pytest.raises(LoopError, match="the configuration pins it to account 1"):
        decide_author(path, f"{HOST}/alice", accepts=True)

    two = authors(path, "alice#77")
    assert two.begin(None) == {"github:o/r#2"}
    assert two.pins == {"alice": Pin(77)}
    assert waiting_authors(read_authors(path)) == []


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("octocat#583231", ("octocat", 583231)),
        ("dependabot[bot]#1", ("dependabot[bot]", 1)),
        ("octocat", ("octocat", None)),
        ("octocat#", ("octocat#", None)),
        ("#1", ("#1", None)),
        ("octocat#x", ("octocat#x", None)),
        ("octocat#-1", ("octocat#-1", None)),
        ("octocat#²", ("octocat#²", None)),
        ("octocat#" + "9" * 400, ("octocat#" + "9" * 400, None)),
    ],
)
def test_name_with_a_number_behind_it_is_a_login_and_its_account(name: str, parts: tuple[str, int | None]) -> None:
    assert login_and_id(name) == parts


# --- the decision ---


@pytest.mark.parametrize("accepts", [True, False])
def test_decision_has_the_items_read_again_until_that_is_stored(path: Path, *, accepts: bool) -> None:
    one = authors(path)
    one.meet([ALICE, OTHER])

    assert decide_author(path, f"{HOST}/alice", accepts=accepts) == ["github:o/r#2"]

    assert waiting_authors(read_authors(path)) == []
    shown = one.begin({"at": 1})
    assert shown == {"github:o/r#2"}
    assert one.pins == {"alice": Pin(77) if accepts else Pin(1, frozenset({77}))}
    one.end(shown, {"at": 2})
    assert one.begin({"at": 1}) == shown, "what was shown was not stored"
    one.end(shown, {"at": 2})
    assert authors(path).begin({"at": 2}) == shown, "the life that showed it is over: once more costs nothing"
    assert one.begin({"at": 2}) == frozenset()
    assert one.meet([OTHER]) == []


def test_item_that_was_not_shown_is_read_again_later(path: Path) -> None:
    one = authors(path)
    one.meet([ALICE, OTHER, OTHER._replace(ref="github:o/r#3")])
    decide_author(path, f"{HOST}/alice", accepts=True)

    one.begin(None)
    one.end(frozenset({"github:o/r#3"}), {"at": 1})

    assert one.begin({"at": 1}) == {"github:o/r#2"}


def test_accept_trusts_the_account_that_came_last_and_rejects_the_others(path: Path) -> None:
    times = itertools.count(NOON)
    one = Authors(path, HOST, "work", ["alice"], lambda: next(times))
    for number in (1, 3, 2):
        one.meet([Met(f"github:o/r#{number}", "alice", number)])

    decide_author(path, f"{HOST}/alice", accepts=True)
    one = authors(path)
    one.begin(None)

    assert one.pins == {"alice": Pin(2, frozenset({3}))}


def test_decision_about_nobody_is_an_error_and_changes_nothing(path: Path) -> None:
    authors(path).meet([ALICE])
    before = path.read_bytes()

    for host, login in ((HOST, "alice"), (HOST, "bob"), ("elsewhere", "alice")):
        with pytest.raises(LoopError, match=f"no other account waits under '{login}' on {host}"):
            decide_author(path, f"{host}/{login}", accepts=True)

    assert path.read_bytes() == before


# --- the file ---


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"9" * 5000,
        b'{"schema": 2, "hosts": {}}',
        b'{"hosts": {}}',
        b'{"schema": 1, "hosts": []}',
        b'{"schema": 1, "hosts": {"h": {"logins": {"a": {"id": "1", "since": "x", "sources": []}}}}}',
        json.dumps({"schema": 1, "hosts": {"h": {"logins": {"a": ODD}}}}).encode(),
    ],
)
def test_file_of_any_other_shape_is_an_error_and_pins_nothing_anew(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    one = authors(path)

    for act in (lambda: one.begin(None), lambda: one.meet([OTHER]), lambda: read_authors(path)):
        with pytest.raises(AuthorsUnusable, match="cannot read"):
            act()

    assert path.read_bytes() == content


@pytest.mark.parametrize("kind", ["link", "directory"])
def test_file_that_is_none_is_an_error(path: Path, kind: str) -> None:
    if kind == "link":
        path.symlink_to("nowhere")
    else:
        path.mkdir()

    with pytest.raises(AuthorsUnusable):
        authors(path).meet([ALICE])


def test_file_that_cannot_be_written_is_an_error_and_the_login_is_not_pinned(path: Path) -> None:
    script = """
        import resource, sys
        from pathlib import Path
        from the_loop.authors import Authors, AuthorsUnusable, Met
        one = Authors(Path(sys.argv[1]), "h", "work", ["alice"], lambda: 0.0)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))
        try:
            one.meet([Met("a:b", "alice", 1)])
        except AuthorsUnusable as error:
            print(error.problem, one.pins)
    """

    assert run_python(script, path) == f"cannot write '{path}': File too large {{}}\n"


def test_unknown_keys_are_kept(path: Path) -> None:
    authors(path).meet([ALICE])
    tree = read_authors(path)
    tree["more"] = tree["hosts"][HOST]["more"] = tree["hosts"][HOST]["logins"]["alice"]["more"] = [1]
    path.write_text(json.dumps(tree))

    authors(path).meet([OTHER])
    decide_author(path, f"{HOST}/alice", accepts=True)

    tree = read_authors(path)
    assert tree["more"] == tree["hosts"][HOST]["more"] == tree["hosts"][HOST]["logins"]["alice"]["more"] == [1]


def test_file_beside_the_ledgers_is_not_taken_for_one(tmp_path: Path) -> None:
    root = StateRoot(tmp_path / "root")
    root.prepare_root()
    root.prepare_folders()
    authors(root.authors).meet([ALICE])
    before = root.authors.read_bytes()
    ledgers = Ledgers(root, lambda note: pytest.fail(str(note)), lambda: NOON)

    ledgers.load()

    assert (list(ledgers.refs()), ledgers.held()) == ([], {})
    assert root.authors.read_bytes() == before
    assert os.listdir(root.portable) == ["authors.json"]  # noqa: PTH208


# --- what the core makes of it ---

PINNED = Rules(
    make.rules().authorized, folds_case=True, words=make.rules().words, pins={"alice": Pin(1, frozenset({9}))}
)


@pytest.mark.parametrize(
    ("author", "number", "speaker"),
    [
        ("alice", 1, Speaker.TRUSTED),
        ("ALICE", 1, Speaker.TRUSTED),
        ("alice", None, Speaker.TRUSTED),
        ("alice", 77, Speaker.CHANGED),
        ("ALICE", 77, Speaker.CHANGED),
        ("alice", 9, Speaker.STRANGER),
        ("bob", 1, Speaker.STRANGER),
        (None, 1, Speaker.STRANGER),
    ],
)
def test_author_is_trusted_a_stranger_or_changed(author: str | None, number: int | None, speaker: Speaker) -> None:
    assert PINNED.speaker(author, number) is speaker
    assert PINNED.may_speak(author, number) is (speaker is Speaker.TRUSTED)


@pytest.mark.parametrize("as_thread", [True, False])
@pytest.mark.parametrize("phase", [phase for phase in Phase if phase is not Phase.ENDED])
def test_entry_of_a_changed_author_is_neither_settled_nor_delivered_nor_obeyed(
    phase: Phase, *, as_thread: bool
) -> None:
    ledger = make.ledger(phase, queue=["spawn:1"] if phase is Phase.STARTING else ())
    entry = make.entry(5, "the-loop stop", author_id=77)
    own = make.entry(6, "mine", author_id=1)
    view = View(
        ledger.ref,
        Presence.LISTED,
        make.item(author="bob"),
        rows=() if as_thread else (entry,),
        thread=(entry,) if as_thread else None,
    )

    decision = decide(ledger, view, PINNED)
    with_own = decide(ledger, View(ledger.ref, Presence.LISTED, make.item(author="bob"), rows=(entry, own)), PINNED)

    after = decision.ledger or ledger
    assert "comment:5" not in {*after.poll.seen_comments, *after.poll.obeyed, *after.poll.pending}
    assert after.poll.phase is ledger.poll.phase
    assert [event.key for event in decision.events if event.key != "spawn:1"] == []
    if phase is Phase.LIVE:
        assert [event.key for event in with_own.events] == ["comment:6"], "others do not wait for it"


def test_entry_of_a_changed_author_alone_wants_no_thread() -> None:
    """Else an item would be read whole in every cycle until the operator has decided."""
    for ledger in (make.ledger(Phase.WAITING), make.ledger(Phase.STARTING, queue=["spawn:1"]), make.ledger(Phase.LIVE)):
        rows = (make.entry(5, "the-loop start", author_id=77),)
        view = View(ledger.ref, Presence.LISTED, make.item(author_id=77), rows=rows)

        assert not wants_thread(ledger, view, PINNED, owed=False)


def test_item_of_a_changed_author_waits_and_starts_once_it_is_accepted() -> None:
    item = make.item(author_id=77)
    waiting = decide(None, View(item.ref, Presence.LISTED, item, thread=()), PINNED).ledger
    assert waiting is not None
    assert waiting.poll.phase is Phase.WAITING
    accepted = Rules(PINNED.authorized, folds_case=True, words=PINNED.words, pins={"alice": Pin(77)})

    decision = decide(waiting, View(item.ref, Presence.LISTED, item, thread=()), accepted)

    assert [event.key for event in decision.events] == ["spawn:1"]


def test_spawn_does_not_carry_an_entry_of_a_changed_author() -> None:
    item = make.item(author_id=1)
    thread = (make.entry(5, author_id=77), make.entry(6, author_id=1), make.entry(7, author_id=9))

    decision = decide(None, View(item.ref, Presence.LISTED, item, thread=thread), PINNED)

    (spawn,) = decision.events
    assert [entry.id for entry in spawn.thread] == ["6"]
    assert decision.ledger is not None
    assert not decision.ledger.knows("comment:5")
    assert decision.ledger.knows("comment:7"), "a rejected account is a stranger"
