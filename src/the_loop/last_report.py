"""The last heartbeat of a poller, as commands read it: whatever its file holds, and without loading an event loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from the_loop.durable import read_json_object
from the_loop.state import StateRoot


def read_heartbeat(root: StateRoot) -> dict[str, Any]:
    """The newest heartbeat, in the root or the runtime directory of the last unit; empty if none can be read."""
    beats = [_read(root.heartbeat)]
    runtime = _read(root.unit_record).get("heartbeat")
    if isinstance(runtime, str) and runtime.startswith("/"):
        beats.append(_read(Path(runtime) / root.heartbeat.name))
    return _shaped(max(beats, key=lambda beat: str(beat.get("writtenAt", ""))))


def _shaped(beat: dict[str, Any]) -> dict[str, Any]:
    """`beat` without values of a wrong type: a damaged heartbeat must not keep the rest from being shown."""
    kinds: dict[str, type] = dict.fromkeys(("sources", "leftAlone", "work", "attention"), list)
    kinds |= dict.fromkeys(("heldItems", "longestBlock", "counters"), dict)
    kinds |= dict.fromkeys(("pending", "uncertain", "held", "gaveUp", "pid", "starttime"), int)
    kinds |= dict.fromkeys(("since", "lastGoodCycleAt", "paused", "writtenAt", "configuration"), str)
    kinds |= dict.fromkeys(("version", "noManager"), str)
    shaped: dict[str, Any] = {name: value for name, value in beat.items() if isinstance(value, kinds.get(name, object))}
    shaped["sources"] = [one for one in shaped.get("sources", []) if isinstance(one, dict)]
    return shaped


def _read(path: Path) -> dict[str, Any]:
    try:
        return read_json_object(path)
    except (OSError, ValueError):
        return {}
