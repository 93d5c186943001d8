"""Deliveries in transient units of the user's manager: names, leftovers, secrets, and life without a manager."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.container import COMMAND
from support.installed import TOKEN, Installed
from the_loop.runners.base import Offer
from the_loop.runners.units import Units

if TYPE_CHECKING:
    from support.container import Container

A_SPAWN = "directory:inbox/a/spawn:1"
B_SPAWN = "directory:inbox/b/spawn:1"
FOREIGN = ("NOTIFY_SOCKET", "WATCHDOG_", "LISTEN_", "CREDENTIALS_DIRECTORY", "GITHUB_TOKEN", "THE_LOOP_STATE_ROOT")


def unit_name(loop: Installed, delivery_id: str) -> str:
    """The unit of a delivery's first offer."""
    ref, _, key = delivery_id.rpartition("/")
    return Units(loop.root, {}).name(Offer(ref, key, Path("unused"), 1, 1))


def test_delivery_when_it_runs_then_it_is_in_a_unit_of_its_own_below_our_slice(container: Container) -> None:
    with Installed(container) as loop:
        loop.sink.behave(("*", {"gate": loop.gate("gate")}))
        loop.item("a")
        loop.systemctl("start")
        loop.wait(loop.sink.ids, "a delivery that runs")

        assert loop.deliveries() == [unit_name(loop, A_SPAWN)]

        (run,) = loop.sink.runs()
        path = loop.run(["cat", f"/proc/{run.pid}/cgroup"]).stdout.strip().splitlines()[-1]
        assert path.endswith(f"/user@{loop.user.uid}.service/theloop.slice/{unit_name(loop, A_SPAWN)}")
        loop.sink.open_gate("gate")
        loop.wait_until_settled([A_SPAWN])
        loop.wait(lambda: not loop.deliveries(), "the end of its unit")


def test_delivery_when_its_session_names_a_slice_then_it_is_below_that_with_what_the_operator_wrote_for_it(
    container: Container,
) -> None:
    with Installed(container) as loop:
        loop.configure(session={"command": loop.receiver(), "slice": "theloop-heavy.slice"})
        loop.write(loop.units / "theloop-heavy.slice", "[Slice]\nTasksMax=123\n")
        loop.run(["systemctl", "--user", "daemon-reload"])
        loop.sink.behave(("*", {"gate": loop.gate("gate")}))
        loop.item("a")
        loop.systemctl("start")
        loop.wait(loop.sink.ids, "a delivery that runs")

        (run,) = loop.sink.runs()
        path = loop.run(["cat", f"/proc/{run.pid}/cgroup"]).stdout.strip().splitlines()[-1]
        assert path.endswith(f"/theloop.slice/theloop-heavy.slice/{unit_name(loop, A_SPAWN)}")
        assert loop.property("TasksMax", "theloop-heavy.slice") == "123"
        loop.sink.open_gate("gate")
        loop.wait_until_settled([A_SPAWN])


def test_delivery_when_the_name_of_its_unit_is_taken_then_that_is_no_refusal_and_it_goes_out_later(
    container: Container,
) -> None:
    with Installed(container) as loop:
        name = unit_name(loop, A_SPAWN)
        loop.run(["systemd-run", "--user", "--quiet", "--collect", f"--unit={name}", "sleep", "1000"])
        loop.item("a")
        loop.item("b")
        loop.systemctl("start")
        loop.wait(lambda: loop.sink.ids() == [B_SPAWN], "the delivery beside it")
        loop.wait(lambda: A_SPAWN in loop.pending(), "a delivery that was taken up")

        loop.run(["systemctl", "--user", "stop", "--", name])

        loop.wait(lambda: A_SPAWN in loop.sink.ids() and not loop.pending(), "the delivery", timeout_s=60)
        loop.assert_once([A_SPAWN, B_SPAWN])


@pytest.mark.parametrize("behaviour", [{"fail": 2}, {"fail": 2, "fork": 1000}, {"die": 11}], ids=str)
def test_delivery_when_it_fails_again_and_again_then_no_unit_is_left_behind(
    container: Container, behaviour: dict[str, Any]
) -> None:
    with Installed(container, polling={"maxRetries": 2}) as loop:
        loop.sink.behave(("*", behaviour))
        loop.item("a")
        loop.systemctl("start")

        loop.wait(lambda: loop.journal("THE_LOOP_EVENT=poll.spawn_failed", "THE_LOOP_WILL_RETRY=0"), "a given-up event")

        assert [got.attempt for got in loop.sink.got()] == [1, 2]
        loop.wait(lambda: not loop.deliveries(), "the end of all units")
        assert loop.failed() == []
        assert loop.run(["pgrep", "-u", str(loop.user.uid), "-f", "sink.py"], check=False).stdout == ""


def test_delivery_when_the_poller_has_secrets_then_none_is_in_its_environment_or_anywhere_to_be_read(
    container: Container,
) -> None:
    drop_in = f"[Service]\nEnvironment=GITHUB_TOKEN={TOKEN}\nLoadCredential=github-token:%h/.config/the-loop/token\n"
    with Installed(container, drop_in=drop_in) as loop:
        block = [f"{name}=/run/foreign" for name in ("NOTIFY_SOCKET", "LISTEN_FDS", "WATCHDOG_USEC", "WATCHDOG_PID")]
        loop.run(["systemctl", "--user", "set-environment", *block, f"GITHUB_TOKEN={TOKEN}"])
        loop.sink.behave(("*", {"env": True, "gate": loop.gate("gate")}))
        loop.item("a")
        loop.systemctl("start")

        (file,) = loop.wait(lambda: list(loop.sink.folder.glob("env.*.json")), "a delivery that has begun")
        loop.wait(file.read_text, "its environment")
        environment = json.loads(file.read_text())
        assert [name for name in environment if name.startswith(FOREIGN)] == []
        assert TOKEN not in json.dumps(environment)
        assert environment["THE_LOOP_DELIVERY_ID"] == A_SPAWN
        assert environment["HOME"] == str(loop.home)
        assert environment["XDG_RUNTIME_DIR"] == f"/run/user/{loop.user.uid}"
        assert TOKEN not in container.run("cat /proc/[0-9]*/cmdline | tr '\\0' '\\n'").stdout
        loop.sink.open_gate("gate")
        loop.wait_until_settled([A_SPAWN])
        assert container.run(["grep", "-r", "-l", "-e", TOKEN, str(loop.root)], check=False).stdout == ""
        assert TOKEN not in container.run(["journalctl", "--all", "--output=export", f"_UID={loop.user.uid}"]).stdout


def test_delivery_when_it_is_given_secrets_then_its_unit_shows_none_and_standard_error_is_in_the_journal(
    container: Container,
) -> None:
    drop_in = f"[Service]\nEnvironment=GITHUB_TOKEN={TOKEN}\n"
    script = 'env > ~/environment; echo "cannot $1" >&2; until [ -e ~/go ]; do sleep 0.1; done; exit 1'
    with Installed(container, drop_in=drop_in, is_installed=False) as loop:
        loop.write(loop.home / "receive", f"#!/bin/sh\n{script}\n", 0o755)
        loop.write(loop.home / "agent.env", f"KEY={TOKEN}-file\n", 0o600)
        session = {"command": [str(loop.home / "receive"), "{title}"], "environmentFile": "~/agent.env"}
        loop.configure(session={**session, "passEnvironment": ["GITHUB_TOKEN"]})
        path = f"{COMMAND.parent}:/usr/bin:/bin"
        said = loop.run(f"PATH={loop.home}/own:bin:{path} {COMMAND} unit install --user --path").stderr
        loop.add_drop_in("test.conf", drop_in)
        loop.item("my $title")
        loop.systemctl("start")
        seen = loop.seen(loop.home / "environment")
        loop.wait(lambda: seen.exists() and "THE_LOOP_MARK" in seen.read_text(), "a delivery that has begun")

        environment = dict(line.partition("=")[::2] for line in seen.read_text().splitlines())
        assert (environment["KEY"], environment["GITHUB_TOKEN"]) == (f"{TOKEN}-file", TOKEN)
        assert environment["PATH"].startswith(f"{loop.home}/own:")
        assert "'bin' (it is relative)" in said
        (unit,) = loop.deliveries()
        assert TOKEN not in loop.run(["systemctl", "--user", "show", "--all", unit]).stdout
        assert TOKEN not in loop.run(["systemctl", "--user", "cat", unit]).stdout
        assert "my $title" not in loop.run(["systemctl", "--user", "show", "--all", "-p", "ExecStart", unit]).stdout
        assert container.run(["grep", "-r", "-l", "-e", TOKEN, str(loop.root)], check=False).stdout == ""
        loop.run(["touch", str(loop.home / "go")])
        loop.wait(lambda: loop.journal("THE_LOOP_EVENT=poll.spawn_failed"), "its rejection")
        (failed, *_) = loop.journal("THE_LOOP_EVENT=poll.spawn_failed")
        assert json.loads(failed["THE_LOOP_JSON"])["reason"] == "exit status 1: cannot my $title"
        lines = container.run(["journalctl", "--output=cat", f"_SYSTEMD_USER_UNIT={unit}"]).stdout.splitlines()
        assert "cannot my $title" in lines
        loop.systemctl("stop")


