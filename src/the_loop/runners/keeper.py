"""The keeper: the small process that one delivery runs under, and that outlives the poller.

It is executed by path (`python -I -S keep.py …`) and imports nothing else of ours, so that it starts fast and goes on
through an upgrade. Its standard input is `<stem>.lock`, locked by the poller that asked for it. In this order: make
sure of that lock, and keep it; create `<stem>.started.json` (`O_EXCL`: one start for each
offer, whichever process asks); start the command in a group of its own with the payload as stdin; write
`<stem>.outcome.json` durably, however long the disk refuses; end what the command left in its group.

It imports as little as it can, which is what its start takes: `json` and `signal` alone cost more than Python itself.
So it reads no JSON: a payload begins with the number of its offer (`deliveries.to_payload`), and what the command's
environment says of the delivery is in the keeper's own. What must not be seen there, or on a command line, is in
`<stem>.given` (`runners/given.py`), which the keeper removes once it has read it.

The command's standard error is a pipe, whose content a thread copies on to the keeper's own: so the last line is known.

A free lock and a start mark without an outcome mean that the outcome is unknown (contract R7.2).
Files have `"schema": 1`. Exit status: 0 once an outcome is on disk, 75 if this offer was started before, 1 if it
could not be begun.
"""

from __future__ import annotations

import _thread
import errno
import fcntl
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Mapping
else:
    try:
        import _signal as signal  # what `signal` wraps, without its enumerations
    except ImportError:
        import signal

GRACE_S = 10.0  # between TERM and KILL
RETRY_S = 1.0  # between two tries to write the outcome
SETTLE_S = 1.0  # for the last of standard error to be read
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
FROM_OUTSIDE = (*STOP_SIGNALS, signal.SIGKILL)
PASSED_ON = frozenset(
    {
        *("HOME", "USER", "LOGNAME", "SHELL", "PATH", "LANG", "LANGUAGE", "TZ", "TERM", "TMPDIR"),
        *("SSH_AUTH_SOCK", "DBUS_SESSION_BUS_ADDRESS", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "XDG_CONFIG_DIRS"),
        *("XDG_DATA_HOME", "XDG_DATA_DIRS", "XDG_CACHE_HOME", "XDG_STATE_HOME"),
    }
)
PREFIXES = ("LC_", "THE_LOOP_DELIVERY_", "THE_LOOP_MARK")
PAYLOAD_HEAD = '{"schema": 1, "offer": '  # the number, a comma, and the rest follow
GIVEN = "THE_LOOP_GIVEN"  # set if there is a `<stem>.given`; not passed on
PLACEHOLDERS = ("{text}", "{title}", "{url}", "{ref}")  # whole arguments that a value takes the place of
INPUT = "{input}"  # the text that the command reads in place of the payload
ARGUMENT_LIMIT = 120 << 10  # bytes; the system takes 128 KiB
LINE_LIMIT = 500  # bytes of UTF-8
TAIL = 8192  # bytes in which the last line is looked for
FIONREAD = 0x541B
EXPLAINED = {126: " (not executable)", 127: " (command not found in the script)"}


def main(arguments: list[str]) -> int:
    """`STEM OFFER ATTEMPT LIMIT_S WORKDIR COMMAND …`, with the delivery's lock as standard input."""
    stem, offer, attempt, limit_s, workdir, *command = arguments
    signal.pthread_sigmask(signal.SIG_BLOCK, (*STOP_SIGNALS, signal.SIGCHLD))
    for number in (*STOP_SIGNALS, signal.SIGCHLD, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)  # whoever started the poller may have had them ignored
    os.chdir("/")
    mark = {"schema": 1, "offer": int(offer), "attempt": int(attempt), "keeper": identity()}
    try:
        lock = hold(stem)
        check_offer(stem, int(offer))
        create(f"{stem}.started.json", mark)
        check_offer(stem, int(offer), mark=f"{stem}.started.json")
    except (FileExistsError, BlockingIOError, LateKeeper):
        return 75
    errors = Errors()
    outcome, pid = run(stem, command, workdir, errors, float(limit_s))
    write(f"{stem}.outcome.json", {**mark, **outcome})
    if pid:
        end_group(pid)
    errors.finish(lock)
    return 0


