"""Rows as CSV and as JSON lines."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any, TextIO

Row = Sequence[Any]

FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""The beginnings of text that a spreadsheet would evaluate, including the four full-width signs
(https://owasp.org/www-community/attacks/CSV_Injection).
"""


def write_csv(out: TextIO, columns: Sequence[str], rows: Iterable[Row]) -> None:
    """Write rows as CSV with a header line; NULL is an empty cell, lists are separated by commas.

    Text that a spreadsheet would evaluate as a formula gets a leading quote.
    """
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_inert(value) for value in row] for row in rows)


def write_json(out: TextIO, columns: Sequence[str], rows: Iterable[Row]) -> None:
    """Write rows as JSON, one object per line; exact numbers that JSON has no type for are strings."""
    for row in rows:
        value = dict(zip(columns, row, strict=True))
        out.write(json.dumps(value, default=_plain, ensure_ascii=False) + "\n")


def _plain(value: Any) -> str:
    """Return an exact number without an exponent (`0.0000001`, not `1E-7`), and anything else as its text."""
    return f"{value:f}" if isinstance(value, Decimal) else str(value)


def _inert(value: Any) -> Any:
    if isinstance(value, Decimal):
        return _plain(value)
    if isinstance(value, list):
        value = ", ".join(map(_plain, value))
    if isinstance(value, str) and value.startswith(FORMULA_STARTS):
        return "'" + value
    return value
