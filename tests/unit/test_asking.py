"""Asking the running poller: what there is when none answers, when it takes too long, and when it says no."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from support.control import Served
from the_loop.core.model import LoopError
from the_loop.state import StateRoot
from the_loop.supervision import asking
from the_loop.supervision.asking import NoAnswer, NothingServes, Refused, ask
from the_loop.supervision.sockets import CONTROL_NAME, LINE_LIMIT
from the_loop.supervision.unit import record_unit


@contextlib.contextmanager
def answering(path: Path, *answers: bytes | None) -> Iterator[list[bytes]]:
    """A peer that reads a request and sends these bytes, connection by connection; None: it hangs. What it read."""
    read: list[bytes] = []
    left = list(answers)
    over = threading.Event()

    def serve() -> None:
        while not over.is_set():
            with contextlib.suppress(OSError):
                connection, _ = listening.accept()
                with connection:
                    read.append(connection.recv(LINE_LIMIT))
                    answer = left.pop(0) if left else b""
                    if answer is None:
                        over.wait()
                    else:
                        connection.sendall(answer)

    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(str(path))
        listening.listen()
        listening.settimeout(0.05)
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield read
        finally:
            over.set()
            thread.join()


def test_ask_when_a_poller_serves_then_its_answer_is_returned(root: StateRoot) -> None:
    with Served(root.path) as served:
        assert ask(root, "note", {"source": "inbox"}) == {"noted": 1}

    assert served.got == [{"verb": "note", "source": "inbox", "root": str(root.path)}]


def test_ask_when_the_root_is_very_deep_then_is_answered(tmp_path: Path) -> None:
    deep = StateRoot(tmp_path.joinpath(*["a-rather-long-name-of-a-directory"] * 12))
    deep.path.mkdir(parents=True)

    with Served(deep.path):
        assert ask(deep, "note", {}) == {"noted": 1}


def test_ask_when_the_record_names_another_place_then_is_answered_there(root: StateRoot, tmp_path: Path) -> None:
    runtime = tmp_path / "runtime"
    runtime.mkdir()
    with Served(root.path, runtime=runtime) as served:
        record_unit(root, {"RUNTIME_DIRECTORY": str(runtime)}, "", str(served.listening.path))

        assert ask(root, "note", {}) == {"noted": 1}
        assert not (root.path / CONTROL_NAME).exists()


# --- nothing serves ---


def is_missing(_: Path) -> None:
    pass


def is_left_over(path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as made:
        made.bind(str(path))


@pytest.mark.parametrize("make", [is_missing, is_left_over, Path.touch], ids=lambda make: make.__name__)
def test_ask_when_no_poller_answers_then_nothing_serves_and_at_once(
    root: StateRoot, make: Callable[[Path], None]
) -> None:
    make(root.path / CONTROL_NAME)
    began = time.monotonic()

    with pytest.raises(NothingServes, match="no poller answers"):
        ask(root, "note", {})

    assert time.monotonic() - began < 1


@pytest.mark.parametrize(
    "record", ["", "[]", "null", '{"control": 5}', '{"control": "relative"}', '{"control": "/\\u0000"}']
)
def test_ask_when_the_record_is_damaged_then_the_root_is_looked_at(root: StateRoot, record: str) -> None:
    (root.path / "local" / "unit.json").write_text(record)

    with Served(root.path):
        assert ask(root, "note", {}) == {"noted": 1}


def test_ask_when_the_root_was_copied_then_the_poller_of_the_original_is_not_asked(
    root: StateRoot, tmp_path: Path
) -> None:
    copy = StateRoot(tmp_path / "copy")
    (copy.path / "local").mkdir(parents=True)
    with Served(root.path) as served:
        record_unit(copy, {}, "", str(served.listening.path))

        with pytest.raises(NothingServes):
            ask(copy, "note", {})
        assert served.got == []


# --- no answer ---


def test_ask_when_the_poller_hangs_then_no_answer_within_the_limit(root: StateRoot) -> None:
    began = time.monotonic()

    with answering(root.path / CONTROL_NAME, None), pytest.raises(NoAnswer, match="no answer") as caught:
        ask(root, "note", {}, limit_s=0.3)

    assert 0.3 <= time.monotonic() - began < 5
    assert "asking again is safe" in caught.value.hint
    assert caught.value.exit_code == 4


def test_ask_when_its_queue_is_full_then_no_answer_within_the_limit(root: StateRoot) -> None:
    path = str(root.path / CONTROL_NAME)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening, contextlib.ExitStack() as stack:
        listening.bind(path)
        listening.listen(0)
        for _ in range(3):
            waiting = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            waiting.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                waiting.connect(path)

        with pytest.raises(NoAnswer):
            ask(root, "note", {}, limit_s=0.3)


@pytest.mark.parametrize("cut", [b"", b'{"noted": 1}', b'{"no', b"garbage\n", b"[]\n", b"[" * 60_000 + b"\n"])
def test_ask_when_the_answer_is_cut_off_or_garbage_then_it_is_asked_again(root: StateRoot, cut: bytes) -> None:
    with answering(root.path / CONTROL_NAME, cut, cut, b'{"noted": 1}\n') as read:
        assert ask(root, "note", {}) == {"noted": 1}

    assert len(read) == 3
    assert len(set(read)) == 1


def test_ask_when_the_answers_stay_garbage_then_no_answer(root: StateRoot) -> None:
    with answering(root.path / CONTROL_NAME, *[b"garbage\n"] * 100), pytest.raises(NoAnswer):
        ask(root, "note", {}, limit_s=0.3)


def test_ask_when_the_poller_stops_before_it_answers_then_nothing_serves(root: StateRoot) -> None:
    came = threading.Event()

    async def hangs(_: Mapping[str, Any]) -> dict[str, Any]:
        came.set()
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    def stop() -> None:
        came.wait()
        served.close()

    with Served(root.path, hangs=hangs) as served:
        stopping = threading.Thread(target=stop)
        stopping.start()
        with pytest.raises(NothingServes):
            ask(root, "hangs", {})
        stopping.join()


def test_ask_when_the_record_cannot_be_read_then_it_is_not_taken_for_none(
    root: StateRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: Path) -> dict[str, Any]:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(asking, "read_json_object", fails)

    with pytest.raises(NoAnswer, match="Input/output error"):
        ask(root, "note", {})


# --- refused ---


def test_ask_when_the_poller_says_no_then_its_sentence_hint_and_code_come_over(root: StateRoot) -> None:
    class Unknown(LoopError):
        exit_code = 2

    async def no(_: Mapping[str, Any]) -> dict[str, Any]:
        raise Unknown("cannot do it", "do that")

    with Served(root.path, no=no), pytest.raises(Refused, match="cannot do it") as caught:
        ask(root, "no", {})

    assert (caught.value.problem, caught.value.hint, caught.value.exit_code) == ("cannot do it", "do that", 2)


@pytest.mark.parametrize("code", [0, -1, 126, 4711, "2", None, True, [2]])
def test_ask_when_the_code_of_a_refusal_is_none_then_1(root: StateRoot, code: Any) -> None:
    answer = json.dumps({"error": "no", "code": code}).encode() + b"\n"

    with answering(root.path / CONTROL_NAME, answer), pytest.raises(Refused) as caught:
        ask(root, "note", {})

    assert caught.value.exit_code == 1


def test_ask_when_the_answer_has_control_characters_then_they_are_escaped(root: StateRoot) -> None:
    nasty = "a\x1b[2Jb\u202e\n"
    answer = json.dumps({"ids": [nasty, 1], "one": nasty, "more": {"two": nasty}}).encode() + b"\n"

    with answering(root.path / CONTROL_NAME, answer):
        shown = "a\\x1b[2Jb\\x202e\\x0a"
        assert ask(root, "note", {}) == {"ids": [shown, 1], "one": shown, "more": {"two": shown}}


def test_ask_when_the_answer_is_nested_deeply_then_is_refused_or_no_answer(root: StateRoot) -> None:
    answer = b'{"a":' * 900 + b"1" + b"}" * 900 + b"\n"

    with answering(root.path / CONTROL_NAME, *[answer] * 50), pytest.raises((Refused, NoAnswer)):
        ask(root, "note", {}, limit_s=0.3)


def test_ask_when_the_request_is_too_long_then_is_refused_unsent(root: StateRoot) -> None:
    with Served(root.path) as served, pytest.raises(Refused, match="more than"):
        ask(root, "note", {"x": "x" * LINE_LIMIT})

    assert served.got == []


def test_ask_when_another_users_process_serves_then_not_a_word_is_sent(
    root: StateRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "peer_uid", lambda _: os.geteuid() + 4711)

    with Served(root.path) as served, pytest.raises(Refused, match=f"served by uid {os.geteuid() + 4711}"):
        ask(root, "note", {})

    assert served.got == []


def test_ask_when_it_may_not_reach_the_socket_then_is_refused(root: StateRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(socket.socket, "connect", denied)

    with pytest.raises(Refused, match="Permission denied"):
        ask(root, "note", {})
