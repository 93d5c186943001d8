"""What a trace is collected from: the item that is meant, what cannot be read, near misses, and how much is opened."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from support import configs
from support.shelf import Shelf, ledger
from the_loop import printed
from the_loop import trace as tracing
from the_loop.cli import cli
from the_loop.core.ledger import Phase, Standing, change, encode, end, move
from the_loop.core.model import Note, timestamp
from the_loop.deliveries import Deliveries
from the_loop.durable import to_json_bytes
from the_loop.eventlog import compose
from the_loop.records import Found, Records, Stored
from the_loop.state import slug

if TYPE_CHECKING:
    from pathlib import Path

    from the_loop.trace import Traced

REF = "github:octo/repo#1"
NOW = 1_700_000_000.0
WORK: dict[str, Any] = {**configs.WORK, "name": "work", "repos": ["octo/repo", "octo/new"]}
GHE = {**configs.WORK, "name": "ghe", "repos": ["octo/repo"], "apiUrl": "https://ghe.example/api/v3"}
INBOX = {**configs.INBOX, "name": "in box", "path": "inbox"}


@pytest.fixture(autouse=True)
def no_journal(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine's own journal has nothing to do with this."""
    monkeypatch.setattr(tracing, "read_journal_about", lambda *_: iter(()))
    monkeypatch.setattr(tracing, "read_journal", lambda *_: iter(()))
    monkeypatch.setattr(printed, "last_lines_of", lambda *_: [])


def trace(shelf: Shelf, text: str, *sources: dict[str, Any]) -> Traced:
    people = {"authorizedUsers": ["github:alice", "directory:alice"]}
    config = configs.config_of(configs.tree(*(sources or (WORK, INBOX)), routing=people))
    return tracing.trace(shelf.root, text, config, timestamp)


def log(shelf: Shelf, *notes: Note, start: float = NOW) -> None:
    lines = [json.dumps(compose(note, start + number)) + "\n" for number, note in enumerate(notes)]
    (shelf.root.logs / "events.jsonl").write_text("".join(lines))


def cursor(shelf: Shelf, source: str, **records: dict[str, Any]) -> None:
    position = {"repos": {name.replace("_", "/"): record for name, record in records.items()}}
    tree = {"schema": 1, "source": source, "position": position, "owed": []}
    shelf.root.cursor(source).write_bytes(to_json_bytes(tree))


# --- which item ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "ref"),
    [
        ("https://github.com/octo/repo/issues/1", REF),
        ("https://ghe.example/Octo/Repo/issues/1", "github:ghe.example/octo/repo#1"),
        ("https://ghe.example/octo/repo/pull/1#discussion_r9", "github:ghe.example/octo/repo#1"),
        ("https://tenant.ghe.com/octo/repo/issues/1", "github:api.tenant.ghe.com/octo/repo#1"),
    ],
)
def test_address_when_hosts_differ_then_it_is_of_the_source_with_that_host(shelf: Shelf, text: str, ref: str) -> None:
    tenant = {**GHE, "name": "tenant", "apiUrl": "https://api.tenant.ghe.com"}

    assert trace(shelf, text, WORK, GHE, tenant, INBOX).ref == ref


def test_address_when_the_api_is_asked_by_another_name_then_the_repository_tells(shelf: Shelf) -> None:
    proxied = {**WORK, "apiUrl": "http://proxy.local:8080"}

    assert trace(shelf, "https://github.com/octo/new/issues/1", proxied, INBOX).ref == "github:proxy.local/octo/new#1"


def test_address_when_the_repository_was_renamed_then_its_filed_name_counts(shelf: Shelf) -> None:
    shelf.ledgers.save(ledger(REF))
    cursor(shelf, "work", octo_repo={"id": 1, "name": "octo/Newer", "filed": "octo/repo"})

    found = trace(shelf, "https://github.com/octo/newer/issues/1#issuecomment-1")

    assert (found.ref, found.key, found.stage.is_known) == (REF, "comment:1", True)


def test_item_when_it_ended_then_is_found_in_its_place(shelf: Shelf) -> None:
    shelf.ledgers.save(end(change(ledger(REF), phase=Phase.ENDING), "merged"))
    assert shelf.names == ["ended"]

    assert trace(shelf, REF).stage.state == "ended"


