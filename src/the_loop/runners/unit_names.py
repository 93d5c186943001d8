"""The names of the transient units that deliveries run in."""

from __future__ import annotations

import hashlib
from pathlib import Path


def unit_name(root: Path, delivery_id: str, number: int) -> str:
    """`theloop-<root>-<delivery>-<offer>.service`; both hashes, as names from outside are not unit names."""
    return f"theloop-{_short(str(root))}-{_short(delivery_id)}-{number}.service"


def service_name(root: Path, what: str) -> str:
    """The name of a unit of this state root that is not a delivery."""
    return f"theloop-{_short(str(root))}-{what}.service"


def _short(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]
