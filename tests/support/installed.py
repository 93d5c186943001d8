"""The user install of the poller in a container: its account, its units, its receiver, and what can be seen of them.

    with Installed(container, sources=[...]) as loop:    # `unit install --user` has run
        loop.systemctl("start")
        loop.wait(lambda: loop.sink.ids(), "a delivery")

Each has an account of its own that lingers, so the tests of one container do not meet. Paths are the container's own;
`seen` gives where one is found from outside. Leaving the context ends the account with all it runs.
"""

from __future__ import annotations

import itertools
import json
import os
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import yaml

from support import sink
from support.container import COMMAND

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Mapping, Sequence

    from support.container import Container

T = TypeVar("T")

TOKEN: Final = "ghp_never_to_be_seen"
REPO: Final = "octo/repo"
SERVICE: Final = "the-loop-poll.service"
SOCKET: Final = "the-loop-poll.socket"
QUICK: Final = "[Service]\nRestartSec=200ms\n"  # a drop-in: the shipped ten seconds are nothing to wait for
_LOOK_AGAIN_S: Final = 0.05
_numbers = itertools.count(1)


def github_source(url: str, **more: Any) -> dict[str, Any]:
    """A section for a fake GitHub at `url`, with a token from a file."""
    section = {"provider": "github", "name": "work", "repos": [REPO], "label": "auto", "apiUrl": url}
    return {**section, "tokenFile": "~/.config/the-loop/token", **more}


def ref(number: int, key: str) -> str:
    """The delivery id of an event in that repository, as the fake's address makes it."""
    return f"github:127.0.0.1/{REPO}#{number}/{key}"


