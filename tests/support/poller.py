"""The real `the-loop` on a scratch root: written configuration, real processes, and their end.

    with Box(tmp_path) as box:
        box.item("a", "please")
        poller = box.start()
        box.wait(lambda: box.sink.ids(), "the first delivery")
        assert poller.stop() == 0

Leaving the context ends whatever still runs on this root, and nothing else, and looks for what must never be there:
a traceback in any output, a ledger that cannot be read.
"""

from __future__ import annotations

import json
import os
import pwd
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

import yaml

from support.sink import Sink
from the_loop.core.model import timestamp

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

T = TypeVar("T")

COMMAND = Path(sys.executable).parent / "the-loop"
ME = pwd.getpwuid(os.geteuid()).pw_name
PATIENCE_S = 30.0  # how long anything may take before it counts as not happening
_AFTER_KILL_S = 10.0


def wait_for(condition: Callable[[], T | None], what: str, timeout_s: float = PATIENCE_S) -> T:
    """The first true value of `condition`, asked again and again; AssertionError when none comes."""
    until = time.monotonic() + timeout_s
    while not (value := condition()):
        if time.monotonic() > until:
            raise AssertionError(f"{what} did not come within {timeout_s:.0f} s")
        time.sleep(0.01)
    return value


def starttime(pid: int) -> int | None:
    """When a process began, in ticks since the boot; None if it has ended (also as a zombie)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    fields = stat[stat.rindex(b")") + 2 :].split()
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    code: int
    out: str
    err: str
    seconds: float

    def json(self) -> Any:
        return json.loads(self.out)


class Started:
    """A poller that was started, and its exit code once it has ended."""

    def __init__(self, process: subprocess.Popen[bytes], out: Path, err: Path) -> None:
        self.process = process
        self.pid = process.pid
        self._out = out
        self._err = err

    @property
    def out(self) -> str:
        return self._out.read_text("utf-8", "replace")

    @property
    def err(self) -> str:
        return self._err.read_text("utf-8", "replace")

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def wait(self, timeout_s: float = PATIENCE_S) -> int:
        """Its exit code; negative for a signal."""
        return self.process.wait(timeout_s)

    def stop(self, timeout_s: float = PATIENCE_S) -> int:
        """SIGTERM, and the exit code."""
        self.signal(signal.SIGTERM)
        return self.wait(timeout_s)

    def kill(self) -> None:
        """SIGKILL, and wait for the end."""
        self.process.kill()
        self.process.wait()


class Box:
    """One scratch state root with its inbox, its receiver and everything that is started on it.

    `sources` replaces the one directory source. Settings are given as `routing={"maxConcurrentDispatches": 1}`.
    """

    def __init__(
        self, folder: Path, *, sources: Sequence[Mapping[str, Any]] | None = None, **settings: Mapping[str, Any]
    ) -> None:
        self.folder = folder
        self.root = folder / "root"
        self.inbox = self.root / "inbox"
        self.config = folder / "config.yaml"
        self.sink = Sink(folder / "sink")
        self.inbox.mkdir(parents=True, exist_ok=True)
        self.root.chmod(0o700)
        self.environ = {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(folder), "LANG": "C.UTF-8"}
        self.prefix: list[str] = []  # what every command runs under
        self._started: list[Started] = []
        self._count = 0
        self.configure(sources=sources, **settings)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_rest: object) -> None:
        try:
            if kind is None:
                self.check()
        finally:
            self.end_all()

    # --- configuration and content ---

    def settings(
        self, *, sources: Sequence[Mapping[str, Any]] | None = None, **settings: Mapping[str, Any]
    ) -> dict[str, Any]:
        """A whole configuration: what is given, over an interval of one second and our own receiver."""
        inbox = {"provider": "directory", "path": "inbox", "settleSeconds": 0}
        polling = {"intervalSeconds": 1, "lingerSeconds": 0, "sources": list(sources or [inbox])}
        return {
            "polling": polling | dict(settings.get("polling", {})),
            "routing": {"authorizedUsers": [ME], "maxEventsPerItemPerHour": 0} | dict(settings.get("routing", {})),
            "session": {"command": self.sink.argv()} | dict(settings.get("session", {})),
        }

    def configure(self, *, sources: Sequence[Mapping[str, Any]] | None = None, **settings: Mapping[str, Any]) -> None:
        """Write the configuration, in one rename."""
        self.write_config(yaml.safe_dump(self.settings(sources=sources, **settings)))

    def write_config(self, text: str | bytes) -> None:
        beside = self.config.with_suffix(".new")
        beside.write_bytes(text if isinstance(text, bytes) else text.encode())
        beside.rename(self.config)

    def item(self, folder: str, body: str | bytes = "please", **comments: str) -> str:
        """Put a folder into the inbox, complete at once; its ref."""
        beside = self.inbox / f".{folder}"
        beside.mkdir()
        _write(beside / "item.md", body)
        for name, text in comments.items():
            _write(beside / name, text)
        beside.rename(self.inbox / folder)
        return f"directory:{self.inbox.name}/{folder}"

    def comment(self, folder: str, name: str, body: str | bytes = "and this") -> None:
        """Put a comment into an item, complete at once."""
        beside = self.inbox / folder / f".{name}"
        _write(beside, body)
        beside.rename(self.inbox / folder / name)

    # --- processes ---

    def argv(self, *arguments: str, command: Path = COMMAND) -> list[str]:
        return [*self.prefix, str(command), "--config", str(self.config), "--state-root", str(self.root), *arguments]

    def start(
        self,
        *arguments: str,
        command: Path = COMMAND,
        env: Mapping[str, str] | None = None,
        pass_fds: Sequence[int] = (),
        before: Sequence[str] = (),
        is_up: bool = True,
    ) -> Started:
        """`poll start` with these arguments (under `before`, if given); returns once it holds the lock, if `is_up`."""
        self._count += 1
        out, err = (self.folder / f"start-{self._count}.{name}" for name in ("out", "err"))
        with out.open("wb") as out_file, err.open("wb") as err_file:
            process = subprocess.Popen(
                [*before, *self.argv("poll", "start", *arguments, command=command)],
                stdin=subprocess.DEVNULL,
                stdout=out_file,
                stderr=err_file,
                env={**self.environ, **(env or {})},
                cwd=self.folder,
                pass_fds=pass_fds,
                start_new_session=True,
            )
        started = Started(process, out, err)
        self._started.append(started)
        if is_up:
            self.wait(lambda: "poller.started" in started.err or not started.is_alive, "the start")
            assert "poller.started" in started.err, f"it ended with {started.wait()}: {started.err}"
        return started

    def run(self, *arguments: str, timeout_s: float = 60.0, env: Mapping[str, str] | None = None) -> Done:
        """Run a command of ours to its end; there must be no traceback, whatever it says."""
        began = time.monotonic()
        done = subprocess.run(
            self.argv(*arguments),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env={**self.environ, **(env or {})},
            cwd=self.folder,
            timeout=timeout_s,
            check=False,
        )
        out, err = done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace")
        assert "Traceback" not in out + err, err
        return Done(done.returncode, out, err, time.monotonic() - began)

    def once(self, **options: Any) -> Done:
        return self.run("poll", "start", "--once", **options)

    def wait(self, condition: Callable[[], T | None], what: str, timeout_s: float = PATIENCE_S) -> T:
        """`wait_for`, which on failure also says what the pollers said."""
        try:
            return wait_for(condition, what, timeout_s)
        except AssertionError as error:
            said = "\n".join(f"[{one.pid}: {one.process.poll()}] {one.err[-2000:]}" for one in self._started[-3:])
            raise AssertionError(f"{error}; got {self.sink.ids()}\n{said}") from None

    def wait_for_cycles(self, count: int = 1, *, since: float | None = None) -> None:
        """Return once every source began so many cycles since that moment, and ended them; by default in this run."""
        seen: dict[str, set[str]] = {}

        def are_there() -> bool:
            beat = self.heartbeat()
            begin = timestamp(since) if since is not None else beat.get("since", "")
            for source in beat.get("sources", []):
                cycle = source["lastCycle"] or {"startedAt": ""}
                seen.setdefault(source["name"], set()).update(
                    [cycle["startedAt"]] if cycle["startedAt"] >= begin else []
                )
            is_of_a_run = any(one.process.poll() is None and one.pid == beat.get("pid") for one in self._started)
            return is_of_a_run and bool(seen) and all(len(cycles) >= count for cycles in seen.values())

        self.wait(are_there, f"{count} cycles of every source")

    # --- what can be seen ---

    def heartbeat(self) -> dict[str, Any]:
        """The last report of the poller; empty while there is none."""
        try:
            beat: dict[str, Any] = json.loads((self.root / "poll-status.json").read_bytes())
        except (OSError, ValueError):
            return {}
        return beat

    def events(self, *names: str) -> list[dict[str, Any]]:
        """The trail, or the events of these names."""
        try:
            lines = (self.root / "logs" / "events.jsonl").read_text("utf-8").splitlines()
        except FileNotFoundError:
            return []
        found = [json.loads(line) for line in lines]
        return [event for event in found if not names or event["event"] in names]

    def ledgers(self) -> dict[str, dict[str, Any]]:
        """All ledgers on disk, by ref; those of ended items too."""
        others = ("repositories", "authors")
        paths = (path for path in (self.root / "portable").rglob("*.json") if path.stem not in others)
        found = [json.loads(path.read_bytes()) for path in paths]
        return {ledger["ref"]: ledger for ledger in found}

    def ledger_path(self, ref: str) -> Path:
        return next(
            path for path in (self.root / "portable").rglob("*.json") if json.loads(path.read_bytes()).get("ref") == ref
        )

    def pending(self) -> dict[str, dict[str, Any]]:
        """What is not settled, by delivery id."""
        return {
            f"{ref}/{key}": entry
            for ref, ledger in self.ledgers().items()
            for key, entry in ledger.get("poll", {}).get("pending", {}).items()
        }

    def assert_once(self, expected: Mapping[str, Sequence[str]]) -> None:
        """These keys arrived for each item: each once, in order, unmarked, and no budget was touched."""
        got = self.sink.got()
        assert {ref: self.sink.keys(ref) for ref in {one.ref for one in got}} == {
            ref: list(keys) for ref, keys in expected.items()
        }
        assert [one for one in got if one.redelivery or one.attempt != 1] == []
        assert self.attempts() == {}

    def attempts(self) -> dict[str, int]:
        """Counted refusals, by delivery id."""
        counts: dict[str, int] = {}
        for ref, ledger in self.ledgers().items():
            poll = ledger.get("poll", {})
            counts |= {f"{ref}/{key}": count for key, count in poll.get("commentAttempts", {}).items()}
            counts[f"{ref}/spawn"] = poll.get("spawn", {}).get("attempts", 0)
        return {key: count for key, count in counts.items() if count}

    def keeper(self, delivery_id: str = "") -> int | None:
        """The pid of the keeper that says it began this delivery (any, if none is named)."""
        for path in (self.root / "local" / "deliveries").glob("*.started.json"):
            try:
                payload = json.loads(path.with_name(path.name.replace(".started.", ".payload.")).read_bytes())
                pid = int(json.loads(path.read_bytes())["keeper"].split(":")[0])
            except (OSError, ValueError):
                continue
            if payload["deliveryId"] == delivery_id or not delivery_id:
                return pid
        return None

    # --- the end ---

    def check(self) -> None:
        """What holds after every test: no traceback, and ledgers that are JSON."""
        for started in self._started:
            assert "Traceback" not in started.out + started.err, started.err
        self.ledgers()

    def end_all(self) -> None:
        """Kill what runs on this root: our pollers, and whatever has this scratch folder in its command line."""
        for started in self._started:
            if started.is_alive:
                started.process.kill()
            started.process.wait()
        wait_for(lambda: not sum(1 for _ in _kill_those_of(self.folder)), "the end of all processes", _AFTER_KILL_S)


def _kill_those_of(folder: Path) -> Iterator[int]:
    """Every process whose command line names something in `folder`, killed through a handle of exactly that one."""
    mark = os.fsencode(folder) + b"/"
    for pid in _pids():
        try:
            descriptor = os.pidfd_open(pid)
        except OSError:
            continue
        try:
            if mark in Path(f"/proc/{pid}/cmdline").read_bytes():
                yield pid
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        except OSError:
            continue
        finally:
            os.close(descriptor)


def _pids() -> Iterable[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit() and int(path.name) != os.getpid()]


def _write(path: Path, content: str | bytes) -> None:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    path.chmod(0o600)
