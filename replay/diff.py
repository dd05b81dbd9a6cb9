"""Where two JSON values differ: leaves as paths, and two aligned lines for each.

Equal parts of long strings are elided, blanks that matter are made visible, and what a difference looks
like (a number's format, an identifier, a time, an order) is named.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any, Literal

from agentobs.records.canonical import canonical

Change = Literal["changed", "added", "removed"]
WIDTH = 76
"""Columns of one side of an aligned pair."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One place where two values differ."""

    path: str
    """JSONPath-like place, such as `$.messages[6].content[0].content`."""
    keys: tuple[str | int, ...]
    """The same place as keys and indexes; in the new value where it is there, else in the recorded one."""
    change: Change
    expected: Any
    """The recorded value; None where it was added."""
    actual: Any
    """The value that came; None where it was removed."""


def differences(expected: Any, actual: Any) -> list[Difference]:
    """Return all places where two JSON values differ, in reading order."""
    return list(_walk(expected, actual, ()))


def _walk(old: Any, new: Any, keys: tuple[str | int, ...]) -> Iterator[Difference]:
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
    elif canonical(old) != canonical(new):
        inner = _json_in(old), _json_in(new)
        if None in inner:
            yield _difference(keys, "changed", old, new)
        else:
            yield from _walk(*inner, (*keys, INSIDE))


INSIDE = "(json inside)"
"""The key under which the parsed JSON of a string stands, as in a tool's result."""


def _json_in(value: Any) -> Any:
    """Return the object or list that a string holds as JSON, or None."""
    if not isinstance(value, str) or value[:1] not in ("{", "["):
        return None
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return None


def _walk_list(old: list[Any], new: list[Any], keys: tuple[str | int, ...]) -> Iterator[Difference]:
    texts = [canonical(item) for item in old], [canonical(item) for item in new]
    for tag, a1, a2, b1, b2 in SequenceMatcher(None, *texts, autojunk=False).get_opcodes():
        if tag == "equal":
            continue
        for offset in range(max(a2 - a1, b2 - b1)):
            a, b = a1 + offset, b1 + offset
            if a >= a2:
                yield _difference((*keys, b), "added", None, new[b])
            elif b >= b2:
                yield _difference((*keys, a), "removed", old[a], None)
            else:
                yield from _walk(old[a], new[b], (*keys, b))


def _difference(keys: tuple[str | int, ...], change: Change, old: Any, new: Any) -> Difference:
    return Difference(path_of(keys), keys, change, old, new)


def path_of(keys: tuple[str | int, ...]) -> str:
    """Return keys and indexes as a path: `$.tools[3].name`, odd keys in quotes."""
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


def aligned(difference: Difference) -> list[str]:
    """Return a difference as lines: the recorded value, the one that came, and a mark where they part."""
    if difference.change != "changed":
        value = difference.actual if difference.change == "added" else difference.expected
        return [f"{difference.change}  {_cut(_shown(value))}"]
    old, new = _shown(difference.expected), _shown(difference.actual)
    if _only_blanks(difference.expected, difference.actual):
        old, new = _visible(old), _visible(new)
    at = _common(old, new)
    end = _common(old[at:][::-1], new[at:][::-1])
    start = max(at - 28, 0) if max(len(old), len(new)) > WIDTH else 0
    lead = "…" if start else ""
    mark = " " * (len(lead) + at - start) + "^" * max(1, min(len(new) - end - at, WIDTH - 30))
    return [
        f"recorded  {lead}{_cut(old[start:])}",
        f"now       {lead}{_cut(new[start:])}",
        f"          {mark} {_amount(difference.expected, difference.actual)}".rstrip(),
    ]


_LOOKS = (
    ("a uuid", r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}"),
    ("a time", r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)?"),
    ("a temporary path", r"/tmp/[\w./-]+|/var/folders/[\w./-]+"),
    ("a memory address", r"0x[0-9a-fA-F]{6,16}"),
    ("an address with a port", r"(?:127\.0\.0\.1|localhost):\d+"),
    ("a number", r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?"),
)


def looks_like(difference: Difference) -> str:
    """Return what kind of difference this is, in a few words, or an empty string."""
    old, new = difference.expected, difference.actual
    if (isinstance(old, list) and isinstance(new, list)) or difference.change != "changed":
        return ""
    if not (isinstance(old, str) and isinstance(new, str)):
        return "a number" if isinstance(old, int | float) and isinstance(new, int | float) else ""
    if _only_blanks(old, new):
        return "whitespace only"
    for name, pattern in _LOOKS:
        if re.search(pattern, old) and re.sub(pattern, "#", old) == re.sub(pattern, "#", new):
            return f"looks like {name}"
    words = re.compile(r"[^\s,;\[\]{}()'\"]+")
    if sorted(words.findall(old)) == sorted(words.findall(new)):
        return "same elements, other order"
    return ""


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    quoted = f'"{text}"' if isinstance(value, str) else text
    return safe(quoted)


def safe(text: str) -> str:
    """Return text for one terminal line: control and direction characters as visible escapes."""
    return "".join(
        c
        if c.isprintable() and c not in _BIDI
        else "⏎"
        if c == "\n"
        else "⇥"
        if c == "\t"
        else f"\\u{ord(c):04x}"
        for c in text
    )


_BIDI = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200b\u200e\u200f\ufeff"


def _only_blanks(old: Any, new: Any) -> bool:
    return (
        isinstance(old, str)
        and isinstance(new, str)
        and "".join(old.split()) == "".join(new.split())
    )


def _visible(text: str) -> str:
    return text.replace(" ", "·")


def _cut(text: str) -> str:
    return text if len(text) <= WIDTH else text[: WIDTH - 1] + "…"


def _common(a: str, b: str) -> int:
    count = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        count += 1
    return count


def _amount(old: Any, new: Any) -> str:
    if not (isinstance(old, str) and isinstance(new, str)) or old.startswith(new) == new.startswith(
        old
    ):
        return ""
    gained = len(new) - len(old)
    plural = "" if abs(gained) == 1 else "s"
    return f"{abs(gained)} character{plural} {'more' if gained > 0 else 'missing'}"
