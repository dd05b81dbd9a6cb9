"""IDs of telemetry: hex digits of a fixed length."""

from __future__ import annotations

from hashlib import blake2b


def digest_of(text: str, digits: int) -> str:
    """Return a digest of a text with this many hex digits."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=digits // 2).hexdigest()


def identity(text: str, digits: int) -> str:
    """Return an ID with this many hex digits: the ID itself if it is valid and not zero, otherwise its digest."""
    plain = len(text) == digits and not set(text) - _HEX
    return text if plain and int(text, 16) else digest_of(text, digits)


_HEX = frozenset("0123456789abcdef")
