"""The wake socket: the manager's, taken only if it is meant for us, or our own, however deep the root lies."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Final

import pytest

from the_loop.supervision.sockets import OWN_NAME, drain, own_socket, send_wake

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

# As a service starts: descriptor 3 is put there, the variables say whose it is ("ME" stands for the pid).
CHILD: Final = """
    import json, os, sys
    from the_loop.supervision.sockets import inherited_socket
    given, variables = int(sys.argv[1]), json.loads(sys.argv[2])
    if given >= 0:
        os.dup2(given, 3)
    else:
        os.closerange(3, 10)
    environ = {name: value.replace("ME", str(os.getpid())) for name, value in variables.items()}
    environ["HOME"] = "/"
    found = inherited_socket(environ)
    print(json.dumps({
        "fd": found and found.fileno(), "left": sorted(environ), "blocks": found and found.getblocking(),
        "inheritable": found and os.get_inheritable(3), "type": found and int(found.type),
        "is_there": os.path.lexists("/proc/self/fd/3"),
    }))
"""
OURS: Final = {"LISTEN_FDS": "1", "LISTEN_PID": "ME", "LISTEN_FDNAMES": "the-loop-poll.socket"}


def inherit(given: int, variables: Mapping[str, str]) -> dict[str, Any]:
    script = "\n".join(line.removeprefix("    ") for line in CHILD.splitlines())
    argv = [sys.executable, "-c", script, str(given), json.dumps(variables)]
    done = subprocess.run(
        argv, pass_fds=[given] if given >= 0 else [], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture
def wakes() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
        yield made


# --- the manager's socket ---


def test_inherited_when_meant_for_us_then_is_taken_and_no_child_hears_of_it(wakes: socket.socket) -> None:
    found = inherit(wakes.fileno(), OURS)

    assert found["fd"] == 3
    assert found["left"] == ["HOME"]
    assert found["blocks"] is False
    assert found["inheritable"] is False


def test_inherited_when_there_are_several_then_is_the_first(wakes: socket.socket) -> None:
    assert inherit(wakes.fileno(), {**OURS, "LISTEN_FDS": "2"})["fd"] == 3


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"LISTEN_FDS": "1"},
        {"LISTEN_PID": "ME"},
        {"LISTEN_FDS": "1", "LISTEN_PID": "1"},
        {"LISTEN_FDS": "0", "LISTEN_PID": "ME"},
        {"LISTEN_FDS": "-1", "LISTEN_PID": "ME"},
        {"LISTEN_FDS": "one", "LISTEN_PID": "ME"},
        {"LISTEN_FDS": "²", "LISTEN_PID": "ME"},
        {"LISTEN_FDS": "", "LISTEN_PID": ""},
        {"LISTEN_FDS": "1", "LISTEN_PID": "ME ME"},
        {"LISTEN_FDS": "1", "LISTEN_PID": "-ME"},
    ],
    ids=str,
)
def test_inherited_when_absent_or_foreign_or_garbage_then_descriptor_three_is_left_alone(
    wakes: socket.socket, variables: dict[str, str]
) -> None:
    found = inherit(wakes.fileno(), variables)

    assert found["fd"] is None
    assert found["left"] == ["HOME"]
    assert found["is_there"]


def test_inherited_when_the_descriptor_is_closed_then_there_is_none() -> None:
    assert inherit(-1, OURS)["fd"] is None


def test_inherited_when_the_descriptor_is_a_file_then_there_is_none(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file:
        assert inherit(file.fileno(), OURS)["fd"] is None


def test_inherited_when_the_socket_is_no_datagram_socket_then_there_is_none() -> None:
    # a changed unit: a listening stream is readable for ever and has nothing to read
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stream:
        assert inherit(stream.fileno(), OURS)["fd"] is None


# --- our own ---


@pytest.fixture
def deep(tmp_path: Path) -> Path:
    """A root whose path is far longer than a socket's address may be."""
    root = tmp_path.joinpath(*["a-rather-long-name-of-a-directory"] * 12)
    root.mkdir(parents=True)
    assert len(str(root)) > 300
    return root


def received(wakes: socket.socket) -> int:
    count = 0
    while True:
        try:
            wakes.recv(64)
        except BlockingIOError:
            return count
        count += 1


def test_own_when_the_root_is_very_deep_then_hears_wakes(deep: Path) -> None:
    wakes = own_socket(deep)
    assert wakes is not None

    with wakes:
        assert send_wake(deep / OWN_NAME)
        assert received(wakes) == 1
    assert stat.S_IMODE((deep / OWN_NAME).lstat().st_mode) == 0o600


def test_own_when_made_then_no_child_inherits_it_and_nothing_waits_for_it(tmp_path: Path) -> None:
    wakes = own_socket(tmp_path)
    assert wakes is not None

    with wakes:
        assert not os.get_inheritable(wakes.fileno())
        assert not wakes.getblocking()


def test_own_when_a_node_was_left_behind_then_takes_its_place(tmp_path: Path) -> None:
    first = own_socket(tmp_path)
    assert first is not None
    first.close()
    assert not send_wake(tmp_path / OWN_NAME)

    second = own_socket(tmp_path)
    assert second is not None
    with second:
        assert send_wake(tmp_path / OWN_NAME)
        assert received(second) == 1


def test_own_when_a_link_was_planted_then_what_it_points_to_is_left_alone(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / OWN_NAME).symlink_to(victim)

    wakes = own_socket(tmp_path)

    assert victim.read_text() == "precious"
    assert wakes is not None
    with wakes:
        assert stat.S_ISSOCK((tmp_path / OWN_NAME).lstat().st_mode)


def test_own_when_a_directory_is_in_the_way_or_the_root_is_missing_then_there_is_none(tmp_path: Path) -> None:
    (tmp_path / OWN_NAME).mkdir()

    assert own_socket(tmp_path) is None
    assert own_socket(tmp_path / "missing") is None


# --- sending and taking ---


def test_wake_when_nobody_listens_then_is_not_accepted(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    assert not send_wake(tmp_path / "missing")
    assert not send_wake(tmp_path / "missing" / "deeper")
    assert not send_wake(tmp_path / "file")
    assert not send_wake(tmp_path)


def test_wake_when_a_stream_socket_is_there_then_is_not_accepted(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stream:
        stream.bind(str(tmp_path / "s"))
        stream.listen()

        assert not send_wake(tmp_path / "s")


def test_wake_when_the_queue_is_full_then_is_accepted_at_once(tmp_path: Path) -> None:
    wakes = own_socket(tmp_path)
    assert wakes is not None

    with wakes:
        assert all(send_wake(tmp_path / OWN_NAME) for _ in range(2000))
        drain(wakes)
        assert received(wakes) == 0


def test_drain_when_nothing_waits_then_returns(tmp_path: Path) -> None:
    wakes = own_socket(tmp_path)
    assert wakes is not None

    with wakes:
        drain(wakes)


def test_drain_when_datagrams_are_long_or_empty_then_takes_them_all(tmp_path: Path) -> None:
    wakes = own_socket(tmp_path)
    assert wakes is not None

    with wakes, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        for content in (b"", b"x" * 50_000, b""):
            sender.sendto(content, str(tmp_path / OWN_NAME))
        drain(wakes)
        assert received(wakes) == 0
