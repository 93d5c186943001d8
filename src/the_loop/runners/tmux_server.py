"""The tmux server of one state root: ours alone, never the user's.

Its socket's path comes from uid and state root only (`/run/user/UID/the-loop/<hash>/tmux`, else
`/tmp/the-loop-UID/<hash>/tmux`), its configuration is a file that we write, and its environment is built from a list.
Where the user has a service manager it runs in a transient unit, so that nothing that becomes of the poller touches
it; otherwise it is a daemon.

`server.json` in the runner's folder names the server that was seen last, as `pid:starttime:boot`. While that process
lives there is a server, whatever its socket says: a second one would be a second set of sessions.

    NoServer      it is certain that there is none
    Unanswered    it could not be found out
    CannotStart   none was started; the message says why
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import shutil
import signal
import socket
import stat
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from the_loop.backoff import growing
from the_loop.core.model import explain
from the_loop.durable import read_json_object, replace_file, to_json_bytes
from the_loop.manager import UNIT_EXISTS, ManagerError, NoAnswer, NoManager, Refused
from the_loop.processes import boot_id, identity_of, parse_identity
from the_loop.runners.keeper import passed_on
from the_loop.runners.tmux_client import LIMIT_S, Answer, Client, Unanswered
from the_loop.runners.units import SLICE, Units

CONFIGURATION: Final = """\
# Written by the-loop at each start of its tmux server. Changes are lost.
set -g exit-empty off
set -g exit-unattached off
set -g destroy-unattached off
set -g remain-on-exit on
set -g update-environment ""
set -g default-terminal screen-256color
set -g history-limit 20000
set -g allow-rename off
set -g automatic-rename off
set -g set-titles off
set -g focus-events off
set -g monitor-activity off
set -g monitor-bell off
set -g set-clipboard off
set -g mode-keys emacs
"""
_BLOCKING_LIMIT_S: Final = 1.0
_MUTE_S: Final = 5.0  # after a call without an answer, blocking calls fail at once for so long
_START_LIMIT_S: Final = 10.0
_WAITS_S: Final = (0.005, 0.1)
_PATH_LIMIT: Final = 107  # bytes of a socket's path
_NOT_THERE: Final = ("no server running on", "error connecting to", "lost server", "server exited")


class NoServer(Exception):
    """There is no server of this state root."""


class CannotStart(Exception):
    """Nothing was started; the message says why."""


class Server:
    """The server of the state root `root`. `folder` is for our files, `environ` the poller's environment."""

    def __init__(self, root: Path, folder: Path, environ: Mapping[str, str], units: Units | None = None) -> None:
        self._root = root
        self._folder = folder
        self._units = units
        self.environment = scrubbed(environ)
        self._environ = environ
        self._starting = asyncio.Lock()
        self._mute_until = 0.0
        self._seen = ""

    # --- asking ---

    async def ask(self, *commands: str, stdin: bytes = b"", lock_fd: int | None = None) -> Answer:
        """Have the server execute this. Raises NoServer, Unanswered.

        With a `lock_fd` the call goes on when our wait for it is over.
        """
        client = Client(self.argv(*commands), self.environment, stdin=stdin, lock_fd=lock_fd)
        return self._checked(await client.wait(LIMIT_S, kills=lock_fd is None))

    def ask_blocking(self, *commands: str) -> Answer:
        """The same in one step of the event loop. Raises NoServer, Unanswered."""
        if time.monotonic() < self._mute_until:
            raise Unanswered(None, "the tmux server did not answer a moment ago")
        client = Client(self.argv(*commands), self.environment)
        try:
            return self._checked(client.wait_blocking(_BLOCKING_LIMIT_S))
        except Unanswered:
            self._mute_until = time.monotonic() + _MUTE_S
            raise

    def note_identity(self, pid: int) -> str:
        """`pid:starttime:boot` of the server that answered, which is recorded if it is another than before."""
        found = identity_of(pid)
        if found is None:
            raise Unanswered(None, f"the tmux server (pid {pid}) cannot be seen in /proc")
        identity = f"{found}:{boot_id()}"
        if identity != self._seen:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            record = {"schema": 1, "server": identity, "socket": str(self.socket()), "unit": self.unit()}
            replace_file(self._folder / "server.json", to_json_bytes(record), sync=True)
            self._seen = identity
        return identity

    def socket(self) -> Path:
        """Where the server listens: where the recorded one does while it lives, else where a new one will."""
        record = self._record()
        if record.get("socket") and is_alive(str(record.get("server"))):
            return Path(str(record["socket"]))
        return socket_path(self._root)

    def unit(self) -> str | None:
        """The unit that it runs in; None for a daemon."""
        return None if self._units is None else self._units.service_name("tmux")

    def argv(self, *commands: str) -> list[str]:
        """The command line of a client."""
        return ["tmux", "-N", "-u", "-S", str(self.socket()), *commands]

    def _checked(self, answer: Answer) -> Answer:
        if answer.code and answer.err.startswith(_NOT_THERE):
            self._find_out()
        return answer

    def _find_out(self) -> None:
        """Raise NoServer if there is none, else Unanswered."""
        path = self.socket()
        with contextlib.suppress(FileNotFoundError, ConnectionRefusedError), _connected(path):
            raise Unanswered(None, "the tmux server was starting or ending")
        pid = _pid(str(self._record().get("server")))
        if pid and is_alive(str(self._record().get("server"))):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGUSR1)  # on which a tmux server makes its socket again
            raise Unanswered(None, f"the tmux server runs as pid {pid}, and its socket '{path}' does not answer")
        raise NoServer

    def _record(self) -> dict[str, Any]:
        """What `server.json` says; empty if there is none or it says nothing. Raises OSError."""
        try:
            return read_json_object(self._folder / "server.json")
        except (FileNotFoundError, ValueError):
            return {}

    # --- starting ---

    async def start(self) -> None:
        """Have a server. Raises CannotStart, Unanswered."""
        async with self._starting:
            try:
                await self.ask("display-message", "-p", "#{pid}")
            except NoServer:
                await self._start()

    async def _start(self) -> None:
        program = shutil.which("tmux", path=self.environment.get("PATH", os.defpath))
        if program is None:
            raise CannotStart("tmux: not found on the PATH of the poller")
        configuration = self._folder / "tmux.conf"
        path = socket_path(self._root)
        try:
            prepare(path)
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(configuration, CONFIGURATION.encode(), sync=False)
        except OSError as error:
            raise CannotStart(f"cannot prepare the tmux server: {explain(error)}") from error
        argv = [program, "-u", "-S", str(path), "-f", str(configuration)]
        if not await self._start_unit([*argv, "-D"]):
            await self._start_daemon([*argv, "start-server"])
        await self._answers()

    async def _start_unit(self, argv: list[str]) -> bool:
        """False if there is no manager, and a daemon will do. Raises CannotStart."""
        if self._units is None:
            return False
        try:
            await self._units.start_service("tmux", properties(argv, self.environment))
        except NoAnswer:
            return True  # accepted or not: the socket tells
        except NoManager as error:
            if self._units.is_only_way:
                raise CannotStart(str(error)) from error
            return False
        except Refused as error:
            if error.name == UNIT_EXISTS:
                return True  # it is starting, or ending
            raise CannotStart(str(error)) from error
        except ManagerError as error:
            raise CannotStart(str(error)) from error
        return True

    async def _start_daemon(self, argv: list[str]) -> None:
        try:
            answer = await Client(argv, self.environment).wait()
        except Unanswered as error:
            raise CannotStart(explain(error)) from error
        if answer.code:
            raise CannotStart(f"cannot start the tmux server: {answer.err or f'exit status {answer.code}'}")

    async def _answers(self) -> None:
        """Return when it answers. Raises CannotStart."""
        waits_s = growing(*_WAITS_S)
        problem = "it does not answer"
        try:
            async with asyncio.timeout(_START_LIMIT_S):
                while True:
                    try:
                        answer = await self.ask("display-message", "-p", "#{pid}")
                        if answer.code == 0 and answer.out.strip().isdigit():
                            self.note_identity(int(answer.out))
                            return
                        problem = answer.err or problem
                    except (NoServer, Unanswered):
                        pass
                    await asyncio.sleep(next(waits_s))
        except TimeoutError:
            raise CannotStart(f"cannot start the tmux server: {problem}") from None

    def close(self) -> None:
        """Let go of the manager; the server goes on."""
        if self._units is not None:
            self._units.close()