class Job:
    """What to start: `command` with the values of its placeholders, in `workdir`. Raises OSError, ValueError.

    `text` is its input, None if that is the payload.
    """

    def __init__(self, stem: str, command: list[str], workdir: str) -> None:
        given = read_given(f"{stem}.given") if GIVEN in os.environ else {}
        self.values = {name: given.pop(name) for name in PLACEHOLDERS if name in given}
        self.text = given.pop(INPUT, None)
        self.payload = f"{stem}.payload.json"
        self.workdir = workdir
        self.command = [self.values.get(word, word) for word in command]
        self.environment = {**passed_on(os.environ), **given}

    def too_long(self) -> str:
        """Why it cannot be started as it is, whatever is done about it; nothing if it can."""
        for name, value in self.values.items():
            if len(to_bytes(value)) > ARGUMENT_LIMIT:
                return f"{name} has {len(to_bytes(value))} bytes, an argument takes {ARGUMENT_LIMIT}"
        return ""

    def input(self) -> int:
        """A file with what the command reads. Raises OSError."""
        if self.text is None:
            return os.open(self.payload, os.O_RDONLY)
        descriptor = os.memfd_create("text")
        content = memoryview(to_bytes(self.text))
        while content:
            content = content[os.write(descriptor, content) :]
        os.lseek(descriptor, 0, os.SEEK_SET)
        return descriptor


def read_given(path: str) -> dict[str, str]:
    """What the poller has for this start alone; a second start finds nothing. Raises OSError, ValueError."""
    with open(path, "rb") as file:
        entries = file.read().decode("utf-8", "surrogateescape").split("\0")
    os.unlink(path)
    return {name: value for name, _, value in (entry.partition("=") for entry in entries[:-1])}


class Errors:
    """The command's standard error, on its way to our own.

    A thread copies it, so that a log that takes nothing holds up neither the command nor us.
    """

    def __init__(self) -> None:
        self.readable = self.writable = -1
        self.tail = b""
        self.is_writing = False
        self.is_over = _thread.allocate_lock()  # free: there is nothing to copy, or nothing any more

    def open(self) -> None:
        self.readable, self.writable = os.pipe()

    def follow(self) -> None:
        """Copy from now on. Raises RuntimeError if there is no thread for it."""
        os.close(self.writable)
        self.is_over.acquire()
        try:
            _thread.start_new_thread(self.copy, ())
        except RuntimeError:
            self.is_over.release()
            raise

    def copy(self) -> None:
        try:
            while data := os.read(self.readable, 1 << 16):
                self.is_writing = True
                self.tail = (self.tail + data)[-TAIL:]
                pass_on(data)
                self.is_writing = False
        finally:
            self.is_over.release()

    def settle(self, patience_s: float) -> bool:
        """Return once all that was written so far is copied; True if nothing can be written any more.

        What the command left behind may have the pipe open: then it is empty.
        """
        until, quiet = time.monotonic() + patience_s, 0
        while quiet < 2 and time.monotonic() < until:
            if self.is_over.acquire(timeout=0.01):
                self.is_over.release()
                return True
            is_empty = not any(fcntl.ioctl(self.readable, FIONREAD, bytes(4)))
            quiet = quiet + 1 if is_empty and not self.is_writing else 0
        return False

    def last_line(self) -> str:
        """The last line that is not blank, safe to be printed."""
        lines = self.tail.replace(b"\r", b"\n").split(b"\n")
        line = next((line for line in reversed(lines) if line.strip()), b"").strip().decode("utf-8", "backslashreplace")
        plain = "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in line)
        return plain.encode()[:LINE_LIMIT].decode("utf-8", "ignore")

    def finish(self, lock: int) -> None:
        """Stay for as long as what the command left behind outside its group may write: it has no other reader.

        In a unit of its own there is no such thing: the manager ends all with us.
        """
        if self.settle(GRACE_S if is_in_unit() else SETTLE_S) or is_in_unit():
            return
        os.close(lock)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        self.is_over.acquire()


def pass_on(data: bytes) -> None:
    """To our standard error; what that does not take is lost: the command must not stop at it."""
    try:
        while data:
            data = data[os.write(2, data) :]
    except OSError:
        pass


class CannotFork(Exception):
    """Nothing was begun: the system gave no process."""


class LateKeeper(Exception):
    """This offer is over: its outcome was recorded, and the payload is of the next one already."""


def check_offer(stem: str, offer: int, mark: str = "") -> None:
    """Make sure that the payload is of this offer. A mark that was made for another one is taken back.

    Raises LateKeeper if it is of another offer; OSError, ValueError if that cannot be found out.
    """
    try:
        with open(f"{stem}.payload.json", "rb") as file:
            head = file.read(80).decode("ascii", "replace")
        if head.startswith(f"{PAYLOAD_HEAD}{offer}, "):
            return
        raise LateKeeper if head.startswith(PAYLOAD_HEAD) else ValueError(f"'{stem}.payload.json' is no payload")
    except (OSError, ValueError, LateKeeper):
        if mark:
            os.unlink(mark)
        raise


