"""Sessions in terminals under the user's manager: what their server survives, and what it knows."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from support import pane_program
from support.installed import TOKEN, Installed
from support.terminals import unframed
from the_loop.runners.tmux_session import session_name

if TYPE_CHECKING:
    from support.container import Container

PROMPT = "$id $redelivery\n$body"


def session_of(loop_home: str, how: str = "framed") -> dict[str, Any]:
    program = [sys.executable, "-I", "-S", str(Path(pane_program.__file__)), f"{loop_home}/got", how]
    return {"runner": "tmux", "command": program, "spawnPrompt": PROMPT, "commentPrompt": PROMPT}


class Sessions(Installed):
    """A user install whose receiver is a program in a terminal."""

    def __init__(self, container: Container, drop_in: str = "", how: str = "framed") -> None:
        quick = f"[Service]\nRestartSec=200ms\n{drop_in}"
        super().__init__(container, is_installed=False, drop_in="")
        self.run(["mkdir", "-p", f"{self.home}/got"])
        self.configure(session=session_of(str(self.home), how))
        self.write(self.units / f"{self.service}.d" / "50-test.conf", quick)
        self.install()

    def messages(self) -> list[str]:
        paths = sorted(self.seen(self.home / "got").glob("got.*"))
        return [unframed(path.read_bytes()) for path in paths]

    def wait_messages(self, count: int) -> list[str]:
        self.wait(lambda: len(self.messages()) >= count, f"{count} messages")
        return self.messages()

    def settled(self) -> None:
        self.wait(lambda: not self.pending(), "the receipts")

    def server(self) -> str:
        """The unit of the tmux server."""
        (unit,) = self.deliveries()
        return unit

    def program(self, ref: str) -> str:
        """The pid of the session's program, in the container."""
        socket = re.search(r'"socket": "([^"]+)"', self.the_loop(*self.on_root("sessions", "list", "--json")).stdout)
        assert socket is not None
        argv = ["tmux", "-N", "-S", socket[1], "display-message", "-p", "-t", f"={session_name(ref)}:", "#{pane_pid}"]
        return self.run(argv).stdout.strip()


def test_session_when_the_poller_is_stopped_restarted_and_killed_goes_on_in_a_unit_of_its_own(
    container: Container,
) -> None:
    drop_in = f"Environment=GITHUB_TOKEN={TOKEN} ODD={TOKEN}\n"
    with Sessions(container, drop_in) as loop:
        loop.run(["systemctl", "--user", "set-environment", f"GITHUB_TOKEN={TOKEN}", "NOTIFY_SOCKET=/run/foreign"])
        ref = loop.item("a")
        loop.systemctl("start")
        loop.wait_messages(1)
        loop.settled()
        program, unit = loop.program(ref), loop.server()
        assert re.fullmatch(r"theloop-[0-9a-f]{12}-tmux\.service", unit)
        path = loop.run(["cat", f"/proc/{program}/cgroup"]).stdout.strip().splitlines()[-1]
        assert path.endswith(f"/user@{loop.user.uid}.service/theloop.slice/{unit}")

        loop.systemctl("restart")
        loop.comment("a", "c1", "after a restart")
        loop.wait_messages(2)
        loop.run(["systemctl", "--user", "kill", "--signal=KILL", "--", loop.service])
        loop.comment("a", "c2", "after a kill")
        loop.wait_messages(3)
        loop.run(["systemctl", "--user", "daemon-reexec"])
        loop.systemctl("stop")
        assert loop.program(ref) == program
        loop.systemctl("start")
        loop.comment("a", "c3", "after a stop")

        bodies = ["please", "after a restart", "after a kill", "after a stop"]
        keys = ["spawn:1", "comment:c1", "comment:c2", "comment:c3"]
        assert loop.wait_messages(4) == [f"{ref}/{key} false\n{body}" for key, body in zip(keys, bodies, strict=True)]
        assert (loop.program(ref), loop.server()) == (program, unit)
        pids = [program, loop.property("MainPID", unit)]
        environments = "".join(loop.run(f"tr '\\0' '\\n' </proc/{pid}/environ").stdout for pid in pids)
        assert TOKEN not in environments
        assert "NOTIFY_SOCKET" not in environments
        assert f"HOME={loop.home}\n" in environments
        loop.settled()
        loop.systemctl("stop")


def test_session_when_its_server_is_gone_is_started_again_and_told_what_came_before(container: Container) -> None:
    with Sessions(container, how="waits") as loop:
        loop.run(["touch", f"{loop.home}/got/go"])
        ref = loop.item("a")
        loop.systemctl("start")
        loop.wait_messages(1)
        loop.settled()
        loop.run(["rm", f"{loop.home}/got/go"])
        loop.comment("a", "c1", "in the middle of it")
        started = loop.seen(loop.root / "local/deliveries")
        loop.wait(lambda: list(started.glob("*.started.json")), "a delivery that was begun")

        loop.run(["systemctl", "--user", "stop", "--", loop.server()])  # as a reboot would

        loop.run(["touch", f"{loop.home}/got/go"])
        loop.comment("a", "c2", "behind it")
        messages = loop.wait_messages(4)
        assert messages[1].startswith(f"[the-loop] your session on {ref} was started again")
        assert "please" in messages[1]
        assert "middle" not in messages[1]
        assert messages[2:] == [
            f"{ref}/comment:c1 true\nin the middle of it",
            f"{ref}/comment:c2 false\nbehind it",
        ]
        loop.settled()
        loop.systemctl("stop")
