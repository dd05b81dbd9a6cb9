"""Rows as CSV and as JSON lines."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any, TextIO

Row = Sequence[Any]

FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""Text that starts with one of these is evaluated by spreadsheets; the last four are full-width signs
(https://owasp.org/www-community/attacks/CSV_Injection).
"""


def write_csv(out: TextIO, columns: Sequence[str], rows: Iterable[Row]) -> None:
    """Write rows as CSV with a header line. NULL is an empty cell, and the items of a list are separated by commas.

    Text that a spreadsheet would evaluate as a formula gets a leading quote.
    """
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_csv_cell(value) for value in row] for row in rows)


def write_json(out: TextIO, columns: Sequence[str], rows: Iterable[Row]) -> None:
    """Write rows as JSON, one object per line; decimals and other values without a JSON type become strings."""
    for row in rows:
        value = dict(zip(columns, row, strict=True))
        out.write(json.dumps(value, default=_plain, ensure_ascii=False) + "\n")


def _plain(value: Any) -> str:
    """Return the text of a value; a decimal has no exponent (`0.0000001`, not `1E-7`)."""
    return f"{value:f}" if isinstance(value, Decimal) else str(value)


def _csv_cell(value: Any) -> Any:
    if isinstance(value, Decimal):
        return _plain(value)
    if isinstance(value, list):
        value = ", ".join(map(_plain, value))
    if isinstance(value, str) and value.startswith(FORMULA_STARTS):
        return "'" + value
    return value
