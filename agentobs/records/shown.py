"""Values as people read them: grouped digits, units, instants, and no character that is not what it looks like."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any


def text(value: Any) -> str:
    """Return a cell's text: grouped digits, plain money, `-` for nothing, control characters as escapes."""
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case Decimal():
            return f"{value.normalize():,f}"
        case float():
            return f"{value:,.3f}".rstrip("0").rstrip(".")
        case dict():
            return printable(" ".join(f"{key}={inner}" for key, inner in value.items()))
        case _:
            return printable(str(value))


def printable(value: str) -> str:
    """Return text without control or direction characters: they show as escapes."""
    return "".join(c if c.isprintable() and c not in _BIDI else f"\\u{ord(c):04x}" for c in value)


_BIDI = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200b\u200e\u200f"


def instant(ns: int | None) -> str | None:
    """Return nanoseconds since 1970 as local-free text: `2026-11-21 22:45:23` (UTC)."""
    if ns is None:
        return None
    return datetime.fromtimestamp(ns // 1_000_000_000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def seconds(ns: int | None) -> str | None:
    """Return a duration in nanoseconds as people read it: `84 ms`, `1.42 s`, `3 min 20 s`."""
    if ns is None:
        return None
    if ns < 1_000_000_000:
        return f"{ns / 1e6:.0f} ms"
    if ns < 60_000_000_000:
        return f"{ns / 1e9:.2f} s"
    return f"{ns // 60_000_000_000} min {ns // 1_000_000_000 % 60} s"


def money(value: Decimal | None) -> str | None:
    """Return dollars with four digits after the point, more where that would hide them."""
    if value is None:
        return None
    return (
        f"${value:,.4f}"
        if value == 0 or abs(value) >= Decimal("0.0001")
        else f"${value.normalize():f}"
    )


def pretty(column: str, value: Any) -> Any:
    """Return a value as people read it; the column's name says what it is."""
    if column in ("started_ns", "ended_ns", "at_ns", "last_activity_ns"):
        return instant(value)
    if column.endswith("_ns"):
        return seconds(value)
    if column.endswith("_usd"):
        return money(value)
    if column.endswith("_ratio") and value is not None:
        return f"{value:.1%}"
    return value
