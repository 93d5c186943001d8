"""The token of one source: of the one place that its section names, else of the environment. Files that hold one."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import stat
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from the_loop.sources.base import SourceError
from the_loop.sources.section import TokenSection

COMMAND_LIMIT_S: Final = 10.0
_OUTPUT_LIMIT: Final = 16 << 10  # bytes
_LEFT_S: Final = 1.0  # something that it started may hold the pipe for long
_SECRETS: Final = ("GITHUB_TOKEN", "GH_TOKEN", "TELEGRAM_BOT_TOKEN")
_NOT_FOR_COMMANDS: Final = {*_SECRETS, "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"}


class Token:
    """Call it for the token. That of a `tokenCommand` is kept until `renew`, files are read in each call.

    `variables`: names in `environ`, the first of which that has a value counts where the section names no place.
    """

    def __init__(self, section: TokenSection, environ: Mapping[str, str], variables: Sequence[str]) -> None:
        self._section = section
        self._environ = environ
        self._variables = variables
        self._printed: str | None = None

    def __call__(self) -> str | None:
        """The token, None if there is none. Raises SourceError."""
        if self._section.token_command:
            return self._printed
        return token_of(self._section, self._environ, self._variables)

    @property
    def is_printed(self) -> bool:
        """False if the command has to run before the first request."""
        return not self._section.token_command or self._printed is not None

    @property
    def hint(self) -> str:
        """What mends a 401."""
        if self._section.credential:
            return "a changed credential takes effect after a restart of the service"
        return "check the token of this source"

    async def renew(self) -> None:
        """Run the command, if that is where the token comes from. Raises SourceError, without its output."""
        if self._section.token_command:
            output = await _output(self._section.token_command, self._environ)
            self._printed = _checked_token(output, f"the output of '{self._section.token_command[0]}'")


def token_path(section: TokenSection, environ: Mapping[str, str]) -> Path | None:
    """The file that the section names, None if it names none. Raises SourceError if a credential has no folder."""
    if section.credential:
        folder = environ.get("CREDENTIALS_DIRECTORY")
        if not folder:
            problem = f"cannot read the credential '{section.credential}': $CREDENTIALS_DIRECTORY is not set"
            raise SourceError(problem, "add LoadCredential= to the service, or use tokenFile")
        return Path(folder) / section.credential
    return Path(section.token_file).expanduser() if section.token_file else None


def token_of(section: TokenSection, environ: Mapping[str, str], variables: Sequence[str]) -> str | None:
    """The token in the named file, else in the first of the variables that has a value; None if there is none.

    Raises SourceError if one is named and cannot be read: that is not the same as none.
    """
    path = token_path(section, environ)
    if path is None:
        name = next((name for name in variables if environ.get(name)), "")
        return _checked_token(environ[name], f"${name}") if name else None
    try:
        token = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        cause = error.strerror if isinstance(error, OSError) else "it is not ASCII"
        raise SourceError(
            f"cannot read the token in '{path}': {cause}", "it has to be there, and readable by this user"
        ) from error
    return _checked_token(token, f"'{path}'")


def _checked_token(text: str, place: str) -> str:
    """The token without the blanks around it. No message ever quotes it: neither ours nor a library's."""
    if not text.isascii():
        raise SourceError(f"cannot read the token in {place}: it is not ASCII")
    token = text.strip()
    if not token or not token.isprintable() or " " in token:
        raise SourceError(f"the token in {place} is empty or more than one line")
    return token


async def _output(argv: Sequence[str], environ: Mapping[str, str]) -> str:
    """The standard output of the command, bounded in time and size. Raises SourceError."""
    kept = {name: value for name, value in environ.items() if name not in _NOT_FOR_COMMANDS}
    failed = f"cannot get the token from '{argv[0]}'"
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # could contain the token
            env=kept,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        raise SourceError(f"{failed}: {getattr(error, 'strerror', None) or 'it cannot be started'}") from None
    output, code = b"", None
    try:
        async with asyncio.timeout(COMMAND_LIMIT_S):
            output = await _bounded(process)
            code = await process.wait() if len(output) <= _OUTPUT_LIMIT else None
    except TimeoutError:
        raise SourceError(f"{failed}: not finished within {COMMAND_LIMIT_S:.0f} s") from None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await _reaped(process)
    if code is None:
        raise SourceError(f"{failed}: it prints more than {_OUTPUT_LIMIT} bytes")
    if code != 0:
        raise SourceError(f"{failed}: exit status {code}", "run it by hand, as this user")
    return output.decode("utf-8", "replace")


async def _reaped(process: asyncio.subprocess.Process) -> None:
    """Take what a killed process left in its pipe, without which its end is not seen; not for long."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_LEFT_S):
            while process.stdout is not None and await process.stdout.read(_OUTPUT_LIMIT):
                pass
            await process.wait()


async def _bounded(process: asyncio.subprocess.Process) -> bytes:
    output = b""
    while process.stdout is not None and len(output) <= _OUTPUT_LIMIT:
        part = await process.stdout.read(_OUTPUT_LIMIT)
        if not part:
            break
        output += part
    return output


def exposure(path: Path) -> str:
    """Why others may read or replace the token in this file, and what mends it; "" if they may not, or it is missing.

    Not for files below `$CREDENTIALS_DIRECTORY`: their group bits are the mask of an access list.
    """
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError:
        return ""  # it cannot be used either, which is said where it is read
    if not mode & 0o077:
        return ""
    return (
        f"other users may use the token in '{path}', its mode is {mode:04o} (run `chmod 600 {shlex.quote(str(path))}`)"
    )
