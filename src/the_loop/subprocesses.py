"""Running another program: without a shell or our standard input, with a time limit; a failure is a value."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_FOR_MANAGER: Final = (
    *("HOME", "LOGNAME", "PATH", "SHELL", "USER", "TZ"),
    *("DBUS_SESSION_BUS_ADDRESS", "DBUS_SYSTEM_BUS_ADDRESS", "XDG_RUNTIME_DIR"),
)
_OUTPUT_LIMIT: Final = 1 << 20  # bytes kept of the output of a program


@dataclass(frozen=True, slots=True)
class Finished:
    """How a program ended. `code` is None if it exceeded its time limit or could not be started."""

    argv: tuple[str, ...]
    code: int | None
    out: str
    err: str

    @property
    def is_good(self) -> bool:
        return self.code == 0

    @property
    def problem(self) -> str:
        """Its error output (or its output, or how it ended) on one line, after the name of the program."""
        output = " ".join((self.err or self.out).split())
        ended = "timed out" if self.code is None else f"exit status {self.code}"
        return f"{self.argv[0]}: {output or ended}"


async def run(
    argv: Sequence[str], environ: Mapping[str, str], *, limit_s: float, pass_fds: Sequence[int] = ()
) -> Finished:
    """Run a program from the event loop. Killed after `limit_s` seconds; left running if the wait is cancelled."""
    import asyncio  # noqa: PLC0415 (half of what `poll status` takes, which needs none of it)

    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(environ),
            pass_fds=tuple(pass_fds),
            start_new_session=True,
        )
    except OSError as error:
        return Finished(tuple(argv), None, "", error.strerror or str(error))
    try:
        async with asyncio.timeout(limit_s):
            out, err = await process.communicate()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        return Finished(tuple(argv), None, "", "")
    return Finished(tuple(argv), process.returncode, _text(out), _text(err))


def run_blocking(argv: Sequence[str], environ: Mapping[str, str], *, limit_s: float) -> Finished:
    """Run a program and block until it ends, at most `limit_s` seconds."""
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, env=dict(environ), timeout=limit_s, check=False
        )
    except subprocess.TimeoutExpired:
        return Finished(tuple(argv), None, "", "")
    except OSError as error:
        return Finished(tuple(argv), None, "", error.strerror or str(error))
    return Finished(tuple(argv), done.returncode, _text(done.stdout), _text(done.stderr))


def manager_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of `systemctl`: built from a list, so without our sockets and secrets.

    `LC_ALL` is set, so that its messages are in English.
    """
    kept = {name: environ[name] for name in _FOR_MANAGER if name in environ}
    kept["LC_ALL"] = "C.UTF-8"
    if "XDG_RUNTIME_DIR" not in kept and (found := _runtime_directory()):
        kept["XDG_RUNTIME_DIR"] = found
    return kept


def _runtime_directory() -> str:
    """`/run/user/UID` if we own it, else "": cron and runuser do not set the variable."""
    path = Path(f"/run/user/{os.geteuid()}")
    try:
        return str(path) if path.stat().st_uid == os.geteuid() else ""
    except OSError:
        return ""


def _text(content: bytes) -> str:
    return content[:_OUTPUT_LIMIT].decode("utf-8", "replace").strip()