def run(stem: str, command: list[str], workdir: str, errors: Errors, limit_s: float) -> tuple[dict[str, str], int]:
    """Start the command and wait: the outcome, and the command's group (0 if there is none to end)."""
    try:
        job = Job(stem, command, workdir)
    except (OSError, ValueError) as error:
        return {"outcome": "unstartable", "reason": f"cannot read '{stem}.given': {error}"}, 0
    if failure := job.too_long():
        return {"outcome": "refused", "reason": failure}, 0
    try:
        pid, number, failure = start(job, errors)
    except CannotFork as error:
        return {"outcome": "unstartable", "reason": str(error)}, 0
    if failure:
        os.waitpid(pid, 0)
        is_too_long = number == errno.E2BIG and bool(job.values)  # another event's text may be shorter
        return {"outcome": "refused" if is_too_long else "unstartable", "reason": failure}, 0
    outcome, group = wait(pid, limit_s)
    errors.settle(SETTLE_S)
    line = errors.last_line()
    return ({**outcome, "lastLine": line} if line else outcome), group


def wait(pid: int, limit_s: float) -> tuple[dict[str, str], int]:
    """Wait for the command: the outcome, and its group (0 if that was ended)."""
    until = time.monotonic() + limit_s
    while True:
        info = signal.sigtimedwait((*STOP_SIGNALS, signal.SIGCHLD), max(0.0, until - time.monotonic()))
        how = ended(pid)
        if how is not None:
            return judge(*how), pid
        if info is None:
            end_group(pid)
            return {"outcome": "refused", "reason": f"did not end within {limit_s:.0f} s"}, 0
        if info.si_signo in STOP_SIGNALS:
            end_group(pid)
            return {"outcome": "unknown", "reason": f"told to stop by {name(info.si_signo)}"}, 0


def start(job: Job, errors: Errors) -> tuple[int, int, str]:
    """Fork and execute; if the command could not be started, the error's number and what it was about.

    Raises CannotFork. The child waits until its standard error is read.
    """
    encoded = {to_bytes(key): to_bytes(value) for key, value in job.environment.items()}
    keeper = os.getpid()
    try:
        prctl = own_prctl()
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        told, tell = os.pipe()  # closed by a successful exec
        waits, go = os.pipe()
        errors.open()
        pid = os.fork()
    except OSError as error:
        raise CannotFork(f"cannot start a process for the command: {error.strerror or error}") from error
    if pid == 0:
        place = f"payload '{job.payload}'"
        try:
            os.setpgid(0, 0)
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # a killed keeper leaves nothing running unwatched
            os.close(go)
            if not os.read(waits, 1) or os.getppid() != keeper:
                os._exit(1)
            os.dup2(job.input(), 0)
            os.dup2(errors.writable, 2)
            for ignored in (signal.SIGPIPE, signal.SIGXFSZ):
                signal.signal(ignored, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, (*STOP_SIGNALS, signal.SIGCHLD))
            place = f"session.workdir '{job.workdir}'"
            os.chdir(job.workdir)
            place = f"session.command '{job.command[0]}'"
            os.execvpe(job.command[0], job.command, encoded)
        except OSError as error:
            cause = "not found" if error.errno == errno.ENOENT else error.strerror
            os.write(tell, f"{error.errno} {place}: {cause}".encode("utf-8", "backslashreplace"))
        finally:
            os._exit(127)
    os.close(tell)
    os.close(waits)
    try:
        errors.follow()
        os.write(go, b".")
    except (OSError, RuntimeError) as error:
        os.close(go)
        os.waitpid(pid, 0)
        raise CannotFork(f"cannot start a thread for the command: {error}") from error
    os.close(go)
    number, _, failure = said_by_child(told).partition(" ")
    return pid, int(number or 0), failure


def own_prctl() -> Callable[[int, int], object]:
    """prctl(2). In a unit of its own a keeper needs none: the manager ends and reaps what it leaves. Raises OSError."""
    if is_in_unit():
        return lambda _option, _value: None
    import ctypes

    return ctypes.CDLL(None, use_errno=True).prctl


def is_in_unit() -> bool:
    """True if we are the main process of a unit."""
    return os.environ.get("SYSTEMD_EXEC_PID") == str(os.getpid())


def said_by_child(told: int) -> str:
    """Why the child could not execute the command; empty if it did, and if the answer cannot be read."""
    said = b""
    try:
        while part := os.read(told, 4096):
            said += part
    except OSError:
        pass  # it was started: how it ends is told by its status
    os.close(told)
    return said.decode()


def judge(how: int, code: int) -> dict[str, str]:
    """The outcome that the end of the command means. `how` is one of `os.CLD_*`, `code` its exit status or signal."""
    if how != os.CLD_EXITED:
        outcome = "unknown" if code in FROM_OUTSIDE else "refused"
        return {"outcome": outcome, "reason": f"killed by {name(code)}"}
    outcome = {0: "delivered", 75: "later"}.get(code, "refused")
    return {"outcome": outcome, "reason": f"exit status {code}{EXPLAINED.get(code, '')}"}


