"""`poll start`: everything around one life of the poller - configuration, messages, and starting again in place."""

from __future__ import annotations

import asyncio
import encodings.idna  # noqa: F401 (loaded before the loop runs: see `_load_all`)
import os
import sys
import time
from collections.abc import Mapping
from typing import Any

from the_loop.cli.common import Options
from the_loop.config import Config, Loaded
from the_loop.events import INFO, JsonLog, Sink, Teller, Trail, say
from the_loop.lock import LockHeld
from the_loop.model import Note
from the_loop.poller import Poller, Setup
from the_loop.state import StateRoot
from the_loop.supervision.notify import Notifier


def run(options: Options, *, once: bool) -> int:
    """Run a poller until it is told to stop; its exit code. Raises LoopError for what a person can act on."""
    original = dict(os.environ)
    loaded = options.load()
    root = options.root_of(loaded)
    trail = Trail(Teller(JsonLog(root.logs / "events.jsonl"), sys.stderr, verbose=options.verbose), time.time)
    notifier = Notifier(os.environ, lambda problem: say(f"the-loop: {problem}"))
    setup = Setup(
        root=root,
        config=loaded.config,
        load=lambda: _again(options),
        environ=dict(os.environ),
        once=once,
        tell=trail.tell,
        notifier=notifier,
        path=str(loaded.file or "the embedded default"),
    )
    try:
        code, wants_restart = asyncio.run(_live(setup))
    except LockHeld as held:
        _blocked(root, held)
        raise
    if wants_restart:
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], original)
    return code


async def _live(setup: Setup) -> tuple[int, bool]:
    poller = Poller(setup)
    poller.install_handlers()
    code = await poller.run()
    return code, poller.wants_restart


def _again(options: Options) -> Config:
    loaded: Loaded = options.load()
    return loaded.config


def _blocked(root: StateRoot, held: LockHeld) -> None:
    """Tell it where the holder's trail is, and create nothing in its root."""
    log = root.logs / "events.jsonl"
    if log.exists():
        Trail(JsonLog(log), time.time).tell(Note("poller.blocked", {"reason": held.problem}))
