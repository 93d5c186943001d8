"""Our tmux server: where it is, that it is ours, and what is known when it does not answer."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.processes import wait_until
from the_loop.processes import boot_id, identity_of
from the_loop.runners.tmux_client import Client, Unanswered, literal, plain
from the_loop.runners.tmux_server import NoServer, Server, is_alive, prepare, properties, scrubbed, socket_path
from the_loop.runners.tmux_session import Session, session_name

ENVIRON = {"PATH": os.environ["PATH"], "HOME": "/", "GITHUB_TOKEN": "s3cret", "TMUX": "/x,1,1", "TERM": "xterm"}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path / "root", tmp_path / "folder", ENVIRON)
    yield server
    path = socket_path(tmp_path / "root")
    subprocess.run(["tmux", "-N", "-S", str(path), "kill-server"], capture_output=True, check=False)
    path.unlink(missing_ok=True)
    if path.parent.is_dir():
        path.parent.rmdir()


def ask(server: Server, *commands: str) -> str:
    return asyncio.run(server.ask(*commands)).out.strip()


# --- names ---


def test_socket_path_when_roots_differ_is_another_and_no_variable_changes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    before = socket_path(Path("/srv/a"))
    for name in ("TMPDIR", "TMUX_TMPDIR", "XDG_RUNTIME_DIR", "RUNTIME_DIRECTORY", "HOME"):
        monkeypatch.setenv(name, "/elsewhere")

    assert socket_path(Path("/srv/a")) == before
    assert socket_path(Path("/srv/b")) != before
    assert socket_path(Path("/srv/" + "x" * 4000)).name == "tmux"
    assert len(os.fsencode(socket_path(Path("/srv/" + "x" * 4000)))) < 107


def test_session_names_when_refs_are_alike_are_of_one_length_and_differ() -> None:
    refs = ["x:1", "x:10", "x:1.", "x:1:", "-x:1", "x:\udc80"]
    names = [session_name(ref) for ref in refs]

    assert len(set(names)) == len(refs)
    assert {len(name) for name in names} == {25}
    assert all(name.isalnum() for name in names)


@pytest.mark.parametrize("text", ["", ";", "a;", "a\\;", ";;", "a\\", "-t", "#{pid}", "~", "$HOME", "'\"", "\u00fc"])
def test_argument_when_it_is_literal_is_taken_as_it_is(server: Server, text: str) -> None:
    asyncio.run(server.start())

    ask(server, "set-option", "-g", "@x", literal(text))
    assert ask(server, "show-options", "-gv", "@x") == text
    assert ask(server, "display-message", "-p", "--", plain(text)) == text


# --- whose it is ---


def test_directories_when_somebody_else_made_them_are_refused(tmp_path: Path) -> None:
    prepare(tmp_path / "a" / "b" / "tmux")
    assert [path.stat().st_mode & 0o777 for path in (tmp_path / "a", tmp_path / "a" / "b")] == [0o700, 0o700]
    (tmp_path / "c").symlink_to(tmp_path / "a")
    with pytest.raises(OSError, match="is not a directory of this user"):
        prepare(tmp_path / "c" / "b" / "tmux")
    with pytest.raises(OSError, match="too long"):
        prepare(tmp_path / ("x" * 110) / "tmux")


def test_environment_when_it_is_scrubbed_has_what_is_on_the_list_only() -> None:
    assert scrubbed(ENVIRON) == {"PATH": ENVIRON["PATH"], "HOME": "/"}
    assert scrubbed({"HOME": "/a\nb", "LANG": "\udcff"}) == {"PATH": os.defpath}


def test_unit_when_described_runs_in_exactly_this_environment() -> None:
    (command,) = dict(properties(["tmux", "-D"], {"A": "$b", "C": "d"}))["ExecStartEx"][1]

    assert command == ("/usr/bin/env", ["/usr/bin/env", "-i", "A=$b", "C=d", "tmux", "-D"], ["no-env-expand"])


# --- is it there ---


def test_server_when_none_was_started_is_certainly_not_there(server: Server) -> None:
    with pytest.raises(NoServer):
        ask(server, "list-sessions")
    with pytest.raises(NoServer):
        server.ask_blocking("list-sessions")


def test_server_when_started_twice_at_once_is_one(server: Server, tmp_path: Path) -> None:
    async def both() -> None:
        other = Server(tmp_path / "root", tmp_path / "folder", ENVIRON)
        await asyncio.gather(server.start(), other.start(), server.start())

    asyncio.run(both())
    pid = int(ask(server, "display-message", "-p", "#{pid}"))

    assert ask(server, "show-environment", "-g").splitlines()[0] == "HOME=/"
    assert "s3cret" not in Path(f"/proc/{pid}/environ").read_text()
    assert is_alive(f"{identity_of(pid)}:{boot_id()}")
    ask(server, "kill-server")
    wait_until(lambda: not is_alive(f"{identity_of(pid)}:{boot_id()}"), "its end")
    with pytest.raises(NoServer):
        ask(server, "list-sessions")


def test_server_when_it_is_stopped_could_not_be_asked(server: Server) -> None:
    asyncio.run(server.start())
    pid = int(ask(server, "display-message", "-p", "#{pid}"))
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(Unanswered, match="did not answer"):
            server.ask_blocking("list-sessions")
        with pytest.raises(Unanswered, match="a moment ago"):
            Session(server, "x").state_blocking()
    finally:
        os.kill(pid, signal.SIGCONT)
    assert asyncio.run(Session(server, "x").state()) is None


def test_server_when_its_socket_was_removed_makes_it_again_and_stays_the_only_one(
    server: Server, tmp_path: Path
) -> None:
    asyncio.run(server.start())
    pid = ask(server, "display-message", "-p", "#{pid}")
    socket_path(tmp_path / "root").unlink()

    with pytest.raises(Unanswered, match="its socket"):
        ask(server, "list-sessions")

    for _ in range(100):
        try:
            assert ask(server, "display-message", "-p", "#{pid}") == pid
            break
        except Unanswered:
            continue
    else:
        pytest.fail("its socket is not there again")


def test_process_when_it_has_ended_is_not_alive_though_it_was_not_reaped() -> None:
    child = os.fork()
    if child == 0:
        signal.pause()
    identity = f"{identity_of(child)}:{boot_id()}"
    assert is_alive(identity)
    assert not is_alive(f"{identity_of(child)}:another boot")
    os.kill(child, signal.SIGKILL)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)

    assert not is_alive(identity)

    os.waitpid(child, 0)


# --- a client ---


def test_client_when_it_has_a_lock_keeps_it_until_it_ends(tmp_path: Path) -> None:
    script = 'cat; printf error >&2; [ "$(readlink /proc/$$/fd/9)" = "$0" ] || exit 3'
    file = tmp_path / "lock"
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT)
    try:
        client = Client(["/bin/sh", "-c", script, str(file)], {"A": "b"}, stdin=b"text" * 50_000, lock_fd=descriptor)
        answer = client.wait_blocking(5.0)
    finally:
        os.close(descriptor)

    assert (answer.code, answer.out, answer.err) == (0, "text" * 50_000, "error")


def test_client_when_it_does_not_end_is_killed_or_goes_on(tmp_path: Path) -> None:
    async def killed_and_left() -> None:
        argv = ["/bin/sh", "-c", "sleep 0.3; echo done >$0", str(tmp_path / "on")]
        with pytest.raises(Unanswered):
            await Client(["/bin/sh", "-c", "sleep 5"], {}).wait(0.05)
        with pytest.raises(Unanswered):
            await Client(argv, {"PATH": os.defpath}).wait(0.05, kills=False)

    asyncio.run(killed_and_left())
    wait_until((tmp_path / "on").exists, "its end")


def test_client_when_its_program_is_missing_asked_nothing() -> None:
    with pytest.raises(Unanswered, match="cannot start"):
        Client(["no-such-program"], {"PATH": os.defpath})
