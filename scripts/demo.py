"""Show the poller at its main job: hand over work items from a folder, on the built-in defaults.

Usage: demo.py [STATE_ROOT], by default build/demo below the repository. It stays in the foreground until Ctrl-C,
SIGTERM or `the-loop poll stop`, and goes on from where it was when it is run again, with something new to deliver.
"""

from __future__ import annotations

import itertools
import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

PROGRAM: Final = Path(sys.executable).with_name("the-loop")
DEFAULT_ROOT: Final = Path(__file__).resolve().parents[1] / "build" / "demo"
SYSTEM_CONFIG: Final = Path("/etc/the-loop/config.yaml")
SAMPLES: Final = {
    "paint-the-fence/item.md": "The fence needs paint before winter.\n",
    "squeaky-door/item.md": "The front door squeaks.\n",
    "squeaky-door/01-oil.md": "Please use the green oil.\n",
}
# Equal to the built-in default, for a machine where a system-wide file would take its place.
EQUAL_CONFIG: Final = """\
polling: {{intervalSeconds: 5, sources: [{{provider: directory, path: inbox}}]}}
routing: {{authorizedUsers: ["{user}"]}}
session: {{runner: print}}
"""
INTRODUCTION: Final = """\
This runs `the-loop poll start` on its built-in defaults; your own configuration file, if you have one, is left out.
Each folder in {inbox} is a work item, each file in it a text that somebody wrote.
An item and what is written on it later are handed over once each, which on the defaults means: printed below.
{history}

From another terminal, in this folder (umask 022, as a file that others can write to has no known author):

  umask 022
  echo 'Mind the hinges.' > {inbox}/squeaky-door/02-hinges.md
  mkdir {inbox}/mow && echo 'The grass is high.' > {inbox}/mow/item.md
  {program} poll status --state-root {root}
  {program} events --state-root {root}

Stop it with Ctrl-C here, or there with

  {program} poll stop --state-root {root}
"""
FIRST_RUN: Final = "Two sample items are there, one of them with a comment: they come within a few seconds."
LATER_RUN: Final = """\
It ran before and goes on from there: nothing is delivered twice.
New in this run, they come within a few seconds: {news}"""
DOOR: Final = "squeaky-door"


def main(arguments: list[str]) -> None:
    root = Path(arguments[0] if arguments else DEFAULT_ROOT).resolve()
    try:
        is_first = not (root / "portable").exists()
        samples = SAMPLES if is_first else news(root / "inbox")
        lay_out(root, samples)
    except OSError as error:
        sys.exit(f"cannot use '{root}': {error.strerror} (name another folder: scripts/demo.py FOLDER)")
    print(
        INTRODUCTION.format(
            inbox=shown(root / "inbox"),
            root=shown(root),
            program=shown(PROGRAM),
            history=FIRST_RUN if is_first else LATER_RUN.format(news=", ".join(samples)),
        ),
        flush=True,
    )
    # In our place, not below us: signals, terminal and exit status are then the poller's own.
    command = [str(PROGRAM), *config_arguments(root), "--state-root", str(root), "poll", "start"]
    os.execve(command[0], command, environment(root))


def news(inbox: Path) -> dict[str, str]:
    """What a later run puts into the inbox: an item, and a comment on one of the first run that is still there."""
    number = next(number for number in itertools.count(2) if not os.path.lexists(inbox / f"run-{number}"))
    item = {f"run-{number}/item.md": f"This item is new in run {number}.\n"}
    comment = {f"{DOOR}/run-{number}.md": f"Run {number}, and the door squeaks again.\n"}
    return item | (comment if (inbox / DOOR).is_dir() else {})


def lay_out(root: Path, samples: Mapping[str, str]) -> None:
    """Make the state root with these items in it, writable by their owner alone: only then is he their author."""
    before = os.umask(0o022)
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name, text in samples.items():
        path = root / "inbox" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    os.umask(before)


def environment(root: Path) -> dict[str, str]:
    """Ours, but led past every configuration file of the user's own: the folder it names has none."""
    ours = {name: value for name, value in os.environ.items() if name != "THE_LOOP_CONFIG"}
    return {**ours, "XDG_CONFIG_HOME": str(root / "no-configuration")}


def config_arguments(root: Path) -> list[str]:
    if not os.path.lexists(SYSTEM_CONFIG):
        return []
    equal = root / "demo.yaml"
    equal.write_text(EQUAL_CONFIG.format(user=root.owner()), encoding="utf-8")
    print(f"('{SYSTEM_CONFIG}' is there, so an equal file takes the place of the built-in default.)\n", flush=True)
    return ["--config", str(equal)]


def shown(path: Path) -> str:
    """`path` as it is typed here."""
    here = Path.cwd()
    return shlex.quote(str(path.relative_to(here) if path.is_relative_to(here) else path))


if __name__ == "__main__":
    main(sys.argv[1:])
