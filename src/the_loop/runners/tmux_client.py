"""One call of the tmux client: a process of its own, with a time limit, that may hold a delivery's lock.

The server executes what a client asked for whether or not we live on. So a client that types something is given the
delivery's lock as a descriptor that it knows nothing of: *lock held* means that the call is in flight. It gets the
text as a file in memory and leaves its answer in another, so that it waits for us in nothing.

A call that is not answered in time is `Unanswered`: that is "could not find out", never "no".
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import select
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

LIMIT_S: Final = 10.0
_LOCK_FD: Final = 9  # in the client; not 0 or 1, which the client passes on to the server
_ANSWER_LIMIT: Final = 4 << 20


class Unanswered(OSError):
    """It could not be found out: the server does not answer, or the client could not be started."""


@dataclass(frozen=True, slots=True)
class Answer:
    code: int
    out: str
    err: str


def literal(text: str) -> str:
    """An argument that tmux takes as it is: at the end of one, `;` separates commands."""
    return f"{text[:-1]}\\;" if text.endswith(";") else text


def plain(text: str) -> str:
    """An argument that tmux expands to this text, where it expands formats."""
    return literal(text.replace("#", "##"))


class Client:
    """A started client. It is reaped when it has ended, whoever waits for it; it goes on if nobody does."""

    def __init__(
        self, argv: Sequence[str], environ: Mapping[str, str], *, stdin: bytes = b"", lock_fd: int | None = None
    ) -> None:
        """Raises Unanswered if it cannot be started: nothing was asked then."""
        self._files: list[int] = []
        try:
            self._pid = self._spawn(argv, environ, stdin, lock_fd)
            self._pidfd = os.pidfd_open(self._pid)
        except OSError as error:
            self._close()
            raise Unanswered(error.errno, f"cannot start '{argv[0]}': {error.strerror}") from error

    async def wait(self, limit_s: float = LIMIT_S, *, kills: bool = True) -> Answer:
        """Its answer. Raises Unanswered when the time is over; without `kills` the client goes on."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[Answer] = loop.create_future()

        def end() -> None:
            loop.remove_reader(self._pidfd)
            answer = self._reaped()
            if not ended.done():
                ended.set_result(answer)

        loop.add_reader(self._pidfd, end)
        try:
            async with asyncio.timeout(limit_s):
                return await asyncio.shield(ended)
        except TimeoutError:
            if kills:
                self._kill()
            raise _silent(limit_s) from None

    def wait_blocking(self, limit_s: float) -> Answer:
        """Its answer, with the event loop standing still. Raises Unanswered, and kills it, when the time is over."""
        waiter = select.poll()
        waiter.register(self._pidfd, select.POLLIN)
        if not waiter.poll(limit_s * 1000):
            self._kill()
            self._reaped()
            raise _silent(limit_s)
        return self._reaped()

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def _spawn(self, argv: Sequence[str], environ: Mapping[str, str], stdin: bytes, lock_fd: int | None) -> int:
        given, out, err = (self._memory(name) for name in ("stdin", "stdout", "stderr"))
        view = memoryview(stdin)
        while view:
            view = view[os.write(given, view) :]
        os.lseek(given, 0, os.SEEK_SET)
        actions: list[tuple[Any, ...]] = [(os.POSIX_SPAWN_DUP2, one, n) for n, one in enumerate((given, out, err))]
        if lock_fd is not None:
            actions.append((os.POSIX_SPAWN_DUP2, lock_fd, _LOCK_FD))
        return os.posix_spawnp(
            argv[0],
            [part.encode("utf-8", "surrogateescape") for part in argv],
            {
                name.encode("utf-8", "surrogateescape"): value.encode("utf-8", "surrogateescape")
                for name, value in environ.items()
            },
            file_actions=actions,
            setsid=True,
            setsigmask=(),
            setsigdef=(signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP),
        )

    def _memory(self, name: str) -> int:
        """A file in memory. NB: above the descriptors that the client gets, or one would take the other's place."""
        made = os.memfd_create(f"the-loop-{name}", os.MFD_CLOEXEC)
        if made <= _LOCK_FD:
            low, made = made, fcntl.fcntl(made, fcntl.F_DUPFD_CLOEXEC, _LOCK_FD + 1)
            os.close(low)
        self._files.append(made)
        return made

    def _reaped(self) -> Answer:
        code = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        out, err = (os.pread(file, _ANSWER_LIMIT, 0).decode("utf-8", "replace") for file in self._files[1:])
        os.close(self._pidfd)
        self._close()
        return Answer(code, out, err.strip())

    def _close(self) -> None:
        while self._files:
            os.close(self._files.pop())


def _silent(limit_s: float) -> Unanswered:
    return Unanswered(None, f"the tmux server did not answer within {limit_s:.0f} s")
