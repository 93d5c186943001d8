"""One item's session on our tmux server: its name, its state, and the calls that change it.

A session has one pane of ours. What was done with it is in options of the session, each written by the call that does
it, so that an option and its deed cannot be apart:

    @pane           the pane of ours, as people may add others
    @gate           changes with everything that is done: a call that was made for another gate does nothing
    @typed          the text that was pasted last, by the number that its start mark has
    @submitted      the text that was followed by Enter
    @last-delivery  `<delivery id>#<offer>`, for people
    @ready          which program was ready for a text, and in which mode its terminal was; none while it starts
    @prompt         what was left of the cursor then
    @needs          set where the program was started again, and was not told yet what came before
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import shutil
import struct
import termios
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from the_loop.core.model import explain, printable
from the_loop.runners.given import NO_EXTRAS, Extras, read_environment
from the_loop.runners.pane import Look
from the_loop.runners.tmux_client import Answer, Unanswered, literal, plain
from the_loop.runners.tmux_frame import takes_pastes
from the_loop.runners.tmux_server import CannotStart, NoServer, Server

_NAMES: Final = (
    *("pid", "session_id", "pane_id", "pane_pid", "pane_dead", "pane_in_mode", "pane_mode", "pane_input_off"),
    *("pane_tty", "cursor_x", "cursor_y", "session_attached", "window_width", "window_height", "bracket_paste_flag"),
    *("@gate", "@typed", "@submitted", "@ready", "@prompt", "@needs"),
)
_STATE: Final = "|".join(f"#{{{name}}}" for name in _NAMES)
_NO_SESSION: Final = (
    *("can't find session", "can't find pane", "can't find window"),
    "no current target",  # there is no session at all
)
_SIZE: Final = ("-x", "200", "-y", "50")
_RUN: Final = ("/bin/sh", "-c", 'exec "$@"', "sh")  # tmux gives a command of one word to a shell


@dataclass(frozen=True, slots=True)
class Program:
    """What a session runs, first or after it ended. `environment` is what all have, `extras` what the operator adds."""

    argv: tuple[str, ...]
    workdir: Path
    environment: Mapping[str, str]
    extras: Extras = NO_EXTRAS

    def variables(self) -> dict[str, str]:
        """Its whole environment, as it is now. Raises CannotStart."""
        try:
            file = {} if self.extras.file is None else read_environment(self.extras.file, os.geteuid())
        except (OSError, ValueError) as error:
            raise CannotStart(f"cannot use session.environmentFile '{self.extras.file}': {explain(error)}") from error
        return {**self.environment, **self.extras.variables, **file}


@dataclass(frozen=True, slots=True)
class State:
    """A session as the server told it. `server`, `program`: which processes these are."""

    server: str  # "pid:starttime:boot"
    session: str  # "$1"
    pane: str  # "%1"
    pid: int  # of the program; once it is dead, of the dead one
    is_dead: bool
    mode: str
    is_off: bool  # the pane takes no input
    tty: Path
    cursor: tuple[int, int]
    attached: int
    size: tuple[int, int]  # of the window, columns and lines
    brackets: str  # whether the program takes pastes as such, "0" or "1"; empty where tmux does not tell
    gate: str
    typed: str
    submitted: str
    ready: str
    prompt: str
    needs_thread: bool

    @property
    def home(self) -> str:
        """Names this very pane."""
        return f"{self.server}/{self.pane}"

    @property
    def place(self) -> str:
        """Names this very program: of another one, also in the same pane, nothing is known."""
        return f"{self.home}/{self.pid}"


def new_number() -> str:
    """A name that was never used: of a gate, a text, a buffer."""
    return secrets.token_hex(8)


def session_name(ref: str) -> str:
    """Letters and digits only, and the same length for all: no name is the beginning of another."""
    return f"l{hashlib.sha256(ref.encode('utf-8', 'surrogatepass')).hexdigest()[:24]}"


class Session:
    """The session of the item `ref`, whether it is there or not."""

    def __init__(self, server: Server, name: str) -> None:
        self._server = server
        self.name = name

    @property
    def target(self) -> str:
        return f"={self.name}:"

    # --- looking ---

    async def state(self) -> State | None:
        """None if it is certain that there is no such session, or no pane of ours in it. Raises Unanswered."""
        try:
            return self._parsed(await self._server.ask(*self._query()))
        except NoServer:
            return None

    def state_blocking(self) -> State | None:
        try:
            return self._parsed(self._server.ask_blocking(*self._query()))
        except NoServer:
            return None

    def shut_blocking(self, state: State) -> State | None:
        """Have no call that was made before do anything any more; the state after that."""
        gate = ("set-option", "-t", state.pane, "@gate", new_number(), ";")
        try:
            return self._parsed(self._server.ask_blocking(*gate, *self._query()))
        except NoServer:
            return None

    async def look(self, pane: str) -> tuple[State, Look]:
        """What the pane shows, and the state of that moment. Raises Unanswered, also where it is gone."""
        answer = await self._asked(
            *self._query(),
            *(";", "list-clients", "-t", f"={self.name}", "-F", "client=#{client_activity}", ";"),
            *("display-message", "-p", "--", "--screen--", ";", "capture-pane", "-p", "-t", pane),
        )
        head, mark, screen = answer.out.partition("--screen--\n")
        lines = head.splitlines()
        keys = [int(line.removeprefix("client=")) for line in lines if line.startswith("client=")]
        states = [line for line in lines if not line.startswith("client=")]
        if answer.code or not mark or len(states) != 1:
            raise Unanswered(None, f"cannot look at the terminal: {answer.err or 'no answer'}")
        state = self._state(states[0])
        leader, is_lines = leader_of(state.pid), reads_lines(state.tty)
        ready = f"{leader}:{'lines' if is_lines else 'raw'}"
        return state, Look(
            is_dead=state.is_dead,
            mode=state.mode,
            foreground=command_line(leader),
            reads_lines=is_lines,
            ready=ready,
            screen=tuple(screen.split("\n")),
            cursor=state.cursor,
            prompt=state.prompt if state.ready == ready else "",
            idle_s=time.time() - max(keys) if keys else None,
        )

    async def takes_pastes(self, state: State) -> bool:
        """True if the program knows where a paste ends. Raises OSError."""
        if state.brackets:
            return state.brackets == "1"
        argv = self._server.argv("attach-session", "-r", "-f", "read-only,ignore-size", "-t", f"={self.name}")
        columns, lines = state.size
        return await takes_pastes(argv, self._server.environment, (columns, lines + 1))  # and the status line

    # --- changing ---

    async def create(self, ref: str, program: Program, *, needs_thread: bool) -> None:
        """Start it, unless it is there. Raises CannotStart, Unanswered."""
        answer = await self._asked(
            *("new-session", "-d", "-s", self.name, *_SIZE, "-c", "/", "--", "/bin/true", ";"),
            *self._set("@ref", printable(ref)),
            *self._set("@pane", "#{pane_id}", "-F"),
            *self._set("@needs", "thread" if needs_thread else ""),
            *self._set("@gate", new_number()),
            *("source-file", "-", ";", "respawn-pane", "-k", "-t", self.target, *_run(program)),
            stdin=self._environment(program),
        )
        if "duplicate session" in answer.err and await self.state() is None:
            await self.kill()  # somebody closed our pane, and others are left: nothing can be typed there
        elif answer.code and "duplicate session" not in answer.err:
            raise CannotStart(f"cannot start a tmux session: {answer.err}")

    async def restart(self, state: State, program: Program, *, needs_thread: bool) -> None:
        """Run the program in the pane whose program ended; does nothing where one runs. Raises CannotStart."""
        pane = state.pane
        answer = await self._asked(
            *("source-file", "-", ";", "respawn-pane", "-t", pane, *_run(program), ";"),
            *("set-option", "-u", "-t", pane, "@ready", ";"),
            *("set-option", "-F", "-t", pane, "@submitted", "#{@typed}", ";"),
            *("set-option", "-t", pane, "@needs", "thread" if needs_thread else "", ";"),
            *("set-option", "-t", pane, "@gate", new_number()),
            stdin=self._environment(program),
        )
        if answer.code and "still active" not in answer.err:
            raise CannotStart(f"cannot start the program of the session again: {answer.err}")

    def _environment(self, program: Program) -> bytes:
        """Commands that set the variables of a program. They go through the socket: secrets are in no argument.

        Raises CannotStart.
        """
        lines = [
            f"set-environment -t ={self.name} {name} {_quoted(value)}" for name, value in program.variables().items()
        ]
        return "".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape")

    async def paste(
        self, state: State, number: str, text: bytes, look: Look, *, label: str | None, lock_fd: int | None = None
    ) -> State | None:
        """Type this text if the pane is still as `state` says; whether it did is in the `typed` of the state after.

        `label` is what `@last-delivery` says of it. One call: look again, paste, and note it. Raises Unanswered, after
        which it may happen still; the lock tells.
        """
        pane = state.pane
        is_same = _all(
            ("@gate", state.gate), ("pane_pid", state.pid), ("pane_dead", 0), ("pane_in_mode", 0), ("pane_input_off", 0)
        )
        noted = [f"set-option -t {pane} @typed {number}", f"set-option -t {pane} @gate {number}"]
        noted += [f"set-option -t {pane} @ready {look.ready}", f'set-option -t {pane} @needs ""']
        prompt = look.prompt or look.left
        noted.append(f"set-option -t {pane} @prompt x{prompt.encode().hex()}")
        if label is not None:
            noted.append(f'set-option -F -t {pane} @last-delivery "#{{@want}}"')
        # first: if there is nothing to paste, tmux leaves the rest of them undone, and no note says that there was
        done = " ; ".join((f"paste-buffer -p -r -d -b {number} -t {pane}", *noted))
        return self._parsed(
            await self._server.ask(
                *("load-buffer", "-b", number, "-", ";"),
                *("set-option", "-t", pane, "@want", literal(printable(label or "")), ";"),
                *("if-shell", "-F", "-t", pane, is_same, done, f"delete-buffer -b {number}", ";"),
                *self._query(),
                stdin=text,
                lock_fd=lock_fd,
            )
        )

    async def submit(self, state: State, number: str) -> None:
        """Press Enter behind this text, once, if the program that it was typed to is still there."""
        pane = state.pane
        is_due = _all(
            ("@typed", number), ("pane_pid", state.pid), ("pane_dead", 0), ("pane_in_mode", 0), ("pane_input_off", 0)
        )
        is_due = f"#{{&&:{is_due},#{{!=:#{{@submitted}},{number}}}}}"
        done = f"set-option -t {pane} @submitted {number} ; send-keys -t {pane} Enter"
        await self._asked("if-shell", "-F", "-t", pane, is_due, done)

    async def leave_mode(self, state: State) -> None:
        """Leave copy mode and its like. Raises Unanswered."""
        await self._asked("copy-mode", "-q", "-t", state.pane)

    async def kill(self) -> None:
        """End it. Raises Unanswered."""
        try:
            await self._server.ask("kill-session", "-t", f"={self.name}")
        except NoServer:
            return

    async def rename(self, name: str) -> None:
        await self._asked("rename-session", "-t", f"={self.name}", name)

    async def _asked(self, *commands: str, stdin: bytes = b"") -> Answer:
        try:
            return await self._server.ask(*commands, stdin=stdin)
        except NoServer as error:
            raise Unanswered(None, "the tmux server ended") from error

    def _set(self, option: str, value: str, *flags: str) -> tuple[str, ...]:
        return ("set-option", *flags, "-t", self.target, option, literal(value), ";")

    def _query(self) -> tuple[str, ...]:
        return ("list-panes", "-s", "-t", self.target, "-f", "#{==:#{pane_id},#{@pane}}", "-F", _STATE)

    def _parsed(self, answer: Answer) -> State | None:
        """The state in an answer to `_query`. Raises Unanswered where it says something else."""
        lines = [line for line in answer.out.split("\n") if line]
        if not lines:
            if answer.code == 0 or answer.err.startswith(_NO_SESSION):
                return None
            raise Unanswered(None, f"tmux: {answer.err or f'exit status {answer.code}'}")
        return self._state(lines[-1])

    def _state(self, line: str) -> State:
        """The state in a line of `_query`. Raises Unanswered where it says something else."""
        said = dict(zip(_NAMES, line.split("|"), strict=False))
        if len(said) != len(_NAMES) or not said["pid"].isdigit():
            raise Unanswered(None, f"tmux answered {line!r:.200}")
        return State(
            server=self._server.note_identity(int(said["pid"])),
            session=said["session_id"],
            pane=said["pane_id"],
            pid=_number(said["pane_pid"]),
            is_dead=said["pane_dead"] == "1",
            mode=said["pane_mode"] or ("a mode" if said["pane_in_mode"] not in ("", "0") else ""),
            is_off=said["pane_input_off"] == "1",
            tty=Path(said["pane_tty"]),
            cursor=(_number(said["cursor_x"]), _number(said["cursor_y"])),
            attached=_number(said["session_attached"]),
            size=(_number(said["window_width"]), _number(said["window_height"])),
            brackets=said["bracket_paste_flag"],
            gate=said["@gate"],
            typed=said["@typed"],
            submitted=said["@submitted"],
            ready=said["@ready"],
            prompt=_prompt(said["@prompt"]),
            needs_thread=bool(said["@needs"]),
        )


def leader_of(pid: int) -> int:
    """Which process leads the foreground of the terminal of `pid`; this one itself if that cannot be seen."""
    try:
        leader = int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[5])
    except (OSError, ValueError, IndexError):
        return pid
    return leader if leader > 0 else pid


def command_line(pid: int) -> tuple[str, ...]:
    """Of this process; empty if it cannot be seen."""
    try:
        return tuple(map(os.fsdecode, Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:-1]))
    except OSError:
        return ()


def used_ticks(pid: int) -> int:
    """Processor time of this process so far; 0 if it cannot be seen."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return int(fields[11]) + int(fields[12])
    except (OSError, ValueError, IndexError):
        return 0


