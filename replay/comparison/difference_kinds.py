"""Kinds of differences: blanks, secrets, an order, values that are new in each run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal

from agentobs.records.differences import Difference, unequal
from replay.comparison.alignment import only_blanks
from replay.comparison.placeholders import bare
from replay.comparison.rule_proposals import LOOKED_AT, hiding_of

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

- `whitespace`: only blanks differ;
- `redaction`: only placeholders of secrets differ;
- `element order`: the same elements in a different order;
- `normalizer gap`: values that are new in each run, and that no active rule covers;
- `number`: only numbers differ;
- `schema`: the declaration of a tool;
- `SDK version`: a part that the SDK writes, in another version;
- `timing`: it depends on when something happened;
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
"""The kinds in the words of the report."""

_NUMBER = re.compile(r"-?\d{1,30}(?:[.,]\d{1,30})?(?:[eE][+-]?\d{1,4})?")


def nature_of(found: Sequence[Difference]) -> Nature:
    """Return what all differences have in common; an empty string if that has no name."""
    looked = found[:LOOKED_AT]
    if not looked:
        return ""
    for nature, holds in _COMMON:
        if all(holds(each) for each in looked):
            return nature
    return ""


def _is_whitespace(each: Difference) -> bool:
    return _texts(each) and only_blanks(each.expected, each.actual)


def _is_redaction(each: Difference) -> bool:
    """Return whether only secrets differ: another one, another kind, or one that only one side redacted."""
    if not _texts(each):
        return False
    if "[redacted:" not in each.expected and "[redacted:" not in each.actual:
        return False
    old, new = (_TOKEN.findall(bare(text)) for text in (each.expected, each.actual))
    places = [("".join(old[a:b]), "".join(new[c:d])) for a, b, c, d in unequal(old, new)]
    # Each position alone: the text after a secret is not part of it.
    return all(_is_masked(*place) or _is_masked(*place[::-1]) for place in places)


_TOKEN = re.compile(r"\[redacted\]|\s+|(?:(?!\[redacted\])\S)+")
"""A placeholder, blanks, or a word up to either of them."""


def _is_masked(masked: str, plain: str) -> bool:
    """Return whether a text is a redacted form of another one."""
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
    ("normalizer gap", hiding_of),
    ("number", _is_number),
)


def _texts(each: Difference) -> bool:
    if each.change != "changed":
        return False
    return isinstance(each.expected, str) and isinstance(each.actual, str)


_WORD = re.compile(r"[^\s,;\[\]{}()'\"]+")


def _elements(text: str) -> list[str]:
    return sorted(_WORD.findall(text))
