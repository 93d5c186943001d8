"""A private, real systemd on an overlay of this machine: PID 1, journal, D-Bus, logind and users' managers.

    with Container(tmp_path / "container") as container:  # booted
        alice = container.add_user("alice")               # lingers, so her manager runs
        container.run(["systemctl", "--user", "is-system-running"], user="alice")
        container.down()                                  # power cut: everything in it is killed at once
        container.up()                                    # the same disk, a new life

The container sees the files of this machine as they were when it booted and keeps what it writes to itself. It shares
the network, so a server on 127.0.0.1 serves it, and the clocks. Its pids are its own. What it needs to run at all is
told by `obstacle()`. If the process that booted it dies, the container dies with it, and leaves nothing mounted.

NB: a power cut here loses what processes have in memory; what they wrote unsynced survives in the host's page cache.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from support.container_host import needed_folders, new_cgroup, remove_cgroup

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

COMMAND: Final = Path(sys.executable).with_name("the-loop")
_BOOT_SCRIPT: Final = Path(__file__).with_name("container.sh")
_REPOSITORY: Final = Path(__file__).parents[2]
_PATH: Final = f"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:{COMMAND.parent}"
_BOOT_LIMIT_S: Final = 60.0
_HALT_LIMIT_S: Final = 100.0
_KILL_LIMIT_S: Final = 20.0
_RUN_LIMIT_S: Final = 60.0
_LOOK_AGAIN_S: Final = 0.01


@dataclass(frozen=True)
class User:
    """An account in a container; `home` is a path in the container."""

    name: str
    uid: int
    home: Path


class Container:
    """One machine whose disk is kept in `folder`. Entering the context boots it, leaving removes it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._unshare: subprocess.Popen[bytes] | None = None
        self._leader = 0
        self._cgroup: Path | None = None
        self._uids = itertools.count(2001)

    def __enter__(self) -> Self:
        try:
            self.up()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(self, *_exception: object) -> None:
        self.remove()

    # --- power ---

    @property
    def is_up(self) -> bool:
        return self._unshare is not None and self._unshare.poll() is None and self._leader > 0

    def up(self) -> None:
        """Boot, and return when everything that is started at a boot has been."""
        assert not self.is_up, "it is up already"
        # the kernel ends the container with the thread that made it
        assert threading.current_thread() is threading.main_thread(), "boot it from the main thread"
        for name in ("upper", "work", "root"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        self._cgroup = new_cgroup()
        with (self.folder / "boot.log").open("ab") as log:
            # a session of its own: Ctrl-C is for the tests, which then end it
            self._unshare = subprocess.Popen(
                _boot_argv(self.folder, self._cgroup),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            self._wait_for_boot(time.monotonic() + _BOOT_LIMIT_S)
            self._open_the_way()
        except BaseException:
            self.down()
            raise

    def down(self) -> None:
        """Cut the power: every process in it is killed at once. Does nothing if it is down."""
        self._end(signal.SIGKILL)

    def halt(self) -> None:
        """Shut down in order: units are stopped, then the machine ends."""
        self.run(["systemctl", "poweroff", "--no-block"])
        self._end(None)

    def remove(self) -> None:
        """Cut the power and forget the disk."""
        self.down()
        shutil.rmtree(self.folder, ignore_errors=True)

    # --- in the container ---

    def path(self, path: str | Path) -> Path:
        """Where a path of the container is found from outside, while this life of the container lasts."""
        assert self.is_up
        return Path(f"/proc/{self._leader}/root", str(path).lstrip("/"))

    def run(
        self,
        what: Sequence[str | Path] | str,
        *,
        user: str | None = None,
        check: bool = True,
        env: Mapping[str, str | None] | None = None,
        text: str | None = None,
        limit_s: float = _RUN_LIMIT_S,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command, or a script of `sh`, to its end; as root or as `user` in that user's home.

        The environment is a fresh one, with `XDG_RUNTIME_DIR` for a user, changed by `env` (None: without it); `text`
        is its standard input. With `check`, any exit status but 0 is an AssertionError that shows what was said.
        """
        with self.start(what, user=user, env=env) as process:
            try:
                out, err = process.communicate(None if text is None else text.encode(), limit_s)
            except subprocess.TimeoutExpired:
                process.kill()
                out, err = process.communicate()
                said = f"{out.decode(errors='replace')}{err.decode(errors='replace')}"
                raise AssertionError(f"{what!r} did not end within {limit_s:.0f} s: {said}") from None
        done = subprocess.CompletedProcess(
            process.args, process.returncode, out.decode("utf-8", "replace"), err.decode("utf-8", "replace")
        )
        if check:
            assert done.returncode == 0, f"{what!r} ended with {done.returncode}\n{done.stdout}{done.stderr}"
        return done

    def start(
        self,
        what: Sequence[str | Path] | str,
        *,
        user: str | None = None,
        env: Mapping[str, str | None] | None = None,
        **options: Any,
    ) -> subprocess.Popen[bytes]:
        """Like `run`, without waiting for the end. The process is the helper that entered, not the command."""
        assert self.is_up, "the container is down"
        argv = ["sh", "-c", what] if isinstance(what, str) else [str(part) for part in what]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen([*self._enter_argv(user, env or {}), *argv], **{**pipes, **options})

    @contextlib.contextmanager
    def background(self, what: Sequence[str | Path] | str, *, user: str | None = None) -> Iterator[None]:
        """Something that runs, unheard, until the context is left."""
        quiet: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        with self.start(what, user=user, **quiet) as process:
            try:
                yield
            finally:
                process.kill()

    def add_user(self, name: str, *, linger: bool = True) -> User:
        """A new account with a home; its manager is up on return, unless it does not linger."""
        uid = f"--uid={next(self._uids)}"  # never one of an account that was removed: its manager may be on its way
        self.run(["useradd", uid, "--user-group", "--create-home", "--shell=/bin/bash", name])
        user = self.user(name)
        if linger:
            self.run(["loginctl", "enable-linger", name])
            self.wait_for_manager(name)
        return user

    def remove_user(self, name: str) -> None:
        """End everything of this account, and forget it."""
        manager = f"user@{self.user(name).uid}.service"
        script = f"""
            loginctl disable-linger {name}
            systemctl kill --signal=KILL {manager}
            systemctl stop {manager} user-runtime-dir@{manager.removeprefix("user@")}
            systemctl reset-failed {manager}
            loginctl kill-user --signal=KILL {name}
            userdel --remove --force {name}
        """
        self.run(script, check=False)

    def user(self, name: str) -> User:
        line = next(
            line for line in self.path("/etc/passwd").read_text().splitlines() if line.startswith(f"{name}:")
        ).split(":")
        return User(name, int(line[2]), Path(line[5]))

    def wait_for_manager(self, name: str) -> None:
        """Return when the manager of a lingering user has come up, as after a boot."""
        until = time.monotonic() + _BOOT_LIMIT_S
        argv = ["systemctl", "--user", "is-system-running", "--wait"]
        while self.run(argv, user=name, check=False).stdout.strip() not in ("running", "degraded"):
            assert time.monotonic() < until, f"no manager for {name}"
            time.sleep(_LOOK_AGAIN_S)

    # --- how ---

    def _wait_for_boot(self, until: float) -> None:
        assert self._unshare is not None
        while True:
            self._leader = self._leader or _only_child(self._unshare.pid)
            if self._leader and self._is_reachable():
                done = self.run(["systemctl", "is-system-running", "--wait"], check=False)
                if done.stdout.strip() in ("running", "degraded"):
                    return
            log = (self.folder / "boot.log").read_text(errors="replace")
            assert self._unshare.poll() is None, f"the container did not boot: {log[-2000:]}"
            assert time.monotonic() < until, f"the container is not up after {_BOOT_LIMIT_S:.0f} s: {log[-2000:]}"
            time.sleep(_LOOK_AGAIN_S)

    def _is_reachable(self) -> bool:
        try:
            is_systemd = Path(f"/proc/{self._leader}/comm").read_text() == "systemd\n"
        except OSError:
            return False
        return (
            is_systemd
            and self.path("/run/systemd/private").exists()
            and self.path("/run/dbus/system_bus_socket").exists()
        )

    def _open_the_way(self) -> None:
        """Let the container's users reach the interpreter and the package, also where they lie in a private home."""
        if (self.folder / "opened").exists():
            return
        places = {Path(sys.executable), Path(sys.executable).resolve(), *map(Path, needed_folders())}
        parents = {parent for place in places for parent in (place, *place.parents)}
        closed = [parent for parent in parents if self.path(parent).stat().st_mode & 0o5 != 0o5]
        if closed:
            self.run(["chmod", "a+rx", "--", *closed])
        is_readable = [sys.executable, "-c", "import the_loop.cli, the_loop.daemon"]
        if self.run([*_AS_NOBODY, *is_readable], check=False).returncode != 0:
            self.run(["chmod", "-R", "a+rX", "--", sys.prefix, _REPOSITORY / "src", _REPOSITORY / "tests"])
            self.run([*_AS_NOBODY, *is_readable])
        (self.folder / "opened").touch()

    def _enter_argv(self, name: str | None, changes: Mapping[str, str | None]) -> list[str]:
        """Into the container's namespaces and one of its control groups, then, for a user, out of root's rights."""
        environ: dict[str, str | None] = {"PATH": _PATH, "LANG": "C.UTF-8", "HOME": "/root", "USER": "root"}
        become: list[str] = []
        if name is not None:
            user = self.user(name)
            environ |= {"HOME": str(user.home), "USER": name, "LOGNAME": name, "SHELL": "/bin/bash"}
            environ["XDG_RUNTIME_DIR"] = f"/run/user/{user.uid}"
            become = ["setpriv", f"--reuid={user.uid}", f"--regid={user.uid}", "--init-groups"]
        environ |= changes
        variables = [f"{key}={value}" for key, value in environ.items() if value is not None]
        home = environ["HOME"] or "/"
        # the command dies with the helper; NB: becoming somebody else would make the kernel forget that
        inner = [*become, "setpriv", "--pdeathsig=KILL", "env", "-i", f"--chdir={home}", *variables]
        enter = ["nsenter", f"--target={self._leader}", "-m", "-p", "-u", "-i", "-C", "-r", "-w", "--", *inner]
        return ["sh", "-c", 'echo $$ >"$0/cgroup.procs" && exec "$@"', str(self._session_cgroup()), *enter]

    def _session_cgroup(self) -> Path:
        """A place beside systemd's own units for what is run from outside, so that it is in nobody's unit."""
        assert self._cgroup is not None
        place = self._cgroup / "outside"
        place.mkdir(exist_ok=True)
        return place

    def _end(self, number: signal.Signals | None) -> None:
        if self._unshare is not None:
            if number is not None and self._unshare.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._leader or self._unshare.pid, number)
            self._unshare.wait(_KILL_LIMIT_S if number is not None else _HALT_LIMIT_S)
            self._unshare = None
            self._leader = 0
        if self._cgroup is not None:
            remove_cgroup(self._cgroup)
            self._cgroup = None


_AS_NOBODY: Final = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")


def _boot_argv(folder: Path, cgroup: Path) -> list[str]:
    spaces = ["--fork", "--pid", "--mount", "--ipc", "--uts", "--cgroup", "--kill-child=KILL"]
    boot = [
        "setpriv",
        "--pdeathsig=KILL",
        "unshare",
        *spaces,
        "bash",
        str(_BOOT_SCRIPT),
        str(folder),
        *needed_folders(),
    ]
    return ["sh", "-c", 'echo $$ >"$0/cgroup.procs" && exec "$@"', str(cgroup), *boot]


def _only_child(pid: int) -> int:
    """The process that `unshare` started in the new namespace: PID 1 there. 0 where it is not there yet."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return 0
    return int(children[0]) if children else 0