def properties(argv: list[str], environment: Mapping[str, str]) -> list[tuple[str, tuple[str, Any]]]:
    """A transient service that runs the server in exactly this environment: a manager adds one of its own."""
    pairs = [f"{name}={value}" for name, value in sorted(environment.items())]
    whole = ["/usr/bin/env", "-i", *pairs, *argv]
    return [
        ("Description", ("s", "the-loop tmux server")),
        ("Type", ("s", "exec")),
        ("CollectMode", ("s", "inactive-or-failed")),
        ("Slice", ("s", SLICE)),
        ("ExecStartEx", ("a(sasas)", [(whole[0], whole, ["no-env-expand"])])),
        ("WorkingDirectory", ("s", "/")),
        ("KillMode", ("s", "control-group")),
        ("SendSIGHUP", ("b", True)),
        ("TimeoutStopUSec", ("t", 10_000_000)),
        ("OOMPolicy", ("s", "continue")),  # a session that takes too much costs itself
    ]


def scrubbed(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of server, sessions and clients: from a list, without our secrets and a terminal's variables."""
    kept = {name: value for name, value in passed_on(environ).items() if not name.startswith("THE_LOOP_")}
    kept.pop("TERM", None)
    kept.setdefault("PATH", os.defpath)
    return {name: value for name, value in kept.items() if _is_text(name + value)}


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return "\n" not in value


def socket_path(root: Path) -> Path:
    """From uid and state root alone; never from a variable, so that all our processes find one server."""
    uid = os.geteuid()
    short = hashlib.sha256(os.fsencode(root)).hexdigest()[:16]
    runtime = Path(f"/run/user/{uid}")
    try:
        is_ours = runtime.lstat().st_uid == uid
    except FileNotFoundError:
        is_ours = False
    base = runtime / "the-loop" if is_ours else Path(f"/tmp/the-loop-{uid}")  # noqa: S108 (0700, checked)
    return base / short / "tmux"


def prepare(path: Path) -> None:
    """Have the socket's directories, which must be ours alone. Raises OSError."""
    if len(os.fsencode(path)) > _PATH_LIMIT:
        raise OSError(None, f"'{path}' is too long for a socket")
    for folder in (path.parent.parent, path.parent):
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            raise OSError(None, f"'{folder}' is not a directory of this user")
        if stat.S_IMODE(found.st_mode) != 0o700:
            folder.chmod(0o700)


@contextlib.contextmanager
def _connected(path: Path) -> Any:
    """Raises FileNotFoundError or ConnectionRefusedError where nothing listens, OSError where that is not known."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            probe.connect(str(path))
        yield


def is_alive(identity: str) -> bool:
    """True if the process `pid:starttime:boot` runs; one that has ended and was not reaped does not. Raises OSError."""
    process, _, boot = identity.rpartition(":")
    found = parse_identity(process) if boot and boot == boot_id() else None
    if found is None:
        return False
    try:
        fields = Path(f"/proc/{found.pid}/stat").read_bytes().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return int(fields[19]) == found.starttime and fields[0] not in (b"Z", b"X")


def _pid(identity: str) -> int:
    found = parse_identity(identity.rpartition(":")[0])
    return 0 if found is None else found.pid
