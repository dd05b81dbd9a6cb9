"""Format values for display, with grouped digits and units, and without misleading characters."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from decimal import ROUND_FLOOR, ROUND_HALF_EVEN, Decimal, localcontext
from typing import Any, overload


def text(value: Any) -> str:
    """Return the text of a table cell: grouped digits, plain decimals, `-` for None, and escaped control characters."""
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
    """Return a text with control characters and text direction characters as escapes."""
    return "".join(c if c.isprintable() and c not in _BIDI else f"\\u{ord(c):04x}" for c in value)


_BIDI = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200b\u200e\u200f"


def instant(ns: int | None) -> str | None:
    """Format nanoseconds since 1970 as `2026-11-21 22:45:23` (UTC), independent of the locale."""
    if ns is None:
        return None
    return datetime.fromtimestamp(ns // 1_000_000_000, UTC).strftime("%Y-%m-%d %H:%M:%S")


@overload
def seconds(ns: int) -> str: ...
@overload
def seconds(ns: None) -> None: ...
def seconds(ns: int | None) -> str | None:
    """Format a duration in nanoseconds: `84 ms`, `1.42 s`, `3 min 20 s`, `7 h 12 min`, `2 d 3 h`.

    The value is rounded before the unit is chosen, so 999.6 ms is shown as one second.
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
"""For each unit: the upper bound [ns], the size [ns], the decimal places and the name; the first entry is for zero."""
_LONG = (
    ((_MIN, "min"), (_S, "s"), _H),
    ((_H, "h"), (_MIN, "min"), _D),
    ((_D, "d"), (_H, "h"), math.inf),
)
"""The two units of longer durations, each with its size [ns], and the upper bound [ns]."""


@overload
def money(value: Decimal, status: str | None = None) -> str: ...
@overload
def money(value: Decimal | None, status: str | None = None) -> str | None: ...
def money(value: Decimal | None, status: str | None = None) -> str | None:
    """Format dollars with four decimal places, or with all digits if four places would show a small amount as zero.

    Args:
        value: the amount.
        status: its certainty, as in `costs`. A `lower_bound` is rounded down, because the cost may be less than an
            amount that is rounded up.
    """
    if value is None:
        return None
    sign, amount = "-" if value < 0 else "", abs(value)
    if amount and amount < Decimal("0.0001"):
        return f"{sign}${amount.normalize():f}"
    rounding = ROUND_FLOOR if status == "lower_bound" else ROUND_HALF_EVEN
    with localcontext(rounding=rounding):
        return f"{sign}${amount:,.4f}"


def certain_money(
    value: Decimal | None, status: str | None, marks: Mapping[str, str] | None = None
) -> str | None:
    """Format dollars after the mark of their certainty, as `at least $0.0029`.

    Args:
        value: the amount.
        status: its certainty, as in `costs`.
        marks: the marks by certainty. Default: COST_MARKS.
    """
    if value is None:
        return None
    mark = (COST_MARKS if marks is None else marks).get(status or "", "")
    return f"{mark}{money(value, status)}"


COST_MARKS = {"lower_bound": "at least ", "estimated": "about "}
"""The words before a cost that is not exact, by cost status."""


COST_SIGNS = {"lower_bound": "≥ ", "estimated": "≈ "}
"""The sign before a cost that is not exact in a table column, by cost status."""


ESTIMATES = {"duration_ns": "estimated_ns", "tools_ns": "estimated_tools_ns"}
"""The column with the estimate of a duration that was not recorded, by the column with the duration."""


def estimated(column: str, value: object, row: Mapping[str, Any]) -> str | None:
    """Return the estimate that is shown for a duration that was not recorded, as `≈ 104 ms`; None if there is none."""
    guess = row.get(ESTIMATES.get(column, ""))
    return None if value is not None or guess is None else f"≈ {seconds(guess)}"


def has_partial_counts(row: Mapping[str, Any]) -> bool:
    """Return whether the output tokens of a row are a lower bound, because a response ended before its last counts.

    The cost of a sum may also be a lower bound because a model has no price, so its calls are counted.
    """
    if row.get("lower_bound_calls") is not None:
        return bool(row["lower_bound_calls"])
    return row.get("cost_status") == "lower_bound" and not row.get("unpriced_calls")


def exact_money(value: Decimal) -> str:
    """Format dollars with all digits."""
    return f"{'-' if value < 0 else ''}${abs(value).normalize():,f}"


def share(part: float | Decimal, whole: float | Decimal = 1, *, digits: int = 0) -> str:
    """Format a part of a positive whole in percent: `40%`, `<1%`, `>99%`. Only nothing is `0%`, only all is `100%`.

    Args:
        part: the part.
        whole: the whole, in the same unit.
        digits: the number of decimal places.
    """
    percent, least = 100 * float(part) / float(whole), 10**-digits
    if 0 < percent < least:
        return f"<{least:.{digits}f}%"
    if 100 - least < percent < 100:
        return f">{100 - least:.{digits}f}%"
    return f"{percent:,.{digits}f}%"


def pretty(column: str, value: Any) -> Any:
    """Format a value for display according to its column's name."""
    if column in ("started_ns", "ended_ns", "at_ns", "last_activity_ns"):
        return instant(value)
    if column.endswith("_ns"):
        return seconds(value)
    if column.endswith("_usd"):
        return money(value)
    if column.endswith("_ratio") and value is not None:
        return share(value, digits=1)
    return value


def score_value(value_type: str, value: float | None, label: str | None) -> str:
    """Return the value of a score as text: a number, `yes` or `no`, or a label."""
    if value_type == "label":
        return printable(label or "")
    return text(bool(value)) if value_type == "boolean" else text(value)


def scored_part(lane: str | None, turn: int | None, tool_use_id: str | None) -> str:
    """Return what a score is about: `session`, `main, turn 3` or `main, tool call toolu_1`."""
    if tool_use_id is None and turn is None:
        return "session"
    part = f"turn {turn}" if tool_use_id is None else f"tool call {tool_use_id}"
    return printable(f"{lane}, {part}" if lane else part)


def listed(parts: Sequence[str]) -> str:
    """Join texts as `a, b and c`."""
    return " and ".join(filter(None, (", ".join(parts[:-1]), *parts[-1:])))


def of_both(a: str, b: str) -> str:
    """Return the texts about the same thing in two sessions: `5`, or `5 / 2` if they differ; either may be empty."""
    return f"{a} / {b}" if a and b and a != b else a or b


def in_both(a: str, b: str) -> str:
    """Return the texts about the same thing in two sessions: `5`, or `5 in A, 2 in B` if they differ; either may be
    empty.
    """
    return f"{a} in A, {b} in B" if a and b and a != b else a or b
