"""What a page can be at most, found out before it is decoded: decoding holds up everything else."""

from __future__ import annotations

from typing import Final

VALUES_LIMIT: Final = 250_000  # a hundred issues with a hundred labels each have 110,000
_BEGINNING: Final = 1 << 20  # bytes; mostly it tells already
_SEPARATORS: Final = b",[{"
_OTHERS: Final = bytes(one for one in range(256) if one not in _SEPARATORS)


def has_too_many_values(content: bytes) -> bool:
    """True for JSON with more values than a page has. Its size does not tell: texts are long, and quick to decode."""
    return _has_too_many(content[:_BEGINNING]) or (len(content) > _BEGINNING and _has_too_many(content))


def _has_too_many(content: bytes) -> bool:
    if _separators(content) <= VALUES_LIMIT:
        return False
    bare = content.replace(b"\\\\", b"").replace(b'\\"', b"")  # now each quote begins or ends a string
    if bare.count(b'"') > 2 * VALUES_LIMIT:
        return True
    return _separators(b"".join(bare.split(b'"')[::2])) > VALUES_LIMIT


def _separators(content: bytes) -> int:
    return len(content.translate(None, _OTHERS))