def test_delivery_when_told_to_stop_by_systemctl_then_it_is_offered_again_and_marked(container: Container) -> None:
    with Installed(container) as loop:
        loop.sink.behave((A_SPAWN, {"gate": loop.gate("gate")}))
        loop.item("a")
        loop.systemctl("start")
        loop.wait(loop.sink.ids, "a delivery that runs")

        loop.run(["systemctl", "--user", "stop", "--", *loop.deliveries()])

        loop.wait(lambda: len(loop.sink.got()) == 2, "the second offer")
        loop.sink.open_gate("gate")
        loop.wait_until_settled([A_SPAWN])
        assert [(got.attempt, got.redelivery) for got in loop.sink.got()] == [(1, False), (1, True)]
        assert loop.attempts() == {}


def test_deliveries_when_there_is_no_manager_then_they_run_as_processes_and_that_is_said_once(
    container: Container,
) -> None:
    with Installed(container) as loop:
        environment: dict[str, str | None] = {"XDG_RUNTIME_DIR": None}
        container.run(["loginctl", "disable-linger", loop.user.name])
        container.run(["systemctl", "stop", f"user@{loop.user.uid}.service"])
        loop.item("a")
        said = loop.home / "said"
        start = f"{loop.command_line('poll', 'start', '--verbose')} 2>{said}"
        unset = shlex.join(f"--unset={name}" for name in environment)
        with container.background(f"exec env {unset} sh -c {shlex.quote(start)}", user=loop.user.name):
            loop.wait_until_settled([A_SPAWN])
            loop.item("b")
            loop.wait_until_settled([A_SPAWN, B_SPAWN])

            loop.assert_once([A_SPAWN, B_SPAWN])
            assert loop.seen(said).read_text().count("dispatch.no_manager") == 1
            assert loop.poll("stop", env=environment).returncode == 0


def test_deliveries_when_the_manager_goes_away_then_what_runs_is_uncertain_and_the_rest_goes_on_without(
    container: Container,
) -> None:
    with Installed(container) as loop:
        loop.sink.behave((A_SPAWN, {"gate": loop.gate("gate")}))
        loop.item("a")
        said = loop.home / "said"
        start = f"exec {loop.command_line('poll', 'start', '--verbose')} 2>{said}"
        with container.background(start, user=loop.user.name):
            loop.wait(loop.sink.ids, "a delivery that runs")
            assert len(loop.deliveries()) == 1
            container.run(["loginctl", "disable-linger", loop.user.name])

            container.run(["systemctl", "stop", f"user@{loop.user.uid}.service"])

            loop.sink.open_gate("gate")
            loop.item("b")
            loop.comment("a", "more")
            ids = [A_SPAWN, B_SPAWN, "directory:inbox/a/comment:more"]
            loop.wait_until_settled(ids)
            assert sorted(loop.sink.ids()) == sorted([A_SPAWN, *ids])
            assert [got.delivery_id for got in loop.sink.got() if got.redelivery] == [A_SPAWN]
            assert loop.attempts() == {}
            assert loop.seen(said).read_text().count("dispatch.no_manager") == 1


def test_deliveries_when_many_are_due_at_once_then_each_goes_out_once_and_no_unit_stays(container: Container) -> None:
    with Installed(container, routing={"maxConcurrentDispatches": 8}) as loop:
        expected = [loop.item(f"item-{number}") + "/spawn:1" for number in range(24)]
        loop.systemctl("start")
        loop.wait(lambda: len(loop.sink.ids()) > 4, "the first of them")

        loop.systemctl("restart")

        loop.wait_until_settled(expected)
        loop.assert_once(expected)
        loop.wait(lambda: not loop.deliveries(), "the end of all units")
        assert loop.failed() == []


def test_command_when_it_has_dollars_and_percents_then_it_gets_them_as_they_are(container: Container) -> None:
    words = ["$HOME", "$$", "%h", "%%", "a b", "'", '"', "\\n", ";"]
    script = 'printf "%s\\n" "$@" >"$HOME/words"'
    with Installed(container, session={"command": ["/bin/sh", "-c", script, "sh", *words]}) as loop:
        loop.item("a")
        loop.systemctl("start")

        loop.wait(lambda: loop.seen(loop.home / "words").exists() and not loop.pending(), "the delivery")

        assert loop.seen(loop.home / "words").read_text().splitlines() == words
        assert loop.run([str(COMMAND), "--version"]).returncode == 0
