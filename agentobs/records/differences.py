"""Find the differences between two JSON values: paths of leaves, each with the recorded and the new
value.

The work is bounded for values of any size. Equal ends of lists are skipped. The rest is aligned fully only if it is
small, otherwise by items that occur once on both sides.
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
"""The key for the parsed JSON of a string, as in a tool's result."""
CELLS_MAX = 40_000
"""Maximum product of the lengths of two sequences that are compared fully, because the time grows
with it: about 10 ms. Our choice.
"""
KEPT = 2_000
"""Characters of a long value that a difference keeps, around the first deviation. Our choice."""
Keys = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference between two values."""

    path: str
    """JSONPath-like path, such as `$.messages[6].content[0].content`."""
    keys: Keys
    """The same path as keys and indexes, in the new value if it exists there, else in the recorded one."""
    change: Change
    """The kind of change; `reordered` is a list with the same elements in a different order."""
    expected: Any
    """The recorded value; None if it was added. For a long value, the part around the difference."""
    actual: Any
    """The new value; None if it was removed. For a long value, the part around the difference."""
    skipped: int = 0
    """How many equal characters are omitted before both values."""
    lengths: tuple[int, int] | None = None
    """The full lengths of both values in characters, if parts are omitted."""


def differences(expected: Any, actual: Any) -> list[Difference]:
    """Return all differences between two JSON values, in reading order."""
    return list(_walk(expected, actual, ()))


def same(old: Any, new: Any) -> bool:
    """Return whether two JSON values are equal: an integral float equals its integer, true does not equal 1."""
    if isinstance(old, dict) and isinstance(new, dict):
        return old.keys() == new.keys() and all(same(old[key], new[key]) for key in old)
    if isinstance(old, list) and isinstance(new, list):
        return len(old) == len(new) and all(map(same, old, new))
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
    elif not same(old, new):
        inner = _json_in(old), _json_in(new)
        found = [] if None in inner else list(_walk(*inner, (*keys, INSIDE)))
        yield from found or [_difference(keys, "changed", old, new)]


def _json_in(value: Any) -> Any:
    """Return the object or list in a string of JSON, or None."""
    if not isinstance(value, str) or value[:1] not in ("{", "["):
        return None
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return None


def _walk_list(old: list[Any], new: list[Any], keys: Keys) -> Iterator[Difference]:
    names = [_name(item) for item in old], [_name(item) for item in new]
    if names[0] == names[1]:
        return
    if len(old) > 1 and Counter(names[0]) == Counter(names[1]):
        yield _difference(keys, "reordered", old, new)
        return
    for a1, a2, b1, b2 in unequal(*names):
        for offset in range(max(a2 - a1, b2 - b1)):
            a, b = a1 + offset, b1 + offset
            if a >= a2:
                yield _difference((*keys, b), "added", None, new[b])
            elif b >= b2:
                yield _difference((*keys, a), "removed", old[a], None)
            else:
                yield from _walk(old[a], new[b], (*keys, b))


def _name(item: Any) -> bytes:
    """Return a short hash of an item for comparing lists without a second copy of it."""
    return hashlib.blake2b(
        canonical(item).encode("utf-8", "surrogatepass"), digest_size=16
    ).digest()


Span = tuple[int, int, int, int]
"""A difference: start and end in the first sequence, start and end in the second."""


def unequal(old: Sequence[Any], new: Sequence[Any]) -> list[Span]:
    """Return where two sequences of hashable items differ, in order; the time does not grow with their product."""
    start = common(old, new)
    end = common(old[start:][::-1], new[start:][::-1])
    a, b = old[start : len(old) - end], new[start : len(new) - end]
    if not a and not b:
        return []
    found = _full(a, b) if len(a) * len(b) <= CELLS_MAX else _anchored(a, b)
    return [(start + a1, start + a2, start + b1, start + b2) for a1, a2, b1, b2 in found]


def common(a: Sequence[Any], b: Sequence[Any]) -> int:
    """Return the length of the common prefix of two sequences; by bisection, so that the comparison runs in C."""
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


def _full(a: Sequence[Any], b: Sequence[Any]) -> list[Span]:
    codes = SequenceMatcher(None, a, b, autojunk=False).get_opcodes()
    return [(a1, a2, b1, b2) for tag, a1, a2, b1, b2 in codes if tag != "equal"]


def _anchored(a: Sequence[Any], b: Sequence[Any]) -> list[Span]:
    """Align long sequences by items that occur once in both (patience diff), and short gaps between them fully."""
    found: list[Span] = []
    last_a = last_b = 0
    for at_a, at_b in [*_anchors(a, b), (len(a), len(b))]:
        found += _between(a, b, (last_a, at_a, last_b, at_b))
        last_a, last_b = at_a + 1, at_b + 1
    return found


def _between(a: Sequence[Any], b: Sequence[Any], span: Span) -> list[Span]:
    a1, a2, b1, b2 = span
    if a1 == a2 and b1 == b2:
        return []
    if (a2 - a1) * (b2 - b1) > CELLS_MAX:
        return [span]
    inner = _full(a[a1:a2], b[b1:b2])
    return [(a1 + w, a1 + x, b1 + y, b1 + z) for w, x, y, z in inner]


def _anchors(a: Sequence[Any], b: Sequence[Any]) -> list[tuple[int, int]]:
    """Return the longest common subsequence of items that occur once on each side."""
    counts = Counter(a), Counter(b)
    places = {item: at for at, item in enumerate(b) if counts[1][item] == 1}
    pairs = [(at, places[x]) for at, x in enumerate(a) if counts[0][x] == 1 and x in places]
    ends: list[int] = []
    heads: list[int] = []
    before: list[int] = []
    for number, (_, at_b) in enumerate(pairs):
        length = bisect_left(ends, at_b)
        before.append(heads[length - 1] if length else -1)
        ends[length : length + 1], heads[length : length + 1] = [at_b], [number]
    run: list[tuple[int, int]] = []
    number = heads[-1] if heads else -1
    while number >= 0:
        run.append(pairs[number])
        number = before[number]
    return run[::-1]


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
            first = [None if text is None else text[:KEPT] for text in texts]
            sizes = len(texts[0] or ""), len(texts[1] or "")
            return replace(difference, expected=first[0], actual=first[1], lengths=sizes)
        old, new = texts[0] or "", texts[1] or ""
    start = common(old, new)
    end = common(old[start:][::-1], new[start:][::-1])
    at = max(start - KEPT // 4, 0)
    # Both end at the same position of the next equal part, if that is near.
    ends = [min(len(text) - end + KEPT // 4, at + KEPT) for text in (old, new)]
    return replace(
        difference,
        expected=old[at : ends[0]],
        actual=new[at : ends[1]],
        skipped=at,
        lengths=(len(old), len(new)),
    )


def _is_short(value: Any) -> bool:
    return len(value if isinstance(value, str) else _text(value)) <= KEPT


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def path_of(keys: Keys) -> str:
    """Format keys and indexes as a path: `$.tools[3].name`, unusual keys in quotes."""
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
