"""JSON arrays: the elements of the arrays of a large JSON document, without parsing the complete document at once.

A HAR file or a cassette is one JSON document, in which the exchanges are the elements of an array. A scan finds where
each element starts and ends. The document is then checked with a number in place of each element, and each element is
parsed when it is needed, so that only one of them is in memory as objects.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentobs.errors import ForeignError

DEPTH_MAX = 500
"""The maximum depth of a document. Our choice: deep enough for each real request, and below the limit of the parser."""

_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|["{}\[\]]', re.DOTALL)
"""Matches a complete string, a quote without its end, or a bracket."""
_COLON = re.compile(rb"[ \t\r\n]*:")


@dataclass(slots=True)
class JsonDocument:
    """A JSON document whose large arrays were separated from it."""

    data: bytes = field(repr=False)
    head: dict[str, Any] = field(repr=False)
    """The document, in which the elements of these arrays are replaced by zeros."""
    places: dict[str, list[tuple[int, int]]]
    """Where the elements of each array are, by the key of the array: the first byte, and the one after the last."""

    def element(self, key: str, number: int) -> Any:
        """Return an element of an array; its number counts from 0.

        Raises:
            ForeignError: it is not valid JSON.
        """
        start, end = self.places[key][number]
        return parsed_json(self.data[start:end], f"element {number + 1} of `{key}`")


def json_document(data: bytes, parents: Sequence[str], keys: Sequence[str]) -> JsonDocument:
    """Scan a JSON document.

    Args:
        data: the document, in UTF-8.
        parents: the keys of the objects around the arrays, from the outside; empty if the arrays are in the document.
        keys: the keys of the arrays; their elements are objects.

    Raises:
        ForeignError: the document is not valid JSON.
    """
    places: dict[str, list[tuple[int, int]]] = {}
    skeleton: list[bytes] = []
    copied = 0
    for key, start, end in _elements(data, tuple(parents), frozenset(keys)):
        places.setdefault(key, []).append((start, end))
        skeleton += (data[copied:start], b"0")
        copied = end
    skeleton.append(data[copied:])
    head = parsed_json(b"".join(skeleton), "the document")
    if not isinstance(head, dict):
        raise ForeignError(f"a JSON {type(head).__name__} instead of an object")
    found: Any = head
    for parent in parents:
        found = found.get(parent) if isinstance(found, dict) else None
    for key in keys:
        array = found.get(key) if isinstance(found, dict) else None
        if len(places.get(key, ())) != (len(array) if isinstance(array, list) else 0):
            raise ForeignError(f"an element of `{key}` that is not an object")
    return JsonDocument(data, head, places)


def parsed_json(data: bytes, name: str) -> Any:
    """Parse JSON.

    Raises:
        ForeignError: it is not valid JSON; the text does not contain any of it.
    """
    try:
        return json.loads(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ForeignError(f"{name} is not UTF-8 (byte {error.start + 1})") from error
    except json.JSONDecodeError as error:
        raise ForeignError(
            f"{name} is not JSON: {error.msg.lower()} (line {error.lineno})"
        ) from error
    except RecursionError as error:
        raise ForeignError(f"{name} is nested too deeply") from error
    except ValueError as error:
        raise ForeignError(f"{name} contains a number with too many digits") from error


def _elements(
    data: bytes, parents: tuple[str, ...], keys: frozenset[str]
) -> Iterator[tuple[str, int, int]]:
    """Yield the key of the array, the start and the end of each element."""
    inside = len(parents) + 1
    """The depth inside the object that contains the arrays."""
    depth, start, array = 0, 0, ""
    names: dict[int, str] = {}
    """The last key at each depth, up to the depth of the arrays."""
    for token in _TOKEN.finditer(data):
        first = data[token.start()]
        if first == 0x22:  # a quote
            if token.end() - token.start() == 1:
                raise ForeignError("the file is truncated: a string does not end")
            if depth <= inside and not array and _COLON.match(data, token.end()):
                names[depth] = token.group()[1:-1].decode("utf-8", "replace")
        elif first in b"{[":
            depth += 1
            if depth > DEPTH_MAX:
                raise ForeignError("the document is nested too deeply")
            if first == 0x7B and depth == inside + 2 and array:
                start = token.start()
            elif first == 0x5B and depth == inside + 1 and names.get(inside) in keys:
                path = tuple(names.get(level, "") for level in range(1, inside))
                array = names[inside] if path == parents else ""
        else:
            if first == 0x7D and depth == inside + 2 and array:
                yield array, start, token.end()
            depth -= 1
            if depth <= inside:
                array = ""
    if depth > 0:
        raise ForeignError("the file is truncated: an object or a list does not end")
