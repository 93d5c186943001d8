"""The control socket against peers that are wrong, slow, many, hostile or gone."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import stat
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from support.control import Served, answer_on, connect, line
from the_loop.core.model import LoopError
from the_loop.supervision.control import listen
from the_loop.supervision.sockets import CONTROL_NAME, LINE_LIMIT

NOTE = line(verb="note", n=1)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path) as served:
        yield served


# --- what is asked and answered ---


def test_request_when_it_is_one_line_then_the_handlers_answer_is_the_only_line(served: Served) -> None:
    assert served.say(line(verb="note", source=None)) == {"noted": 1}

    assert served.got == [{"verb": "note", "source": None}]


def test_request_when_it_comes_in_pieces_then_is_carried_out_once_its_line_ends(served: Served) -> None:
    with served.connect() as connection:
        for byte in NOTE[:-1]:
            connection.sendall(bytes([byte]))
        assert served.got == []
        connection.sendall(b"\n")

        assert answer_on(connection) == {"noted": 1}


def test_request_when_more_follows_its_line_then_only_the_first_line_counts(served: Served) -> None:
    assert served.say(NOTE * 3) == {"noted": 1}

    assert len(served.got) == 1


@pytest.mark.parametrize("size", [LINE_LIMIT - 1, LINE_LIMIT])
def test_request_when_it_is_as_long_as_it_may_be_then_is_carried_out(served: Served, size: int) -> None:
    padding = "x" * (size - len(line(verb="note", x="")))

    assert served.say(line(verb="note", x=padding)) == {"noted": 1}


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"\n", "not JSON"),
        (b"hello\n", "not JSON"),
        (b'{"verb": "note"\n', "not JSON"),
        (b"\xff\xfe\x00\n", "not JSON"),
        (b"[" * 60_000 + b"\n", "not JSON"),
        (b'{"a":' * 10_000 + b"\n", "not JSON"),
        (b"[]\n", "not a JSON object"),
        (b"null\n", "not a JSON object"),
        (b'"note"\n', "not a JSON object"),
        (b"{}\n", "no verb None"),
        (b'{"verb": 5}\n', "no verb 5"),
        (b'{"verb": ["note"]}\n', "no verb"),
        (b'{"verb": {"a": 1}}\n', "no verb"),
        (b'{"verb": "nothing"}\n', "no verb 'nothing'"),
        (b'{"verb": "' + b"n" * 50_000 + b'"}\n', "no verb"),
        (b'{"verb": "\\ud800"}\n', "no verb"),
        (b"x" * LINE_LIMIT, f"more than {LINE_LIMIT} bytes"),
        (b" " * 10 * LINE_LIMIT + NOTE, f"more than {LINE_LIMIT} bytes"),
    ],
    ids=lambda value: f"{value[:20]!r}" if isinstance(value, bytes) else "",
)
def test_request_when_it_is_none_then_is_refused_with_the_reason_and_the_next_one_is_served(
    served: Served, content: bytes, problem: str
) -> None:
    answer = served.say(content)

    assert set(answer) == {"error", "hint", "code"}
    assert problem in answer["error"]
    assert served.got == []
    assert served.say(NOTE) == {"noted": 1}


def test_request_when_its_line_does_not_end_then_is_refused_and_not_carried_out(served: Served) -> None:
    with served.connect() as connection:
        connection.sendall(NOTE.rstrip())
        connection.shutdown(socket.SHUT_WR)

        assert "no line break" in answer_on(connection)["error"]
    assert served.got == []


def test_request_when_it_is_meant_for_another_root_then_is_not_carried_out(served: Served, tmp_path: Path) -> None:
    answer = served.say(line(verb="note", root="/somewhere/else"))

    assert answer["root"] == str(tmp_path)
    assert served.got == []
    assert served.say(line(verb="note", root=str(tmp_path))) == {"noted": 1}


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (LoopError("cannot do it", "do that"), {"error": "cannot do it", "hint": "do that", "code": 1}),
        (OSError(28, "No space left"), {"error": "No space left", "hint": "", "code": 1}),
        (ZeroDivisionError("by zero"), {"error": "unexpected: ZeroDivisionError: by zero", "hint": "", "code": 1}),
        (RecursionError(), {"error": "unexpected: RecursionError: ", "hint": "", "code": 1}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_handler_when_it_raises_then_that_is_the_answer_and_the_next_one_is_served(
    tmp_path: Path, error: Exception, answer: dict[str, Any]
) -> None:
    async def fails(_: Mapping[str, Any]) -> dict[str, Any]:
        raise error

    with Served(tmp_path, fails=fails) as served:
        assert served.say(line(verb="fails")) == answer
        assert served.say(NOTE) == {"noted": 1}


def test_answer_when_it_is_too_long_then_a_short_one_says_so(tmp_path: Path) -> None:
    async def talks(_: Mapping[str, Any]) -> dict[str, Any]:
        return {"text": "x" * LINE_LIMIT}

    with Served(tmp_path, talks=talks) as served:
        assert "too long" in served.say(line(verb="talks"))["error"]


# --- who asks ---


def test_peer_when_it_is_another_user_then_is_refused_before_a_word_is_read(tmp_path: Path) -> None:
    with Served(tmp_path, uid=os.geteuid() + 4711) as served, served.connect() as connection:
        answer = answer_on(connection)  # nothing was sent

    assert f"uid {os.geteuid() + 4711} may not ask" in answer["error"]
    assert served.got == []


def test_peer_when_it_is_another_user_that_sends_then_nothing_is_carried_out(tmp_path: Path) -> None:
    with Served(tmp_path, uid=65534) as served:
        assert "may not ask" in served.say(NOTE)["error"]
        assert served.got == []


def test_peer_when_it_is_root_then_is_served(tmp_path: Path) -> None:
    with Served(tmp_path, uid=0) as served:
        assert served.say(NOTE) == {"noted": 1}


# --- peers that take their time ---


def test_peer_when_it_sends_too_slowly_then_is_told_and_cut_off(tmp_path: Path) -> None:
    with Served(tmp_path, limit_s=0.2) as served, served.connect() as connection:
        connection.sendall(NOTE[:5])

        assert "took longer than" in answer_on(connection)["error"]
        assert served.got == []


def test_peer_when_it_reads_nothing_then_holds_up_no_other_and_is_cut_off(tmp_path: Path) -> None:
    async def talks(_: Mapping[str, Any]) -> dict[str, Any]:
        return {"text": "x" * (LINE_LIMIT - 100)}

    with Served(tmp_path, limit_s=0.5, talks=talks) as served, contextlib.ExitStack() as stack:
        deaf = stack.enter_context(served.connect())
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        deaf.sendall(line(verb="talks"))

        assert served.say(NOTE) == {"noted": 1}


def test_handler_when_it_takes_too_long_then_the_peer_is_told_and_others_are_served(tmp_path: Path) -> None:
    async def hangs(_: Mapping[str, Any]) -> dict[str, Any]:
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    with Served(tmp_path, limit_s=0.3, hangs=hangs) as served, served.connect() as connection:
        connection.sendall(line(verb="hangs"))
        assert served.say(NOTE) == {"noted": 1}

        assert "took longer than" in answer_on(connection)["error"]


def test_peers_when_there_are_very_many_then_all_are_served_a_few_at_a_time(tmp_path: Path) -> None:
    at_once: list[int] = []
    most: list[int] = []

    async def slow(_: Mapping[str, Any]) -> dict[str, Any]:
        at_once.append(1)
        most.append(len(at_once))
        await asyncio.sleep(0.01)
        at_once.pop()
        return {"done": True}

    answers: list[Any] = []
    with Served(tmp_path, slow=slow) as served:
        threads = [threading.Thread(target=lambda: answers.append(served.say(line(verb="slow")))) for _ in range(50)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert answers == [{"done": True}] * 50
    assert max(most) <= 8


def test_peers_when_they_hold_every_place_then_others_wait_until_those_are_cut_off(tmp_path: Path) -> None:
    with Served(tmp_path, limit_s=0.3) as served, contextlib.ExitStack() as stack:
        for _ in range(20):
            stack.enter_context(served.connect())

        assert served.say(NOTE) == {"noted": 1}


@pytest.mark.parametrize("sent", [b"", NOTE[:7], NOTE])
def test_peer_when_it_is_gone_at_once_then_the_next_one_is_served(served: Served, sent: bytes) -> None:
    for _ in range(20):
        with served.connect() as connection:
            connection.sendall(sent)

    assert served.say(NOTE)["noted"] in range(1, 22)


def test_socket_when_no_descriptor_is_left_for_a_connection_then_it_is_served_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = iter([OSError(24, "Too many open files")] * 2)
    accept = socket.socket.accept
    tried: list[float] = []

    def fails_first(self: socket.socket) -> Any:
        tried.append(time.monotonic())
        if (error := next(failures, None)) is not None:
            raise error
        return accept(self)

    monkeypatch.setattr("the_loop.supervision.control._PAUSE_S", 0.1)
    monkeypatch.setattr(socket.socket, "accept", fails_first)
    with Served(tmp_path) as served:
        assert served.say(NOTE) == {"noted": 1}

    assert len(tried) == 3, "it looks away in between"


# --- the end ---


def test_close_when_peers_hang_then_ends_at_once_and_the_socket_is_gone(tmp_path: Path) -> None:
    async def hangs(_: Mapping[str, Any]) -> dict[str, Any]:
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    with Served(tmp_path, hangs=hangs) as served, contextlib.ExitStack() as stack:
        silent, half, waiting, *_ = [stack.enter_context(served.connect()) for _ in range(12)]
        half.sendall(NOTE[:7])
        waiting.sendall(line(verb="hangs"))
        began = time.monotonic()

        served.close()

        assert time.monotonic() - began < 5
        assert answer_on(silent) is answer_on(half) is answer_on(waiting) is None
        assert not (tmp_path / CONTROL_NAME).exists()


def test_close_when_another_socket_took_the_place_then_that_one_stays(tmp_path: Path) -> None:
    with Served(tmp_path) as first, Served(tmp_path) as second:
        first.close()

        assert second.say(NOTE) == {"noted": 1}


# --- the file ---


@pytest.mark.parametrize("umask", [0o000, 0o077, 0o777])
def test_socket_when_made_under_any_umask_then_is_the_owners_alone_and_no_child_inherits_it(
    tmp_path: Path, umask: int
) -> None:
    before = os.umask(umask)
    try:
        listening = listen(tmp_path, None)
    finally:
        os.umask(before)

    assert stat.S_IMODE((tmp_path / CONTROL_NAME).lstat().st_mode) == 0o600
    assert not os.get_inheritable(listening.socket.fileno())
    assert not listening.socket.getblocking()
    listening.close()
    assert not (tmp_path / CONTROL_NAME).exists()


def test_socket_when_a_node_was_left_behind_then_takes_its_place(tmp_path: Path) -> None:
    listen(tmp_path, None).socket.close()
    with pytest.raises(ConnectionRefusedError):
        connect(tmp_path / CONTROL_NAME)

    with Served(tmp_path) as served:
        assert served.say(NOTE) == {"noted": 1}


def test_socket_when_the_root_is_very_deep_then_is_served(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*["a-rather-long-name-of-a-directory"] * 12)
    deep.mkdir(parents=True)

    with Served(deep) as served:
        assert served.say(NOTE) == {"noted": 1}
        assert stat.S_IMODE((deep / CONTROL_NAME).lstat().st_mode) == 0o600
    assert not (deep / CONTROL_NAME).exists()


@pytest.mark.parametrize("kind", ["file", "directory", "link"])
def test_socket_when_something_else_has_its_name_then_is_an_error_and_that_stays(tmp_path: Path, kind: str) -> None:
    path = tmp_path / CONTROL_NAME
    if kind == "directory":
        path.mkdir()
    elif kind == "link":
        path.symlink_to(tmp_path / "elsewhere")
    else:
        path.write_text("precious")
    before = path.lstat()

    with pytest.raises(OSError, match="not a socket"):
        listen(tmp_path, None)

    assert path.lstat().st_ino == before.st_ino
    assert not (tmp_path / "elsewhere").exists()


def test_runtime_directory_when_there_is_one_then_the_socket_is_there(tmp_path: Path) -> None:
    root, runtime = tmp_path / "root", tmp_path / "runtime"
    for folder in (root, runtime):
        folder.mkdir()
    listen(root, runtime).socket.close()  # a leftover

    with Served(root, runtime=runtime) as served:
        assert served.listening.path == runtime / CONTROL_NAME
        assert served.say(NOTE) == {"noted": 1}
    assert list(tmp_path.rglob(CONTROL_NAME)) == []


def test_runtime_directory_when_a_poller_of_another_root_serves_there_then_both_are_served(tmp_path: Path) -> None:
    one, other, runtime = (tmp_path / name for name in ("one", "other", "runtime"))
    for folder in (one, other, runtime):
        folder.mkdir()

    with Served(other, runtime=runtime) as neighbour, Served(one, runtime=runtime) as served:
        assert served.listening.path == one / CONTROL_NAME
        assert served.say(line(verb="note", root=str(one))) == {"noted": 1}
        assert neighbour.say(line(verb="note", root=str(other))) == {"noted": 1}


@pytest.mark.parametrize("is_file", [True, False])
def test_runtime_directory_when_it_is_none_then_the_socket_is_in_the_root(tmp_path: Path, is_file: bool) -> None:
    root, runtime = tmp_path / "root", tmp_path / "runtime"
    root.mkdir()
    if is_file:
        runtime.write_text("")

    with Served(root, runtime=runtime) as served:
        assert served.listening.path == root / CONTROL_NAME
        assert served.say(NOTE) == {"noted": 1}


def test_line_when_written_then_is_json_in_ascii(served: Served) -> None:
    with served.connect() as connection:
        connection.sendall(line(verb="ä\u2028\x1b"))
        raw = connection.recv(4096)

    assert raw.isascii()
    assert "\\x1b" in json.loads(raw)["error"]
