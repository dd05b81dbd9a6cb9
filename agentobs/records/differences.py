"""Find the differences between two JSON values: the paths of leaves, each with the recorded and the new value.

The running time is bounded for values of any size. The common start and end of two lists are skipped. The rest is
compared fully only if it is small; otherwise it is aligned by the items that occur exactly once in both lists.
"""

from __future__ import annotations

import hashlib
import json
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from typing import Any, Literal

from agentobs.records.canonical_json import canonical

Change = Literal["changed", "added", "removed", "reordered"]
INSIDE = "(json inside)"
"""The key in a path that represents the JSON inside a string, as in a tool result."""
CELLS_MAX = 40_000
"""Two sequences are compared fully if the product of their lengths is at most this, which takes about 10 ms. Our
choice.
"""
KEPT_CHARACTERS = 2_000
"""The number of characters of a long value that a difference keeps, around the first deviation. Our choice."""
Keys = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference between two values."""

    path: str
    """JSONPath-like path, such as `$.messages[6].content[0].content`."""
    keys: Keys
    """The same path as keys and indexes: in the new value, or in the recorded value if it was removed."""
    change: Change
    """The kind of change; `reordered` is a list with the same elements in a different order."""
    expected: Any
    """The recorded value; None if a value was added. If it is long, only the part around the difference."""
    actual: Any
    """The new value; None if a value was removed. If it is long, only the part around the difference."""
    skipped: int = 0
    """The number of equal characters at the start of both values that are omitted."""
    lengths: tuple[int, int] | None = None
    """The full lengths of both values in characters, if parts of them are omitted."""


def differences(expected: Any, actual: Any) -> list[Difference]:
    """Return all differences between two JSON values, in reading order."""
    return list(_walk(expected, actual, ()))


def json_equal(old: Any, new: Any) -> bool:
    """Return whether two JSON values are equal. An integral float equals its integer; true does not equal 1."""
    if isinstance(old, dict) and isinstance(new, dict):
        return old.keys() == new.keys() and all(json_equal(old[key], new[key]) for key in old)
    if isinstance(old, list) and isinstance(new, list):
        return len(old) == len(new) and all(map(json_equal, old, new))
    if isinstance(old, bool) or isinstance(new, bool):
        return old is new
    if isinstance(old, int | float) and isinstance(new, int | float):
        return old == new or canonical(old) == canonical(new)
    if isinstance(old, str) and isinstance(new, str):
        return old == new
    return type(old) is type(new) and bool(old == new)


def _walk(old: Any, new: Any, keys: Keys) -> Iterator[Difference]:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(k for k in new if k not in old)]:
            if key not in new:
                yield _difference((*keys, key), "removed", old[key], None)
            elif key not in old:
                yield _difference((*keys, key), "added", None, new[key])
            else:
                yield from _walk(old[key], new[key], (*keys, key))
    elif isinstance(old, list) and isinstance(new, list):
        yield from _walk_list(old, new, keys)
    elif not json_equal(old, new):
        inner = _json_in(old), _json_in(new)
        found = [] if None in inner else list(_walk(*inner, (*keys, INSIDE)))
        yield from found or [_difference(keys, "changed", old, new)]


def _json_in(value: Any) -> Any:
    """Return the object or list that a string contains as JSON; None if it contains none."""
    if not isinstance(value, str) or value[:1] not in ("{", "["):
        return None
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return None


def _walk_list(old: list[Any], new: list[Any], keys: Keys) -> Iterator[Difference]:
    names = [_item_hash(item) for item in old], [_item_hash(item) for item in new]
    if names[0] == names[1]:
        return
    if len(old) > 1 and Counter(names[0]) == Counter(names[1]):
        yield _difference(keys, "reordered", old, new)
        return
    for a1, a2, b1, b2 in unequal_spans(*names):
        for offset in range(max(a2 - a1, b2 - b1)):
            a, b = a1 + offset, b1 + offset
            if a >= a2:
                yield _difference((*keys, b), "added", None, new[b])
            elif b >= b2:
                yield _difference((*keys, a), "removed", old[a], None)
            else:
                yield from _walk(old[a], new[b], (*keys, b))


def _item_hash(item: Any) -> bytes:
    """Return a short hash of an item, so that lists are compared without copies of their items."""
    return hashlib.blake2b(
        canonical(item).encode("utf-8", "surrogatepass"), digest_size=16
    ).digest()


Span = tuple[int, int, int, int]
"""A difference: start and end in the first sequence, start and end in the second."""


def unequal_spans(old: Sequence[Any], new: Sequence[Any]) -> list[Span]:
    """Return the spans in which two sequences of hashable items differ, in order.

    The time does not grow with the product of their lengths.
    """
    start = common_prefix(old, new)
    end = common_prefix(old[start:][::-1], new[start:][::-1])
    a, b = old[start : len(old) - end], new[start : len(new) - end]
    if not a and not b:
        return []
    found = _compare_fully(a, b) if len(a) * len(b) <= CELLS_MAX else _compare_by_anchors(a, b)
    return [(start + a1, start + a2, start + b1, start + b2) for a1, a2, b1, b2 in found]


def common_prefix(a: Sequence[Any], b: Sequence[Any]) -> int:
    """Return the length of the common prefix of two sequences. Slices are compared by bisection, which runs in C."""
    low, high = 0, min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _compare_fully(a: Sequence[Any], b: Sequence[Any]) -> list[Span]:
    codes = SequenceMatcher(None, a, b, autojunk=False).get_opcodes()
    return [(a1, a2, b1, b2) for tag, a1, a2, b1, b2 in codes if tag != "equal"]


def _compare_by_anchors(a: Sequence[Any], b: Sequence[Any]) -> list[Span]:
    """Align long sequences by the items that occur exactly once in both (patience diff).

    Short gaps between these items are compared fully.
    """
    found: list[Span] = []
    last_a = last_b = 0
    for at_a, at_b in [*_anchors(a, b), (len(a), len(b))]:
        found += _compare_span(a, b, (last_a, at_a, last_b, at_b))
        last_a, last_b = at_a + 1, at_b + 1
    return found


def _compare_span(a: Sequence[Any], b: Sequence[Any], span: Span) -> list[Span]:
    a1, a2, b1, b2 = span
    if a1 == a2 and b1 == b2:
        return []
    if (a2 - a1) * (b2 - b1) > CELLS_MAX:
        return [span]
    inner = _compare_fully(a[a1:a2], b[b1:b2])
    return [(a1 + w, a1 + x, b1 + y, b1 + z) for w, x, y, z in inner]


def _anchors(a: Sequence[Any], b: Sequence[Any]) -> list[tuple[int, int]]:
    """Return the positions of the longest common subsequence of the items that occur exactly once in each sequence."""
    counts = Counter(a), Counter(b)
    places = {item: at for at, item in enumerate(b) if counts[1][item] == 1}
    pairs = [(at, places[x]) for at, x in enumerate(a) if counts[0][x] == 1 and x in places]
    ends: list[int] = []
    last_pairs: list[int] = []
    before: list[int] = []
    for number, (_, at_b) in enumerate(pairs):
        length = bisect_left(ends, at_b)
        before.append(last_pairs[length - 1] if length else -1)
        ends[length : length + 1], last_pairs[length : length + 1] = [at_b], [number]
    matched: list[tuple[int, int]] = []
    number = last_pairs[-1] if last_pairs else -1
    while number >= 0:
        matched.append(pairs[number])
        number = before[number]
    return matched[::-1]


def _difference(keys: Keys, change: Change, old: Any, new: Any) -> Difference:
    return Difference(path_of(keys), keys, change, old, new)


def shortened(difference: Difference) -> Difference:
    """Return a difference with long values cut to the part around the deviation."""
    old, new = difference.expected, difference.actual
    if _is_short(old) and _is_short(new):
        return difference
    if not (isinstance(old, str) and isinstance(new, str)):
        texts = [None if value is None else _text(value) for value in (old, new)]
        if difference.change != "changed":
            first = [None if text is None else text[:KEPT_CHARACTERS] for text in texts]
            sizes = len(texts[0] or ""), len(texts[1] or "")
            return replace(difference, expected=first[0], actual=first[1], lengths=sizes)
        old, new = texts[0] or "", texts[1] or ""
    start = common_prefix(old, new)
    end = common_prefix(old[start:][::-1], new[start:][::-1])
    at = max(start - KEPT_CHARACTERS // 4, 0)
    # Both values are cut at the same position in their common end, unless it is too far away.
    ends = [
        min(len(text) - end + KEPT_CHARACTERS // 4, at + KEPT_CHARACTERS) for text in (old, new)
    ]
    return replace(
        difference,
        expected=old[at : ends[0]],
        actual=new[at : ends[1]],
        skipped=at,
        lengths=(len(old), len(new)),
    )


def _is_short(value: Any) -> bool:
    return len(value if isinstance(value, str) else _text(value)) <= KEPT_CHARACTERS


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def path_of(keys: Keys) -> str:
    """Format keys and indexes as a path such as `$.tools[3].name`, with unusual keys in quotes."""
    parts = ["$"]
    if keys[:1] == ("(request)",):
        parts, keys = ["request"], keys[1:]
    for key in keys:
        if isinstance(key, int):
            parts.append(f"[{key}]")
        elif key == INSIDE:
            parts.append(" | $")
        elif re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]*", key):
            parts.append(f".{key}")
        else:
            parts.append(f"[{json.dumps(key, ensure_ascii=True)}]")
    return "".join(parts)
