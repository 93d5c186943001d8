"""What `unit install` finds around the units: where their manager reads, what the service cannot see or use."""

from __future__ import annotations

import itertools
import os
import re
import shlex
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from the_loop.state import OWN_NAMES
from the_loop.subprocesses import Finished, manager_environment, run_blocking

HIDDEN: Final = ("/home/", "/root/", "/run/user/", "/tmp/", "/var/tmp/")  # noqa: S108 (where the service sees nothing)
_BINDS: Final = re.compile(r"^Bind(?:ReadOnly)?Paths=(.*)$", re.MULTILINE)
_CALL_LIMIT_S: Final = 10.0
_VERIFY_LIMIT_S: Final = 30.0


def user_units_folder(environ: Mapping[str, str]) -> Path:
    """Where our user manager reads units that a user wrote; it need not have the shell's `$XDG_CONFIG_HOME`."""
    for path in _ask_user_manager("show", "--property=UnitPath", "--value").split():
        if path.endswith("/systemd/user.control") and not path.startswith("/run/"):
            return Path(path.removesuffix(".control"))
    told = _ask_user_manager("show-environment")  # a path with a blank is not printable in a list
    variables = dict(line.partition("=")[::2] for line in told.splitlines()) if told else environ
    home = variables.get("XDG_CONFIG_HOME") or f"{variables.get('HOME') or Path.home()}/.config"
    return Path(home) / "systemd" / "user"


def _ask_user_manager(*words: str) -> str:
    """What it answers; "" if it cannot be asked."""
    finished = run_blocking(
        ["systemctl", "--user", "--no-ask-password", *words], manager_environment(os.environ), limit_s=_CALL_LIMIT_S
    )
    return finished.out if finished.is_good else ""


def verify(units: Sequence[Path], *, is_user: bool) -> tuple[bool, list[str]]:
    """Whether the manager will load these files (also if that cannot be found out), and what there is to say."""
    scope = "--user" if is_user else "--system"
    argv = ["systemd-analyze", scope, "verify", "--man=no", "--recursive-errors=no", *map(str, units)]
    with tempfile.TemporaryDirectory() as folder:  # it wants a runtime directory, which is gone without a login
        environ = {**manager_environment(os.environ), "XDG_RUNTIME_DIR": folder}
        finished = run_blocking(argv, environ, limit_s=_VERIFY_LIMIT_S)
    if finished.code is None:
        return True, [f"cannot verify the units: {finished.problem}"]
    return finished.is_good, [f"systemd-analyze verify: {line}" for line in _said(finished)]


def _said(finished: Finished) -> list[str]:
    lines = [line for line in f"{finished.err}\n{finished.out}".splitlines() if line.strip()]
    return lines or ([] if finished.is_good else [finished.problem])


def unseen(places: Iterable[str], services: Iterable[Path]) -> list[str]:
    """Those places below homes and `/tmp` that a drop-in of one of these services does not show to it."""
    shown = [_shown_by(service) for service in services]
    hidden = {
        place for place in places if place.startswith(HIDDEN) and not all(_is_below(place, bounds) for bounds in shown)
    }
    return sorted(place for place in hidden if not _is_below(place, hidden - {place}))


def _is_below(place: str, folders: Iterable[str]) -> bool:
    return any(Path(place).is_relative_to(folder) for folder in folders)


def _shown_by(service: Path) -> list[str]:
    """The paths that drop-ins of an administrator bind into the service."""
    drop_ins = sorted(service.with_name(f"{service.name}.d").glob("*.conf"))
    values = [value for file in drop_ins for value in _BINDS.findall(file.read_text("utf-8", "replace"))]
    words = [word.strip("\"'").lstrip("-") for value in values for word in value.split()]
    return [word.partition(":")[0] for word in words]


def mend_of_owners(root: Path, user: str, uid: int) -> str:
    """The command that gives `user` what is ours in this state root and belongs to others; "" if nothing does.

    A poller that was tried as another user left it. Items in an inbox keep their owners, who are their authors.
    Raises OSError.
    """
    alone = [path for path in (root, root / "inbox") if os.path.lexists(path) and path.lstat().st_uid != uid]
    whole = [root / path.name for path in sorted(root.iterdir()) if path.name in OWN_NAMES and _is_foreign(path, uid)]
    calls = [("chown", alone), ("chown -R", whole)]
    return " && ".join(
        f"{call} {user}:{user} {' '.join(shlex.quote(str(path)) for path in paths)}" for call, paths in calls if paths
    )


def _is_foreign(path: Path, uid: int) -> bool:
    below = (Path(folder, name) for folder, folders, files in os.walk(path) for name in (*folders, *files))
    return any(one.lstat().st_uid != uid for one in itertools.chain([path], below))