def test_path_when_of_a_directory_source_then_is_its_item_or_event(shelf: Shelf, tmp_path: Path) -> None:
    inbox = shelf.root.path / "inbox"
    (tmp_path / "link").symlink_to(inbox)
    (inbox / "a #b").mkdir(parents=True)

    found = [trace(shelf, str(base / "a #b" / "c.md")) for base in (inbox, tmp_path / "link")]

    assert [(one.ref, one.key) for one in found] == [("directory:in box/a %23b", "comment:c.md")] * 2
    assert (trace(shelf, str(inbox / "a #b")).ref) == "directory:in box/a %23b"
    for other in (inbox, inbox / "a" / "b" / "c", tmp_path, "~nobody-of-this-name/x"):
        assert trace(shelf, str(other)).stage.text == "no configured directory source has this path"


def test_path_when_it_leads_nowhere_then_is_said(shelf: Shelf) -> None:
    place = shelf.root.path / "inbox" / "door"
    assert trace(shelf, str(place)).stage.text.startswith("there is no such file; not seen: ")

    place.mkdir(parents=True)

    assert trace(shelf, str(place)).stage.text.startswith("not seen: ")


# --- near misses -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        ("directory:in box/Door", "directory:in box/door"),
        ("directory:in box/dor", "directory:in box/door"),
        ("github:octo/other#15", "github:octo/repo#15"),
        ("github:octo/rep#15", "github:octo/repo#15"),
        ("15", "github:octo/repo#15"),
        ("#15", "github:octo/repo#15"),
        ("door", None),
    ],
)
def test_item_when_not_known_then_those_of_like_names_are_suggested(
    shelf: Shelf, asked: str, meant: str | None
) -> None:
    for ref in ("directory:in box/door", "github:octo/repo#15", "github:octo/repo#2"):
        shelf.ledgers.save(ledger(ref))

    found = trace(shelf, asked)

    assert not found.stage.is_known
    assert list(found.suggestions)[:1] == [meant] * (meant is not None)


def test_event_when_not_known_then_the_same_id_of_another_kind_is_suggested(shelf: Shelf) -> None:
    shelf.ledgers.save(ledger(REF))

    assert trace(shelf, f"{REF}/review:1").suggestions == [f"{REF}/comment:1"]
    assert trace(shelf, f"{REF}/comment:1").suggestions == ()


# --- what cannot be read ---------------------------------------------------------------------------------------------


def test_event_log_when_it_cannot_be_read_then_is_said(shelf: Shelf) -> None:
    shelf.ledgers.save(ledger(REF))
    (shelf.root.logs / "events.jsonl").mkdir()

    assert trace(shelf, REF).unreadable == ["the event log: Is a directory"]


def test_event_log_when_a_poller_ran_and_there_is_none_then_is_said(shelf: Shelf) -> None:
    shelf.ledgers.save(ledger(REF))
    assert trace(shelf, REF).unreadable == []

    shelf.root.heartbeat.write_text("{}")

    assert trace(shelf, REF).unreadable == [
        "the event log: the journal shows none of it here, and there is no log file"
    ]