def unread(tty: Path) -> int:
    """Bytes in the terminal's input queue that the program has not read. Raises OSError."""
    descriptor = _open(tty)
    try:
        count: int = struct.unpack("i", fcntl.ioctl(descriptor, termios.FIONREAD, b"\0" * 4))[0]
        return count
    finally:
        os.close(descriptor)


def reads_lines(tty: Path) -> bool:
    """True if the terminal is in line mode (canonical): the kernel collects lines of at most 4,095 bytes.

    Raises OSError.
    """
    descriptor = _open(tty)
    try:
        return bool(termios.tcgetattr(descriptor)[3] & termios.ICANON)
    except termios.error as error:
        raise OSError(*error.args) from error
    finally:
        os.close(descriptor)


def _open(tty: Path) -> int:
    return os.open(tty, os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)


def _run(program: Program) -> tuple[str, ...]:
    return ("-c", plain(str(program.workdir)), "--", *_RUN, *map(literal, program.argv))


def _quoted(value: str) -> str:
    """A value as one word of tmux's command language."""
    return "'" + value.replace("'", "'\\''") + "'"


def _all(*conditions: tuple[str, object]) -> str:
    """A format that is true if each of these variables has this value; values are numbers of ours."""
    parts = [f"#{{==:#{{{name}}},{value}}}" for name, value in conditions]
    whole = parts.pop()
    while parts:
        whole = f"#{{&&:{parts.pop()},{whole}}}"
    return whole


def _prompt(text: str) -> str:
    try:
        return bytes.fromhex(text[1:]).decode()
    except ValueError:
        return ""


def _number(text: str) -> int:
    return int(text) if text.isdigit() else 0


def missing(program: Program) -> str:
    """Why this program cannot be started, or nothing."""
    if not program.workdir.is_dir():
        return f"session.workdir '{program.workdir}': not found"
    name = program.argv[0]
    if "/" in name:
        path = program.workdir / name
        if path.is_file() and os.access(path, os.X_OK):
            return ""
        return f"session.command '{name}': {'not executable' if path.exists() else 'not found'}"
    found = shutil.which(name, path=program.environment.get("PATH", os.defpath))
    return "" if found else f"session.command '{name}': not found"
