"""Values of JSON that somebody may have damaged, for what is only shown: of the wrong type they count as missing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_TOO_MUCH: Final = 1 << 63


def number(value: Any) -> float | int | None:
    """A number of at least 0 that is finite."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number and 0 <= value < _TOO_MUCH else None


def numbers(value: Any) -> list[float | int]:
    """The numbers in a list; nothing if it holds anything else, or is not a list."""
    found = [number(one) for one in value] if isinstance(value, list) else []
    return [one for one in found if one is not None] if None not in found else []


def histogram(limits: Any, counts: Any) -> tuple[list[float | int], list[int]] | None:
    """The upper limits of all buckets but the last, rising, and the whole number in each bucket."""
    upper, inside = numbers(limits), numbers(counts)
    whole = [count for count in inside if isinstance(count, int)]
    is_good = len(whole) == len(inside) == len(upper) + 1 and upper == sorted(set(upper))
    return (upper, whole) if is_good else None


def mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def mappings(value: Any) -> list[Mapping[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []
