"""Whole numbers in texts that others choose: headers, URLs, forms and arguments."""

from __future__ import annotations


def whole_number(text: str | None, digits: int = 9) -> int | None:
    """Return the whole number that a text is; None if it is none, or if it is longer than any useful number.

    Python's `int` also accepts other digits, signs, spaces and underscores, and raises for thousands of digits.

    Args:
        text: the text; None is not a number.
        digits: the maximum number of digits; by default the number fits in 32 bits.
    """
    is_number = text is not None and len(text) <= digits and text.isascii() and text.isdigit()
    return int(text) if is_number and text is not None else None


__all__ = ["whole_number"]
