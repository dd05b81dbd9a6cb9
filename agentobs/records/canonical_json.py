"""The canonical form of a request, and its digest.

Two requests are equal if their canonical forms are identical: JSON with sorted keys, without whitespace, with
unmodified text (no Unicode normalization), and with integral floats written as integers. A body that is not JSON is
compared byte by byte.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

Json = Any
"""A parsed JSON value: None, bool, int, float, str, or a list or dict of such values."""


def parse(body: bytes) -> Json:
    """Return the JSON value of `body`.

    Raises:
        ValueError: `body` is not UTF-8 or not JSON.
        RecursionError: `body` is nested more deeply than the interpreter allows.
    """
    return json.loads(body.decode("utf-8"))


def canonical(value: Json) -> str:
    """Return the canonical text of a JSON value (see the module's docstring)."""
    return json.dumps(_plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def size(value: Json) -> int:
    """Return the size of content in bytes: of a text, or of the JSON of another value (or its `repr` if that fails)."""
    if isinstance(value, str):
        return len(value.encode("utf-8", "surrogatepass"))
    if value is None:
        return 0
    try:
        text = json.dumps(value, ensure_ascii=False, default=str)
    except (TypeError, ValueError, RecursionError):
        text = repr(value)
    return len(text.encode("utf-8", "surrogatepass"))


def digest(data: bytes) -> str:
    """Return the digest of some bytes, tagged with its algorithm: `b2:` and 32 hex digits (BLAKE2b-128)."""
    return "b2:" + hashlib.blake2b(data, digest_size=16).hexdigest()


def _plain(value: Json) -> Json:
    match value:
        case float() if value.is_integer() and abs(value) < 2**53:
            return int(value)
        case dict():
            return {key: _plain(inner) for key, inner in value.items()}
        case list():
            return [_plain(inner) for inner in value]
        case _:
            return value
