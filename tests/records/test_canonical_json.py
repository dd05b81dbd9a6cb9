"""The canonical form of JSON: two values that are equal have the same text, and no others have."""

from __future__ import annotations

from typing import Any

import pytest

from agentobs.records.canonical_json import canonical, size


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"b": 1, "a": [1, 2]}, '{"a":[1,2],"b":1}'),
        ({"b": {"d": 1, "c": 2}}, '{"b":{"c":2,"d":1}}'),
        ("Z\u00fcrich \U0001f600", '"Z\u00fcrich \U0001f600"'),
        ([1.0, -0.0, 1.5], "[1,0,1.5]"),
        ([True, False, None], "[true,false,null]"),
    ],
)
def test_the_canonical_text(value: Any, text: str) -> None:
    """Keys are sorted, there is no whitespace, integral floats are integers, and characters are not escaped."""
    assert canonical(value) == text


def test_texts_are_not_normalized() -> None:
    """A letter with an accent differs from a letter and a combining accent, as in the request."""
    assert canonical("\u00fc") != canonical("u\u0308")


@pytest.mark.parametrize(
    ("value", "expected"), [(None, 0), ("", 0), ("\u00fc", 2), ("\ud800", 3), ({"a": "\u00fc"}, 11)]
)
def test_the_size_of_content_in_bytes(value: Any, expected: int) -> None:
    """The size is that of the UTF-8 text, or of the JSON of another value."""
    assert size(value) == expected
