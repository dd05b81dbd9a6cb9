"""Mutations: changed copies of valid inputs, determined by a random generator.

A mutation changes bytes, lines, numbers or the values of JSON. Most inputs have one to three of them, because a reader
rejects an input with many changes at the first of them.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

Mutation = Callable[[bytes, random.Random, Sequence[bytes]], bytes]
"""Returns a mutated input; the last argument contains the valid inputs."""

BYTES_MAX = 200_000
"""Longer inputs are cut, so that an input takes milliseconds."""
_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_DEEP = 3_000

NUMBERS = (
    *(b"0", b"-0", b"-1", b"1e400", b"-1e400", b"1e-400", b"NaN", b"Infinity", b"-Infinity"),
    *(b"9223372036854775807", b"9223372036854775808", b"-9223372036854775809", b"4294967296"),
    *(b"18446744073709551616", b"2147483648", b"253402300800", b"0.1", b"1e18", b"1_000", b"0x10"),
    *(b"9" * 400, b"9" * 5_000, b"0x" + b"f" * 5_000, b"1e999999999", b"007", b"true"),
)
"""Replacements for numbers: limits of integer types, infinities, and numbers with thousands of digits."""

SNIPPETS = (
    *(
        b"\0",
        b"\xff",
        b"\xff\xfe",
        b"\xef\xbb\xbf",
        b"\xc0\xaf",
        b"\xed\xa0\x80",
        b"\\ud800",
        b"\x1b]52;c;",
    ),
    *(b"\r", b"\n", b"\r\n", b"\n\n", b"\r\n\r\n", b" \t", b"\\u0000", b"\xe2\x80\xa8", b"\x85"),
    *(
        b'"',
        b"'",
        b"\\",
        b"{",
        b"}",
        b"[",
        b"]",
        b":",
        b",",
        b"=",
        b"#",
        b"%00",
        b"%2e%2e/",
        b"../",
    ),
    *(
        b"data:",
        b"event:",
        b"data: [DONE]\n\n",
        b"-----BEGIN ",
        b"!!python/object/apply:os.system ['true']\n",
    ),
    *(
        b"&a *a",
        b"<<: *a",
        b"\x28\xb5\x2f\xfd",
        b"\x1f\x8b\x08\x00",
        b"PK\x03\x04",
        b"__proto__",
        b"${x}",
    ),
)
"""Bytes that have a meaning in one of the formats."""

VALUES: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        0,
        -1,
        1,
        2**31,
        2**63,
        -(2**63) - 1,
        2**70,
        0.5,
        1e300,
        "",
        "x",
        " ",
        "0",
        "-1",
    ),
    *(
        [],
        {},
        [[]],
        [None],
        {"": None},
        "\0",
        "\ud800",
        "\u202e",
        "a" * 300,
        "9" * 5_000,
        "../../etc/passwd",
    ),
    *("2026-13-45T99:99:99Z", "9999-12-31T23:59:59.999999999Z", "0001-01-01T00:00:00+23:59", "NaN"),
    *(
        "type",
        "text",
        "tool_use",
        "tool_result",
        "error",
        "b2:" + "0" * 32,
        "sha256:x",
        "base64:####",
    ),
)
"""Replacements for values of JSON."""
_RAW = (
    *(b"9" * 5_000, b"1e400", b"-1e400", b"NaN", b"-Infinity", b"1e-400", b"-0"),
    *(b"[" * _DEEP + b"]" * _DEEP, b'{"a":' * _DEEP + b"1" + b"}" * _DEEP, b"[" * 100),
    *(b'{"a":1,"a":2}', b'"\\ud83d"', b'"\\u0000"', b'"\xff"', b'"\n"', b"'x'", b"undefined"),
)
"""Replacements for values of JSON that `json.dumps` does not write."""
_MARK = "\x01raw\x01"


def mutated(seeds: Sequence[bytes], chance: random.Random) -> bytes:
    """Return a changed copy of one of the valid inputs."""
    data = chance.choice(seeds)
    for _ in range(chance.choice((1, 1, 1, 1, 2, 2, 3, 5))):
        data = chance.choice(_MUTATIONS)(data, chance, seeds)
    return data[:BYTES_MAX]


def flip_bits(data: bytes, chance: random.Random, seeds: Sequence[bytes]) -> bytes:
    """Flip one to eight bits."""
    if not data:
        return data
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 8))):
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def cut(data: bytes, chance: random.Random, seeds: Sequence[bytes]) -> bytes:
    """Cut off the end or the start."""
    at = chance.randint(0, len(data))
    return data[:at] if chance.random() < 0.8 else data[at:]


def delete_range(data: bytes, chance: random.Random, seeds: Sequence[bytes]) -> bytes:
    """Delete some bytes."""
    at = chance.randint(0, len(data))
    return data[:at] + data[at + chance.choice((1, 2, 4, 16, 100, 1000)) :]


def repeat_range(data: bytes, chance: random.Random, seeds: Sequence[bytes]) -> bytes:
    """Repeat some bytes, a few or many times."""
    at = chance.randint(0, len(data))
    part = data[at : at + chance.choice((1, 2, 4, 16, 100, 1000))]
    times = chance.choice((1, 1, 2, 50, 2_000))
    return data[:at] + part * min(times, 1 + 50_000 // (len(part) or 1)) + data[at:]


def insert(data: bytes, chance: random.Random, seeds: Sequence[bytes]) -> bytes:
    """Insert random bytes, or bytes with a meaning."""
    at = chance.randint(0, len(data))
    added = (
        chance.choice(SNIPPETS)
        if chance.random() < 0.7
        else chance.randbytes(chance.randint(1, 20))
    )
    return data[:at] + added + data[at + chance.choice((0, len(added))) :]


def splice(data: bytes, chance: random.Random, seeds: Sequence[bytes]) -> bytes:
    """Continue with a part of another valid input."""
    other = chance.choice(seeds)
    start = chance.randint(0, len(other))
    return (
        data[: chance.randint(0, len(data))]
        + other[start : start + chance.choice((20, 200, 100_000))]
    )


def change_lines(data: bytes, chance: random.Random, seeds: Sequence[bytes]) -> bytes:
    """Delete, repeat or move a line, or change the ends of lines."""
    lines = data.splitlines(keepends=True)
    if not lines:
        return data
    at = chance.randrange(len(lines))
    match chance.randrange(4):
        case 0:
            del lines[at]
        case 1:
            lines[at:at] = [lines[at]] * chance.choice((1, 1, 2, 100))
        case 2:
            lines.insert(chance.randint(0, len(lines)), lines.pop(at))
        case _:
            return data.replace(b"\n", chance.choice((b"\r", b"\r\n", b"\n\n", b"", b"\0")))
    return b"".join(lines)


def change_number(data: bytes, chance: random.Random, seeds: Sequence[bytes]) -> bytes:
    """Replace a number."""
    at = chance.randint(0, len(data))
    found = _NUMBER.search(data, at) or _NUMBER.search(data)
    return (
        data
        if found is None
        else data[: found.start()] + chance.choice(NUMBERS) + data[found.end() :]
    )


def change_encoding(data: bytes, chance: random.Random, seeds: Sequence[bytes]) -> bytes:
    """Write the text in another encoding, or with a byte order mark."""
    text = data.decode("utf-8", "replace")
    match chance.randrange(4):
        case 0:
            return text.encode("utf-16", "replace")
        case 1:
            return text.encode("latin-1", "replace").replace(b"a", b"\xe9", 1)
        case 2:
            return b"\xef\xbb\xbf" + data
        case _:
            return text.encode("utf-32", "replace")


def change_json(data: bytes, chance: random.Random, seeds: Sequence[bytes]) -> bytes:
    """Replace, delete or repeat a value in the JSON of the input, or in one line of it."""
    value = _json(data)
    if value is not None:
        return _dumped(_changed(value[0], chance), chance)
    lines = data.split(b"\n")
    at = chance.randrange(len(lines))
    prefix, brace, rest = lines[at].partition(b"{")
    value = _json(brace + rest) if brace else None
    if value is None:
        return change_number(data, chance, seeds)
    lines[at] = prefix + _dumped(_changed(value[0], chance), chance)
    return b"\n".join(lines)


@lru_cache(maxsize=512)
def _json(data: bytes) -> tuple[Any] | None:
    """Return the value of JSON as a tuple; None if the bytes are not JSON."""
    if data[:1] not in (b"{", b"["):
        return None
    try:
        return (json.loads(data),)
    except (ValueError, RecursionError):
        return None


def _dumped(value: Any, chance: random.Random) -> bytes:
    try:
        text = json.dumps(value, ensure_ascii=chance.random() < 0.5, separators=(",", ":"))
    except (ValueError, RecursionError):
        return b"null"
    data = text.encode("utf-8", "surrogatepass")
    if "\\u0001raw" in text:
        data = data.replace(json.dumps(_MARK).encode(), chance.choice(_RAW))
    return data


def _changed(value: Any, chance: random.Random) -> Any:
    """Return a value with one change in it; the unchanged parts are shared with the original."""
    if not isinstance(value, dict | list) or not value or chance.random() < 0.12:
        return chance.choice(VALUES) if chance.random() < 0.75 else _MARK
    copied: Any = value.copy()
    key = chance.choice(list(value)) if isinstance(value, dict) else chance.randrange(len(value))
    kind = chance.random()
    if kind < 0.08:
        del copied[key]
    elif kind < 0.13 and isinstance(copied, list):
        copied += [copied[key]] * chance.choice((1, 2, 300))
    elif kind < 0.13:
        copied[chance.choice(list(value))] = copied[key]
    elif kind < 0.16:
        copied[key] = [copied[key]] if chance.random() < 0.5 else {"x": copied[key]}
    else:
        copied[key] = _changed(value[key], chance)
    return copied


_MUTATIONS: tuple[Mutation, ...] = (
    *(flip_bits, flip_bits, cut, delete_range, repeat_range, insert, insert, splice),
    *(
        change_lines,
        change_number,
        change_encoding,
        change_json,
        change_json,
        change_json,
        change_json,
    ),
)
