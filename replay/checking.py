"""Checking: the lines of a fixture hold what its format says, of the types that it says.

A digest keeps nobody from making a fixture by hand, or from mending one. What is of another type there would go wrong
much later, and far from the line that it stands in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, get_args

from agentobs.records.exchanges import Ending

Check = tuple[Callable[[Any], bool], str]
"""Whether a value is right, and what it has to be, for people."""


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_place(value: Any) -> bool:
    return _is_count(value) and value > 0


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def _are(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(check, value))


def _or_none(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or check(value)


def _is_header(value: Any) -> bool:
    """Return whether a value is that of an HTTP header: in a line of its own, it would be another header."""
    return isinstance(value, str) and not {"\r", "\n"} & set(value)


def _are_headers(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_header, [*value, *value.values()]))


def _is_piece(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(_is_number, value))


def _is_given(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and _are(_is_count)(value.get("seed", []))
        and _are(_is_text)(value.get("patch", []))
        and all(_is_number(value.get(key, 0)) for key in ("zone_s", "started_ns"))
    )


def _are_results(value: Any) -> bool:
    ended = _are(_or_none(_is_text))
    return isinstance(value, dict) and all(map(ended, value.values()))


_TEXT: Check = _is_text, "a text"
_TEXT_OR_NONE: Check = _or_none(_is_text), "a text or null"
_COUNT: Check = _is_count, "a number from 0 on"
_PLACE: Check = _is_place, "a number from 1 on"
_TURN: Check = _or_none(_is_count), "a number or null"
_NUMBERS: Check = _are(_is_count), "a list of numbers"
_OBJECT: Check = _is_object, "an object"
_LIST: Check = _are(lambda _: True), "a list"
_BOOL: Check = _is_bool, "true or false"
_HEADERS: Check = _are_headers, "an object of texts of one line"

HEADER: Mapping[str, Check] = {
    "name": _TEXT,
    "entry": _TEXT_OR_NONE,
    "arguments": (_or_none(_is_object), "an object or null"),
    "obstacle": (_is_object, "an object"),
    "outcome": _TEXT_OR_NONE,
    "reason": _TEXT_OR_NONE,
    "signature": _TEXT_OR_NONE,
    "results": (_are_results, "an object of lists of texts"),
    "until": _PLACE,
    "failing_turn": _PLACE,
    "session": _TEXT,
    "raised": _TEXT,
    "day": _TEXT,
    "given": (_is_given, "an object with seed, zone_s, patch and started_ns"),
    "recorded_with": _OBJECT,
}
"""What the first line holds, all but the version and the normalisers, which are read where they are used."""

_WHERE: Mapping[str, Check] = {"lane": _TEXT, "turn": _TURN}
ASK: Mapping[str, Check] = {
    **_WHERE,
    "ask": _PLACE,
    "method": _TEXT,
    "path": _TEXT,
    "headers": _HEADERS,
    "after": _NUMBERS,
    "body": _OBJECT,
    "text": _TEXT,
    "base64": _TEXT,
    "like": _PLACE,
    "drop": _COUNT,
    "unmark": (_are(_is_place), "a list of numbers from 1 on"),
    "add": _LIST,
    "set": _OBJECT,
    "by": (_are(_is_text), "a list of texts"),
    "since": _TURN,
    "behind": _NUMBERS,
    "ends_behind": _NUMBERS,
    "amid": _TURN,
    "job": _TEXT,
    "over": _NUMBERS,
    "ms": (_is_piece, "a list of two numbers"),
}
ANSWER: Mapping[str, Check] = {
    "answer": _PLACE,
    "status": (_or_none(lambda v: _is_count(v) and 100 <= v <= 599), "a status of HTTP or null"),
    "headers": _HEADERS,
    "ending": (lambda v: v in get_args(Ending), f"one of {', '.join(get_args(Ending))}"),
    "failure": (
        _or_none(lambda v: _are(_is_text)(v) and len(v) == 2),
        "a list of two texts or null",
    ),
    "chunks": (_are(_is_piece), "a list of pairs of numbers"),
}
TOOL: Mapping[str, Check] = {
    **_WHERE,
    "tool": _TEXT,
    "name": _TEXT,
    "function": _BOOL,
    "is_error": _BOOL,
    "outcome": _TEXT,
    "tries": _COUNT,
    "after": _COUNT,
}
WORLD: Mapping[str, Check] = {**_WHERE, "world": _TEXT, "key": _TEXT}


def check(line: Any, checks: Mapping[str, Check], what: str) -> None:
    """Check the values of a line; keys that are missing, or that nobody knows, are not its business.

    Raises:
        ValueError: one is not of its type; says which.
    """
    if not isinstance(line, dict):
        raise ValueError(f"{what} is no object")
    for key, (is_right, wanted) in checks.items():
        if key in line and not is_right(line[key]):
            raise ValueError(f"`{key}` of {what} is {_short(line[key])}, and not {wanted}")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:39]}…"
