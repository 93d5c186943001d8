"""Transient units of the user's service manager: where a delivery's keeper runs when there is one.

What runs in its own unit is not part of us: stopping, restarting or killing the poller does not touch it. The unit's
name says root, delivery and offer, and only helps; that an offer is begun once is the start mark's doing.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from the_loop.runners.base import Offer
from the_loop.runners.keeper import GRACE_S, passed_on
from the_loop.subprocesses import Finished, manager_environment, run

SLICE: Final = "theloop.slice"
_CALL_LIMIT_S: Final = 30.0
_NO_MANAGER: Final = (
    "connect to bus",
    "connect to system scope bus",
    "No medium found",
    "Host is down",
    "connect to user scope bus",
)
_NAME_TAKEN: Final = ("already loaded", "already exists", "UnitExists", "fragment file")


@dataclass(frozen=True, slots=True)
class Units:
    """The manager's side of one state root. `environ` is the poller's own."""

    root: Path
    environ: Mapping[str, str]
    is_only_way: bool = False  # we run in a unit ourselves: a plain process would share its sandbox and its end

    def name(self, offer: Offer) -> str:
        """`theloop-<root>-<delivery>-<offer>.service`; both hashes, as names from outside are no unit names."""
        return f"theloop-{_short(str(self.root))}-{_short(offer.delivery_id)}-{offer.number}.service"

    async def start(self, offer: Offer, argv: Sequence[str], *, limit_s: int, lock_fd: int) -> Finished:
        """Ask for the unit. The helper that asks holds the delivery's lock until the manager has answered."""
        variables = passed_on(self.environ)
        argv = start_argv(self.name(offer), offer.stem.name, argv, limit_s=limit_s, variables=variables)
        return await run(argv, manager_environment(self.environ), limit_s=_CALL_LIMIT_S, pass_fds=(lock_fd,))


def find_units(root: Path, environ: Mapping[str, str]) -> Units | None:
    """The user's manager, if there is one to talk to; a poller in a unit waits for one that is away."""
    if environ.get("SYSTEMD_EXEC_PID") == str(os.getpid()):
        return Units(root, environ, is_only_way=True)
    directory = manager_environment(environ).get("XDG_RUNTIME_DIR")
    if directory and any(Path(directory, name).exists() for name in ("systemd/private", "bus")):
        return Units(root, environ)
    return None


def start_argv(
    unit: str, description: str, argv: Sequence[str], *, limit_s: int, variables: Mapping[str, str]
) -> list[str]:
    """The call that starts a transient service with these variables and no others of ours."""
    properties = {
        "Type": "exec",
        "KillMode": "mixed",  # the keeper hears TERM first, what it leaves gets KILL
        "TimeoutStopSec": f"{GRACE_S + 5:.0f}",
        "StandardInput": "null",
        "SyslogLevelPrefix": "no",  # what a receiver prints may be text from outside
        "RuntimeMaxSec": f"{limit_s + 60}",  # the keeper has the limit; this is for a keeper that hangs
    }
    return [
        *("systemd-run", "--user", "--quiet", "--collect", "--no-ask-password"),
        *(f"--slice={SLICE}", f"--unit={unit}", f"--description=the-loop delivery {description}"),
        *(part for name, value in properties.items() for part in ("-p", f"{name}={value}")),
        *(f"--setenv={name}={value}" for name, value in sorted(variables.items())),
        "--",
        *(part.replace("$", "$$") for part in argv),  # the manager would put a variable in its place
    ]


def is_no_manager(finished: Finished) -> bool:
    """True if there is nobody to ask, or no program to ask with."""
    return finished.code is None or (finished.code != 0 and any(sign in finished.err for sign in _NO_MANAGER))


def is_name_taken(finished: Finished) -> bool:
    """True if a unit of this name is there: somebody started this very offer."""
    return finished.code != 0 and any(sign in finished.err for sign in _NAME_TAKEN)


def _short(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]
