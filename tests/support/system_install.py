"""The system install of the poller in a container, as an administrator makes it, and what can be seen of it.

    with SystemInstall(container) as loop:       # `the-loop unit install --system` has run, as root
        loop.systemctl("start")

The service runs as the user `the-loop`; there is one in a container, so `clear` makes a fresh start between tests.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml

from support.container import COMMAND
from support.installed import SERVICE, SOCKET, Installed

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Self, TypeVar

    from support.container import Container

    T = TypeVar("T")

ONCE: Final = "the-loop-poll-once.service"
TIMER: Final = "the-loop-poll-once.timer"
CREDENTIAL: Final = "github-token"
_UNITS: Final = (SERVICE, SOCKET, ONCE, TIMER)
_LOOK_AGAIN_S: Final = 0.1
_ETC: Final = Path("/etc/systemd/system")
_SINK: Final = Path("/srv/sink")
# A service sees neither homes nor /tmp, and this repository may lie in one of them.
_HIDDEN: Final = ("/home/", "/root/", "/run/user/", "/tmp/", "/var/tmp/")
_CLEAR: Final = """
systemctl stop {units} 'the-loop-poll@*' 2>/dev/null
systemctl --user -M the-loop@ stop 'theloop-*' 2>/dev/null
rm -rf {etc}/*.wants/the-loop-poll* {etc}/the-loop-poll*.d/[5-9]*.conf /var/lib/the-loop* /etc/the-loop {sink}
systemctl reset-failed
systemctl daemon-reload
systemctl start user@{uid}.service
"""


class SystemInstall(Installed):
    """The units in place and not started. Commands run as root unless a user is named."""

    def __init__(self, container: Container) -> None:
        self.container = container
        self.name = None
        self.service, self.socket = SERVICE, SOCKET
        self.root = Path("/var/lib/the-loop")
        self.inbox = self.root / "inbox"
        self.config = Path("/etc/the-loop/config.yaml")
        self.units = _ETC
        self.wake_path = Path("/run/the-loop/the-loop-poll.wake")
        self._sink = _SINK
        self._sources: Sequence[Mapping[str, Any]] | None = None
        self._settings = {}
        self._cleared_at = 0.0
        # without these the install is refused, as a service would not see the program
        for unit in (SERVICE, ONCE, *(unit.replace(".", "@.") for unit in (SERVICE, ONCE))):
            self.write(_ETC / f"{unit}.d" / "40-test.conf", f"[Service]\n{_seen_paths()}", owner=0)
        self.install()
        self.user = container.user("the-loop")
        self.write(_ETC / f"{SERVICE}.d" / "41-quick.conf", "[Service]\nRestartSec=200ms\n", owner=0)
        self.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        if self.container.is_up:
            self.clear()
            self.root_does([COMMAND, "unit", "uninstall", "--system"])
            self.root_does(f"rm -rf {_ETC}/the-loop-poll*.d /var/lib/the-loop*; loginctl disable-linger the-loop")
            self.root_does(["systemctl", "stop", f"user@{self.user.uid}.service"])

    # --- set up ---

    def install(self, *options: str) -> subprocess.CompletedProcess[str]:
        return self.root_does([COMMAND, "unit", "install", "--system", *options])

    def clear(self) -> None:
        """Back to what an install leaves, with a configuration of ours and an empty inbox."""
        self.root_does(_CLEAR.format(units=" ".join(_UNITS), etc=_ETC, sink=_SINK, uid=self.user.uid))
        for folder, mode in ((_SINK, 0o755), (self.root, 0o700), (self.inbox, 0o700)):
            self.make_folder(folder, mode)
        self.configure()
        self._cleared_at = time.time()

    @property
    def since(self) -> str:
        """When the present test began, for whoever reads the journal."""
        return f"@{self._cleared_at:.6f}"

    def add_drop_in(self, file: str, text: str, unit: str = "") -> None:
        """`file` is to begin with 5 to 9: what `clear` takes away."""
        self.write(self.units / f"{unit or self.service}.d" / file, text, owner=0)
        self.root_does(["systemctl", "daemon-reload"])

    def configure(self, *, sources: Sequence[Mapping[str, Any]] | None = None, **settings: Mapping[str, Any]) -> None:
        """Write /etc/the-loop/config.yaml: what is given, over a receiver of ours."""
        inbox = {"provider": "directory", "path": "inbox", "settleSeconds": 0}
        tree: dict[str, dict[str, Any]] = {
            "polling": {"intervalSeconds": 1, "lingerSeconds": 0, "sources": list(sources or [inbox])},
            "routing": {
                "authorizedUsers": ["the-loop" if sources is None else "octocat"],
                "maxEventsPerItemPerHour": 0,
            },
            "session": {"command": self.receiver()},
        }
        for name, section in settings.items():
            tree[name] = tree.get(name, {}) | dict(section)
        self.write(self.config, yaml.safe_dump(tree), owner=0)

    def make_folder(self, path: Path, mode: int) -> None:
        """A new folder of the service's user."""
        made = self.seen(path)
        made.mkdir()
        made.chmod(mode)
        os.chown(made, self.user.uid, self.user.uid)

    def write(self, path: Path, text: str, mode: int = 0o644, *, owner: int | None = None) -> None:
        """A file of that user's (the service's, if none is named), put in place by a rename."""
        uid = self.user.uid if owner is None else owner
        for parent in reversed([parent for parent in path.parents if not self.seen(parent).exists()]):
            self.seen(parent).mkdir()
            os.chown(self.seen(parent), uid, uid)
        beside = self.seen(path).with_name(f".{path.name}.new")
        beside.write_text(text, "utf-8")
        beside.chmod(mode)
        os.chown(beside, uid, uid)
        beside.rename(self.seen(path))

    # --- commands ---

    def root_does(self, what: Sequence[str | Path] | str, **options: Any) -> subprocess.CompletedProcess[str]:
        return self.container.run(what, **{"check": False, **options})

    def run(self, what: Sequence[str] | str, **options: Any) -> subprocess.CompletedProcess[str]:
        """In the container, as the service's user unless another is named; None is root."""
        return self.container.run(what, **{"user": self.user.name, **options})

    def poll(self, *arguments: str, check: bool = False, **options: Any) -> subprocess.CompletedProcess[str]:
        """`the-loop poll …` as root, or as `user`, with the built-in defaults."""
        return self.the_loop("poll", *arguments, check=check, **{"user": None, **options})

    @contextmanager
    def background(self, what: Sequence[str | Path] | str, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
        """A command in the container that runs beside the test, and is ended with it."""
        with self.container.start(what, **options) as process:
            try:
                yield process
            finally:
                process.kill()

    def systemctl(self, verb: str, *units: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return self.root_does(["systemctl", verb, "--", *(units or (self.service,))], check=check)

    def wake(self) -> None:
        """A datagram to the manager's socket, past any command of ours."""
        self.root_does([sys.executable, "-IS", "-c", _DATAGRAM, str(self.wake_path)])

    def journal(self, *matches: str) -> list[dict[str, Any]]:
        """The entries since the present test began, as root sees them."""
        argv = ["journalctl", "--quiet", "--output=json", "--all", f"--since={self.since}", *matches]
        done = self.root_does(argv)
        return [json.loads(line) for line in done.stdout.splitlines()]

    # --- what can be seen ---

    def events(self, *names: str) -> list[dict[str, Any]]:
        """The events of these names (all, if none is given) in the present test, as the journal has them."""
        matches = [f"THE_LOOP_EVENT={name}" for name in names]
        return [
            json.loads(entry["THE_LOOP_JSON"]) for entry in self.journal(f"THE_LOOP_STATE_ROOT={self.root}", *matches)
        ]

    def told(self, user: str | None = None) -> list[dict[str, Any]]:
        """The trail of the present test as `the-loop events` tells it."""
        since = datetime.fromtimestamp(self._cleared_at, UTC).isoformat()
        argv = ["events", "--json", "--since", since, "--state-root", str(self.root)]
        return [json.loads(line) for line in self.the_loop(*argv, user=user).stdout.splitlines()]

    def wait(self, condition: Callable[[], T], what: str, timeout_s: float = 20.0) -> T:
        """Like `wait_for`, but not as often: most looks start a program in the container, on the same processors."""
        until = time.monotonic() + timeout_s
        while not (value := condition()):
            if time.monotonic() > until:
                said = self.root_does(["journalctl", "--no-hostname", "-n", "60", f"--since={self.since}"]).stdout
                said += self.root_does(
                    f"ls -land / /srv {_SINK}; ls -lan {_SINK}; id the-loop; grep /srv /proc/mounts"
                ).stdout
                raise AssertionError(f"{what} did not come in {timeout_s:.0f} s; got {self.sink.ids()}\n{said}")
            time.sleep(_LOOK_AGAIN_S)
        return value

    def property(self, name: str, unit: str = "") -> str:
        argv = ["systemctl", "show", "--value", f"--property={name}", "--", unit or self.service]
        return self.root_does(argv, check=True).stdout.strip()

    def failed(self) -> list[str]:
        """Failed units, of the system's manager and of the user's."""
        list_failed = ["list-units", "--failed", "--plain", "--no-legend", "the*"]
        said = self.root_does(["systemctl", *list_failed]).stdout
        said += self.run(["systemctl", "--user", *list_failed], check=False).stdout
        return [line.split()[0] for line in said.splitlines() if line.split()]

    def wait_until_up(self) -> None:
        self.wait(lambda: self.is_active() == "active", "the service")

    def control_group(self, pid: int) -> str:
        """The control group of a process of the container, by its pid there."""
        return self.root_does(["cat", f"/proc/{pid}/cgroup"], check=True).stdout.strip().rpartition("::")[2]


def _seen_paths() -> str:
    """Lines that show a service the interpreter and the sources, where they lie in a home."""
    here = Path(__file__).resolve().parents[2]
    paths = {str(path) for path in (Path(sys.prefix), Path(sys.base_prefix), here)}
    hidden = sorted(path for path in paths if path.startswith(_HIDDEN))
    return "".join(f"BindReadOnlyPaths={shlex.quote(path)}\n" for path in hidden)


_DATAGRAM: Final = """
import socket, sys
try:
    socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b"wake", sys.argv[1])
except (ConnectionRefusedError, FileNotFoundError):
    pass
"""
