"""Display formats: no recorded value can be mistaken for another one."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from agentobs.records.display import certain_money, money, pretty, seconds, share, text

TURNED = "a\u202eb\x1b[31m"


@pytest.mark.parametrize(
    "value", [TURNED, {TURNED: 1}, {"key": TURNED}, [TURNED], [{"key": TURNED}]]
)
def test_control_and_direction_characters_are_escaped(value: Any) -> None:
    """Control characters and direction characters are escaped at any depth."""
    shown = text(value)
    assert shown.isprintable()
    assert "\u202e" not in shown


@pytest.mark.parametrize(
    ("column", "value", "shown"),
    [
        ("started_ns", 1_790_000_000_000_000_000, "2026-09-21 14:13:20"),
        ("duration_ns", 84_000_000, "84 ms"),
        ("duration_ns", 200_000_000_000, "3 min 20 s"),
        ("cost_usd", Decimal("0.000012"), "$0.000012"),
        ("cost_usd", Decimal("1234.5"), "$1,234.5000"),
        ("hit_ratio", 0.25, "25.0%"),
        ("calls", 1_000, "1,000"),
        ("calls", None, "-"),
    ],
)
def test_values_are_formatted_by_column_name(column: str, value: Any, shown: str) -> None:
    """Instants, durations, money and shares are formatted by the unit in their column's name."""
    assert text(pretty(column, value)) == shown


_US, _MS, _S = 10**3, 10**6, 10**9
_MIN, _H, _D = 60 * _S, 3600 * _S, 86_400 * _S


@pytest.mark.parametrize(
    ("ns", "shown"),
    [
        (None, None), (0, "0 s"), (1, "1 ns"), (999, "999 ns"), (_US, "1 µs"), (400 * _US, "400 µs"),
        (999_499, "999 µs"), (999_500, "1.0 ms"), (1_500 * _US, "1.5 ms"), (9_949_999, "9.9 ms"),
        (9_950_000, "10 ms"), (84 * _MS, "84 ms"), (999_499_999, "999 ms"), (999_600_000, "1.00 s"),
        (1_420 * _MS, "1.42 s"), (42_700 * _MS, "42.70 s"), (59_994 * _MS, "59.99 s"), (59_995 * _MS, "1 min"),
        (_MIN, "1 min"), (3 * _MIN + 20 * _S, "3 min 20 s"), (_H - _S // 2 - 1, "59 min 59 s"),
        (_H - _S // 2, "1 h"), (154 * _MIN + 17 * _S, "2 h 34 min"), (7 * _H + 12 * _MIN, "7 h 12 min"),
        (_D - _MIN // 2 - 1, "23 h 59 min"), (_D - _MIN // 2, "1 d"), (26 * _H, "1 d 2 h"), (51 * _H, "2 d 3 h"),
        (4_000 * _D, "4,000 d"), (-3 * _S, "-3.00 s"), (-400 * _US, "-400 µs"), (-90 * _S, "-1 min 30 s"),
    ],
)  # fmt: skip
def test_a_duration_has_one_or_two_units(ns: int | None, shown: str | None) -> None:
    """A duration is rounded before its unit is chosen, and has its sign and one or two units."""
    assert seconds(ns) == shown


@pytest.mark.parametrize(
    ("part", "whole", "digits", "shown"),
    [
        (0, 7, 0, "0%"),
        (1, 250, 0, "<1%"),
        (2, 5, 0, "40%"),
        (985, 1000, 0, "98%"),
        (996, 1000, 0, ">99%"),
        (7, 7, 0, "100%"),
        (3, 2, 0, "150%"),
        (1, 3, 1, "33.3%"),
        (99_960, 100_000, 1, ">99.9%"),
        (1, 10_000, 1, "<0.1%"),
        (Decimal("0.5654"), Decimal("3.9411"), 0, "14%"),
    ],
)
def test_a_share_is_never_rounded_to_nothing_or_everything(
    part: Any, whole: Any, digits: int, shown: str
) -> None:
    """Only nothing is shown as 0%, and only everything as 100%."""
    assert share(part, whole, digits=digits) == shown


@pytest.mark.parametrize(
    ("value", "status", "shown"),
    [
        ("0.00297", "exact", "$0.0030"),
        ("0.00297", "lower_bound", "at least $0.0029"),
        ("3.94106", "lower_bound", "at least $3.9410"),
        ("3.94106", "estimated", "about $3.9411"),
        ("0.00009", "lower_bound", "at least $0.00009"),
        (None, "lower_bound", None),
    ],
)
def test_a_lower_bound_is_rounded_down(value: str | None, status: str, shown: str | None) -> None:
    """An amount after `at least` or `≥` is never higher than the known amount."""
    amount = None if value is None else Decimal(value)
    assert certain_money(amount, status) == shown
    assert money(amount, status) == (shown and shown.split(" ")[-1])
