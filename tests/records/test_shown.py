"""Values as people read them: nothing that comes from a recording is anything but what it looks like."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from agentobs.records.shown import pretty, text

TURNED = "a\u202eb\x1b[31m"


@pytest.mark.parametrize(
    "value", [TURNED, {TURNED: 1}, {"key": TURNED}, [TURNED], [{"key": TURNED}]]
)
def test_no_character_hides_or_turns_around(value: Any) -> None:
    """Control and direction characters are escapes, however deep they lie."""
    told = text(value)
    assert told.isprintable()
    assert "\u202e" not in told


@pytest.mark.parametrize(
    ("column", "value", "told"),
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
def test_the_name_of_a_column_tells_what_it_is(column: str, value: Any, told: str) -> None:
    """Instants, durations, money and shares are read by people, with their units."""
    assert text(pretty(column, value)) == told
