"""Values as people read them: grouped digits, units, instants, and no character that is not what it looks like."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, overload


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


@overload
def seconds(ns: int) -> str: ...
@overload
def seconds(ns: None) -> None: ...
def seconds(ns: int | None) -> str | None:
    """Return a duration in nanoseconds as people read it: `84 ms`, `1.42 s`, `3 min 20 s`, `7 h 12 min`, `2 d 3 h`.

    It is rounded before its unit is chosen: 999.6 ms is a second.
    """
    if ns is None:
        return None
    if ns < 0:
        return f"-{seconds(-ns)}"
    for below, unit, digits, word in _SHORT:
        if ns < below:
            return f"{ns / unit:.{digits}f} {word}"
    for (large, word), (small, smaller), most in _LONG:
        rounded = (ns + small // 2) // small
        if rounded * small < most:
            whole, rest = divmod(rounded, large // small)
            return f"{whole:,} {word}{f' {rest} {smaller}' if rest else ''}"
    raise AssertionError(ns)


_S, _MIN, _H, _D = 10**9, 60 * 10**9, 3600 * 10**9, 86_400 * 10**9
_SHORT = (
    (1, 1, 0, "s"),
    (1_000, 1, 0, "ns"),
    (999_500, 1_000, 0, "µs"),
    (9_950_000, 10**6, 1, "ms"),
    (999_500_000, 10**6, 0, "ms"),
    (59_995_000_000, _S, 2, "s"),
)
"""Up to what a duration has that unit, with so many digits behind the point; nothing at all is `0 s`. [ns]"""
_LONG = (
    ((_MIN, "min"), (_S, "s"), _H),
    ((_H, "h"), (_MIN, "min"), _D),
    ((_D, "d"), (_H, "h"), math.inf),
)
"""The two units of longer ones, and up to what. [ns]"""


def money(value: Decimal | None) -> str | None:
    """Return dollars with four digits after the point, more where that would hide them."""
    if value is None:
        return None
    return (
        f"${value:,.4f}"
        if value == 0 or abs(value) >= Decimal("0.0001")
        else f"${value.normalize():f}"
    )


def exact_money(value: Decimal) -> str:
    """Return dollars with all their digits."""
    return f"${value.normalize():,f}"


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


def listed(parts: Sequence[str]) -> str:
    """Return parts as one listing: `a, b and c`."""
    return " and ".join(filter(None, (", ".join(parts[:-1]), *parts[-1:])))
