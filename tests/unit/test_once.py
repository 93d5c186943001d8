"""`the-loop once`: what is run, what is remembered, and what passes through (contract section 2)."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.processes import is_alive, wait_until
from the_loop import once
from the_loop.state import StateRoot, StateRootError

PROGRAM = Path(sys.executable).with_name("the-loop")
RUN = 'echo "ran ${THE_LOOP_REDELIVERY-first}" >> runs; '
WAIT = "echo $$ > pid; until [ -e go ]; do sleep 0.02; done; "


class Place:
    """A state root, and a folder in which commands run."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "root"
        self.work = folder / "work"
        self.work.mkdir()
        self.environ = {"PATH": os.environ["PATH"], "HOME": str(folder)}

    def argv(self, *words: str) -> list[str]:
        return [str(PROGRAM), "--state-root", str(self.root), "once", *words]

    def once(self, *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
        known: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 30, "cwd": self.work}
        return subprocess.run(self.argv(*words), check=False, **{"env": self.environ, **known, **options})

    def run(self, script: str, *options: str, name: str = "id", **more: Any) -> int:
        return self.once(*options, name, "--", "sh", "-c", script, **more).returncode

    @contextmanager
    def running(self, script: str, **options: Any) -> Iterator[subprocess.Popen[str]]:
        """One that runs until `go` is there; its command wrote `pid`."""
        argv = self.argv("id", "--", "sh", "-c", script)
        process = subprocess.Popen(argv, cwd=self.work, env=self.environ, text=True, **options)
        try:
            wait_until(lambda: self.said("pid").endswith("\n"), "the command runs")
            yield process
        finally:
            (self.work / "go").touch()
            process.wait(30)

    def said(self, name: str) -> str:
        path = self.work / name
        return path.read_text() if path.exists() else ""

    @property
    def runs(self) -> list[str]:
        return [line.removeprefix("ran ") for line in self.said("runs").splitlines()]

    def record(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.root / "local/once/id.json").read_bytes())
        return found


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


# --- what is remembered ---


def test_success_is_handed_back_to_a_repeat_and_nothing_is_run(place: Place) -> None:
    assert [place.run(RUN), place.run(RUN), place.run(RUN + "exit 3", "--hold")] == [0, 0, 0]

    assert place.runs == ["first"]
    assert place.run(RUN, name="other/id#1") == 0
    assert place.runs == ["first", "first"]


@pytest.mark.parametrize("end", ["exit 1", "exit 75", "exit 255", "kill -SEGV $$", "kill -ABRT $$", "kill -PIPE $$"])
@pytest.mark.parametrize("option", [(), ("--hold",)])
def test_failure_is_not_remembered_and_the_next_run_is_like_the_first(
    place: Place, end: str, option: tuple[str, ...]
) -> None:
    assert place.run(RUN + end, *option) != 0

    assert place.run(RUN, *option) == 0

    assert place.runs == ["first", "first"]


@pytest.mark.parametrize("end", ["kill -KILL $$", "kill -TERM $$", "kill -INT $$", "kill -HUP $$"])
def test_run_that_is_cut_off_is_repeated_with_a_mark(place: Place, end: str) -> None:
    assert place.run(RUN + end) == -getattr(signal, f"SIG{end.split()[1][1:]}")

    assert place.run(RUN + "exit 4") == 4
    assert place.run(RUN) == 0  # what the first did is unknown still

    assert place.runs == ["first", "true", "true"]
    assert place.run(RUN) == 0
    assert len(place.runs) == 3


def test_run_that_is_cut_off_is_held_if_that_is_wanted_and_says_what_to_do(place: Place) -> None:
    place.run(RUN + "kill -KILL $$")

    assert place.run(RUN, "--hold") == 75
    done = place.once("id", "--hold", "--", "sh", "-c", RUN)

    assert done.returncode == 75
    assert "was cut off, how it ended is unknown" in done.stderr
    assert place.runs == ["first"]
    remove = done.stderr.partition("`")[2].partition("`")[0]
    subprocess.run(["sh", "-c", remove], check=True)
    assert place.run(RUN, "--hold") == 0
    assert place.runs == ["first", "first"]