def test_journal_when_it_cannot_be_read_then_the_log_is_told_and_that_is_said(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> Any:
        raise PermissionError(13, os.strerror(13))

    monkeypatch.setattr(tracing, "read_journal_about", fails)
    log(shelf, Note("poll.comment_forwarded", {"ref": REF, "key": "comment:1"}))
    shelf.ledgers.save(ledger(REF))

    found = trace(shelf, f"{REF}/comment:1")

    assert found.unreadable == ["the journal: Permission denied"]
    assert found.stage.state == "delivered"


def test_record_when_it_cannot_be_read_then_is_said_and_not_taken_for_none(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf.ledgers.save(ledger(REF))

    def fails(*_: Any) -> Any:
        raise PermissionError(13, os.strerror(13))

    monkeypatch.setattr(Records, "find", fails)
    found = trace(shelf, f"{REF}/comment:1")

    assert found.unreadable == [f"the record of '{REF}': Permission denied"]
    assert found.stage.state == "unread"
    assert found.stage.text == "its record cannot be read: Permission denied"
    assert not found.stage.is_known
    assert found.suggestions == ()


def test_heartbeat_when_it_cannot_be_read_then_is_said(shelf: Shelf) -> None:
    shelf.ledgers.save(ledger(REF))
    shelf.root.heartbeat.mkdir()

    assert "the heartbeat: Is a directory" in trace(shelf, REF).unreadable


@pytest.mark.parametrize("name", ["events.jsonl", "output.log"])
def test_logs_when_a_fifo_is_there_then_are_not_waited_for(shelf: Shelf, name: str) -> None:
    shelf.ledgers.save(ledger(REF))
    os.mkfifo(shelf.root.logs / name)

    assert [problem.partition(":")[0] for problem in trace(shelf, f"{REF}/comment:1").unreadable] == [
        {"events.jsonl": "the event log", "output.log": "the output"}[name]
    ]


def test_accounts_when_something_waits_on_the_item_then_their_logins_are_told(shelf: Shelf) -> None:
    shelf.ledgers.save(ledger(REF))
    account = {"since": timestamp(NOW), "refs": [REF]}
    bob = {"id": 1, "since": timestamp(NOW), "sources": ["work"], "waiting": {"2": account}}
    tree = {"schema": 1, "hosts": {"api.github.com": {"logins": {"bob": bob}, "reread": []}}}
    shelf.root.authors.write_bytes(to_json_bytes(tree))

    assert "what 'bob' wrote on the item waits" in trace(shelf, f"{REF}/comment:9").stage.text
    assert trace(shelf, "github:octo/repo#2/comment:9").stage.commands == ()


def test_record_when_held_then_why_is_told_and_it_stays_where_it_is(shelf: Shelf) -> None:
    shelf.put(b"no ledger")

    found = trace(shelf, REF)

    assert found.stage.state == "held"
    assert "it is not JSON" in found.stage.reason
    assert shelf.path.read_bytes() == b"no ledger"


def test_files_when_they_cannot_be_read_then_is_said(shelf: Shelf) -> None:
    shelf.ledgers.save(ledger(REF))
    stem = Deliveries(shelf.root).stem(REF, "comment:2")
    stem.with_name(f"{stem.name}.lock").mkdir()

    found = trace(shelf, f"{REF}/comment:2")

    assert len(found.unreadable) == 1
    assert found.unreadable[0].startswith("the files of 'comment:2':")
    assert found.stage.text == "it could not be found out whether it runs"


# --- what is collected -----------------------------------------------------------------------------------------------


def test_timeline_when_of_an_event_then_has_its_own_and_those_of_the_whole_item(shelf: Shelf) -> None:
    shelf.ledgers.save(ledger(REF))
    other = "github:octo/repo#11"
    log(
        shelf,
        Note("poll.spawned", {"ref": REF, "key": "spawn:1"}),
        Note("poll.comment_forwarded", {"ref": REF, "key": "comment:1"}),
        Note("poll.comment_forwarded", {"ref": REF, "key": "comment:12"}),
        Note("poll.comment_forwarded", {"ref": other, "key": "comment:1"}),
        Note("dispatch.left_running", {"deliveryId": f"{REF}/comment:1"}),
        Note("poll.breaker", {"ref": REF, "count": 30}),
    )

    names = [event["event"] for event in trace(shelf, f"{REF}/comment:1").timeline]
    assert names == ["poll.spawned", "poll.comment_forwarded", "dispatch.left_running", "poll.breaker"]
    assert len(trace(shelf, REF).timeline) == 5


def test_timeline_when_an_event_is_in_journal_and_log_then_it_is_told_once_in_order(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf.ledgers.save(ledger(REF))
    notes = [Note("poll.comment_forwarded", {"ref": REF, "key": f"comment:{number}"}) for number in range(3)]
    events = [compose(note, NOW + number) for number, note in enumerate(notes)]
    log(shelf, *notes[1:], start=NOW + 1)
    monkeypatch.setattr(tracing, "read_journal_about", lambda *_: iter(events[:2]))

    assert trace(shelf, REF).timeline == events


def test_files_when_of_the_present_offer_then_are_told_with_their_times(shelf: Shelf) -> None:
    made = move(ledger(REF), "comment:2", Standing.REFUSED, offer=2, retry_at=NOW, attempt=2)
    shelf.ledgers.save(made)
    deliveries = Deliveries(shelf.root)
    stem = deliveries.stem(REF, "comment:2")
    payload = {"offer": 2, "attempt": 2, "createdAt": timestamp(NOW - 60), "author": "alice", "url": "https://x"}
    deliveries.write(stem, payload)
    for part, content in (("started", {"offer": 2}), ("outcome", {"offer": 2, "outcome": "refused", "reason": "no"})):
        path = stem.with_name(f"{stem.name}.{part}.json")
        path.write_bytes(to_json_bytes({"schema": 1, **content}))
        os.utime(path, (NOW, NOW + (part == "outcome")))

    found = trace(shelf, f"{REF}/comment:2")

    assert [(event["time"], event["message"]) for event in found.timeline] == [
        (timestamp(NOW - 60), "written by alice: comment:2"),
        (timestamp(NOW), "begun: comment:2, attempt 2"),
        (timestamp(NOW + 1), "ended: comment:2, refused"),
    ]
    assert found.stage.state == "ended"
    assert (found.author, found.url) == ("alice", "https://x")


@pytest.mark.parametrize("changed_s", [0.5, 60.0])
def test_output_when_the_shared_log_was_written_by_something_else_since_then_is_not_told(
    shelf: Shelf, changed_s: float
) -> None:
    shelf.ledgers.save(ledger(REF))
    log(shelf, Note("poll.comment_forwarded", {"ref": REF, "key": "comment:1"}))
    output = shelf.root.logs / "output.log"
    output.write_text("".join(f"line {number}\n" for number in range(20)))
    os.utime(output, (NOW, NOW + changed_s))

    found = trace(shelf, f"{REF}/comment:1").output

    if changed_s > 2:
        assert found is None
    else:
        assert found is not None
        assert found.is_shared
        assert list(found.lines) == [f"line {number}" for number in range(10, 20)]


# --- the command -----------------------------------------------------------------------------------------------------


def run(shelf: Shelf, tmp_path: Path, *arguments: str) -> Any:
    config = tmp_path / "config.yaml"
    config.write_text(json.dumps(configs.tree(WORK)))
    return CliRunner().invoke(cli, ["--config", str(config), "--state-root", str(shelf.root.path), "trace", *arguments])


def test_command_when_nothing_is_known_then_1_and_what_was_meant(shelf: Shelf, tmp_path: Path) -> None:
    shelf.ledgers.save(ledger(REF))

    done = run(shelf, tmp_path, "github:octo/rep#1")

    assert done.exit_code == 1
    assert done.output.splitlines()[-1] == f"did you mean {REF}"


def test_command_when_names_are_hostile_then_a_line_stays_one_line(shelf: Shelf, tmp_path: Path) -> None:
    made = ledger(REF, title="a\x1b[2J\nstate: fine\u202e")
    shelf.ledgers.save(made)

    done = run(shelf, tmp_path, REF)

    assert done.exit_code == 0
    assert done.output.splitlines()[1] == "  'a\\x1b[2J\\x0astate: fine\\u202e'"


def test_command_when_the_root_is_missing_then_1(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["--state-root", str(tmp_path / "none"), "trace", REF])

    assert done.exit_code == 1
    assert "no such directory" in str(done.exception)


def test_ledgers_when_there_are_ten_thousand_then_one_is_opened_and_a_miss_is_quick(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = to_json_bytes(encode(ledger(REF)))
    for number in range(10_000):
        (shelf.root.portable / f"{slug(f'github:octo/repo#{number}')}.json").write_bytes(content)
    opened = set()
    read = Records.read

    def noted(records: Records, ref: str, found: Found) -> Stored:
        opened.add(ref)
        return read(records, ref, found)

    monkeypatch.setattr(Records, "read", noted)

    began = time.process_time()
    assert trace(shelf, f"{REF}/comment:1").stage.is_known
    assert opened == {REF}
    assert trace(shelf, "github:octo/repos#77").suggestions[0] == "github:octo/repo#77"
    assert opened == {REF}
    assert time.process_time() - began < 1.0
