"""Rows as CSV and as JSON lines, for whatever reads those."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any, TextIO

Row = Sequence[Any]

FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""How a text begins that a spreadsheet would compute, the four signs in full width included
(https://owasp.org/www-community/attacks/CSV_Injection)."""


def write_csv(out: TextIO, columns: Sequence[str], rows: Iterable[Row]) -> None:
    """Write rows as CSV with a header line; nothing stands as an empty cell, several values with commas between.

    A text that a spreadsheet would compute as a formula gets a quote in front.
    """
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_inert(value) for value in row] for row in rows)


def write_json(out: TextIO, columns: Sequence[str], rows: Iterable[Row]) -> None:
    """Write rows as JSON, one object a line; exact numbers that JSON has no type for stand as text."""
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
