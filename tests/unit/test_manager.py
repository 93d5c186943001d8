"""The service manager over D-Bus, played by a peer on a socket: what is sent, and what each answer means."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.dbus_server import Answer, Body, Error, Peer
from the_loop.manager import UNIT_EXISTS, Manager, ManagerError, NoAnswer, NoManager, Refused

if TYPE_CHECKING:
    from collections.abc import Callable

JOB = Body("o", ("/org/freedesktop/systemd1/job/1",))
NAME = "theloop-a-b-1.service"
DBUS = "org.freedesktop.DBus.Error"


def private(folder: Path) -> Path:
    return folder / "systemd" / "private"


def ask(folder: Path, *, limit_s: float = 30.0, lock: Path | None = None, **environ: str) -> None:
    """Ask for one unit in an event loop of its own."""

    async def start() -> None:
        manager = Manager({"XDG_RUNTIME_DIR": str(folder), **environ}, limit_s=limit_s)
        try:
            with (lock or Path("/dev/null")).open("rb") as file:
                descriptor = ("StandardInputFileDescriptor", ("h", file.fileno()))
                await manager.start_transient_unit(NAME, [("Type", ("s", "exec")), descriptor])
        finally:
            manager.close()

    asyncio.run(start())


def answering(answer: Answer) -> Callable[[str, tuple[Any, ...]], Answer]:
    return lambda _, __: answer


def test_unit_when_asked_for_over_the_private_socket_then_the_descriptor_comes_along(tmp_path: Path) -> None:
    lock = tmp_path / "x.lock"
    lock.touch()

    with Peer(private(tmp_path), answering(JOB)) as peer:
        ask(tmp_path, lock=lock)

    ((member, (name, mode, properties, others)),) = peer.calls
    assert (member, name, mode, others) == ("StartTransientUnit", NAME, "fail", [])
    assert properties == [("Type", ("s", "exec")), ("StandardInputFileDescriptor", ("h", lock))]


@pytest.mark.parametrize("names_it", [True, False])
def test_bus_when_there_is_no_private_socket_then_is_greeted_and_asked(tmp_path: Path, names_it: bool) -> None:
    path = tmp_path / ("elsewhere" if names_it else "bus")
    environ: dict[str, Any] = {"DBUS_SESSION_BUS_ADDRESS": f"tcp:host=x;unix:path={path}"} if names_it else {}

    with Peer(path, lambda member, _: Body("s", (":1.7",)) if member == "Hello" else JOB) as peer:
        ask(tmp_path, **environ)

    assert [member for member, _ in peer.calls] == ["Hello", "StartTransientUnit"]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (UNIT_EXISTS, Refused),
        (f"{DBUS}.AccessDenied", Refused),
        (f"{DBUS}.LimitsExceeded", Refused),
        (f"{DBUS}.ServiceUnknown", NoManager),
        (f"{DBUS}.NameHasNoOwner", NoManager),
        (f"{DBUS}.NoReply", NoAnswer),
        (f"{DBUS}.Disconnected", NoAnswer),
    ],
)
def test_error_when_it_comes_then_means_what_its_name_says(tmp_path: Path, name: str, kind: type[ManagerError]) -> None:
    with Peer(private(tmp_path), answering(Error(name))), pytest.raises(kind) as caught:
        ask(tmp_path)

    assert type(caught.value) is kind
    assert getattr(caught.value, "name", name) == name


def test_answer_when_none_comes_in_time_then_it_may_have_been_accepted(tmp_path: Path) -> None:
    with Peer(private(tmp_path), answering(None)) as peer, pytest.raises(NoAnswer, match="did not answer"):
        ask(tmp_path, limit_s=0.2)

    assert len(peer.calls) == 1


def test_connection_when_it_ends_in_a_call_then_it_may_have_been_accepted(tmp_path: Path) -> None:
    with Peer(private(tmp_path), lambda *_: peer.hang_up()) as peer, pytest.raises(NoAnswer):
        ask(tmp_path)


@pytest.mark.parametrize("obstacle", ["nothing", "a file", "no descriptors", "hangs up"])
def test_manager_when_it_cannot_be_reached_then_nothing_was_asked(tmp_path: Path, obstacle: str) -> None:
    path = private(tmp_path)
    if obstacle == "a file":
        path.parent.mkdir()
        path.touch()
    if obstacle in ("nothing", "a file"):
        with pytest.raises(NoManager, match="cannot reach"):
            ask(tmp_path)
        return
    with Peer(path, answering(JOB), agrees=obstacle != "no descriptors") as peer:
        if obstacle == "hangs up":
            peer.refuses = True
        with pytest.raises(NoManager, match="cannot reach"):
            ask(tmp_path)

    assert peer.calls == []


def test_connection_when_it_was_lost_then_is_made_again(tmp_path: Path) -> None:
    async def twice(peer: Peer) -> None:
        manager = Manager({"XDG_RUNTIME_DIR": str(tmp_path)})
        await manager.start_transient_unit("a.service", [])
        await manager.start_transient_unit("b.service", [])
        peer.hang_up()
        async with asyncio.timeout(10):
            while True:
                try:
                    await manager.start_transient_unit("c.service", [])
                except NoAnswer:
                    continue
                break
        manager.close()

    with Peer(private(tmp_path), answering(JOB)) as peer:
        asyncio.run(twice(peer))

    assert peer.connections == 2


def test_calls_side_by_side_get_each_its_own_answer(tmp_path: Path) -> None:
    def answer(_: str, body: tuple[Any, ...]) -> Answer:
        return JOB if body[0] == "good.service" else Error(UNIT_EXISTS)

    async def both() -> list[object]:
        manager = Manager({"XDG_RUNTIME_DIR": str(tmp_path)})
        calls = [manager.start_transient_unit(name, []) for name in ("good.service", "taken.service")]
        found = await asyncio.gather(*calls, return_exceptions=True)
        manager.close()
        return list(found)

    with Peer(private(tmp_path), answer) as peer:
        good, taken = asyncio.run(both())

    assert good is None
    assert isinstance(taken, Refused)
    assert peer.connections == 1


def test_message_that_is_larger_than_the_sockets_buffer_arrives_whole(tmp_path: Path) -> None:
    text = "x" * 3_000_000

    async def start() -> None:
        manager = Manager({"XDG_RUNTIME_DIR": str(tmp_path)})
        await manager.start_transient_unit(NAME, [("Description", ("s", text))])
        manager.close()

    with Peer(private(tmp_path), answering(JOB)) as peer:
        asyncio.run(start())

    assert peer.calls[0][1][2] == [("Description", ("s", text))]
