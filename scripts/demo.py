"""Show the poller at its main job: hand over work items from a folder, on the built-in defaults.

Usage: demo.py [STATE_ROOT], by default build/demo below the repository. It stays in the foreground until Ctrl-C,
SIGTERM or `the-loop poll stop`, and goes on from where it was when it is run again.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
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
This starts `the-loop poll start` on its built-in defaults, with no configuration file of yours:
every folder in {inbox} is a work item, every file in it something somebody wrote.
Two sample items are there, one with a comment. Within a few seconds each is handed over, which here means
printed: [spawn] is an item with its thread so far, [comment] what comes after that.
{history}
From another terminal, in this folder:

  umask 022    # what others may write to is nobody's word
  echo 'Mind the hinges.' > {inbox}/squeaky-door/02-hinges.md                           # a comment
  mkdir {inbox}/mow && echo 'The grass is high.' > {inbox}/mow/item.md                  # an item
  {program} poll status --state-root {root}
  {program} events --state-root {root}
  {program} poll stop --state-root {root}                                    # or Ctrl-C here
"""


def main(arguments: list[str]) -> int:
    root = Path(arguments[0] if arguments else DEFAULT_ROOT).resolve()
    is_new = not (root / "portable").exists()
    if is_new:
        lay_out(root)
    history = "" if is_new else "It was run before and goes on from there: nothing is delivered twice.\n"
    print(
        INTRODUCTION.format(inbox=shown(root / "inbox"), root=shown(root), program=shown(PROGRAM), history=history),
        flush=True,
    )
    code = run([str(PROGRAM), *config_arguments(root), "--state-root", str(root), "poll", "start"], environment(root))
    if code == 0:
        print("Stopped. Run it again: it goes on from here, and delivers nothing twice.")
    return code


def lay_out(root: Path) -> None:
    """Make the state root with the sample items in it, writable by their owner alone: only then is he their author."""
    os.umask(0o022)
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name, text in SAMPLES.items():
        path = root / "inbox" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def environment(root: Path) -> dict[str, str]:
    """Ours, but led past every configuration file of the user's own: the folder it names has none."""
    ours = {name: value for name, value in os.environ.items() if name not in ("THE_LOOP_CONFIG", "THE_LOOP_STATE_ROOT")}
    return {**ours, "XDG_CONFIG_HOME": str(root / "no-configuration")}


def config_arguments(root: Path) -> list[str]:
    if not os.path.lexists(SYSTEM_CONFIG):
        return []
    equal = root / "demo.yaml"
    equal.write_text(EQUAL_CONFIG.format(user=root.owner()), encoding="utf-8")
    print(f"('{SYSTEM_CONFIG}' is there, so an equal file is used instead of the built-in default)\n", flush=True)
    return ["--config", str(equal)]


def run(command: list[str], environ: dict[str, str]) -> int:
    """Run the poller with our terminal, pass a stop on to it, and return its exit status once it has ended."""
    stops = (signal.SIGINT, signal.SIGTERM)
    signal.pthread_sigmask(signal.SIG_BLOCK, stops)  # until there is somebody to pass them on to
    child = subprocess.Popen(
        command, env=environ, preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, stops) and None
    )
    for number in stops:
        signal.signal(number, lambda *_: child.send_signal(signal.SIGTERM))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, stops)
    return child.wait()


def shown(path: Path) -> str:
    """`path` as it is typed here."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
