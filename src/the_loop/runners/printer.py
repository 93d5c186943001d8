"""The receiver of the embedded default: prints each event, escaped for a terminal. Started by the keeper."""

from __future__ import annotations

import json
import sys


def main() -> int:
    """Print the payload on stdin in one write; return the exit code."""
    payload = json.load(sys.stdin)
    author = payload["author"] or "unknown"
    lines = [f"[{payload['kind']}] {payload['deliveryId']}", f"    {payload['title'] or '-'} ({author})"]
    lines += _indented(payload["body"])
    for entry in payload["thread"]:
        lines += [f"    - {entry['author'] or 'unknown'}:", *_indented(entry.get("body", "(too long to show)"))]
    sys.stdout.write("\n".join(map(_safe, lines)) + "\n")
    return 0


def _indented(text: str) -> list[str]:
    return [f"    | {line}" for line in text.splitlines()]


def _safe(line: str) -> str:
    """`line` with control characters escaped."""
    return "".join(char if char.isprintable() or char == "\t" else f"\\x{ord(char):02x}" for char in line)


if __name__ == "__main__":
    sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")  # type: ignore[union-attr]
    sys.exit(main())