def test_mark_of_the_caller_is_not_taken_for_ours(place: Place) -> None:
    place.environ["THE_LOOP_REDELIVERY"] = "true"

    place.run(RUN)

    assert place.runs == ["first"]


def test_second_call_meanwhile_is_told_to_come_later(place: Place) -> None:
    with place.running(RUN + WAIT):
        done = place.once("id", "--", "sh", "-c", RUN)

        assert (done.returncode, "'id' is still running" in done.stderr) == (75, True)
        assert place.run(RUN, "--hold") == 75
        assert place.run("exit 5", name="other") == 5
    assert place.run(RUN) == 0
    assert place.runs == ["first"]


def test_command_whose_caller_was_killed_is_still_running_and_cut_off_once_it_has_ended(place: Place) -> None:
    with place.running(RUN + WAIT) as process:
        process.kill()
        process.wait(30)
        pid = int(place.said("pid"))
        assert is_alive(pid)

        done = place.once("id", "--", "sh", "-c", RUN)

        assert (done.returncode, f"as process {pid}" in done.stderr) == (75, True)
    wait_until(lambda: not is_alive(pid), "its end")
    assert place.run(RUN, "--hold") == 75
    assert place.run(RUN) == 0
    assert place.runs == ["first", "true"]


def test_call_that_is_killed_before_the_command_is_executed_never_runs_it(place: Place) -> None:
    script = f"""
        import os, sys
        from the_loop import once
        from the_loop.state import StateRoot
        from pathlib import Path
        write = once._Claim.write
        def killed(claim, state, process=""):
            write(claim, state, process)
            os.kill(os.getpid(), 9)
        once._Claim.write = killed
        once.run_once(StateRoot(Path({str(place.root)!r})), "id", ["touch", "ran"], os.environ, holds=False)
    """
    code = "\n".join(line.strip() if not line.startswith(" " * 12) else line[8:] for line in script.splitlines())

    done = subprocess.run([sys.executable, "-c", code], cwd=place.work, check=False, timeout=30)

    assert done.returncode == -9
    pid = int(place.record()["process"].split(":")[0])
    wait_until(lambda: not is_alive(pid), "the end of what was to become the command")
    assert not (place.work / "ran").exists()
    assert place.run(RUN) == 0
    assert place.runs == ["true"]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"state": "of a newer version"}', b"[" * 100_000])
def test_record_that_says_nothing_is_one_of_a_run_that_was_cut_off(place: Place, content: bytes) -> None:
    place.run("exit 1")
    (place.root / "local/once/id.json").write_bytes(content)

    assert place.run(RUN, "--hold") == 75
    assert place.run(RUN) == 0

    assert place.runs == ["true"]