class Installed:
    """One account with the user units in place, not started. `name`: an instance, with its own everything."""

    def __init__(
        self,
        container: Container,
        *,
        sources: Sequence[Mapping[str, Any]] | None = None,
        name: str | None = None,
        drop_in: str = QUICK,
        is_installed: bool = True,
        **settings: Mapping[str, Any],
    ) -> None:
        self.container = container
        self.user = container.add_user(f"user{next(_numbers)}")
        self.name = name
        self.home = self.user.home
        self.root = self.home / ".local/state" / ("the-loop" if name is None else f"the-loop-{name}")
        self.inbox = self.root / "inbox"
        self.config = self.home / ".config/the-loop" / f"{name or 'config'}.yaml"
        self.units = self.home / ".config/systemd/user"
        self.service = SERVICE if name is None else f"the-loop-poll@{name}.service"
        self.socket = self.service.replace(".service", ".socket")
        self.wake_path = Path(f"/run/user/{self.user.uid}/the-loop/{self.socket.replace('.socket', '.wake')}")
        self._sink = self.home / "sink"
        self._sources = sources
        self._settings = settings
        self.run(f"mkdir -p {self.inbox} {self._sink} && chmod 700 {self.root}")
        self.write(self.home / ".config/the-loop/token", TOKEN, mode=0o600)
        self.configure()
        if is_installed:
            if drop_in:
                self.write(self.units / f"{self.service}.d" / "50-test.conf", drop_in)
            self.install()  # has the manager read the drop-in as well

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        if self.container.is_up:
            self.container.remove_user(self.user.name)

    # --- set up ---

    def install(self, *options: str) -> subprocess.CompletedProcess[str]:
        named = [] if self.name is None else ["--name", self.name]
        return self.the_loop("unit", "install", "--user", *named, *options)

    def add_drop_in(self, file: str, text: str, unit: str = "") -> None:
        self.write(self.units / f"{unit or self.service}.d" / file, text)
        self.run(["systemctl", "--user", "daemon-reload"])

    def configure(self, *, sources: Sequence[Mapping[str, Any]] | None = None, **settings: Mapping[str, Any]) -> None:
        """Write the configuration: what is given, over what was given at first, over a receiver of ours."""
        inbox = {"provider": "directory", "path": "inbox", "settleSeconds": 0}
        given = {**self._settings, **settings}
        sources = self._sources if sources is None else sources
        polling = {"intervalSeconds": 1, "lingerSeconds": 0, "sources": list(sources or [inbox])}
        people = [self.user.name if sources is None else "octocat"]
        tree = {
            "polling": polling | dict(given.get("polling", {})),
            "routing": {"authorizedUsers": people, "maxEventsPerItemPerHour": 0} | dict(given.get("routing", {})),
            "session": {"command": self.receiver()} | dict(given.get("session", {})),
        }
        self.write(self.config, yaml.safe_dump(tree))

    def receiver(self) -> list[str]:
        return [sys.executable, "-I", "-S", str(Path(sink.__file__)), str(self._sink)]

    def write(self, path: Path, text: str, mode: int = 0o644) -> None:
        """A file of this user's, put in place by a rename."""
        beside = self.seen(path).with_name(f".{path.name}.new")
        made = [parent for parent in path.parents if not self.seen(parent).exists()]
        for parent in [*reversed(made)]:
            self.seen(parent).mkdir()
            os.chown(self.seen(parent), self.user.uid, self.user.uid)
        beside.write_text(text, "utf-8")
        beside.chmod(mode)
        os.chown(beside, self.user.uid, self.user.uid)
        beside.rename(self.seen(path))

    def item(self, folder: str, text: str = "please") -> str:
        """Put an item into the inbox; its ref."""
        beside = self.inbox / f".{folder}"
        self.write(beside / "item.md", text)
        self.seen(beside).rename(self.seen(self.inbox / folder))
        return f"directory:inbox/{folder}"

    def comment(self, folder: str, name: str, text: str = "and this") -> None:
        self.write(self.inbox / folder / name, text)

    # --- commands ---

    def run(self, what: Sequence[str] | str, **options: Any) -> subprocess.CompletedProcess[str]:
        """In the container, as this user."""
        return self.container.run(what, user=self.user.name, **options)

    def the_loop(self, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """A command of ours; there must be no traceback, whatever it says."""
        done = self.run([str(COMMAND), *arguments], **options)
        assert "Traceback" not in done.stdout + done.stderr, done.stderr
        return done

    def poll(self, *arguments: str, check: bool = False, **options: Any) -> subprocess.CompletedProcess[str]:
        """`the-loop poll …` on this root."""
        return self.the_loop(*self.on_root("poll", *arguments), check=check, **options)

    def on_root(self, *arguments: str) -> list[str]:
        return ["--config", str(self.config), "--state-root", str(self.root), *arguments]

    def command_line(self, *arguments: str) -> str:
        """The same as words for a shell or a unit file."""
        return shlex.join([str(COMMAND), *self.on_root(*arguments)])

    def systemctl(self, verb: str, *units: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return self.run(["systemctl", "--user", verb, "--", *(units or (self.service,))], check=check)

    def wake(self) -> None:
        """A datagram to the manager's socket, past any command of ours."""
        self.run([sys.executable, "-IS", "-c", _DATAGRAM, str(self.wake_path)])

    def journal(self, *matches: str) -> list[dict[str, Any]]:
        """The entries that `journalctl --user` shows this user."""
        done = self.run(["journalctl", "--user", "--quiet", "--output=json", "--all", "-t", "the-loop", *matches])
        return [json.loads(line) for line in done.stdout.splitlines()]

    # --- what can be seen ---

    def seen(self, path: Path) -> Path:
        return self.container.path(path)

    @property
    def sink(self) -> sink.Sink:
        return sink.Sink(self.seen(self._sink))

    def gate(self, name: str) -> str:
        """A gate's path for the receiver's rules."""
        return str(self._sink / name)

    def wait(self, condition: Callable[[], T], what: str, timeout_s: float = 20.0) -> T:
        """The first true value; a failure shows what the journal has."""
        until = time.monotonic() + timeout_s
        while not (value := condition()):
            if time.monotonic() > until:
                said = self.container.run(
                    ["journalctl", "--no-hostname", "-n", "40", f"_UID={self.user.uid}"], check=False
                )
                raise AssertionError(f"{what} did not come in {timeout_s:.0f} s; got {self.sink.ids()}\n{said.stdout}")
            time.sleep(_LOOK_AGAIN_S)  # most conditions start a process
        return value

    def property(self, name: str, unit: str = "") -> str:
        """One property of a unit, as its manager tells it."""
        argv = ["systemctl", "--user", "show", "--value", f"--property={name}", "--", unit or self.service]
        return self.run(argv).stdout.strip()

    def is_active(self) -> str:
        return self.property("ActiveState")

    def main_pid(self) -> int:
        """The poller's pid in the container."""
        return int(self.property("MainPID"))

    def deliveries(self) -> list[str]:
        """The units that deliveries run in."""
        argv = ["systemctl", "--user", "list-units", "--all", "--plain", "--no-legend", "theloop-*.service"]
        return [line.split()[0] for line in self.run(argv).stdout.splitlines() if line.split()]

    def failed(self) -> list[str]:
        argv = ["systemctl", "--user", "list-units", "--failed", "--plain", "--no-legend"]
        return [line.split()[0] for line in self.run(argv).stdout.splitlines()]

    def ledgers(self) -> dict[str, dict[str, Any]]:
        folder = self.seen(self.root / "portable")
        paths = (path for path in folder.rglob("*.json") if path.stem not in ("repositories", "authors"))
        found = [json.loads(path.read_bytes()) for path in paths]
        return {ledger["ref"]: ledger for ledger in found}

    def pending(self) -> dict[str, dict[str, Any]]:
        return {
            f"{ref}/{key}": entry
            for ref, ledger in self.ledgers().items()
            for key, entry in ledger.get("poll", {}).get("pending", {}).items()
        }

    def attempts(self) -> dict[str, int]:
        """Counted refusals, by delivery id."""
        counts: dict[str, int] = {}
        for ref, ledger in self.ledgers().items():
            poll = ledger.get("poll", {})
            counts |= {f"{ref}/{key}": count for key, count in poll.get("commentAttempts", {}).items()}
            counts[f"{ref}/spawn"] = poll.get("spawn", {}).get("attempts", 0)
        return {key: count for key, count in counts.items() if count}

    def wait_until_settled(self, ids: Sequence[str]) -> None:
        """These deliveries have begun and nothing is pending any more."""
        self.wait(lambda: set(self.sink.ids()) >= set(ids) and not self.pending(), f"the settling of {list(ids)}")

    def assert_once(self, ids: Sequence[str]) -> None:
        """Exactly these arrived: each once, unmarked, at its first attempt, and no budget was touched."""
        assert sorted(self.sink.ids()) == sorted(ids)
        assert [got for got in self.sink.got() if got.redelivery or got.attempt != 1] == []
        assert self.attempts() == {}

    def is_lock_free(self) -> bool:
        """True if nobody holds the state root, asked of the kernel and of nobody else."""
        probe = self.run(["flock", "--shared", "--nonblock", str(self.root), "true"], check=False)
        return probe.returncode == 0

    def status(self) -> dict[str, Any]:
        value: dict[str, Any] = json.loads(self.poll("status", "--json").stdout)
        return value


_DATAGRAM: Final = """
import socket, sys
try:
    socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b"wake", sys.argv[1])
except (ConnectionRefusedError, FileNotFoundError):
    pass
"""
