"""Whole numbers in texts that others choose."""

from __future__ import annotations

import pytest

from agentobs.records.whole_numbers import whole_number


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("007", 7),
        ("123456789", 123_456_789),
        ("1234567890", None),
        ("9" * 5000, None),
        ("²", None),
        ("٣", None),
        ("+1", None),
        ("-1", None),
        ("1_0", None),
        (" 1", None),
        ("1.0", None),
        ("", None),
        (None, None),
    ],
)
def test_only_digits_are_a_number(text: str | None, expected: int | None) -> None:
    """Texts with other digits, signs, spaces or underscores, which `int` accepts, and very long ones are rejected."""
    assert whole_number(text) == expected


def test_the_number_of_digits_can_be_chosen() -> None:
    """A length of 18 digits fits in 64 bits."""
    assert whole_number("9" * 18, 18) == 10**18 - 1
    assert whole_number("9" * 19, 18) is None