def end_group(pid: int) -> None:
    """TERM, then KILL, to the command's whole group. Returns when it is empty, at the latest after the grace."""
    for number, wait_s in ((signal.SIGTERM, GRACE_S), (signal.SIGKILL, 1.0)):
        try:
            os.killpg(pid, number)
        except OSError:
            return
        until = time.monotonic() + wait_s
        while time.monotonic() < until:
            reap_group(pid)
            try:
                os.killpg(pid, 0)
            except OSError:
                return
            time.sleep(0.02)


def reap_group(pid: int) -> None:
    """Take the command's own and what it left behind, which came to us: a zombie still counts as a member."""
    try:
        while os.waitpid(-pid, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def ended(pid: int) -> tuple[int, int] | None:
    """How the command ended (`os.CLD_*`) and its exit status or signal, once it has.

    It stays a zombie until its group was ended, so that its number cannot come to mean another group meanwhile.
    """
    info = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    return None if info is None else (info.si_code, info.si_status)


def passed_on(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of a command: from a list, so that no secret and no service variable leaks into it."""
    return {name: value for name, value in environ.items() if name in PASSED_ON or name.startswith(PREFIXES)}


def to_bytes(text: str) -> bytes:
    """UTF-8 under every locale; what came in as odd bytes goes out as these."""
    return text.encode("utf-8", "surrogateescape")


def hold(stem: str) -> int:
    """Keep the lock that came as standard input until we end, and give it to no child; its descriptor.

    Raises OSError if descriptor 0 is not the delivery's lock, BlockingIOError if somebody else has that.
    """
    lock = fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, 3)
    given, wanted = os.fstat(lock), os.lstat(f"{stem}.lock")
    if (given.st_dev, given.st_ino) != (wanted.st_dev, wanted.st_ino):
        raise OSError(f"standard input is not '{stem}.lock'")
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the same open file: granted
    nothing = os.open("/dev/null", os.O_RDONLY)
    os.dup2(nothing, 0)
    close_all_but(lock)
    return lock


def close_all_but(lock: int) -> None:
    """Let go of what the poller's own starter left open: a pipe held for half an hour would look like a hang."""
    for number in os.listdir("/proc/self/fd"):
        if int(number) > 2 and int(number) != lock:
            try:
                os.close(int(number))
            except OSError:
                pass  # the descriptor of the listing itself


def create(path: str, value: dict[str, object]) -> None:
    """Make a file that must not exist yet, durably."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        fill(descriptor, value)
        sync_folder(path)
    except OSError:
        os.unlink(path)  # nothing was begun
        raise


def write(path: str, value: dict[str, object]) -> None:
    """Write a file durably, trying for as long as the disk refuses."""
    beside = f"{path}.tmp"
    while True:
        try:
            fill(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), value)
            os.rename(beside, path)
            sync_folder(path)
            return
        except OSError as error:
            say(f"cannot write '{path}': {error.strerror}, trying again")
            time.sleep(RETRY_S)


def fill(descriptor: int, value: dict[str, object]) -> None:
    with open(descriptor, "wb") as file:
        os.fchmod(descriptor, 0o600)
        file.write(to_json(value))
        file.flush()
        os.fsync(descriptor)


def to_json(value: Mapping[str, object]) -> bytes:
    """An object of numbers and texts, in ASCII."""
    pairs = (f"{quoted(name)}: {one if isinstance(one, int) else quoted(str(one))}" for name, one in value.items())
    return f"{{{', '.join(pairs)}}}".encode("ascii")


def quoted(text: str) -> str:
    plain = "".join(char if " " <= char <= "~" and char not in '"\\' else escaped(char) for char in text)
    return f'"{plain}"'


def escaped(char: str) -> str:
    """As JSON has it: each half of UTF-16 by its number."""
    units = char.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def sync_folder(path: str) -> None:
    descriptor = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(descriptor)
    os.close(descriptor)


def identity() -> str:
    """This process as `pid:starttime:boot`."""
    with open("/proc/self/stat", "rb") as file:
        stat = file.read()
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        boot = file.read().strip()
    return f"{os.getpid()}:{int(stat[stat.rindex(b')') + 2 :].split()[19])}:{boot}"


def name(number: int) -> str:
    from signal import Signals

    try:
        return Signals(number).name
    except ValueError:
        return f"signal {number}"


def say(problem: str) -> None:
    """To the log, if it takes it: it may be on the disk that is full."""
    try:
        print(f"the-loop keeper: {problem}", file=sys.stderr, flush=True)
    except (OSError, ValueError):
        pass


def execute() -> None:
    """Be the process that this module is made for."""
    try:
        code = main(sys.argv[1:])
    except (OSError, ValueError) as error:
        say(str(error))
        code = 1
    os._exit(code)  # nothing is left to be tidied up: what was written was flushed


if __name__ == "__main__":
    execute()
