"""One delivery's files in a folder of its own, and its keeper as a real process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from support.processes import LIMIT_S, Child, command, is_alive, wait_until
from the_loop import runners
from the_loop.core.model import Outcome
from the_loop.deliveries import claim, is_locked, to_payload
from the_loop.durable import read_json_object
from the_loop.runners.base import Offer, Status
from the_loop.runners.exec import Command, ExecRunner, variables

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

KEEPER = Path(runners.__file__).with_name("keep.py")
# the same keeper with little patience, for commands that do not end when they are told to
HURRIED = f"""
import importlib.util, sys
spec = importlib.util.spec_from_file_location("keeper", {str(KEEPER.with_name("keeper.py"))!r})
keeper = importlib.util.module_from_spec(spec)
spec.loader.exec_module(keeper)
keeper.GRACE_S = 0.3
keeper.RETRY_S = 0.05
sys.exit(keeper.main(sys.argv[1:]))
"""

TO_WAIT = "echo $$ > pid; until [ -e go ]; do sleep 0.02; done; echo ran >> runs"
# one that starts a delivery and waits for it: STEM WORKDIR KEEPER SCRIPT
POLLER = """
    import asyncio, os, sys
    from pathlib import Path
    from the_loop.runners import exec
    from the_loop.runners.base import Offer
    stem, workdir, keeper, script = sys.argv[1:]
    exec.KEEPER = Path(keeper)
    runner = exec.ExecRunner(exec.Command(("/bin/sh", "-c", script), Path(workdir), 60, os.environ, None))
    print("delivering", flush=True)
    print(asyncio.run(runner.deliver(Offer("x", "comment:1", Path(stem), 1, 1))).verdict, flush=True)
"""


class Delivery:
    """The files of delivery `x` in `folder`. `stem` is what a keeper is told."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.stem = folder / "deliveries" / "x"
        self.workdir = folder / "work"
        self.stem.parent.mkdir()
        self.workdir.mkdir()
        self.file("lock").write_bytes(b"")
        self.write_payload()

    def file(self, part: str) -> Path:
        return self.stem.with_name(f"x.{part}")

    def write_payload(self, offer: int = 1, **fields: Any) -> None:
        known = {"deliveryId": "d:1/comment:1", "kind": "comment", "ref": "d:1", "url": "u", "author": "alice"}
        payload = {**known, "attempt": 1, "redelivery": False, "offer": offer, "body": "text", **fields}
        self.file("payload.json").write_bytes(to_payload(payload))

    def argv(
        self,
        *program: str | Path,
        offer: int = 1,
        limit_s: float = 60,
        python: Sequence[str] = ("-X", "utf8", str(KEEPER)),
        workdir: Path | None = None,
    ) -> list[str]:
        """The keeper's command line."""
        place = (str(self.stem), str(offer), "1", str(limit_s), str(workdir or self.workdir))
        return [sys.executable, "-I", "-S", *python, *place, *map(str, program)]

    def keep(self, *program: str | Path, run: Any = None, **place: Any) -> int:
        """Run the keeper to its end; its exit code. `run` goes to `subprocess.run`."""
        argv = self.argv(*program, **place)
        options = {"timeout": LIMIT_S, "capture_output": True, "text": True, **(run or {})}
        options["env"] = {**options.get("env", os.environ), **self._about()}
        with contextlib.nullcontext() if "stdin" in options else claim(self.stem) as lock:
            done = subprocess.run(argv, check=False, **{"stdin": lock, **options})
        assert "Traceback" not in done.stderr, done.stderr
        return done.returncode

    def _about(self) -> dict[str, str]:
        """What the poller puts into the keeper's environment; nothing for a payload that it cannot read."""
        try:
            return variables(read_json_object(self.file("payload.json")))
        except (OSError, ValueError):
            return {}

    @contextmanager
    def keeping(self, *program: str | Path, **place: Any) -> Iterator[Child]:
        """A keeper that runs; what it runs is ended at the exit together with it."""
        with claim(self.stem) as lock:
            keeping = command(self.argv(*program, **place), stdin=lock)
            keeper = keeping.__enter__()
        try:
            yield keeper
        finally:
            keeping.__exit__(None, None, None)

    @property
    def outcome(self) -> tuple[str, str]:
        """Outcome and reason, both empty where there is none."""
        found = read(self.file("outcome.json")) or {}
        return found.get("outcome", ""), found.get("reason", "")

    @property
    def mark(self) -> dict[str, Any] | None:
        return read(self.file("started.json"))

    @property
    def is_locked(self) -> bool:
        return is_locked(self.stem)

    def said(self, name: str) -> str:
        """What the command wrote into a file of its workdir, once it has."""
        path = self.workdir / name
        wait_until(lambda: path.exists() and path.read_text().endswith("\n"), f"the command writes '{name}'")
        return path.read_text().strip()

    def pid(self, name: str = "pid") -> int:
        """The process id that the command wrote."""
        return int(self.said(name))


class Scene(Delivery):
    """A delivery and a runner for it."""

    def command(self, script: str, **fields: Any) -> Command:
        known: dict[str, Any] = {"limit_s": 60, "environment": os.environ, "output": self.folder / "output.log"}
        return Command(argv=("/bin/sh", "-c", script), workdir=self.workdir, **{**known, **fields})

    def runner(self, script: str = "exit 0", **fields: Any) -> ExecRunner:
        return ExecRunner(self.command(script, **fields))

    def offer(self, number: int = 1, attempt: int = 1) -> Offer:
        return Offer("d:1", "comment:1", self.stem, number, attempt)

    def deliver(self, script: str, number: int = 1, **fields: Any) -> Outcome:
        self.write_payload(offer=number)
        return asyncio.run(self._deliver(self.runner(script, **fields), self.offer(number)))

    async def _deliver(self, runner: ExecRunner, offer: Offer) -> Outcome:
        try:
            return await runner.deliver(offer)
        finally:
            await runner.close()

    def inspect(self, number: int = 1) -> Status:
        return self.runner().inspect(self.offer(number))

    def let_go(self) -> None:
        (self.workdir / "go").write_bytes(b"")


def read(path: Path) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    return found


def ends(pid: int) -> bool:
    """True once this process is gone; an AssertionError if it stays."""
    wait_until(lambda: not is_alive(pid), f"process {pid} ends")
    return True


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def tell(pid: int, number: signal.Signals) -> None:
    subprocess.run(["kill", f"-{number.name.removeprefix('SIG')}", str(pid)], check=True, timeout=LIMIT_S)
