"""`the-loop doctor` on a real systemd: what it examines is the unit's and its user's, not the caller's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.container import COMMAND
from support.installed import Installed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.container import Container
    from support.system_install import SystemInstall

Finding = dict[str, str]
AGENT = Path("/opt/shell/my-agent")


def doctor(loop: Installed, *options: str, **how: Any) -> tuple[int, dict[str, Finding]]:
    """The exit code, and the findings by name: the worst one, where a name comes twice."""
    done = loop.the_loop("doctor", "--json", *options, check=False, **how)
    assert done.stderr == "", done.stderr
    found: dict[str, Finding] = {}
    for finding in json.loads(done.stdout):
        if found.get(finding["name"], {"state": "ok"})["state"] == "ok":
            found[finding["name"]] = finding
    return done.returncode, found


def bad(found: dict[str, Finding]) -> list[str]:
    """What is not good, but for what the container's file system is."""
    return [name for name, one in found.items() if one["state"] != "ok" and name not in ("file system", "space")]


def make_agent(loop: Installed) -> None:
    loop.container.run(f"mkdir -p {AGENT.parent} && printf '#!/bin/sh\\n' > {AGENT} && chmod 755 {AGENT}")


@pytest.fixture
def system(installed: SystemInstall) -> Iterator[SystemInstall]:
    installed.clear()
    yield installed
    installed.root_does("systemctl disable --quiet the-loop-poll.service; loginctl enable-linger the-loop")
    installed.root_does(f"systemctl start user@{installed.user.uid}.service")


def test_user_install_when_it_is_good_then_every_line_is(container: Container) -> None:
    with Installed(container) as loop:
        loop.systemctl("enable")
        loop.systemctl("start")

        code, found = doctor(loop)

        assert (code, bad(found)) == (0, []), found
        assert found["configuration"]["detail"].startswith(f"'{loop.config}'")
        assert {"program", "unit files", "lingering", "manager", "unit"} <= set(found)
        assert "systemd 25" in found["versions"]["detail"]


def test_user_install_when_moves_are_wrong_then_each_has_its_line(container: Container) -> None:
    with Installed(container) as loop:
        make_agent(loop)
        loop.configure(session={"command": ["my-agent"]})
        other = loop.home / "xdg" / "the-loop" / "config.yaml"
        loop.write(other, "polling: {}\n")
        shell = {"XDG_CONFIG_HOME": str(loop.home / "xdg"), "PATH": f"/usr/bin:/bin:{AGENT.parent}"}
        loop.write(loop.units / "the-loop-poll.socket", "# Installed by `the-loop unit install`; changes\n")

        code, found = doctor(loop, env=shell)

    assert code == 1
    assert (
        "is on the PATH of this shell, in '/opt/shell', and not on the poller's" in found["receiver: command"]["detail"]
    )
    assert found["receiver: command"]["command"] == "systemctl --user edit the-loop-poll.service"
    assert f"'{other}', which this shell leads to" in found["configuration"]["detail"]
    assert found["poller"]["command"] == "systemctl --user enable --now the-loop-poll.service"
    assert found["unit files"]["command"] == "the-loop unit install --user"


def test_user_install_when_its_manager_ended_with_the_last_login_then_says_lingering(container: Container) -> None:
    with Installed(container) as loop:
        container.run(f"loginctl disable-linger {loop.user.name}; systemctl stop user@{loop.user.uid}.service")

        code, found = doctor(loop)

    assert (code, found["unit"]["state"]) == (1, "unknown")
    assert found["lingering"]["command"] == f"sudo loginctl enable-linger {loop.user.name}"


def test_instance_when_it_is_named_or_by_its_root_then_is_examined_and_named_otherwise(container: Container) -> None:
    with Installed(container, name="two") as loop:
        loop.systemctl("enable")
        loop.systemctl("start")

        by_name, by_root = doctor(loop, "--name", "two"), doctor(loop, "--state-root", str(loop.root))
        code, found = doctor(loop)
        of_root = container.run([COMMAND, "doctor", "--json", "--state-root", str(loop.root)])

    assert [(code, bad(found)) for code, found in (by_name, by_root)] == [(0, []), (0, [])]
    assert code == 1
    assert f"(run `the-loop doctor --state-root {loop.root}`)" in found["poller"]["detail"]
    assert {one["name"]: one["detail"] for one in json.loads(of_root.stdout)}["state root"].endswith(
        f"of {loop.user.name}, mode 0700"
    )


def test_system_install_when_root_asks_then_is_examined_as_its_user(system: SystemInstall) -> None:
    system.systemctl("enable")
    system.systemctl("start")
    system.wait_until_up()

    code, found = doctor(system, user=None)

    assert (code, bad(found)) == (0, []), found
    assert found["configuration"]["detail"].startswith("'/etc/the-loop/config.yaml'")
    assert "of the-loop, mode 0700" in found["state root"]["detail"]
    assert system.property("ActiveState") == "active"


def test_system_install_when_moves_are_wrong_then_each_has_its_line(system: SystemInstall) -> None:
    make_agent(system)
    inbox = {"provider": "directory", "path": "/home/inbox", "authorizedUsers": ["the-loop"]}
    system.configure(sources=[inbox], session={"command": ["my-agent"]})
    system.root_does("chmod 600 /etc/the-loop/config.yaml; chown root:root /etc/the-loop/config.yaml")

    code, found = doctor(system, user=None)
    assert code == 1
    assert "let the user 'the-loop' read it" in found["configuration"]["detail"]

    system.root_does("chmod 644 /etc/the-loop/config.yaml; touch /var/lib/the-loop/poll-status.json")
    system.root_does(f"loginctl disable-linger the-loop; systemctl stop user@{system.user.uid}.service")
    code, found = doctor(system, user=None, env={"PATH": f"/usr/bin:/bin:{AGENT.parent}"})
    assert code == 1
    assert "the service does not see '/home/inbox'" in found["source inbox: directory"]["detail"]
    assert "is on the PATH of this shell" in found["receiver: command"]["detail"]
    assert found["files of the state root"]["command"].startswith("sudo chown -R ")
    assert found["lingering"]["state"] == "fail"
    assert found["manager"]["command"] == f"sudo systemctl start user@{system.user.uid}.service"


def test_system_install_when_another_user_asks_then_says_sudo(system: SystemInstall, container: Container) -> None:
    user = container.add_user("passer-by", linger=False)

    done = system.the_loop("doctor", user=user.name, check=False)

    assert done.returncode == 1
    assert "it runs as 'the-loop' (run `sudo the-loop doctor`)" in done.stderr
    container.remove_user(user.name)
