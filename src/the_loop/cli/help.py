"""Help texts of the global options, which are accepted before and after a command."""

from __future__ import annotations

from typing import Final

CONFIG_HELP: Final = "Read this configuration file."
STATE_ROOT_HELP: Final = "Use this state root."
VERBOSE_HELP: Final = "Print all events on stderr, not only those of level notice and above."
DEBUG_HELP: Final = "Print a traceback on an internal error."


def examples(*lines: str) -> str:
    """The `epilog` of a command: these lines as they are."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)
