"""Running another program: without a shell, without our standard input, for a bounded time, its failure a value."""

from __future__ import annotations

import asyncio
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
_OUTPUT_LIMIT: Final = 1 << 20  # bytes kept of what a program says


@dataclass(frozen=True, slots=True)
class Finished:
    """How a program ended. `code` is None where it did not within its limit, or could not be started."""

    argv: tuple[str, ...]
    code: int | None
    out: str
    err: str

    @property
    def is_good(self) -> bool:
        return self.code == 0

    @property
    def problem(self) -> str:
        """What it complained of, on one line."""
        said = " ".join((self.err or self.out).split())
        ended = "did not end in time" if self.code is None else f"exit status {self.code}"
        return f"{self.argv[0]}: {said or ended}"


async def run(
    argv: Sequence[str], environ: Mapping[str, str], *, limit_s: float, pass_fds: Sequence[int] = ()
) -> Finished:
    """Run a program from the event loop. A cancelled wait leaves it alone; the limit kills it."""
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
    """Run a program from a command of ours."""
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
    """What `systemctl` and `systemd-run` get: from a list, so no socket or secret of ours; and plain words."""
    kept = {name: environ[name] for name in _FOR_MANAGER if name in environ}
    kept["LC_ALL"] = "C.UTF-8"
    if "XDG_RUNTIME_DIR" not in kept and (found := _runtime_directory()):
        kept["XDG_RUNTIME_DIR"] = found
    return kept


def _runtime_directory() -> str:
    """`/run/user/UID` where it is ours: cron and runuser do not set the variable."""
    path = Path(f"/run/user/{os.geteuid()}")
    try:
        return str(path) if path.stat().st_uid == os.geteuid() else ""
    except OSError:
        return ""


def _text(content: bytes) -> str:
    return content[:_OUTPUT_LIMIT].decode("utf-8", "replace").strip()
