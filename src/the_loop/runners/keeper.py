"""The keeper: the small process that one delivery runs under, and that outlives the poller.

It is executed by path (`python -I -S keeper.py …`) and imports nothing of ours, so that it starts fast and goes on
through an upgrade. Its standard input is `<stem>.lock`, locked by the poller that asked for it. In this order: make
sure of that lock, and keep it; create `<stem>.started.json` (`O_EXCL`: one start for each
offer, whichever process asks); start the command in a group of its own with the payload as stdin; write
`<stem>.outcome.json` durably, however long the disk refuses; end what the command left in its group.

It imports as little as it can, which is what its start takes: `json` and `signal` alone cost more than Python itself.
So it reads no JSON: a payload begins with the number of its offer (`deliveries.to_payload`), and what the command's
environment says of the delivery is in the keeper's own.

A free lock and a start mark without an outcome mean that the outcome is unknown (contract R7.2).
Files have `"schema": 1`. Exit status: 0 once an outcome is on disk, 75 if this offer was started before, 1 if it
could not be begun.
"""

from __future__ import annotations

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


def main(arguments: list[str]) -> int:
    """`STEM OFFER ATTEMPT LIMIT_S WORKDIR COMMAND …`, with the delivery's lock as standard input."""
    stem, offer, attempt, limit_s, workdir, *command = arguments
    signal.pthread_sigmask(signal.SIG_BLOCK, (*STOP_SIGNALS, signal.SIGCHLD))
    for number in (*STOP_SIGNALS, signal.SIGCHLD, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)  # whoever started the poller may have had them ignored
    os.chdir("/")
    mark = {"schema": 1, "offer": int(offer), "attempt": int(attempt), "keeper": identity()}
    try:
        hold(stem)
        check_offer(stem, int(offer))
        create(f"{stem}.started.json", mark)
        check_offer(stem, int(offer), mark=f"{stem}.started.json")
    except (FileExistsError, BlockingIOError, LateKeeper):
        return 75
    outcome, pid = run(command, workdir, f"{stem}.payload.json", passed_on(os.environ), float(limit_s))
    write(f"{stem}.outcome.json", {**mark, **outcome})
    if pid:
        end_group(pid)
    return 0


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


def run(
    command: list[str], workdir: str, payload: str, environment: dict[str, str], limit_s: float
) -> tuple[dict[str, str], int]:
    """Start the command and wait: the outcome, and the command's group (0 if there is none to end)."""
    try:
        pid, failure = start(command, workdir, payload, environment)
    except CannotFork as error:
        return {"outcome": "unstartable", "reason": str(error)}, 0
    if failure:
        os.waitpid(pid, 0)
        return {"outcome": "unstartable", "reason": failure}, 0
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


def start(command: list[str], workdir: str, payload: str, environment: dict[str, str]) -> tuple[int, str]:
    """Fork and execute; the second value says why the command could not be started, or is empty."""
    encoded = {to_bytes(key): to_bytes(value) for key, value in environment.items()}
    keeper = os.getpid()
    try:
        prctl = own_prctl()
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        told, tell = os.pipe()  # closed by a successful exec
        pid = os.fork()
    except OSError as error:
        raise CannotFork(f"cannot start a process for the command: {error.strerror or error}") from error
    if pid == 0:
        place = f"payload '{payload}'"
        try:
            os.setpgid(0, 0)
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # a killed keeper leaves nothing running unwatched
            if os.getppid() != keeper:
                os._exit(1)
            os.dup2(os.open(payload, os.O_RDONLY), 0)
            for ignored in (signal.SIGPIPE, signal.SIGXFSZ):
                signal.signal(ignored, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, (*STOP_SIGNALS, signal.SIGCHLD))
            place = f"session.workdir '{workdir}'"
            os.chdir(workdir)
            place = f"session.command '{command[0]}'"
            os.execvpe(command[0], command, encoded)
        except OSError as error:
            cause = "not found" if error.errno == errno.ENOENT else error.strerror
            os.write(tell, f"{place}: {cause}".encode("utf-8", "backslashreplace"))
        finally:
            os._exit(127)
    os.close(tell)
    return pid, said_by_child(told)


def own_prctl() -> Callable[[int, int], object]:
    """prctl(2). In a unit of its own a keeper needs none: the manager ends and reaps what it leaves. Raises OSError."""
    if os.environ.get("SYSTEMD_EXEC_PID") == str(os.getpid()):
        return lambda _option, _value: None
    import ctypes

    return ctypes.CDLL(None, use_errno=True).prctl


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
    return {"outcome": outcome, "reason": f"exit status {code}"}


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


def hold(stem: str) -> None:
    """Keep the lock that came as standard input until we end, and give it to no child.

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


if __name__ == "__main__":
    try:
        code = main(sys.argv[1:])
    except (OSError, ValueError) as error:
        say(str(error))
        code = 1
    os._exit(code)  # nothing is left to be tidied up: what was written was flushed