def test_record_is_on_disk_before_the_command_runs_and_private(place: Place) -> None:
    old = os.umask(0)
    try:
        place.run("cp ../root/local/once/id.json seen; exit 0")
    finally:
        os.umask(old)

    assert json.loads(place.said("seen"))["state"] == "running"
    assert place.record()["state"] == "done"
    for path in (place.root / "local").rglob("*"):
        assert stat.S_IMODE(path.lstat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_record_that_cannot_be_written_runs_nothing_and_says_later(place: Place) -> None:
    place.run("exit 1")
    (place.root / "local/once/.id.json.tmp").mkdir()  # where it is written first

    done = place.once("id", "--", "sh", "-c", RUN)

    assert (done.returncode, place.runs) == (75, [])
    assert "cannot claim 'id'" in done.stderr


def test_end_that_cannot_be_recorded_is_told_and_the_status_passes_through(place: Place) -> None:
    done = place.once("id", "--", "sh", "-c", RUN + "mkdir ../root/local/once/.id.json.tmp")

    assert (done.returncode, "cannot record the end" in done.stderr) == (0, True)
    (place.root / "local/once/.id.json.tmp").rmdir()
    assert place.run(RUN) == 0
    assert place.runs == ["first", "true"]


# --- 30 days ---


def aged(path: Path, days: float) -> None:
    moment = time.time() - days * 86_400
    os.utime(path, (moment, moment))


@pytest.mark.parametrize(("days", "runs"), [(29, 1), (31, 2)])
def test_success_is_kept_for_30_days(place: Place, days: float, runs: int) -> None:
    place.run(RUN)
    aged(place.root / "local/once/id.json", days)

    place.run(RUN)

    assert place.runs == ["first"] * runs


def test_old_files_are_removed_once_a_day_unless_they_are_in_use(place: Place) -> None:
    folder = place.root / "local/once"
    for name in ("old", "young", "failed"):
        place.run("exit 1" if name == "failed" else "exit 0", name=name)
    (folder / ".left.json.tmp").touch()
    for path in folder.iterdir():
        aged(path, 29 if path.name.startswith("young") else 31)

    with place.running(WAIT):
        assert sorted(path.name for path in folder.iterdir()) == [
            *(".pruned", "id.json", "id.lock", "young.json", "young.lock")
        ]
        aged(folder / "id.json", 31)
        aged(folder / "id.lock", 31)
        aged(folder / ".pruned", 2)

        assert place.run("exit 0", name="next") == 0

        assert (folder / "id.lock").exists()
        assert place.run(RUN) == 75
    assert place.record()["state"] == "done"


# --- what passes through ---


def test_input_output_arguments_and_status_pass_through(place: Place) -> None:
    done = place.once("id", "--", "sh", "-c", 'cat; echo "<$1>" >&2; exit 42', "sh", "-x --y\n", input="ä\n" * 50_000)

    assert (done.returncode, done.stdout, done.stderr) == (42, "ä\n" * 50_000, "<-x --y\n>\n")


def test_writer_hears_when_the_command_closes_its_input(place: Place) -> None:
    argv = place.argv("id", "--", "sh", "-c", "exec 0<&-; " + WAIT)
    process = subprocess.Popen(argv, cwd=place.work, env=place.environ, stdin=subprocess.PIPE)
    wait_until(lambda: place.said("pid").endswith("\n"), "the command runs")
    assert process.stdin is not None

    with pytest.raises(BrokenPipeError):
        os.write(process.stdin.fileno(), b"x")

    (place.work / "go").touch()
    assert process.wait(30) == 0
    process.stdin.close()


@pytest.mark.parametrize(
    ("word", "code"), [("no-such-program", 127), ("./plain", 126), ("/", 126), ("./no-interpreter", 127)]
)
def test_program_that_cannot_be_executed_is_told_as_by_a_shell_and_leaves_nothing(
    place: Place, word: str, code: int
) -> None:
    (place.work / "plain").write_text("x")
    (place.work / "no-interpreter").write_text("#!/no/such/program\n")
    (place.work / "no-interpreter").chmod(0o700)

    done = place.once("id", "--", word)

    assert (done.returncode, f"cannot run '{word}': " in done.stderr) == (code, True)
    assert not (place.root / "local/once/id.json").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2])
def test_signal_is_passed_on_and_the_status_is_what_the_command_makes_of_it(
    place: Place, number: signal.Signals
) -> None:
    name = number.name.removeprefix("SIG")
    script = f"trap 'echo got > got; exit 9' {name}; echo $$ > pid; until [ -e go ]; do sleep 0.02; done"
    with place.running(RUN + script) as process:
        process.send_signal(number)
        assert process.wait(30) == 9

    assert place.said("got") == "got\n"
    place.run(RUN)
    assert place.runs[1] == ("first" if number in (signal.SIGUSR1, signal.SIGUSR2) else "true")


