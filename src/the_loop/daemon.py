"""`poll start`: everything around one life of the poller - messages, the trail, and starting again in place."""

from __future__ import annotations

import asyncio
import concurrent.futures.thread  # noqa: F401 (used by the event loop for host names)
import encodings.idna  # noqa: F401 (likewise; a running poller imports nothing: its files may be replaced)
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from the_loop.blocks import MeasuredSelector, collect_seldom
from the_loop.clocks import SystemClock
from the_loop.config import Config, Loaded
from the_loop.core.model import Note
from the_loop.eventlog import JsonLog, Sink, Teller, Trail, say
from the_loop.life import Progress, Setup
from the_loop.lock import LockHeld
from the_loop.poller import Poller
from the_loop.state import StateRoot
from the_loop.supervision.journal import JournalSink, is_connected
from the_loop.supervision.notify import Notifier
from the_loop.supervision.sockets import inherited_socket


@dataclass(frozen=True, slots=True)
class How:
    """How `poll start` was called. `wait_s`: seconds to queue for the lock."""

    once: bool
    wait_s: float
    verbose: bool
    takeover: bool = False
    progress: Terminal | None = None  # where a person looks on


class Terminal(Progress, Protocol):
    def clear(self) -> None:
        """Make room for a line of another kind."""


def run(root: StateRoot, loaded: Loaded, reload: Callable[[], Config], how: How) -> int:
    """Run a poller until it is told to stop; its exit code. Raises LoopError for what a person can act on."""
    collect_seldom()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored by whoever started us, children could not be waited for
    original = dict(os.environ)
    log = root.logs / "events.jsonl"
    trail = Trail(_sink(root, JsonLog(log), how), time.time, f"--state-root {shlex.quote(str(root.path))}")
    wakes = inherited_socket(os.environ)
    notifier = Notifier(os.environ, lambda problem: say(f"the-loop: {problem}"))
    blocks = MeasuredSelector()
    setup = Setup(
        root=root,
        config=loaded.config,
        load=reload,
        environ=dict(os.environ),
        once=how.once,
        wait_s=how.wait_s,
        trail=trail,
        notifier=notifier,
        wakes=wakes,
        path=str(loaded.file or "the embedded default"),
        clock=SystemClock(),
        blocks=blocks,
        takeover=how.takeover,
        progress=None if is_connected(os.environ) else how.progress,
    )
    try:
        code, wants_restart = _run_to_the_end(_live(setup), blocks)
    except LockHeld as held:
        _blocked(root, log, held)
        raise
    if wants_restart and not {signal.SIGTERM, signal.SIGINT} & signal.sigpending():
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGINT))
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], original)
    return code


T = TypeVar("T")
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2)


def _run_to_the_end(life: Coroutine[Any, Any, T], selector: MeasuredSelector) -> T:
    """Like `asyncio.run`, but without waiting for a name server that hangs in a thread of the event loop's."""
    loop = asyncio.SelectorEventLoop(selector)
    if sys.version_info < (3, 12):
        watcher = asyncio.PidfdChildWatcher()  # the default starts a thread for each child
        watcher.attach_loop(loop)
        asyncio.set_child_watcher(watcher)
    try:
        return loop.run_until_complete(life)
    finally:
        # closing takes our handlers away; what comes after the end changes nothing any more
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        loop.close()


async def _live(setup: Setup) -> tuple[int, bool]:
    poller = Poller(setup)
    code = await poller.run()
    return code, poller.wants_restart


def _sink(root: StateRoot, log: JsonLog, how: How) -> Sink:
    """Where the trail goes: to the journal where our messages go there, else to the log and to people."""
    if is_connected(os.environ):
        return JournalSink(root.path, log)
    make_room = how.progress.clear if how.progress is not None else lambda: None
    return Teller(log, sys.stderr, verbose=how.verbose, make_room=make_room)


def _blocked(root: StateRoot, log: Path, held: LockHeld) -> None:
    """Tell it where the holder's trail is, and create nothing in its root."""
    note = Note("poller.blocked", {"reason": held.problem})
    if is_connected(os.environ):
        Trail(JournalSink(root.path, None), time.time).tell(note)
    elif log.exists():
        Trail(JsonLog(log), time.time).tell(note)
