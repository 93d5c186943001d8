"""The exec runner with real keepers: start once, and say what became of it (contract R7.2)."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.keepers import KEEPER, POLLER, TO_WAIT, Scene, children_of, ends
from support.processes import python, run_python
from the_loop.core.model import Outcome, Verdict
from the_loop.runners import exec as exec_module
from the_loop.runners.base import Status, Trace
from the_loop.runners.exec import ExecRunner, keeper_argv

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(tmp_path)
    yield scene
    scene.let_go()  # whatever a failed test left waiting


# --- one delivery ---


@pytest.mark.parametrize(
    ("script", "verdict", "reason"),
    [
        ("exit 0", Verdict.DELIVERED, "exit status 0"),
        ("exit 7", Verdict.REFUSED, "exit status 7"),
        ("exit 75", Verdict.LATER, "exit status 75"),
        ("kill -SEGV $$", Verdict.REFUSED, "killed by SIGSEGV"),
        ("kill -KILL $$; sleep 9", Verdict.UNKNOWN, "killed by SIGKILL"),
    ],
)
def test_deliver_gives_what_the_keeper_saw(scene: Scene, script: str, verdict: Verdict, reason: str) -> None:
    outcome = scene.deliver(script)

    assert outcome == Outcome(verdict, reason)
    assert scene.inspect() == Status(Trace.DONE, outcome)
    assert stat.S_IMODE(scene.file("lock").stat().st_mode) == 0o600


def test_deliver_of_a_missing_command_is_unstartable_and_names_it(scene: Scene) -> None:
    command = replace(scene.command(""), argv=("no-such-program",), environment={"PATH": "/usr/bin:/bin"})

    outcome = asyncio.run(ExecRunner(command).deliver(scene.offer()))

    assert outcome == Outcome(Verdict.UNSTARTABLE, "session.command 'no-such-program': not found")


def test_deliver_without_the_keeper_is_unstartable_and_begins_nothing(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exec_module, "KEEPER", scene.folder / "missing.py")

    outcome = scene.deliver("echo ran > runs")

    assert outcome.verdict is Verdict.UNSTARTABLE
    assert "logs/output.log" in outcome.reason
    assert "missing.py" in (scene.folder / "output.log").read_text()
    assert scene.inspect().trace is Trace.NEVER_BEGUN


@pytest.mark.parametrize("fault", ["no interpreter", "no folder for the output", "NUL", "surrogate"])
def test_deliver_that_cannot_start_a_keeper_is_unstartable_and_lets_go(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    command = scene.command("echo ran > runs")
    match fault:
        case "no interpreter":
            monkeypatch.setattr(sys, "executable", "/no/such/python")
        case "no folder for the output":
            command = replace(command, output=scene.folder / "missing" / "output.log")
        case "NUL":
            command = replace(command, argv=("a\0b",))
        case "surrogate":
            command = replace(command, argv=("\ud800",))

    outcome = asyncio.run(ExecRunner(command).deliver(scene.offer()))

    assert outcome.verdict is Verdict.UNSTARTABLE
    assert scene.inspect().trace is Trace.NEVER_BEGUN


def test_output_of_commands_is_kept_in_order_in_a_private_file(scene: Scene) -> None:
    scene.deliver("echo out; echo err >&2")
    scene.deliver("echo again", number=2)

    log = scene.folder / "output.log"
    assert log.read_text() == "out\nerr\nagain\n"
    assert stat.S_IMODE(log.stat().st_mode) == 0o600


def test_deliver_under_ignored_sigchld_still_gives_the_outcome(scene: Scene) -> None:
    script = """
        import asyncio, signal, sys
        from pathlib import Path
        from the_loop.runners.base import Offer
        from the_loop.runners.exec import Command, ExecRunner
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        stem, workdir = map(Path, sys.argv[1:])
        runner = ExecRunner(Command(("/bin/sh", "-c", "exit 0"), workdir, 20, {}, None))
        print(asyncio.run(runner.deliver(Offer("x", "comment:1", stem, 1, 1))).verdict)
    """

    assert run_python(script, scene.stem, scene.workdir) == "delivered\n"


def test_many_deliveries_leave_no_descriptor_and_no_child_behind(tmp_path: Path) -> None:
    scenes = []
    for number in range(12):
        (tmp_path / str(number)).mkdir()
        scenes.append(Scene(tmp_path / str(number)))
    before = len(list(Path("/proc/self/fd").iterdir()))
    others = set(children_of(os.getpid()))

    async def all_at_once() -> list[Outcome]:
        runners = [one.runner("exit 0") for one in scenes]
        outcomes = await asyncio.gather(
            *(runner.deliver(one.offer()) for runner, one in zip(runners, scenes, strict=True))
        )
        for runner in runners:
            await runner.close()
        async with asyncio.timeout(30):
            while set(children_of(os.getpid())) - others:  # noqa: ASYNC110 (a keeper ends after its outcome is there)
                await asyncio.sleep(0.01)
        return outcomes

    outcomes = asyncio.run(all_at_once())

    assert {outcome.verdict for outcome in outcomes} == {Verdict.DELIVERED}
    assert len(list(Path("/proc/self/fd").iterdir())) <= before


# --- the keeper's place ---


def test_keeper_leads_a_session_of_its_own_and_carries_no_secret(scene: Scene) -> None:
    scene.write_payload(author="eve", body="--limit 0; $(reboot)")
    environ = {**os.environ, "GITHUB_TOKEN": "s3cret", "NOTIFY_SOCKET": "@x", "CREDENTIALS_DIRECTORY": "/c"}

    with python(POLLER, scene.stem, scene.workdir, KEEPER, TO_WAIT, env=environ) as poller:
        program = scene.pid()
        (keeper,) = children_of(poller.pid)

        assert os.getsid(keeper) == keeper
        assert os.getpgid(program) == program
        for pid in (keeper, program):
            seen = Path(f"/proc/{pid}/environ").read_bytes() + Path(f"/proc/{pid}/cmdline").read_bytes()
            assert not [word for word in (b"s3cret", b"NOTIFY_SOCKET", b"CREDENTIALS", b"reboot") if word in seen]
        assert b"eve" not in Path(f"/proc/{keeper}/cmdline").read_bytes()
        assert Path(f"/proc/{keeper}/fd/0").readlink() == Path(os.devnull)
        assert Path(f"/proc/{keeper}/cwd").readlink() == Path("/")
        scene.let_go()
        assert [poller.line(), poller.line()] == ["delivering", "delivered"]


def test_keeper_command_line_is_numbers_paths_and_the_operators_own_words(scene: Scene) -> None:
    argv = keeper_argv(scene.command("x"), scene.offer(3, attempt=2))

    assert argv[0] == sys.executable
    assert argv[1:6] == ["-I", "-S", "-X", "utf8", str(KEEPER)]
    assert argv[6:] == [str(scene.stem), "3", "2", "60", str(scene.workdir), "/bin/sh", "-c", "x"]


# --- looks and offers ---


def test_look_at_nothing_is_never_begun(scene: Scene) -> None:
    assert scene.inspect() == Status(Trace.NEVER_BEGUN)
    scene.file("lock").unlink()
    assert scene.inspect() == Status(Trace.NEVER_BEGUN)


@pytest.mark.parametrize(
    ("started", "outcome", "inspect"),
    [
        ({"offer": 2}, None, Status(Trace.UNKNOWN)),
        ({"offer": 1}, None, Status(Trace.NEVER_BEGUN)),
        ({"offer": 1}, {"offer": 1, "outcome": "delivered"}, Status(Trace.NEVER_BEGUN)),
        ({"offer": 2}, {"offer": 1, "outcome": "delivered"}, Status(Trace.UNKNOWN)),
        ({"offer": 2}, {"offer": 2, "outcome": "refused"}, Status(Trace.DONE, Outcome(Verdict.REFUSED))),
        (
            {"offer": 2},
            {"offer": 2, "outcome": "later", "reason": "x"},
            Status(Trace.DONE, Outcome(Verdict.LATER, "x")),
        ),
        ({"offer": 2}, {"offer": 2, "outcome": "of a newer version"}, Status(Trace.UNKNOWN)),
        ({"offer": 2}, {"offer": 2}, Status(Trace.UNKNOWN)),
        ({"offer": 2}, [], Status(Trace.UNKNOWN)),
        ([], None, Status(Trace.UNKNOWN)),
        (b"", None, Status(Trace.UNKNOWN)),
        (b"\0" * 50, b"\0" * 50, Status(Trace.UNKNOWN)),
        (b"[" * 100_000, b"[" * 100_000, Status(Trace.UNKNOWN)),
    ],
)
def test_look_reads_marks_of_this_offer_only_and_takes_garbage_for_unknown(
    scene: Scene, started: Any, outcome: Any, inspect: Status
) -> None:
    for part, content in (("started.json", started), ("outcome.json", outcome)):
        if content is not None:
            text = content if isinstance(content, bytes) else json.dumps(content).encode()
            scene.file(part).write_bytes(text)

    assert scene.inspect(number=2) == inspect


def test_adopt_of_what_nobody_runs_gives_what_is_known(scene: Scene) -> None:
    def adopt() -> Verdict:
        return asyncio.run(scene.runner().adopt(scene.offer())).verdict

    assert adopt() is Verdict.NEVER_BEGUN
    scene.file("started.json").write_text('{"offer": 1}')
    assert adopt() is Verdict.UNKNOWN
    scene.file("outcome.json").write_text('{"offer": 1, "outcome": "refused"}')
    assert adopt() is Verdict.REFUSED


@pytest.mark.parametrize("first", ["exit 7", "kill -KILL $$; sleep 9"])
def test_next_offer_is_not_kept_back_by_the_marks_of_the_last(scene: Scene, first: str) -> None:
    scene.deliver(first)

    outcome = scene.deliver("echo ran > runs", number=2)

    assert outcome.verdict is Verdict.DELIVERED
    assert scene.said("runs") == "ran"


def test_same_offer_again_runs_nothing_and_gives_the_outcome_of_then(scene: Scene) -> None:
    scene.deliver("echo ran >> runs; exit 7")

    outcome = scene.deliver("echo ran >> runs; exit 0")

    assert outcome == Outcome(Verdict.REFUSED, "exit status 7")
    assert scene.said("runs") == "ran"


def test_same_offer_again_after_its_keeper_was_killed_runs_nothing_and_is_unknown(scene: Scene) -> None:
    with scene.keeping("/bin/sh", "-c", TO_WAIT) as keeper:
        pid = scene.pid()
        keeper.kill()
    assert ends(pid)

    outcome = scene.deliver("echo ran >> runs")

    assert outcome.verdict is Verdict.UNKNOWN
    assert not (scene.workdir / "runs").exists()
