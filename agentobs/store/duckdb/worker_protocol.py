"""The messages between a worker process and its parent: JSON, prefixed with its length.

A value of a type that JSON does not have is sent as an object with one key, the name of the type. Rows therefore arrive
exactly as DuckDB returned them. Reading a message cannot run code. DuckDB returns dates outside Python's range as text,
and a time zone is sent as its offset.
"""

from __future__ import annotations

import base64
import json
import sys
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import IO, Any
from uuid import UUID

from agentobs.errors import DamagedError, UsageError

LENGTH = 4
"""The number of bytes of the length prefix, which is big-endian."""


def encoded(message: dict[str, Any]) -> bytes:
    """Return a message as bytes.

    Raises:
        UsageError: a value in it cannot be sent.
    """
    try:
        data = json.dumps(message, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        found = f"a value that cannot be sent: {error}"
        raise UsageError(found, where="sql", todo=_TYPES) from error
    return len(data).to_bytes(LENGTH, "big") + data


def decoded(pipe: IO[bytes]) -> dict[str, Any] | None:
    """Return the next message of a pipe, or None at its end."""
    length = int.from_bytes(pipe.read(LENGTH), "big")
    data = pipe.read(length)
    return read(data) if length and len(data) == length else None


def read(data: bytes, *expected: str) -> dict[str, Any]:
    """Parse a message. If `expected` keys are given, the message must have at least one of them.

    Raises:
        DamagedError: the data is not a valid message.
    """
    try:
        message = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise _wrong() from error
    if not isinstance(message, dict) or (expected and not message.keys() & set(expected)):
        raise _wrong()
    return message


def row_of(packed: Any) -> tuple[Any, ...]:
    """Return the row that was passed to `packed_row`.

    Raises:
        DamagedError: `packed` is not a packed row.
    """
    if not isinstance(packed, list):
        raise _wrong()
    return tuple(value if type(value) in _PLAIN else unpack(value) for value in packed)


def packed_row(row: tuple[Any, ...]) -> list[Any]:
    """Return a row as JSON values."""
    return [value if type(value) in _SAME else pack(value) for value in row]


def pack(value: Any) -> Any:
    """Convert a value to types that JSON has.

    Raises:
        UsageError: values of this type are not supported.
    """
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if -_LARGEST <= value <= _LARGEST else {"float": repr(value)}
        case list():
            return [pack(each) for each in value]
        case tuple():
            return {"tuple": [pack(each) for each in value]}
        case dict():
            return {"map": [[pack(key), pack(each)] for key, each in value.items()]}
        case bytes() | bytearray():
            return {"bytes": base64.b64encode(value).decode()}
        case Decimal():
            return {"decimal": str(value)}
        case datetime():  # must precede `date`, because a datetime is also a date
            return {"datetime": value.isoformat()}
        case date():
            return {"date": value.isoformat()}
        case time():
            return {"time": value.isoformat()}
        case timedelta():
            return {"interval": [value.days, value.seconds, value.microseconds]}
        case UUID():
            return {"uuid": value.hex}
    raise UsageError(f"a value of type {type(value).__name__}", where="parameters", todo=_TYPES)


def unpack(value: Any) -> Any:
    """Return the value that was passed to `pack`.

    Raises:
        DamagedError: the argument is not a result of `pack`.
    """
    if isinstance(value, list):
        return [unpack(each) for each in value]
    if not isinstance(value, dict):
        return value
    [(kind, held)] = value.items() if len(value) == 1 else [("", None)]
    try:
        return _UNPACK[kind](held)
    except (
        LookupError,
        ValueError,
        TypeError,
        AttributeError,
        ArithmeticError,
        RecursionError,
    ) as error:
        raise _wrong() from error


def _wrong() -> DamagedError:
    return DamagedError("a malformed message", where="the worker", todo="Retry")


_SAME = frozenset((type(None), bool, int, str))
"""Types that never need packing."""
_PLAIN = frozenset((type(None), bool, int, float, str))
"""Types that need no unpacking. NaN and infinities are packed, so they do not arrive as floats."""
_LARGEST = sys.float_info.max
_TYPES = (
    "Pass None, bool, int, float, str, bytes, Decimal, UUID, dates, times, lists, tuples or dicts"
)
_UNPACK: dict[str, Any] = {
    "float": float,
    "tuple": lambda held: tuple(map(unpack, held)),
    "map": lambda held: {unpack(key): unpack(each) for key, each in held},
    "bytes": lambda held: base64.b64decode(held, validate=True),
    "decimal": Decimal,
    "datetime": datetime.fromisoformat,
    "date": date.fromisoformat,
    "time": time.fromisoformat,
    "interval": lambda held: timedelta(*held),
    "uuid": UUID,
}
