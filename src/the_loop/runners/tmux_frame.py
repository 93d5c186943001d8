"""Whether a program takes pastes as such (bracketed paste), which tmux before 3.6 does not tell.

It does tell the terminal of everybody who attaches: so a client is attached for a moment, read-only, in a terminal of
ours of the same size, and its output is looked through. Programs see nothing of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import pty
import signal
import struct
import subprocess
import termios
from collections.abc import Mapping, Sequence
from typing import Final

_ON: Final = b"\x1b[?2004h"
_DRAWN: Final = b"\x1b[?25"  # the cursor is shown or hidden: the modes were set before
_LIMIT_S: Final = 1.0
_QUIET_S: Final = 0.1


async def takes_pastes(argv: Sequence[str], environ: Mapping[str, str], size: tuple[int, int]) -> bool:
    """True if the client `argv` of a terminal of `size` columns and lines is told so. Raises OSError."""
    ours, its = pty.openpty()
    try:
        fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
        os.set_blocking(ours, False)
        process = subprocess.Popen(  # noqa: ASYNC220 (asyncio's would take the terminal for a pipe of its own)
            list(argv),
            stdin=its,
            stdout=its,
            stderr=its,
            env={**environ, "TERM": "xterm-256color"},
            start_new_session=True,
        )
        os.close(its)
        its = -1
        try:
            return _ON in await _seen(ours)
        finally:
            process.send_signal(signal.SIGTERM)
            await _reaped(process)
    finally:
        for descriptor in (ours, its):
            if descriptor >= 0:
                os.close(descriptor)


async def _seen(terminal: int) -> bytes:
    """What the client wrote, until it has been quiet for a while."""
    loop = asyncio.get_running_loop()
    seen = b""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_LIMIT_S):
            while _ON not in seen:
                readable = asyncio.Event()
                loop.add_reader(terminal, readable.set)
                try:
                    async with asyncio.timeout(_QUIET_S if _DRAWN in seen else None):
                        await readable.wait()
                    seen += os.read(terminal, 1 << 16)
                except OSError:  # it has ended (TimeoutError, too, is one)
                    break
                finally:
                    loop.remove_reader(terminal)
    return seen


async def _reaped(process: subprocess.Popen[bytes]) -> None:
    for _ in range(100):
        if process.poll() is not None:
            return
        await asyncio.sleep(0.01)
    process.kill()
    process.wait()
