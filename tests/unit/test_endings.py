"""The end of a delivery is told by the kernel; where it is not, the files are looked at again."""

from __future__ import annotations

import asyncio
import errno
import os
import time
from pathlib import Path

import pytest

from the_loop.inotify import names_in
from the_loop.runners import endings
from the_loop.runners.endings import Endings

SOON_S = 20.0  # far less than the pause after which it would be looked at anyway


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endings, "_WATCHED_WAITS_S", (1000.0, 1000.0))


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


async def told(found: Endings, stem: Path, act: str) -> None:
    with found.of(stem) as changes:
        waiting = asyncio.create_task(changes.wait())
        await asyncio.sleep(0)
        if act == "outcome":
            beside = stem.with_name("beside")
            beside.write_text("{}")
            beside.rename(stem.with_name(f"{stem.name}.outcome.json"))
        else:
            os.close(os.open(stem.with_name(f"{stem.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600))
        async with asyncio.timeout(SOON_S):
            await waiting


@pytest.mark.parametrize("act", ["outcome", "lock"])
def test_change_when_it_is_of_this_delivery_then_ends_the_wait(tmp_path: Path, act: str) -> None:
    async def whole() -> None:
        before, found = descriptors(), Endings()
        await told(found, tmp_path / "x", act)
        await told(found, tmp_path / "x", act)
        assert descriptors() == before

    asyncio.run(whole())


def test_change_when_it_is_of_another_delivery_then_ends_no_wait(tmp_path: Path) -> None:
    async def whole() -> None:
        found = Endings()
        with found.of(tmp_path / "y") as changes:
            waiting = asyncio.create_task(changes.wait())
            await told(found, tmp_path / "x", "outcome")
            assert not waiting.done()
            waiting.cancel()

    asyncio.run(whole())


def test_wait_when_the_kernel_gives_no_watch_then_looks_again_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(endings, "watch", refuse)

    async def whole() -> float:
        found, began = Endings(), time.monotonic()
        with found.of(tmp_path / "x") as changes:
            await changes.wait()
            await changes.wait()
        return time.monotonic() - began

    assert asyncio.run(whole()) < SOON_S


def test_events_when_the_kernel_lost_some_then_every_wait_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endings, "names_in", lambda _: [b""])  # IN_Q_OVERFLOW has no name

    async def whole() -> None:
        found = Endings()
        with found.of(tmp_path / "y") as changes:
            waiting = asyncio.create_task(changes.wait())
            await told(found, tmp_path / "x", "outcome")
            await waiting

    asyncio.run(whole())


def test_watch_when_nothing_waits_any_more_then_is_let_go(tmp_path: Path) -> None:
    """A user has few of them, and a service manager needs some."""

    async def whole() -> None:
        before, found = descriptors(), Endings()
        with found.of(tmp_path / "y"):
            with found.of(tmp_path / "x"):
                assert descriptors() == before + 1
            assert descriptors() == before + 1
        assert descriptors() == before

    asyncio.run(whole())


def test_names_when_a_read_has_several_events_then_each_is_found() -> None:
    head = bytes(12)
    content = b"".join(
        head + len(name).to_bytes(4, "little") + name for name in (b"a.lock\0\0", b"", b"b.outcome.json\0\0")
    )

    assert list(names_in(content)) == [b"a.lock", b"", b"b.outcome.json"]
