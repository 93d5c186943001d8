"""Transient units of the user's service manager: where a delivery's keeper runs when there is one.

What runs in its own unit is not part of us: stopping, restarting or killing the poller does not touch it. The unit's
standard input is the delivery's lock: from the moment the manager accepts the call until the unit is dead the lock
is held, and a call that was not accepted leaves it free (docs/development/decisions.md, "The lock is the acceptance").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from the_loop.manager import Manager, Property, Refused
from the_loop.processes import is_main_of_unit
from the_loop.runners.base import Offer
from the_loop.runners.keeper import GRACE_S, passed_on
from the_loop.runners.unit_names import service_name, unit_name
from the_loop.subprocesses import manager_environment

SLICE: Final = "theloop.slice"
_US: Final = 1_000_000  # microseconds in a second


class Units:
    """The manager's side of one state root. `environ` is the poller's own.

    `is_only_way`: the poller runs in a unit itself, so that a plain process would share its sandbox and its end.
    """

    def __init__(
        self,
        root: Path,
        environ: Mapping[str, str],
        *,
        is_only_way: bool = False,
        manager: Manager | None = None,
        slice_name: str = SLICE,
    ) -> None:
        self.is_only_way = is_only_way
        self._slice = slice_name
        self._root = root
        self._environ = environ
        self._manager = manager or Manager(manager_environment(environ))

    def name(self, offer: Offer) -> str:
        return unit_name(self._root, offer.delivery_id, offer.number)

    async def start(
        self, offer: Offer, argv: Sequence[str], about: Mapping[str, str], *, limit_s: int, lock_fd: int
    ) -> None:
        """Have the manager accept the unit, and with it the lock. `about`: more variables. Raises ManagerError."""
        variables = {**passed_on(self._environ), **about}
        unit = properties(offer.stem.name, argv, limit_s=limit_s, variables=variables, lock_fd=lock_fd)
        if self._slice != SLICE:
            unit = [(name, ("s", self._slice) if name == "Slice" else value) for name, value in unit]
        await self._manager.start_transient_unit(self.name(offer), unit)

    def service_name(self, what: str) -> str:
        """The name of a unit of this state root that is not a delivery."""
        return service_name(self._root, what)

    async def start_service(self, what: str, unit: Sequence[Property]) -> None:
        """Have the manager accept such a unit. Raises ManagerError."""
        await self._manager.start_transient_unit(self.service_name(what), unit)

    def close(self) -> None:
        """Drop the connection to the manager."""
        self._manager.close()


def find_units(root: Path, environ: Mapping[str, str], slice_name: str = SLICE) -> Units | None:
    """The user's manager, if there is one to talk to; a poller in a unit waits for one that is away."""
    if is_main_of_unit(environ):
        return Units(root, environ, is_only_way=True, slice_name=slice_name)
    directory = manager_environment(environ).get("XDG_RUNTIME_DIR")
    if directory and any(Path(directory, name).exists() for name in ("systemd/private", "bus")):
        return Units(root, environ, slice_name=slice_name)
    return None


def properties(
    description: str, argv: Sequence[str], *, limit_s: int, variables: Mapping[str, str], lock_fd: int
) -> list[Property]:
    """A transient service that runs `argv` with these variables, and `lock_fd` as its standard input.

    Raises Refused for text that D-Bus cannot carry: an argument that is not UTF-8. Such variables are left out.
    """
    if odd := [part for part in argv if not _is_utf8(part)]:
        raise Refused("", f"{odd[0]!r} is not UTF-8")
    environment = [f"{name}={value}" for name, value in sorted(variables.items()) if _is_utf8(name + value)]
    return [
        ("Description", ("s", f"the-loop delivery {description}")),
        ("Type", ("s", "exec")),
        ("CollectMode", ("s", "inactive-or-failed")),
        ("Slice", ("s", SLICE)),
        ("ExecStartEx", ("a(sasas)", [(argv[0], list(argv), ["no-env-expand"])])),
        ("Environment", ("as", environment)),
        ("WorkingDirectory", ("s", "/")),  # the keeper's; by default a home, which may be missing
        ("StandardInputFileDescriptor", ("h", lock_fd)),
        ("SyslogLevelPrefix", ("b", False)),  # what a receiver prints may be text from outside
        ("KillMode", ("s", "mixed")),  # the keeper hears TERM first, what it leaves gets KILL
        ("TimeoutStopUSec", ("t", int(GRACE_S + 5) * _US)),
        ("RuntimeMaxUSec", ("t", (limit_s + 60) * _US)),  # the keeper has the limit; this is for a keeper that hangs
    ]


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
