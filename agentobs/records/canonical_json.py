"""The canonical form of a question, and its digest.

Two questions are the same when their canonical forms are: JSON with sorted keys and no blanks, text
in UTF-8 as it is (no Unicode normalisation), whole floats written as integers. What is not JSON
counts byte for byte.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

Json = Any
"""A parsed JSON value: None, bool, int, float, str, list or dict of the same."""


def parse(body: bytes) -> Json:
    """Return the JSON value of `body`.

    Raises:
        ValueError: `body` is not UTF-8 or not JSON.
        RecursionError: it is nested deeper than the interpreter allows.
    """
    return json.loads(body.decode("utf-8"))


def canonical(value: Json) -> str:
    """Return the canonical text of a JSON value (see the module's first lines)."""
    return json.dumps(_plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def size(value: Json) -> int:
    """Return the bytes of some content: its text, or its JSON as Python writes it; of what is no JSON, its `repr`."""
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


def question_digest(method: str, path: str, headers: dict[str, str], body: bytes) -> str:
    """Return the digest of a question to the provider: method, path, meaningful headers and body."""
    try:
        text = canonical(parse(body)) if body else ""
    except (ValueError, RecursionError):
        return digest(b"\0".join((method.encode(), path.encode(), meaning(headers).encode(), body)))
    return digest(
        "\0".join((method, path, meaning(headers), text)).encode("utf-8", "surrogatepass")
    )


MEANINGFUL_HEADERS = ("anthropic-beta", "anthropic-version")
"""Request headers that change what the provider does; all others may vary between runs."""


def meaning(headers: dict[str, str]) -> str:
    """Return the meaningful headers as one canonical text."""
    return canonical({name: headers[name] for name in MEANINGFUL_HEADERS if name in headers})


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
