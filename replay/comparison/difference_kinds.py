"""Kinds of differences, such as whitespace, secrets, order, and values that are new in each run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal

from agentobs.records.differences import Difference, unequal_spans
from replay.comparison.alignment import only_whitespace_differs
from replay.comparison.placeholders import bare
from replay.comparison.rule_proposals import DIFFERENCES_MAX, hidden_values

Nature = Literal[
    "",
    "whitespace",
    "redaction",
    "element order",
    "normalizer gap",
    "number",
    "schema",
    "SDK version",
    "timing",
]
"""What all differences of a divergence have in common:

- `whitespace`: only whitespace differs;
- `redaction`: only placeholders of secrets differ;
- `element order`: the same elements in a different order;
- `normalizer gap`: only values that are new in each run differ, and no active rule covers them;
- `number`: only numbers differ;
- `schema`: only declarations of tools differ;
- `SDK version`: only values that the SDK writes differ, and the version of the SDK has changed;
- `timing`: the difference depends on time or on the order of events;
- the empty string: none of these.
"""

NATURES: dict[Nature, str] = {
    "whitespace": "whitespace only",
    "redaction": "redaction only",
    "element order": "same elements, different order",
    "normalizer gap": "a value that changes with each run",
    "number": "a number",
    "schema": "a tool's schema",
    "SDK version": "SDK version",
    "timing": "timing",
}
"""The phrases for these kinds in reports."""

_NUMBER = re.compile(r"-?\d{1,30}(?:[.,]\d{1,30})?(?:[eE][+-]?\d{1,4})?")


def common_nature(found: Sequence[Difference]) -> Nature:
    """Return the kind that all differences have in common; an empty string if there is none."""
    examined = found[:DIFFERENCES_MAX]
    if not examined:
        return ""
    for nature, holds in _COMMON:
        if all(holds(each) for each in examined):
            return nature
    return ""


def _is_whitespace(each: Difference) -> bool:
    return _texts(each) and only_whitespace_differs(each.expected, each.actual)


def _is_redaction(each: Difference) -> bool:
    """Return whether only secrets differ: in their value, in their kind, or because only one side redacted them."""
    if not _texts(each):
        return False
    if "[redacted:" not in each.expected and "[redacted:" not in each.actual:
        return False
    old, new = (_TOKEN.findall(bare(text)) for text in (each.expected, each.actual))
    pairs = [("".join(old[a:b]), "".join(new[c:d])) for a, b, c, d in unequal_spans(old, new)]
    # Each place is compared separately, because the text after a secret is not part of it.
    return all(_is_masked(*pair) or _is_masked(*pair[::-1]) for pair in pairs)


_TOKEN = re.compile(r"\[redacted\]|\s+|(?:(?!\[redacted\])\S)+")
"""A placeholder, whitespace, or a word; a word ends before a placeholder or whitespace."""


def _is_masked(masked: str, plain: str) -> bool:
    """Return whether `masked` is a redacted form of `plain`."""
    parts = masked.split("[redacted]")
    if len(parts) < 2 or not (plain.startswith(parts[0]) and plain.endswith(parts[-1])):
        return False
    at = len(parts[0])
    for part in parts[1:-1]:
        at = plain.find(part, at)
        if at < 0:
            return False
        at += len(part)
    return at <= len(plain) - len(parts[-1])


def _is_reordered(each: Difference) -> bool:
    if each.change == "reordered":
        return True
    if not _texts(each):
        return False
    return each.expected != each.actual and _elements(each.expected) == _elements(each.actual)


def _is_number(each: Difference) -> bool:
    old, new = each.expected, each.actual
    if isinstance(old, int | float) and isinstance(new, int | float):
        return not (isinstance(old, bool) or isinstance(new, bool))
    if not _texts(each):
        return False
    return bool(_NUMBER.search(old)) and _NUMBER.sub("#", old) == _NUMBER.sub("#", new)


_COMMON: tuple[tuple[Nature, Any], ...] = (
    ("whitespace", _is_whitespace),
    ("redaction", _is_redaction),
    ("element order", _is_reordered),
    ("normalizer gap", hidden_values),
    ("number", _is_number),
)


def _texts(each: Difference) -> bool:
    if each.change != "changed":
        return False
    return isinstance(each.expected, str) and isinstance(each.actual, str)


_WORD = re.compile(r"[^\s,;\[\]{}()'\"]+")


def _elements(text: str) -> list[str]:
    return sorted(_WORD.findall(text))