def test_command_that_ends_well_when_it_is_told_to_stop_is_done(place: Place) -> None:
    with place.running(f"trap 'exit 0' TERM; {WAIT}") as process:
        process.terminate()
        assert process.wait(30) == 0

    assert place.record()["state"] == "done"


def test_signals_of_the_command_are_as_they_were(place: Place) -> None:
    assert place.run("grep -E 'Sig(Blk|Ign)' /proc/self/status > signals") == 0
    inside = place.said("signals")
    subprocess.run(["sh", "-c", "grep -E 'Sig(Blk|Ign)' /proc/self/status > signals"], cwd=place.work, check=True)

    assert inside == place.said("signals")
    assert place.run("grep SigBlk /proc/self/status > blocked; : start", name="start") == 0
    assert place.said("blocked").split() == ["SigBlk:", "0000000000000000"]


def test_whole_group_that_is_told_to_stop_ends_and_is_cut_off(place: Place) -> None:
    with place.running(RUN + WAIT, start_new_session=True) as process:
        os.killpg(process.pid, signal.SIGTERM)

        assert process.wait(30) == -signal.SIGTERM
    assert place.record()["state"] == "cut-off"


# --- how it is called ---


@pytest.mark.parametrize("words", [[], ["id"], ["id", "--"], ["", "--", "true"], ["--no", "id", "--", "true"]])
def test_call_of_another_form_is_wrong_usage(place: Place, words: list[str]) -> None:
    assert place.once(*words).returncode == 2
    assert not place.root.exists()


def test_state_root_is_the_usual_one(place: Place, tmp_path: Path) -> None:
    def call(*before: str, **environ: str) -> int:
        argv = [str(PROGRAM), *before, "once", "id", "--", "true"]
        return subprocess.run(argv, env={**place.environ, **environ}, check=False, timeout=30).returncode

    config = tmp_path / "loop.yaml"
    config.write_text(f"state: {{root: {tmp_path / 'c'}}}\n")
    codes = [call("--state-root", str(tmp_path / "a"), THE_LOOP_STATE_ROOT=str(tmp_path / "b"))]
    codes += [call(THE_LOOP_STATE_ROOT=str(tmp_path / "b")), call("--config", str(config))]
    config.write_text("state: {ro")

    assert [*codes, call("--config", str(config))] == [0, 0, 0, 75]
    assert [len(list((tmp_path / name / "local/once").glob("id.json"))) for name in "abc"] == [1, 1, 1]


def test_root_of_somebody_else_is_refused_and_left_alone(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.root.mkdir(mode=0o700)
    monkeypatch.setattr(os, "geteuid", lambda: 4711)

    with pytest.raises(StateRootError, match="belongs to uid"):
        once.run_once(StateRoot(place.root), "id", ["touch", str(place.work / "ran")], {}, holds=False)

    assert list(place.root.iterdir()) == list(place.work.iterdir()) == []


def test_ids_that_look_alike_do_not_share_a_record(place: Place) -> None:
    names = ["a/b", "a+b", "a,b", "a:b", "A/b", ".a", "x" * 300, "x" * 301, "ä", "a\nb", " "]

    for name in names:
        assert place.run(RUN, name=name) == 0

    assert len(place.runs) == len(names)


def test_lock_that_is_removed_while_it_is_opened_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = StateRoot(tmp_path / "root")
    lock = root.once / "id.lock"
    flock = fcntl.flock
    removed: list[Path] = []

    def remove_first(descriptor: int, how: int) -> None:
        if not removed:
            lock.unlink()
            removed.append(lock)
        flock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", remove_first)
    root.prepare_root()
    with once._claimed(once._prepared(root), "id"):
        assert lock.exists()
        with pytest.raises(once.NotNow), once._claimed(root.once, "id"):
            pass
