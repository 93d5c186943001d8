"""Installing the unit files: which ones, with which text, and where. The files in `systemd/` are the single source.

Template and user units are generated from the system units by the two functions below, so that they cannot differ.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Final

MARK: Final = "# Installed by `the-loop unit install`; changes belong in a drop-in."
BASES: Final = (
    "the-loop-poll.service",
    "the-loop-poll.socket",
    "the-loop-poll-once.service",
    "the-loop-poll-once.timer",
)
METRICS: Final = ("the-loop-metrics.service", "the-loop-metrics.timer")  # installed where a directory is named
SLICE: Final = "theloop.slice"
_NEEDS_PRIVILEGE: Final = re.compile(
    r"^(?:#.*\n)*(AmbientCapabilities|BindPaths|CapabilityBoundingSet|DevicePolicy|KeyringMode|PrivateDevices|PrivateTmp"
    r"|ProtectClock|ProtectControlGroups|ProtectHome|ProtectHostname|ProtectKernel\w+|ProtectProc"
    r"|PrivateNetwork|ProtectSystem|ReadWritePaths|RemoveIPC|SocketUser|StateDirectory\w*|User)=.*\n",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Named:
    """What the call of `unit install` names, as absolute paths; None: what the shipped units name."""

    config: str | None = None
    root: str | None = None
    metrics: str | None = None  # the directory for the file of metrics; without it there are no units that write one
    path: str | None = None  # PATH of deliveries
    is_root_given: bool = False  # by an option


NOTHING_NAMED: Final = Named()


def shipped(name: str) -> str:
    """The text of a file in `systemd/`."""
    return (files("the_loop") / "systemd" / name).read_text("utf-8")


def as_template(text: str) -> str:
    """The text as a template unit: each instance `%i` has its own configuration and state root."""
    text = text.replace("the-loop-poll.service", "the-loop-poll@%i.service").replace(
        "the-loop-poll.socket", "the-loop-poll@%i.socket"
    )
    text = text.replace("the-loop-poll.wake", "the-loop-poll@%i.wake")
    text = re.sub(r"^(Description=.*)$", r"\1 (%i)", text, flags=re.MULTILINE)
    text = text.replace("/etc/the-loop/config.yaml", "/etc/the-loop/%i.yaml")
    text = text.replace("/the-loop.prom", "/the-loop-%i.prom")
    text = text.replace("THE_LOOP_STATE_ROOT=/var/lib/the-loop", "THE_LOOP_STATE_ROOT=/var/lib/the-loop-%i")
    return text.replace("StateDirectory=the-loop\n", "StateDirectory=the-loop-%i the-loop/claims\n")


def as_user(text: str) -> str:
    """The text for a user manager: without settings that need privileges, and with the user's own paths."""
    text = _NEEDS_PRIVILEGE.sub("", text)
    text = text.replace("=/var/lib/the-loop", "=%h/.local/state/the-loop")
    text = text.replace("/etc/the-loop/", "%h/.config/the-loop/")
    text = text.replace("OnBootSec=", "OnStartupSec=")
    return text.replace("WantedBy=multi-user.target", "WantedBy=default.target")


def unit_texts(bindir: Path, *, is_user: bool, name: str | None, named: Named = NOTHING_NAMED) -> dict[str, str]:
    """File name and text of each unit to install; with `name`, the template units of that instance."""
    texts = {SLICE: shipped(SLICE)}
    for base in (*BASES, *(METRICS if named.metrics else ())):
        text = shipped(base) if name is None else as_template(shipped(base))
        text = _with_named(as_user(text) if is_user else text, named, is_user=is_user)
        texts[base if name is None else template_name(base)] = text.replace(
            "@bindir@/the-loop", _program(bindir / "the-loop")
        )
    return {file: f"{MARK}\n{text}" for file, text in texts.items()}


def _with_named(text: str, named: Named, *, is_user: bool) -> str:
    """The text of a unit with the configuration and the state root of the call, for those that are named."""
    if named.metrics:
        file = quoted(f"{named.metrics}/@file@", escapes_dollar=True)
        text = re.sub(r"@metrics@/(\S+)", lambda found: file.replace("@file@", found[1]), text)
        text = text.replace("@metrics@", quoted(named.metrics))
    if named.config:
        config = quoted(named.config, escapes_dollar=True)
        text = re.sub(r"--config \S+", lambda _: f"--config {config}", text)
    if named.path:
        path = f"Environment={quoted(f'PATH={named.path}')}"
        text = re.sub(
            r"^Environment=THE_LOOP_STATE_ROOT=.*$", lambda line: f"{line[0]}\n{path}", text, flags=re.MULTILINE
        )
    if not named.root:
        return text
    lines = [f"Environment={quoted(f'THE_LOOP_STATE_ROOT={named.root}')}"]
    if not is_user:  # which may write nowhere else; -: a missing one is told by the poller
        lines.append(f"ReadWritePaths={quoted(f'-{named.root}')}")
    text = re.sub(r"^Environment=THE_LOOP_STATE_ROOT=.*$", lambda _: "\n".join(lines), text, flags=re.MULTILINE)
    if named.is_root_given:  # an option, unlike the variable, goes before `state.root` of the configuration
        root = quoted(named.root, escapes_dollar=True)
        text = re.sub(r"(the-loop poll (?:start|status))", lambda found: f"{found[1]} --state-root {root}", text)
    return text


def _program(path: Path) -> str:
    """The first words of a command that runs `path`; systemd takes no quotes, backslashes or breaks in the first."""
    if re.search(r"""["'\\\x00-\x1f\x7f]""", str(path)):
        return f"/usr/bin/env {quoted(path, escapes_dollar=True)}"
    return quoted(path)


def quoted(text: str | Path, *, escapes_dollar: bool = False) -> str:
    """`text` as one word of a unit file. `$` is replaced in arguments of commands, and in nothing else."""
    escaped = str(text).replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("\n", "\\n")
    if escapes_dollar:
        escaped = escaped.replace("$", "$$")
    is_plain = escaped == str(text) and not re.search(r"[\s';]", escaped)
    return escaped if is_plain else f'"{escaped}"'


def template_name(base: str) -> str:
    stem, _, kind = base.rpartition(".")
    return f"{stem}@.{kind}"


def manager_drop_in(uid: int) -> str:
    """The drop-in that ties a system service to the user manager of uid `uid`, in which its deliveries run."""
    return (
        f"{MARK}\n[Unit]\n# Restarted if it ends: deliveries run in it.\n"
        f"Upholds=user@{uid}.service\nAfter=user@{uid}.service\n"
        f"[Service]\nEnvironment=XDG_RUNTIME_DIR=/run/user/{uid}\n"
    )


def write_all(texts: Mapping[Path, str]) -> Iterator[str]:
    """Write the files; yield a line for each that changed. A file that we did not install is kept. Raises OSError."""
    for path, text in texts.items():
        if path.exists() and not is_ours(path):
            yield f"kept {path}: it was not installed by `the-loop unit install`"
            continue
        if path.exists() and path.read_text("utf-8") == text:
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_name(f".{path.name}.tmp")
        beside.write_text(text, "utf-8")
        beside.chmod(0o644)
        beside.rename(path)
        yield f"wrote {path}"


def is_ours(path: Path) -> bool:
    """True for a file that `the-loop unit install` wrote; False if it cannot be read."""
    try:
        return path.read_text("utf-8", "replace").startswith(MARK)
    except OSError:
        return False
